"""Fallback decisions: which nodes the card can compute; the others become CPU fallbacks."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._inductor import ir
from torch._inductor.virtualized import V
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from torch_spyre._inductor import state
from torch_spyre._inductor.errors import NoOpFunc, Unsupported, UnsupportedType
from torch_spyre._inductor.lowering import int_ranges
from torch_spyre._inductor.operations.index_expressions import linear_index
from torch_spyre._inductor.operations.operation import (
    Access,
    Buffer,
    Operation,
    Origin,
    contiguous_strides,
    row_sticks,
    table_of,
)
from torch_spyre._inductor.operations.origins import is_view, origin_of
from torch_spyre._inductor.operations.split import Splitter, typed_for
from torch_spyre._inductor.operations.trace import (
    indexing_allowed,
    static_size,
    trace,
    trace_pointwise,
)
from torch_spyre.dtypes import NATIVE_TYPES
from torch_spyre.on_card import is_spyre

aten = torch.ops.aten

# Their lowerings add or write single elements through index tensors; the card stores whole rows.
_SCATTERS = ("scatter", "index_add", "index_reduce", "masked_scatter")


@functools.cache
def never(target: torch._ops.OpOverload) -> str:
    """Why an operation is always a fallback; empty for the others."""
    name = target._schema.name.split("::")[1]
    if target.namespace == "aten" and name.strip("_").startswith(_SCATTERS):
        return "the card has no indirect stores of single elements"
    return ""


def size_is_open(node: torch.fx.Node | None) -> str:
    """Why a node cannot be planned: a size of what it reads or makes is known only when it runs."""
    if node is None:
        return ""
    tensors: list[torch.Tensor] = []
    for value in [n.meta.get("val") for n in (node, *node.all_input_nodes)]:
        values = [value] if isinstance(value, torch.Tensor) else pytree.tree_leaves(value)
        tensors += [v for v in values if isinstance(v, torch.Tensor)]
    if any(t._has_symbolic_sizes_strides and free_unbacked_symbols(t) for t in tensors):
        return "a size depends on the values of a tensor"
    return ""


_MAX_DIMENSIONS = 8
_RESHAPES = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)


def has_many_dimensions(node: torch.fx.Node | None) -> str:
    """Why a node cannot be planned: it has more dimensions than an operation of the card."""
    most = 0 if node is None else max(_dimensions(n) for n in (node, *node.all_input_nodes))
    if most <= _MAX_DIMENSIONS:
        return ""
    return f"an operation of the card has {_MAX_DIMENSIONS} dimensions at most, this has {most}"


def is_copied_first(node: torch.fx.Node | None) -> bool:
    """Whether a node gives other dimensions, too many of them, to what does not lie in their order.

    Read through such a view, a tensor would have to be copied in loops over all of them.
    """
    if node is None or node.target not in _RESHAPES or not has_many_dimensions(node):
        return False
    value = node.all_input_nodes[0].meta.get("val")
    if not isinstance(value, torch.Tensor) or value.is_contiguous():
        return False
    strided = torch.empty_strided(value.shape, value.stride(), device="meta")
    result = strided.reshape(node.meta["val"].shape)
    return result.untyped_storage()._cdata != strided.untyped_storage()._cdata


def _dimensions(node: torch.fx.Node) -> int:
    """Of the tensors of a node, the most; those of size 1 do not count."""
    value = node.meta.get("val")
    values = [value] if isinstance(value, torch.Tensor) else pytree.tree_leaves(value)
    tensors = [t for t in values if isinstance(t, torch.Tensor)]
    return max(
        (sum(n != 1 for n in t.shape) for t in tensors if t.dim() > _MAX_DIMENSIONS), default=0
    )


def check(operation: Any) -> None:
    """Raise Unsupported unless the card can do a node of LoopLevelIR."""
    if not isinstance(operation, ir.ComputedBuffer):
        return
    if not is_spyre(operation.get_device()):
        if any(_buffer_is_on_card(name) for name in operation.get_read_names()):
            raise Unsupported("code of the host would read the card's memory")
        return
    dtype = operation.get_dtype()
    if dtype not in NATIVE_TYPES:
        raise UnsupportedType(f"{dtype} tensors do not have a form on the card")
    with indexing_allowed():
        body = trace(operation)
    int_ranges.check(
        body, operation, typed_for(body.value, dtype) if not body.reduction else body.value
    )
    splitter = Splitter(_stand_in, {}, Origin("", "", ""), "check")
    if body.place is not None:
        output = _buffer_of(operation.layout.get_buffer().get_name())
        with indexing_allowed():
            index = sympy.expand(operation.layout.make_indexer()(body.place))
    else:
        size = tuple(body.ranges)
        output = Buffer("out", size, contiguous_strides(size), dtype)
        index = output.index(body.variables)
    for op in splitter.split(body, Access(output, index), {}):
        ranges = dict(op.ranges)
        for symbol in op.gather:
            ranges[symbol] = 2
        if len(op.gather) > 1:
            raise NoOpFunc(f"the card {op.kind}s along one dimension")
        if op.gather:
            _check_rows(op)
        for access in op.inputs:
            if any(a.coefficient < 0 for a in linear_index(access.index, ranges).atoms):
                raise NoOpFunc("the card does not walk backwards over a tensor")


def _buffer_is_on_card(name: str) -> bool:
    buffer = V.graph.try_get_buffer(name)
    return buffer is not None and is_spyre(buffer.get_device())


def check_number(data: ir.Pointwise) -> None:
    """Raise Unsupported unless a body that reads nothing is a number of a type of the card.

    It is checked like the others: whoever stores it later does not ask.
    """
    if not is_spyre(data.get_device()):
        return
    if data.get_dtype() not in NATIVE_TYPES:
        raise UnsupportedType(f"{data.get_dtype()} tensors do not have a form on the card")
    trace_pointwise(data)


# A table whose single elements are gathered gets a stick for each of them: 64 MB and no more.
_MAX_ELEMENT_TABLE = 1 << 19


def _check_rows(op: Operation) -> None:
    """Whole rows of a whole table, the same for all lanes; the host does the rest."""
    access = table_of(op)
    (symbol, rows), *_ = op.gather.items()
    own = access.index.free_symbols - {symbol}
    if rows.index.free_symbols & own:
        raise NoOpFunc(f"the card {op.kind}s the same row for all that is not indexed")
    table = access.buffer
    ranges = {**op.ranges, symbol: op.info["rows"][symbol]}
    linear = linear_index(access.index, ranges)
    shape = {s: n for n, s in zip(table.size, table.stride, strict=True) if n > 1}
    moves = {a.coefficient: a.size for a in linear.atoms if a.plain}
    is_whole = not linear.offset and moves == shape
    if op.kind == "scatter":
        along = access.index.coeff(symbol)
        is_whole = moves.get(along) == shape.get(along) and _fits(moves, linear.offset, shape)
    if not is_whole or len(moves) != len(linear.atoms):
        raise NoOpFunc(f"the card {op.kind}s rows of whole tensors, not of views of them")
    if op.kind == "scatter" and not row_sticks(op):
        raise NoOpFunc("the card has no indirect stores of single elements")
    if not row_sticks(op) and table.elements > _MAX_ELEMENT_TABLE:
        raise NoOpFunc(
            f"single elements of a table of {table.elements} are gathered; the card moves whole "
            f"sticks, and a stick for each element is too much"
        )


def _fits(moves: dict[Any, int], offset: int, shape: dict[Any, int]) -> bool:
    """Whether an access is a part of a tensor: from one place on along each of its dimensions."""
    for stride in sorted(shape, reverse=True):
        first, offset = divmod(offset, stride)
        if first + moves.get(stride, 1) > shape[stride]:
            return False
    return offset == 0 and moves.keys() <= shape.keys()


def _stand_in(name: str) -> tuple[Buffer, int]:
    return _buffer_of(name), 0


def _buffer_of(name: str) -> Buffer:
    node = V.graph.try_get_buffer(name)
    if node is None:
        tensor = V.graph.constants[name]
        return Buffer(name, tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)
    layout = node.data.get_layout() if isinstance(node, ir.TensorBox) else node.get_layout()
    size = tuple(static_size(s) for s in layout.size)
    return Buffer(name, size, tuple(static_size(s) for s in layout.stride), layout.dtype)


# ---- Steps that the host does -------------------------------------------------------------------


@dataclass(frozen=True)
class HostStep:
    """A step of the host code that the card does not do."""

    op: str
    reason: str
    source: str
    """Line of the user's program."""
    shapes: tuple[str, ...]
    """Of the inputs."""
    kernels_before: int
    """How many kernels of the graph come before it."""


class FallbackReasons(dict[str, str]):
    """By the name of the operation of LoopLevelIR, which is unique in a graph."""


def note_fallback(graph: Any, first: int, reason: str) -> None:
    """Remember why the operations of a graph from `first` on are steps of the host."""
    known = state.of(graph, FallbackReasons)
    for operation in graph.operations[first:]:
        known[operation.get_operation_name()] = reason


def host_step(graph: Any, node: Any, kernels_before: int) -> HostStep | None:
    """What a node outside of the kernels does on the host; None for views and transfers."""
    op = getattr(node, "op_overload", None)
    if not isinstance(op, torch._ops.OpOverload) or isinstance(node, ir.MultiOutput):
        return None
    devices = [x.get_device() for x in (node, *node.inputs) if hasattr(x, "get_device")]
    if not any(map(is_spyre, devices)) or is_view(op):
        return None
    reason = state.of(graph, FallbackReasons).get(node.get_operation_name(), "") or _usual_reason(
        op
    )
    shapes = tuple(s for s in map(_shape_of, node.inputs) if s)
    return HostStep(str(op), reason, origin_of(node).source, shapes, kernels_before)


def _usual_reason(op: torch._ops.OpOverload) -> str:
    if torch.Tag.nondeterministic_seeded in op.tags:
        return "random numbers are those of eager PyTorch"
    return "there is no lowering of it for the card"


def _shape_of(node: Any) -> str:
    try:
        size = [s if free_unbacked_symbols(s) else static_size(s) for s in node.get_size()]
    except (AttributeError, NotImplementedError):
        return ""
    return "x".join(map(str, size)) or "scalar"
