"""Joint work division of a kernel: candidates per operation, minimal modelled time in all.

In: the operations of a kernel as aligned OpSpecs, with the names of their buffers. Out: the OpSpecs
with slices. Every legal division of an operation is priced (`op_cost`); the cost of an operation
depends on its neighbours, because a tensor can stay in scratchpads only where its users divide it
in the same way (`scratchpad/estimate`). Without scratchpad planning each operation takes its own
cheapest division.

Search (`choose_division`): coordinate descent from three starts (the documented division, each
operation's cheapest, and a greedy pass that prefers the division of the inputs). Deterministic,
and never worse than the documented division.

Example: `best_divisions([spec], [["x", "y", "z"]], cores=32, max_span=CARD.span_bytes)[0]`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import sympy

from torch_spyre._inductor.opspec.access import read_accesses
from torch_spyre._inductor.opspec.core_views import Views
from torch_spyre._inductor.opspec.op_spec import OpSpec
from torch_spyre._inductor.planning.division.choose_division import Search
from torch_spyre._inductor.planning.division.documented_rules import divide, divisions, with_slices
from torch_spyre._inductor.planning.op_cost import Content, Pricer, slices_of
from torch_spyre.card_model.core_slices import CoreView
from torch_spyre.card_model.cost_model import Price, price

_KEPT = 12
"""Candidates of an operation, of each sort."""

Slices = dict[sympy.Symbol, int]


class Candidate(NamedTuple):
    """A division of an operation, and how each of its tensors is spread over the cores by it."""

    slices: Slices
    views: tuple[CoreView | None, ...]
    """None where a tensor cannot be in scratchpads."""


class Division(NamedTuple):
    """The operations of a kernel, divided, and an estimate of their time: it is not known yet
    whether the scratchpads have room for all that could stay."""

    specs: list[OpSpec]
    us: float
    floor: float = 0.0
    """What no plan of scratchpads can be below: the same without copies and moves."""
    is_documented: bool = False


def best_divisions(
    specs: Sequence[OpSpec],
    buffers: Sequence[Sequence[Any]],
    *,
    cores: int,
    max_span: int,
    lx_bytes: int = 0,
    fixed: Collection[Any] = (),
    never: Collection[Any] = (),
    k_fast: bool = True,
    hinted: Sequence[bool] = (),
    moves: bool = False,
    thorough: bool = True,
) -> list[Division]:
    """Divisions of a kernel that are worth a complete plan, the best by the estimate first, the
    documented one among them.

    `buffers` names the buffer of each tensor of each operation. `lx_bytes` is what a core can keep,
    0 where nothing stays. Buffers in `fixed` are in memory in any case (arguments of the kernel),
    and in scratchpads too where that pays; those in `never` are not. An operation that is `hinted`
    keeps the slices that it has. `moves`: scratchpads can be moved to others over the ring. Not
    `thorough`: one division, from one start; for who compares kernels."""
    known: dict[tuple[int, bool], Options] = {}  # layers share their specs
    options = []
    for spec, keep in zip(specs, hinted or [False] * len(specs), strict=True):
        key = (id(spec), keep)
        if key not in known:
            known[key] = candidates_of(spec, cores, max_span, lx_bytes > 0, k_fast, keep, moves)
        options.append(known[key])
    search = Search(options, buffers, lx_bytes, set(fixed), set(never), moves)
    documented = search.state([0] * len(specs))
    starts = [documented, search.state([option.cheapest for option in options])]
    if lx_bytes:
        forward = search.state(search.forward())
        starts = [*starts, forward] if thorough else [forward]
    found = sorted([search.improve(start) for start in starts], key=lambda state: state.total)
    if lx_bytes:
        found = [search.improve(search.agree(found[0])), *found, documented]
    if not thorough:
        found = found[:1]
    different = {tuple(state.choice): state for state in reversed(found)}
    divided: dict[tuple[int, int, int], OpSpec] = {}

    def with_candidate(spec: OpSpec, option: Options, candidate: int) -> OpSpec:
        """Memoised, so that identical layers share one object."""
        key = (id(spec), id(option), candidate)
        if key not in divided:
            divided[key] = with_slices(spec, option.candidates[candidate].slices)
        return divided[key]

    return [
        Division(
            [with_candidate(*one) for one in zip(specs, options, choice, strict=True)],
            state.total,
            sum(state.us),
            not any(choice),
        )
        for choice, state in reversed(different.items())
    ]


# ---- Candidates ----------------------------------------------------------------------------------


@dataclass
class Options:
    """The candidates of an operation, priced; shared by identical operations."""

    pricer: Pricer
    candidates: list[Candidate]
    """The documented division first."""
    cheapest: int

    def __post_init__(self) -> None:
        self.views = [candidate.views for candidate in self.candidates]
        self._known: dict[tuple[int, tuple[bool, ...]], float] = {}

    def us(self, candidate: int, in_lx: tuple[bool, ...]) -> float:
        """Modelled time of a candidate with some of the tensors in scratchpads."""
        found = self._known.get((candidate, in_lx))
        if found is None:
            found = self.pricer.us(self.candidates[candidate].slices, in_lx)
            self._known[candidate, in_lx] = found
        return found


def candidates_of(
    op: OpSpec,
    cores: int,
    max_span: int,
    with_lx: bool,
    k_fast: bool,
    keep: bool = False,
    moves: bool = True,
) -> Options:
    """The divisions that are worth a look; the one that it has when it should `keep` that."""
    return _candidates(Content(op), cores, max_span, with_lx, k_fast, keep, moves)


@lru_cache(maxsize=4096)
def _candidates(
    content: Content,
    cores: int,
    max_span: int,
    with_lx: bool,
    k_fast: bool,
    keep: bool,
    moves: bool,
) -> Options:
    op = content.op
    accesses = None if op.op == "relayout" else read_accesses(op)
    pricer = Pricer(op, accesses)
    every: list[Slices] = [slices_of(op)] if keep else list(divisions(op, cores, max_span))
    documented = every[0] if keep else slices_of(divide(op, cores, max_span, matmul_model=True))
    ranked = sorted(every, key=lambda slices: rank(pricer.price(slices)))
    found = [documented, *(s for s in ranked[:_KEPT] if s != documented)]
    cheapest = found.index(ranked[0])
    if not with_lx:
        return Options(pricer, [Candidate(s, (None,) * len(op.args)) for s in found], cheapest)
    all_lx = (True,) * len(op.args)
    best = sorted(every, key=lambda slices: rank(pricer.price(slices, all_lx)))[:_KEPT]
    found += [s for s in best if s not in found]
    views = Views(op, k_fast)
    candidates = []
    for slices in found:
        mine = views.of(slices)
        if not moves and mine[-1] is not None and mine[-1].holders is not None:
            mine = (*mine[:-1], None)  # one core of several has the sum
        candidates.append(Candidate(slices, mine))
    return Options(pricer, candidates, cheapest)


def rank(cost: Price) -> tuple[float, ...]:
    """What is better: less time; of equals no partial sums; of equals less work in all units."""
    work = cost.memory_us + cost.lx_us + cost.pt_us + cost.sfp_us
    return round(cost.us, 6), cost.ring_us, round(work, 6)


def modelled_us(specs: Sequence[OpSpec]) -> float:
    """Of divided operations, one after the other."""
    return sum(price(Pricer(spec).work(slices_of(spec))).us for spec in specs)
