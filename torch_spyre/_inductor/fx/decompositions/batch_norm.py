"""Batch normalisation with the statistics of a model: a factor and a term for each channel.

PyTorch's rule passes over the tensor four times, (x - mean) / sqrt(var + eps) * weight + bias. All
but x are vectors, so that twice is enough:

    factor = weight / sqrt(var + eps)        x * factor + (bias - mean * factor)

In float32, rounded once. Like `decompositions/__init__.py`, for spyre tensors only.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_spyre._inductor.fx.decompositions import register_spyre_decomposition
from torch_spyre.dtypes import FLOATS

aten = torch.ops.aten


@register_spyre_decomposition(aten._native_batch_norm_legit_no_training.default)
def batch_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    var: torch.Tensor,
    momentum: float,
    eps: float,
) -> Any:
    if x.dtype not in FLOATS or x.dim() < 2 or x.numel() == 0:
        return NotImplemented
    wide = mean.to(torch.float32)
    inverse = torch.rsqrt(var.to(torch.float32) + eps)
    factor = inverse if weight is None else inverse * weight.to(torch.float32)
    term = -(wide * factor) if bias is None else bias.to(torch.float32) - wide * factor
    shape = [-1, *[1] * (x.dim() - 2)]
    out = x.to(torch.float32) * factor.reshape(shape) + term.reshape(shape)
    # What backward needs; dead code elimination drops both in inference.
    return out.to(x.dtype), wide, inverse
