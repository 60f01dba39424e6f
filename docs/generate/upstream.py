"""`python -m docs.generate.upstream`: write docs/contributing/upstream.md.

In: the table of changes to PyTorch. Out: a page. With `--check` nothing is written, and the exit
code is 1 when the page is not what it should be; a test does that.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from docs.generate.page import run
from torch_spyre.upstream import table
from torch_spyre.upstream.install import VARIABLE
from torch_spyre.upstream.table import Patch

PAGE = Path(__file__).parents[2] / "docs" / "contributing" / "upstream.md"

_INTRODUCTION = f"""\
# Changes to PyTorch

*Made by `python -m docs.generate.upstream` from `torch_spyre/upstream/table.py`; do not edit.*

An out-of-tree device has hooks for most of what it needs: all are in
[How it works](../getting_started/how_it_works.md#all-extension-points). Where there is none, a
function of PyTorch is replaced (a monkey patch). All replacements are rows of one table and are
made by `torch_spyre/upstream/install.py`; a test on the syntax trees finds any other assignment to
something of PyTorch. They are written for PyTorch {{versions}}, the version that is pinned.

- **kind**: *semantics*, graphs or tensors of the card would be wrong or a documented name missing;
  *cache*, files that others have damaged or written would be run; *time*, the same result sooner.
- **scope**: *spyre*, PyTorch's own function is called for tensors and graphs of other devices;
  *new name*, nothing that was there is replaced; *process*, it holds for all devices.
- **gain**: how much more compiling takes without the row, cold / warm, for MiniLM 8x128 and for a
  decoder of 24 layers (`python -m benchmarks.upstream`): in calls of functions of Python and C,
  which are the same in each run; around the compiler in processor time. A row of time
  stays if it gains 2 % in one of these, one that holds for other devices if it gains 5 %.
- **test**: for *semantics* and *cache* a program that runs with the row and must fail without it
  (`tests/upstream/test_table.py`): when it does not, PyTorch has what was missing.

| {VARIABLE}= | |
|---|---|
| `all` | the default |
| `semantics` | without what only saves time, to find out whether a wrong graph is ours |
| `without:NAME,NAME` | without single rows of any kind, to bisect |
"""

_SECTIONS = (
    ("With `import torch`", table.WITH_THE_DEVICE),
    ("With the module that they change", table.WITH_THEIR_MODULE),
    ("With the first graph that has spyre tensors", table.WITH_THE_COMPILER),
    ("Around the compiler", table.AROUND_THE_COMPILER),
)


def page() -> str:
    """The whole page."""
    versions = ", ".join(sorted({patch.torch for patch in table.PATCHES}))
    parts = [_INTRODUCTION.replace("{versions}", versions), _counts()]
    parts += [f"## {title}\n\n{_rows(patches)}" for title, patches in _SECTIONS]
    parts.append("## For as long as a block takes\n\n" + _listed(table.SCOPED))
    parts.append("## Further attributes\n\n" + _listed(table.ADDED))
    return "\n".join(parts)


def _counts() -> str:
    kinds = [patch.kind for patch in table.PATCHES if patch.targets]
    targets = sum(len(patch.targets) for patch in table.PATCHES)
    told = ", ".join(f"{kinds.count(kind)} of {kind}" for kind in ("semantics", "cache", "time"))
    return f"{len(kinds)} rows change {targets} attributes: {told}.\n"


def _rows(patches: Iterable[Patch]) -> str:
    lines = ["| name | what | kind | scope | why | gain | test |", "|---|---|---|---|---|---|---|"]
    for patch in patches:
        what = "<br>".join(f"`{target.replace(':', '.')}`" for target in patch.targets)
        lines.append(
            f"| {patch.name} | {what or '–'} | {patch.kind} | {patch.scope} | {patch.why} "
            f"| {patch.gain} | `{patch.test}` |"
        )
    return "\n".join(lines) + "\n"


def _listed(known: dict[str, str]) -> str:
    return "".join(f"- `{name.replace(':', '.')}`: {why}\n" for name, why in known.items())


def main(arguments: Sequence[str] | None = None) -> int:
    return run("docs.generate.upstream", page, PAGE, arguments)


if __name__ == "__main__":
    sys.exit(main())
