"""Alignment: each device axis of each tensor of an operation carries exactly one iteration symbol.

In: an OpSpec whose coordinates are sums of digits of its symbols. Out: the same operation over more
symbols (c0 is split where some tensor splits it: the inner part keeps the name, outer parts are
z0, z1, ...) with axes split and fused to match. Misaligned is raised where no such form exists.

Example: x.flatten(0, 1) + y for (50, 10, 200) and (500, 200). x has Mod(c0, 10) and floor(c0/10)
in two axes, y has c0 in one: c0 becomes 10 long, z0 50, and y's axis becomes two axes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import gcd

import sympy

from torch_spyre import opfuncs
from torch_spyre._inductor.opspec.coordinates import (
    Coordinate,
    Misaligned,
    Term,
    digits_end,
    parse,
    to_expr,
)
from torch_spyre._inductor.opspec.op_spec import OpSpec, TensorArg

RESTICKIFY = "ReStickifyOpHBM"


def align(op: OpSpec) -> OpSpec:
    """The operation in aligned form; aligning twice changes nothing."""
    if op.op == "relayout":
        return op
    work = _Work(op)
    for tensor in work.tensors:
        _fuse_contiguous_axes(tensor)
    _split_symbols(work)
    for tensor in work.tensors:
        _give_axes_one_symbol(tensor, work)
    _place_constants(work)
    name = _check_sticks(work)
    _check_number_of_dimensions(work)
    for tensor in work.tensors:
        _finish_axes(tensor)
    rank = max(1, *(len(tensor.axes) for tensor in work.tensors))
    return replace(
        op,
        op=name,
        iteration_space=work.space,
        args=[tensor.to_arg(rank) for tensor in work.tensors],
        tiled_symbols=[work.parts[s][-1].symbol for s in op.tiled_symbols],
    )


# ---- What is worked on ---------------------------------------------------------------------------


@dataclass
class _Entry:
    """A symbol in an axis: coefficient * symbol, or coefficient * floor(symbol / eps) if outer."""

    symbol: sympy.Expr
    coefficient: int
    extent: int
    outer: bool = False


@dataclass
class _Axis:
    size: int
    stride: int
    """Of the host; -1 where there is none."""
    coordinate: Coordinate
    entry: _Entry | None = None
    const: int = 0


@dataclass
class _Tensor:
    arg: TensorArg
    axes: list[_Axis]
    stick: Coordinate
    eps: int
    is_index: bool
    split: int = 0
    """Where the stick splits its variable: digits below it are lanes; 0 if it does not."""
    stick_var: sympy.Symbol | None = None
    stick_symbol: sympy.Symbol | None = None

    def splits_stick(self, term: Term) -> bool:
        """The term counts whole sticks."""
        return self.split > 0 and term.den == self.split and term.var == self.stick_var

    def plain_symbols(self) -> set[sympy.Symbol]:
        """Symbols of the axes that walk over elements, not over sticks."""
        entries = [a.entry for a in self.axes if a.entry is not None]
        return {e.symbol for e in entries if not e.outer and e.symbol.is_Symbol}

    def symbols(self) -> set[sympy.Symbol]:
        return self.plain_symbols() | ({self.stick_symbol} if self.stick_symbol else set())

    def add_unit(self, symbol: sympy.Symbol) -> None:
        self.axes.insert(0, _Axis(1, -1, Coordinate(), _Entry(symbol, 1, 1)))

    def to_arg(self, rank: int) -> TensorArg:
        missing = rank - len(self.axes)
        sizes, strides = [1] * missing, [-1] * missing
        coordinates = [sympy.Integer(0)] * missing
        for axis in self.axes:
            sizes.append(axis.size)
            strides.append(axis.stride)
            terms: tuple[Term, ...] = ()
            if axis.entry is not None:
                den = self.eps if axis.entry.outer else 1
                terms = (Term(axis.entry.symbol, den=den),)
            coordinates.append(to_expr(Coordinate(terms, axis.const)))
        coordinates.append(to_expr(self.stick))
        old = self.arg
        return replace(
            old,
            device_size=[*sizes, self.eps],
            device_coordinates=coordinates,
            stride_map=None if old.stride_map is None else [*strides, old.stride_map[-1]],
        )


@dataclass
class _Part:
    """Digits [low, high) of an old symbol."""

    low: int
    high: int
    symbol: sympy.Symbol

    @property
    def extent(self) -> int:
        return self.high // self.low


class _Work:
    def __init__(self, op: OpSpec) -> None:
        self.op = op
        row = opfuncs.find(op.op)
        self.kind = row.kind if row is not None else "pointwise"
        self.ranges: dict[sympy.Expr, int] = {s: n for s, (n, _) in op.iteration_space.items()}
        self.space: dict[sympy.Symbol, tuple[int, int]] = {}
        self.parts: dict[sympy.Symbol, list[_Part]] = {}
        self.taken = {s.name for s in op.iteration_space}
        ranges = tuple(self.ranges.items())
        self.tensors = [_read(arg, ranges, self.ranges) for arg in op.args]

    def fresh(self) -> sympy.Symbol:
        number = 0
        while f"z{number}" in self.taken:
            number += 1
        self.taken.add(f"z{number}")
        return sympy.Symbol(f"z{number}", **_assumptions(self.op.iteration_space))

    def put_first(self, symbols: Iterable[sympy.Symbol]) -> None:
        self.space = {**dict.fromkeys(symbols, (1, 1)), **self.space}


def _assumptions(space: Iterable[sympy.Symbol]) -> dict[str, bool]:
    """New symbols are of the kind of the old ones, or sympy would not treat them alike."""
    for symbol in space:
        return dict(symbol._assumptions_orig)
    return {}


def _read(
    arg: TensorArg,
    ranges: tuple[tuple[sympy.Expr, int], ...],
    sizes: dict[sympy.Expr, int],
) -> _Tensor:
    *outer, last = [parse(c, ranges) for c in arg.device_coordinates]
    strides = arg.stride_map if arg.stride_map is not None else [-1] * len(arg.device_size)
    eps = arg.device_size[-1]
    axes = [_Axis(*both) for both in zip(arg.device_size, strides, outer)]
    tensor = _Tensor(arg, axes, last, eps, arg.name is not None)
    expr = arg.device_coordinates[-1]
    if last.const:
        raise Misaligned(expr, f"the stick begins in lane {last.const}")
    if not last.terms:
        if arg.stride_map is not None and strides[-1] > 0 and not tensor.is_index:
            raise Misaligned(expr, "one lane of a stick that holds several elements")
        return tensor
    (term, *more) = last.terms
    if more or term.num != 1 or not term.var.is_Symbol:
        raise Misaligned(expr, "several lanes' steps in one stick")
    tensor.stick_var = term.var
    split = term.den * eps
    # A split of the stick's variable is one only when some axis takes the digits above it;
    # otherwise the variable repeats the stick's elements.
    if any(t.var == term.var and t.den == split for axis in axes for t in axis.coordinate.terms):
        tensor.split = split
    if (digits_end(term, sizes) - 1) // term.den >= eps:
        raise Misaligned(expr, f"more than {eps} lanes")
    return tensor


# ---- Step 1: axes that lie together and walk over one variable are one axis ----------------------


def _fuse_contiguous_axes(tensor: _Tensor) -> None:
    axes = [tensor.axes[-1]] if tensor.axes else []
    for outer in reversed(tensor.axes[:-1]):
        inner = axes[-1]
        fused = _fused(outer, inner)
        if fused is None:
            axes.append(outer)
        else:
            axes[-1] = fused
    axes.reverse()
    tensor.axes = axes


def _fused(outer: _Axis, inner: _Axis) -> _Axis | None:
    if len(outer.coordinate.terms) != 1 or len(inner.coordinate.terms) != 1:
        return None
    high, low = outer.coordinate.terms[0], inner.coordinate.terms[0]
    contiguous = (
        high.var == low.var
        and high.num == low.num == 1
        and high.den == low.den * inner.size
        and low.mod == high.den
        and low.base in (0, high.base)
        and (not high.base or low.base == high.base or high.base % low.mod == 0)
        and inner.coordinate.const == 0
    )
    if not contiguous:
        return None
    term = low._replace(mod=high.mod, base=high.base)
    return _Axis(
        outer.size * inner.size,
        inner.stride,
        Coordinate((term,), outer.coordinate.const * inner.size),
    )


# ---- Step 2: symbols split where any tensor splits them ------------------------------------------


def _split_symbols(work: _Work) -> None:
    bounds: dict[sympy.Expr, set[int]] = {}
    for tensor in work.tensors:
        for term in (t for axis in tensor.axes for t in axis.coordinate.terms):
            ends = bounds.setdefault(term.var, set())
            ends.update((term.mod, term.base))
            if not tensor.splits_stick(term):
                ends.add(term.den)
        for term in tensor.stick.terms:
            ends = bounds.setdefault(term.var, set())
            ends.update((term.den, term.base))
            if term.mod != tensor.split:
                ends.add(term.mod)
    for symbol, (size, slices) in work.op.iteration_space.items():
        cuts = sorted(b for b in bounds.get(symbol, ()) if 1 < b < size)
        lows, highs = [1, *cuts], [*cuts, size]
        for low, high in zip(lows, highs):
            if high % low:
                raise Misaligned(symbol, f"is split at {low} and at {high}, which do not nest")
        symbols = [symbol] + [work.fresh() for _ in cuts]
        parts = [_Part(*part) for part in zip(lows, highs, symbols)]
        work.parts[symbol] = parts
        for part in reversed(parts):
            units = part.extent
            for tensor in work.tensors:
                if tensor.stick_var == symbol and part.low == 1 and not tensor.is_index:
                    units = -(-part.extent // tensor.eps)
            share = gcd(slices, units)
            slices //= share
            work.space[part.symbol] = (part.extent, share)


def _entries(term: Term, tensor: _Tensor, work: _Work) -> list[_Entry]:
    """The new symbols that stand for a term."""
    if not term.var.is_Symbol:
        if term != Term(term.var, term.num):
            raise Misaligned(to_expr(Coordinate((term,))), "arithmetic on a gathered index")
        return [_Entry(term.var, term.num, 1)]
    parts = [p for p in work.parts[term.var] if p.low < digits_end(term, work.ranges) or p.low == 1]
    entries = []
    low = term.den
    if tensor.splits_stick(term):
        stick = next(p for p in parts if p.low * tensor.eps == term.den)
        if stick.high > term.den or stick is parts[-1]:
            extent = -(-stick.high // term.den)
            entries.append(_Entry(stick.symbol, term.num, extent, outer=True))
            low = stick.high
    for part in parts:
        if part.low >= low:
            if part.low % term.den:
                raise Misaligned(to_expr(Coordinate((term,))), "the last stick is not full")
            coefficient = term.num * (part.low // term.den)
            entries.append(_Entry(part.symbol, coefficient, part.extent))
    return entries


# ---- Step 3: axes with several symbols become several axes ---------------------------------------


def _give_axes_one_symbol(tensor: _Tensor, work: _Work) -> None:
    _name_stick(tensor, work)
    axes: list[_Axis] = []
    for axis in tensor.axes:
        entries = [e for t in axis.coordinate.terms for e in _entries(t, tensor, work)]
        outermost = all(a.size == 1 for a in axes)
        axes.extend(_split_axis(axis, entries, outermost))
    seen: set[sympy.Expr] = set()
    for entry in (a.entry for a in axes if a.entry is not None):
        if entry.symbol in seen:
            raise Misaligned(entry.symbol, "walks over two axes of one tensor")
        seen.add(entry.symbol)
    tensor.axes = axes
    if tensor.stick_symbol in tensor.plain_symbols():
        raise Misaligned(tensor.stick_symbol, "walks over an axis and over the stick of one tensor")


def _name_stick(tensor: _Tensor, work: _Work) -> None:
    if not tensor.stick.terms:
        return
    (term,) = tensor.stick.terms
    end = digits_end(term, work.ranges)
    lanes = [p for p in work.parts[term.var] if p.low < end and p.high > term.den]
    if end <= term.den or work.ranges[term.var] == 1:
        lanes = work.parts[term.var][:1]
    first = lanes[0]
    if len(lanes) > 1 or first.low != term.den:
        expr = tensor.arg.device_coordinates[-1]
        raise Misaligned(expr, f"{term.var} is split at {first.high}, inside of the stick")
    tensor.stick_symbol = first.symbol
    modulus = tensor.eps if first.extent > tensor.eps else 0
    tensor.stick = Coordinate((Term(first.symbol, mod=modulus),))


def _split_axis(axis: _Axis, entries: list[_Entry], outermost: bool) -> list[_Axis]:
    const = axis.coordinate.const
    if not entries:
        if const >= axis.size:
            raise Misaligned(const, f"is outside of an axis of {axis.size}")
        return [_Axis(axis.size, axis.stride, Coordinate(), None, const)]
    expr = to_expr(axis.coordinate)
    entries.sort(key=lambda e: (-e.coefficient, -e.extent))
    axes = []
    above = 0
    for entry in entries:
        coefficient = entry.coefficient
        if above:
            size, rest = divmod(above, coefficient)
        else:
            size, rest = divmod(axis.size, coefficient)
            if rest and outermost:
                size, rest = size + 1, 0
        if rest or size == 0:
            raise Misaligned(expr, f"steps of {coefficient} do not divide {above or axis.size}")
        digit, const = divmod(const, coefficient)
        if entry.symbol.is_Symbol and digit + entry.extent > size:
            raise Misaligned(expr, f"{entry.symbol} walks over the end of an axis of {size}")
        stride = axis.stride * coefficient if axis.stride > 0 else axis.stride
        axes.append(_Axis(size, stride, Coordinate(), entry, digit))
        above = coefficient
    if above > 1:
        axes.append(_Axis(above, axis.stride, Coordinate(), None, const))
    return axes


# ---- Step 4: a constant in an axis longer than 1 is a symbol of range 1 --------------------------


def _place_constants(work: _Work) -> None:
    def constants(tensor: _Tensor) -> list[_Axis]:
        return [a for a in tensor.axes if a.entry is None and a.size > 1]

    count = max(len(constants(tensor)) for tensor in work.tensors)
    if work.kind == "cast" and len(work.space) <= 1:
        count = max(count, 1)  # the casts want two dimensions
    units = [work.fresh() for _ in range(count)]
    for tensor in work.tensors:
        own = constants(tensor)
        for unit, axis in zip(units, own):
            axis.entry = _Entry(unit, 1, 1)
        if not tensor.is_index:
            for unit in units[len(own) :]:
                tensor.add_unit(unit)
    work.put_first(units)
    _give_scalar_indices_a_symbol(work)
    if work.kind == "matmul":
        _order_matmul(work)


def _give_scalar_indices_a_symbol(work: _Work) -> None:
    for index in work.tensors:
        if index.is_index and not index.symbols():
            unit = work.fresh()
            work.put_first([unit])
            index.stick_symbol = unit
            index.stick = Coordinate((Term(unit),))
            for tensor in work.tensors:
                if not tensor.is_index and not _gathers(tensor, index):
                    tensor.add_unit(unit)


def _gathers(tensor: _Tensor, index: _Tensor) -> bool:
    return any(
        axis.entry is not None
        and not axis.entry.symbol.is_Symbol
        and axis.entry.symbol.args[0].name == index.arg.name
        for axis in tensor.axes
    )


def _order_matmul(work: _Work) -> None:
    """Batch dimensions first, then rows, columns, and the reduced dimension: all three exist."""
    x, y, out = [t for t in work.tensors if not t.is_index]
    reduced = [s for s in work.space if s not in out.symbols()]
    if len(reduced) != 1 or x.stick_symbol != reduced[0] or reduced[0] not in y.plain_symbols():
        raise Misaligned(reduced, "matmul reduces the stick of x and one dimension of y")
    rows = [s for s in work.space if s in x.symbols() and s not in y.symbols() and s not in reduced]
    column = y.stick_symbol
    if column is None and out.stick_symbol is None:
        column = work.fresh()
        for tensor in (y, out):
            tensor.stick_symbol = column
            tensor.stick = Coordinate((Term(column),))
    if column is None or column != out.stick_symbol or column in x.symbols():
        raise Misaligned(column, "matmul keeps the stick of y as the stick of its result")
    if rows:
        row = rows[-1]
    else:
        row = work.fresh()
        x.add_unit(row)
        out.add_unit(row)
    last = (row, column, reduced[0])
    order = [s for s in work.space if s not in last] + list(last)
    work.space = {s: work.space.get(s, (1, 1)) for s in order}


# ---- Step 5: sticks agree ------------------------------------------------------------------------


def _check_sticks(work: _Work) -> str:
    """The name of the operation: a copy between different sticks is a restickify."""
    if work.kind == "matmul":
        return work.op.op
    tensors = [t for t in work.tensors if not t.is_index]
    sticks = {t.stick_symbol for t in tensors if t.stick_symbol is not None}
    plain = set().union(*(t.plain_symbols() for t in tensors))
    name = work.op.op
    if name in ("identity", RESTICKIFY):
        if len(sticks) == 2 and len(tensors) == 2:
            if sticks <= tensors[0].symbols() and sticks <= tensors[1].symbols():
                return RESTICKIFY
            raise Misaligned(sorted(sticks, key=str), "a restickify needs both dimensions in both")
        name = "identity"
    if len(sticks) > 1:
        raise Misaligned(sorted(sticks, key=str), "tensors have different sticks")
    for stick in sticks & plain:
        raise Misaligned(stick, "is the stick of one tensor and an axis of another")
    output = tensors[-1].symbols()
    for stick in sticks - output:
        if work.kind != "reduction":
            raise Misaligned(stick, "is a stick that the result does not have")
    for index in (t for t in work.tensors if t.is_index):
        for stick in sticks & index.symbols():
            raise Misaligned(stick, "gathers each lane from another place")
    return name


def _check_number_of_dimensions(work: _Work) -> None:
    has_stick = any(t.stick_symbol is not None for t in work.tensors if not t.is_index)
    limit = 8 if has_stick and work.kind != "matmul" else 7
    if len(work.space) + (not has_stick) > limit:
        raise Misaligned(list(work.space), f"more than {limit} dimensions, stick included")


# ---- Step 6: whole sticks have an axis -----------------------------------------------------------


def _finish_axes(tensor: _Tensor) -> None:
    axes = tensor.axes
    has_outer = any(a.entry is not None and a.entry.outer for a in axes)
    if tensor.stick_symbol is not None and not has_outer:
        entry = _Entry(tensor.stick_symbol, 1, 1, outer=True)
        free = next((a for a in reversed(axes) if a.entry is None), None)
        if free is None:
            axes.insert(0, _Axis(1, -1, Coordinate(), entry))
        else:
            free.entry = entry
    tensor.axes = [a for a in axes if a.entry is not None]
