"""Which core computes what, for a kernel as a whole: the division with the least modelled time.

In: the operations of a kernel as aligned OpSpecs, with the names of their buffers. Out: the OpSpecs
with slices. Every legal division of an operation is priced (`pricing`); what an operation pays
depends on its neighbours, because a tensor can stay in scratchpads only where those who use it
divide it in the same way (`scratchpad/estimate`). Where scratchpads are not planned, each operation
has its own cheapest division.

Search: three starts (the documented division, each operation's cheapest, and one that goes through
the kernel and prefers what its inputs have), each improved one operation at a time until nothing
gets better; the best of the three. Deterministic, and never worse than the documented division.

Example: `divide_kernel([spec], [["x", "y", "z"]], cores=32, max_span=CARD.span_bytes)`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import sympy

from torch_spyre._inductor.codegen.access import read_accesses
from torch_spyre._inductor.codegen.superdsc import Views
from torch_spyre._inductor.op_spec import OpSpec
from torch_spyre._inductor.pricing import Content, Pricer, slices_of
from torch_spyre._inductor.scratchpad.estimate import Estimate, estimate, uses_in_order
from torch_spyre._inductor.work_division import divide, divisions, with_slices
from torch_spyre.core_views import CoreView
from torch_spyre.device_time import Price, price
from torch_spyre.hardware import CARD

_KEPT = 12
"""Candidates of an operation, of each sort."""
_SWEEPS = 4
_WASTE = 2.0
"""Microseconds that a tensor may cost before several operations are changed for it."""
_BROKEN = 24
"""Tensors that are mended in one kernel."""
_SPREAD = 32
"""Operations that are changed together."""

Slices = dict[sympy.Symbol, int]


class Candidate(NamedTuple):
    """A division of an operation, and how each of its tensors is spread over the cores by it."""

    slices: Slices
    views: tuple[CoreView | None, ...]
    """None where a tensor cannot be in scratchpads."""


def divide_kernel(
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
) -> list[OpSpec]:
    """Divide all operations of a kernel.

    `buffers` names the buffer of each tensor of each operation. `lx_bytes` is what a core can keep,
    0 where nothing stays. Buffers in `fixed` are in memory in any case (arguments of the kernel),
    and in scratchpads too where that pays; those in `never` are not. An operation that is `hinted`
    keeps the slices that it has. `moves`: scratchpads can be moved to others over the ring."""
    return best_divisions(
        specs, buffers, cores=cores, max_span=max_span, lx_bytes=lx_bytes, fixed=fixed, never=never,
        k_fast=k_fast, hinted=hinted, moves=moves,
    )[0]  # fmt: skip


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
) -> list[list[OpSpec]]:
    """Divisions of a kernel that are worth a complete plan, the best by the estimate first, the
    documented one among them."""
    options = [
        candidates_of(spec, cores, max_span, lx_bytes > 0, k_fast, keep, moves)
        for spec, keep in zip(specs, hinted or [False] * len(specs), strict=True)
    ]
    search = _Search(options, buffers, lx_bytes, set(fixed), set(never), moves)
    documented = [0] * len(specs)
    starts = [documented, [option.cheapest for option in options]]
    if lx_bytes:
        starts.append(search.forward())
    found = sorted((search.improve(start) for start in starts), key=search.total)
    if lx_bytes:
        found = [search.improve(search.align(found[0])), *found, documented]
    different: list[list[int]] = []
    for choice in found:
        if choice not in different:
            different.append(choice)
    return [
        [with_slices(s, o.candidates[c].slices) for s, o, c in zip(specs, options, choice)]
        for choice in different
    ]


# ---- Candidates ----------------------------------------------------------------------------------


@dataclass
class Options:
    """What an operation can do. Operations that are alike share one."""

    pricer: Pricer
    candidates: list[Candidate]
    """The documented division first."""
    cheapest: int

    def us(self, candidate: int, in_lx: tuple[bool, ...]) -> float:
        """What a candidate costs with some of the tensors in scratchpads."""
        return self.pricer.us(self.candidates[candidate].slices, in_lx)


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


# ---- Search --------------------------------------------------------------------------------------


class _Uses:
    """Of a buffer: operations, and the number of the tensor in each. The writer comes first."""

    def __init__(self, in_memory: bool) -> None:
        self.writers: list[tuple[int, int]] = []
        self.readers: list[tuple[int, int]] = []
        self.in_memory = in_memory

    @cached_property
    def all(self) -> list[tuple[int, int]]:
        return [*self.writers, *self.readers]

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The operations of the uses, numbered from 0."""
        numbers = {time: i for i, time in enumerate(dict.fromkeys(t for t, _ in self.all))}
        return tuple([numbers[t] for t, _ in self.all])

    @property
    def can_stay(self) -> bool:
        return uses_in_order([t for t, _ in self.writers], [t for t, _ in self.readers])


class _Search:
    def __init__(
        self,
        options: list[Options],
        buffers: Sequence[Sequence[Any]],
        lx_bytes: int,
        fixed: Collection[Any],
        never: Collection[Any],
        moves: bool,
    ) -> None:
        self._moves = moves
        self._options = options
        self._lx_bytes = lx_bytes
        found: dict[Any, _Uses] = {}
        for time, names in enumerate(buffers):
            for number, name in enumerate(names):
                uses = found.setdefault(name, _Uses(name in fixed))
                (uses.writers if number == len(names) - 1 else uses.readers).append((time, number))
        self._uses = [u for n, u in found.items() if lx_bytes and n not in never and u.can_stay]
        self._tensors: list[list[tuple[int, int, int]]] = [[] for _ in options]
        """For each operation, of each of its tensors that can stay: its number, and those of its
        buffer and of its use."""
        for buffer, uses in enumerate(self._uses):
            for use, (time, number) in enumerate(uses.all):
                self._tensors[time].append((number, buffer, use))
        self._counts = [len(names) for names in buffers]
        self._around = []
        for tensors in self._tensors:
            mine = sorted({buffer for _, buffer, _ in tensors})
            operations = sorted({t for b in mine for t, _ in self._uses[b].all})
            self._around.append((mine, operations))
        self._known: dict[tuple[Any, ...], Estimate] = {}
        self._chosen: dict[tuple[Any, ...], int] = {}

    def total(self, choice: Sequence[int]) -> float:
        """Modelled microseconds of all operations."""
        us = sum(self._us(time, choice) for time in range(len(choice)))
        return us + sum(self._estimate(b, choice).us for b in range(len(self._uses)))

    def improve(self, start: Sequence[int]) -> list[int]:
        """Change one operation at a time while that helps."""
        choice = list(start)
        for _ in range(_SWEEPS if self._lx_bytes else 1):
            changed = False
            for time in range(len(choice)):
                old = choice[time]
                key = self._situation(time, choice)
                if key not in self._chosen:
                    self._chosen[key] = self._best(time, choice)
                choice[time] = self._chosen[key]
                changed |= choice[time] != old
            if not changed:
                break
        return choice

    def align(self, choice: Sequence[int]) -> list[int]:
        """Change several operations at once: those around a tensor that costs much because they
        do not agree, all to the division of one of them, and their neighbours with them."""
        best, least = list(choice), self.total(choice)
        broken = [
            (self._wasted(buffer, choice), buffer)
            for buffer in range(len(self._uses))
            if self._wasted(buffer, choice) > _WASTE
        ]
        for _, buffer in sorted(broken, key=lambda entry: (-entry[0], entry[1]))[:_BROKEN]:
            if self._wasted(buffer, best) <= _WASTE:
                continue  # mended with another one
            for time in dict.fromkeys(t for t, _ in self._uses[buffer].all):
                trial = self._spread(time, buffer, best)
                us = self.total(trial)
                if us < least - 1e-6:
                    best, least = trial, us
        return best

    def _wasted(self, buffer: int, choice: Sequence[int]) -> float:
        """Microseconds that a buffer costs because its users do not agree."""
        found = self._estimate(buffer, choice)
        uses = self._uses[buffer].all
        size = self._bytes(buffer, choice)
        missing = len(uses) - sum(found.in_lx) - self._uses[buffer].in_memory
        return found.us + max(0, missing) * size / CARD.memory_bytes_per_us

    def _bytes(self, buffer: int, choice: Sequence[int]) -> int:
        views = (self._options[t].candidates[choice[t]].views[n] for t, n in self._uses[buffer].all)
        return max((view.all_bytes for view in views if view is not None), default=0)

    def _spread(self, time: int, buffer: int, choice: Sequence[int]) -> list[int]:
        """All who share large tensors with an operation, and with them, divided as it is."""
        trial = list(choice)
        enough = self._bytes(buffer, choice) // 4
        seen, waiting = {time}, [time]
        while waiting and len(seen) < _SPREAD:
            now = waiting.pop(0)
            views = self._options[now].candidates[trial[now]].views
            for number, other, _ in self._tensors[now]:
                wanted = views[number]
                if wanted is None or wanted.all_bytes < enough:
                    continue
                for t, n in self._uses[other].all:
                    if t in seen:
                        continue
                    fitting = [
                        i for i, c in enumerate(self._options[t].candidates) if c.views[n] == wanted
                    ]
                    if not fitting:
                        continue
                    seen.add(t)
                    all_lx = (True,) * self._counts[t]
                    if trial[t] not in fitting:
                        trial[t] = min(fitting, key=lambda i: self._options[t].us(i, all_lx))
                    waiting.append(t)
        return trial

    def _best(self, time: int, choice: list[int]) -> int:
        old = best = choice[time]
        least = self._cost_around(time, choice)
        for candidate in range(len(self._options[time].candidates)):
            if candidate == old:
                continue
            choice[time] = candidate
            cost = self._cost_around(time, choice)
            if cost < least - 1e-6:
                least, best = cost, candidate
        choice[time] = old
        return best

    def _cost_around(self, time: int, choice: Sequence[int]) -> float:
        """Of all that depends on one operation."""
        buffers, operations = self._around[time]
        us = sum(self._estimate(b, choice).us for b in buffers)
        return us + sum(self._us(t, choice) for t in operations or (time,))

    def _situation(self, time: int, choice: Sequence[int]) -> tuple[Any, ...]:
        """Equal where the best choice for an operation is: in layers that are alike."""
        buffers, operations = self._around[time]
        order = {t: i for i, t in enumerate(operations)}
        around = tuple([
            (id(self._options[t]), choice[t], None if t == time else self._in_lx(t, choice))
            for t in operations
        ])  # fmt: skip
        tensors = tuple([
            (self._uses[b].in_memory, tuple([(order[t], n) for t, n in self._uses[b].all]))
            for b in buffers
        ])  # fmt: skip
        return (id(self._options[time]), choice[time], order.get(time), around, tensors)

    def forward(self) -> list[int]:
        """Operation after operation, each as its inputs would like it, hoping that its own readers
        do the same."""
        choice: list[int] = []
        for time, options in enumerate(self._options):
            order = [options.cheapest, *range(len(options.candidates))]

            def us(candidate: int, time: int = time, options: Options = options) -> float:
                trial = [*choice, candidate]
                return options.us(candidate, self._hoped(time, trial))

            choice.append(min(order, key=us))
        return choice

    def _us(self, time: int, choice: Sequence[int]) -> float:
        return self._options[time].us(choice[time], self._in_lx(time, choice))

    def _in_lx(self, time: int, choice: Sequence[int]) -> tuple[bool, ...]:
        """Which tensors of an operation stay in scratchpads."""
        flags = [False] * self._counts[time]
        for number, buffer, use in self._tensors[time]:
            flags[number] = self._estimate(buffer, choice).in_lx[use]
        return tuple(flags)

    def _estimate(self, buffer: int, choice: Sequence[int]) -> Estimate:
        uses = self._uses[buffer].all
        key = (buffer, *[choice[t] for t, _ in uses])
        found = self._known.get(key)
        if found is None:
            own = self._uses[buffer]
            views = tuple([self._options[t].candidates[choice[t]].views[n] for t, n in uses])
            found = estimate(
                views, own.order, bool(own.writers), own.in_memory, self._lx_bytes, self._moves
            )
            self._known[key] = found
        return found

    def _hoped(self, time: int, choice: Sequence[int]) -> tuple[bool, ...]:
        """Which tensors would stay, by the operations up to this one."""
        flags = [False] * self._counts[time]
        for number, buffer, _ in self._tensors[time]:
            mine = self._options[time].candidates[choice[time]].views[number]
            views = [
                self._options[t].candidates[choice[t]].views[n]
                for t, n in self._uses[buffer].all
                if t < time
            ]
            fits = mine is not None and mine.own_bytes <= self._lx_bytes
            if self._uses[buffer].in_memory and not views:
                continue
            flags[number] = fits and all(view == mine for view in views)
        return tuple(flags)


def modelled_us(specs: Sequence[OpSpec]) -> float:
    """Of divided operations, one after the other."""
    return sum(price(Pricer(spec).work(slices_of(spec))).us for spec in specs)
