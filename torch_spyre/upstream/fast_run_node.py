"""Nodes of an FX graph about which Inductor need not ask anything while it lowers them.

`GraphLowering.run_node` asks of every node whether it is a result, is read with other strides, has
sizes that are known later, is better kept in channels-last order, grew too large to be inlined:
half of the time that lowering takes. For a node that reads and makes plain tensors of the card, for
other nodes of the graph, the answers are known. It is lowered at once:

    %mul = mul(%x, %y), read by %add      plain
    %add = add(%mul, %z), returned        asked

What `lower` does for a plain node is what is left of `run_node` with those answers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._inductor import config, ir
from torch._inductor import graph as inductor_graph
from torch._inductor import lowering as inductor_lowering
from torch._inductor.compiler_bisector import CompilerBisector
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node, traceback
from torch.utils._ordered_set import OrderedSet

from torch_spyre._inductor import state
from torch_spyre.constants import DEVICE_NAME

aten = torch.ops.aten

PLAIN_TYPES = {
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool,
    torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64,
}  # fmt: skip
"""What a tensor of the card can have without being complex, sparse or without data."""

_READ_WITH_OTHER_STRIDES = {
    aten.as_strided.default, aten.as_strided_.default, aten.as_strided_scatter.default,
    aten.resize.default, aten.resize_as.default,
}  # fmt: skip


def is_plain(graph: GraphLowering, node: Node) -> bool:
    """Whether all that Inductor would ask about a node is known."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    if not _is_plain_value(node) or not all(map(_is_plain_value, node.all_input_nodes)):
        return False
    if "inductor_realize_to_strides" in node.meta or node.meta.get("unbacked_bindings"):
        return False
    if node in graph.user_visible_output_strides or graph.nodes_prefer_channels_last:
        return False
    needs_order = inductor_lowering.needs_realized_inputs if len(node.users) > 1 else ()
    for user in node.users:
        target = user.target
        if user.op == "output" or target in _READ_WITH_OTHER_STRIDES or target in needs_order:
            return False
    return not state.of(graph, _Watched).is_watched


def _is_plain_value(node: Node) -> bool:
    value: Any = node.meta.get("val")
    return (
        type(value) is FakeTensor
        and value.fake_device.type == DEVICE_NAME
        and value.dtype in PLAIN_TYPES
        and not value._has_symbolic_sizes_strides
        and "custom" not in node.meta  # names of streams are in there
    )


def _is_watched() -> bool:
    """Whether somebody reads logs, looks for a faulty lowering or wants to know where nodes go."""
    return (
        inductor_graph.log.isEnabledFor(logging.DEBUG)
        or CompilerBisector.bisection_enabled
        or config.fallback_by_default
        or traceback.should_preserve_node_meta
    )


@dataclass
class _Watched:
    """Asked once for each graph."""

    is_watched: bool = field(default_factory=_is_watched)


def lower(graph: GraphLowering, node: Node) -> Any:
    """Lower a plain node."""
    args, kwargs = graph.fetch_args_kwargs_from_env(node)
    origins = ir.IRNode._current_origins
    before, stream, outer_node = origins._dict, ir.IRNode._current_stream_idx, graph.current_node
    # What the set holds is exchanged, not the set: an attribute of a class with a hundred
    # subclasses that changes empties what the interpreter knows of all their methods.
    origins._dict = {**before, **_origins(node, args, kwargs)._dict}
    if stream is not None:
        ir.IRNode._current_stream_idx = None
    graph.current_node = node
    outer = V.get_current_node(False)
    V.set_current_node(node)
    try:
        result = graph.call_function(node.target, args, kwargs)
        if isinstance(result, ir.TensorBox) and not _is_stored(result):
            _consider_storing(result, len(node.users))
    finally:
        V.set_current_node(outer)
        origins._dict = before
        if stream is not None:
            ir.IRNode._current_stream_idx = stream
        graph.current_node = outer_node
    inductor_graph.assign_origin_node(result, node)
    graph.register_users_of(result)
    return result


def _origins(node: Node, args: Any, kwargs: Any) -> OrderedSet[Node]:
    """The node, and those of its inputs that are part of it: views, and numbers not stored."""
    found = OrderedSet([node])
    for leaf in _leaves((*args, *kwargs.values())):
        inner = leaf
        while isinstance(inner, ir.MutableBox):
            inner = inner.data
        if not isinstance(inner, _STORED):
            found |= leaf.origins
    return found


_STORED = (ir.ComputedBuffer, ir.InputsKernel, ir.InputBuffer, ir.TemplateBuffer)


def _leaves(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _leaves(value)
        elif isinstance(value, ir.IRNode):
            yield value


def _is_stored(box: ir.TensorBox) -> bool:
    data: Any = box
    while isinstance(data, (ir.BaseView, ir.MutableBox)):
        data = data.data
    return isinstance(data, ir.Buffer)


def _consider_storing(result: ir.TensorBox, users: int) -> None:
    """A number, which no one has stored: Inductor may still find it large."""
    if users > 1:
        result.mark_reuse(users)
    if result.has_exceeded_max_reads():
        result.realize_hint()
    loops = result.data.data if isinstance(result.data, ir.StorageBox) else None
    if isinstance(loops, ir.Pointwise) and loops.has_large_inner_fn(threshold=100):
        result.realize()
