"""Operations of the card that ATen does not have, as custom operators in the namespace `spyre`.

Each has a signature with a meaning that runs anywhere (so that it can be called eagerly and
compared) and a fake function for tracing. What they become when compiled is in registry.py and
decompositions.py.

Example: `torch.ops.spyre.exx2(x, 1 / 64, False)` has the shape of x without its last dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from torch_spyre.dtypes import FLOAT8_MAX
from torch_spyre.ops.fallbacks import register_fallback_default

F = torch.nn.functional


@custom_op("spyre::silu", mutates_args=())
def silu(input: Tensor) -> Tensor:
    return F.silu(input)


@silu.register_fake
def _(input: Tensor) -> Tensor:
    return torch.empty_like(input)


@custom_op("spyre::gelu", mutates_args=())
def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    return F.gelu(input, approximate=approximate)


@gelu.register_fake
def _(input: Tensor, approximate: str = "none") -> Tensor:
    return torch.empty_like(input)


@custom_op("spyre::softplus", mutates_args=())
def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    return F.softplus(input, beta, threshold)


@softplus.register_fake
def _(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    return torch.empty_like(input)


@custom_op("spyre::clamp", mutates_args=())
def clamp(input: Tensor, min: float | None = None, max: float | None = None) -> Tensor:
    return torch.clamp(input, min, max)


@clamp.register_fake
def _(input: Tensor, min: float | None = None, max: float | None = None) -> Tensor:
    return torch.empty_like(input)


@custom_op("spyre::logical_not", mutates_args=())
def logical_not(input: Tensor) -> Tensor:
    return torch.logical_not(input)


@logical_not.register_fake
def _(input: Tensor) -> Tensor:
    return torch.empty_like(input, dtype=torch.bool)


# ---- Tensors from nothing -----------------------------------------------------------------------


@custom_op("spyre::empty", mutates_args=())
def empty(size: list[int], device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty(size, dtype=dtype, device=device)


@empty.register_fake
def _(size: list[int], device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty(size, dtype=dtype, device=device)


@custom_op("spyre::constant", mutates_args=())
def constant(fill_value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A number as a 0-D tensor, which is what an operation of the card takes."""
    return torch.full((), fill_value, dtype=dtype, device=device)


@constant.register_fake
def _(fill_value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty((), dtype=dtype, device=device)


@custom_op("spyre::full", mutates_args=())
def full(
    size: list[int],
    fill_value: torch.types.Number,
    device: torch.device,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """torch.full, with a signature like that of `empty`."""
    return torch.full(size, fill_value, dtype=dtype, device=device)


@full.register_fake
def _(
    size: list[int],
    fill_value: torch.types.Number,
    device: torch.device,
    dtype: torch.dtype | None = None,
) -> Tensor:
    return torch.full(size, fill_value, dtype=dtype, device=device)


@custom_op("spyre::ones_scalar", mutates_args=())
def ones_scalar(device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """The number 1 as a 0-D tensor, of the default type if none is given."""
    return torch.ones((), dtype=dtype, device=device)


@ones_scalar.register_fake
def _(device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty((), dtype=dtype, device=device)


# ---- Layer normalisation ------------------------------------------------------------------------
# On the card the result of exx2 is a stick with mean and variance; elsewhere both are packed as a
# complex number would be: not possible in one real element, so eager calls need layer_norm.


@custom_op("spyre::exx2", mutates_args=())
def exx2(x: Tensor, exx2Scale: float, useZeroMean: bool) -> Tensor:
    raise RuntimeError(
        "spyre::exx2 exists in compiled graphs only: its result is a stick with two values; "
        "call torch.nn.functional.layer_norm instead"
    )


@exx2.register_fake
def _(x: Tensor, exx2Scale: float, useZeroMean: bool) -> Tensor:
    return x.new_empty(x.shape[:-1])


@custom_op("spyre::layernormscale", mutates_args=())
def layernormscale(x: Tensor, eps: float) -> Tensor:
    raise RuntimeError(
        "spyre::layernormscale exists in compiled graphs only: it reads a result of spyre::exx2; "
        "call torch.nn.functional.layer_norm instead"
    )


@layernormscale.register_fake
def _(x: Tensor, eps: float) -> Tensor:
    return torch.empty_like(x)


@custom_op("spyre::layernormnorm", mutates_args=())
def layernormnorm(
    x: Tensor, mean: Tensor, norm_mean: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    raise RuntimeError(
        "spyre::layernormnorm exists in compiled graphs only: it reads a result of spyre::exx2; "
        "call torch.nn.functional.layer_norm instead"
    )


@layernormnorm.register_fake
def _(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@custom_op("spyre::layer_norm", mutates_args=())
def layer_norm(
    x: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    return F.layer_norm(x, normalized_shape, weight, bias, eps)


@layer_norm.register_fake
def _(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@custom_op("spyre::rms_norm", mutates_args=())
def rms_norm(
    x: Tensor, normalized_shape: list[int], weight: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    return F.rms_norm(x, normalized_shape, weight, eps)


@rms_norm.register_fake
def _(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


# ---- Products and the largest -------------------------------------------------------------------


@custom_op("spyre::batched_matmul", mutates_args=())
def batched_matmul(x: Tensor, y: Tensor) -> Tensor:
    return torch.matmul(x, y)


@batched_matmul.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    return x.new_empty((*batch, x.shape[-2], y.shape[-1]))


@custom_op("spyre::product_float32", mutates_args=())
def product_float32(x: Tensor, y: Tensor) -> Tensor:
    """`x @ y` of matrices, with the float32 sums as they are."""
    return torch.mm(x.float(), y.float())


@product_float32.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    return x.new_empty((x.shape[0], y.shape[1]), dtype=torch.float32)


@custom_op("spyre::weighted_sum_float32", mutates_args=())
def weighted_sum_float32(x: Tensor, weight: Tensor) -> Tensor:
    """`(x * weight).sum(-2)` of (..., terms, channels) and (terms, channels), in float32."""
    return (x.float() * weight.float()).sum(-2)


@weighted_sum_float32.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-2], x.shape[-1]), dtype=torch.float32)


@custom_op("spyre::gathered_matmul", mutates_args=())
def gathered_matmul(x: Tensor, w: Tensor, rows: Tensor) -> Tensor:
    """Each row of x times the matrix of w that `rows` says."""
    return torch.bmm(x.unsqueeze(1), w[rows]).squeeze(1)


@gathered_matmul.register_fake
def _(x: Tensor, w: Tensor, rows: Tensor) -> Tensor:
    return x.new_empty((x.shape[0], w.shape[2]))


def _topk_shape(x: Tensor, k: int, dim: int) -> list[int]:
    shape = list(x.shape)
    shape[dim] = k
    return shape


@custom_op("spyre::topkvalue", mutates_args=())
def topkvalue(x: Tensor, k: int, dim: int) -> Tensor:
    return torch.topk(x, k, dim)[0]


@topkvalue.register_fake
def _(x: Tensor, k: int, dim: int) -> Tensor:
    return x.new_empty(_topk_shape(x, k, dim))


@custom_op("spyre::topkindex", mutates_args=())
def topkindex(x: Tensor, k: int, dim: int) -> Tensor:
    # Of equal values the first, as on the card; torch.topk takes any.
    return torch.sort(x, dim=dim, descending=True, stable=True)[1].narrow(dim, 0, k).contiguous()


@topkindex.register_fake
def _(x: Tensor, k: int, dim: int) -> Tensor:
    return x.new_empty(_topk_shape(x, k, dim), dtype=torch.int64)


@custom_op("spyre::bottomkvalue", mutates_args=())
def bottomkvalue(x: Tensor, k: int, dim: int) -> Tensor:
    return torch.topk(x, k, dim, largest=False)[0]


@bottomkvalue.register_fake
def _(x: Tensor, k: int, dim: int) -> Tensor:
    return x.new_empty(_topk_shape(x, k, dim))


@custom_op("spyre::bottomkindex", mutates_args=())
def bottomkindex(x: Tensor, k: int, dim: int) -> Tensor:
    return torch.sort(x, dim=dim, stable=True)[1].narrow(dim, 0, k).contiguous()


@bottomkindex.register_fake
def _(x: Tensor, k: int, dim: int) -> Tensor:
    return x.new_empty(_topk_shape(x, k, dim), dtype=torch.int64)


# ---- Sums of integers ---------------------------------------------------------------------------


@custom_op("spyre::running_sum", mutates_args=())
def running_sum(input: Tensor, triangle: Tensor) -> Tensor:
    """Of integers, along the last dimension; `triangle` has ones on and above its diagonal."""
    return torch.cumsum(input, -1, dtype=input.dtype)


@running_sum.register_fake
def _(input: Tensor, triangle: Tensor) -> Tensor:
    return torch.empty_like(input, memory_format=torch.contiguous_format)


# ---- Padding ------------------------------------------------------------------------------------


@custom_op("spyre::padded", mutates_args=())
def padded(x: Tensor, pad: list[int], value: float) -> Tensor:
    """`constant_pad_nd` with nothing that is cut off."""
    return torch.constant_pad_nd(x, pad, value)


@padded.register_fake
def _(x: Tensor, pad: list[int], value: float) -> Tensor:
    around = padding_by_dim(x.dim(), pad)
    return x.new_empty([n + a + b for n, (a, b) in zip(x.shape, around, strict=True)])


def padding_by_dim(dims: int, pad: Sequence[int]) -> list[tuple[int, int]]:
    """Before and after each dimension; PyTorch lists the last one first, and may stop early."""
    pairs = [(pad[i], pad[i + 1]) for i in range(len(pad) - 2, -1, -2)]
    return [(0, 0)] * (dims - len(pairs)) + pairs


# ---- Views --------------------------------------------------------------------------------------
# That ATen has not, or makes a copy for: a lowering reads through any index.


@custom_op("spyre::windows", mutates_args=())
def windows(x: Tensor, kernel: list[int], stride: list[int], dilation: list[int]) -> Tensor:
    """What a kernel sees at each of its places: (N, C, *spatial) as (N, *places, *kernel, C)."""
    for i, (k, s, d) in enumerate(zip(kernel, stride, dilation, strict=True)):
        x = x.unfold(2 + i, d * (k - 1) + 1, s)[..., ::d]
    return x.movedim(1, -1).contiguous()


@windows.register_fake
def _(x: Tensor, kernel: list[int], stride: list[int], dilation: list[int]) -> Tensor:
    return x.new_empty((x.shape[0], *window_places(x.shape[2:], kernel, stride, dilation),
                        *kernel, x.shape[1]))  # fmt: skip


def window_places(
    size: Sequence[Any], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> list[Any]:
    """How many windows there are along each dimension."""
    each = zip(size, kernel, stride, dilation, strict=True)
    return [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in each]


@custom_op("spyre::reordered", mutates_args=())
def reordered(x: Tensor, order: list[int], shape: list[int]) -> Tensor:
    """`x.permute(order).reshape(shape)`, which is a copy in ATen unless strides allow it."""
    return x.permute(order).reshape(shape).clone(memory_format=torch.contiguous_format)


@reordered.register_fake
def _(x: Tensor, order: list[int], shape: list[int]) -> Tensor:
    return x.new_empty(shape)


# ---- Copies -------------------------------------------------------------------------------------


@custom_op("spyre::restickify", mutates_args=())
def restickify(x: Tensor) -> Tensor:
    return x.clone()


@restickify.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@custom_op("spyre::overwrite_f", mutates_args=())
def overwrite_f(input: Tensor, output: Tensor, dims: list[int], offsets: list[int]) -> Tensor:
    result = output.clone()
    _window(result, input, dims, offsets).copy_(input)
    return result


@overwrite_f.register_fake
def _(input: Tensor, output: Tensor, dims: list[int], offsets: list[int]) -> Tensor:
    return torch.empty_like(output)


def _window(output: Tensor, input: Tensor, dims: list[int], offsets: list[int]) -> Tensor:
    for dim, offset in zip(dims, offsets, strict=True):
        output = output.narrow(dim, offset, input.shape[dim])
    return output


@custom_op("spyre::overwrite", mutates_args=("output",))
def overwrite(input: Tensor, output: Tensor, dims: list[int], offsets: list[int]) -> None:
    _window(output, input, dims, offsets).copy_(input)


@custom_op("spyre::put_rows", mutates_args=())
def put_rows(
    input: Tensor,
    size: list[int],
    stride: list[int],
    offset: int,
    indices: list[Tensor | None],
    values: Tensor,
) -> Tensor:
    """index_put into a part of a tensor, which is given as as_strided takes it."""
    return put_rows_(input.clone(), size, stride, offset, indices, values)


@put_rows.register_fake
def _(
    input: Tensor,
    size: list[int],
    stride: list[int],
    offset: int,
    indices: list[Tensor | None],
    values: Tensor,
) -> Tensor:
    return torch.empty_like(input)


def put_rows_(
    input: Tensor,
    size: list[int],
    stride: list[int],
    offset: int,
    indices: list[Tensor | None],
    values: Tensor,
) -> Tensor:
    torch.ops.aten.index_put_(input.as_strided(size, stride, offset), indices, values)
    return input


torch.library.define(
    "spyre::put_rows_",
    "(Tensor(a!) input, int[] size, int[] stride, int offset, Tensor?[] indices, Tensor values)"
    " -> Tensor(a!)",
)
torch.library.impl("spyre::put_rows_", "CompositeExplicitAutograd", put_rows_)


# spyre::copy_from_d2d is part of the C++ extension.
@torch.library.register_fake("spyre::copy_from_d2d")
def _(src: Tensor, dst: Tensor) -> None:
    return None


# ---- Types --------------------------------------------------------------------------------------


@custom_op("spyre::qfp8ch", mutates_args=())
def qfp8ch(input: Tensor) -> Tensor:
    return input.to(torch.float8_e4m3fn)


@qfp8ch.register_fake
def _(input: Tensor) -> Tensor:
    return torch.empty_like(input, dtype=torch.float8_e4m3fn)


@custom_op("spyre::quantize_fp8_with_scale", mutates_args=())
def quantize_fp8_with_scale(input: Tensor, scale: Tensor) -> Tensor:
    scaled = torch.clamp(input * torch.reciprocal(scale), -FLOAT8_MAX, FLOAT8_MAX)
    return scaled.to(torch.float8_e4m3fn)


@quantize_fp8_with_scale.register_fake
def _(input: Tensor, scale: Tensor) -> Tensor:
    return torch.empty_like(input, dtype=torch.float8_e4m3fn)


@custom_op("spyre::dequantize_fp8_with_scale", mutates_args=())
def dequantize_fp8_with_scale(input: Tensor, scale: Tensor) -> Tensor:
    return input.to(torch.float16) * scale


@dequantize_fp8_with_scale.register_fake
def _(input: Tensor, scale: Tensor) -> Tensor:
    return torch.empty_like(input, dtype=torch.float16)


# ---- On the host --------------------------------------------------------------------------------
# Their functions never see spyre tensors: `register_fallback_default` says what happens to those.


@custom_op("spyre::to_dtype_cpu", mutates_args=())
def to_dtype_cpu(input: Tensor, dtype: torch.dtype) -> Tensor:
    """A cast that the card does not have."""
    return input.to(dtype, copy=True)


@to_dtype_cpu.register_fake
def _(input: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty_like(input, dtype=dtype)


@custom_op("spyre::reshape_via_cpu", mutates_args=())
def reshape_via_cpu(input: Tensor, shape: list[int]) -> Tensor:
    return input.reshape(shape).clone(memory_format=torch.contiguous_format)


@reshape_via_cpu.register_fake
def _(input: Tensor, shape: list[int]) -> Tensor:
    return torch.empty_like(input.reshape(shape), memory_format=torch.contiguous_format)


@custom_op("spyre::unfold", mutates_args=())
def unfold(
    input: Tensor,
    kernel_size: list[int],
    dilation: list[int] | None = None,
    padding: list[int] | None = None,
    stride: list[int] | None = None,
) -> Tensor:
    """The windows of an image as columns, as torch.nn.functional.unfold gives them."""
    return F.unfold(
        input,
        tuple(kernel_size),
        tuple(dilation or (1, 1)),
        tuple(padding or (0, 0)),
        tuple(stride or (1, 1)),
    )


unfold.register_fake(unfold._init_fn)


@custom_op("spyre::max_dim_int64_fallback", mutates_args=())
def max_dim_int64_fallback(input: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    values, indices = torch.max(input, dim, keepdim)
    return values, indices


@custom_op("spyre::min_dim_int64_fallback", mutates_args=())
def min_dim_int64_fallback(input: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    values, indices = torch.min(input, dim, keepdim)
    return values, indices


@max_dim_int64_fallback.register_fake
@min_dim_int64_fallback.register_fake
def _(input: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    shape = list(input.shape)
    shape[dim : dim + 1 or None] = [1] if keepdim else []
    return input.new_empty(shape), input.new_empty(shape, dtype=torch.int64)


register_fallback_default(
    [
        to_dtype_cpu,
        reshape_via_cpu,
        unfold,
        max_dim_int64_fallback,
        min_dim_int64_fallback,
        running_sum,
    ]
)
