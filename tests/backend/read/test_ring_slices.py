"""What each core has before and after a move over the ring, read from slices of tensors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch_spyre.backend.read.ring_slices import part_view
from torch_spyre.backend.read.sdsc import Parts
from torch_spyre.card_model.core_slices import Share, core_view

SIZES = {"mb": 8, "x": 4, "stick": 64}


def view(splits: dict[str, int], slices: dict[int, tuple[int, ...]]) -> Any:
    """Of a tensor whose axes are, from the stick on: mb, x."""
    sdsc: Any = SimpleNamespace(size=SIZES.__getitem__)
    parts = Parts(tuple(splits.items()), tuple(slices.items()))
    tensor: Any = SimpleNamespace(parts=parts, stick="stick", order=("mb", "x"))
    return part_view(sdsc, tensor)


def test_rows_over_four_cores() -> None:
    found = view({"x": 4, "mb": 1, "stick": 1}, {c: (c, 0, 0) for c in range(4)})
    assert found == core_view(4, [Share(8, 8, (0,) * 4), Share(4, 1, (0, 1, 2, 3))])
    assert (found.own_bytes, found.all_bytes) == (8 * 128, 32 * 128)
    first = view({"stick": 1, "x": 4, "mb": 1}, {c: (0, c, 0) for c in range(4)})
    assert first == found, "lanes of a stick are no axis"


def test_axes_are_ordered_as_the_tensor_has_them_and_not_as_the_file_lists_them() -> None:
    slices = {c: (c // 2, c % 2) for c in range(4)}
    expected = core_view(4, [Share(8, 4, (0, 1, 0, 1)), Share(4, 2, (0, 0, 1, 1))])
    assert view({"x": 2, "mb": 2}, slices) == expected
    turned = {c: (b, a) for c, (a, b) in slices.items()}
    assert view({"mb": 2, "x": 2}, turned) == expected


def test_cores_that_have_nothing_are_no_holders() -> None:
    found = view({"x": 2, "mb": 1}, {0: (0, 0), 2: (1, 0)})
    assert found.holders == (0, 2) and found.cores == 3
    assert view({"x": 2, "mb": 1}, {0: (0, 0), 1: (1, 0)}).holders is None
