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
    indices: Any = None
    """Of rows of the window whose numbers are read from a tensor."""


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
            if step.indices is None:
                scatter = aten.as_strided_scatter.default
                now = _call(graph, step.node, scatter, now, step.source, *how)
            else:
                put = torch.ops.spyre.put_rows.default
                now = _call(graph, step.node, put, now, *how, step.indices, step.source)
            same = now if _lie_alike(step.result, value) else _as_strided(graph, now, step.result)
        step.node.replace_all_uses_with(same)
    change.update_arg(1, now)
    graph.eliminate_dead_code()


def _steps(base: Node, result: Any) -> list[_Step]:
    """The writes between an input and what is copied into it, first to last; none if there are no
    views between them, or something else is."""
    links: list[Node] = []
    while result is not base:
        if not isinstance(result, Node):
            return []
        if result.target is aten.clone.default:  # of what index_copy_ through a view gives
            result = result.args[0]
            continue
        if not is_view(result.target) and not _is_write(result):
            return []
        places = (*result.args[2:], *result.kwargs.values())
        if result.target not in _INDEXED and any(isinstance(a, Node) for a in places):
            return []  # a place that is known only when it runs
        links.append(result)
        result = result.args[0]
    value: torch.Tensor = base.meta["val"]
    lies = value
    found: list[_Step] = []
    for link in reversed(links):
        if _is_write(link):
            step = _step(link, lies)
            if step.indices is not None and not _has_rows(step, value):
                return []
            found.append(step)
            continue
        try:
            lies = link.target(lies, *link.args[1:], **link.kwargs)  # type: ignore[operator]
        except RuntimeError:
            return []  # in the memory of the input this is no view
        if lies.dtype != value.dtype or _memory(lies) != _memory(value):
            return []
    views = len(links) > len(found) or any(step.indices is not None for step in found)
    return found if views and _lie_alike(lies, value) else []


def _step(node: Node, lies: torch.Tensor) -> _Step:
    """A write, or several that are nested: `x[3][:, 5] = v` replaces a part of a part."""
    window, source = lies, node
    while source.target in _VIEW_OF:
        window, outer = _window(source, window), source
        inner = outer.args[1]
        assert isinstance(inner, Node)
        source = inner
        part = inner.args[0] if _is_write(inner) else None
        if not isinstance(part, Node) or len(inner.users) != 1:
            return _Step(node, lies, window, inner)
        view = _VIEW_OF[outer.target]  # type: ignore[index]
        same = (view, outer.args[2:], outer.kwargs)
        if (part.target, part.args[1:], part.kwargs) != same:
            return _Step(node, lies, window, inner)
        if not _are_alike(part.args[0], outer.args[0]):
            return _Step(node, lies, window, inner)
    if source.target not in _INDEXED:
        return _Step(node, lies, window, source)
    values = source.args[2]
    assert isinstance(values, Node)
    accumulate = len(source.args) > 3 and source.args[3]
    return _Step(node, lies, window, values, () if accumulate else source.args[1])


def _are_alike(a: Any, b: Any) -> bool:
    """Whether two nodes are one, or the same view of one."""
    if a is b or not isinstance(a, Node) or not isinstance(b, Node):
        return a is b
    if (a.target, a.args[1:], a.kwargs) != (b.target, b.args[1:], b.kwargs):
        return False
    return bool(is_view(a.target)) and _are_alike(a.args[0], b.args[0])


def _has_rows(step: _Step, base: torch.Tensor) -> bool:
    """Whether the card can write the rows of a part of a tensor: along one dimension of it, all of
    which is in the part."""
    given = [d for d, index in enumerate(step.indices) if index is not None]
    dims = [(s, n) for s, n in zip(step.window.stride(), step.window.shape) if n > 1]
    known = {s: n for s, n in zip(base.stride(), base.shape) if n > 1}
    if (
        len(given) != 1
        or _places(step.window, base) is None
        or any(s not in known for s, _ in dims)
    ):
        return False
    along = step.window.stride(given[0]), step.window.shape[given[0]]
    return along in known.items() and any(d != along for d in dims)


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
