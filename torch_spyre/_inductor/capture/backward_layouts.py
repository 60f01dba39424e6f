"""Layouts of saved tensors and gradients: forward graph to backward graph to optimizer.

A backward graph is compiled before its first call, so its inputs have no real tensors yet. But the
forward graph is already compiled, and its host code records the layouts of its results:

    output_placements = [(layout3, (8, 64, 256), (16384, 256, 1)), None, ...]

one for each result, in order. It is read from the module, because that exists on a cache hit too.
Saved tensors have the same name in both graphs. A wrong guess costs a copy: kernels check the
layout of every argument.

The results of a backward graph are gradients of the inputs of its forward graph, in their order. A
gradient is produced in the layout of its weight, so that an optimizer uses it without a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.virtualized import V

from torch_spyre._C import SpyreTensorLayout
from torch_spyre._inductor.capture import input_layouts
from torch_spyre._inductor.capture.input_layouts import Placement
from torch_spyre._inductor.operations.operation import Buffer
from torch_spyre._inductor.state import compiling

NAME = "output_placements"

Place = tuple[SpyreTensorLayout, tuple[int, ...], tuple[int, ...]]


def places_of_outputs(find: Callable[[str], Buffer | None]) -> list[Place | None]:
    """Where the results of the graph lie whose host code is being written; None: not known.

    `find` gives the buffer of a name of Inductor's."""
    return [_place_of(output, find) for output in V.graph.graph_outputs]


def _place_of(output: Any, find: Callable[[str], Buffer | None]) -> Place | None:
    if isinstance(output, (ir.NoneAsConstantBuffer, ir.ShapeAsConstantBuffer)):
        return None
    layout = output.maybe_get_layout()
    if layout is None or layout.offset != 0:
        return None
    buffer = find(output.get_name())
    if buffer is None or buffer.layout is None:
        return None
    return buffer.layout, *(buffer.placed or (buffer.size, buffer.stride))


def inner_compiler(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Inductor's compile_fx_inner, for the graphs of one call of compile_fx."""
    saved: dict[str, Placement] = {}
    wanted: list[Placement | None] = []

    def compile_inner(module: torch.fx.GraphModule, example_inputs: Any, **kwargs: Any) -> Any:
        if kwargs.get("is_backward"):
            # A backward graph may be compiled when it is called first, outside of compile_fx.
            with compiling(), input_layouts.knowing(saved, wanted):
                return stock(module, example_inputs, **kwargs)
        inputs = module.graph.find_nodes(op="placeholder")
        wanted[:] = [input_layouts.placement_of(node.meta.get("val")) for node in inputs]
        (output,) = module.graph.find_nodes(op="output")
        names = [getattr(node, "name", "") for node in output.args[0]]
        result = stock(module, example_inputs, **kwargs)
        if not kwargs.get("is_inference"):
            for name, place in zip(names, _written_in(result)):
                if place is not None:
                    saved[name] = Placement(*place)
        return result

    return compile_inner


def _written_in(compiled: Any) -> list[Place | None]:
    """What the module of a compiled graph says about its results."""
    call = getattr(compiled, "current_callable", None)
    return getattr(call, "__globals__", {}).get(NAME, [])
