"""Registry of padding rules, and what they share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from torch_spyre._inductor.dynamic.padded_dims import Dim, NotPaddable, has_open
from torch_spyre._inductor.dynamic.specialize import Fixer, number

aten, prims = torch.ops.aten, torch.ops.prims
RULES: dict[Any, Callable[[Fixer, Any], None]] = {}


def rule(*targets: Any) -> Callable[[Any], Any]:
    def register(function: Any) -> Any:
        for target in targets:
            RULES[target] = function
        return function

    return register


def value_of(node: Any) -> Any:
    return node.meta.get("val")


def touches_open(fixer: Fixer, node: Any) -> bool:
    for source in node.all_input_nodes:
        if fixer.is_open_number(source):
            return True
        dims = fixer.dims.get(source)
        many = dims if isinstance(dims, tuple) and dims and not isinstance(dims[0], Dim) else [dims]
        if any(d and has_open(d) for d in many):
            return True
    value = value_of(node)
    values = value if isinstance(value, (list, tuple)) else [value]
    return any(isinstance(v, torch.Tensor) and has_open(fixer.whole(v)) for v in values)


def closed(fixer: Fixer, node: Any) -> bool:
    """Copies an operation that no open size affects."""
    if touches_open(fixer, node):
        return False
    fixer.copy(node)
    fixer.dims[node] = fixer.static_dims(node)
    return True


def argument(node: Node, place: int, name: str, default: Any = None) -> Any:
    if len(node.args) > place:
        return node.args[place]
    return node.kwargs.get(name, default)


def no_numbers(fixer: Fixer, node: Any) -> None:
    """Numbers of the call among the arguments would be those of the padded sizes."""
    for source in node.all_input_nodes:
        if fixer.is_open_number(source):
            raise NotPaddable(f"{node.target} with a number that depends on open sizes")


def shape_at(fixer: Fixer, node: Any) -> list[int]:
    return [number(s, fixer.sizes) for s in fixer.sizes_of(node)]
