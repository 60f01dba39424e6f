"""Sorts, the k largest and smallest, and places of the largest: as on the CPU, ties and NaN too."""

from __future__ import annotations

import math

import pytest
import torch

from tests.support.together import together

I31 = 1 << 31
INF, NAN = math.inf, math.nan

FLOATS = torch.tensor([3.0, NAN, -1.0, INF, 0.0, -0.0, 3.0, -INF, NAN, -1.0, 7.0])
WHOLE = torch.tensor([5, -I31, I31 - 1, 0, -1, 5, 5, 7, -I31, I31 - 1, 0])


@pytest.mark.parametrize(
    "x",
    [FLOATS.half(), FLOATS, WHOLE, WHOLE.int(), FLOATS > 0],
    ids=["float16", "float32", "int64", "int32", "bool"],
)
def test_every_sort_is_stable_and_nan_is_larger_than_all_numbers(x: torch.Tensor) -> None:
    table = torch.stack([x.roll(i) for i in range(3)])
    report = together(
        {
            "vector": lambda v, t: torch.sort(v, stable=True),
            "descending": lambda v, t: torch.sort(v, descending=True, stable=True),
            "rows": lambda v, t: torch.sort(t, dim=1, stable=True),
            "columns": lambda v, t: torch.sort(t, dim=0, descending=True, stable=True),
            "a row": lambda v, t: torch.argsort(t[1:2], dim=-1, stable=True),
            "one": lambda v, t: torch.sort(v[2:3], stable=True),
        },
        x,
        table,
        tolerance=0,
    )
    assert not report.fallbacks


def test_a_long_vector_of_few_values_keeps_their_order() -> None:
    experts = torch.randint(0, 8, (1500,), generator=torch.Generator().manual_seed(0))
    report = together({"sort": lambda x: torch.sort(x, stable=True)}, experts)
    assert not report.fallbacks


def test_the_k_largest_and_smallest_of_floats_and_integers() -> None:
    x = torch.randn(6, 40, generator=torch.Generator().manual_seed(0))
    x[2, 3] = NAN
    whole = torch.stack([WHOLE.roll(i) for i in range(6)])
    report = together(
        {
            "largest": lambda x, n: (torch.topk(x, 3), torch.topk(x, 2, 0), torch.topk(x[0], 4)),
            "smallest": lambda x, n: (torch.topk(x, 3, largest=False), x[:, 0].topk(2)),
            "integers": lambda x, n: (n.topk(2)[0], n[0].topk(4, largest=False)[0]),
            "places": lambda x, n: (n.max(1), n.min(0), n.argmax(-1), n.argmin(0), n.argmax()),
            "kept": lambda x, n: (n.max(1, keepdim=True), n.argmin(keepdim=True), n[1].max(0)),
        },
        x,
        whole,
        tolerance=0,
    )
    assert not report.fallbacks
