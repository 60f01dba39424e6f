"""Rewrites for what training adds: losses over classes and the gradients of softmax and tables.

PyTorch writes these with indices: the loss of a row is picked by its class, rows of a table's
gradient are added up where the indices say. The card has neither, but it compares and multiplies:

    classes == arange(C)            a mask with one true element in each row
    sum(where(mask, x, 0), 1)       picks; no rounding, the others are zeros
    mask.t() @ gradients            adds up rows, in float32, rounded once

Like `decompositions.py`, for spyre tensors only.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_spyre._inductor import config
from torch_spyre._inductor.fx.decompositions import register_spyre_decomposition
from torch_spyre.dtypes import FLOATS

aten = torch.ops.aten
_MEAN, _SUM = 1, 2  # of at::Reduction


@register_spyre_decomposition(aten._softmax_backward_data.default)
def softmax_backward(
    grad: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype
) -> Any:
    if output.dtype not in FLOATS or output.numel() == 0:
        return NotImplemented
    weighted = grad * output
    return (weighted - output * weighted.sum(dim, keepdim=True)).to(input_dtype)


@register_spyre_decomposition(aten._log_softmax_backward_data.default)
def log_softmax_backward(
    grad: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype
) -> Any:
    if output.dtype not in FLOATS or output.numel() == 0:
        return NotImplemented
    return (grad - torch.exp(output) * grad.sum(dim, keepdim=True)).to(input_dtype)


def _is_class(target: torch.Tensor, classes: int) -> torch.Tensor:
    """True at the class of each element, along a new last dimension."""
    return target.unsqueeze(-1) == torch.arange(classes, device=target.device, dtype=target.dtype)


def _is_loss_over_classes(x: torch.Tensor, target: torch.Tensor) -> bool:
    return x.dim() in (1, 2) and x.dtype in FLOATS and x.numel() > 0 and target.numel() > 0


@register_spyre_decomposition(aten.nll_loss_forward.default)
def nll_loss_forward(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
) -> Any:
    if not _is_loss_over_classes(x, target):
        return NotImplemented
    ignored = target == ignore_index
    counts = _is_class(target, x.shape[-1]) & ~ignored.unsqueeze(-1)
    weights = counts.to(x.dtype) if weight is None else torch.where(counts, weight, 0.0)
    loss = -torch.where(counts, x if weight is None else x * weight, 0.0).sum(-1)
    # A class that is not there: eager PyTorch raises, a program of the card cannot, and says NaN.
    exists = ignored | ((target >= 0) & (target < x.shape[-1]))
    loss = torch.where(exists, loss, float("nan"))
    if reduction not in (_MEAN, _SUM):
        return loss, x.new_zeros(())
    # Up to 2048 classes float16 counts exactly; rows are more.
    total = weights.sum(-1, dtype=torch.float32).sum()
    loss = loss.sum(dtype=torch.float32)
    if reduction == _MEAN:
        loss = loss / total
    return loss.to(x.dtype), total.to(x.dtype)


@register_spyre_decomposition(aten.nll_loss_backward.default)
def nll_loss_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: torch.Tensor,
) -> Any:
    if not _is_loss_over_classes(x, target):
        return NotImplemented
    if reduction == _MEAN:
        grad = grad / total_weight
    if grad.dim() and x.dim() > 1:
        grad = grad.unsqueeze(-1)
    counts = _is_class(target, x.shape[-1]) & (target != ignore_index).unsqueeze(-1)
    each = -grad if weight is None else -grad * weight
    return torch.where(counts, each, 0.0).to(x.dtype)


@register_spyre_decomposition(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    grad: torch.Tensor,
    indices: torch.Tensor,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Any:
    many = isinstance(indices.numel(), int) and indices.numel() * num_weights > _largest()
    if scale_grad_by_freq or grad.dtype not in FLOATS or many or indices.numel() == 0:
        return NotImplemented
    rows = grad.reshape(-1, grad.shape[-1])
    chosen = _is_class(indices.reshape(-1), num_weights)
    if padding_idx >= 0:
        chosen = chosen & (indices.reshape(-1, 1) != padding_idx)
    return chosen.to(grad.dtype).t() @ rows


@register_spyre_decomposition(torch.ops.prims.fma.default)
def fma(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """Inductor makes it of `addcmul`, for the step of Adam without `foreach`."""
    return x * y + z


def _largest() -> int:
    """Elements of the largest mask that is worth it: a table of 50,000 rows, 1,300 indices."""
    return config.max_folded_elements * 4
