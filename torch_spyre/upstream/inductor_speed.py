"""Functions of PyTorch that do the same in less time.

None of them knows of the card. They are called for each node of a graph, or several times, and do
much that is not needed: a setting is looked up through four functions, a handler is set with a
function that is made and wrapped for it, the code of a graph is compiled to be printed, numbers are
compared as symbols.

`apply` installs them when the first graph with spyre tensors is compiled, and from then on they
serve every graph of the process, also those of other devices. So what they return is what PyTorch's
own functions return; where that takes more than a look, those are called. docs/decisions/0047 says
why they are worth it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import sympy
import torch
from torch._inductor import ir, lowering
from torch._inductor.sizevars import SizeVarAllocator
from torch._inductor.virtualized import Virtualized, threadlocal
from torch.fx import graph as fx_graph
from torch.fx import graph_module
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils import _config_module
from torch.utils import _pytree as pytree
from torch.utils._config_module import ConfigModule

from torch_spyre._inductor.state import is_compiling


def apply() -> None:
    """Install all of them."""
    _look_up_settings()
    _set_handlers()
    _compile_graphs_that_are_called()
    _go_over_arguments()
    _know_numbers()
    _remember_indices()
    _remember_promotions()


# -- ConfigModule.__getattr__: five calls for each setting -----------------------------------------
# Dynamo reads several settings for each instruction of a program.
# Fails when it can go: test_a_setting_is_looked_up_with_one_call.

_UNSET = _config_module._UNSET_SENTINEL
_IMMUTABLE = _config_module._IMMUTABLE_CONFIG_TYPES


def _look_up_settings() -> None:
    stock = ConfigModule.__getattr__

    @functools.wraps(stock)
    def look_up(self: ConfigModule, name: str) -> Any:
        entry = self._config.get(name)
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
        if not is_compiling():
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


# -- Graph.create_node: goes over the arguments of a node as over any tree -------------------------
# To see whether one is a symbol, through seven functions for each of them.
# Fails when it can go: test_arguments_of_a_node_are_gone_over_with_few_calls.


class _Trees:
    """torch.utils._pytree for `torch.fx.graph`, with leaves that are found at once."""

    def __getattr__(self, name: str) -> Any:
        return getattr(pytree, name)

    @staticmethod
    def tree_iter(tree: Any, is_leaf: Any = None) -> Iterable[Any]:
        if is_leaf is not None:
            return pytree.tree_iter(tree, is_leaf)
        leaves: list[Any] = []
        _collect(tree, leaves)
        return leaves


def _collect(tree: Any, leaves: list[Any]) -> None:
    kind = type(tree)
    if kind is tuple or kind is list:
        for value in tree:
            _collect(value, leaves)
    elif kind is dict:
        for value in tree.values():
            _collect(value, leaves)
    elif kind in pytree.SUPPORTED_NODES or issubclass(kind, tuple):
        leaves.extend(pytree.tree_iter(tree))
    else:
        leaves.append(tree)


def _go_over_arguments() -> None:
    fx_graph.pytree = _Trees()  # type: ignore[assignment]


# -- SizeVarAllocator: numbers are compared and simplified as symbols ------------------------------
# Asked for each dimension of what is lowered and of what it reads.
# Fails when it can go: test_sizes_that_are_numbers_are_compared_as_numbers.

_NUMBERS = (int, sympy.Integer)


def _know_numbers() -> None:
    for name in ("statically_known_equals", "check_equals", "check_equals_and_simplify"):
        stock = getattr(SizeVarAllocator, name)
        setattr(SizeVarAllocator, name, functools.wraps(stock)(_if_different(stock, name)))
    stock_is_one = SizeVarAllocator.is_size_one_or_false
    stock_simplify = SizeVarAllocator.simplify

    @functools.wraps(stock_is_one)
    def is_size_one_or_false(self: SizeVarAllocator, size: Any) -> bool:
        return size == 1 if isinstance(size, _NUMBERS) else stock_is_one(self, size)

    @functools.wraps(stock_simplify)
    def simplify(self: SizeVarAllocator, expr: Any) -> Any:
        return expr if isinstance(expr, sympy.Integer) else stock_simplify(self, expr)

    SizeVarAllocator.is_size_one_or_false = is_size_one_or_false
    SizeVarAllocator.simplify = simplify


def _if_different(stock: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Two numbers that are equal are; PyTorch sees to all else, and to errors."""
    returns_left = name != "statically_known_equals"

    def compare(self: SizeVarAllocator, left: Any, right: Any) -> Any:
        known = isinstance(left, _NUMBERS) and isinstance(right, _NUMBERS)
        if known and left == right:
            return left if returns_left else True
        return stock(self, left, right)

    return compare


# -- ir._fixed_indexer: adds up the same terms for each node ---------------------------------------
# The body of a node is run several times, and equal nodes have equal indices.
# Fails when it can go: test_an_index_is_added_up_once.

_MANY = 1 << 16


def _remember_indices() -> None:
    stock = ir._fixed_indexer
    known: dict[Any, Any] = {}

    @functools.wraps(stock)
    def fixed_indexer(size: Any, stride: Any = None, offset: Any = sympy.S.Zero) -> Any:
        add_up = stock(size, stride, offset)
        if stride is None or not isinstance(offset, sympy.Basic):
            return add_up
        of_layout = (tuple(size), tuple(stride), offset)

        def indexer(index: Sequence[Any]) -> Any:
            key = (of_layout, tuple(index))
            found = known.get(key)
            if found is None:
                if len(known) >= _MANY:
                    known.clear()
                found = known[key] = add_up(index)
            return found

        return indexer

    ir._fixed_indexer = fixed_indexer


# -- lowering.get_promoted_dtype: makes tensors to ask for the type of their sum -------------------
# For each pointwise operation. It depends on types and numbers of dimensions, and on the default.
# Fails when it can go: test_the_type_of_an_operation_is_found_once.


def _remember_promotions() -> None:
    stock = lowering.get_promoted_dtype
    known: dict[Any, torch.dtype] = {}

    @functools.wraps(stock)
    def get_promoted_dtype(
        *args: Any, type_promotion_kind: Any, return_compute_dtype: bool = False
    ) -> torch.dtype:
        default = torch.get_default_dtype()  # the type of an integer plus 0.5
        parts: list[Any] = [type_promotion_kind, return_compute_dtype, default]
        for arg in args:
            if type(arg) in (int, float, bool):
                parts.append(type(arg))
            elif isinstance(arg, ir.IRNode):
                parts.append((arg.get_dtype(), len(arg.get_size())))
            else:
                parts = []
                break
        key = tuple(parts)
        if key not in known:
            found = stock(
                *args,
                type_promotion_kind=type_promotion_kind,
                return_compute_dtype=return_compute_dtype,
            )
            if not parts:
                return found
            known[key] = found
        return known[key]

    lowering.get_promoted_dtype = get_promoted_dtype
