"""Tables of results as Markdown, readable as they stand: for the terminal and for the docs."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.results import Change, Promise, Result


def results_table(results: Sequence[Result]) -> str:
    """Ours, the ratios to the peers, and whether the promise holds."""
    peers = list(results[0].peers)
    alone = len(peers) == 1
    ratios = ["spyre / cpu"] if alone else [f"/ {peer}" for peer in peers]
    head = ["what", "spyre", *(peers if alone else []), *ratios, "promised", "holds"]
    lines = [
        [
            result.name,
            quantity(result.ours, result.unit),
            *([quantity(result.peers[peers[0]], result.unit)] if alone else []),
            *(f"{result.ratio(peer):.2f}" if peer in result.peers else "-" for peer in peers),
            result.bound or "-",
            _verdict(result) if result.bound else "-",
        ]
        for result in results
    ]
    return table(head, lines)


def peers_table(results: Sequence[Result]) -> str:
    """The peers' own values, where the table of results has only ratios."""
    peers = list(results[0].peers)
    lines = [
        [
            result.name,
            *(quantity(result.peers[p], result.unit) if p in result.peers else "-" for p in peers),
        ]
        for result in results
    ]
    return table(["what", *peers], lines)


def facts_table(results: Sequence[Result]) -> str:
    """What else was counted."""
    facts = list(dict.fromkeys(name for result in results for name in result.facts))
    lines = [
        [result.name, *(f"{result.facts[f]:.4g}" if f in result.facts else "-" for f in facts)]
        for result in results
    ]
    return table(["what", *facts], lines)


def promises_table(promises: Sequence[Promise]) -> str:
    lines = [
        [promise.what, f"{promise.value:.2f}", f"<= {promise.bound:g}", _verdict(promise)]
        for promise in promises
    ]
    return table(["what", "measured", "promised", "holds"], lines)


def changes_table(changes: Sequence[Change]) -> str:
    """The rows that changed, or a line that says that none did."""
    lines = [
        [change.name, f"{change.of_time:.2f}", f"{change.of_ratio:.2f}", change.verdict]
        for change in changes
        if change.verdict != "same"
    ]
    if not lines:
        return f"Nothing changed by more than noise in {len(changes)} rows."
    return table(["what", "now / before", "ratio now / before", "verdict"], lines)


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns are as wide as their widest cell."""
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]
    rule = ["-" * width for width in widths]
    return "\n".join(
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in [head, rule, *lines]
    )


def quantity(value: float, unit: str) -> str:
    """`12.3 ms`: three or more digits, in the unit that suits the size."""
    if unit != "us":
        return f"{value:.0f} {unit}"
    if value < 1000:
        return f"{value:.2f} us"
    if value < 1e6:
        return f"{value / 1000:.3g} ms" if value < 1e5 else f"{value / 1000:.0f} ms"
    return f"{value / 1e6:.2f} s"


def _verdict(what: Result | Promise) -> str:
    return "yes" if what.holds else "NO"
