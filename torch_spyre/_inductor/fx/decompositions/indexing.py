"""Indexing with several tensors, gathers and stores of single elements, counts and running sums.

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
from torch_spyre.constants import BYTES_IN_STICK
from torch_spyre.dtypes import FLOAT32_EXACT, FLOATS, INTEGERS

aten = torch.ops.aten
_TYPES = (*FLOATS, torch.bool, *INTEGERS)

_MAX_ELEMENTS = 1 << 19
"""Single elements are gathered from tables of a stick for each: not from larger ones."""

_MOST_COMPARISONS = 1 << 26
"""Of positions with indices, in place of stores of single elements."""


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
    if accumulate:
        return NotImplemented
    flat = _flattened(x, indices) or _only_index(x, indices)
    if flat is None:
        return NotImplemented
    table, before, rows = flat
    if before == 0 and math.prod(table.shape[1:]) == 1:
        if max(table.numel(), rows.numel()) > _MAX_ELEMENTS:
            return NotImplemented
        return _store_elements(table.reshape(-1), rows, values).reshape(x.shape)
    if len([t for t in indices if t is not None]) == 1 or math.prod(table.shape[before + 1 :]) == 1:
        return NotImplemented  # as it is; or single elements of many rows
    return aten.index_put.default(table, [*[None] * before, rows], values).reshape(x.shape)


def _only_index(
    x: torch.Tensor, indices: Sequence[torch.Tensor | None]
) -> tuple[torch.Tensor, int, torch.Tensor] | None:
    """As `_flattened`, of one index of the first dimension."""
    given = [t for t in indices if t is not None]
    if len(given) != 1 or indices[0] is None or given[0].dtype not in INTEGERS:
        return None
    return (
        None
        if x.numel() == 0 or given[0].numel() == 0 or x.dtype not in _TYPES
        else (x, 0, given[0])
    )


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


def _store_elements(x: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The card stores whole sticks: each element of a vector gets one of its own meanwhile."""
    lanes = BYTES_IN_STICK // (4 if x.dtype in (*INTEGERS, torch.float32) else 2)
    table = x[:, None].expand(-1, lanes).clone(memory_format=torch.contiguous_format)
    wide = values.to(x.dtype).expand(rows.shape).reshape(-1, 1).expand(-1, lanes)
    return aten.index_put.default(table, [rows.reshape(-1)], wide)[:, 0]


# ---- Stores along a dimension -------------------------------------------------------------------


@register_spyre_decomposition(aten.scatter.value)
def scatter_number(x: torch.Tensor, dim: int, index: torch.Tensor, value: float) -> Any:
    """A number, where some index says so."""
    number = torch.full((), value, dtype=x.dtype, device=x.device)
    return _scattered(x, dim, index, number)


@register_spyre_decomposition(aten.scatter.src)
def scatter(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> Any:
    """One value for each row: no two of them meet."""
    if x.dim() == 0 or index.dim() != x.dim() or index.shape[dim] != 1:
        return NotImplemented
    for d, n in enumerate(index.shape):
        source = torch.narrow(source, d, 0, n)
    return _scattered(x, dim, index, source)


def _scattered(x: torch.Tensor, dim: int, index: torch.Tensor, value: torch.Tensor) -> Any:
    """Found by comparing positions. A row with an index that is out of bounds becomes NaN."""
    if x.dtype not in FLOATS or x.dim() == 0 or x.numel() == 0 or index.numel() == 0:
        return NotImplemented
    dim %= x.dim()
    count = index.shape[dim]
    if any(index.shape[d] != n for d, n in enumerate(x.shape) if d != dim):
        return NotImplemented
    if x.numel() * count > _MOST_COMPARISONS:
        return NotImplemented
    shape = [-1 if d == dim else 1 for d in range(x.dim())]
    places = torch.arange(x.shape[dim], device=x.device).reshape(shape)
    inside = torch.logical_and(index >= 0, index < x.shape[dim])
    if count == 1:
        hit = places == index
    else:
        hit = (places.unsqueeze(dim) == index.unsqueeze(dim + 1)).any(dim)
        inside = inside.all(dim, keepdim=True)
    nothing = torch.full((), math.nan, dtype=x.dtype, device=x.device)
    return torch.where(inside, torch.where(hit, value, x), nothing)


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
    dims = list(dim) if dim else list(range(x.dim()))
    if x.numel() == 0 or math.prod(x.shape[d] for d in dims) >= FLOAT32_EXACT:
        return NotImplemented
    total = torch.sum(x.to(torch.float32), dims, keepdim)
    return total.to(dtype or torch.int64)


@register_spyre_decomposition(aten.sum.default)
def count_all(x: torch.Tensor, *, dtype: torch.dtype | None = None) -> Any:
    return count(x, dtype=dtype)


@register_spyre_decomposition(aten.histc.default)
def histogram(x: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """Of integers, with a bin for each of them."""
    if x.dtype not in INTEGERS or min != int(min) or max != int(max) or max - min != bins - 1:
        return NotImplemented
    if x.numel() == 0 or x.numel() * bins > _MOST_COMPARISONS:
        return NotImplemented
    values = torch.arange(int(min), int(max) + 1, dtype=x.dtype, device=x.device)
    return torch.sum(values[:, None] == x.reshape(-1), 1, dtype=x.dtype)


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
    if x.dtype.is_floating_point:
        return _running(x, dim, dtype, torch.add)
    result = dtype or torch.int64
    if x.dtype not in (*INTEGERS, torch.bool) or result not in INTEGERS:
        return NotImplemented
    if x.dim() == 0 or x.numel() == 0 or any(isinstance(n, torch.SymInt) for n in x.shape):
        return NotImplemented
    return _running_sum(x.to(result).movedim(dim, -1)).movedim(-1, dim)


_TRIANGLE = 1024
"""Columns of the largest triangle that a running sum of integers is multiplied by."""


def _running_sum(x: torch.Tensor) -> torch.Tensor:
    """Along the last dimension; of longer ones piece by piece, and what comes before each piece."""
    n, width = x.shape[-1], min(x.shape[-1], _TRIANGLE)
    places = torch.arange(width, device=x.device)
    triangle = (places[:, None] <= places).to(torch.float32)
    if n == width:
        return torch.ops.spyre.running_sum(x, triangle)
    x = aten.constant_pad_nd(x, [0, -n % width]).unflatten(-1, (-1, width))
    inside = torch.ops.spyre.running_sum(x, triangle)
    before = aten.constant_pad_nd(_running_sum(inside[..., -1])[..., :-1], [1, 0])
    return (inside + before.unsqueeze(-1)).flatten(-2)[..., :n]


@register_spyre_decomposition(aten.cumprod.default)
def cumprod(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    return _running(x, dim, dtype, torch.mul)


@register_spyre_decomposition(aten.logcumsumexp.default)
def logcumsumexp(x: torch.Tensor, dim: int) -> Any:
    return _running(x, dim, None, torch.logaddexp)
