"""Writes to a part of a tensor, put into a form that Inductor's reinplacing pass takes.

In: a functional graph, in which `cache[:, 3:4] = v` is a new tensor, `slice_scatter(cache, v)`,
that is copied into the input at the end. Out: the same with nothing in the way of a write in place,
which that pass finds out afterwards (`fx/reinplace.py` has what it must not do):

    y = slice_scatter(x, copy(x[:, 3:4], v))  becomes  y = slice_scatter(x, v)
    y = slice_scatter(x, x[:, 2:5])           becomes  y = slice_scatter(x, clone(x[:, 2:5]))
    y = slice_scatter(x, v); z = x * 2        becomes  z = x * 2; y = slice_scatter(x, v)
    t = slice_scatter(x.t(), v); x.copy_(t.t())    becomes  x.copy_(as_strided_scatter(x, v))
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor.fx_passes import reinplace
from torch._inductor.fx_utils import get_node_storage
from torch.fx import Graph, Node
from torch.fx.passes.reinplace import _is_view_op as is_view

from torch_spyre._inductor.fx.passes.cleanup import changed_by
from torch_spyre.on_card import is_on_card

aten = torch.ops.aten

_VIEW_OF = {
    target: view
    for target, view in reinplace._SCATTER_OP_TO_VIEW.items()
    if isinstance(target, torch._ops.OpOverload)
}
"""The view of a tensor that each of these operations replaces in a copy of it."""

_WRITES_IN_PASS = (reinplace._generalized_scatter, reinplace._inplace_generalized_scatter)
_INDEXED = (aten.index_put.default, aten._unsafe_index_put.default)


def prepare_writes(graph: Graph) -> None:
    """All of it, for the tensors of the card."""
    if not any(_is_write(node) for node in graph.nodes):
        return
    assert graph.owning_module is not None
    graph.owning_module._register_create_node_hook(_note_origin)
    _slices_of_splits(graph)
    _drop_copies_of_sources(graph)
    for change in list(graph.find_nodes(op="call_function", target=aten.copy_.default)):
        _write_through_views(graph, change)
    for node in list(graph.nodes):
        if _is_write(node) and _may_be_in_place(node):
            _copy_overlapping_sources(graph, node)
            _read_before(graph, node)


def _is_write(node: Node) -> bool:
    is_known = node.target in _VIEW_OF or node.target in _INDEXED
    return is_known and is_on_card(node.meta.get("val"))


def _note_origin(node: Node) -> None:
    """Inductor's pass makes new nodes in front of a write, in its place, and does not say which
    line of the program they belong to. The node is not in its place yet when this is called."""
    write = getattr(node.graph._insert, "__self__", None)  # the method of the node it goes before
    if isinstance(write, Node) and (write.target in _VIEW_OF or write.target in _WRITES_IN_PASS):
        node.meta.update({k: v for k, v in write.meta.items() if k != "val"})


def _may_be_in_place(node: Node) -> bool:
    """Not if it would change an input that the program does not change. What is written to a part
    of a part is the other write's to do."""
    if all(_writes_from(user, node) for user in node.users):
        return False
    base = _base(node)
    return not _is_input(base) or any(base in changed_by(user) for user in base.users)


def _base(node: Node) -> Node:
    """What a write changes, or what that is a view of."""
    base = node.args[0]
    while isinstance(base, Node) and is_view(base.target):
        base = base.args[0]
    assert isinstance(base, Node)
    return base


def _is_input(node: Node) -> bool:
    return node.op in ("placeholder", "get_attr")


# ---- What is written ----------------------------------------------------------------------------


def _slices_of_splits(graph: Graph) -> None:
    """One of several views that an operation makes at once is a view of its own: a write to a part
    of it is nested in one to the whole."""
    for node in list(graph.nodes):
        if not _is_write(node) or getattr(node.args[0], "target", None) is not operator.getitem:
            continue
        part: Any = node.args[0]
        made, number = part.args
        if made.target not in _SPLITS:
            continue
        source, *how = made.args
        with graph.inserting_before(part):
            if made.target is aten.unbind.int:
                view = _call(graph, part, aten.select.int, source, *(how or [0]), number)
            else:
                given, along = (*how, 0)[:2]
                sizes = given if isinstance(given, (list, tuple)) else [given] * (number + 1)
                start = sum(sizes[:number])
                end = start + part.meta["val"].shape[along]
                view = _call(graph, part, aten.slice.Tensor, source, along, start, end)
        part.replace_all_uses_with(view)


_SPLITS = (aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int)


def _drop_copies_of_sources(graph: Graph) -> None:
    """`copy(window, v)` is v, as wide and of the type of the window."""
    for node in list(graph.find_nodes(op="call_function", target=aten.copy.default)):
        window, source = node.args[:2]
        if not node.users or not all(_writes_from(user, node) for user in node.users):
            continue
        if not isinstance(source, Node) or not is_on_card(source.meta.get("val")):
            continue
        wanted = window.meta["val"]
        with graph.inserting_before(node):
            if source.meta["val"].dtype != wanted.dtype:
                cast = torch.ops.prims.convert_element_type.default
                source = _call(graph, node, cast, source, wanted.dtype)
            if source.meta["val"].shape != wanted.shape:
                source = _call(graph, node, aten.expand.default, source, list(wanted.shape))
        node.replace_all_uses_with(source)
        graph.erase_node(node)
        if not window.users:
            graph.erase_node(window)


def _writes_from(user: Node, source: Node) -> bool:
    """Whether a user does nothing with a tensor but write it to a part of another one."""
    return user.target in _VIEW_OF and user.args[1] is source and user.args[0] is not source


def _copy_overlapping_sources(graph: Graph, node: Node) -> None:
    """What is read where it is written needs a place of its own."""
    updated, *rest = node.args
    assert isinstance(updated, Node)
    memory, value = get_node_storage(updated), updated.meta["val"]
    for source in {n for n in torch.utils._pytree.tree_leaves(rest) if isinstance(n, Node)}:
        if memory is None or get_node_storage(source) != memory:
            continue
        if node.target in _VIEW_OF and _are_apart(_window(node, value), source.meta["val"], value):
            continue
        with graph.inserting_before(node):
            copy = _call(graph, node, aten.clone.default, source)
        node.replace_input_with(source, copy)
        if source is updated:  # as both; only the source is to be another one
            node.update_arg(0, updated)


def _are_apart(a: torch.Tensor, b: torch.Tensor, whole: torch.Tensor) -> bool:
    """Whether two views of a tensor have no element in common, as far as their places along one of
    its dimensions tell."""
    places = _places(a, whole), _places(b, whole)
    if None in places:
        return False
    pairs = zip(*places, strict=True)  # type: ignore[arg-type]
    return any(mine[1] < other[0] or other[1] < mine[0] for mine, other in pairs)


def _places(view: torch.Tensor, whole: torch.Tensor) -> list[tuple[int, int]] | None:
    """First and last place of a view along each dimension of a tensor, outermost first; None where
    a dimension of the view goes from one of them into another."""
    dims = sorted(((s, n) for s, n in zip(whole.stride(), whole.shape) if n > 1), reverse=True)
    rest = int(view.storage_offset()) - int(whole.storage_offset())
    moves = [(s, n) for s, n in zip(view.stride(), view.shape) if n > 1]
    found = []
    for stride, size in dims:
        first, rest = divmod(rest, stride)
        along = [(s, n) for s, n in moves if s >= stride]
        moves = [m for m in moves if m not in along]
        if any(s % stride for s, _ in along):
            return None
        last = first + sum(s // stride * (n - 1) for s, n in along)
        if first < 0 or last >= size:
            return None
        found.append((first, last))
    return found if not rest and not moves else None


def _window(node: Node, updated: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that a node writes."""
    found: torch.Tensor = _VIEW_OF[node.target](updated, *node.args[2:], **node.kwargs)  # type: ignore[index]
    return found


# ---- Who reads what was there before ------------------------------------------------------------


def _read_before(graph: Graph, node: Node) -> None:
    """Readers of the old value go before the write. What they read is copied if they need the new
    one as well, and that is less than a new tensor takes."""
    place = {other: i for i, other in enumerate(graph.nodes)}
    late = [(view, user) for view, user in _readers(node, place) if place[user] > place[node]]
    if not late:
        return
    after = _descendants(node)
    fixed = [(view, user) for view, user in late if user in after or not _is_free(user)]
    if any(user.op == "output" for _, user in fixed):
        return  # the old value stays, whatever is done about others
    copied = sum(view.meta["val"].numel() for view in {view for view, _ in fixed})
    if copied > _worth_copying(node):
        return
    copies: dict[Node, Node] = {}
    for view, user in late:
        if (view, user) not in fixed:
            _move_before(node, user, place)
            continue
        if view not in copies:
            _move_before(node, view, place)
            with graph.inserting_before(node):
                copies[view] = _call(graph, node, aten.clone.default, view)
        user.replace_input_with(view, copies[view])


def _worth_copying(node: Node) -> int:
    """Elements that may be copied so that others are not. A new tensor is made of all of them, and
    what is written to an input has to be copied into it besides."""
    base = _base(node)
    elements: int = base.meta["val"].numel()
    return elements if _is_input(base) else elements // 2


def _readers(node: Node, place: dict[Node, int]) -> Iterator[tuple[Node, Node]]:
    """Views of the memory that would be overwritten, with those who compute with them. The copy at
    the end, into an input, is none of them."""
    storage = get_node_storage(node.args[0])
    for view in place:
        if get_node_storage(view) != storage or storage is None:
            continue
        for user in view.users:
            if user is not node and not is_view(user.target) and view not in changed_by(user):
                yield view, user


def _descendants(node: Node) -> set[Node]:
    found: set[Node] = set()
    waiting = [node]
    while waiting:
        for user in waiting.pop().users:
            if user not in found:
                found.add(user)
                waiting.append(user)
    return found


def _is_free(node: Node) -> bool:
    """Whether a node may be computed earlier."""
    target = node.target
    if node.op != "call_function" or node.is_impure():
        return False
    tags = getattr(target, "tags", ())
    return torch.Tag.nondeterministic_seeded not in tags


def _move_before(node: Node, moved: Node, place: dict[Node, int]) -> None:
    """Move a node, and all that it needs, in front of another one on which none of it depends."""
    needed: set[Node] = set()
    waiting = [moved]
    while waiting:
        one = waiting.pop()
        if one not in needed and place.get(one, -1) > place[node]:
            needed.add(one)
            waiting += one.all_input_nodes
    for one in sorted(needed, key=lambda n: place[n]):
        node.prepend(one)
        place[one] = place[node]


# ---- Through views of an input ------------------------------------------------------------------


@dataclass(frozen=True)
class _Step:
    """A write on the way to an input, by the part of the input's memory that it changes."""

    node: Node
    result: torch.Tensor
    """How the result of the node lies, as a view of the input."""
    window: torch.Tensor
    source: Node


def _write_through_views(graph: Graph, change: Node) -> None:
    """Writes through views of an input become writes to the input.

    Inductor's pass knows a write whose result is copied into the input, and one through a view of
    it, but not several, one after the other."""
    base = change.args[0]
    value = base.meta.get("val") if isinstance(base, Node) and base.op == "placeholder" else None
    if not is_on_card(value) or value is None:
        return
    assert isinstance(base, Node)
    if value.storage_offset() or torch.empty_like(value).stride() != value.stride():
        return  # a part of the input's memory: a copy of it lies differently
    steps = _steps(base, change.args[1])
    if not steps:
        return
    now = base
    for step in steps:
        size, stride = list(step.window.shape), list(step.window.stride())
        with graph.inserting_before(step.node):
            how = (size, stride, step.window.storage_offset())
            scatter = aten.as_strided_scatter.default
            now = _call(graph, step.node, scatter, now, step.source, *how)
            same = now if _lie_alike(step.result, value) else _as_strided(graph, now, step.result)
        step.node.replace_all_uses_with(same)
    change.update_arg(1, now)
    graph.eliminate_dead_code()


def _steps(base: Node, result: Any) -> list[_Step]:
    """The writes between an input and what is copied into it, first to last; none if there are no
    views between them, or something else is."""
    links: list[Node] = []
    while result is not base:
        if not isinstance(result, Node) or not (
            is_view(result.target) or result.target in _VIEW_OF
        ):
            return []
        if any(isinstance(a, Node) for a in (*result.args[2:], *result.kwargs.values())):
            return []  # a place that is known only when it runs
        links.append(result)
        result = result.args[0]
    writes = [link for link in links if link.target in _VIEW_OF]
    if not writes or len(writes) == len(links):
        return []
    value: torch.Tensor = base.meta["val"]
    lies = value
    found: list[_Step] = []
    for link in reversed(links):
        if link.target in _VIEW_OF:
            found.append(_step(link, lies))
            continue
        try:
            lies = link.target(lies, *link.args[1:], **link.kwargs)  # type: ignore[operator]
        except RuntimeError:
            return []  # in the memory of the input this is no view
        if lies.dtype != value.dtype or _memory(lies) != _memory(value):
            return []
    return found if _lie_alike(lies, value) else []


def _step(node: Node, lies: torch.Tensor) -> _Step:
    """A write, or several that are nested: `x[3][:, 5] = v` replaces a part of a part."""
    window = _window(node, lies)
    outer = node
    while True:
        source = outer.args[1]
        assert isinstance(source, Node)
        part = source.args[0] if source.target in _VIEW_OF else None
        if not isinstance(part, Node) or len(source.users) != 1:
            break
        view = _VIEW_OF[outer.target]  # type: ignore[index]
        same = (view, (outer.args[0], *outer.args[2:]), outer.kwargs)
        if (part.target, part.args, part.kwargs) != same:
            break
        window, outer = _window(source, window), source
    return _Step(node, lies, window, source)


def _memory(t: torch.Tensor) -> int:
    return t.untyped_storage()._cdata


def _lie_alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (a.shape, a.stride(), a.storage_offset()) == (b.shape, b.stride(), b.storage_offset())


def _as_strided(graph: Graph, node: Node, like: torch.Tensor) -> Node:
    how = (list(like.shape), list(like.stride()), like.storage_offset())
    return _call(graph, node, aten.as_strided.default, node, *how)


def _call(graph: Graph, for_: Node, target: torch._ops.OpOverload, *args: Any) -> Node:
    """A new node that stands for a part of another one."""
    node = graph.call_function(target, args)
    node.meta.update({k: v for k, v in for_.meta.items() if k != "val"})
    values = torch.fx.map_arg(args, lambda n: n.meta["val"])
    node.meta["val"] = target(*values)
    return node
