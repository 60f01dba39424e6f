"""What a sweep found, for a program (JSON), for the terminal, and for the documentation (Markdown).

In: a `Result`, the outcomes of all (operator, dtype) pairs in a fixed order. Out: texts. Skipped
pairs (CPU itself refuses) count neither way; a known difference is explained but still counts.

    print(as_text(Result("spyre", "2.13.0", 8, outcomes)))
    # dtype      pairs  skipped  compared  matched         %
    # float16      546        5       541      541  100.00 %
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import asdict, dataclass

from . import known
from .worker import Outcome

STATUSES = ("match", "mismatch", "error", "crash", "hang", "skipped")
FAILURES = ("mismatch", "error", "crash", "hang")
# By the number of the mode: eager, compiled.
REQUIRED_PERCENT = ({}, {"int64": 90.0, "bool": 90.0})
USUAL_PERCENT = (98.0, 95.0)
MOST_GROUPS = 40
MOST_NAMES = 6


@dataclass(frozen=True)
class Result:
    """The outcome of one sweep."""

    device: str
    torch: str
    samples: int
    outcomes: tuple[Outcome, ...]
    compiled: bool = False


@dataclass(frozen=True)
class Count:
    """How many pairs of one dtype there are, and what became of them."""

    dtype: str
    pairs: int
    skipped: int
    matched: int

    @property
    def compared(self) -> int:
        """Pairs of which a result was compared."""
        return self.pairs - self.skipped

    @property
    def percent(self) -> float:
        """Matched pairs of those compared, 100 when there was nothing to compare."""
        return 100.0 * self.matched / self.compared if self.compared else 100.0

    @property
    def percent_text(self) -> str:
        """The percentage with two digits, cut and not rounded: 100.00 means all."""
        return f"{int(self.percent * 100) / 100:.2f} %"


def counts(result: Result) -> list[Count]:
    """Count the pairs of each dtype, in the order in which the dtypes appear."""
    by_dtype: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in result.outcomes:
        by_dtype[outcome.dtype].append(outcome)
    return [
        Count(dtype, len(group), _number(group, "skipped"), _number(group, "match"))
        for dtype, group in by_dtype.items()
    ]


def is_good(result: Result) -> bool:
    """Say whether enough pairs of every dtype match and nothing crashed or hung."""
    required, usual = REQUIRED_PERCENT[result.compiled], USUAL_PERCENT[result.compiled]
    enough = all(count.percent >= required.get(count.dtype, usual) for count in counts(result))
    return enough and not any(o.status in ("crash", "hang") for o in result.outcomes)


def as_json(result: Result) -> str:
    """Write everything, for programs."""
    return json.dumps(asdict(result), indent=1, ensure_ascii=False) + "\n"


def as_text(result: Result) -> str:
    """Write the summary for the terminal."""
    lines = ["", "dtype      pairs  skipped  compared  matched         %"]
    lines += [
        f"{c.dtype:<10} {c.pairs:5d}  {c.skipped:7d}  {c.compared:8d}  {c.matched:7d}  "
        f"{c.percent_text:>8}"
        for c in counts(result)
    ]
    failed = _failures(result)
    if failed:
        lines += ["", f"{len(failed)} pair{'s do' if len(failed) > 1 else ' does'} not match:"]
        groups = _groups(failed)
        for kind, members in groups[:MOST_GROUPS]:
            lines += [f"  {len(members):3d}  {kind}", f"       {_list(members)}"]
        if len(groups) > MOST_GROUPS:
            lines.append(f"       … and {len(groups) - MOST_GROUPS} more kinds of message")
    notes = _notes(result)
    if notes:
        lines += ["", "Noted, not counted:"]
        lines += [f"  {note}: {_list(members)}" for note, members in notes.items()]
    stale = _stale(result)
    if stale:
        lines += ["", "known.py explains differences that are gone: " + ", ".join(stale)]
    return "\n".join(lines) + "\n"


def as_page(result: Result) -> str:
    """Write the page for the documentation."""
    failed = _failures(result)
    parts = [
        "# PyTorch's operator database on the device",
        "",
        "PyTorch describes its operators, with sample inputs for each, in a database called "
        f"OpInfo. `make opinfo` runs them in eager mode on `{result.device}` and on CPU and "
        f"compares; this page is its output, for torch {result.torch} and up to {result.samples} "
        "samples per operator and dtype, spread over all that PyTorch has. The in-place form and "
        "`out=` are tried with the first sample, and inputs are checked to be left alone.",
        "",
        "CPU gets the inputs as the device holds them. float32, int64 and bool have to agree with "
        "CPU; float16 is held as DLFloat16, so a result may differ by what rounding to 9 fraction "
        "bits explains, once per operator that the result goes through. The rule is written in "
        "`tests/opinfo/compare.py`.",
        "",
        "| dtype | operators | skipped | compared | matched | |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    parts += [
        f"| {c.dtype} | {c.pairs} | {c.skipped} | {c.compared} | {c.matched} | {c.percent_text} |"
        for c in counts(result)
    ]
    parts += ["", "Operators are counted with their variants, as the database lists them.", ""]
    parts += ["## What does not match", ""]
    if failed:
        parts += ["| operator | dtype | outcome | why |", "|---|---|---|---|"]
        for op, group in _by_op(failed).items():
            for (status, why), dtypes in group.items():
                parts.append(f"| `{op}` | {', '.join(dtypes)} | {status} | {cell(why)} |")
    else:
        parts.append("Every operator that was compared matches.")
    parts += _form_section(result) + skipped_section(result)
    return "\n".join(parts) + "\n"


def _form_section(result: Result) -> list[str]:
    """List the pairs that were compared by shape, dtype and device only, by reason."""
    groups: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for o in result.outcomes:
        if o.status == "match" and o.form_only:
            groups[o.form_only][o.op].append(o.dtype)
    if not groups:
        return []
    lines = ["", "## Compared by shape, dtype and device only", ""]
    for why, ops in groups.items():
        lines.append(f"- {why}: " + ", ".join(f"`{op}` ({', '.join(d)})" for op, d in ops.items()))
    return lines


def skipped_section(result: Result, compiled: bool = False) -> list[str]:
    """List what could not be compared, by reason."""
    groups: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for o in result.outcomes:
        if o.status == "skipped":
            groups[o.message][o.op].append(o.dtype)
    if not groups:
        return []
    lines = [
        "",
        "## Skipped",
        "",
        "CPU Inductor does not manage these, or eager CPU has nothing to compare with."
        if compiled
        else "CPU says that it supports these pairs, but gives nothing to compare with.",
        "",
    ]
    lines += ["| operators | why |", "|---|---|"]
    for why, ops in groups.items():
        names = ", ".join(f"`{op}` ({', '.join(d)})" for op, d in ops.items())
        lines.append(f"| {names} | {cell(why)} |")
    return lines


def _notes(result: Result) -> dict[str, list[Outcome]]:
    """Return the pairs with a remark that is no failure, by remark."""
    notes: dict[str, list[Outcome]] = defaultdict(list)
    for o in result.outcomes:
        if o.note:
            notes[o.note].append(o)
    return notes


def _list(outcomes: list[Outcome]) -> str:
    """Name the first pairs of a list and count the rest."""
    names = [f"{o.op} [{o.dtype}]" for o in outcomes]
    more = f", and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def _failures(result: Result) -> list[Outcome]:
    """Return the pairs that count against the device."""
    return [o for o in result.outcomes if o.status in FAILURES]


def _groups(failed: list[Outcome]) -> list[tuple[str, list[Outcome]]]:
    """Group failures by message with the numbers taken out, the largest group first."""
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for o in failed:
        groups[f"{o.status}: {_kind(o)}"].append(o)
    return sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))


def _kind(o: Outcome) -> str:
    """Return what two failures of one kind have in common."""
    explained = known.reason(o.op, o.dtype)
    if explained:
        return f"known: {explained}"
    if "elements differ" in o.message:
        return "elements differ"
    return re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", "#", o.message)


def _by_op(failed: list[Outcome]) -> dict[str, dict[tuple[str, str], list[str]]]:
    """Arrange failures as operator, then (outcome, why), then dtypes."""
    table: dict[str, dict[tuple[str, str], list[str]]] = defaultdict(lambda: defaultdict(list))
    for o in failed:
        where = f" ({o.sample})" if o.sample else ""
        table[o.op][o.status, known.reason(o.op, o.dtype) or o.message + where].append(o.dtype)
    return table


def _stale(result: Result) -> list[str]:
    """Return the entries of known.py that explain only pairs which match now."""
    stale = []
    for entry in known.DIFFERENCES:
        about = [o for o in result.outcomes if entry.explains(o.op, o.dtype)]
        if about and not any(o.status in FAILURES for o in about):
            stale.append(entry.op)
    return stale


def _number(group: list[Outcome], status: str) -> int:
    """Count the outcomes with one status."""
    return sum(o.status == status for o in group)


def cell(text: str) -> str:
    """Make a text safe for a cell of a Markdown table."""
    return re.sub(r"([|*_<>`\[\]])", r"\\\1", text)
