"""What the nodes of an FX graph compute, kept up to date while passes change the graph.

Inductor describes the value of a node by a fake tensor. It makes them all again when the passes on
the joint graph are done, and again from each node on that a later pass has touched: a value that
lies in new memory counts as another one, so all that is computed from it is computed again. Layers
that each have one rewritten product are traced twice more that way, for what is known already.

`Updater` makes a value again only if it can differ: the node, or the description of one of its
inputs, is not what it was. Memory decides for views alone, since they must lie where their input
does.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._inductor import fx_utils
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import compute_unbacked_bindings, rebind_unbacked

from torch_spyre._inductor.state import current
from torch_spyre.on_card import any_on_card

_State = tuple[Any, Any, Any]


class Updater:
    """Does for graphs of ours what Inductor's FakeTensorUpdater does for all."""

    def __init__(self, gm: GraphModule) -> None:
        self.gm = gm
        self._known = {node: _state(node) for node in gm.graph.nodes}
        self._results: dict[Any, Any] = {}

    def incremental_update(self) -> int:
        """Values of nodes that were changed since the last time, and of what depends on them.

        Returns how many are other than before."""
        owners: dict[int, Node] | None = None
        known, changed = {}, set[Node]()
        for node in self.gm.graph.nodes:
            known[node] = state = _state(node)
            before = self._known.get(node)
            if (
                before is not None
                and _is_equal(before, state)
                and changed.isdisjoint(node.all_input_nodes)
            ):
                continue
            if owners is None:  # until here nothing was changed
                owners = _owners(self.gm.graph)
            if self._is_as_before(node, owners):
                continue
            if _update(node, self.gm, owners):
                changed.add(node)
        self._known = known
        return len(changed)

    def _is_as_before(self, node: Node, owners: dict[int, Node]) -> bool:
        """Whether what a node gives for inputs like these is known, and is what it has."""
        key = _key(node)
        old: Any = node.meta.get("val")
        if key is None or not _is_plain(old) or owners.get(fx_utils.get_storage(old)) is not node:
            return False
        result = self._results.get(key)
        if result is None:
            is_valid, args, kwargs = fx_utils.get_fake_args_kwargs(node, self.gm)
            if not is_valid:
                return False
            with V.fake_mode, enable_python_dispatcher():
                value = node.target(*args, **kwargs)  # type: ignore[operator]
            if not _is_plain(value):
                return False
            result = self._results[key] = _described(value)
        return bool(result == _described(old))


def _state(node: Node) -> _State:
    return node.target, node.args, node.kwargs  # arguments are replaced, never changed in place


def _is_equal(before: _State, state: _State) -> bool:
    """Whether a node does what it did. Inductor makes every view a reshape, which is the same view
    of what could be viewed."""
    same = before[0] is state[0] or (
        before[0] is torch.ops.aten.view.default and state[0] is torch.ops.aten.reshape.default
    )
    return same and before[1] is state[1] and before[2] is state[2]


def _key(node: Node) -> Any:
    """What the value of a node depends on; None if it lies in the memory of another one, or if
    more than numbers and descriptions of tensors is at work."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or not _is_functional(target):
        return None
    parts: list[Any] = [target]
    for name, value in (*enumerate(node.args), *node.kwargs.items()):
        part = _part(value)
        if part is None:
            return None
        parts.append((name, part))
    return tuple(parts)


@functools.cache
def _is_functional(op: torch._ops.OpOverload) -> bool:
    """Neither changes inputs nor returns views of them, nor draws numbers."""
    schema = op._schema
    aliases = any(a.alias_info is not None for a in (*schema.arguments, *schema.returns))
    return not aliases and torch.Tag.nondeterministic_seeded not in op.tags


def _part(value: Any) -> Any:
    if isinstance(value, Node):
        known: Any = value.meta.get("val")
        return ("tensor", *_described(known)) if _is_plain(known) else None
    if isinstance(value, (list, tuple)):
        parts = [_part(v) for v in value]
        return None if any(p is None for p in parts) else ("list", *parts)
    numbers = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.memory_format)
    return (type(value), value) if isinstance(value, numbers) else None


def _is_plain(value: Any) -> bool:
    return (
        type(value) is FakeTensor
        and value.layout == torch.strided
        and not value.is_conj()
        and not value.is_neg()
        and all(type(n) is int for n in (*value.shape, *value.stride(), value.storage_offset()))
    )


def _described(value: torch.Tensor) -> tuple[Any, ...]:
    where = (value.shape, value.stride(), value.storage_offset())
    return (*where, value.dtype, value.device, value.requires_grad)


def _owners(graph: Graph) -> dict[int, Node]:
    owners: dict[int, Node] = {}
    for node in graph.nodes:
        _own(owners, node)
    return owners


def _own(owners: dict[int, Node], node: Node) -> None:
    """The first node whose value lies in some memory is the one that made it."""
    storage = fx_utils.get_node_storage(node)
    if storage:
        owners.setdefault(storage, node)


def _update(node: Node, gm: GraphModule, owners: dict[int, Node]) -> bool:
    target: Any = node.target
    if not callable(target) or hasattr(target, "_inductor_lowering_function"):
        return False
    is_valid, args, kwargs = fx_utils.get_fake_args_kwargs(node, gm)
    if not is_valid:
        return False
    with V.fake_mode, enable_python_dispatcher():
        value = target(*args, **kwargs)
    if "val" in node.meta and _is_same(value, node, owners):
        return False
    shape_env = V.fake_mode.shape_env
    rebind_unbacked(shape_env, node, value)
    node.meta["val"] = value
    bindings = compute_unbacked_bindings(shape_env, value) if shape_env is not None else None
    if bindings:
        node.meta["unbacked_bindings"] = bindings
    _own(owners, node)
    return True


def _is_same(value: Any, node: Node, owners: dict[int, Node]) -> bool:
    old = node.meta["val"]
    if not isinstance(value, torch.Tensor) or not isinstance(old, torch.Tensor):
        return fx_utils._is_fake_tensor_same(value, old, defaultdict(int))
    if value.dtype != old.dtype or not fx_utils._is_fake_tensor_same(
        value, old, defaultdict(int), check_storage=False
    ):
        return False
    if value.storage_offset() != old.storage_offset():
        return False
    now, then = fx_utils.get_storage(value), fx_utils.get_storage(old)
    return now == then or (now not in owners and owners.get(then) is node)


def updater(gm: GraphModule) -> Any:
    """What post_grad_passes keeps the values of a graph up to date with."""
    return Updater(gm) if _is_ours(gm) else fx_utils.FakeTensorUpdater(gm)


def _is_ours(gm: GraphModule) -> bool:
    """Whether a graph has spyre tensors, and no graphs inside: those have values of their own."""
    from torch._inductor.compile_fx import _get_subgraph_names

    return _has_spyre(gm.graph) and not list(_get_subgraph_names(gm))


def _has_spyre(graph: Graph) -> bool:
    values = (node.meta.get("val") for node in graph.nodes)
    return any_on_card(values)


# ---- From tracing to the passes after it ---------------------------------------------------------


class TracedGraphs(dict[Graph, Updater]):
    """Graphs of a compilation, as tracing left them."""


class Traced(CustomGraphPass):
    """The graph as tracing left it."""

    def __call__(self, graph: Graph) -> None:
        note_traced(graph)

    def uuid(self) -> Any:
        return "Traced"  # it changes nothing


def note_traced(graph: Graph) -> None:
    """Remember a graph as it was traced: every value in it is right."""
    gm = graph.owning_module
    if gm is not None and _is_ours(gm) and all(_has_value(node) for node in graph.nodes):
        current().get(TracedGraphs)[graph] = Updater(gm)


def _has_value(node: Node) -> bool:
    return node.op == "output" or "val" in node.meta


def bring_up_to_date(gm: GraphModule) -> bool:
    """Update a graph that was traced as it is now but for a few passes; False for any other."""
    since_then = current().get(TracedGraphs).pop(gm.graph, None)
    if since_then is None or since_then.gm is not gm:
        return False
    since_then.incremental_update()
    return all(_has_value(node) for node in gm.graph.nodes)


def known_values(_: Any, stock: Callable[..., Any]) -> tuple[Any, Callable[..., Any]]:
    """post_grad's updater, and the propagation before it."""

    def fake_tensor_prop(gm: Any, example_inputs: Any, *args: Any, **kwargs: Any) -> Any:
        mode = torch._guards.detect_fake_mode(example_inputs)
        if mode is not None:
            with V.set_fake_mode(mode), enable_python_dispatcher():
                if bring_up_to_date(gm):
                    return mode
        return stock(gm, example_inputs, *args, **kwargs)

    return updater, fake_tensor_prop
