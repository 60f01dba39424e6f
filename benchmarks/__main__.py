"""`python -m benchmarks`: measure, print, judge, and write docs/performance/*.{md,json,svg}.

    python -m benchmarks --only speed --rows softmax,GELU    # two rows; the others stay as they are
    python -m benchmarks --quick --folder build/performance  # a first look that leaves docs alone

Exit code 1 means that a promise does not hold.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import compiling, memory, overheads, pages, plot, speed
from benchmarks.results import (
    Promise,
    Result,
    Run,
    busy,
    compare,
    dump,
    is_commit,
    load,
    machine,
    merged,
)

BUSY = 0.2  # above this share of the processor, who waits for whom decides, not the code
FOLDER = Path(__file__).resolve().parent.parent / "docs" / "performance"


def _nothing(results: Sequence[Result]) -> list[Promise]:
    return []


@dataclass(frozen=True)
class Group:
    """A page: how its rows are measured and what it says about them."""

    title: str
    about: str
    measure: Callable[[Callable[[str], bool], bool, list[str]], list[Result]]
    promises: Callable[[Sequence[Result]], list[Promise]] = _nothing
    picture: Callable[[Sequence[Result]], str] | None = None
    names: Sequence[str] = field(default_factory=list)
    """All rows in order, for groups of which a part can be measured alone."""


GROUPS = {
    "speed": Group(
        "Speed",
        "Time of one call, best of several rounds that alternate between the card and CPU PyTorch "
        "{torch} in one process, {threads} threads; ratios are the card's time over the peer's, "
        "below 1 the card is faster. On the card tensors are float16 and lie in its memory, and "
        "the time includes waiting for the result. [What is compared](index.md) says more.",
        speed.measure,
        speed.promises,
        plot.ratios,
        [case.name for case in speed.CASES],
    ),
    "compiling": Group(
        "Compiling",
        "Time from `torch.compile` to the first result, imports not counted, each in a process of "
        "its own, the best of two or three that alternate. Cold: empty caches. "
        "Warm: the caches that the cold process left. The peer is Inductor for the CPU in float32, "
        "PyTorch {torch}. *bundles compiled* are device programs that were made, *bundles reused* "
        "those that an earlier layer or process had made already. *operations* are what the "
        "bundles in the cache execute, *SuperDSC files* the descriptions that they share for it.",
        compiling.measure,
        compiling.promises,
        names=compiling.names(),
    ),
    "overheads": Group(
        "Overheads",
        "Times of one call, best of several rounds that alternate between the card and CPU PyTorch "
        "{torch} in one process, {threads} threads. For copies the peer is a copy from host to "
        "host, for a compiled call a graph of Inductor for the CPU.",
        overheads.measure,
    ),
    "memory": Group(
        "Memory",
        "Resident memory of a process that has loaded, compiled and run MiniLM, against one that "
        "did the same on the CPU in float32. Allowed is what that one has, 250 MB, and one and a "
        "half times the 16-bit weights and activations.",
        memory.measure,
        names=[memory.NAME],
    ),
}


def main() -> int:
    chosen = _arguments()
    broken = 0
    for name in chosen.only:
        broken += _run(name, GROUPS[name], chosen)
    print(f"\n{broken or 'no'} broken {'promise' if broken == 1 else 'promises'}")
    return 1 if broken else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", default=",".join(GROUPS), help="groups, with commas: %(default)s")
    parser.add_argument("--rows", default="", help="only rows whose names contain one of these")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, no big compilations")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where results go")
    parser.add_argument("--against", default="", help="a commit to compare with, not the last run")
    chosen = parser.parse_args()
    chosen.only = chosen.only.split(",")
    chosen.rows = [part.lower() for part in chosen.rows.split(",") if part]
    for name in chosen.only:
        if name not in GROUPS:
            parser.error(f"unknown group '{name}'; groups are {', '.join(GROUPS)}")
    if chosen.against and not is_commit(chosen.against, FOLDER):
        parser.error(f"--against: '{chosen.against}' is no commit of this repository")
    known = [row for name in chosen.only for row in GROUPS[name].names]
    for part in chosen.rows:
        if not any(part in row.lower() for row in known):
            parser.error(f"no row contains '{part}'; rows are\n  " + "\n  ".join(known))
    return chosen


def _run(name: str, group: Group, chosen: argparse.Namespace) -> int:
    """Measure a group, print it and write it; how many promises are broken."""
    print(f"\n{group.title}\n", flush=True)
    path = chosen.folder / f"{name}.json"
    last, before = load(path), load(path, chosen.against)  # now: a damaged file costs no time
    begin = time.perf_counter()
    here, others = machine(), busy()
    if others is not None and others > BUSY:
        print(f"  {_busy_text(others)}\n", flush=True)
    failed: list[str] = []
    new = group.measure(lambda row: _is_wanted(row, chosen.rows), chosen.quick, failed)
    if not new:
        print(f"  nothing was measured, {len(failed)} rows failed")
        return len(failed)
    results = new
    if group.names and last is not None and last.machine == here:
        results = merged(new, last.results, [n for n in group.names if n not in failed])
    promises = group.promises(results)
    sections = {"": pages.results_table(results)}
    if promises:
        sections["All together"] = pages.promises_table(promises)
    if failed:
        sections["Could not be measured"] = "\n".join(f"- {row}" for row in failed)
    if before is not None:
        other = "" if before.machine == here else " (of another machine: compare ratios)"
        against = chosen.against or "the run before"
        sections[f"Against {against}{other}"] = pages.changes_table(compare(new, before.results))
    print("\n" + "\n\n".join(f"{title}\n\n{text}".lstrip() for title, text in sections.items()))
    print(f"\n{group.title} took {time.perf_counter() - begin:.0f} s")

    if len(results[0].peers) > 1:
        sections["Times of the peers"] = pages.peers_table(results)
    if any(result.facts for result in results):
        sections["More about the rows"] = pages.facts_table(results)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    if group.picture is not None:
        (chosen.folder / f"{name}.svg").write_text(group.picture(results))
    path.write_text(dump(Run(here, results, others), promises))
    (chosen.folder / f"{name}.md").write_text(_page(name, group, sections, others))
    return len(failed) + sum(not one.holds for one in [*results, *promises])


def _is_wanted(row: str, parts: Sequence[str]) -> bool:
    return not parts or any(part in row.lower() for part in parts)


def _busy_text(others: float) -> str:
    return f"The machine was busy: others used {others:.0%} of it. Times and ratios mean little."


def _page(name: str, group: Group, sections: dict[str, str], others: float | None) -> str:
    here = machine()
    warning = f"**{_busy_text(others)}**\n\n" if others is not None and others > BUSY else ""
    about = group.about.format(**here)
    picture = "" if group.picture is None else f"![{group.title}]({name}.svg)\n\n"
    text = "\n\n".join(
        f"## {title}\n\n{body}" if title else body for title, body in sections.items()
    )
    return (
        f"# {group.title}\n\nWritten by `make bench`, on {here['processor']} with "
        f"{here['cores']} cores. {about}\n\n{warning}{picture}{text}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
