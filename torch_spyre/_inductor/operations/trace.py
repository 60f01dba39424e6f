"""Traces a node of LoopLevelIR into the expression tree that it computes.

`trace` runs the body of a node with symbols for its loop variables. Operations are looked up in
SpyreOpFuncs; an unknown one raises NoOpFunc, and the node becomes a CPU fallback.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch._inductor import ir
from torch._inductor.ops_handler import DefaultHandler
from torch._inductor.virtualized import V

from torch_spyre._inductor.errors import NoOpFunc, TooLarge, UnsupportedType
from torch_spyre._inductor.operations import body_memo
from torch_spyre._inductor.operations.index_simplify import simplified
from torch_spyre._inductor.operations.number_range import legalised
from torch_spyre._inductor.operations.opfunc_map import (
    INTEGER_OPFUNCS,
    Constant,
    DotOp,
    Load,
    PointwiseOp,
    SpyreOpFuncs,
    Value,
    as_bool,
    cast,
    promote,
)
from torch_spyre.dtypes import INT32_MAX, INT32_MIN, INTEGERS, NATIVE_TYPES
from torch_spyre.opfuncs import OPFUNCS
from torch_spyre.upstream.install import scoped


class _Tracer(DefaultHandler):
    """Runs a body and builds its expression."""

    def __init__(
        self, dtype_of: Callable[[str], torch.dtype], ranges: dict[sympy.Symbol, int] | None = None
    ) -> None:
        self.dtype_of = dtype_of
        self.ranges = ranges or {}
        self.indirect: dict[sympy.Symbol, Value] = {}
        self.rows: dict[sympy.Symbol, int] = {}
        self.reads: set[str] = set()

    def load(self, name: str, index: sympy.Expr) -> Value:
        self.reads.add(name)
        dtype = self.dtype_of(name)
        if dtype not in NATIVE_TYPES:
            raise UnsupportedType(f"{dtype} tensors do not have a form on the card")
        return Load(dtype, name, simplified(sympy.expand(index), self.ranges))

    def constant(self, value: Any, dtype: torch.dtype) -> Value:
        if dtype is torch.int64 and not INT32_MIN <= value <= INT32_MAX:
            raise TooLarge(f"the number {value} does not fit 32 bits")
        return Constant(dtype, value)

    def to_dtype(
        self,
        x: Value,
        dtype: torch.dtype,
        src_dtype: torch.dtype | None = None,
        use_compute_types: bool = True,
    ) -> Value:
        return cast(x, dtype)

    def index_expr(self, expr: sympy.Expr, dtype: torch.dtype) -> Value:
        expr = sympy.sympify(expr)
        if expr.is_number:
            return Constant(dtype, float(expr) if dtype.is_floating_point else int(expr))
        raise NoOpFunc("the card has no index values; they must be computed while compiling")

    def masked(self, mask: Value, body: Callable[[], Value], other: Any) -> Value:
        raise NoOpFunc("the card has no masked loads")

    def indirect_indexing(
        self, x: Value, size: Any, check: bool = True, wrap_neg: bool = True
    ) -> sympy.Symbol:
        symbol = sympy.Symbol(f"indirect{len(self.indirect)}", integer=True, nonnegative=True)
        self.indirect[symbol] = x
        self.rows[symbol] = static_size(size)
        return symbol

    def check_bounds(self, *args: Any, **kwargs: Any) -> None:
        return None

    def dot(self, x: Value, y: Value) -> Value:
        return DotOp(promote((x, y)), (x, y))

    def _default(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        method = getattr(SpyreOpFuncs, name, None)
        if method is None:
            raise NoOpFunc(f"the card has no operation for '{name}'")
        return _typed(method(*args, **kwargs))


def _typed(value: Value) -> Value:
    """Brings the inputs of a pointwise OpFunc to one type and checks that it exists there."""
    if not isinstance(value, PointwiseOp) or value.opfunc not in OPFUNCS:
        return value
    row = OPFUNCS[value.opfunc]
    if row.kind != "pointwise":
        return value
    args = tuple(_typed(a) for a in value.args)
    operands = args[1:] if row.name == "where3" else args
    common = promote(operands)
    whole = common in INTEGERS or common is torch.bool
    if whole and row.name not in INTEGER_OPFUNCS:
        raise UnsupportedType(f"the card has no {row.name} for {common}")
    operands = tuple(cast(a, common) for a in operands)
    if row.name == "where3":
        operands = (as_bool(args[0]), *operands)
    return legalised(PointwiseOp(value.dtype, value.opfunc, operands, value.info))


@dataclass
class Body:
    """What a node computes."""

    variables: list[sympy.Symbol]
    ranges: list[int]
    reduced: list[sympy.Symbol]
    reduced_ranges: list[int]
    value: Value
    indirect: dict[sympy.Symbol, Value]
    rows: dict[sympy.Symbol, int]
    """How many there are to choose from, for each index that is read from a tensor."""
    reduction: str = ""
    place: list[sympy.Expr] | None = None
    """Coordinates that a scatter writes to, in the tensor that it changes."""
    reads: set[str] = field(default_factory=set)
    """Names of all that is read, also for indices."""


def indexing_allowed() -> contextlib.AbstractContextManager[None]:
    """Bodies may be run before layouts are final, as Inductor does to count what they read."""
    return scoped("torch._inductor.ir:FlexibleLayout.allow_indexing", True)


def buffer_dtype(name: str) -> torch.dtype:
    """The type of a buffer of the graph that is being compiled."""
    return V.graph.get_dtype(name)


def trace(node: ir.ComputedBuffer) -> Body:
    """The expression of a node of LoopLevelIR. Raises Unsupported for what the card cannot do."""
    return body_memo.run_once(node, _trace, lambda body: body.reads)


def _trace(node: ir.ComputedBuffer) -> Body:
    data = node.data
    if not isinstance(data, (ir.Pointwise, ir.Reduction)) or type(data) in _UNSUPPORTED_LOOPS:
        raise NoOpFunc(f"the card has no operation for {type(data).__name__}")
    ranges = [static_size(s) for s in data.ranges]
    variables = [_variable("p", i) for i in range(len(ranges))]
    # A dimension of size 1 has no symbol.
    points = [v if n != 1 else sympy.S.Zero for v, n in zip(variables, ranges, strict=True)]
    tracer = _Tracer(buffer_dtype, dict(zip(variables, ranges, strict=True)))
    if isinstance(data, ir.Reduction):
        reduced_ranges = [static_size(s) for s in data.reduction_ranges]
        reduced = [_variable("r", i) for i in range(len(reduced_ranges))]
        tracer.ranges.update(zip(reduced, reduced_ranges, strict=True))
        rpoints = [v if n != 1 else sympy.S.Zero for v, n in zip(reduced, reduced_ranges)]
        with V.set_ops_handler(tracer):
            value = _unwrap(data.inner_fn(points, rpoints))
        return Body(
            variables,
            ranges,
            reduced,
            reduced_ranges,
            value,
            tracer.indirect,
            tracer.rows,
            data.reduction_type,
            reads=tracer.reads,
        )
    place = None
    with V.set_ops_handler(tracer):
        value = _unwrap(data.inner_fn(points))
        if isinstance(data, ir.Scatter):
            if data.scatter_mode is not None:
                raise NoOpFunc(f"the card has no stores with {data.scatter_mode}")
            place = list(data.output_indexer(points))
    return Body(
        variables,
        ranges,
        [],
        [],
        value,
        tracer.indirect,
        tracer.rows,
        place=place,
        reads=tracer.reads,
    )


def trace_pointwise(data: ir.Pointwise) -> Value:
    """The expression of loops that are no node yet."""
    points = [_variable("p", i) for i in range(len(data.ranges))]
    points = [v if n != 1 else sympy.S.Zero for v, n in zip(points, data.ranges, strict=True)]
    with V.set_ops_handler(_Tracer(buffer_dtype)):
        return _unwrap(data.inner_fn(points))


_UNSUPPORTED_LOOPS = (ir.WelfordReduction, ir.MultiOutputReduction)


def _unwrap(value: Any) -> Value:
    return getattr(value, "value", value)


def _variable(prefix: str, index: int) -> sympy.Symbol:
    return sympy.Symbol(f"{prefix}{index}", integer=True, nonnegative=True)


def static_size(size: Any) -> int:
    """A size as a number; symbolic ones are fixed to the value they have now."""
    if isinstance(size, (int, sympy.Integer)):
        return int(size)
    return int(V.graph.sizevars.guard_int(size))
