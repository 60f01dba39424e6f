"""Sorting, the k largest and smallest, and where the largest is.

Like PyTorch: NaN is larger than every number, but for the largest and the smallest alone, where
NaN is both; and of equals the first counts, so that every sort is stable. The card finds the k
largest along a dimension, lane by lane; a sort takes them all, and a vector becomes a column of
sticks.

Example: `torch.sort(expert_ids)` is `spyre.bottomkvalue` and `spyre.bottomkindex` of all of them.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_spyre._inductor.fx.decompositions import register_spyre_decomposition
from torch_spyre.constants import BYTES_IN_STICK
from torch_spyre.dtypes import FLOAT32_EXACT, FLOATS, INTEGERS

aten = torch.ops.aten
_TYPES = (*FLOATS, *INTEGERS)

_LONGEST_VECTOR = 1 << 19
"""A stick for each element of a longer one is too much."""


# ---- The k largest, in order --------------------------------------------------------------------


@register_spyre_decomposition(aten.topk.default)
def topk(x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    if x.dtype not in _TYPES or not _is_sortable(x, k):
        return NotImplemented
    return _first(x, k, dim, largest)


@register_spyre_decomposition(aten.sort.default)
def sort(x: torch.Tensor, dim: int = -1, descending: bool = False) -> Any:
    if x.dim() == 0 or isinstance(x.shape[dim], torch.SymInt) or not _is_sortable(x, x.shape[dim]):
        return NotImplemented
    if x.dtype is torch.bool:
        values, index = sort(x.to(torch.float16), dim, descending)
        return values.to(torch.bool), index
    if x.dtype not in _TYPES:
        return NotImplemented
    return _first(x, x.shape[dim], dim, descending)


@register_spyre_decomposition(aten.sort.stable)
def sort_stable(
    x: torch.Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Any:
    return sort(x, dim, descending)


def _is_sortable(x: torch.Tensor, k: int) -> bool:
    return x.dim() > 0 and x.numel() > 0 and k > 0 and not _is_long_vector(x)


def _is_long_vector(x: torch.Tensor) -> bool:
    return x.numel() == max(x.shape) and x.numel() > _LONGEST_VECTOR


def _first(x: torch.Tensor, k: int, dim: int, largest: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The first k in descending or ascending order, and where they were."""
    shape = list(x.shape)
    if shape[dim] == 1:
        return x.clone(), torch.zeros(shape, dtype=torch.int64, device=x.device)
    if x.numel() != shape[dim]:
        return _chosen("value", x, k, dim, largest), _chosen("index", x, k, dim, largest)
    # The card compares sticks: each element of a vector gets one of its own.
    lanes = BYTES_IN_STICK // (4 if x.dtype in INTEGERS else x.dtype.itemsize)
    column = x.reshape(-1, 1).expand(-1, lanes)
    shape[dim] = k
    values, index = (
        _chosen(what, column, k, 0, largest)[:, 0].reshape(shape) for what in ("value", "index")
    )
    return values, index


def _chosen(what: str, x: torch.Tensor, k: int, dim: int, largest: bool) -> torch.Tensor:
    op = getattr(torch.ops.spyre, f"{'topk' if largest else 'bottomk'}{what}")
    result: torch.Tensor = op(x, k, dim)
    return result


# ---- The largest --------------------------------------------------------------------------------


@register_spyre_decomposition(aten.max.dim)
def max_dim(x: torch.Tensor, dim: int, keepdim: bool = False) -> Any:
    return _extreme(x, dim, keepdim, largest=True)


@register_spyre_decomposition(aten.min.dim)
def min_dim(x: torch.Tensor, dim: int, keepdim: bool = False) -> Any:
    return _extreme(x, dim, keepdim, largest=False)


def _extreme(x: torch.Tensor, dim: int, keepdim: bool, largest: bool) -> Any:
    if x.dim() == 0 or x.numel() == 0:
        return NotImplemented
    if x.dtype is torch.bool:
        values, index = _extreme(x.to(torch.float16), dim, keepdim, largest)
        return values.to(torch.bool), index
    if x.dtype in INTEGERS:
        if _is_long_vector(x):
            return NotImplemented
        values, index = _first(x, 1, dim, largest)
        return (values, index) if keepdim else (values.squeeze(dim), index.squeeze(dim))
    if x.dtype not in FLOATS:
        return NotImplemented
    values = torch.amax(x, dim, keepdim) if largest else torch.amin(x, dim, keepdim)
    return values, _first_index(x, dim, keepdim, largest)


@register_spyre_decomposition(aten.argmax.default)
def argmax(x: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    return _index_of_extreme(x, dim, keepdim, largest=True)


@register_spyre_decomposition(aten.argmin.default)
def argmin(x: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    return _index_of_extreme(x, dim, keepdim, largest=False)


def _index_of_extreme(x: torch.Tensor, dim: int | None, keepdim: bool, largest: bool) -> Any:
    if x.dtype not in _TYPES or x.dim() == 0 or x.numel() == 0:
        return NotImplemented
    row = x.reshape(-1) if dim is None else x
    if x.dtype in INTEGERS and _is_long_vector(row):
        return NotImplemented
    if dim is not None:
        return _first_index(x, dim, keepdim, largest)
    index = _first_index(row, 0, False, largest)
    return index.reshape([1] * x.dim()) if keepdim else index


def _first_index(x: torch.Tensor, dim: int, keepdim: bool, largest: bool) -> torch.Tensor:
    """The negative of NaN is NaN: it is the smallest as well."""
    if x.dtype in INTEGERS:
        index = _first(x, 1, dim, largest)[1]
    elif x.shape[dim] == 1:
        index = torch.zeros(x.shape, dtype=torch.int64, device=x.device)
    elif x.dim() == 1 and x.shape[0] < FLOAT32_EXACT:
        index = _first_position(x, largest)
    else:
        index = torch.ops.spyre.topkindex(x if largest else -x, 1, dim)
    return index if keepdim else index.squeeze(dim)


def _first_position(x: torch.Tensor, largest: bool) -> torch.Tensor:
    """Of a vector: the k largest are taken across sticks, and a vector is all one row of them.

    float32 counts exactly as far as a vector may be long.
    """
    extreme = torch.amax(x, 0, True) if largest else torch.amin(x, 0, True)
    hit = torch.logical_or(x == extreme, torch.isnan(x))  # NaN equals nothing, so only NaN hits
    positions = torch.arange(x.shape[0], dtype=torch.float32, device=x.device)
    beyond = torch.full((), float(x.shape[0]), dtype=torch.float32, device=x.device)
    return torch.amin(torch.where(hit, positions, beyond), 0, True).to(torch.int64)
