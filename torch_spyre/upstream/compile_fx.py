"""How a graph with spyre tensors gets to our compiler, with plain `torch.compile` too.

Inductor's own way for a new device (`torch.spyre.Scheduling`) comes too late to see the real
tensors of a graph and to set options for it, so `compile_fx` is wrapped where Dynamo looks it up: a
graph without spyre tensors goes through untouched, the others load `torch_spyre._inductor` first.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Sequence
from typing import Any

import torch

from torch_spyre.constants import DEVICE_NAME
from torch_spyre.upstream import frame_chunks, gc_pause
from torch_spyre.upstream.import_hooks import after_import


def register_when_needed() -> None:
    """Wrap compile_fx when Inductor is imported; prepare Dynamo when that is."""
    after_import("torch._inductor.compile_fx", _wrap_compile_fx)
    after_import("torch._dynamo.backends.registry", _offer_backend)
    after_import("torch._dynamo.convert_frame", frame_chunks.give_dynamo_room)
    after_import("torch._dynamo.callback", gc_pause.pause_while_dynamo_compiles)
    after_import("torch._dynamo.symbolic_convert", _describe_lines_for_readers)
    after_import("torch._dynamo.guards", _time_guards_as_they_are)
    after_import("torch._dynamo.variables.torch", _let_narrow_read_its_start)
    after_import("torch._dynamo.variables.higher_order_ops", _leave_local_maps_alone)
    setattr(torch.ops, DEVICE_NAME, _CustomOps(DEVICE_NAME))


class _CustomOps(torch._ops._OpNamespace):
    """`torch.ops.spyre`: the custom operators are defined when one is asked for first."""

    __module__ = "torch._ops"  # operators are pickled by the module of their namespace

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_"):
                raise
            import torch_spyre._inductor.fx.customops  # noqa: F401

            return super().__getattr__(name)


def uses_spyre(graph: Any, example_inputs: Sequence[Any]) -> bool:
    """Whether a graph has spyre tensors among its inputs or makes some."""
    for value in example_inputs:
        if isinstance(value, torch.Tensor) and value.device.type == DEVICE_NAME:
            return True
    if not isinstance(graph, torch.fx.GraphModule):
        return False
    for node in graph.graph.nodes:
        value = node.meta.get("val", node.meta.get("example_value"))
        values = value if isinstance(value, (list, tuple)) else [value]
        if any(isinstance(v, torch.Tensor) and v.device.type == DEVICE_NAME for v in values):
            return True
    return False


def _wrap_compile_fx(module: Any) -> None:
    stock = module.compile_fx

    @functools.wraps(stock)
    def compile_fx(model_: Any, example_inputs_: Any, *args: Any, **kwargs: Any) -> Any:
        if not uses_spyre(model_, example_inputs_):
            return stock(model_, example_inputs_, *args, **kwargs)
        from torch_spyre import _inductor
        from torch_spyre._inductor import state

        if state.is_compiling():  # compile_fx calls itself to apply options
            return stock(model_, example_inputs_, *args, **kwargs)
        with state.compiling():
            return frame_chunks.with_room(
                _inductor.compile_fx, stock, model_, example_inputs_, *args, **kwargs
            )

    module.compile_fx = compile_fx


def _describe_lines_for_readers(module: Any) -> None:
    """Dynamo describes the line of each operation that it finds, for a log. It takes whole source
    files apart for that, whether or not somebody reads the log: a twentieth of a warm start.

    Only once a card has started, which `torch.compile` itself sees to, for any device.
    Fails when it can go: test_source_files_are_taken_apart_for_logs_alone.
    """
    from torch._dynamo import output_graph

    translator = module.InstructionTranslatorBase
    stock = translator.get_line_of_code_header
    logs = (module.trace_call_log, module.trace_source_log, output_graph.trace_call_log)

    @functools.wraps(stock)
    def get_line_of_code_header(self: Any, lineno: int | None = None) -> str:
        is_read = any(log.isEnabledFor(logging.DEBUG) for log in logs)
        if is_read or not torch.get_device_module(DEVICE_NAME).is_initialized():
            return stock(self, lineno)
        return ""

    translator.get_line_of_code_header = get_line_of_code_header


def _time_guards_as_they_are(module: Any) -> None:
    """Dynamo times the guards of each graph for its metrics, and empties the processor's caches for
    that: 25 ms for some microseconds, a fiftieth of a warm start. They stay full here, unless the
    log that the figure goes to is read.

    Only once a card has started, which `torch.compile` itself sees to, for any device.
    Fails when it can go: test_caches_of_the_processor_are_emptied_for_logs_alone.
    """
    stock = module.profile_guard_manager

    @functools.wraps(stock)
    def profile_guard_manager(root: Any, local_scope: Any, rounds: int) -> float:
        is_read = module.guards_log.isEnabledFor(logging.DEBUG)
        if is_read or not torch.get_device_module(DEVICE_NAME).is_initialized():
            return stock(root, local_scope, rounds)
        begin = time.perf_counter()
        for _ in range(rounds):
            root.check(local_scope)
        return (time.perf_counter() - begin) / rounds * 1e6

    module.profile_guard_manager = profile_guard_manager


def _leave_local_maps_alone(module: Any) -> None:
    """Dynamo asks of what it meets whether it is a local map of distributed tensors, which is false
    unless somebody has switched that on, and imports much of torch.distributed for the question: up
    to 0.3 s of the first compilation.

    Only once a card has started, which `torch.compile` itself sees to, for any device.
    Fails when it can go: test_distributed_tensors_are_not_imported_for_nothing.
    """
    variable = module.LocalMapWrappedHigherOrderVariable
    stock = variable.should_wrap_in_hop.__func__

    @functools.wraps(stock)
    def should_wrap_in_hop(cls: Any, value: Any) -> bool:
        if not cls._enabled and torch.get_device_module(DEVICE_NAME).is_initialized():
            return False
        return bool(stock(cls, value))

    variable.should_wrap_in_hop = classmethod(should_wrap_in_hop)


def _offer_backend(registry: Any) -> None:
    def spyre(gm: Any, example_inputs: Any, *, mode: str | None = None, options: Any = None) -> Any:
        """torch.compile(f, backend="spyre"): Inductor, with the same options."""
        from torch._inductor import list_mode_options
        from torch._inductor.compile_fx import compile_fx

        patches = dict(list_mode_options(mode)) if mode else {}
        patches.update(options or {})
        return compile_fx(gm, example_inputs, config_patches=patches or None)

    registry.register_backend(spyre, name=DEVICE_NAME)


def _let_narrow_read_its_start(dynamo: Any) -> None:
    """`x.narrow(dim, start, length)` with a `start` in device memory, in one graph.

    With `capture_scalar_outputs` the start becomes a symbol that Dynamo then misses in the result,
    whose offset is a symbol of its own. PyTorch lists the functions of which it must not expect
    that; of a start on the CPU it knows the number, so narrow is not among them.
    """
    dynamo.ops_consuming_unbacked_scalars |= {torch.narrow}
    dynamo.methods_consuming_unbacked_scalars |= {"narrow"}
