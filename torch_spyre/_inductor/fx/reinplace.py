"""Safety check of in-place updates (Inductor's reinplacing pass).

Inductor turns `y = index_put(x, ...)` into a write to x where the old x is dead. It misses two
cases and gives wrong numbers, for the CPU too (torch 2.13):

- x may be an expanded view, whose elements lie on top of each other;
- x may be an input that is overwritten later by something else, while y is still read:

    y = x.index_add(0, i, s); x.zero_(); return y

In: an update and the tensor it changes. Out: whether its result is safe there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._inductor.fx_passes import reinplace

from torch_spyre.on_card import is_on_card

aten = torch.ops.aten


def is_safe(node: torch.fx.Node) -> bool:
    """Whether an update may write to the memory of its first argument."""
    updated = node.args[0]
    if not isinstance(updated, torch.fx.Node):
        return False
    value = updated.meta.get("val")
    if isinstance(value, torch.Tensor) and _lies_on_itself(value):
        return False
    base = reinplace._get_view_base(updated)
    if base.op != "placeholder":
        return True
    place = {other: i for i, other in enumerate(node.graph.nodes)}
    return all(
        _comes_from(write.args[1], node) or all(place[r] < place[write] for r in _readers(node))
        for write in base.users
        if write.target is aten.copy_.default and write.args[0] is base
    )


def _lies_on_itself(value: torch.Tensor) -> bool:
    return any(
        stride == 0 and size != 1 for size, stride in zip(value.shape, value.stride(), strict=True)
    )


def _comes_from(value: Any, node: torch.fx.Node) -> bool:
    """Whether a value is the result of an update, or of further updates of that."""
    while isinstance(value, torch.fx.Node):
        value = reinplace._get_view_base(value)
        if value is node:
            return True
        if value.target not in _updates():
            return False
        value = value.args[0]
    return False


def _readers(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Who reads the memory of a result: through views, and after updates of it."""
    for user in node.users:
        yield user
        if reinplace._is_view_op(user.target) or (
            user.target in _updates() and user.args[0] is node
        ):
            yield from _readers(user)


def _updates() -> set[Any]:
    found = reinplace.inplaceable_ops
    return {*found, *(op.inplace_op for op in found.values())}


def also(stock: Callable[[torch.fx.Node], bool]) -> Callable[[torch.fx.Node], bool]:
    """A check of Inductor's, and ours for tensors on the card."""

    def check(node: torch.fx.Node) -> bool:
        return stock(node) and (not is_on_card(node.meta.get("val")) or is_safe(node))

    return check
