"""Sums of what is float32 until it is added: they are rounded once.

A block ends with `x + batch_norm(...)`. The norm is computed in float32, rounded to 16 bits and
added, and the sum is rounded again. That costs more than a rounding: sums of two 16-bit numbers are
often half way between two others, which the card rounds away from zero, so that the residual grows
from block to block. In float32 up to the sum there is nothing half way.

    add(to_f16(a), b)   becomes   to_f16(add(a, to_f32(b)))

In: the FX graph. Changed are additions and subtractions of two tensors on the card one of which was
narrowed for nothing else.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from torch_spyre.dtypes import SIXTEEN_BITS
from torch_spyre.on_card import is_on_card

aten, prims = torch.ops.aten, torch.ops.prims
_SUMS = (aten.add.Tensor, aten.sub.Tensor)


def add_before_rounding(graph: Graph) -> None:
    """Move narrowing casts behind the sums that are all that uses them."""
    for target in _SUMS:
        for node in graph.find_nodes(op="call_function", target=target):
            if _dtype(node) in SIXTEEN_BITS and any(map(_is_narrowed_for_this, node.args)):
                _widen(graph, node)


def _is_narrowed_for_this(source: Any) -> bool:
    if not isinstance(source, Node) or source.target is not prims.convert_element_type.default:
        return False
    made = source.args[0]
    short = _dtype(source) in SIXTEEN_BITS
    return short and len(source.users) == 1 and _dtype(made) is torch.float32


def _widen(graph: Graph, node: Node) -> None:
    terms: tuple[Any, ...] = node.args
    if not all(isinstance(a, Node) and _dtype(a) == _dtype(node) for a in terms):
        return
    dtype = _dtype(node)
    with graph.inserting_before(node):
        wide = [a.args[0] if _is_narrowed_for_this(a) else _cast(graph, a, torch.float32)
                for a in terms]  # fmt: skip
        total = graph.call_function(node.target, tuple(wide), dict(node.kwargs))  # type: ignore[arg-type]
        total.meta.update(node.meta)
        with node.meta["val"].fake_mode:
            total.meta["val"] = node.meta["val"].to(torch.float32)
        narrow = _cast(graph, total, dtype)
    node.replace_all_uses_with(narrow)
    graph.erase_node(node)
    for a in set(terms):
        if not a.users:
            graph.erase_node(a)


def _cast(graph: Graph, node: Node, dtype: torch.dtype | None) -> Node:
    cast = graph.call_function(prims.convert_element_type.default, (node, dtype))
    cast.meta.update({k: v for k, v in node.meta.items() if k != "val"})
    with node.meta["val"].fake_mode:
        cast.meta["val"] = node.meta["val"].to(dtype)
    return cast


def _dtype(node: Any) -> torch.dtype | None:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value.dtype if is_on_card(value) else None
