"""Functions of PyTorch that do the same in less time.

None of them knows of the card. They are called for each node of a graph, or several times, and do
much that is not needed: a setting is looked up through four functions, a handler is set with a
function that is made and wrapped for it, the code of a graph is compiled to be printed.

`apply` installs them when the first graph with spyre tensors is compiled. What they return is what
PyTorch's own functions return; where that takes more than a look, those are called.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._inductor.virtualized import Virtualized, threadlocal
from torch.fx import graph_module
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils import _config_module
from torch.utils._config_module import ConfigModule

from torch_spyre.compile_hooks import compiles_for_spyre


def apply() -> None:
    """Install all of them."""
    _look_up_settings()
    _set_handlers()
    _compile_graphs_that_are_called()


# -- ConfigModule.__getattr__: five calls for each setting -----------------------------------------
# Dynamo reads several settings for each instruction of a program.
# Fails when it can go: test_a_setting_is_looked_up_with_one_call.

_UNSET = _config_module._UNSET_SENTINEL
_IMMUTABLE = _config_module._IMMUTABLE_CONFIG_TYPES


def _look_up_settings() -> None:
    stock = ConfigModule.__getattr__

    @functools.wraps(stock)
    def look_up(self: ConfigModule, name: str) -> Any:
        entry = vars(self)["_config"].get(name)
        if (
            entry is None
            or entry.hide
            or entry.deprecated
            or entry.alias is not None
            or entry.env_value_force is not _UNSET
        ):
            return stock(self, name)
        value = entry.user_override.get()
        if value is not _UNSET:
            return value
        value = entry.default
        if (
            entry.env_value_default is not _UNSET
            or entry.justknob is not None
            or not isinstance(value, _IMMUTABLE)
        ):
            return stock(self, name)
        return value

    ConfigModule.__getattr__ = look_up  # type: ignore[method-assign]


# -- Virtualized._set_handler: makes a context manager of a function that it makes -----------------
# `V.set_current_node` and the like, for each node that is lowered, and twice when it is left.
# Fails when it can go: test_a_handler_is_set_without_making_a_function.


class _Until:
    """Sets a handler back at the end."""

    __slots__ = ("prior", "variable")

    def __init__(self, variable: Any, prior: Any) -> None:
        self.variable = variable
        self.prior = prior

    def __enter__(self) -> None:
        return None

    def __exit__(self, *problem: object) -> None:
        setattr(threadlocal, self.variable._key, self.prior)


def _set_handlers() -> None:
    stock = Virtualized._set_handler

    @functools.wraps(stock)
    def set_handler(self: Virtualized[Any], value: Any) -> Any:
        until = _Until(self, self._get_handler(False))
        setattr(threadlocal, self._key, value)
        return until

    Virtualized._set_handler = set_handler


# -- _LazyGraphModule._real_recompile: compiles what is printed ------------------------------------
# The text of a graph is part of the keys of caches; nobody calls it. Compiling it takes as long as
# a tenth of the scheduler.
# Fails when it can go: test_a_graph_that_is_printed_is_not_compiled.


def _compile_graphs_that_are_called() -> None:
    stock_recompile = _LazyGraphModule._real_recompile
    stock_force = _LazyGraphModule.real_recompile
    stock_code: Any = torch.fx.GraphModule.code

    @functools.wraps(stock_recompile)
    def print_alone(self: Any) -> Any:
        if not compiles_for_spyre():
            return stock_recompile(self)
        stock = graph_module._forward_from_src  # Dynamo has one of its own while it is at work
        graph_module._forward_from_src = functools.partial(_when_called, stock)
        try:
            return stock_recompile(self)
        finally:
            graph_module._forward_from_src = stock

    @functools.wraps(stock_force)
    def real_recompile(self: Any) -> None:
        stock_force(self)
        compiled = getattr(type(self).forward, "_compiled", None)
        if compiled is not None:
            type(self).forward = compiled()

    def code(self: Any) -> str:
        if self._needs_recompile():
            self._real_recompile()
        return stock_code.fget(self)

    _LazyGraphModule._real_recompile = print_alone  # type: ignore[method-assign]
    _LazyGraphModule.real_recompile = real_recompile  # type: ignore[method-assign]
    _LazyGraphModule.code = property(code)  # type: ignore[assignment]


def _when_called(stock: Callable[..., Any], *args: Any) -> Callable[..., Any]:
    """The function of a graph, compiled when it is called first or asked for."""
    compiled = functools.partial(stock, *args)

    def forward(self: Any, *inputs: Any, **named: Any) -> Any:
        type(self).forward = compiled()
        return self(*inputs, **named)

    forward._compiled = compiled  # type: ignore[attr-defined]
    return forward
