"""Which core computes what: how many slices each dimension of an operation is cut into.

In: an aligned OpSpec, the number of cores, and the most that one core may address of one tensor.
Out: the OpSpec with the numbers of slices filled in. Two passes: slices that the span limit
demands, then the largest dimensions of the result over the cores that are left. An operation that
already has slices (a hint, or the cost model of matmul) keeps them.

Example: `add` of (128, 256) float16 over 4 cores: c0 has 128 rows, c1 has 4 sticks; c0 gets 4.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod

import sympy

from torch_spyre._inductor.codegen.access import Access, kind_of, read_accesses
from torch_spyre._inductor.codegen.coordinates import Misaligned, parse
from torch_spyre._inductor.codegen.relayout import relayout_info
from torch_spyre._inductor.op_spec import OpSpec
from torch_spyre._inductor.views import compute_coordinates

log = logging.getLogger("spyre.inductor.passes")


def divide(op: OpSpec, cores: int, max_span: int) -> OpSpec:
    """The operation with a number of slices for each symbol."""
    if any(slices > 1 for _, slices in op.iteration_space.values()):
        return op
    work = _work(op, cores)
    if work is None:
        return op
    _limit_spans(work, max_span)
    _fill_cores(work)
    space = {s: (size, work.slices[s]) for s, (size, _) in op.iteration_space.items()}
    return replace(op, iteration_space=space)


# ---- What may be cut, and into how many ----------------------------------------------------------


@dataclass
class _Work:
    op: OpSpec
    cores: int
    accesses: list[Access]
    sizes: dict[sympy.Symbol, int]
    """What a dimension is cut into: its elements, or its sticks if some tensor has it as the stick;
    1 if it must stay whole."""
    reduced: list[sympy.Symbol]
    slices: dict[sympy.Symbol, int]
    committed: set[sympy.Symbol] = field(default_factory=set)

    def free_cores(self) -> int:
        return self.cores // prod(self.slices.values())


def _work(op: OpSpec, cores: int) -> _Work | None:
    ones = dict.fromkeys(op.iteration_space, 1)
    if op.op == "relayout":
        return _Work(op, cores, [], _relayout_sizes(op), [], ones)
    kind = kind_of(op)
    if kind == "topk" or cores == 1:
        return None
    accesses = read_accesses(op)
    values = [a for a in accesses if not a.is_index]
    reduced = [s for s in op.iteration_space if s not in accesses[-1].symbols]
    sizes = {}
    for symbol, (size, _) in op.iteration_space.items():
        eps = max((a.unit for a in values if a.stick == symbol), default=1)
        sizes[symbol] = -(-size // eps)
        if kind == "restickify" and size % eps:
            sizes[symbol] = 1
    for index in (a for a in accesses if a.is_index):
        # A core reads whole sticks of indices.
        if index.stick is not None:
            size = op.iteration_space[index.stick][0]
            sizes[index.stick] = size // index.eps if size % index.eps == 0 else 1
    if op.op == "exx2":
        sizes.update(dict.fromkeys(reduced, 1))  # mean and variance do not add up
    return _Work(op, cores, accesses, sizes, reduced, ones)


def _relayout_sizes(op: OpSpec) -> dict[sympy.Symbol, int]:
    """Dimensions whose slices never share a stick of the output."""
    info = relayout_info(op, len(op.args) - 1)
    ranges = {symbol: size for symbol, (size, _) in op.iteration_space.items()}
    index = info["offset"] + sum(s * v for s, v in zip(info["view_stride"], ranges))
    sizes = dict.fromkeys(ranges, 1)
    try:
        coordinates = compute_coordinates(info["device_size"], info["stride_map"], ranges, index)
        stick = parse(coordinates[-1], tuple(ranges.items()))
    except Misaligned:
        return sizes
    if stick.const:
        return sizes
    eps = info["device_size"][-1]
    lanes = {term.var: term for term in stick.terms}
    for symbol, size in ranges.items():
        if symbol not in lanes:
            sizes[symbol] = size
        elif len(lanes) == 1 and lanes[symbol].num == 1 and lanes[symbol].mod == eps:
            sizes[symbol] = size // eps if size % eps == 0 else 1
    return sizes


def _divisors(number: int, most: int) -> list[int]:
    return [n for n in range(1, min(number, most) + 1) if number % n == 0]


# ---- Pass 1: the span limit ----------------------------------------------------------------------


def _limit_spans(work: _Work, max_span: int) -> None:
    for access in work.accesses:
        if access.space == "lx" or _span(work, access, {}) <= max_span:
            continue
        for axis in reversed(access.axes):  # outermost first
            symbols = [axis.symbol]
            best = _best_cut(work, access, symbols, max_span)
            work.slices.update(best)
            work.committed.update(s for s, n in best.items() if n > 1)
            if _span(work, access, {}) <= max_span or _extent(work, access, axis.symbol, {}) > 1:
                break
        span = _span(work, access, {})
        if span > max_span:
            log.critical(
                "%s: a core addresses %d bytes of one tensor, more than %d",
                work.op.op,
                span,
                max_span,
            )


def _best_cut(
    work: _Work, access: Access, symbols: list[sympy.Symbol], max_span: int
) -> dict[sympy.Symbol, int]:
    """The cut with the largest span within the limit, or else with the smallest."""
    choices = []
    for symbol in symbols:
        most = work.cores if _may_cut(work, symbol) else 1
        choices.append(_divisors(work.sizes[symbol], most))
    others = prod(n for s, n in work.slices.items() if s not in symbols)
    best: tuple[bool, int] | None = None
    result = {symbol: work.slices[symbol] for symbol in symbols}
    for counts in product(*choices):
        if others * prod(counts) > work.cores:
            continue
        cut = dict(zip(symbols, counts))
        span = _span(work, access, cut)
        fits = span <= max_span
        rank = (fits, span if fits else -span)
        if best is None or rank > best:
            best, result = rank, cut
    return result


def _may_cut(work: _Work, symbol: sympy.Symbol) -> bool:
    """At most one reduced dimension is cut."""
    others = [s for s in work.reduced if s in work.committed and s != symbol]
    return symbol not in work.reduced or not others


def _extent(work: _Work, access: Access, symbol: sympy.Symbol, cut: dict[sympy.Symbol, int]) -> int:
    """Entries of an axis that one core walks over."""
    size = work.op.iteration_space[symbol][0]
    if symbol == access.stick:
        size = -(-size // access.eps)
    return -(-size // cut.get(symbol, work.slices[symbol]))


def _span(work: _Work, access: Access, cut: dict[sympy.Symbol, int]) -> int:
    """Bytes between the first and the last that one core may touch of a tensor."""
    for axis in reversed(access.axes):
        extent = axis.size if axis.gathered else _extent(work, access, axis.symbol, cut)
        if extent > 1:
            return extent * axis.step * access.word
    return access.eps * access.word


# ---- Pass 2: cores that are left -----------------------------------------------------------------


def _fill_cores(work: _Work) -> None:
    kept = [s for s in work.sizes if s not in work.reduced and s not in work.committed]
    for symbol in sorted(kept, key=lambda s: -work.sizes[s]):
        work.slices[symbol] = _divisors(work.sizes[symbol], max(work.free_cores(), 1))[-1]
    untouched = not any(s in work.committed for s in work.reduced)
    if work.free_cores() > 1 and untouched and work.reduced:
        best = max(work.reduced, key=lambda s: _divisors(work.sizes[s], work.free_cores())[-1])
        work.slices[best] = _divisors(work.sizes[best], work.free_cores())[-1]
