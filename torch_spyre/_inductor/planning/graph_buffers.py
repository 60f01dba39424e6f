"""Buffers of Inductor's graph as ours: sizes, layouts of inputs, aliases.

In: names of Inductor's graph (`V.graph`). Out: a Buffer for each, with the layout it comes with.
"""

from __future__ import annotations

import torch
from torch._inductor import ir
from torch._inductor.scheduler import BaseSchedulerNode, FusedSchedulerNode, SchedulerNode
from torch._inductor.virtualized import V

from torch_spyre._inductor import hints
from torch_spyre._inductor.capture import input_layouts
from torch_spyre._inductor.operations.operation import Buffer
from torch_spyre._inductor.operations.trace import static_size
from torch_spyre._inductor.propagate_named_dims import Named, named_dims


def is_loops(node: BaseSchedulerNode) -> bool:
    return isinstance(node, (SchedulerNode, FusedSchedulerNode)) and not node.is_extern()


def target_of(node: ir.ComputedBuffer) -> str:
    """The name of the buffer that a node writes."""
    layout = node.layout
    if isinstance(layout, ir.MutationLayoutSHOULDREMOVE):
        return layout.get_buffer().get_name()
    if isinstance(layout, ir.NonOwningLayout):
        return layout.view.get_name()
    return node.get_name()


def targets_of(node: BaseSchedulerNode) -> set[str]:
    """Names of the buffers that the loops of a scheduler node write."""
    nodes = [s.node for s in node.get_nodes()]
    return {target_of(n) for n in nodes if isinstance(n, ir.ComputedBuffer)}


def _names_of_constant(name: str, tensor: torch.Tensor) -> Named:
    """What the program calls the dimensions of a tensor that was computed while compiling."""
    for node in V.graph.graph.find_nodes(op="get_attr", target=name):
        names = hints.named_dims_of(node)
        if names:
            return named_dims(tensor.shape, tensor.stride(), names)
    return ()


def make_buffer(name: str) -> Buffer:
    """A buffer for something of Inductor's graph."""
    if name in V.graph.constants:
        tensor = V.graph.constants[name]
        buffer = Buffer(name, tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)
        input_layouts.set_constant_layout(buffer, tensor)
        buffer.dim_names = _names_of_constant(name, tensor)
        return buffer
    node = V.graph.get_buffer(name)
    layout = node.get_layout() if not isinstance(node, ir.TensorBox) else node.data.get_layout()
    size = tuple(static_size(s) for s in layout.size)
    stride = tuple(static_size(s) for s in layout.stride)
    buffer = Buffer(name, size, stride, layout.dtype)
    if name in V.graph.graph_inputs:
        input_layouts.set_input_layout(buffer)
    return buffer


def whole_of(name: str) -> str:
    """The buffer that a piece of a cat lies in; any other is its own."""
    layout = getattr(V.graph.try_get_buffer(name), "layout", None)
    return whole_of(layout.view.get_name()) if isinstance(layout, ir.NonOwningLayout) else name
