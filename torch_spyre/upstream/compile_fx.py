"""How a graph with spyre tensors gets to our compiler, with plain `torch.compile` too.

Inductor's own way for a new device (`torch.spyre.Scheduling`) comes too late to see the real
tensors of a graph and to set options for it, so `compile_fx` is wrapped where Dynamo looks it up: a
graph without spyre tensors goes through untouched, the others load `torch_spyre._inductor` first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_spyre.constants import DEVICE_NAME
from torch_spyre.on_card import any_on_card
from torch_spyre.upstream import frame_chunks
from torch_spyre.upstream.import_hooks import after_import
from torch_spyre.upstream.install import is_on


def register_when_needed() -> None:
    """Offer `backend="spyre"` when Dynamo is imported."""
    after_import("torch._dynamo.backends.registry", _offer_backend)


def _offer_backend(registry: Any) -> None:
    def spyre(gm: Any, example_inputs: Any, *, mode: str | None = None, options: Any = None) -> Any:
        """torch.compile(f, backend="spyre"): Inductor, with the same options."""
        from torch._inductor import list_mode_options
        from torch._inductor.compile_fx import compile_fx

        patches = dict(list_mode_options(mode)) if mode else {}
        patches.update(options or {})
        return compile_fx(gm, example_inputs, config_patches=patches or None)

    registry.register_backend(spyre, name=DEVICE_NAME)


def compile_fx(stock: Callable[..., Any]) -> Callable[..., Any]:
    """The main door."""

    def compile_fx(model_: Any, example_inputs_: Any, *args: Any, **kwargs: Any) -> Any:
        if not uses_spyre(model_, example_inputs_):
            return stock(model_, example_inputs_, *args, **kwargs)
        from torch_spyre import _inductor
        from torch_spyre._inductor import state

        if state.is_compiling():  # compile_fx calls itself to apply options
            return stock(model_, example_inputs_, *args, **kwargs)
        with state.compiling():
            run = functools.partial(_inductor.compile_fx, stock, model_, example_inputs_)
            if not is_on("frame-room"):
                return run(*args, **kwargs)
            return frame_chunks.with_room(run, *args, **kwargs)

    return compile_fx


def uses_spyre(graph: Any, example_inputs: Sequence[Any]) -> bool:
    """Whether a graph has spyre tensors among its inputs or makes some."""
    if any_on_card(example_inputs):
        return True
    if not isinstance(graph, torch.fx.GraphModule):
        return False
    for node in graph.graph.nodes:
        value = node.meta.get("val", node.meta.get("example_value"))
        if any_on_card([value]):
            return True
    return False


def custom_ops(_: None) -> Any:
    """`torch.ops.spyre`: the custom operators are defined when one is asked for first."""
    return _CustomOps(DEVICE_NAME)


class _CustomOps(torch._ops._OpNamespace):
    """See custom_ops."""

    __module__ = "torch._ops"  # operators are pickled by the module of their namespace

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_"):
                raise
            import torch_spyre._inductor.fx.customops  # noqa: F401

            # Tables of the compiler may have asked for it meanwhile: there must be one object.
            return vars(self)[name] if name in vars(self) else super().__getattr__(name)
