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


def chosen(x: torch.Tensor, w: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """In float32 on the CPU; with something before and after on the card, which it may join."""
    if x.device.type == "cpu":
        product = torch.bmm(x.float().unsqueeze(1), w.float()[numbers.long()]).squeeze(1)
        return torch.relu(product + 1)
    return torch.relu(torch.ops.spyre.gathered_matmul(x, w, numbers) + 1)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((130, 200, 300, 16), torch.float16),
        ((64, 64, 64, 3), torch.float32),
        ((7, 65, 33, 2), torch.bfloat16),
        ((1, 128, 64, 4), torch.float16),
    ],
    ids=str,
)
def test_rows_choose_their_matrix_in_any_order_and_no_matrix_is_copied(
    shape: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    rows, depth, columns, matrices = shape
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, depth, generator=generator).to(dtype)
    w = (torch.randn(matrices, depth, columns, generator=generator) / depth**0.5).to(dtype)
    numbers = torch.randint(-matrices, matrices, (rows,), generator=generator, dtype=torch.int32)
    report = together({"chosen": chosen}, x, w, numbers, tolerance=2.0**-6)
    assert not report.fallbacks
    names = [op.opfunc for op in report.ops if "scratchpads" not in op.reason]
    assert names == ["batchmatmul", "add", "relufwd"]


def test_the_order_of_rows_changes_no_bit() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(96, 128, generator=generator).half()
    w = torch.randn(4, 128, 64, generator=generator).half()
    numbers = torch.randint(0, 4, (96,), generator=generator, dtype=torch.int32)
    order = torch.argsort(numbers)
    compiled = torch.compile(chosen)
    mixed = compiled(x.to("spyre"), w.to("spyre"), numbers.to("spyre")).cpu()
    apart = compiled(x[order].to("spyre"), w.to("spyre"), numbers[order].to("spyre")).cpu()
    assert torch.equal(mixed[order], apart)


def test_a_matrix_that_is_not_there_is_an_error() -> None:
    x, w = torch.randn(3, 64).half().to("spyre"), torch.randn(4, 64, 64).half().to("spyre")
    numbers = torch.tensor([0, 4, 1], dtype=torch.int32).to("spyre")
    with pytest.raises(RuntimeError, match="index 4 is out of bounds for dimension with size 4"):
        torch.compile(chosen)(x, w, numbers).cpu()
