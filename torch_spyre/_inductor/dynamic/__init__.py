"""Dynamic shapes: `dynamic=True`, `mark_dynamic`, and sizes that Dynamo saw change.

Dynamo and AOTAutograd trace such a graph once, with symbols for its sizes. Programs of the card
have static shapes, so a graph is specialised on a few of them, in buckets of growing size; inputs
are padded to the next bucket, and masks keep the padding invisible.

| module | what |
|---|---|
| `buckets` | for which sizes programs are made |
| `padded_dims` | what dimensions are made of: where the padding is |
| `padding_rules`, `view_rules`, `index_rules` | how it stays invisible, operation by operation |
| `specialize` | the graph with numbers instead of symbols |
| `dispatch` | choosing a program, padding inputs, cropping results |
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from torch_spyre._inductor import state
from torch_spyre._inductor.dynamic.dispatch import DynamicGraph, symbols_of
from torch_spyre._inductor.dynamic.padded_dims import Dims, expr_of
from torch_spyre._inductor.dynamic.specialize import FixedGraph, is_symbolic
from torch_spyre._inductor.dynamic.specialize import numbers_of as _numbers
from torch_spyre.on_card import is_on_card
from torch_spyre.upstream.gc_pause import collections_paused


def stays_open(model: Any) -> bool:
    """Whether a graph of Dynamo can be traced with symbols for its sizes."""
    if not isinstance(model, GraphModule):
        return False
    values = []
    for node in model.graph.nodes:
        value = node.meta.get("example_value", node.meta.get("val"))
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            return False  # branches and loops have graphs of their own
        if node.op == "placeholder":
            values.append(value)
        if isinstance(value, torch.SymFloat) or any(map(_is_unbacked, _numbers(value))):
            return False
    return any(is_symbolic(n) for v in values for n in _numbers(v))


def inner_compiler(
    stock: Callable[..., Any], options: dict[str, Any], inputs: Sequence[Any]
) -> Callable[..., Any]:
    """Inductor's compile_fx_inner, for the graphs of one call of compile_fx."""
    known: dict[str, Dims] = {}
    patient = not torch._dynamo.config.assume_static_by_default
    marked = any(getattr(value, "_dynamo_dynamic_indices", ()) for value in inputs)

    def compile_inner(module: GraphModule, example_inputs: Any, **kwargs: Any) -> Any:
        if not _has_open_sizes(module):
            return stock(module, example_inputs, **kwargs)

        def compile_fixed(fixed: FixedGraph) -> Any:
            own = dict(kwargs)
            static = set(own.get("static_input_idxs", ()))
            own["static_input_idxs"] = [i for i, p in enumerate(fixed.kept) if p in static]
            with _compiling(options):
                return stock(fixed.module, fixed.fakes, **own)

        graph = DynamicGraph(module, compile_fixed, dict(known), patient, found=not marked)
        known.update(graph.named)
        return graph

    return compile_inner


@contextlib.contextmanager
def _compiling(options: dict[str, Any]) -> Iterator[None]:
    """The context of compile_fx, for programs that are compiled lazily, at a call."""
    from torch._dynamo.convert_frame import compile_lock
    from torch._inductor import config as inductor_config

    with (
        compile_lock,
        inductor_config.patch(options),
        collections_paused(),
        state.compiling(),
    ):
        yield


def _has_open_sizes(module: GraphModule) -> bool:
    """Whether something of a graph depends on sizes that are not known yet, and all can be read
    from its inputs."""
    nodes = list(module.graph.nodes)
    if not any(is_on_card(n.meta.get("val")) for n in nodes):
        return False
    if not any(is_symbolic(x) for n in nodes for x in _numbers(n.meta.get("val"))):
        return False
    bound = {
        expr_of(n)
        for node in module.graph.find_nodes(op="placeholder")
        for n in _sizes(node.meta.get("val"))
        if is_symbolic(n)
    }
    return set().union(*symbols_of(module)) <= bound


def _sizes(value: Any) -> list[Any]:
    return list(value.shape) if isinstance(value, torch.Tensor) else [value]


def _is_unbacked(number: Any) -> bool:
    if not isinstance(number, torch.SymInt):
        return False
    symbols = number.node.expr.free_symbols
    env = number.node.shape_env
    return any(env.is_unbacked_symint(s) for s in symbols)


__all__ = ["inner_compiler", "stays_open"]
