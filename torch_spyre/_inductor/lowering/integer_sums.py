"""Sums of integers, which the card has for floats alone.

float32 counts exactly up to 2**24, in any order. Where the range of the terms says that no partial
sum goes beyond, a sum of integers is one of float32; the others are left to the host. Running sums
are products with a triangle of ones.

Example: position ids, `mask.cumsum(1) - 1`, stay on the card: a mask of 0 and 1 has no sums above
its length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch._inductor import ir
from torch._inductor import lowering as inductor
from torch._inductor.virtualized import ops

from torch_spyre._inductor.errors import TooLarge
from torch_spyre._inductor.lowering.int_ranges import box_range
from torch_spyre._inductor.lowering.registry import (
    matmul,
    pointwise,
    reduction,
    register_spyre_lowering,
    spyre_ops,
)
from torch_spyre.dtypes import FLOAT32_EXACT, INTEGERS

aten = torch.ops.aten


@register_spyre_lowering([aten.sum.dim_IntList, aten.sum.default])
def sum_of_integers(
    x: ir.TensorBox,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> ir.TensorBox | None:
    result = dtype or torch.int64
    size = [int(n) for n in x.get_size()] if _is_fixed(x) else []
    if x.get_dtype() not in INTEGERS or result not in INTEGERS or not size or 0 in size:
        return None
    over = size if not dim else [size[d] for d in dim]
    limit = _limit(x, math.prod(over))
    total = reduction("sum", inductor.to_dtype(x, torch.float32), dim, keepdim)
    return _whole(total, limit, result)


@register_spyre_lowering(torch.ops.spyre.running_sum.default)
def running_sum(x: ir.TensorBox, triangle: ir.TensorBox) -> ir.TensorBox:
    limit = _limit(x, int(x.get_size()[-1]))
    terms = inductor.to_dtype(x, torch.float32)
    is_vector = len(x.get_size()) == 1
    total = matmul(inductor.unsqueeze(terms, 0) if is_vector else terms, triangle)
    assert total is not None
    return _whole(inductor.squeeze(total, 0) if is_vector else total, limit, x.get_dtype())


def _is_fixed(x: ir.TensorBox) -> bool:
    return all(isinstance(n, int) or n.is_number for n in x.get_size())


def _limit(x: ir.TensorBox, count: int) -> float:
    """What no sum of so many elements of x exceeds."""
    limit = box_range(x).size * count
    if limit >= FLOAT32_EXACT:
        raise TooLarge(
            f"a sum of {count} integers may be beyond 2**24, up to where the card's sums are exact"
        )
    return limit


def _whole(total: ir.TensorBox, limit: float, dtype: torch.dtype) -> ir.TensorBox:
    """Between limits, so that the compiler knows how large it is."""
    return pointwise(
        lambda v: ops.to_dtype(spyre_ops.clamp(v, -limit, limit), dtype), total, dtype=dtype
    )
