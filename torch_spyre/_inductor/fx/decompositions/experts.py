"""Grouped products, which mixtures of experts consist of.

In: rows that are sorted by their expert, and for each expert where its rows end. Out: each row
times the matrix of its expert. On the card that is one product whose second operand is chosen, row
by row, by a tensor of numbers (`spyre.gathered_matmul`): which expert a row has is the number of
experts that end before it.

    torch._grouped_mm(x, w, offs=torch.tensor([2, 2, 5]))      # rows 0 and 1: w[0]; 2 to 4: w[2]
"""

from __future__ import annotations

from typing import Any

import torch

from torch_spyre._inductor.fx.decompositions import register_spyre_decomposition
from torch_spyre.dtypes import FLOATS

aten = torch.ops.aten


def grouped_product(x: torch.Tensor, w: torch.Tensor, offs: torch.Tensor) -> Any:
    """Rows after the last group are zeros, as in the loop over experts of `transformers`."""
    if x.dtype not in FLOATS or x.dtype is not w.dtype or x.dim() != 2 or w.dim() != 3:
        return NotImplemented
    if x.numel() == 0 or w.numel() == 0 or any(isinstance(n, torch.SymInt) for n in x.shape):
        return NotImplemented
    places = torch.arange(x.shape[0], dtype=offs.dtype, device=x.device)
    expert = torch.sum(offs <= places[:, None], 1, dtype=torch.int32)
    is_there = (expert < w.shape[0])[:, None]
    expert = torch.clamp(expert, max=w.shape[0] - 1)
    result = torch.ops.spyre.gathered_matmul(x, w, expert)
    return torch.where(is_there, result, torch.zeros((), dtype=x.dtype, device=x.device))


@register_spyre_decomposition(aten._grouped_mm.default)
def grouped_mm(
    x: torch.Tensor,
    w: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:
    if offs is None or bias is not None or out_dtype not in (None, x.dtype):
        return NotImplemented
    return grouped_product(x, w, offs)


def register_transformers() -> None:
    """The operation that `transformers` has for types that PyTorch's is not for, once it is there:
    a loop over the experts."""
    op = getattr(torch.ops.transformers, "grouped_mm_fallback", None)
    if op is not None:
        register_spyre_decomposition(op.default)(grouped_product)
