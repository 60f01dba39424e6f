"""Quotients and remainders of integers by a number are exact on the card, over all of 32 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support.together import together

I31 = 1 << 31
DIVISORS = (1, 2, 3, 7, 10, 64, 1000, 65537, (1 << 21) - 1, 1 << 21)


def quotients(n: int) -> Callable[[torch.Tensor], Any]:
    return lambda x: (
        x // n,
        x % n,
        torch.div(x, n, rounding_mode="trunc"),
        torch.fmod(x, n),
    )


def around_multiples(n: int) -> torch.Tensor:
    """Where a quotient that is rounded would be one off."""
    times = torch.tensor([0, 1, 2, 1000, I31 // n - 1, I31 // n])
    near = (times[:, None] * n + torch.tensor([-1, 0, 1])).flatten()
    near = torch.cat([near, -near])
    return near[(near >= -I31) & (near < I31)]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_quotients_by_a_number_are_those_of_the_cpu(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.cat([
        *map(around_multiples, DIVISORS),
        torch.tensor([I31 - 1, -I31, -I31 + 1, 0, -1]),
        torch.randint(-I31, I31, (3000,), generator=generator),
    ]).to(dtype)  # fmt: skip
    report = together({str(n): quotients(n) for n in DIVISORS}, x)
    assert not report.fallbacks


def test_other_divisors_are_left_to_the_host() -> None:
    x = torch.tensor([7, -7, 0, 12])
    programs: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
        "negative": lambda x, y: x // -2,
        "large": lambda x, y: x % ((1 << 21) + 1),
        "a tensor": lambda x, y: x // y,
    }
    report = together(programs, x, torch.tensor([2, 3, -4, 5]))
    assert sorted(step.reason.split(", ")[-1] for step in report.fallbacks) == [
        "not -2",
        "not 2097153",
        "not by a tensor",
    ]
