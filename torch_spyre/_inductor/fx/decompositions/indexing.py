"""Indexing with several tensors, gathers of single elements, counts and running sums.

The card gathers and stores whole rows along one dimension. Indices of several dimensions become one
index of a flat one; an index that is out of bounds in its own dimension is sent out of bounds of
the flat one, so that the card still refuses it.

Example: `logits[batch, last]` of a (8, 128, 64) tensor is a gather of rows of a (1024, 64) one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental import proxy_tensor

from torch_spyre._inductor.fx.decompositions import register_spyre_decomposition
from torch_spyre.dtypes import FLOAT32_EXACT, FLOATS, INTEGERS

aten = torch.ops.aten
_TYPES = (*FLOATS, torch.bool, *INTEGERS)

_MAX_ELEMENTS = 1 << 19
"""Single elements are gathered from tables of a stick for each: not from larger ones."""


# ---- Several indices ----------------------------------------------------------------------------


@register_spyre_decomposition([aten.index.Tensor, aten._unsafe_index.Tensor])
def index(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> Any:
    if all(t is None or _is_known(t) for t in indices):
        return NotImplemented  # fx_passes looks at the values: ranges make a view
    flat = _flattened(x, indices)
    if flat is None:
        return NotImplemented
    table, before, rows = flat
    if math.prod(table.shape[before + 1 :]) == 1 and table.numel() > _MAX_ELEMENTS:
        return NotImplemented
    # A copy, which Inductor leaves alone: the card gathers rows of whole tensors, not of views.
    return aten.index.Tensor(torch.ops.spyre.restickify(table), [*[None] * before, rows])


@register_spyre_decomposition(aten.index_put.default)
def index_put(
    x: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
) -> Any:
    flat = None if accumulate else _flattened(x, indices)
    if flat is None or math.prod(flat[0].shape[flat[1] + 1 :]) == 1:
        return NotImplemented  # rows are stored, not single elements
    table, before, rows = flat
    return aten.index_put.default(table, [*[None] * before, rows], values).reshape(x.shape)


def _is_known(t: torch.Tensor) -> bool:
    """Whether a tensor of the graph that is traced depends on none of its inputs."""
    mode = proxy_tensor.get_proxy_mode()
    slot = None if mode is None else proxy_tensor.get_proxy_slot(t, mode.tracer, None)
    if slot is None:
        return False
    seen: set[torch.fx.Node] = set()
    stack = [slot.proxy.node]
    while stack:
        node = stack.pop()
        if node.op == "placeholder":
            return False
        if node not in seen:
            seen.add(node)
            stack += node.all_input_nodes
    return True


def _flattened(
    x: torch.Tensor, indices: Sequence[torch.Tensor | None]
) -> tuple[torch.Tensor, int, torch.Tensor] | None:
    """x with its indexed dimensions as one, how many come before that, and the index of it."""
    places = [i for i, given in enumerate(indices) if given is not None]
    given = [t for t in indices if t is not None]
    if len(given) < 2 or places != list(range(places[0], places[0] + len(given))):
        return None
    if any(t.dtype not in INTEGERS for t in given):
        return None
    if x.numel() == 0 or x.dtype not in _TYPES or any(t.numel() == 0 for t in given):
        return None
    sizes = [int(x.shape[i]) for i in places]
    total = math.prod(sizes)
    if total >= 1 << 28:  # what comes from below, too, stays within 32 bits
        return None
    rows: Any = None
    good: Any = None
    for t, n in zip(given, sizes, strict=True):
        inside = torch.logical_and(t >= -n, t < n)
        t = torch.clamp(t, -n, n - 1)  # so that the compiler knows how large it is
        t = torch.where(t < 0, t + n, t)
        rows = t if rows is None else rows * n + t
        good = inside if good is None else torch.logical_and(good, inside)
    beyond = torch.full((), total, dtype=torch.int64, device=x.device)
    rows = torch.where(good, rows.to(torch.int64), beyond)
    first, last = places[0], places[-1] + 1
    return x.reshape(*x.shape[:first], total, *x.shape[last:]), first, rows


# ---- Gathers ------------------------------------------------------------------------------------


@register_spyre_decomposition(aten.gather.default)
def gather(x: torch.Tensor, dim: int, index: torch.Tensor, *, sparse_grad: bool = False) -> Any:
    if x.dim() == 0 or x.numel() == 0 or index.numel() == 0 or x.dtype not in _TYPES:
        return NotImplemented
    dim %= x.dim()
    for d in range(x.dim()):
        if d != dim and index.shape[d] != x.shape[d]:
            x = torch.narrow(x, d, 0, index.shape[d])
    if index.shape[dim] == 1 and x.dtype in FLOATS and x.shape[dim] < FLOAT32_EXACT:
        return _chosen(x, dim, index)
    if x.numel() > _MAX_ELEMENTS:
        return NotImplemented
    places: list[torch.Tensor] = []
    for d in range(x.dim()):
        if d == dim:
            places.append(index)
        else:
            shape = [-1 if i == d else 1 for i in range(x.dim())]
            places.append(torch.arange(x.shape[d], device=x.device).reshape(shape))
    if x.dim() == 1:
        return aten.index.Tensor(x, [index])
    return aten.index.Tensor(x, places)


def _chosen(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    """One element of each row, found by comparing positions: one pass over x.

    An index that is out of bounds finds nothing; NaN says so.
    """
    shape = [-1 if d == dim else 1 for d in range(x.dim())]
    places = torch.arange(x.shape[dim], device=x.device).reshape(shape)
    zero = torch.zeros((), dtype=x.dtype, device=x.device)
    result = torch.sum(torch.where(places == index, x, zero), dim, keepdim=True)
    inside = torch.logical_and(index >= 0, index < x.shape[dim])
    nothing = torch.full((), math.nan, dtype=x.dtype, device=x.device)
    return torch.where(inside, result, nothing)


# ---- Counts -------------------------------------------------------------------------------------


@register_spyre_decomposition(aten.sum.dim_IntList)
def count(
    x: torch.Tensor,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    """A sum of booleans is exact in float32."""
    if x.dtype is not torch.bool or dtype not in (None, *INTEGERS):
        return NotImplemented
    if x.numel() == 0 or x.numel() >= FLOAT32_EXACT:
        return NotImplemented
    dims = list(dim) if dim else list(range(x.dim()))
    total = torch.sum(x.to(torch.float32), dims, keepdim)
    return total.to(dtype or torch.int64)


@register_spyre_decomposition(aten.sum.default)
def count_all(x: torch.Tensor, *, dtype: torch.dtype | None = None) -> Any:
    return count(x, dtype=dtype)


# ---- Running sums -------------------------------------------------------------------------------


def _scan(
    x: torch.Tensor, dim: int, combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Each element combined with all before it, in log2(n) steps of twice the distance."""
    n, step = x.shape[dim], 1
    while step < n:
        later = combine(torch.narrow(x, dim, 0, n - step), torch.narrow(x, dim, step, n - step))
        x = torch.cat([torch.narrow(x, dim, 0, step), later], dim)
        step *= 2
    return x


_LONGEST_SCAN = 4096


def _running(
    x: torch.Tensor,
    dim: int,
    dtype: torch.dtype | None,
    combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Any:
    if any(isinstance(n, torch.SymInt) for n in x.shape):
        return NotImplemented  # the number of steps is not known: it stays whole
    result = dtype or x.dtype
    if x.dtype not in FLOATS or result not in FLOATS or x.dim() == 0 or x.numel() == 0:
        return NotImplemented
    if not 1 < x.shape[dim] <= _LONGEST_SCAN:
        return NotImplemented
    return _scan(x.to(torch.float32), dim % x.dim(), combine).to(result)


@register_spyre_decomposition(aten.cumsum.default)
def cumsum(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    if (
        x.dtype is torch.bool
        and dtype in (None, torch.int64)
        and x.dim()
        and x.numel() < FLOAT32_EXACT
    ):
        counted = _running(x.to(torch.float32), dim, None, torch.add)
        return counted if counted is NotImplemented else counted.to(torch.int64)
    return _running(x, dim, dtype, torch.add)


@register_spyre_decomposition(aten.cumprod.default)
def cumprod(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    return _running(x, dim, dtype, torch.mul)


@register_spyre_decomposition(aten.logcumsumexp.default)
def logcumsumexp(x: torch.Tensor, dim: int) -> Any:
    return _running(x, dim, None, torch.logaddexp)
