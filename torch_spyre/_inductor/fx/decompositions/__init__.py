"""Rewrites of ATen operations into simpler ones, for spyre tensors only.

`@register_spyre_decomposition(op)` replaces an operation while the graph is traced. For tensors of
other devices nothing changes. Operations that PyTorch itself decomposes before Inductor sees them
(CompositeImplicitAutograd: linear, scaled_dot_product_attention, rms_norm) are intercepted before
autograd, and must be written with differentiable operations.

    @register_spyre_decomposition(torch.ops.aten.sign.default)
    def sign(x): ...

A decomposition may return NotImplemented to leave the operation to Inductor's rule, if there is
one, and WHOLE to leave it as it is.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor import decomposition as inductor

from torch_spyre._inductor.capture.fingerprints import is_foreign
from torch_spyre._inductor.fx import customops as _customops  # noqa: F401  torch.ops.spyre
from torch_spyre._inductor.fx import shape_memo
from torch_spyre.dtypes import FLOAT8_MAX, FLOATS, INTEGERS, SIXTEEN_BITS
from torch_spyre.on_card import any_on_card, is_spyre

aten = torch.ops.aten

_DECOMPOSITIONS: dict[torch._ops.OpOverload, Callable[..., Any]] = {}

spyre_decompositions: dict[torch._ops.OpOverload, Callable[..., Any]] = {}
"""What Inductor calls for these operations: our functions for spyre tensors, for all others what
there was before. Written into another table of decompositions, they leave other devices alone."""

WHOLE = object()
"""What a decomposition returns to keep an operation from being decomposed at all."""


def register_spyre_decomposition(
    ops: torch._ops.OpOverload | Sequence[torch._ops.OpOverload],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decompose the given overloads with the decorated function when a tensor is on spyre."""
    overloads = [ops] if isinstance(ops, torch._ops.OpOverload) else list(ops)

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for op in overloads:
            _check_overload(op)
            _DECOMPOSITIONS[op] = function
            if _is_composite(op):
                _catch_composite(op)
            _gate(op)
            spyre_decompositions[op] = inductor.decompositions[op]
        return function

    return register


def _check_overload(op: Any) -> None:
    if not isinstance(op, torch._ops.OpOverload):
        raise TypeError(
            f"a decomposition is for an overload such as torch.ops.aten.add.Tensor, got {op!r}"
        )


def _is_composite(op: torch._ops.OpOverload) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")


def _is_for_card(args: Any, kwargs: Any) -> bool:
    """Whether a call is the card's: the device it asks for, else a tensor among its arguments."""
    device = kwargs.get("device")
    if device is not None:
        return is_spyre(torch.device(device))
    return any_on_card((*args, *kwargs.values()))


def _gate(op: torch._ops.OpOverload) -> None:
    """Wrap Inductor's decomposition in a dispatch on the device."""
    previous = inductor.decompositions.get(op)
    if getattr(previous, "_spyre_gate", False):
        return

    def decompose(*args: Any, **kwargs: Any) -> Any:
        if _is_for_card(args, kwargs):
            function = _DECOMPOSITIONS.get(op)
            if function is not None and not _passed_over(op, function):
                result = function(*args, **kwargs)
                if result is WHOLE:
                    return NotImplemented
                if result is not NotImplemented:
                    return result
            if op in _WHOLE:
                return NotImplemented
        return NotImplemented if previous is None else previous(*args, **kwargs)

    if previous is not None:
        functools.update_wrapper(decompose, previous)
    decompose._spyre_gate = True  # type: ignore[attr-defined]
    inductor.decompositions[op] = decompose
    inductor.fast_random_decomps.cache_clear()


def _catch_composite(op: torch._ops.OpOverload) -> None:
    for key in (
        torch._C.DispatchKey.AutogradPrivateUse1,
        torch._C.DispatchKey.PrivateUse1,
    ):
        if key in op.py_kernels:
            continue

        def decompose(*args: Any, **kwargs: Any) -> Any:
            result = _DECOMPOSITIONS[op](*args, **kwargs)
            return op.decompose(*args, **kwargs) if result is NotImplemented else result

        def rule(*args: Any, **kwargs: Any) -> torch.Size | None:
            known = None if is_foreign(_DECOMPOSITIONS[op]) else shape_memo.RULES.get(op)
            return None if known is None else known(*args, **kwargs)

        op.py_impl(key)(shape_memo.memoise_metadata(decompose, lambda: _DECOMPOSITIONS[op], rule))


def _memoised(op: torch._ops.OpOverload) -> None:
    """PyTorch's own decomposition, with the shapes of its results memoised for Dynamo."""

    def decompose(*args: Any, **kwargs: Any) -> Any:
        return op.decompose(*args, **kwargs)

    for key in (torch._C.DispatchKey.AutogradPrivateUse1, torch._C.DispatchKey.PrivateUse1):
        op.py_impl(key)(
            shape_memo.memoise_metadata(decompose, lambda: None, shape_memo.RULES.get(op))
        )


_memoised(aten.linear.default)


# ---- Operations that stay whole ------------------------------------------------------------------

_WHOLE: dict[torch._ops.OpOverload, bool] = {}
"""Operations that are mapped or lowered directly; True: also where this package decomposes them."""


def keep_whole(op: torch._ops.OpOverload, over_package: bool = False) -> None:
    """Keep Inductor from decomposing an operation on spyre that we lower directly."""
    _WHOLE[op] = over_package or _WHOLE.get(op, False)
    _gate(op)


def release(op: torch._ops.OpOverload) -> None:
    """Undo `keep_whole`."""
    _WHOLE.pop(op, None)


def _passed_over(op: torch._ops.OpOverload, function: Callable[..., Any]) -> bool:
    return _WHOLE.get(op, False) and not is_foreign(function)


def owner_of_decomposition(op: torch._ops.OpOverload) -> str | None:
    """The module of the function that decomposes an operation on spyre."""
    function = _DECOMPOSITIONS.get(op)
    return None if function is None else function.__module__


def added_decompositions() -> dict[str, Callable[..., Any]]:
    """Decompositions from outside of the package, by the name of the operation."""
    return {str(op): f for op, f in _DECOMPOSITIONS.items() if is_foreign(f)}


# ---- Softmax and normalisation ------------------------------------------------------------------


@register_spyre_decomposition(aten._softmax.default)
def softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> Any:
    if not x.is_floating_point() or x.dtype is torch.float64 or x.numel() == 0:
        return NotImplemented
    if half_to_float:
        x = x.float()
    e = torch.exp(x - torch.amax(x, dim, keepdim=True))
    return e / torch.sum(e, dim, keepdim=True)


@register_spyre_decomposition(aten._log_softmax.default)
def log_softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> Any:
    if not x.is_floating_point() or x.dtype is torch.float64 or x.numel() == 0:
        return NotImplemented
    if half_to_float:
        x = x.float()
    shifted = x - torch.amax(x, dim, keepdim=True)
    return shifted - torch.log(torch.sum(torch.exp(shifted), dim, keepdim=True))


@register_spyre_decomposition(aten._safe_softmax.default)
def safe_softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
    if not x.is_floating_point() or x.dtype is torch.float64 or x.numel() == 0:
        return NotImplemented
    if dtype is not None:
        x = x.to(dtype)
    # A row that is masked out entirely gives zeros: its largest value is -inf, and 0 instead of it
    # makes every exponential and the sum 0. In any other row the largest value adds exp(0) = 1.
    top = torch.amax(x, dim, keepdim=True)
    top = torch.where(top == -math.inf, torch.zeros_like(top), top)
    e = torch.exp(x - top)
    total = torch.sum(e, dim, keepdim=True)
    return e / torch.clamp(total, min=1.0)


@register_spyre_decomposition(aten.native_layer_norm.default)
def native_layer_norm(
    x: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> Any:
    if len(normalized_shape) != 1 or x.dtype not in FLOATS:
        return NotImplemented
    if x.numel() == 0 or x.shape[-1] == 1:
        return NotImplemented
    spyre = torch.ops.spyre
    moments = spyre.exx2(x, 1.0 / x.shape[-1], False)
    scale = spyre.layernormscale(moments, eps)
    out = spyre.layernormnorm(x, moments, scale, weight, bias)
    # What backward needs; dead code elimination drops both in inference.
    return out, torch.mean(x, -1, keepdim=True), scale.unsqueeze(-1)


@register_spyre_decomposition(aten.rms_norm.default)
def rms_norm(
    x: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> Any:
    if len(normalized_shape) != 1 or x.dtype not in FLOATS:
        return NotImplemented
    if eps is None:
        eps = torch.finfo(x.dtype).eps
    out = x * torch.rsqrt(torch.mean(x * x, -1, keepdim=True) + eps)
    return out if weight is None else out * weight


@register_spyre_decomposition(torch.ops.spyre.layer_norm.default)
def spyre_layer_norm(
    x: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    result = native_layer_norm(x, normalized_shape, weight, bias, eps)
    return result if result is NotImplemented else result[0]


register_spyre_decomposition(torch.ops.spyre.rms_norm.default)(rms_norm)


@register_spyre_decomposition(aten.var_mean.correction)
def var_mean(
    x: torch.Tensor,
    dim: list[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Any:
    if x.dtype not in FLOATS or x.numel() == 0:
        return NotImplemented
    dims = list(range(x.dim())) if not dim else [d % max(x.dim(), 1) for d in dim]
    count = math.prod(x.shape[d] for d in dims)
    mean = torch.mean(x, dims, keepdim=True)
    centred = x - mean
    degrees = count - (1 if correction is None else correction)
    variance = torch.mean(centred * centred, dims, keepdim=keepdim)
    factor = count / degrees if degrees > 0 else math.inf
    variance = variance * factor
    return variance, mean if keepdim else _squeeze(mean, dims)


def _squeeze(x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    return x.squeeze(list(dims)) if x.dim() else x


@register_spyre_decomposition(aten.var.correction)
def var(*args: Any, **kwargs: Any) -> Any:
    result = var_mean(*args, **kwargs)
    return result if result is NotImplemented else result[0]


# ---- Products -----------------------------------------------------------------------------------


@register_spyre_decomposition([aten.addmm.default, aten.baddbmm.default])
def add_product(
    bias: torch.Tensor, x: torch.Tensor, y: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> Any:
    if not x.is_floating_point():
        alpha, beta = int(alpha), int(beta)  # as PyTorch does, before anything is multiplied
    product = torch.mm(x, y) if x.dim() == 2 else torch.bmm(x, y)
    if beta == 0:
        return product if alpha == 1 else product * alpha
    if beta == 1:
        return _scaled_sum(bias, product, alpha)
    if x.dtype in SIXTEEN_BITS:
        bias = bias.float()
    return _scaled_sum(bias * beta, product, alpha).to(x.dtype)


def _scaled_sum(x: torch.Tensor, y: torch.Tensor, factor: float) -> torch.Tensor:
    """x + factor * y. Of 16-bit numbers in float32, as PyTorch: it is rounded once."""
    if factor == 1:
        return x + y
    if y.dtype not in SIXTEEN_BITS:
        return x + y * factor
    dtype = torch.result_type(x, y)
    return (x.float() + y.float() * factor).to(dtype)


@register_spyre_decomposition([aten.mm.default, aten.bmm.default])
def product(x: torch.Tensor, y: torch.Tensor) -> Any:
    """Whole but for outer products. Inductor's rule says the same, when both are cast to float32:
    nodes that are traced for every product of a model, and dropped again."""
    return NotImplemented if x.shape[-1] == 1 or _as_reductions() else WHOLE


def _as_reductions() -> bool:
    """Whether the user wants matrix-vector products lowered as reductions."""
    return torch._inductor.config.coordinate_descent_tuning


@register_spyre_decomposition(aten.scaled_dot_product_attention.default)
def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    if query.dtype not in FLOATS or min(query.dim(), key.dim(), value.dim()) < 2:
        return NotImplemented
    if query.numel() == 0 or key.numel() == 0:
        return NotImplemented
    if enable_gqa and query.shape[-3] != key.shape[-3]:
        groups = query.shape[-3] // key.shape[-3]
        key, value = _repeat_heads(key, groups), _repeat_heads(value, groups)
    # On the query alone: keys are often a whole cache. Products are summed in float32, so nothing
    # overflows that would not overflow anyway.
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = torch.matmul(query * scale, key.transpose(-2, -1))
    if is_causal:
        shape = (query.shape[-2], key.shape[-2])
        mask = torch.full(shape, -math.inf, dtype=query.dtype, device=query.device).triu(1)
        scores = scores + mask
    masked = attn_mask is not None
    if attn_mask is not None:
        if attn_mask.dtype is torch.bool:
            zero = torch.zeros((), dtype=query.dtype, device=query.device)
            low = torch.full((), -math.inf, dtype=query.dtype, device=query.device)
            scores = scores + torch.where(attn_mask, zero, low)
        else:
            scores = scores + attn_mask
    # Only a mask given by the user can mask out a whole row.
    weights = aten._safe_softmax(scores, -1) if masked else torch.softmax(scores, -1)
    if dropout_p > 0:
        weights = torch.dropout(weights, dropout_p, True)
    return torch.matmul(weights, value)


def _repeat_heads(x: torch.Tensor, groups: int) -> torch.Tensor:
    """(..., heads, s, d) to (..., heads * groups, s, d), each head `groups` times."""
    shape = x.shape
    wide = x.unsqueeze(-3).expand(*shape[:-2], groups, *shape[-2:])
    return wide.reshape(*shape[:-3], shape[-3] * groups, *shape[-2:])


# ---- Pointwise ----------------------------------------------------------------------------------


@register_spyre_decomposition(aten.sign.default)
def sign(x: torch.Tensor) -> Any:
    if x.dtype not in (*FLOATS, *INTEGERS):
        return NotImplemented
    zero, one, less = (torch.full((), n, dtype=x.dtype, device=x.device) for n in (0, 1, -1))
    return torch.where(x > 0, one, torch.where(x < 0, less, zero))


@register_spyre_decomposition(aten.pow.Tensor_Scalar)
def pow_scalar(x: torch.Tensor, exponent: float) -> Any:
    if not x.is_floating_point() or x.dtype is torch.float64:
        return NotImplemented
    simple: dict[float, Callable[[], torch.Tensor]] = {
        0.5: lambda: torch.sqrt(x),
        1.0: lambda: x.clone(),
        2.0: lambda: x * x,
        3.0: lambda: x * x * x,
        -0.5: lambda: torch.rsqrt(x),
        -1.0: lambda: torch.reciprocal(x),
    }
    make = simple.get(float(exponent))
    return NotImplemented if make is None else make()


@register_spyre_decomposition(aten.constant_pad_nd.default)
def constant_pad(x: torch.Tensor, pad: list[int], value: float = 0) -> Any:
    """Crops where the padding is negative, then puts constants around the rest."""
    if x.numel() == 0:
        last = len(x.shape) - len(pad) // 2
        around = [pad[i] + pad[i + 1] for i in range(len(pad) - 2, -1, -2)]
        grown = [n + more for n, more in zip(x.shape[last:], around, strict=True)]
        return torch.full([*x.shape[:last], *grown], value, dtype=x.dtype, device=x.device)
    if x.dtype not in (*FLOATS, *INTEGERS, torch.bool):
        return NotImplemented
    for i in range(len(pad) // 2):
        dim = x.dim() - 1 - i
        before, after = pad[2 * i], pad[2 * i + 1]
        start, end = max(-before, 0), x.shape[dim] - max(-after, 0)
        if start or end != x.shape[dim]:
            x = torch.narrow(x, dim, start, end - start)
    around = [max(amount, 0) for amount in pad]
    if not any(around):
        return x.clone(memory_format=torch.contiguous_format)
    if not any(isinstance(n, torch.SymInt) for n in (*x.shape, *around)):
        return torch.ops.spyre.padded(x, around, value)
    for i in range(len(pad) // 2):  # until sizes are known: dynamic/padding_rules.py has a rule
        dim = x.dim() - 1 - i
        before, after = around[2 * i], around[2 * i + 1]
        pieces = [x]
        for width, at in ((before, 0), (after, len(pieces))):
            if width > 0:
                shape = [*x.shape[:dim], width, *x.shape[dim + 1 :]]
                fill = torch.full(shape, value, dtype=x.dtype, device=x.device)
                pieces.insert(0 if at == 0 else len(pieces), fill)
        if len(pieces) > 1:
            x = torch.cat(pieces, dim)
    return x


@register_spyre_decomposition(torch.ops.spyre.overwrite_f.default)
def overwrite_f(
    input: torch.Tensor, output: torch.Tensor, dims: list[int], offsets: list[int]
) -> Any:
    """Windows from the outermost to the innermost, then back."""
    windows = [output]
    for dim, offset in zip(dims, offsets, strict=True):
        windows.append(torch.narrow(windows[-1], dim, offset, input.shape[dim]))
    for dim, offset, window in reversed(list(zip(dims, offsets, windows[:-1], strict=True))):
        input = aten.slice_scatter(window, input, dim, offset, offset + input.shape[dim])
    return input if dims else input.clone()


# ---- fp8 ----------------------------------------------------------------------------------------


@register_spyre_decomposition(torch.ops.spyre.quantize_fp8_with_scale.default)
def quantize_fp8(x: torch.Tensor, scale: torch.Tensor) -> Any:
    return torch.ops.spyre.qfp8ch(torch.clamp(x * torch.reciprocal(scale), -FLOAT8_MAX, FLOAT8_MAX))


@register_spyre_decomposition(torch.ops.spyre.dequantize_fp8_with_scale.default)
def dequantize_fp8(x: torch.Tensor, scale: torch.Tensor) -> Any:
    return x.to(torch.float16) * scale
