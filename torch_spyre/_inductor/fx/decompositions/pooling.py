"""Pooling, interpolation and reversal, as slices, gathers and pointwise operations of the card.

Inductor's own rules index single elements with expressions, which the card does not have. A window
is one slice of the input for each of its places, as in a convolution (see decompositions.py).

Example: max_pool2d with a window of 2x2 is the maximum of four slices x[:, :, a::2, b::2].
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_spyre._inductor.fx.decompositions import register_spyre_decomposition
from torch_spyre.dtypes import FLOAT32_EXACT, FLOATS

aten = torch.ops.aten

_MAX_PLACES = 64


# ---- Windows ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Windows:
    """Windows over the last dimensions of a tensor, one entry for each dimension."""

    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    count: tuple[int, ...]
    """How many there are."""

    @property
    def padded(self) -> list[tuple[int, int]]:
        """Padding before and after each dimension, so that all windows are inside."""
        last = [
            (c - 1) * s + d * (k - 1) + 1
            for c, s, d, k in zip(self.count, self.stride, self.dilation, self.kernel, strict=True)
        ]
        return [
            (p, max(end - n - p, 0))
            for p, end, n in zip(self.padding, last, self.size, strict=True)
        ]

    def slices(self, x: torch.Tensor, fill: float) -> Iterator[tuple[tuple[int, ...], Any]]:
        """Each place in the window, and what all windows have there."""
        pad = [amount for pair in reversed(self.padded) for amount in pair]
        if any(pad):
            x = aten.constant_pad_nd(x, pad, fill)
        first = x.dim() - len(self.kernel)
        for place in itertools.product(*map(range, self.kernel)):
            piece = x
            steps = zip(place, self.count, self.stride, self.dilation, strict=True)
            for i, (at, n, s, d) in enumerate(steps):
                piece = aten.slice(piece, first + i, at * d, at * d + (n - 1) * s + 1, s)
            yield place, piece


def _windows(
    x: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    rank: int,
) -> _Windows | None:
    """The windows of a pooling operation; None when it is not one for the card."""
    if x.dtype not in FLOATS or x.numel() == 0 or x.dim() not in (rank + 1, rank + 2):
        return None
    k, p, d = (_each(given, rank) for given in (kernel, padding, dilation))
    s = _each(stride, rank) if len(stride) else k
    size = tuple(int(n) for n in x.shape[-rank:])
    count = []
    for n, kk, ss, pp, dd in zip(size, k, s, p, d, strict=True):
        room = n + 2 * pp - dd * (kk - 1) - 1
        c = (room + (ss - 1 if ceil_mode else 0)) // ss + 1
        if ceil_mode and (c - 1) * ss >= n + pp:
            c -= 1  # the last window would begin after the input
        count.append(c)
    # A window that is larger than all there is (ceil_mode) ends with it.
    if set(d) == {1}:
        k = tuple(min(kk, n + 2 * pp) for kk, n, pp in zip(k, size, p, strict=True))
    if min(count) < 1 or math.prod(k) > _MAX_PLACES or any(2 * a > b for a, b in zip(p, k)):
        return None
    return _Windows(size, k, s, p, d, tuple(count))


def _each(given: Sequence[int], rank: int) -> tuple[int, ...]:
    return tuple(given) * rank if len(given) == 1 else tuple(given)


# ---- Pooling ------------------------------------------------------------------------------------


def _max_pool(rank: int) -> Any:
    def max_pool(
        x: torch.Tensor,
        kernel: list[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> Any:
        windows = _windows(x, kernel, stride, padding, dilation, ceil_mode, rank)
        if windows is None or math.prod(windows.size) >= FLOAT32_EXACT:
            return NotImplemented
        first = _first_positions(windows, x.device)
        best: Any = None
        index: Any = None
        for place, piece in windows.slices(x, -math.inf):
            offset = _flat([a * d for a, d in zip(place, windows.dilation)], windows.size)
            if best is None:
                best, index = piece, (first + float(offset)).expand(piece.shape)
                # A first place in the padding must not be chosen: any other one is better.
                found = torch.zeros_like(piece, dtype=torch.bool)
            better = torch.logical_or(torch.gt(piece, best), torch.isnan(piece))
            inside = _inside(windows, place, x.device)
            if inside is not None:
                better = torch.logical_and(torch.logical_or(better, ~found), inside)
                found = torch.logical_or(found, inside)
            index = torch.where(better, first + float(offset), index)
            best = torch.maximum(best, piece)
        # With one place in the window the largest value is a view of x.
        return best if math.prod(windows.kernel) > 1 else best.clone(), index.to(torch.int64)

    return max_pool


register_spyre_decomposition(aten.max_pool2d_with_indices.default)(_max_pool(2))
register_spyre_decomposition(aten.max_pool3d_with_indices.default)(_max_pool(3))


def _first_positions(windows: _Windows, device: torch.device) -> torch.Tensor:
    """Where each window begins, as a position in the flat input; float32."""
    total: Any = None
    for i, (n, s, p) in enumerate(zip(windows.count, windows.stride, windows.padding, strict=True)):
        step = math.prod(windows.size[i + 1 :])
        at = (torch.arange(n, dtype=torch.float32, device=device) * s - p) * step
        at = at.reshape(-1, *[1] * (len(windows.count) - 1 - i))
        total = at if total is None else total + at
    return total


def _inside(windows: _Windows, place: Sequence[int], device: torch.device) -> torch.Tensor | None:
    """Which windows have a place inside of the input; None when all have."""
    if not any(map(any, windows.padded)):
        return None
    inside: Any = None
    for i, at in enumerate(place):
        n, s, p = windows.count[i], windows.stride[i], windows.padding[i]
        where = torch.arange(n, dtype=torch.float32, device=device) * s
        where = where + float(at * windows.dilation[i] - p)
        here = torch.logical_and(where >= 0, where < windows.size[i])
        here = here.reshape(-1, *[1] * (len(windows.count) - 1 - i))
        inside = here if inside is None else torch.logical_and(inside, here)
    return inside


def _flat(place: Sequence[int], size: Sequence[int]) -> int:
    return functools.reduce(lambda total, pair: total * pair[1] + pair[0], zip(place, size), 0)


def _avg_pool(rank: int) -> Any:
    def avg_pool(
        x: torch.Tensor,
        kernel: list[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        windows = _windows(x, kernel, stride, padding, (1,), ceil_mode, rank)
        if windows is None:
            return NotImplemented
        total: Any = None
        for _, piece in windows.slices(x.to(torch.float32), 0.0):
            total = piece if total is None else total + piece
        if divisor_override is not None:
            return (total / divisor_override).to(x.dtype)
        for i, (n, k, s, p, size) in enumerate(
            zip(windows.count, windows.kernel, windows.stride, windows.padding, windows.size)
        ):
            begin = torch.arange(n, dtype=torch.float32, device=x.device) * s - p
            end = torch.clamp(begin + k, max=float(size + p))
            if not count_include_pad:
                begin, end = torch.clamp(begin, min=0.0), torch.clamp(end, max=float(size))
            total = total / (end - begin).reshape(-1, *[1] * (rank - 1 - i))
        return total.to(x.dtype)  # a new tensor: it was divided

    return avg_pool


register_spyre_decomposition(aten.avg_pool2d.default)(_avg_pool(2))
register_spyre_decomposition(aten.avg_pool3d.default)(_avg_pool(3))


# ---- Interpolation ------------------------------------------------------------------------------


def _sizes(
    x: torch.Tensor, output_size: Sequence[int] | None, factors: Sequence[float] | None
) -> tuple[list[int], list[float | None]]:
    """Size and scale factor of each dimension that is interpolated."""
    if output_size is not None:
        return [int(n) for n in output_size], [None] * len(output_size)
    assert factors is not None
    size = [math.floor(n * f) for n, f in zip(x.shape[2:], factors, strict=True)]
    return size, [float(f) for f in factors]


@register_spyre_decomposition(
    [aten.upsample_nearest1d.vec, aten.upsample_nearest2d.vec, aten.upsample_nearest3d.vec]
)
def nearest(
    x: torch.Tensor, output_size: Sequence[int] | None, scale_factors: Sequence[float] | None
) -> Any:
    """Whole factors: each element several times; a view of x that is written out."""
    size, _ = _sizes(x, output_size, scale_factors)
    if x.dtype not in FLOATS or x.numel() == 0 or x.dim() != len(size) + 2:
        return NotImplemented
    if any(n % m for n, m in zip(size, x.shape[2:], strict=True)):
        return NotImplemented
    if scale_factors is not None and any(not float(f).is_integer() for f in scale_factors):
        return NotImplemented
    for i, n in enumerate(size):
        dim, times = 2 + i, n // x.shape[2 + i]
        if times > 1:
            wide = x.unsqueeze(dim + 1)
            wide = wide.expand(*wide.shape[: dim + 1], times, *wide.shape[dim + 2 :])
            x = wide.reshape(*x.shape[:dim], n, *x.shape[dim + 1 :])
    return x.clone(memory_format=torch.contiguous_format) if x._is_view() else x


@register_spyre_decomposition([aten.upsample_linear1d.vec, aten.upsample_bilinear2d.vec])
def linear(
    x: torch.Tensor,
    output_size: Sequence[int] | None,
    align_corners: bool,
    scale_factors: Sequence[float] | None,
) -> Any:
    """One dimension after another: two neighbours of each place, and how far it is between."""
    size, factors = _sizes(x, output_size, scale_factors)
    if x.dtype not in FLOATS or x.numel() == 0 or x.dim() != len(size) + 2:
        return NotImplemented
    result = x.to(torch.float32)
    for i, (n, factor) in enumerate(zip(size, factors, strict=True)):
        dim, old = 2 + i, x.shape[2 + i]
        place = torch.arange(n, dtype=torch.float32, device=x.device)
        if align_corners:
            place = place * ((old - 1) / (n - 1) if n > 1 else 0.0)
        else:
            scale = 1.0 / factor if factor else old / n
            place = torch.clamp((place + 0.5) * scale - 0.5, min=0.0)
        low = place.to(torch.int64)
        high = torch.clamp(low + 1, max=old - 1)
        share = (place - low.to(torch.float32)).reshape(-1, *[1] * (len(size) - 1 - i))
        a, b = torch.index_select(result, dim, low), torch.index_select(result, dim, high)
        result = a * (1 - share) + b * share
    return result.to(x.dtype)


# ---- Reversal -----------------------------------------------------------------------------------


@register_spyre_decomposition(aten.flip.default)
def flip(x: torch.Tensor, dims: Sequence[int]) -> Any:
    """The card walks forwards only: rows are gathered from the last to the first."""
    if x.dim() == 0 or x.numel() == 0 or x.dtype not in (*FLOATS, torch.bool, torch.int64):
        return NotImplemented
    reversed_dims = [d % x.dim() for d in dims if x.shape[d] > 1]
    if not reversed_dims:
        return x.clone()
    for dim in reversed_dims:
        n = x.shape[dim]
        x = torch.index_select(x, dim, torch.arange(n - 1, -1, -1, device=x.device))
    return x
