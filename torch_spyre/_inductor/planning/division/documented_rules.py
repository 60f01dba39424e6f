"""Work division of one operation at a time: the documented rules.

In: an aligned OpSpec, the number of cores, and the most that one core may address of one tensor.
Out: the OpSpec with the numbers of slices filled in. Three passes: slices that the span limit
demands; the cost model of matmul; the largest dimensions of the result over the cores that are
left. An operation that already has slices (a hint) keeps them. `candidates` chooses for a whole
kernel instead, among the `divisions` that are legal here.

Example: `add` of (128, 256) float16 over 4 cores: c0 has 128 rows, c1 has 4 sticks; c0 gets 4.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod

import sympy

from torch_spyre._inductor.layouts.stick_layouts import WIDENED
from torch_spyre._inductor.opspec.access import Access, kind_of, read_accesses
from torch_spyre._inductor.opspec.coordinates import Misaligned, compute_coordinates, parse
from torch_spyre._inductor.opspec.op_spec import OpSpec
from torch_spyre._inductor.opspec.relayout import relayout_info
from torch_spyre._inductor.planning.division.documented_matmul import best_split
from torch_spyre._inductor.planning.division.documented_matmul import divisors as _divisors

log = logging.getLogger("spyre.inductor.passes")


def divide(op: OpSpec, cores: int, max_span: int, *, matmul_model: bool = False) -> OpSpec:
    """The operation with a number of slices for each symbol."""
    if any(slices > 1 for _, slices in op.iteration_space.values()):
        return op
    work = _work(op, cores)
    if work is None:
        return op
    _limit_spans(work, max_span)
    chosen = _matmul_slices(work) if matmul_model and not work.committed else None
    _fill_cores(work)
    if chosen is not None and prod(chosen.values()) >= prod(work.slices.values()):
        work.slices = chosen
    return with_slices(op, work.slices)


def with_slices(op: OpSpec, slices: Mapping[sympy.Symbol, int]) -> OpSpec:
    """The operation with these numbers of slices."""
    space = {s: (size, slices[s]) for s, (size, _) in op.iteration_space.items()}
    return replace(op, iteration_space=space)


def divisions(op: OpSpec, cores: int, max_span: int) -> Iterator[dict[sympy.Symbol, int]]:
    """All legal divisions: slices divide what they cut, at most one reduced dimension is cut, no
    core addresses more of a tensor than it may. One that cannot be within the limit of spans has
    the documented division alone."""
    work = _work(op, cores)
    if work is None:
        yield dict.fromkeys(op.iteration_space, 1)
        return
    large = [a for a in work.accesses if a.space != "lx" and _span(work, a, {}) > max_span]
    found = False
    for counts in _counts(list(work.sizes.values()), cores):
        slices = dict(zip(work.sizes, counts))
        if sum(slices[s] > 1 for s in work.reduced) > 1:
            continue
        if all(_span(work, a, slices) <= max_span for a in large):
            found = True
            yield slices
    if not found:
        documented = divide(op, cores, max_span)
        yield {symbol: n for symbol, (_, n) in documented.iteration_space.items()}


def _counts(sizes: list[int], cores: int) -> Iterator[tuple[int, ...]]:
    if not sizes:
        yield ()
        return
    for first in _divisors(sizes[0], cores):
        for rest in _counts(sizes[1:], cores // first):
            yield (first, *rest)


def legal_slices(op: OpSpec, cores: int) -> dict[sympy.Symbol, list[int]]:
    """For each dimension the numbers of slices that it can be cut into."""
    work = _work(op, cores)
    if work is None:
        return {symbol: [1] for symbol in op.iteration_space}
    return {symbol: _divisors(size, cores) for symbol, size in work.sizes.items()}


def widest_span(op: OpSpec, slices: Mapping[sympy.Symbol, int], cores: int) -> int:
    """The most that one core addresses of one tensor with a division."""
    work = _work(op, cores)
    if work is None:
        return 0
    return max((_span(work, a, dict(slices)) for a in work.accesses if a.space != "lx"), default=0)


def reduced_symbols(op: OpSpec) -> list[sympy.Symbol]:
    """Dimensions that the result does not have."""
    work = _work(op, 2)
    return [] if work is None else work.reduced


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
    accesses = read_accesses(_as_it_lies(op))
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


def _as_it_lies(op: OpSpec) -> OpSpec:
    """With its tensors as large as they are where they live (`tiling.with_wide_tensors`)."""
    whole = op.op_info.get("whole")
    if whole is None:
        return op
    args = [replace(arg, device_size=list(size)) for arg, size in zip(op.args, whole, strict=True)]
    return replace(op, args=args)


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
    # What a cast has spread over a pair of sticks is in both.
    unit = 2 * eps if op.args[-1].element_arrangement == WIDENED.name else eps
    lanes = {term.var: term for term in stick.terms}
    for symbol, size in ranges.items():
        if symbol not in lanes:
            sizes[symbol] = size
        elif len(lanes) == 1 and lanes[symbol].num == 1 and lanes[symbol].mod == eps:
            sizes[symbol] = size // unit if size % unit == 0 else 1
    return sizes


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


# ---- Pass 2: the cost model of matmul ------------------------------------------------------------


def _matmul_slices(work: _Work) -> dict[sympy.Symbol, int] | None:
    """What the documented model wants, for products that it knows: one dimension of rows, one of
    columns, one of depth, and at most one of batches."""
    if kind_of(work.op) != "matmul" or len(work.accesses) != 3:  # with chosen matrices
        return None
    x, y, out = work.accesses
    space = {s: size for s, (size, _) in work.op.iteration_space.items() if size > 1}
    columns = [s for s in space if s in y.symbols and s not in x.symbols]
    rows = [s for s in space if s in x.symbols and s in out.symbols and s not in y.symbols]
    depth = [s for s in space if s in work.reduced]
    batch = [s for s in space if s not in (*columns, *rows, *depth)]
    if len(columns) != 1 or len(rows) > 1 or len(depth) != 1 or len(batch) > 1:
        return None
    if columns[0] != out.stick or (batch and not all(batch[0] in a.symbols for a in (x, y, out))):
        return None
    order = [batch, rows, columns, depth]
    sizes = [space[group[0]] if group else 1 for group in order]
    b, m, n, k = sizes
    per_n, per_k = (-(-size // work.sizes[g[0]]) for size, g in ((n, columns), (k, depth)))
    split = best_split(b, m, n, k, work.cores, per_n, per_k)
    slices = dict.fromkeys(work.op.iteration_space, 1)
    slices.update({group[0]: count for group, count in zip(order, split) if group})
    return slices


# ---- Pass 3: cores that are left -----------------------------------------------------------------


def _fill_cores(work: _Work) -> None:
    kept = [s for s in work.sizes if s not in work.reduced and s not in work.committed]
    for symbol in sorted(kept, key=lambda s: -work.sizes[s]):
        work.slices[symbol] = _divisors(work.sizes[symbol], max(work.free_cores(), 1))[-1]
    untouched = not any(s in work.committed for s in work.reduced)
    if work.free_cores() > 1 and untouched and work.reduced:
        best = max(work.reduced, key=lambda s: _divisors(work.sizes[s], work.free_cores())[-1])
        work.slices[best] = _divisors(work.sizes[best], work.free_cores())[-1]
