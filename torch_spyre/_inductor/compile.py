"""The driver: what `torch.compile` does with a graph that has spyre tensors.

In: the graph that Dynamo found, and its inputs. Out: what Inductor returns, a function. Sets the
options of Inductor for the card, notes what is known about the inputs, and calls Inductor's own
compile_fx, which comes back to us by the hooks of `host/inductor_hooks.py`; pipeline.py lists what
then happens in order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.convert_frame import compile_lock
from torch._guards import TracingContext
from torch._guards import tracing as tracing_in  # a module of ours has the other name
from torch._inductor.codegen.common import (
    DeviceOpOverrides,
    register_backend_for_device,
    register_device_op_overrides,
)
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from torch_spyre._inductor import config, dynamic, hints, state
from torch_spyre._inductor.capture import (
    backward_layouts,
    eager_operation,
    graph_cache,
    input_layouts,
)
from torch_spyre._inductor.capture.int64_guard import IntegerGuard, classes_of
from torch_spyre._inductor.fx.decompositions import (  # noqa: F401  they register themselves
    batch_norm,
    convolution,
    encoder_layer,
    experts,
    indexing,
    pooling,
    register_spyre_decomposition,
    sorting,
    training,
)
from torch_spyre._inductor.fx.passes import cleanup
from torch_spyre._inductor.host import inductor_hooks
from torch_spyre._inductor.inspect import debug_dir
from torch_spyre._inductor.lowering import (
    integer_sums,  # noqa: F401  they register themselves
    window_writes,  # noqa: F401
)
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.upstream import fake_tensor_updates
from torch_spyre.upstream.gc_pause import collections_paused


class SpyreDeviceOpOverrides(DeviceOpOverrides):
    """Lines that Inductor writes into host code."""

    def import_get_raw_stream_as(self, name: str) -> str:
        return f"{name} = lambda index: torch.spyre.current_stream(index).id"

    def set_device(self, device_idx: int) -> str:
        return f"torch.spyre.set_device({device_idx})"

    def synchronize(self) -> str:
        return "torch.spyre.synchronize()"

    def device_guard(self, device_idx: int) -> str:
        return f"torch.spyre.device({device_idx})"


@functools.cache
def register() -> None:
    """Make Inductor know the device. Once per process."""
    from torch_spyre._inductor.host.scheduler import SpyreScheduling
    from torch_spyre._inductor.host.wrapper import SpyreWrapperCodegen
    from torch_spyre.upstream.install import install
    from torch_spyre.upstream.table import WITH_THE_COMPILER

    register_device_op_overrides(DEVICE_NAME, SpyreDeviceOpOverrides())
    register_backend_for_device(
        DEVICE_NAME,
        SpyreScheduling,
        SpyreWrapperCodegen,
        device_custom_pass=inductor_hooks.LatePasses(),
        device_custom_config=config,
    )
    install(WITH_THE_COMPILER)


# Options of Inductor for a graph with spyre tensors.
OPTIONS: dict[str, Any] = {
    "split_reductions": False,  # a reduction is one OpFunc
    "unroll_reductions_threshold": 1,
    "permute_fusion": False,
    "allow_buffer_reuse": False,  # layouts differ where sizes agree
    "inplace_buffers": False,
    "benchmark_harness": False,
    "loop_ordering_after_fusion": False,
    "comprehensive_padding": False,  # host strides are not memory
    "layout_optimization": False,
    "max_pointwise_cat_inputs": 0,  # cat writes its pieces in place instead of choosing by index
    "fallback_random": True,  # random numbers are the eager ones
    "always_keep_tensor_constants": True,
    "joint_graph_constant_folding": False,  # would compute on the device; fold_constants does it
    "size_asserts": False,
    "reorder_for_peak_memory": False,
    "graph_partition": False,  # for CUDA graphs; asking each node for its symbols takes its time
}


def compile_fx(
    stock: Callable[..., Any], model: Any, example_inputs: Any, *args: Any, **kwargs: Any
) -> Any:
    """Inductor's compile_fx for a graph with spyre tensors."""
    from torch_spyre._inductor.lowering import direct_mapping

    register()
    direct_mapping.register()
    experts.register_transformers()
    given = kwargs.get("config_patches") or {}
    kwargs["config_patches"] = {
        **OPTIONS,
        **given,
        **inductor_hooks.inductor_options(given, fake_tensor_updates.Traced()),
    }
    is_open = config.dynamic_shapes and not args and dynamic.stays_open(model)
    inner = kwargs.get("inner_compile") or torch._inductor.compile_fx.compile_fx_inner
    if is_open:
        kwargs["inner_compile"] = dynamic.inner_compiler(
            inner, kwargs["config_patches"], example_inputs
        )
    else:
        if not args:
            kwargs["inner_compile"] = backward_layouts.inner_compiler(inner)
        _specialise(model)
        if isinstance(model, torch.fx.GraphModule):
            cleanup.replace_idle_expands(model)

    def compile_for(inputs: Any, integers: dict[int, int]) -> Any:
        def compile_graph() -> Any:
            recording = input_layouts.recording(
                [*inputs, *held], hints.fingerprint(model), integers
            )
            alone = graph_cache.one_at_a_time(model, inputs)
            fresh_graphs = debug_dir.fresh_graphs()
            eager = eager_operation.holding(model)
            with alone, recording, collections_paused(), eager, fresh_graphs as fresh:
                kwargs["config_patches"].update(fresh)
                return stock(model, inputs, *args, **kwargs)

        graph_cache.begin()
        result = graph_cache.surviving(compile_graph)
        graph_cache.trim_once(cache_dir())
        return result

    def compile_again(inputs: Any, integers: dict[int, int]) -> Any:
        mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True)
        with compile_lock, state.compiling(), tracing_in(TracingContext(mode)):
            return compile_for(inputs, integers)

    held = _held(model)
    eager = eager_operation.operation_of(model)
    integers = classes_of([*example_inputs, *held], eager.classes if eager else None)
    result = compile_for(example_inputs, integers)
    if not integers or is_open:
        return result
    return IntegerGuard(result, integers, compile_again, held)


def _held(model: Any) -> list[torch.Tensor]:
    """Tensors that are no arguments because Dynamo keeps them with the graph: those whose address
    is marked as static, such as the weights and the state of an optimizer."""
    if not isinstance(model, torch.nn.Module):
        return []
    held = [*model.parameters(), *model.buffers()]
    return [t for t in held if t.dtype is not torch.int64]  # nobody guards how large these are


def _specialise(model: Any) -> None:
    """Fix every size to what it is now: layouts and programs are made for given sizes.

    The guards that this adds make Dynamo compile again for other sizes. A number that no tensor
    depends on stays open: a cache that counts its tokens would otherwise compile for each.
    """
    if not isinstance(model, torch.fx.GraphModule):
        return
    for node in model.graph.find_nodes(op="placeholder"):
        value = _example(node)
        if isinstance(value, torch.SymInt) and _reaches_tensors(node):
            int(value)
        elif isinstance(value, torch.Tensor):
            for size in (*value.shape, *value.stride(), value.storage_offset()):
                int(size)


def _example(node: torch.fx.Node) -> Any:
    return node.meta.get("example_value", node.meta.get("val"))


def _reaches_tensors(number: torch.fx.Node) -> bool:
    """Whether something other than numbers is computed from a number."""
    return any(
        not isinstance(_example(user), (torch.SymInt, torch.SymBool)) or _reaches_tensors(user)
        for user in number.users
        if user.op != "output"
    )
