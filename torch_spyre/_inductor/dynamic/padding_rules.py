"""Padding rules: one for each kind of operation, so that padding never reaches a valid element.

Pointwise operations keep them apart by themselves; a sum over a padded dimension needs zeros in the
padding, a maximum -inf (the identity of the reduction); the operands of a product are masked along
the contracted dimension; positions counted from the end are computed for each call. For an
operation without a rule `NotPaddable` says why, and the graph is specialised on the exact sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch.fx import Node
from torch.fx.node import map_arg

from torch_spyre._inductor.dynamic import index_rules, view_rules  # noqa: F401  register theirs
from torch_spyre._inductor.dynamic.padded_dims import Dim, Dims, NotPaddable, broadcast, dim
from torch_spyre._inductor.dynamic.rule_registry import (
    RULES,
    argument,
    closed,
    no_numbers,
    rule,
    shape_at,
    touches_open,
    value_of,
)
from torch_spyre._inductor.dynamic.specialize import Fixer, is_symbolic, number

aten, prims = torch.ops.aten, torch.ops.prims


def apply(fixer: Fixer, node: Any) -> None:
    """Apply the padding rule of a node."""
    target = node.target
    rule = RULES.get(target)
    if rule is not None:
        rule(fixer, node)
    elif not touches_open(fixer, node):
        fixer.copy(node)
        fixer.dims[node] = fixer.static_dims(node)
    elif _is_pointwise(target):
        _pointwise(fixer, node)
    else:
        raise NotPaddable(f"no rule for {target} with open sizes")


# ---- Pointwise -----------------------------------------------------------------------------------

_POINTWISE_TOO = {
    aten.clone.default, aten.copy.default, aten.copy_.default, aten._to_copy.default,
    aten.where.self, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default,
    aten.masked_fill.Scalar, aten.masked_fill.Tensor, aten.full_like.default,
    aten.zeros_like.default, aten.ones_like.default, aten.empty_like.default,
    prims.convert_element_type.default, prims.device_put.default,
}  # fmt: skip
_OWN_POINTWISE = ("silu", "gelu", "softplus", "clamp", "logical_not")


def _is_pointwise(target: Any) -> bool:
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded in target.tags:
        return False
    namespace, _, name = target._schema.name.partition("::")
    if namespace == "spyre":
        return name in _OWN_POINTWISE
    return torch.Tag.pointwise in target.tags or target in _POINTWISE_TOO


def _pointwise(fixer: Fixer, node: Any) -> None:
    schema = node.target._schema
    device = value_of(node).device
    operands: list[Dims] = []

    def operand(kind: Any, value: Any) -> Any:
        if not isinstance(value, Node):
            return value
        if is_symbolic(value_of(value)) and not fixer.is_open_number(value):
            return fixer.env[value]
        if not is_symbolic(value_of(value)):
            operands.append(fixer.dims[value])
            return fixer.env[value]
        if not isinstance(kind, torch.TensorType):
            raise NotPaddable(f"{node.target} with a number that depends on open sizes")
        dtype = torch.int64 if isinstance(value_of(value), torch.SymInt) else torch.float32
        return fixer.extra("value", fixer.expr(value_of(value)), 0, device, dtype)

    args = [operand(a.type, v) for a, v in zip(schema.arguments, node.args)]
    kwargs = {a.name: operand(a.type, node.kwargs[a.name])
              for a in schema.arguments if a.name in node.kwargs}  # fmt: skip
    fixer.put(node, fixer.emit(node.target, *args, **kwargs))
    if schema.is_mutable:
        target = node.args[0]
        assert isinstance(target, Node)
        if target.op != "placeholder":
            raise NotPaddable("a change of something that is no input")
        fixer.result.written.add(
            list(fixer.source.graph.find_nodes(op="placeholder")).index(target)
        )
        fixer.dims[node] = broadcast(operands[:1])
        if operands[1:] and [d.parts for d in broadcast(operands)] != [
            d.parts for d in operands[0]
        ]:
            raise NotPaddable("an input that is changed to something of other parts")
        return
    fixer.dims[node] = broadcast(operands)


# ---- Made of nothing -----------------------------------------------------------------------------


@rule(aten.full.default, aten.zeros.default, aten.ones.default, aten.empty.memory_format,
      aten.new_zeros.default, aten.new_ones.default, aten.new_full.default,
      aten.new_empty.default)  # fmt: skip
def _filled(fixer: Fixer, node: Any) -> None:
    if closed(fixer, node):
        return
    name = node.target._schema.name
    place = 1 if "::new_" in name else 0
    rest = node.args[place + 1 :]
    if any(isinstance(a, Node) and fixer.is_open_number(a) for a in rest):
        raise NotPaddable("a tensor that is filled with a number of open sizes")
    before = [fixer.env[a] for a in node.args[:place]]
    rest = map_arg(rest, lambda n: fixer.env[n])
    new = fixer.emit(node.target, *before, shape_at(fixer, node), *rest, **node.kwargs)
    fixer.put(node, new)
    fixer.dims[node] = fixer.whole(value_of(node), uniform=True)


@rule(aten.scalar_tensor.default)
def _scalar(fixer: Fixer, node: Any) -> None:
    if closed(fixer, node):
        return
    value = value_of(node)
    expr = fixer.expr(value_of(node.args[0]))
    fixer.put(node, fixer.extra("value", expr, 0, value.device, value.dtype))
    fixer.dims[node] = ()


@rule(prims.iota.default, aten.arange.start_step, aten.arange.default, aten.arange.start)
def _count(fixer: Fixer, node: Any) -> None:
    if closed(fixer, node):
        return
    if node.target is prims.iota.default:
        first, step = node.kwargs.get("start", 0), node.kwargs.get("step", 1)
    else:
        first = node.args[0] if len(node.args) > 1 else 0
        step = node.args[2] if len(node.args) > 2 else 1
    first, step = (fixer.env[n] if isinstance(n, Node) and not fixer.is_open_number(n) else n
                   for n in (first, step))  # fmt: skip
    if isinstance(first, Node) or isinstance(step, Node):
        raise NotPaddable("counting from a number that depends on open sizes")
    (length,) = shape_at(fixer, node)
    kwargs = dict(node.kwargs)
    if node.target is prims.iota.default:
        new = fixer.emit(node.target, length, **kwargs)
    else:
        new = fixer.emit(aten.arange.start_step, first, first + step * length, step, **kwargs)
    fixer.put(node, new)
    fixer.dims[node] = fixer.whole(value_of(node))


# ---- Reductions ----------------------------------------------------------------------------------


def _lowest(dtype: torch.dtype) -> Any:
    return float("-inf") if dtype.is_floating_point else _range(dtype)[0]


def _highest(dtype: torch.dtype) -> Any:
    return float("inf") if dtype.is_floating_point else _range(dtype)[1]


def _last(dtype: torch.dtype) -> Any:
    """What comes after everything in ascending order, or is equal to what comes last."""
    return float("nan") if dtype.is_floating_point else _range(dtype)[1]


def _range(dtype: torch.dtype) -> tuple[Any, Any]:
    if dtype is torch.bool:
        return False, True
    return torch.iinfo(dtype).min, torch.iinfo(dtype).max


_NEUTRAL: dict[Any, Callable[[torch.dtype], Any]] = {
    aten.sum.default: lambda t: False if t is torch.bool else 0,
    aten.sum.dim_IntList: lambda t: False if t is torch.bool else 0,
    aten.mean.default: lambda t: 0,
    aten.mean.dim: lambda t: 0,
    aten.prod.default: lambda t: True if t is torch.bool else 1,
    aten.prod.dim_int: lambda t: True if t is torch.bool else 1,
    aten.amax.default: _lowest,
    aten.amin.default: _highest,
    aten.max.dim: _lowest,
    aten.min.dim: _highest,
    aten.argmax.default: _lowest,
    aten.argmin.default: _highest,
    aten.any.default: lambda t: False,
    aten.any.dim: lambda t: False,
    aten.any.dims: lambda t: False,
    aten.all.default: lambda t: True,
    aten.all.dim: lambda t: True,
    aten.all.dims: lambda t: True,
}
_MEANS = (aten.mean.default, aten.mean.dim)
_PLACES = (aten.argmax.default, aten.argmin.default, aten.max.dim, aten.min.dim)


@rule(*_NEUTRAL)
def _reduction(fixer: Fixer, node: Any) -> None:
    if closed(fixer, node):
        return
    no_numbers(fixer, node)
    source = node.args[0]
    dims = fixer.dims[source]
    names = [a.name for a in node.target._schema.arguments]
    over = argument(node, 1, "dim") if "dim" in names else None
    keep = bool(argument(node, 2, "keepdim", False)) if "keepdim" in names else False
    over = [over] if isinstance(over, int) else list(over or range(len(dims)))
    over = [d % max(len(dims), 1) for d in over]
    if node.target in _PLACES and any(
        dims[d].is_open and (len(over) > 1 or len(dims[d].parts) > 1) for d in over
    ):
        raise NotPaddable("places among several dimensions or parts")
    new = fixer.env[source]
    fill = _NEUTRAL[node.target](new.meta["val"].dtype)
    new = fixer.masked(new, dims, over, fill)
    new = fixer.emit(node.target, new, *node.args[1:], **node.kwargs)
    if node.target in _MEANS and any(dims[d].is_open for d in over):
        count = sympy.Mul(*(dims[d].size for d in over))
        padded = number(count, fixer.sizes)
        value = new.meta["val"]
        ratio = fixer.extra("value", padded / count, 0, value.device, torch.float32)
        new = fixer.emit(aten.mul.Tensor, new, ratio)
    fixer.put(node, new)
    left = [Dim(()) if i in over else d for i, d in enumerate(dims) if keep or i not in over]
    result = tuple(left)
    fixer.dims[node] = (result, result) if isinstance(value_of(node), (list, tuple)) else result


_LARGEST = (torch.ops.spyre.topkvalue.default, torch.ops.spyre.topkindex.default)
_SMALLEST = (torch.ops.spyre.bottomkvalue.default, torch.ops.spyre.bottomkindex.default)


@rule(*_LARGEST, *_SMALLEST)
def _topk(fixer: Fixer, node: Any) -> None:
    if closed(fixer, node):
        return
    no_numbers(fixer, node)
    source, count, along = node.args
    dims = list(fixer.dims[source])
    along %= len(dims)
    if dims[along].is_open and len(dims[along].parts) > 1:
        raise NotPaddable("places among several parts")
    dtype = value_of(source).dtype
    fill = _lowest(dtype) if node.target in _LARGEST else _last(dtype)
    new = fixer.masked(fixer.env[source], tuple(dims), [along], fill)
    fixer.put(node, fixer.emit(node.target, new, count, along))
    dims[along] = dim([count])
    fixer.dims[node] = tuple(dims)


@rule(aten._softmax.default, aten._log_softmax.default)
def _softmax(fixer: Fixer, node: Any) -> None:
    source, along = node.args[0], node.args[1]
    dims = fixer.dims[source]
    along = along % max(len(dims), 1)
    new = fixer.masked(fixer.env[source], dims, [along] if dims else [], float("-inf"))
    fixer.put(node, fixer.emit(node.target, new, *node.args[1:]))
    fixer.dims[node] = dims


@rule(aten.cumsum.default, aten.cumprod.default)
def _cumulative(fixer: Fixer, node: Any) -> None:
    if closed(fixer, node):
        return
    dims = fixer.dims[node.args[0]]
    if dims and len(dims[node.args[1] % len(dims)].parts) > 1:
        raise NotPaddable("a cumulative sum over several parts")
    fixer.copy(node)  # what counts comes first
    fixer.dims[node] = dims


@rule(torch.ops.spyre.exx2.default)
def _moments(fixer: Fixer, node: Any) -> None:
    no_numbers(fixer, node)
    dims = fixer.dims[node.args[0]]
    if dims[-1].is_open:
        raise NotPaddable("moments over an open size")
    fixer.copy(node)
    fixer.dims[node] = (*dims[:-1], *fixer.static_dims(node)[len(dims) - 1 :])


@rule(torch.ops.spyre.layernormscale.default)
def _scale(fixer: Fixer, node: Any) -> None:
    fixer.copy(node)
    dims = fixer.dims[node.args[0]]
    rank = value_of(node).dim()
    fixer.dims[node] = (*dims[:rank], *fixer.static_dims(node)[len(dims) :])


@rule(torch.ops.spyre.layernormnorm.default)
def _normalised(fixer: Fixer, node: Any) -> None:
    if fixer.dims[node.args[0]][-1].is_open:
        raise NotPaddable("a norm over an open size")
    fixer.copy(node)
    fixer.dims[node] = fixer.dims[node.args[0]]


# ---- Products ------------------------------------------------------------------------------------


@rule(aten.mm.default, aten.bmm.default, torch.ops.spyre.batched_matmul.default)
def _product(fixer: Fixer, node: Any) -> None:
    x, y = node.args
    left, right = fixer.dims[x], fixer.dims[y]
    if left[-1].parts != right[-2].parts:
        raise NotPaddable("a product over sizes of other parts")
    a = fixer.masked(fixer.env[x], left, [len(left) - 1], 0)
    b = fixer.masked(fixer.env[y], right, [len(right) - 2], 0)
    fixer.put(node, fixer.emit(node.target, a, b))
    batch = broadcast([left[:-2], right[:-2]])
    fixer.dims[node] = (*batch, left[-2], right[-1])
