"""Which core computes what, for a kernel as a whole: the division with the least modelled time.

In: the operations of a kernel as aligned OpSpecs, with the names of their buffers. Out: the OpSpecs
with slices. Every legal division of an operation is priced (`pricing`); what an operation pays
depends on its neighbours, because an intermediate can stay in scratchpads only where all who use it
divide it in the same way. Where scratchpads are not planned, that part is zero and each operation
has its own cheapest division.

Search: three starts (the documented division, each operation's cheapest, and one that goes through
the kernel and prefers what its inputs have), each improved one operation at a time until nothing
gets better; the best of the three. Deterministic, and never worse than the documented division.

Example: `divide_kernel([spec], [["x", "y", "z"]], cores=32, max_span=CARD.span_bytes)`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import sympy

from torch_spyre._inductor.codegen.access import Access, kind_of, read_accesses
from torch_spyre._inductor.op_spec import OpSpec
from torch_spyre._inductor.pricing import Pricer, slices_of
from torch_spyre._inductor.work_division import divide, divisions, with_slices
from torch_spyre.constants import BYTES_IN_STICK
from torch_spyre.device_time import Price, price

_KEPT = 12
"""Candidates of an operation, of each sort."""
_SWEEPS = 4

Slices = dict[sympy.Symbol, int]
View = tuple[Any, ...]


class Candidate(NamedTuple):
    """A division of an operation, and how each of its tensors is spread over the cores by it."""

    slices: Slices
    views: tuple[View, ...]
    own_bytes: tuple[int, ...]
    """Of each tensor on one core."""
    splits_sum: bool
    """Cores share a result, which only one of them has in the end."""


def divide_kernel(
    specs: Sequence[OpSpec],
    buffers: Sequence[Sequence[Any]],
    *,
    cores: int,
    max_span: int,
    lx_bytes: int = 0,
    fixed: Collection[Any] = (),
    k_fast: bool = True,
    hinted: Sequence[bool] = (),
) -> list[OpSpec]:
    """Divide all operations of a kernel.

    `buffers` names the buffer of each tensor of each operation. `lx_bytes` is what a core can keep,
    0 where nothing stays; buffers in `fixed` never do: arguments of the kernel, constants. An
    operation that is `hinted` keeps the slices that it has."""
    options = [
        candidates_of(spec, cores, max_span, lx_bytes > 0, k_fast, keep)
        for spec, keep in zip(specs, hinted or [False] * len(specs), strict=True)
    ]
    search = _Search(options, buffers, lx_bytes, set(fixed))
    starts = [[0] * len(specs), [option.cheapest for option in options]]
    if lx_bytes:
        starts.append(search.forward())
    best = min((search.improve(start) for start in starts), key=search.total)
    return [with_slices(s, o.candidates[c].slices) for s, o, c in zip(specs, options, best)]


# ---- Candidates ----------------------------------------------------------------------------------


@dataclass
class Options:
    """What an operation can do. Operations that are alike share one."""

    pricer: Pricer
    candidates: list[Candidate]
    """The documented division first."""
    cheapest: int
    _prices: dict[tuple[int, tuple[bool, ...]], float] = field(default_factory=dict)

    def us(self, candidate: int, in_lx: tuple[bool, ...]) -> float:
        """What a candidate costs with some of the tensors in scratchpads."""
        key = (candidate, in_lx)
        if key not in self._prices:
            slices = self.candidates[candidate].slices
            self._prices[key] = self.pricer.price(slices, in_lx).us
        return self._prices[key]


def candidates_of(
    op: OpSpec, cores: int, max_span: int, with_lx: bool, k_fast: bool, keep: bool = False
) -> Options:
    """The divisions that are worth a look; the one that it has when it should `keep` that."""
    return _candidates(_Content(op), cores, max_span, with_lx, k_fast, keep)


class _Content:
    """An operation, equal to others that differ in addresses alone."""

    def __init__(self, op: OpSpec) -> None:
        self.op = op
        args = tuple(
            (a.is_input, a.device_dtype, tuple(a.device_size), tuple(a.device_coordinates),
             tuple(a.stride_map or ()), a.name, a.element_arrangement)
            for a in op.args
        )  # fmt: skip
        info = repr(op.op_info) if op.op_info else ""
        self._key = (op.op, tuple(op.iteration_space.items()), args, info)
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Content) and self._key == other._key


@lru_cache(maxsize=4096)
def _candidates(
    content: _Content, cores: int, max_span: int, with_lx: bool, k_fast: bool, keep: bool
) -> Options:
    op = content.op
    accesses = [] if op.op == "relayout" else read_accesses(op)
    pricer = Pricer(op, accesses or None)
    every: list[Slices] = [slices_of(op)] if keep else list(divisions(op, cores, max_span))
    documented = every[0] if keep else slices_of(divide(op, cores, max_span, matmul_model=True))
    ranked = sorted(every, key=lambda slices: rank(pricer.price(slices)))
    found = [documented, *(s for s in ranked[:_KEPT] if s != documented)]
    cheapest = found.index(ranked[0])
    if with_lx:
        all_lx = (True,) * len(op.args)
        best = sorted(every, key=lambda slices: rank(pricer.price(slices, all_lx)))[:_KEPT]
        found += [s for s in best if s not in found]
    fast = k_fast and kind_of(op) == "matmul"
    return Options(pricer, [_candidate(op, accesses, s, fast) for s in found], cheapest)


def rank(cost: Price) -> tuple[float, ...]:
    """What is better: less time; of equals no partial sums; of equals less work in all units."""
    work = cost.memory_us + cost.lx_us + cost.pt_us + cost.sfp_us
    return round(cost.us, 6), cost.ring_us, round(work, 6)


def _candidate(op: OpSpec, accesses: list[Access], slices: Slices, k_fast: bool) -> Candidate:
    if not accesses:
        nowhere = tuple((number, "relayout") for number in range(len(op.args)))
        return Candidate(slices, nowhere, (1 << 62,) * len(op.args), True)
    order = list(slices)
    if k_fast and len(order) >= 3 and slices[order[-1]] > 1:
        order = [order[-1], *order[:-1]]
    apart, step = {}, 1
    for symbol in order:  # which core has which slice: the first dimension varies fastest
        apart[symbol] = step
        step *= slices[symbol]
    views, own = [], []
    for access in accesses:
        cuts = [(j, slices[a.symbol], apart[a.symbol]) for j, a in enumerate(access.axes)]
        shape = tuple(access.arg.device_size)
        views.append((shape, step, tuple(cut for cut in cuts if cut[1] > 1)))
        parts = prod(count for _, count, _ in cuts)
        own.append(-(-BYTES_IN_STICK * prod(shape[:-1]) // parts))
    kept = accesses[-1].symbols
    splits_sum = any(n > 1 for s, n in slices.items() if s not in kept)
    return Candidate(slices, tuple(views), tuple(own), splits_sum)


# ---- Search --------------------------------------------------------------------------------------


@dataclass
class _Uses:
    writers: list[tuple[int, int]] = field(default_factory=list)
    """Operation and number of the tensor in it."""
    readers: list[tuple[int, int]] = field(default_factory=list)

    @property
    def all(self) -> list[tuple[int, int]]:
        return [*self.writers, *self.readers]


class _Search:
    def __init__(
        self,
        options: list[Options],
        buffers: Sequence[Sequence[Any]],
        lx_bytes: int,
        fixed: Collection[Any],
    ) -> None:
        self._options = options
        self._lx_bytes = lx_bytes
        self._uses: dict[Any, _Uses] = {}
        self._buffers = buffers
        for time, names in enumerate(buffers):
            for number, name in enumerate(names):
                uses = self._uses.setdefault(name, _Uses())
                (uses.writers if number == len(names) - 1 else uses.readers).append((time, number))
        self._can_stay = {
            name
            for name, uses in self._uses.items()
            if lx_bytes and name not in fixed and len(uses.writers) == 1 and uses.readers
            and uses.readers[0][0] > uses.writers[0][0]
        }  # fmt: skip
        self._neighbours = [
            sorted({t for name in set(names) & self._can_stay for t, _ in self._uses[name].all})
            for names in buffers
        ]

    def total(self, choice: Sequence[int]) -> float:
        """Modelled microseconds of all operations."""
        return sum(self._us(time, choice) for time in range(len(choice)))

    def improve(self, start: Sequence[int]) -> list[int]:
        """Change one operation at a time while that helps."""
        choice = list(start)
        for _ in range(_SWEEPS if self._lx_bytes else 1):
            changed = False
            for time, options in enumerate(self._options):
                around = self._neighbours[time] or [time]
                before, old = sum(self._us(t, choice) for t in around), choice[time]
                best, chosen = before, old
                for candidate in range(len(options.candidates)):
                    if candidate == old:
                        continue
                    choice[time] = candidate
                    cost = sum(self._us(t, choice) for t in around)
                    if cost < best - 1e-6:
                        best, chosen = cost, candidate
                choice[time] = chosen
                changed |= chosen != old
            if not changed:
                break
        return choice

    def forward(self) -> list[int]:
        """Operation after operation, each as its inputs would like it, hoping that its own readers
        do the same."""
        choice: list[int] = []
        for time, options in enumerate(self._options):

            def us(candidate: int, time: int = time, options: Options = options) -> float:
                trial = [*choice, candidate]
                return options.us(candidate, self._in_lx(time, trial, len(trial)))

            order = [options.cheapest, *range(len(options.candidates))]
            choice.append(min(order, key=us))
        return choice

    def _us(self, time: int, choice: Sequence[int]) -> float:
        return self._options[time].us(choice[time], self._in_lx(time, choice, len(choice)))

    def _in_lx(self, time: int, choice: Sequence[int], known: int) -> tuple[bool, ...]:
        """Which tensors of an operation stay in scratchpads, by what is chosen up to `known`."""
        return tuple([
            name in self._can_stay and self._agree(name, choice, known)
            for name in self._buffers[time]
        ])  # fmt: skip

    def _agree(self, name: Any, choice: Sequence[int], known: int) -> bool:
        uses = self._uses[name]
        view = None
        for time, number in uses.all:
            if time >= known:
                continue
            candidate = self._options[time].candidates[choice[time]]
            if view is None:  # the writer
                if candidate.splits_sum or candidate.own_bytes[number] > self._lx_bytes:
                    return False
                view = candidate.views[number]
            elif candidate.views[number] != view:
                return False
        return True


def modelled_us(specs: Sequence[OpSpec]) -> float:
    """Of divided operations, one after the other."""
    return sum(price(Pricer(spec).work(slices_of(spec))).us for spec in specs)
