"""What the command tells people: passages, promises, figures.

In: what was found and measured. Out: lines of text, at most `width` wide.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from examples.semantic_search.anatomy import Anatomy
from examples.semantic_search.encoder import BATCH, TOKENS
from examples.semantic_search.index import Recalled
from examples.semantic_search.measuring import Counts, Race
from examples.semantic_search.passages import Passage
from examples.semantic_search.ranking import TIE, Comparison
from examples.shared.words import counted, size

COSINE = 0.999
"""What every embedding promises, against the CPU in float32."""


class Row(NamedTuple):
    """A line of the report."""

    name: str
    value: str
    note: str
    mark: str = ""


# ---- Answers -------------------------------------------------------------------------------------


def answer_lines(found: Sequence[tuple[float, Passage]], width: int, lines: int = 0) -> list[str]:
    """Passages with their scores; the text of each in at most `lines` lines, if that is given."""
    told = []
    indent = " " * 13
    room = width - len(indent)
    for rank, (score, passage) in enumerate(found, 1):
        told.append(f"  {rank:>2}  {score:5.3f}  {_shortened(passage.place, room)}")
        text = passage.text if not lines else passage.text.replace("\n", " ")
        wrapped = [
            line
            for part in text.splitlines()
            for line in textwrap.wrap(
                part,
                room,
                break_on_hyphens=False,
                max_lines=lines or None,
                placeholder=" …",
            )
        ]
        told += [indent + line for line in wrapped]
    return told


def _shortened(place: str, width: int) -> str:
    """The end of a place says more than its middle."""
    if len(place) <= width:
        return place
    file, _, heading = place.partition(" > ")
    last = heading.rpartition(" > ")[2]
    return textwrap.shorten(f"{file} > … > {last}", width, placeholder=" …")


# ---- Promises ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Agreement:
    """Embeddings and rankings against those of the CPU in float32."""

    lowest: float
    mean: float
    texts: int
    rankings: list[Comparison]
    passages: int


@dataclass(frozen=True)
class Promise:
    """Something that must be so; the command fails if it is not."""

    name: str
    holds: bool
    value: str
    note: str

    @property
    def row(self) -> Row:
        return Row(self.name, self.value, self.note, "✓" if self.holds else "✗")


def promises(agreement: Agreement | None, counts: Counts, anatomy: Anatomy) -> list[Promise]:
    """What is promised, and whether it came out so."""
    made = [] if agreement is None else [_embeddings(agreement), _ranking(agreement)]
    return [*made, _fallbacks(counts, anatomy)]


def _embeddings(agreement: Agreement) -> Promise:
    return Promise(
        "embeddings",
        agreement.lowest >= COSINE,
        f"cosine {agreement.lowest:.5f}",
        f"the lowest of {counted(agreement.texts, 'text')} with the CPU in float32, mean "
        f"{agreement.mean:.5f}; promised {COSINE}",
    )


def _ranking(agreement: Agreement) -> Promise:
    rankings = agreement.rankings
    same = sum(r.holds for r in rankings)
    swapped = max((r.swapped for r in rankings), default=0.0)
    exact = sum(r.same_top for r in rankings)
    return Promise(
        "ranking",
        same == len(rankings),
        f"{same} of {counted(len(rankings), 'question')}",
        f"{counted(agreement.passages, 'passage')} in the CPU's order where its scores differ by "
        f"more than {TIE:.4f} (largest swap {swapped:.4f}), those shown exactly for {exact}",
    )


def _fallbacks(counts: Counts, anatomy: Anatomy) -> Promise:
    host = [*anatomy.host_steps, *(f"{op} ({n} times)" for op, n in counts.host_operations.items())]
    problems = [f"on the host: {', '.join(host)}"] if host else []
    if anatomy.graph_breaks:
        problems.append(counted(anatomy.graph_breaks, "graph break"))
    on_card = (
        f"{counted(anatomy.operations, 'operation')} on the card in "
        f"{counted(anatomy.kernels, 'kernel')}, {anatomy.copies} of them copies between layouts"
    )
    value = f"{counted(len(host), 'operation')}" if host else "none"
    return Promise("fallbacks", not problems, value, "; ".join([*problems, on_card]))


# ---- Figures -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Costs:
    """What the run cost."""

    counts: Counts
    anatomy: Anatomy
    weight_bytes: int
    compile_seconds: float
    compiled: bool
    """False: from caches of an earlier run."""
    made: Recalled
    """Embeddings of the passages."""
    race: Race | None
    seconds: float
    """All of it."""


def figures(costs: Costs) -> list[Row]:
    """Speeds, bytes and times."""
    counts, race = costs.counts, costs.race
    embedded = f"{counts.tokens:,} tokens of {counted(counts.texts, 'text')}"
    per_batch = counts.card_ms / counts.batches if counts.batches else 0.0
    moved, link = costs.anatomy.memory_bytes, counts.sent_bytes + counts.received_bytes
    peer = "" if race is None else f"; torch.compile for the CPU {race.cpu_compile_seconds:.1f} s"
    rows = [
        *_index(costs.made),
        Row(
            "speed here",
            f"{counts.tokens_per_second:,.0f} tokens/s",
            f"{embedded} in {counts.seconds:.1f} s",
        ),
        Row(
            "on the card",
            f"{counts.card_tokens_per_second:,.0f} tokens/s",
            f"modelled: {counts.card_ms:.1f} ms, {per_batch:.2f} ms per batch of "
            f"{BATCH} x {TOKENS} tokens",
        ),
        Row(
            "bytes moved",
            size(moved * counts.batches),
            f"between the card's memory and its cores, {size(moved)} per batch",
        ),
        Row(
            "",
            size(link),
            f"over the host link: {size(counts.sent_bytes)} to the card, "
            f"{size(counts.received_bytes)} back; weights once, {size(costs.weight_bytes)}",
        ),
        Row(
            "compiling",
            f"{costs.compile_seconds:.1f} s",
            ("anew" if costs.compiled else "from caches of an earlier run") + peer,
        ),
    ]
    if race is not None:
        rows.append(
            Row(
                "against CPU",
                f"{race.ratio:.2f} x the time",
                f"of torch.compile in float32: {race.card_seconds * 1e3:.0f} ms against "
                f"{race.cpu_seconds * 1e3:.0f} ms a batch, best of {race.rounds} in turn",
            )
        )
    return [*rows, Row("in all", f"{costs.seconds:.1f} s", "")]


def _index(made: Recalled) -> list[Row]:
    if not made.recalled:
        return []
    passages, again = counted(len(made.rows), "passage"), counted(made.checked, "other")
    note = f"of {passages} embedded by an earlier run; {again} now as then, to the bit"
    return [Row("index", f"{made.recalled:,}", note)]


def table(rows: Sequence[Row], width: int) -> list[str]:
    """Mark, name, value, note in columns; notes are wrapped."""
    wide = max(len(row.value) for row in rows) + 2
    lines = []
    for row in rows:
        first = f"  {row.mark:<2}{row.name:<13}{row.value:<{wide}}"
        wrapped = textwrap.wrap(row.note, max(width - len(first), 24)) or [""]
        lines.append((first + wrapped[0]).rstrip())
        lines += [" " * len(first) + line for line in wrapped[1:]]
    return lines
