"""Optimizer steps on 16-bit weights, computed in float32 between load and store.

AdamW multiplies squares of gradients by 0.001 and divides by their root. Rounding to 16 bits after
each operation loses most of that; PyTorch's fused kernels and Inductor's for the CPU keep float32
from load to store. So does this pass, for a graph that is an optimizer step:

    exp_avg_sq * 0.999 + grad * grad * 0.001        with all but the result in float32

In: the FX graph. Changed are graphs that only update their inputs in place, element by element,
with operations that only optimizers use (`torch._foreach_...`, `addcdiv`).
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from torch_spyre.dtypes import DLFLOAT16_LEAST, SIXTEEN_BITS
from torch_spyre.logs import get_logger
from torch_spyre.on_card import is_on_card

aten, prims = torch.ops.aten, torch.ops.prims
_log = get_logger("spyre.inductor.passes")

_FOREACH = {
    f"aten::_foreach_{name}"
    for name in (
        "abs", "add", "addcdiv", "addcmul", "clamp_max", "clamp_min", "div", "exp", "lerp", "log",
        "maximum", "minimum", "mul", "neg", "pow", "reciprocal", "rsqrt", "sign", "sqrt", "sub",
    )
}  # fmt: skip
MARK = "spyre_optimizer_step"
_OTHERS = (aten.full.default, aten.clone.default, aten.copy_.default, prims.fma.default)


def compute_in_float32(graph: Graph) -> None:
    """Cast inputs of an optimizer step to float32, and results back."""
    if not _is_step(graph):
        return
    _log.info("the step of an optimizer is computed in float32")
    assert graph.owning_module is not None
    graph.owning_module.meta[MARK] = True
    short = {n: n.meta["val"].dtype for n in graph.nodes if _is_short(n)}
    wide: dict[Node, Node] = {}
    for node in list(graph.nodes):
        if node.op == "placeholder" or node.op == "get_attr":
            continue
        if node.op == "output":
            with graph.inserting_before(node):
                node.args = map_arg(node.args, lambda n: _rounded(graph, n, short.get(n)))
        elif node.target is aten.copy_.default:
            with graph.inserting_before(node):
                source = _not_lost(graph, node.args[1], short.get(node.args[0]))
                source = _rounded(graph, source, short.get(node.args[0]))
                node.args = (node.args[0], source, *node.args[2:])
        else:
            _widen(graph, node, wide)


def _is_step(graph: Graph) -> bool:
    nodes = graph.find_nodes(op="call_function", target=aten.copy_.default)
    stores = [n for n in nodes if n.args[0].op == "placeholder" and _is_short(n.args[0])]
    calls = [n for n in graph.nodes if n.op == "call_function"]
    names = [_name(n) for n in calls]
    typical = any(name in _FOREACH or name == "aten::addcdiv" for name in names)
    return bool(stores) and typical and all(map(_is_lane_by_lane, calls))


def _is_lane_by_lane(node: Node) -> bool:
    if node.target is operator.getitem or node.target in _OTHERS or _name(node) in _FOREACH:
        return True
    return (
        isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags
    )


def _name(node: Node) -> str:
    target = node.target
    return target._schema.name if isinstance(target, torch._ops.OpOverload) else ""


def _is_short(node: Node) -> bool:
    value = node.meta.get("val")
    return is_on_card(value) and value.dtype in SIXTEEN_BITS


def _widen(graph: Graph, node: Node, wide: dict[Node, Node]) -> None:
    """Compute a node from the widened forms of its inputs."""

    def widened(source: Node) -> Node:
        if not _is_short(source):
            return source
        if source not in wide:
            with graph.inserting_before(node):
                wide[source] = _cast(graph, source, torch.float32)
        return wide[source]

    node.args = map_arg(node.args, widened)
    node.kwargs = map_arg(node.kwargs, widened)
    if (
        node.target is aten.full.default
        and node.kwargs.get("dtype") in SIXTEEN_BITS
        and _is_short(node)
    ):
        node.kwargs = {**node.kwargs, "dtype": torch.float32}
    values = (n.meta["val"] for n in node.all_input_nodes)
    fakes = pytree.tree_leaves([*values, node.meta.get("val")])
    mode = next((f.fake_mode for f in fakes if hasattr(f, "fake_mode")), None)
    if mode is None:
        return
    args: Any = map_arg(node.args, lambda n: n.meta["val"])
    kwargs: Any = map_arg(node.kwargs, lambda n: n.meta["val"])
    assert callable(node.target)
    with mode:
        node.meta["val"] = node.target(*args, **kwargs)


def _not_lost(graph: Graph, node: Any, dtype: torch.dtype | None) -> Any:
    """A mean of squares whose root divides is stored as the least number that the card has where it
    is less: zero would divide by nothing but the next gradient."""
    if dtype is not torch.float16 or not isinstance(node, Node) or not _is_under_root(node):
        return node
    least = graph.call_function(aten.clamp_min.default, (node, DLFLOAT16_LEAST))
    least.meta.update(node.meta)
    return least


def _is_under_root(node: Node) -> bool:
    """Whether the root of a value is taken, maybe of its maximum with another one."""
    for user in node.users:
        name = _name(user).removeprefix("aten::").removeprefix("_foreach_")
        if name == "sqrt":
            return True
        if name == "maximum":
            results = [u for u in user.users if u.target is operator.getitem] or [user]
            if any(_is_under_root(result) for result in results):
                return True
    return False


def _rounded(graph: Graph, node: Any, dtype: torch.dtype | None) -> Any:
    """Cast stored and returned values back to their dtype."""
    if dtype is None or not isinstance(node, Node) or node.meta["val"].dtype == dtype:
        return node
    return _cast(graph, node, dtype)


def _cast(graph: Graph, node: Node, dtype: torch.dtype) -> Node:
    cast = graph.call_function(prims.convert_element_type.default, (node, dtype))
    cast.meta.update({k: v for k, v in node.meta.items() if k != "val"})
    with node.meta["val"].fake_mode:
        cast.meta["val"] = node.meta["val"].to(dtype)
    return cast
