"""The page of the documentation about a compiled sweep: which way each operator takes.

In: a `Result` of a compiled sweep. Out: Markdown. An operator is `native` when the graph is made of
documented OpFuncs, `★` when it needs extensions of ours, `host` when a step of it is computed by
the host inside of the graph, and `refused` or `wrong` when it does not work.

    as_page(Result("spyre", "2.13.0", 4, outcomes, compiled=True))
"""

from __future__ import annotations

from collections import Counter, defaultdict

from .report import FAILURES, Result, cell, counts, skipped_section
from .worker import Outcome

SHORT = {"native": "native", "extension": "★", "host": "host", "no operation": "–"}
FAILED = {"mismatch": "**wrong**", "error": "**refused**", "crash": "**crash**", "hang": "**hang**"}


def as_page(result: Result) -> str:
    """Write the page."""
    dtypes = list(dict.fromkeys(o.dtype for o in result.outcomes))
    parts = [
        "# PyTorch's operator database, compiled",
        "",
        "`make opinfo` also runs PyTorch's operator database through `torch.compile`. This page is "
        f"its output, for torch {result.torch} and up to {result.samples} samples per operator and "
        "dtype. All samples of an operator are one graph (`fullgraph=True`, `dynamic=False`); the "
        "results are compared with eager CPU, which gets the inputs as the device holds them. "
        "Eager mode has [a page of its own](opinfo.md), with the rules of the comparison.",
        "",
        "A sample that fails on the device is given to CPU Inductor. Where that does not compile "
        "it, or computes something else than eager CPU, the sample does not count; an operator "
        "with no sample left is *skipped*.",
        "",
        "| dtype | operators | skipped | compared | matched | | native | ★ | host | – |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for c in counts(result):
        ways = Counter(o.way for o in result.outcomes if o.dtype == c.dtype and o.status == "match")
        shares = " | ".join(str(ways[way]) for way in SHORT)
        parts.append(
            f"| {c.dtype} | {c.pairs} | {c.skipped} | {c.compared} | {c.matched} | "
            f"{c.percent_text} | {shares} |"
        )
    parts += [
        "",
        "- *native*: every operation of the graph is a documented OpFunc of the card;",
        "- ★: all is done on the card, with extensions "
        "([supported operations](supported_operations.md) marks them);",
        "- *host*: the graph is one program, with a step that the host computes;",
        "- –: nothing is computed (views, sizes).",
        "",
    ]
    parts += _failures(result) + _table(result, dtypes) + skipped_section(result, compiled=True)
    return "\n".join(parts) + "\n"


def _failures(result: Result) -> list[str]:
    failed = [o for o in result.outcomes if o.status in FAILURES]
    lines = ["## What does not match", ""]
    if not failed:
        return [*lines, "Every operator that was compared matches.", ""]
    lines += ["| operator | dtype | outcome | why |", "|---|---|---|---|"]
    lines += [
        f"| `{o.op}` | {o.dtype} | {o.status} | {cell(o.message)} ({cell(o.sample)}) |"
        for o in failed
    ]
    return [*lines, ""]


def _table(result: Result, dtypes: list[str]) -> list[str]:
    lines = ["## Which way each operator takes", ""]
    lines += ["| operator | " + " | ".join(dtypes) + " | what the host does, and why |"]
    lines += ["|---|" + "---|" * (len(dtypes) + 1)]
    by_op: dict[str, dict[str, Outcome]] = defaultdict(dict)
    for o in result.outcomes:
        by_op[o.op][o.dtype] = o
    for op, found in by_op.items():
        if all(o.status == "skipped" for o in found.values()):
            continue
        ways = [_way(found.get(dtype)) for dtype in dtypes]
        why = dict.fromkeys(text for o in found.values() for text in o.host)
        lines.append(f"| `{op}` | {' | '.join(ways)} | {'; '.join(map(cell, why))} |")
    return lines


def _way(outcome: Outcome | None) -> str:
    if outcome is None or outcome.status == "skipped":
        return ""
    return FAILED.get(outcome.status) or SHORT[outcome.way]
