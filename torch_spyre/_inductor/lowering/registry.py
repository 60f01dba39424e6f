"""Registry of lowerings from ATen to LoopLevelIR, where the stock one does not fit the card.

`@register_spyre_lowering(op)` takes priority for tensors on spyre; a lowering may return None to
delegate to the stock one. Operations of the card appear in LoopLevelIR as
`spyre_ops.<name>`; SpyreOpFuncs has a method of that name.

    @register_spyre_lowering(torch.ops.spyre.clamp.default)
    def clamp(x, low, high):
        return pointwise(lambda v: spyre_ops.clamp(v, low, high), x)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor import lowering as inductor
from torch._inductor.ops_handler import DefaultHandler
from torch._inductor.virtualized import V, ops

from torch_spyre._inductor import state
from torch_spyre._inductor.capture.fingerprints import is_foreign
from torch_spyre._inductor.errors import Unsupported
from torch_spyre._inductor.fx.customops import window_places
from torch_spyre._inductor.operations.origins import is_view
from torch_spyre.dtypes import FLOATS, SIXTEEN_BITS
from torch_spyre.on_card import is_spyre
from torch_spyre.upstream.install import add_attribute

aten = torch.ops.aten
spyre = torch.ops.spyre


@dataclass
class Refusals:
    """Refusals of lowerings of a graph since the list was cleared."""

    problems: list[Unsupported] = field(default_factory=list)


_LOWERINGS: dict[torch._ops.OpOverload, Callable[..., Any]] = {}


def register_spyre_lowering(
    operations: torch._ops.OpOverload | Sequence[torch._ops.OpOverload],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Lower the given overloads with the decorated function when a tensor is on spyre."""
    overloads = [operations] if isinstance(operations, torch._ops.OpOverload) else list(operations)

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for op in overloads:
            if not isinstance(op, torch._ops.OpOverload):
                raise TypeError(
                    f"a lowering is for an overload such as torch.ops.aten.mm.default, got {op!r}"
                )
            _LOWERINGS[op] = function
            _gate(op)
        return function

    return register


def is_native(op: Any) -> bool:
    """Whether an operation has a lowering of ours."""
    return op in _LOWERINGS


def lowerings() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """All lowerings for spyre."""
    return _LOWERINGS


def restore_lowering(op: torch._ops.OpOverload, previous: Callable[..., Any] | None) -> None:
    """Undo `register_spyre_lowering`."""
    if previous is None:
        _LOWERINGS.pop(op, None)
    else:
        _LOWERINGS[op] = previous


def added_lowerings() -> dict[str, Callable[..., Any]]:
    """Lowerings from outside of the package, by the name of the operation."""
    return {str(op): f for op, f in _LOWERINGS.items() if is_foreign(f)}


def lower(op: torch._ops.OpOverload, args: Any, kwargs: Any) -> Any:
    """The result of our lowering of an operation; None delegates to the stock one."""
    return _LOWERINGS[op](*args, **kwargs)


def _gate(op: torch._ops.OpOverload) -> None:
    previous = inductor.user_lowerings.get(op)
    if getattr(previous, "_spyre_gate", False):
        return

    def lower(*args: Any, **kwargs: Any) -> Any:
        if op in _LOWERINGS and has_spyre(args, kwargs):
            try:
                result = _LOWERINGS[op](*args, **kwargs)
            except Unsupported as problem:
                # Inductor wraps exceptions and drops the cause.
                state.of(V.graph, Refusals).problems.append(problem)
                raise
            if result is not None:
                return result
        return None if previous is None else previous(*args, **kwargs)

    lower._spyre_gate = True  # type: ignore[attr-defined]
    inductor.user_lowerings[op] = lower


def has_spyre(args: Any, kwargs: Any) -> bool:
    """Whether a tensor among the arguments of a lowering is on spyre."""
    for arg in (*args, *kwargs.values()):
        if isinstance(arg, (list, tuple)):
            if has_spyre(arg, {}):
                return True
        elif isinstance(arg, ir.IRNode):
            is_tensor = isinstance(arg, (ir.TensorBox, ir.BaseView, ir.Buffer))
            if is_tensor and is_spyre(arg.get_device()):
                return True
        elif isinstance(arg, torch.device) and is_spyre(arg):
            return True
    return False


class _SpyreOps:
    """`spyre_ops.<name>(...)` in the body of a lowering; any name that SpyreOpFuncs has."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not hasattr(DefaultHandler, name):
            handler = "torch._inductor.ops_handler:DefaultHandler"
            add_attribute(handler, name, DefaultHandler._call_default(name))
        return getattr(ops, name)


spyre_ops = _SpyreOps()


def pointwise(
    body: Callable[..., Any], *inputs: ir.TensorBox, dtype: torch.dtype | None = None
) -> ir.TensorBox:
    """A pointwise node: `body` gets one value for each input (they are broadcast)."""
    tensors = inductor.broadcast_tensors(*inputs) if len(inputs) > 1 else list(inputs)
    loaders = [t.make_loader() for t in tensors]
    return ir.Pointwise.create(
        device=tensors[0].get_device(),
        dtype=dtype or tensors[0].get_dtype(),
        inner_fn=lambda index: body(*(load(index) for load in loaders)),
        ranges=list(tensors[0].get_size()),
    )


def reduction(
    kind: str,
    x: ir.TensorBox,
    dims: Sequence[int] | None,
    keepdim: bool,
    dtype: torch.dtype | None = None,
) -> ir.TensorBox:
    """A reduction node over the given dimensions."""
    size = x.get_size()
    rank = len(size)
    reduced = sorted({d % rank for d in dims}) if dims else list(range(rank))
    kept = [d for d in range(rank) if d not in reduced]
    load = x.make_loader()

    def inner(index: Any, rindex: Any) -> Any:
        point: list[Any] = [None] * rank
        outer = [index[d] for d in kept] if keepdim else list(index)
        for d, i in zip(kept, outer, strict=True):
            point[d] = i
        for d, i in zip(reduced, rindex, strict=True):
            point[d] = i
        return load(point)

    ranges = [1 if d in reduced else size[d] for d in range(rank)]
    result = ir.Reduction.create(
        device=x.get_device(),
        dst_dtype=dtype or x.get_dtype(),
        src_dtype=x.get_dtype(),
        inner_fn=inner,
        ranges=ranges if keepdim else [size[d] for d in kept],
        reduction_ranges=[size[d] for d in reduced],
        reduction_type=kind,
    )
    result.realize()
    return result


# ---- Pointwise operations of the card -----------------------------------------------------------


@register_spyre_lowering([spyre.silu.default, aten.silu.default])
def silu(x: ir.TensorBox) -> ir.TensorBox:
    return pointwise(lambda v: spyre_ops.silu(v), x)


@register_spyre_lowering([spyre.gelu.default, aten.gelu.default])
def gelu(x: ir.TensorBox, approximate: str = "none") -> ir.TensorBox:
    if approximate == "tanh":
        return pointwise(lambda v: spyre_ops.gelu_tanh(v), x)
    return pointwise(lambda v: spyre_ops.gelu(v), x)


@register_spyre_lowering([spyre.softplus.default, aten.softplus.default])
def softplus(x: ir.TensorBox, beta: float = 1.0, threshold: float = 20.0) -> ir.TensorBox:
    return pointwise(lambda v: spyre_ops.softplus(v, beta, threshold), x)


@register_spyre_lowering([spyre.clamp.default, aten.clamp.default, aten.hardtanh.default])
def clamp(x: ir.TensorBox, min: Any = None, max: Any = None) -> ir.TensorBox | None:
    if not x.get_dtype().is_floating_point:
        return _clamp_whole(x, min, max)
    low = -math.inf if min is None else float(min)
    high = math.inf if max is None else float(max)
    return pointwise(lambda v: spyre_ops.clamp(v, low, high), x)


def _clamp_whole(x: ir.TensorBox, low: Any, high: Any) -> ir.TensorBox | None:
    """Of integers between integers."""
    dtype = x.get_dtype()
    if dtype is torch.bool or any(type(n) not in (int, type(None)) for n in (low, high)):
        return None

    def body(v: Any) -> Any:
        if low is not None:
            v = ops.maximum(v, ops.constant(low, dtype))
        return v if high is None else ops.minimum(v, ops.constant(high, dtype))

    return pointwise(body, x)


@register_spyre_lowering(aten.add.Tensor)
def add(x: Any, y: Any, *, alpha: Any = 1) -> ir.TensorBox | None:
    """With a factor, of 16-bit tensors: in float32, as PyTorch, so that it is rounded once."""
    if alpha == 1 or not isinstance(x, ir.TensorBox) or not isinstance(y, ir.TensorBox):
        return None
    dtype = x.get_dtype()
    if dtype is not y.get_dtype() or dtype not in SIXTEEN_BITS:
        return None

    def body(a: Any, b: Any) -> Any:
        a, b = (ops.to_dtype(v, torch.float32) for v in (a, b))
        scaled = ops.mul(b, ops.constant(float(alpha), torch.float32))
        return ops.to_dtype(ops.add(a, scaled), dtype)

    return pointwise(body, x, y)


@register_spyre_lowering(aten.sub.Tensor)
def sub(x: Any, y: Any, *, alpha: Any = 1) -> ir.TensorBox | None:
    return None if alpha == 1 else add(x, y, alpha=-alpha)


@register_spyre_lowering(aten.clamp_min.default)
def clamp_min(x: ir.TensorBox, min: Any) -> ir.TensorBox | None:
    return clamp(x, min, None)


@register_spyre_lowering(aten.clamp_max.default)
def clamp_max(x: ir.TensorBox, max: Any) -> ir.TensorBox | None:
    return clamp(x, None, max)


@register_spyre_lowering(spyre.logical_not.default)
def logical_not(x: ir.TensorBox) -> ir.TensorBox:
    return pointwise(lambda v: ops.logical_not(v), x, dtype=torch.bool)


@register_spyre_lowering(aten.reciprocal.default)
def reciprocal(x: ir.TensorBox) -> ir.TensorBox | None:
    if not x.get_dtype().is_floating_point:
        return None
    return pointwise(lambda v: spyre_ops.reciprocal(v), x)


@register_spyre_lowering(spyre.restickify.default)
def restickify(x: ir.TensorBox) -> ir.TensorBox:
    return pointwise(lambda v: spyre_ops.restickify(v), x)


@register_spyre_lowering(spyre.constant.default)
def constant(fill_value: float, dtype: torch.dtype, device: torch.device) -> ir.TensorBox:
    return inductor.full([], fill_value, dtype=dtype, device=device)


@register_spyre_lowering(spyre.full.default)
def full(
    size: Sequence[Any],
    fill_value: complex,
    device: torch.device,
    dtype: torch.dtype | None = None,
) -> ir.TensorBox:
    dtype = dtype or torch.full((), fill_value, device="meta").dtype
    return inductor.full(size, fill_value, dtype=dtype, device=device)


@register_spyre_lowering(spyre.ones_scalar.default)
def ones_scalar(device: torch.device, dtype: torch.dtype | None = None) -> ir.TensorBox:
    return full([], 1, device, dtype or torch.get_default_dtype())


@register_spyre_lowering(spyre.empty.default)
def empty(
    size: Sequence[Any], device: torch.device, dtype: torch.dtype | None = None
) -> ir.TensorBox:
    return inductor.empty(size, dtype=dtype, device=device)


@register_spyre_lowering(spyre.qfp8ch.default)
def qfp8ch(x: ir.TensorBox) -> ir.TensorBox:
    return pointwise(lambda v: spyre_ops.qfp8ch(v), x, dtype=torch.float8_e4m3fn)


# ---- Reductions ---------------------------------------------------------------------------------


@register_spyre_lowering([aten.mean.dim, aten.mean.default])
def mean(
    x: ir.TensorBox, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> ir.TensorBox | None:
    if dtype is not None and dtype is not x.get_dtype():
        x = inductor.to_dtype(x, dtype)
    if not x.get_dtype().is_floating_point or len(x.get_size()) == 0:
        return None
    dims = [dim] if isinstance(dim, int) else dim
    return reduction("mean", x, dims, keepdim)


@register_spyre_lowering(spyre.exx2.default)
def exx2(x: ir.TensorBox, scale: float, use_zero_mean: bool) -> ir.TensorBox:
    if use_zero_mean:
        raise Unsupported("exx2 with useZeroMean=True is not implemented", op="spyre::exx2")
    return reduction("exx2", x, [-1], False)


@register_spyre_lowering(spyre.layernormscale.default)
def layernormscale(x: ir.TensorBox, eps: float) -> ir.TensorBox:
    return pointwise(lambda v: spyre_ops.layernormscale(v, eps), x)


@register_spyre_lowering(spyre.layernormnorm.default)
def layernormnorm(
    x: ir.TensorBox,
    mean: ir.TensorBox,
    scale: ir.TensorBox,
    weight: ir.TensorBox | None = None,
    bias: ir.TensorBox | None = None,
) -> ir.TensorBox:
    rows = [inductor.unsqueeze(t, -1) for t in (mean, scale)]
    if weight is None and bias is not None:
        weight = inductor.full_like(bias, 1)
    extra = [t for t in (weight, bias) if t is not None]
    return pointwise(lambda *v: spyre_ops.layernormnorm(*v), x, *rows, *extra)


@register_spyre_lowering(spyre.topkvalue.default)
def topkvalue(x: ir.TensorBox, k: int, dim: int) -> ir.TensorBox:
    return _topk("topkvalue", x, k, dim, x.get_dtype())


@register_spyre_lowering(spyre.topkindex.default)
def topkindex(x: ir.TensorBox, k: int, dim: int) -> ir.TensorBox:
    return _topk("topkindex", x, k, dim, torch.int64)


@register_spyre_lowering(spyre.bottomkvalue.default)
def bottomkvalue(x: ir.TensorBox, k: int, dim: int) -> ir.TensorBox:
    return _topk("bottomkvalue", x, k, dim, x.get_dtype())


@register_spyre_lowering(spyre.bottomkindex.default)
def bottomkindex(x: ir.TensorBox, k: int, dim: int) -> ir.TensorBox:
    return _topk("bottomkindex", x, k, dim, torch.int64)


def _topk(name: str, x: ir.TensorBox, k: int, dim: int, dtype: torch.dtype) -> ir.TensorBox:
    """A reduction whose result has k places along the reduced dimension."""
    size = list(x.get_size())
    dim %= len(size)
    load = x.make_loader()

    def inner(index: Any, rindex: Any) -> Any:
        point = list(index)
        point[dim] = rindex[0]
        return load(point)

    result = ir.TensorBox.create(
        ir.Reduction(
            device=x.get_device(),
            dtype=dtype,
            inner_fn=inner,
            ranges=[*size[:dim], k, *size[dim + 1 :]],
            reduction_ranges=[size[dim]],
            reduction_type=f"{name}:{dim}",
            src_dtype=x.get_dtype(),
            reduction_hint=ir.ReductionHint.DEFAULT,
        )
    )
    result.realize()
    return result


# ---- Products -----------------------------------------------------------------------------------


def matmul(
    x: ir.TensorBox, y: ir.TensorBox, dtype: torch.dtype | None = None
) -> ir.TensorBox | None:
    """`x @ y` over equal or broadcast batch dimensions, as a reduction over K.

    The result has the type of x unless another one is given (float8 gives 16 or 32 bits).
    """
    if x.get_dtype() != y.get_dtype() or not x.get_dtype().is_floating_point:
        return None
    x.realize()
    y.realize()
    xs, ys = list(x.get_size()), list(y.get_size())
    rank = max(len(xs), len(ys))
    if xs[-1] == 0:
        return None
    batch_x, batch_y = [1] * (rank - len(xs)) + xs[:-2], [1] * (rank - len(ys)) + ys[:-2]
    batch = [b if a == 1 else a for a, b in zip(batch_x, batch_y, strict=True)]
    load_x, load_y = x.make_loader(), y.make_loader()

    def point(tensor_batch: list[Any], own_rank: int, index: Any, last: list[Any]) -> list[Any]:
        outer = [0 if n == 1 else i for n, i in zip(tensor_batch, index)]
        return [*outer[rank - own_rank :], *last]

    def inner(index: Any, rindex: Any) -> Any:
        *outer, m, n = index
        (k,) = rindex
        return ops.dot(
            load_x(point(batch_x, len(xs), outer, [m, k])),
            load_y(point(batch_y, len(ys), outer, [k, n])),
        )

    result = ir.Reduction.create(
        device=x.get_device(),
        dst_dtype=dtype or x.get_dtype(),
        src_dtype=x.get_dtype(),
        inner_fn=inner,
        ranges=[*batch, xs[-2], ys[-1]],
        reduction_ranges=[xs[-1]],
        reduction_type="dot",
    )
    result.realize()
    return result


@register_spyre_lowering([aten.mm.default, aten.bmm.default, spyre.batched_matmul.default])
def product(x: ir.TensorBox, y: ir.TensorBox, **kwargs: Any) -> ir.TensorBox | None:
    return None if kwargs.get("out_dtype") else matmul(x, y)


@register_spyre_lowering(spyre.product_float32.default)
def product_float32(x: ir.TensorBox, y: ir.TensorBox) -> ir.TensorBox | None:
    return matmul(x, y, torch.float32)


@register_spyre_lowering(spyre.weighted_sum_float32.default)
def weighted_sum_float32(x: ir.TensorBox, weight: ir.TensorBox) -> ir.TensorBox:
    wide = [inductor.to_dtype(t, torch.float32) for t in (x, weight)]
    for box in wide:
        box.realize()
    product = inductor.mul(*wide)
    product.realize()
    total: ir.TensorBox = inductor.sum_(product, [len(x.get_size()) - 2])
    return total


@register_spyre_lowering(spyre.gathered_matmul.default)
def gathered_matmul(x: ir.TensorBox, w: ir.TensorBox, rows: ir.TensorBox) -> ir.TensorBox:
    """Row by row, with the matrix that `rows` says."""
    for tensor in (x, w, rows):
        tensor.realize()
    count, depth = x.get_size()
    experts, _, columns = w.get_size()
    load_x, load_w, load_rows = (t.make_loader() for t in (x, w, rows))

    def inner(index: Any, rindex: Any) -> Any:
        (row, column), (k,) = index, rindex
        chosen = ops.indirect_indexing(load_rows([row]), experts)
        return ops.dot(load_x([row, k]), load_w([chosen, k, column]))

    result = ir.Reduction.create(
        device=x.get_device(),
        dst_dtype=x.get_dtype(),
        src_dtype=x.get_dtype(),
        inner_fn=inner,
        ranges=[count, columns],
        reduction_ranges=[depth],
        reduction_type="dot",
    )
    result.realize()
    return result


@register_spyre_lowering(aten._scaled_mm.default)
def scaled_mm(
    x: ir.TensorBox,
    y: ir.TensorBox,
    scale_a: ir.TensorBox,
    scale_b: ir.TensorBox,
    bias: ir.TensorBox | None = None,
    scale_result: ir.TensorBox | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> ir.TensorBox | None:
    """float8 by float8, then the scales and the bias one after another."""
    fp8 = torch.float8_e4m3fn
    if x.get_dtype() is not fp8 or y.get_dtype() is not fp8 or scale_result is not None:
        return None
    dtype = out_dtype or torch.float16
    if dtype not in FLOATS:
        return None
    result = matmul(x, y, dtype)
    for scale in (scale_a, scale_b):
        result = inductor.mul(result, inductor.to_dtype(scale, dtype))
        result.realize()
    return result if bias is None else inductor.add(result, inductor.to_dtype(bias, dtype))


# ---- Views --------------------------------------------------------------------------------------


@register_spyre_lowering(spyre.windows.default)
def windows(
    x: ir.TensorBox, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> ir.TensorBox:
    """Elements lie in several windows; whoever cannot read them there copies them."""
    x.realize()
    rank = len(kernel)
    batch, channels, *size = x.get_size()
    places = window_places(size, kernel, stride, dilation)

    def reindex(index: Sequence[Any]) -> list[Any]:
        first, *inner, channel = index
        steps = zip(inner[:rank], inner[rank:], stride, dilation, strict=True)
        return [first, channel, *(place * s + tap * d for place, tap, s, d in steps)]

    return ir.TensorBox(ir.GenericView.create(x.data, [batch, *places, *kernel, channels], reindex))


@register_spyre_lowering(spyre.reordered.default)
def reordered(x: ir.TensorBox, order: Sequence[int], shape: Sequence[int]) -> ir.TensorBox:
    x.realize()
    return inductor.view(inductor.permute(x, list(order)), list(shape))


# ---- Pieces -------------------------------------------------------------------------------------


@register_spyre_lowering(aten.cat.default)
def cat(tensors: Sequence[ir.TensorBox], dim: int = 0) -> ir.TensorBox | None:
    """Each piece is written to its place; stock Inductor may choose among them by index instead."""
    tensors = [t for t in tensors if len(t.get_size()) != 1 or t.get_size()[0] != 0]
    if not tensors:
        return None
    dtypes = {t.get_dtype() for t in tensors}
    if len(dtypes) > 1:
        common = functools.reduce(torch.promote_types, dtypes)
        tensors = [inductor.to_dtype(t, common) for t in tensors]
    if len(tensors) == 1:
        return inductor.clone(tensors[0])
    node = V.graph.current_node
    if _is_written_later(node) or any(map(_needs_its_own_place, node.all_input_nodes)):
        tensors = [inductor.clone(t) for t in tensors]
    return ir.TensorBox(ir.ConcatKernel.create(list(tensors), dim % len(tensors[0].get_size())))


def _is_written_later(node: torch.fx.Node) -> bool:
    """Whether a cat, or one of its pieces, is changed in place by a later node.

    Inductor lets a piece live inside of the whole. It does not see that a write to the one changes
    the other, so that such pieces have to be copies (stock Inductor is wrong there, as of 2.13).
    """
    return any(_writes_to(alias) for start in (node, *node.all_input_nodes)
               for alias in _views_of(start))  # fmt: skip


_RESHAPES = {aten.view.default, aten.reshape.default, aten._unsafe_view.default}


def _needs_its_own_place(piece: torch.fx.Node) -> bool:
    """Whether a piece is an update, whose rows were found to be whole sticks where it lies now, or
    is read in another shape, which may be none any more between the rows of other pieces."""
    return "index" in str(piece.target) or any(user.target in _RESHAPES for user in piece.users)


def _views_of(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """A node and all that are views of it."""
    yield node
    for user in node.users:
        if is_view(user.target):
            yield from _views_of(user)


def _writes_to(node: torch.fx.Node) -> bool:
    """Whether a user of a node changes it."""
    for user in node.users:
        if not isinstance(user.target, torch._ops.OpOverload):
            continue
        for given, argument in zip(user.args, user.target._schema.arguments, strict=False):
            if given is node and argument.alias_info is not None and argument.alias_info.is_write:
                return True
    return False


# ---- Rows ---------------------------------------------------------------------------------------


@register_spyre_lowering([aten.index.Tensor, aten._unsafe_index.Tensor])
def index(x: ir.TensorBox, indices: Sequence[ir.TensorBox | None]) -> ir.TensorBox:
    """The card gathers rows of whole tensors: a view is copied first."""
    if not _is_whole(x):
        x = inductor.clone(x)
        x.realize()
    result: ir.TensorBox = inductor.lowerings[aten.index.Tensor](x, indices)
    return result


def _is_whole(x: ir.TensorBox) -> bool:
    """Whether a tensor is a buffer, with the dimensions that the buffer has."""
    x.realize()
    data = x.data
    if not isinstance(data, (ir.StorageBox, ir.ReinterpretView)):
        return False
    base = data.data
    while isinstance(base, (ir.StorageBox, ir.BaseView)):
        base = base.data
    own, there = data.get_layout(), base.get_layout()
    return (
        own.offset == there.offset
        and list(own.size) == list(there.size)
        and (list(own.stride) == list(there.stride))
    )
