"""Automatic tiling: loops over groups of operations whose intermediates exceed the scratchpads.

In: the operations of a kernel in order, as aligned OpSpecs. Out: a tree of operations and loops
(`tiling`). A group is a stretch of operations from the one that writes a large intermediate to the
last that reads it: scores, softmax and the product with values; both products of an MLP. It is
tried in tiles of each dimension that the group keeps (rows, heads, batches), in as few as fit, and
each trial is planned like a kernel: divided over cores, with its scratchpad residency. The cheapest
by the cost model is taken if it is cheaper than no loop at all. The last tile may be smaller.

Example: attention of 12 heads over 2048 tokens has 96 MB of scores, three heads of it 24 MB. In a
loop over heads scores never leave the scratchpads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

import sympy

from torch_spyre._inductor import config
from torch_spyre._inductor.layouts.to_op_spec import buffers_of
from torch_spyre._inductor.operations.operation import Buffer
from torch_spyre._inductor.planning import device_addresses
from torch_spyre._inductor.planning.divide_and_place import modelled_us, plan_kernel
from torch_spyre._inductor.planning.division.documented_rules import widest_span
from torch_spyre._inductor.planning.op_cost import Pricer, slices_of
from torch_spyre._inductor.planning.scratchpad.lifetimes import budget
from torch_spyre._inductor.planning.scratchpad.residency import Residency
from torch_spyre._inductor.planning.tiling.loops import (
    WHOLE,
    Cut,
    Homes,
    Item,
    Loop,
    Node,
    Uses,
    accesses_of,
    block_of,
    build,
    can_tile,
    in_memory,
    unit_of,
    with_runs,
    with_wide_tensors,
)
from torch_spyre.hardware import CARD

_LARGE = 4
"""An intermediate is worth a thought when so many of its size do not fit."""
_LARGEST_GROUP = 64
_SOON = 8
"""Operations from the first to the last that read an argument, for a loop to keep it that long."""
_TRIALS = 2
"""Numbers of tiles that are tried along one dimension, from the fewest that fit on."""
_GAIN = 0.97
"""A loop must take at most this part of the time without it."""

_NEARLY = 0.02
"""Times that differ by less are the same to a model."""
_GOOD = 0.1

_SMALL = ("pointwise", "copy")
"""Kinds of operations that do not make a tensor of other dimensions."""

Symbols = dict[Item, sympy.Symbol]


def loops(items: Sequence[Item], is_argument: Callable[[Buffer], bool]) -> list[Node]:
    """The operations, some of them in loops."""
    room = config.cores * budget(config.lx_reserved)
    uses = Uses(items, is_argument)
    nodes: list[Node] = []
    done = 0
    known: dict[object, Trial | None] = {}
    for begin, end in _groups(items, is_argument, room // _LARGE):
        first, last = _with_neighbours(items, max(begin, done), end, uses)
        wide = list(items[max(first, done) : last])
        if begin < done or len(wide) > _LARGEST_GROUP:
            continue
        key = _content(wide)
        if key not in known:
            known[key] = _best(wide, begin - max(first, done), last - end, uses, room)
        trial = known[key]
        if trial is None:
            continue
        start = max(first, done)
        group = wide[trial.before : len(wide) - trial.after]
        nodes += items[done : start + trial.before]
        nodes += build(_with_symbols(group, trial, trial.before), trial.cuts, uses)
        done = start + trial.before + len(group)
    return [*nodes, *items[done:]]


# ---- Groups --------------------------------------------------------------------------------------


def _groups(
    items: Sequence[Item], is_argument: Callable[[Buffer], bool], large: int
) -> list[tuple[int, int]]:
    """Stretches between the writers of large intermediates and their last readers; and those in
    which a large argument is read again soon, as both passes of a norm do."""
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for time, item in enumerate(items):
        for buffer in buffers_of(item.op):
            first.setdefault(buffer, time)
            last[buffer] = time
    spans, reads = [], []
    for buffer in first:
        if not buffer.is_constant and device_addresses.device_bytes(buffer) > large:
            span = (first[buffer], last[buffer] + 1)
            if not is_argument(buffer):
                spans.append(span)
            elif 1 < span[1] - span[0] <= _SOON:
                reads.append(span)
    merged = [_with_readers(items, *span, large) for span in _merged(spans)]
    apart = [r for r in _merged(reads) if all(r[1] <= b or e <= r[0] for b, e in merged)]
    return sorted([*merged, *apart])


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if merged and begin < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def _with_readers(items: Sequence[Item], begin: int, end: int, large: int) -> tuple[int, int]:
    """With operations just before that read the same large tensor, as the maximum of a softmax."""
    read = {
        b for i in items[begin:end] for b in buffers_of(i.op)
        if not b.is_constant and device_addresses.device_bytes(b) > large
    }  # fmt: skip
    while begin and not read.isdisjoint(buffers_of(items[begin - 1].op)[:-1]):
        begin -= 1
    return begin, end


def _with_neighbours(items: Sequence[Item], begin: int, end: int, uses: Uses) -> tuple[int, int]:
    """With small operations before and after that can be fused into the loop: a factor of queries,
    a bias. Their intermediates need not be stored then either."""
    while begin and items[begin - 1].op.kind in _SMALL:
        only = uses.only_in(items[begin - 1 : end])
        if items[begin - 1].op.output.buffer not in only:
            break
        begin -= 1
    while end < len(items) and items[end].op.kind in _SMALL:
        written = {item.op.output.buffer for item in items[begin:end]}
        if written.isdisjoint(buffers_of(items[end].op)[:-1]):
            break
        end += 1
    return begin, end


def _content(group: Sequence[Item]) -> object:
    """Equal for groups that are alike, those of repeated layers."""
    numbers: dict[Buffer, int] = {}
    return tuple(
        (item.op.content(), tuple(numbers.setdefault(b, len(numbers)) for b in buffers_of(item.op)))
        for item in group
    )


# ---- Dimensions ----------------------------------------------------------------------------------


def _dimensions(group: Sequence[Item]) -> list[list[sympy.Symbol | None]]:
    """Ways to walk through a group in tiles: for each operation the symbol that is cut."""
    largest = max(group, key=lambda item: device_addresses.device_bytes(item.op.output.buffer))
    found = []
    for symbol in largest.spec.iteration_space:
        chosen = _follow(group, largest, symbol)
        if chosen is not None and chosen not in found:
            found.append(chosen)
    return found


def _follow(
    group: Sequence[Item], start: Item, symbol: sympy.Symbol
) -> list[sympy.Symbol | None] | None:
    """The same dimension in all operations, from tensor to tensor. None if one reduces it."""
    chosen: Symbols = {start: symbol}
    written = {item.op.output.buffer for item in group}
    blocks: dict[Buffer, int] = {}
    changed = True
    while changed:
        changed = False
        for item in group:
            if not can_tile(item.spec):
                continue
            for buffer, access in zip(buffers_of(item.op), accesses_of(item.spec), strict=True):
                if buffer not in written:
                    continue
                if item in chosen:
                    block = block_of(access, item.spec, chosen[item])
                    if block is not None and buffer not in blocks:
                        blocks[buffer] = block
                        changed = True
                elif buffer in blocks:
                    for axis in access.axes:
                        if block_of(access, item.spec, axis.symbol) == blocks[buffer]:
                            chosen[item] = axis.symbol
                            changed = True
                            break
    for item, own in chosen.items():
        if all(own not in c.free_symbols for c in item.spec.args[-1].device_coordinates):
            return None
    return [chosen.get(item) for item in group]


# ---- Trials --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """Loops around a group, outermost first."""

    symbols: tuple[tuple[sympy.Symbol | None, ...], ...]
    """For each loop the symbol of each operation."""
    cuts: tuple[Cut, ...]
    before: int = 0
    """Operations excluded at the beginning of the stretch, ..."""
    after: int = 0
    """... and at its end."""


class Cost(NamedTuple):
    us: float
    bytes: int
    """Of device memory."""

    def beats(self, other: Cost) -> bool:
        """Less time; of nearly equal ones less traffic."""
        if self.bytes < other.bytes:
            return self.us < other.us * (1 + _NEARLY)
        return self.us < other.us * (1 - _NEARLY)


class _Search:
    """Prices loops over a stretch of operations."""

    def __init__(self, wide: list[Item], uses: Uses) -> None:
        own = set(uses.only_in(wide))
        self._outside = {b for item in wide for b in buffers_of(item.op) if b not in own}
        self._wide, self._uses = wide, uses
        self._plain = _cost([*wide], self._outside)
        self.costs: dict[Trial, Cost] = {}

    def offer(self, trial: Trial) -> None:
        """Price a trial that has loops."""
        left, right = trial.before, len(self._wide) - trial.after
        group = _with_symbols(self._wide[left:right], trial, left)
        looped = build(group, trial.cuts, self._uses)
        if any(isinstance(node, Loop) for node in looped):
            nodes = [*self._wide[:left], *looped, *self._wide[right:]]
            self.costs[trial] = _cost(nodes, self._outside)

    @property
    def is_needed(self) -> bool:
        """Loops pay by what they need not move: not where each tensor moves once without them."""
        once = sum(device_addresses.device_bytes(buffer) for buffer in self._outside)
        return self._plain.us == inf or self._plain.bytes > once * (1 + _NEARLY)

    @property
    def best(self) -> Trial | None:
        """The cheapest, if it is cheaper than no loop."""
        best: Trial | None = None
        for trial, cost in self.costs.items():
            pays = cost.us < self._plain.us * _GAIN
            if pays and (best is None or cost.beats(self.costs[best])):
                best = trial
        return best


def _best(wide: list[Item], before: int, after: int, uses: Uses, room: int) -> Trial | None:
    """The cheapest loops over a stretch, or over it without its neighbours; None if they cost more
    than no loop. Planning a trial takes time, so few are made: one for each dimension, other
    numbers of tiles along the good ones, and the best without the neighbours."""
    trials = _trials(wide, room)
    if not trials:
        return None
    search = _Search(wide, uses)
    if not search.is_needed:
        return None
    for first, *_ in trials:
        search.offer(first)
    if search.best is None:
        return None
    limit = search.costs[search.best].us * (1 + _GOOD)
    for first, *others in trials:
        if first in search.costs and search.costs[first].us <= limit:
            for trial in others:
                search.offer(trial)
    if before or after:
        search.offer(replace(search.best, before=before, after=after))
    return search.best


def _trials(group: Sequence[Item], room: int) -> list[list[Trial]]:
    """For each dimension numbers of tiles with which what is alive fits; also for two dimensions,
    of which the first is cut all the way."""
    fewest = -(-_most_alive(group) // room)
    dimensions = [(tuple(symbols), _units(group, symbols)) for symbols in _dimensions(group)]
    trials = [[Trial((s,), (cut,)) for cut in _cuts(units, fewest)] for s, units in dimensions]
    for symbols, units in dimensions:
        if not 1 < units < fewest:
            continue
        for other, more in dimensions:
            if other != symbols:
                cuts = _cuts(more, -(-fewest // units))
                trials.append([Trial((symbols, other), (Cut(units), cut)) for cut in cuts])
    return [of_one for of_one in trials if of_one]


def _units(group: Sequence[Item], symbols: Sequence[sympy.Symbol | None]) -> int:
    """How many tiles there can be at most."""
    found = [
        -(-item.spec.iteration_space[symbol][0] // unit_of(item.spec, symbol))
        for item, symbol in zip(group, symbols, strict=True)
        if symbol is not None
    ]
    return min(found, default=1)


def _cuts(units: int, fewest: int) -> list[Cut]:
    """Numbers of tiles that fit: the fewest that divide the dimension; more of them; and, where
    these are many more, the fewest at all, with tiles that the cores can share and a last one that
    is smaller."""
    if fewest > units or units < 2:
        return []
    fewest = max(fewest, 2)
    even = [Cut(n) for n in range(fewest, units + 1) if units % n == 0][:_TRIALS]
    if even[0].tiles == fewest:
        return even
    uneven = Cut(fewest, config.cores if units // fewest >= config.cores else 1)
    return [even[0], uneven] if even[0].tiles <= 2 * fewest else [uneven, even[0]]


def _most_alive(group: Sequence[Item]) -> int:
    """Bytes of what the group writes, where most of it is needed at once."""
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for time, item in enumerate(group):
        for buffer in buffers_of(item.op):
            first.setdefault(buffer, time)
            last[buffer] = time
    written = {item.op.output.buffer for item in group}
    alive = [
        sum(device_addresses.device_bytes(b) for b in written if first[b] <= time <= last[b])
        for time in range(len(group))
    ]
    return max(alive)


def _with_symbols(group: Sequence[Item], trial: Trial, first: int = 0) -> list[Item]:
    """Operations of a stretch, from its `first` on, with what the loops of a trial cut."""
    return [
        replace(item, symbols=tuple(level[number] for level in trial.symbols))
        for number, item in enumerate(group, first)
    ]


def _cost(nodes: Sequence[Node], outside: set[Buffer]) -> Cost:
    """Time and traffic of a tree, each run of operations planned on its own."""
    homes = Homes(nodes, outside)
    counts: dict[int, int] = {}
    _count(nodes, 1, counts)
    us, moved = 0.0, 0

    def planned(run: list[Item]) -> list[Item]:
        nonlocal us, moved
        wide = [with_wide_tensors(item, homes, CARD.span_bytes) for item in run]
        specs = [in_memory(spec) for spec in wide]
        plan = plan_kernel([item.op for item in run], specs, homes.shared(run), thorough=False)
        if _reaches_too_far(plan):
            us = inf
        us += modelled_us(plan) * counts[id(run[0])]
        moved += _memory_bytes(plan) * counts[id(run[0])]
        return run

    with_runs(nodes, planned)
    return Cost(us, moved)


def _reaches_too_far(plan: Residency) -> bool:
    """Whether a core would have to address more of a tensor than it can."""
    return any(
        widest_span(spec, slices_of(spec), config.cores) > CARD.span_bytes
        for spec in plan.specs
        if WHOLE in spec.op_info
    )


def _memory_bytes(plan: Residency) -> int:
    total = 0
    for op, spec in zip(plan.operations, plan.specs, strict=True):
        in_lx = [buffer in plan.lx for buffer in buffers_of(op)]
        flows = Pricer(spec).work(slices_of(spec), in_lx).flows
        total += sum(flow.total_bytes for flow, lx in zip(flows, in_lx, strict=True) if not lx)
    return total


def _count(nodes: Sequence[Node], times: int, counts: dict[int, int]) -> None:
    for node in nodes:
        if isinstance(node, Loop):
            _count(node.body, times * node.count, counts)
        else:
            counts[id(node)] = times
