"""What is float32 until it is added is rounded once, after the sum.

A block of a network of convolutions ends with `relu(x + batch_norm(convolution(...)))`. The sums of
the convolution and the norm are float32. Rounded to 16 bits before each step, they lose more than
the roundings: what has 16 bits and is added to something with 16 bits is often half way between two
numbers, or next to it, and is then always rounded to the same side. Residuals would grow, or
shrink, from block to block. In float32 from the product to the last sum there is nothing half way.

    add(to_f16(a), b)   becomes   to_f16(add(a, to_f32(b)))
    relu(to_f16(a))     becomes   to_f16(relu(a))                   the same numbers
    to_f32(to_f16(a))   becomes   a                                 where a is one of these
    to_f16(product_float32(a, b))   becomes   mm(a, b)              with nothing in between

In: the FX graph. Casts that a program asks for stay, unless they are all that a sum waits for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from torch_spyre.dtypes import SIXTEEN_BITS
from torch_spyre.on_card import is_on_card

aten, prims, spyre = torch.ops.aten, torch.ops.prims, torch.ops.spyre
_SUMS = (aten.add.Tensor, aten.sub.Tensor)
_CONVOLUTIONS = (spyre.product_float32.default, spyre.weighted_sum_float32.default)
_VIEWS = (aten.view.default, aten.permute.default, aten.reshape.default)


def add_before_rounding(graph: Graph) -> None:
    """Move narrowing casts behind the sums that are all that uses them."""
    ours: set[Node] = set()
    for node in list(graph.nodes):
        if node.target in _SUMS or node.target is aten.relu.default:
            terms: tuple[Any, ...] = node.args
            same = all(_dtype(a) in SIXTEEN_BITS and _dtype(a) is _dtype(node) for a in terms)
            if same and any(len(a.users) == 1 and _is_narrowed(a) for a in terms):
                ours.add(_widen(graph, node))
        elif _is_narrowed(node) and _made(node.args[0]).target in _CONVOLUTIONS:
            ours.add(node)
        elif _dtype(node) is torch.float32 and _is_cast(node) and node.args[0] in ours:
            node.replace_all_uses_with(node.args[0].args[0])
            graph.erase_node(node)
    for node in graph.find_nodes(op="call_function", target=spyre.product_float32.default):
        _narrow_at_once(graph, node)


def _is_cast(node: Node) -> bool:
    return node.target is prims.convert_element_type.default


def _is_narrowed(node: Node) -> bool:
    is_short = _dtype(node) in SIXTEEN_BITS
    return is_short and _is_cast(node) and _dtype(node.args[0]) is torch.float32


def _made(node: Any) -> Node:
    """What a node is a view of."""
    while node.target in _VIEWS:
        node = node.args[0]
    assert isinstance(node, Node)
    return node


def _widen(graph: Graph, node: Node) -> Node:
    """Compute a node in float32, from what its terms were before they were narrowed, and narrow."""
    terms: tuple[Any, ...] = node.args
    with graph.inserting_before(node):
        wide = [a.args[0] if _is_narrowed(a) else _cast(graph, a, torch.float32) for a in terms]
        result = graph.call_function(node.target, tuple(wide), dict(node.kwargs))  # type: ignore[arg-type]
        result.meta.update(node.meta)
        with node.meta["val"].fake_mode:
            result.meta["val"] = node.meta["val"].to(torch.float32)
        narrow = _cast(graph, result, _dtype(node))
    node.replace_all_uses_with(narrow)
    graph.erase_node(node)
    for a in set(terms):
        if not a.users:
            graph.erase_node(a)
    return narrow


def _narrow_at_once(graph: Graph, product: Node) -> None:
    """A product that is nothing but narrowed: the card rounds when it stores."""
    last = product
    views = []
    while len(last.users) == 1 and (user := next(iter(last.users))).target in _VIEWS:
        views.append(user)
        last = user
    if len(last.users) != 1 or not _is_narrowed(cast := next(iter(last.users))):
        return
    dtype = _dtype(cast)
    if dtype is not _dtype(product.args[0]):
        return
    product.target = aten.mm.default
    for node in (product, *views):
        with node.meta["val"].fake_mode:
            node.meta["val"] = node.meta["val"].to(dtype)
    cast.replace_all_uses_with(last)
    graph.erase_node(cast)


def _cast(graph: Graph, node: Node, dtype: torch.dtype | None) -> Node:
    cast = graph.call_function(prims.convert_element_type.default, (node, dtype))
    cast.meta.update({k: v for k, v in node.meta.items() if k != "val"})
    with node.meta["val"].fake_mode:
        cast.meta["val"] = node.meta["val"].to(dtype)
    return cast


def _dtype(node: Any) -> torch.dtype | None:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value.dtype if is_on_card(value) else None
