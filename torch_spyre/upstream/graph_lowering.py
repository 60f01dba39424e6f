"""GraphLowering, where Inductor turns an FX graph into LoopLevelIR: hooks that it does not have."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V

from torch_spyre._inductor import pipeline, state
from torch_spyre._inductor.lowering import driver, registry, repeated_layers
from torch_spyre._inductor.state import is_compiling
from torch_spyre.logs import get_logger

_Function = Callable[..., Any]
_log = get_logger("spyre.inductor.lowering")


def call_function(stock: _Function) -> _Function:
    """One OpFunc per node means that nothing may be inlined into its consumers, and a node that the
    card cannot do must become a fallback while its ATen operation is still known."""

    def call_function(self: GraphLowering, target: Any, args: Any, kwargs: Any) -> Any:
        if not registry.has_spyre(args, kwargs) or not isinstance(target, torch._ops.OpOverload):
            return stock(self, target, args, kwargs)
        return driver.lower(self, functools.partial(stock, self), target, args, kwargs)

    return call_function


def plan_before_host_code(stock: _Function) -> _Function:
    """The pipeline's stages on LoopLevelIR run before the scheduler is made, those that plan the
    graph after it."""

    def _update_scheduler(self: GraphLowering) -> None:
        if not is_compiling():
            stock(self)
            return
        pipeline.prepare(self)
        stock(self)
        pipeline.plan(self)

    return _update_scheduler


def process_kernel(stock: _Function) -> _Function:
    """A fallback runs its operation on fakes; constants from fold_constants are real tensors."""

    def process_kernel(cls: Any, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_compiling():
            return stock(cls, kernel, *args, **kwargs)
        mode = V.fake_mode
        before = mode.allow_non_fake_inputs, mode.static_shapes
        # Their sizes are numbers, not symbols that other sizes would then be made of.
        mode.allow_non_fake_inputs, mode.static_shapes = True, True
        try:
            return stock(cls, kernel, *args, **kwargs)
        finally:
            mode.allow_non_fake_inputs, mode.static_shapes = before

    return process_kernel


def equal_layers(
    stock_run: _Function, stock_run_node: _Function, stock_compile: _Function
) -> tuple[_Function, _Function, _Function]:
    """Layers that are equal are lowered once (lowering/repeated_layers.py). Where the plan shows
    that they cannot be planned so, the lowering of the graph starts over."""

    def run(self: GraphLowering, *args: Any) -> Any:
        if is_compiling():
            repeated_layers.begin(self)
        return stock_run(self, *args)

    def run_node(self: GraphLowering, n: torch.fx.Node) -> object:
        found = repeated_layers.of(self)
        lower = functools.partial(stock_run_node, self)
        return lower(n) if found is None else found.lower(self, n, lower)

    def compile_to_module(self: GraphLowering) -> Any:
        try:
            return stock_compile(self)
        except repeated_layers.RestartLowering as reason:
            _log.info("all layers are lowered: %s", reason)
        _start_over(self)
        repeated_layers.leave_nothing_out(self)
        self.freeze_runtime_asserts()
        self.run(*(self.example_inputs or ()))
        return stock_compile(self)

    return run, run_node, compile_to_module


def _start_over(graph: GraphLowering) -> None:
    """Inductor goes on with the object that it has."""
    state.forget(graph)
    GraphLowering.__init__(
        graph,
        graph.module,
        example_inputs=graph.example_inputs,
        shape_env=graph._shape_env,
        graph_id=graph.graph_id,
        is_inference=graph.is_inference,
        is_backward=graph.is_backward,
        inputs_to_check=graph.inputs_to_check,
        get_decomp_fn=graph.get_decomp_fn,
    )
