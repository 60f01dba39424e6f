"""Rewrites of the FX graph before it is lowered."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Graph, Node

from torch_spyre._inductor import config
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.logs import get_logger

aten = torch.ops.aten
_log = get_logger("spyre.inductor.passes")


# ---- What depends on nothing --------------------------------------------------------------------

_UNIFORM = (aten.full.default, aten.scalar_tensor.default)
_RANDOM = {torch.Tag.nondeterministic_seeded}


def fold_constants(graph: Graph) -> None:
    """Compute what depends on no input while compiling, and keep it on the card.

    A causal mask, for instance: full(-inf).triu(1). Tensors with one value everywhere stay as they
    are: a number is cheaper than a tensor.
    """
    values: dict[Node, torch.Tensor] = {}
    for node in graph.nodes:
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            value = _evaluate(node, values)
            if value is not None:
                values[node] = value
    gm = graph.owning_module
    assert gm is not None
    count = 0
    for node, value in values.items():
        users = [u for u in node.users if u not in values]
        if not users or _on(node) != DEVICE_NAME or node.target in _UNIFORM:
            continue
        if node.target in (aten.expand.default, aten.view.default) and _is_uniform(value):
            continue
        name = f"_spyre_constant{count}"
        while hasattr(gm, name):
            count += 1
            name = f"_spyre_constant{count}"
        with torch._subclasses.fake_tensor.unset_fake_temporarily():
            constant = value.contiguous().to(node.meta["val"].device)
        gm.register_buffer(name, constant, persistent=False)
        with graph.inserting_before(next(iter(graph.nodes))):
            attribute = graph.get_attr(name)
            attribute.meta.update(node.meta)
            attribute.meta["val"] = node.meta["val"].fake_mode.from_tensor(constant)
        for user in users:
            user.replace_input_with(node, attribute)
        _log.info("%s %s is computed while compiling", node.target, list(value.shape))
    graph.eliminate_dead_code()


def _on(node: Node) -> str:
    value = node.meta.get("val")
    return value.device.type if isinstance(value, torch.Tensor) else ""


def _is_uniform(value: torch.Tensor) -> bool:
    return value.numel() > 0 and bool((value == value.flatten()[0]).all())


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
    card takes any number of batch dimensions.
    """
    for node in list(graph.find_nodes(op="call_function", target=aten.bmm.default)):
        if _on(node) != DEVICE_NAME:
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
            product = graph.call_function(torch.ops.spyre.batched_matmul.default, tuple(sides))
            product.meta.update(node.meta)
            shape = (*batch, *_shape(node)[-2:])
            product.meta["val"] = node.meta["val"].new_empty(shape)
            flat = _view(graph, product, _shape(node))
        node.replace_all_uses_with(flat)
        graph.erase_node(node)
    graph.eliminate_dead_code()


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
