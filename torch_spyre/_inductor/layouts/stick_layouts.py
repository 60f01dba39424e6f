"""Layouts of a shape: the documented rule for a given stick dimension.

Example: layout_of((512, 240), (240, 1), torch.float16, 1) has device_size [4, 512, 64] and
stride_map [64, 240, 1].
"""

from __future__ import annotations

import torch

from torch_spyre._C import ElementArrangement, SpyreTensorLayout, get_device_dtype
from torch_spyre._inductor.operations.operation import Buffer

SPARSE = -1
"""Instead of a dimension: one element per stick."""

STANDARD = ElementArrangement.STANDARD
WIDENED = ElementArrangement.DL16_TO_FP32
"""The order that the card's cast from 16 bits to float32 leaves in a pair of sticks."""


def layout_of(
    size: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    stick: int,
    arrangement: ElementArrangement = ElementArrangement.STANDARD,
) -> SpyreTensorLayout:
    """The documented rule for the order "all other dimensions, then the stick", any rank."""
    fmt = get_device_dtype(dtype)
    eps = fmt.elems_per_stick()
    others = [d for d in range(len(size)) if d != stick]
    if not size:
        return SpyreTensorLayout([1, eps], [-1, -1], fmt, arrangement)
    if stick == SPARSE:
        order = [*others[1:], *others[:1]]
        device_size = [1, *(size[d] for d in order), eps]
        stride_map = [-1, *(_stride(size[d], stride[d]) for d in order), -1]
        # The documented form has the synthetic axis just outside of the first dimension.
        device_size = [*device_size[1:-2], 1, device_size[-2], eps]
        stride_map = [*stride_map[1:-2], -1, stride_map[-2], -1]
        return SpyreTensorLayout(device_size, stride_map, fmt, arrangement)
    sticks = -(-size[stick] // eps)
    if arrangement == WIDENED and size[stick] <= eps:
        arrangement = STANDARD  # half a 16-bit stick: the pair would not be two sticks of a row
    if arrangement == WIDENED:  # the sticks of one 16-bit stick are a pair
        sticks = 2 * -(-size[stick] // (2 * eps))
    s = _stride(size[stick], stride[stick])
    outer = s * eps if s > 0 else -1
    if not others:
        return SpyreTensorLayout([sticks, eps], [outer, s], fmt, arrangement)
    device_size = [*(size[d] for d in others[1:]), sticks, size[others[0]], eps]
    stride_map = [*(_stride(size[d], stride[d]) for d in others[1:]), outer,
                  _stride(size[others[0]], stride[others[0]]), s]  # fmt: skip
    return SpyreTensorLayout(device_size, stride_map, fmt, arrangement)


def _stride(size: int, stride: int) -> int:
    return -1 if size == 1 else stride


def default_layout(buffer: Buffer) -> SpyreTensorLayout:
    """The layout of an eager operation's result."""
    size, stride = buffer.size, buffer.stride
    dense = sorted(zip(stride, size, strict=True))
    expected = 1
    for s, n in dense:
        if n != 1 and s != expected:
            break
        expected *= n
    else:
        if len(size) <= 6:
            return layout_of(size, stride, buffer.dtype, len(size) - 1)
    elements = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    return layout_of((elements,), (1,), buffer.dtype, 0)
