"""Layouts for a stick dimension, against the documented rule and its worked examples."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.support.operations import buffer
from torch_spyre._C import SpyreTensorLayout
from torch_spyre._inductor.layouts.stick_layouts import (
    SPARSE,
    STANDARD,
    WIDENED,
    default_layout,
    layout_of,
)
from torch_spyre._inductor.operations.operation import contiguous_strides

SIZES = [1, 2, 3, 64, 65, 100]


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.bool])
def test_each_stick_dimension_gives_what_the_device_makes_of_that_order(
    rank: int, dtype: torch.dtype
) -> None:
    sizes = list(itertools.product(SIZES, repeat=rank))
    for size in sizes[:: max(1, len(sizes) // 60)]:
        stride = contiguous_strides(size)
        for stick in range(rank):
            order = [d for d in range(rank) if d != stick] + [stick]
            expected = SpyreTensorLayout(list(size), list(stride), dtype, order)
            assert layout_of(size, stride, dtype, stick) == expected, (size, stick)
        sparse = SpyreTensorLayout(list(size), list(stride), dtype, [*range(rank), -1])
        assert layout_of(size, stride, dtype, SPARSE) == sparse, size


@pytest.mark.parametrize(
    ("size", "stick", "device_size", "stride_map"),
    [
        ((512, 240), 1, [4, 512, 64], [64, 240, 1]),
        ((512, 8, 240), 2, [8, 4, 512, 64], [240, 64, 1920, 1]),
        ((2, 3, 5, 100), 3, [3, 5, 2, 2, 64], [500, 100, 64, 1500, 1]),
        ((512, 8, 256), 0, [256, 8, 8, 64], [1, 131072, 256, 2048]),
        ((512, 256), SPARSE, [256, 1, 512, 64], [1, -1, 256, -1]),
        ((), SPARSE, [1, 64], [-1, -1]),
    ],
)
def test_the_documented_examples(
    size: tuple[int, ...], stick: int, device_size: list[int], stride_map: list[int]
) -> None:
    found = layout_of(size, contiguous_strides(size), torch.float16, stick)
    assert (list(found.device_size), list(found.stride_map)) == (device_size, stride_map)


@pytest.mark.parametrize(
    ("columns", "sticks", "arrangement"),
    [(32, 1, STANDARD), (33, 2, WIDENED), (64, 2, WIDENED), (65, 4, WIDENED), (128, 4, WIDENED)],
)
def test_what_a_cast_widens_has_pairs_of_sticks(
    columns: int, sticks: int, arrangement: object
) -> None:
    """Each stick of 64 numbers of 16 bits becomes two of 32, whether or not both are full; only
    up to 32 of them fill the first one alone."""
    found = layout_of((8, columns), (columns, 1), torch.float32, 1, WIDENED)
    assert list(found.device_size) == [sticks, 8, 32]
    assert found.element_arrangement == arrangement


def test_a_dense_tensor_has_its_sticks_along_the_last_dimension_by_default() -> None:
    found = default_layout(buffer("x", (6, 70)))
    assert (list(found.device_size), list(found.stride_map)) == ([2, 6, 64], [64, 70, 1])
    permuted = default_layout(buffer("x", (6, 70), stride=(1, 6)))
    assert (list(permuted.device_size), list(permuted.stride_map)) == ([2, 6, 64], [384, 1, 6])


def test_a_tensor_with_gaps_or_many_dimensions_lies_as_its_storage_does() -> None:
    gaps = default_layout(buffer("x", (6, 70), stride=(80, 1)))  # 5 * 80 + 70 elements
    assert (list(gaps.device_size), list(gaps.stride_map)) == ([8, 64], [64, 1])
    many = default_layout(buffer("x", (2, 1, 2, 1, 2, 1, 20)))
    assert (list(many.device_size), list(many.stride_map)) == ([3, 64], [64, 1])
