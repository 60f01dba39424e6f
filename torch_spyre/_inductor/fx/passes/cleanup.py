"""Passes over the FX graph: constant folding, dead code elimination, matmul and view clean-ups."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from torch_spyre._inductor import config
from torch_spyre.logs import get_logger
from torch_spyre.on_card import is_on_card

aten = torch.ops.aten
_log = get_logger("spyre.inductor.passes")


# ---- What depends on nothing --------------------------------------------------------------------

_UNIFORM = (aten.full.default, aten.scalar_tensor.default)
_RANDOM = {torch.Tag.nondeterministic_seeded}


def fold_constants(graph: Graph) -> None:
    """Compute what depends on no input while compiling, and keep it on the card.

    A causal mask, for instance: full(-inf).triu(1). Tensors with one value everywhere stay as they
    are: a number is cheaper than a tensor. What several layers compute is kept once.
    """
    values: dict[Node, torch.Tensor] = {}
    for node in graph.nodes:
        if node.op == "get_attr":
            value = _known_attribute(node)
        elif node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            value = _evaluate(node, values)
        else:
            continue
        if value is not None:
            values[node] = value
    _index_by_known_values(graph, values)
    _drop_neutral_masks(graph, values)
    known: dict[tuple[Any, ...], list[tuple[torch.Tensor, Node]]] = {}
    for node, value in values.items():
        users = [u for u in node.users if u not in values]
        if not users or not _on_card(node) or node.target in _UNIFORM or node.op == "get_attr":
            continue
        if node.target in (aten.expand.default, aten.view.default) and _is_uniform(value):
            continue
        kind = (value.dtype, value.shape, node.meta["val"].device, repr(node.meta.get("custom")))
        same = [n for other, n in known.setdefault(kind, []) if _have_same_bits(other, value)]
        if same:
            for user in users:
                user.replace_input_with(node, same[0])
            continue
        attribute = _constant(graph, value, node)
        for user in users:
            user.replace_input_with(node, attribute)
        known[kind].append((value, attribute))
        _log.info("%s %s is computed while compiling", node.target, list(value.shape))
    _erase_unused(graph, reversed(values))


def _constant(graph: Graph, value: torch.Tensor, like: Node) -> Node:
    """A tensor of the module, on the device of a node and with its place in the program."""
    gm = graph.owning_module
    assert gm is not None
    name = next(n for n in map("_spyre_constant{}".format, itertools.count()) if not hasattr(gm, n))
    with torch._subclasses.fake_tensor.unset_fake_temporarily():
        constant = value.contiguous().to(like.meta["val"].device)
    gm.register_buffer(name, constant, persistent=False)
    with graph.inserting_before(next(iter(graph.nodes))):
        attribute = graph.get_attr(name)
        attribute.meta.update(like.meta)
        mode = like.meta["val"].fake_mode
        attribute.meta["val"] = mode.from_tensor(constant, static_shapes=True)
    return attribute


def _known_attribute(node: Node) -> torch.Tensor | None:
    """A tensor that the program has made of numbers, `torch.tensor(0.5)`, unless something writes
    to it."""
    gm, meta = node.graph.owning_module, node.meta.get("val")
    value = getattr(gm, str(node.target), None)
    if not isinstance(value, torch.Tensor) or isinstance(value, torch.nn.Parameter):
        return None
    if not isinstance(meta, torch.Tensor):
        return None
    if value.numel() > config.max_folded_elements or any(node in changed_by(u) for u in node.users):
        return None
    with torch._subclasses.fake_tensor.unset_fake_temporarily():
        return value.detach().cpu()


def _have_same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Of two tensors of one type and shape. Numbers that are equal can differ: 0.0 and -0.0."""
    with torch._subclasses.fake_tensor.unset_fake_temporarily():
        # Not contiguous(), which leaves an expanded tensor of one element as it is, of stride 0.
        plain = (t.clone(memory_format=torch.contiguous_format) for t in (a, b))
        return torch.equal(*(t.reshape(-1).view(torch.uint8) for t in plain))


def _erase_unused(graph: Graph, nodes: Iterable[Node]) -> None:
    """Dead code elimination from given nodes on: faster than a pass over the whole graph."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop(0)
        if node.users or node._erased or node.op != "call_function" or node.is_impure():
            continue
        waiting += node.all_input_nodes
        graph.erase_node(node)


def _index_by_known_values(graph: Graph, values: dict[Node, torch.Tensor]) -> None:
    """x[rows, columns] with ranges that are known now is a view of x, not a gather."""
    for node in graph.find_nodes(op="call_function", target=aten.index.Tensor):
        source, indices = node.args
        if not _on_card(node) or any(n is not None and n not in values for n in indices):
            continue
        ranges = _ranges([None if n is None else values[n] for n in indices], _shape(source))
        if ranges is None:
            _index_one_dimension(graph, node, source, indices, values)
            continue
        with graph.inserting_before(node):
            view = _view_of_ranges(graph, source, ranges, len(_shape(node)))
        _log.info("aten.index %s is a view: its indices are ranges", list(_shape(node)))
        node.replace_all_uses_with(view)
        graph.erase_node(node)


def _index_one_dimension(
    graph: Graph, node: Node, source: Any, indices: Any, values: Mapping[Node, torch.Tensor]
) -> None:
    """x[b, rows, columns] with known numbers, of neighbouring dimensions, as rows of one dimension:
    the card gathers along one."""
    shape = _shape(source)
    places = [i for i, n in enumerate(indices) if n is not None]
    first, bounds = places[0], [shape[i] for i in places]
    if len(places) < 2 or places != list(range(first, first + len(places))):
        return
    with torch._subclasses.fake_tensor.unset_fake_temporarily():
        found = _rows([values[indices[i]] for i in places], bounds)
    if found is None:
        return
    rows, bounds = found
    merged = [*shape[:first], math.prod(bounds), *shape[first + len(bounds) :]]
    with graph.inserting_before(node):
        table = _call(graph, aten.reshape.default, source, merged)
    node.args = (table, [*[None] * first, _constant(graph, rows, node)])


def _rows(
    indices: Sequence[torch.Tensor], bounds: list[int]
) -> tuple[torch.Tensor, list[int]] | None:
    """Several indices as one, and the dimensions that it indexes."""
    for t, n in zip(indices, bounds):
        if t.dtype is torch.bool or t.numel() == 0 or t.min() < -n or t.max() >= n:
            return None  # the operation itself says what is wrong
    positive = [torch.where(t < 0, t + n, t).long() for t, n in zip(indices, bounds)]
    tensors = list(torch.broadcast_tensors(*positive))
    while len(tensors) > 1 and _takes_all(tensors, bounds[len(tensors) - 1]):
        tensors = [t[..., 0] for t in tensors[:-1]]  # whole rows
    bounds = bounds[: len(tensors)]
    rows = torch.zeros_like(tensors[0])
    for t, n in zip(tensors, bounds):
        rows = rows * n + t
    return rows, bounds


def _takes_all(tensors: Sequence[torch.Tensor], bound: int) -> bool:
    """Whether the last index counts along its last dimension, where the others stay as they are."""
    *others, last = tensors
    if (
        last.dim() == 0
        or last.shape[-1] != bound
        or not torch.equal(last, torch.arange(bound).expand(last.shape))
    ):
        return False
    return all(torch.equal(t, t[..., :1].expand(t.shape)) for t in others)


@dataclass(frozen=True)
class _Range:
    """A constant index tensor as a range of the indexed dimension."""

    start: int
    step: int
    size: int
    place: int
    """The dimension of the indices along which it runs; -1: one element."""


def _ranges(indices: list[torch.Tensor | None], shape: tuple[int, ...]) -> list[_Range] | None:
    """One range for each indexed dimension, if they are the leading ones and run apart."""
    tensors = [i for i in indices if i is not None]
    if len(tensors) != len(indices) or any(i.dtype is torch.bool for i in tensors):
        return None
    rank = max(i.dim() for i in tensors)
    found: list[_Range] = []
    for index, bound in zip(tensors, shape):
        wide = [d for d, n in enumerate(index.shape) if n > 1]
        numbers = index.flatten().tolist()
        if len(wide) > 1 or not numbers:
            return None
        numbers = [n + bound if n < 0 else n for n in numbers]
        step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
        end = numbers[0] + step * len(numbers)
        if step < 1 or numbers != list(range(numbers[0], end, step)):
            return None
        if numbers[0] < 0 or numbers[-1] >= bound:
            return None  # the operation itself says what is wrong
        place = wide[0] + rank - index.dim() if wide else -1
        found.append(_Range(numbers[0], step, len(numbers), place))
    places = [r.place for r in found if r.place >= 0]
    return found if len(places) == len(set(places)) else None


def _view_of_ranges(graph: Graph, source: Any, ranges: list[_Range], rank: int) -> Node:
    """The view of `source` that the ranges say; the dimensions of the indices come first."""
    view = source
    for dim, r in enumerate(ranges):
        end = r.start + r.step * (r.size - 1) + 1
        if (r.start, r.size) != (0, _shape(view)[dim]):
            view = _call(graph, aten.slice.Tensor, view, dim, r.start, end, r.step)
    rest = list(range(len(ranges), len(_shape(source))))
    moving = sorted(
        (d for d, r in enumerate(ranges) if r.place >= 0), key=lambda d: ranges[d].place
    )
    still = [d for d, r in enumerate(ranges) if r.place < 0]
    order = [*still, *moving, *rest]
    if order != sorted(order):
        view = _call(graph, aten.permute.default, view, order)
    for _ in still:
        view = _call(graph, aten.squeeze.dim, view, 0)
    places = {ranges[d].place for d in moving}
    for place in range(rank - len(rest)):
        if place not in places:
            view = _call(graph, aten.unsqueeze.default, view, place)
    return view


def _call(graph: Graph, target: torch._ops.OpOverload, source: Node, *args: Any) -> Node:
    node = graph.call_function(target, (source, *args))
    node.meta.update(source.meta)
    node.meta["val"] = target(source.meta["val"], *args)
    return node


_NEUTRAL = {
    aten.bitwise_and.Tensor: True,
    aten.logical_and.default: True,
    aten.bitwise_or.Tensor: False,
    aten.logical_or.default: False,
}


def _drop_neutral_masks(graph: Graph, values: dict[Node, torch.Tensor]) -> None:
    """`mask & all true` is the mask: transformers joins masks that say nothing."""
    for target, neutral in _NEUTRAL.items():
        for node in graph.find_nodes(op="call_function", target=target):
            if node in values or not _on_card(node):
                continue
            for known, other in (node.args, node.args[::-1]):
                value = values.get(known)
                if value is None or value.dtype is not torch.bool or not _is_uniform(value):
                    continue
                if bool(value.flatten()[0]) is not neutral or _dtype(other) is not torch.bool:
                    continue
                with graph.inserting_before(node):
                    same = _shape(other) == _shape(node)
                    wide = (
                        other
                        if same
                        else _call(graph, aten.expand.default, other, list(_shape(node)))
                    )
                node.replace_all_uses_with(wide)
                graph.erase_node(node)
                break


def _dtype(node: Any) -> torch.dtype | None:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value.dtype if isinstance(value, torch.Tensor) else None


def _on_card(node: Node) -> bool:
    return is_on_card(node.meta.get("val"))


def _is_uniform(value: torch.Tensor) -> bool:
    return value.numel() > 0 and bool((value == value.flatten()[0]).all())


def _shares_elements(tensor: torch.Tensor) -> bool:
    """Whether windows of a tensor overlap; one that is expanded has each element once."""
    steps = sorted((st, n) for st, n in zip(tensor.stride(), tensor.shape) if st > 0 and n > 1)
    reach = 0
    for stride, size in steps:
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def _evaluate(node: Node, values: dict[Node, torch.Tensor]) -> torch.Tensor | None:
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    meta = node.meta.get("val")
    if not isinstance(meta, torch.Tensor) or target._schema.is_mutable:
        return None
    if _RANDOM & set(target.tags) or torch.Tag.data_dependent_output in target.tags:
        return None
    if any(not isinstance(s, int) for s in meta.shape) or meta.numel() > config.max_folded_elements:
        return None
    if any(n not in values for n in node.all_input_nodes):
        return None
    if _shares_elements(meta):  # as an unfold; what it is a view of is folded
        return None
    if target.namespace not in ("aten", "prims"):
        return None
    if target in (aten.empty.memory_format, aten.empty_strided.default):
        return None

    def host(argument: Any) -> Any:
        if isinstance(argument, Node):
            return values[argument]
        return torch.device("cpu") if isinstance(argument, torch.device) else argument

    args = torch.fx.map_arg(node.args, lambda n: values[n])
    kwargs = dict(torch.fx.map_arg(node.kwargs, lambda n: values[n]))
    args = torch.utils._pytree.tree_map(host, args)
    kwargs = {k: host(v) for k, v in kwargs.items()}
    if any(a.name == "device" for a in target._schema.arguments):
        kwargs["device"] = torch.device("cpu")
    if target is torch.ops.prims.device_put.default:
        return values[node.args[0]]  # type: ignore[index]
    with torch._subclasses.fake_tensor.unset_fake_temporarily():
        result = target(*args, **kwargs)
    same = isinstance(result, torch.Tensor) and result.dtype == meta.dtype
    return result if same and result.shape == meta.shape else None


# ---- Products over several batch dimensions -----------------------------------------------------

_RESHAPES = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)


def unflatten_matmul(graph: Graph) -> None:
    """bmm over collapsed batch dimensions becomes batched_matmul over the original ones.

    torch.matmul collapses (b, h, s, d) to (b*h, s, d), which copies whatever is not contiguous. The
    card takes any number of batch dimensions. Heads that are repeated for groups of queries are
    not: the groups become a batch dimension that the operand does not have.
    """
    for node in list(graph.find_nodes(op="call_function", target=aten.bmm.default)):
        if not _on_card(node):
            continue
        sources = [_uncollapsed(arg) for arg in node.args]
        batch = next((_shape(s)[:-2] for s in sources if s is not None), None)
        if batch is None or len(batch) < 2:
            continue
        sides: list[Node] = []
        with graph.inserting_before(node):
            for argument, source in zip(node.args, sources, strict=True):
                side = source
                if side is None or tuple(_shape(side)[:-2]) != tuple(batch):
                    side = _view(graph, argument, (*batch, *_shape(argument)[-2:]))
                sides.append(side)
            sides, batch = _without_repeated_heads(graph, sides, batch)
            product = graph.call_function(torch.ops.spyre.batched_matmul.default, tuple(sides))
            product.meta.update(node.meta)
            shape = (*batch, *_shape(node)[-2:])
            product.meta["val"] = node.meta["val"].new_empty(shape)
            flat = _view(graph, product, _shape(node))
        node.replace_all_uses_with(flat)
        operands = node.all_input_nodes
        graph.erase_node(node)
        _erase_unused(graph, operands)


_VIEWS = (
    *_RESHAPES,
    aten.permute.default,
    aten.transpose.int,
    aten.t.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
)
_PRODUCERS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.add.Tensor)


def scale_before_views(graph: Graph) -> None:
    """A product that is viewed and then multiplied by a number is multiplied first.

    Heads are views that often need a copy into another layout. Next to the matrix product the
    multiplication is fused into its epilogue; after the copy it is a step of its own.
    """
    for node in list(graph.find_nodes(op="call_function", target=aten.mul.Tensor)):
        source, factor = node.args
        if not _on_card(node) or not isinstance(source, Node):
            continue
        if not isinstance(factor, (int, float)) or isinstance(factor, bool):
            continue
        views: list[Node] = []
        made = source
        while made.target in _VIEWS and len(made.users) == 1 and isinstance(made.args[0], Node):
            views.append(made)
            made = made.args[0]
        is_ours = made.target in _PRODUCERS and len(made.users) == 1
        if not views or not is_ours or _dtype(made) != _dtype(node):
            continue
        with graph.inserting_after(made):
            scaled = graph.call_function(aten.mul.Tensor, (made, factor))
        scaled.meta.update(node.meta)
        scaled.meta["val"] = torch.empty_like(made.meta["val"])
        views[-1].replace_input_with(made, scaled)
        node.replace_all_uses_with(source)
        graph.erase_node(node)


def _without_repeated_heads(
    graph: Graph, sides: list[Node], batch: tuple[int, ...]
) -> tuple[list[Node], tuple[int, ...]]:
    """Operands over (b, heads, groups): what was repeated for the groups is 1 there."""
    if len(batch) != 2:
        return sides, batch
    single = [_before_repeat(graph, side) for side in sides]
    found = [_shape(s)[1] for s in single if s is not None]
    if len(set(found)) != 1:
        return sides, batch
    grouped = (batch[0], found[0], batch[1] // found[0])
    wide = [
        _view(graph, side, (*grouped, *_shape(side)[-2:])) if one is None else one
        for side, one in zip(sides, single, strict=True)
    ]
    return wide, grouped


def _before_repeat(graph: Graph, node: Node) -> Node | None:
    """(b, heads, 1, s, d), if the node is that with each head repeated, as (b, heads * n, s, d)."""
    if node.op != "call_function" or not isinstance(node.args[0], Node):
        return None
    source = node.args[0]
    if node.target is aten.expand.default and _shape(source) == _shape(node):
        return _before_repeat(graph, source)
    if node.target is aten.permute.default and list(node.args[1]) == [0, 1, 3, 2]:  # type: ignore[arg-type]
        inner = _before_repeat(graph, source)
        return inner and _call(graph, aten.permute.default, inner, [0, 1, 2, 4, 3])
    if node.target not in _RESHAPES or len(_shape(node)) != 4:
        return None
    if source.target is aten.clone.default:
        source = source.args[0]  # type: ignore[assignment]
    if source.target is not aten.expand.default or len(_shape(source)) != 5:
        return None
    b, heads, groups, *rest = _shape(source)
    one = source.args[0]
    assert isinstance(one, Node)
    if _shape(node) != (b, heads * groups, *rest) or _shape(one) != (b, heads, 1, *rest):
        return None
    return one


def _shape(node: Any) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def _view(graph: Graph, node: Any, shape: tuple[int, ...]) -> Node:
    view = graph.call_function(aten.reshape.default, (node, list(shape)))
    view.meta.update(node.meta)
    view.meta["val"] = node.meta["val"].reshape(shape)
    return view


def _uncollapsed(node: Any) -> Node | None:
    """What an operand of bmm was before its batch dimensions were collapsed."""
    if node.op != "call_function" or node.target not in _RESHAPES:
        return None
    source = node.args[0]
    # The collapse copies what is not contiguous; the original will do.
    if source.op == "call_function" and source.target is aten.clone.default:
        source = source.args[0]
    if not isinstance(source.meta.get("val"), torch.Tensor):
        return None
    shape, flat = _shape(source), _shape(node)
    if len(shape) < 4 or shape[-2:] != flat[-2:] or math.prod(shape[:-2]) != flat[0]:
        return None
    return source


# ---- Before AOTAutograd -------------------------------------------------------------------------


def replace_idle_expands(model: torch.fx.GraphModule) -> None:
    """`x.expand(x.shape)` becomes a plain view.

    A write to an expanded view is traced as x + (written - x), since that is what it would be if
    elements lay on top of each other. Nothing is expanded where this is legal, and on the card the
    difference is rounded."""
    changed = False
    for node in list(model.graph.nodes):
        is_expand = node.op == "call_method" and node.target in ("expand", "expand_as")
        given = node.args[0] if is_expand and node.args else None
        if not isinstance(given, torch.fx.Node):
            continue
        before, after = (n.meta.get("example_value") for n in (given, node))
        if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
            continue
        if before.shape == after.shape and is_on_card(before):
            with model.graph.inserting_before(node):
                view = model.graph.call_method("view_as", (given, given))
            view.meta = dict(node.meta)
            node.replace_all_uses_with(view)
            model.graph.erase_node(node)
            changed = True
    if changed:
        model.recompile()


# ---- Inputs that the graph changes ---------------------------------------------------------------


def count_last(graph: Graph) -> None:
    """Integers that an input is changed to at the end of a graph are computed there, if they depend
    on inputs alone. Layers count the tokens that they have seen: without that they are equal."""
    for change in graph.find_nodes(op="call_function", target=aten.copy_.default):
        value = change.args[1]
        if not isinstance(value, Node) or value.op != "call_function" or len(value.users) > 1:
            continue
        made = value.meta.get("val")
        if not isinstance(made, torch.Tensor) or made.dtype.is_floating_point:
            continue
        inputs = value.all_input_nodes
        users = [user for node in inputs for user in node.users if node in changed_by(user)]
        if all(node.op == "placeholder" for node in inputs) and set(users) <= {change}:
            change.prepend(value)


def changed_by(node: Node) -> list[Node]:
    """The nodes whose memory an operation changes."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.is_mutable:
        return []
    found = []
    for number, argument in enumerate(target._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        given = node.kwargs.get(argument.name)
        if number < len(node.args):
            given = node.args[number]
        values = given if isinstance(given, (tuple, list)) else [given]
        found += [value for value in values if isinstance(value, Node)]
    return found
