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

from torch_spyre.constants import BYTES_IN_STICK
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
    if node.target not in _PARTS and not _has_the_dims_of(updated, base):
        return False  # the host would have to write these rows
    if base.op != "placeholder":
        return True
    place = {other: i for i, other in enumerate(node.graph.nodes)}
    return all(
        _comes_from(write.args[1], node) or all(place[r] < place[write] for r in _readers(node))
        for write in base.users
        if write.target is aten.copy_.default and write.args[0] is base
    )


_PARTS = (reinplace._generalized_scatter,)
"""Updates that write to a view, whatever it is; the others write rows by their numbers."""


def _has_the_dims_of(view: torch.fx.Node, base: torch.fx.Node) -> bool:
    """Whether a view is the whole of a tensor, in whatever order. In a part of it, or in another
    shape, rows have no numbers that the card knows."""
    values: list[Any] = [view.meta.get("val"), base.meta.get("val")]
    if view is base or not all(isinstance(value, torch.Tensor) for value in values):
        return True
    dims = [sorted((s, n) for s, n in zip(v.stride(), v.shape) if n != 1) for v in values]
    return dims[0] == dims[1]


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


def instead(stock: Callable[[torch.fx.Node], bool]) -> Callable[[torch.fx.Node], bool]:
    """Ours for tensors on the card. Inductor asks whether a write to a part is worth it: elsewhere
    it is no longer fused with what comes before."""

    def check(node: torch.fx.Node) -> bool:
        if not is_on_card(node.meta.get("val")):
            return stock(node)
        if _is_a_piece_of_zeros(node) or _replaces_all(node):
            return False
        return is_safe(node)

    return check


def _is_a_piece_of_zeros(node: torch.fx.Node) -> bool:
    """Whether a write leaves the rest of a tensor at one number, as in the gradient of a slice. The
    pieces of a new tensor are written once each, if they are whole sticks."""
    updated: Any = node.args[0]
    views: Any = node.args[2]
    if updated.target is not aten.full.default or len(updated.users) > 1 or len(views) > 1:
        return False
    (view,) = views
    if view.target is not aten.slice.Tensor:
        return False
    given = (0, 0, None, 1)
    arguments: list[Any] = list(view.args) + list(given[len(view.args) :])
    dim, start, end, step = arguments
    shape = updated.meta["val"].shape
    start, end, step = slice(start, end, step).indices(shape[dim])
    stick = BYTES_IN_STICK // updated.meta["val"].itemsize
    is_whole = dim % len(shape) < len(shape) - 1 or (start % stick == 0 and end % stick == 0)
    return bool(step == 1 and is_whole)


def _replaces_all(node: torch.fx.Node) -> bool:
    """Whether a slice is the whole of an intermediate tensor. Inductor would let what is written
    take its place, and earlier writes to it would go there as well (torch 2.13)."""
    updated: Any = node.args[0]
    views: Any = node.args[2]
    if updated.op == "placeholder":
        return False
    value = window = updated.meta["val"]
    for view in views:
        if any(isinstance(argument, torch.fx.Node) for argument in view.args):
            return False
        window = view.target(window, *view.args, **view.kwargs)
    return bool(window.shape == value.shape and window.stride() == value.stride())
