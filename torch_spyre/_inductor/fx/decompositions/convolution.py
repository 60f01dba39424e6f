"""Convolutions, as one product of windows and weights, so that a sum over all taps is rounded once.

A window is what the weights see for one element of the result. Windows are a view of the input, one
row each; the product copies them to where it wants them, once, and adds up K = taps * channels
terms in float32:

    x (N, C, H, W)  ->  rows (N*OH*OW, KH*KW*C)  @  weights (KH*KW*C, F)  ->  (N, F, OH, OW), a view

Channels are last in both, so that a tap is whole sticks and a result lies as the next convolution
wants it. One channel in each group (depthwise) has no product: windows are multiplied with the
weights and summed in float32.

Like `decompositions/__init__.py`, for spyre tensors only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from torch_spyre._inductor.fx.customops import window_places
from torch_spyre._inductor.fx.decompositions import register_spyre_decomposition
from torch_spyre.dtypes import FLOATS

aten = torch.ops.aten
spyre = torch.ops.spyre

_MAX_TAPS = 1024
_MAX_DIMENSIONS = 8
"""Of an operation of the card."""


@dataclass(frozen=True)
class _Geometry:
    """A convolution over one, two or three dimensions; an entry for each."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    size: tuple[int, ...]
    """Of the result."""

    @property
    def rank(self) -> int:
        return len(self.kernel)

    @property
    def taps(self) -> int:
        return math.prod(self.kernel)


def _geometry(
    x: torch.Tensor, weight: torch.Tensor, stride: list[int], padding: list[int],
    dilation: list[int],
) -> _Geometry | None:  # fmt: skip
    """None for what is left to PyTorch."""
    rank = weight.dim() - 2
    if x.dtype not in FLOATS or x.dtype != weight.dtype or rank not in (1, 2, 3):
        return None
    if x.dim() != rank + 2 or x.numel() == 0 or weight.numel() == 0:
        return None
    kernel = tuple(weight.shape[2:])
    steps, pad, apart = (
        tuple(given) * rank if len(given) == 1 else tuple(given)
        for given in (stride, padding, dilation)
    )
    inside = [n + 2 * p for n, p in zip(x.shape[2:], pad, strict=True)]
    size = tuple(window_places(inside, kernel, steps, apart))
    found = _Geometry(kernel, steps, pad, apart, size)
    # A copy of windows walks over all of these.
    walked = [n for n in (x.shape[0], *size, *kernel, x.shape[1]) if n > 1]
    if min(size) < 1 or found.taps > _MAX_TAPS or len(walked) > _MAX_DIMENSIONS:
        return None
    return found


@register_spyre_decomposition(aten.convolution.default)
def convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Any:
    geometry = None if transposed else _geometry(x, weight, stride, padding, dilation)
    if geometry is None:
        return NotImplemented
    windows = spyre.windows(
        _padded(x, geometry.padding), geometry.kernel, geometry.stride, geometry.dilation
    )
    if groups == 1:
        result = _dense(windows, weight, geometry)
    elif groups == x.shape[1] == weight.shape[0]:
        result = _depthwise(windows, weight, geometry)
    else:
        result = _grouped(windows, weight, geometry, groups)
    return result if bias is None else result + bias.reshape(-1, *[1] * geometry.rank)


def _padded(x: torch.Tensor, padding: tuple[int, ...]) -> torch.Tensor:
    pad = [p for amount in reversed(padding) for p in (amount, amount)]
    return aten.constant_pad_nd(x, pad) if any(pad) else x


def _channels_first(result: torch.Tensor, geometry: _Geometry) -> torch.Tensor:
    """(N, *size, F) as (N, F, *size), a view."""
    return result.permute(0, geometry.rank + 1, *range(1, geometry.rank + 1))


def _kernel_matrix(weight: torch.Tensor, groups: int, shape: list[int]) -> torch.Tensor:
    """(F, C, *kernel) as (groups, taps, C, F) in another shape: a view, so that what is copied of a
    parameter is copied once."""
    rank = weight.dim() - 2
    split = weight.reshape(groups, -1, *weight.shape[1:])
    order = [0, *range(3, 3 + rank), 2, 1]
    return spyre.reordered(split, order, shape)


def _dense(windows: torch.Tensor, weight: torch.Tensor, g: _Geometry) -> torch.Tensor:
    batch, channels, features = windows.shape[0], windows.shape[-1], weight.shape[0]
    depth = g.taps * channels
    rows = windows.reshape(batch * math.prod(g.size), depth)
    # Float32 up to what follows, a batch norm or a bias: fx/passes/round_once.py.
    product = spyre.product_float32(rows, _kernel_matrix(weight, 1, [depth, features]))
    result = _channels_first(product.reshape(batch, *g.size, features), g)
    return result.to(windows.dtype)


def _grouped(
    windows: torch.Tensor, weight: torch.Tensor, g: _Geometry, groups: int
) -> torch.Tensor:
    """One product for each group."""
    batch, rank = windows.shape[0], g.rank
    channels, features = windows.shape[-1] // groups, weight.shape[0] // groups
    count, depth = batch * math.prod(g.size), g.taps * channels
    split = windows.reshape(*windows.shape[:-1], groups, channels)
    order = [2 * rank + 1, *range(2 * rank + 1), 2 * rank + 2]
    rows = spyre.reordered(split, order, [groups, count, depth])
    product = torch.bmm(rows, _kernel_matrix(weight, groups, [groups, depth, features]))
    product = product.reshape(groups, batch, *g.size, features)
    order = [1, *range(2, 2 + rank), 0, 2 + rank]
    result = product.permute(order).reshape(batch, *g.size, groups * features)
    return _channels_first(result, g)


def _depthwise(windows: torch.Tensor, weight: torch.Tensor, g: _Geometry) -> torch.Tensor:
    """Each channel by itself. Products are float32, and so is their sum."""
    batch, channels = windows.shape[0], windows.shape[-1]
    windows = windows.reshape(batch, *g.size, g.taps, channels)
    taps = spyre.reordered(weight, [*range(2, 2 + g.rank), 1, 0], [g.taps, channels])
    return _channels_first(spyre.weighted_sum_float32(windows, taps), g).to(windows.dtype)
