"""Grouped products: each row times the matrix of its expert."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from tests.support.together import together


def by_hand(x: torch.Tensor, w: torch.Tensor, ends: Sequence[int]) -> torch.Tensor:
    """A loop over experts in float32; rows after the last one are zeros."""
    result, first = torch.zeros(x.shape[0], w.shape[2]), 0
    for matrix, end in zip(w.float(), ends):
        result[first:end] = x[first:end].float() @ matrix
        first = end
    return result


@pytest.mark.parametrize(
    ("rows", "ends"),
    [
        (23, [0, 5, 5, 6, 20, 23]),
        (23, [23, 23, 23, 23, 23, 23]),
        (23, [0, 0, 0, 0, 0, 23]),
        (23, [2, 3, 4, 5, 6, 7]),  # the others have no expert
        (1, [0, 0, 1, 1, 1, 1]),
        (70, [64, 65, 66, 67, 68, 70]),
    ],
)
def test_rows_are_multiplied_by_the_matrix_of_their_expert(rows: int, ends: list[int]) -> None:
    pytest.importorskip("transformers.integrations.moe", reason="pip install 'torch-spyre[models]'")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 96, generator=generator).half()
    w = torch.randn(6, 72, 96, generator=generator).half() / 8  # transposed, as models have it
    offs = torch.tensor(ends, dtype=torch.int32)

    def program(x: torch.Tensor, w: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        if x.device.type == "cpu":
            return by_hand(x, w.transpose(1, 2), offs.tolist())
        return torch.ops.transformers.grouped_mm_fallback(x, w.transpose(1, 2), offs)

    report = together({"grouped": program}, x, w, offs)
    assert not report.fallbacks


def test_the_grouped_product_of_pytorch_is_the_same() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(24, 64, generator=generator).bfloat16()
    w = torch.randn(4, 64, 128, generator=generator).bfloat16() / 8
    offs = torch.tensor([3, 3, 20, 24], dtype=torch.int32)

    def program(x: torch.Tensor, w: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        if x.device.type == "cpu":
            return by_hand(x, w, offs.tolist()).to(x.dtype)
        return torch._grouped_mm(x, w, offs=offs)

    report = together({"grouped": program}, x, w, offs)
    assert not report.fallbacks
