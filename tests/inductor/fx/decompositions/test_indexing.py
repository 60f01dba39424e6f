"""Histograms, stores of single elements, rows of views, and running sums of integers."""

from __future__ import annotations

import pytest
import torch

from tests.support.together import together
from torch_spyre.show.explain import explain


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_histogram_of_integers_counts_each_of_them_and_no_others() -> None:
    x = torch.tensor([0, 3, 7, 7, 8, -1, 3, 100, 3])
    actual = explain(lambda x: torch.histc(x.int(), bins=8, min=0, max=7), x.to("spyre"))
    assert actual.result.cpu().tolist() == [1, 0, 0, 3, 0, 0, 0, 2]
    assert not actual.fallbacks


def test_the_inverse_of_a_permutation_is_a_store_of_single_elements() -> None:
    order = torch.randperm(92, generator=seeded())
    values = torch.randn(92, generator=seeded()).half()
    report = together(
        {
            "inverse": lambda p, v: torch.empty_like(p).index_put(
                (p,), torch.arange(92, device=p.device)
            ),
            "some": lambda p, v: v.index_put((p[:20] - 92,), v[40:60]),
            "a number": lambda p, v: v.index_put((p[:7],), v.new_full((), 2.0)),
            "two indices": lambda p, v: v.reshape(4, 23).index_put((p[:5] % 4, p[:5] % 23), v[:5]),
        },
        order,
        values,
        tolerance=0,
    )
    assert not report.fallbacks


def test_a_store_beyond_the_vector_is_an_error() -> None:
    def store(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return x.index_put((places,), x[:2])

    x, places = torch.randn(9).half().to("spyre"), torch.tensor([3, 9]).to("spyre")
    with pytest.raises(RuntimeError, match="index 9 is out of bounds"):
        torch.compile(store)(x, places).cpu()


def test_scatter_along_a_dimension_finds_places_by_comparing() -> None:
    x = torch.randn(5, 70, generator=seeded()).half()
    places = torch.stack([torch.randperm(70, generator=seeded(i))[:4] for i in range(5)])
    report = together(
        {
            "a number": lambda x, i: x.scatter(1, i, 1.0),
            "rows": lambda x, i: x.scatter(0, i[:1, :1].expand(1, 70) % 5, -2.0),
            "values": lambda x, i: x.scatter(1, i[:, :1], x[:, 3:6]),
        },
        x,
        places,
        tolerance=0,
    )
    assert not report.fallbacks


def test_scatter_out_of_bounds_is_no_number() -> None:
    x, places = torch.ones(3, 8).half(), torch.tensor([[1], [8], [-1]])
    result = torch.compile(lambda x, i: x.scatter(1, i, 5.0))(x.to("spyre"), places.to("spyre"))
    result = result.cpu()
    assert result[0].tolist() == [1, 5, 1, 1, 1, 1, 1, 1] and result[1:].isnan().all()


def test_rows_of_views_are_gathered_by_the_card() -> None:
    x, rows = torch.randn(2, 23, 96, generator=seeded()).half(), torch.tensor([45, 0, 7, 7, -1])
    report = together(
        {
            "merged": lambda x, i: x.view(-1, 96)[i],
            "a part": lambda x, i: x[0, 3:][i % 20],
            "turned": lambda x, i: x[1].t()[i],
        },
        x,
        rows,
        tolerance=0,
    )
    assert not report.fallbacks


def test_positions_are_running_sums_of_masks() -> None:
    mask = torch.rand(2, 23, generator=seeded()) > 0.4
    long = torch.rand(2500, generator=seeded()) > 0.5
    report = together(
        {
            "bool": lambda m, w, x: m.cumsum(1),
            "int64": lambda m, w, x: ((w.cumsum(1) - 1) * w)[:, 1:],
            "int32": lambda m, w, x: (torch.cumsum(m.int(), dim=1).type_as(m.int()) + 3) * m.int(),
            "columns": lambda m, w, x: w.cumsum(0, dtype=torch.int32),
            "longer than a triangle": lambda m, w, x: x.cumsum(0),
            "sums": lambda m, w, x: (w.sum(-1) - 1, w.sum(), w.sum((0, 1), keepdim=True)),
        },
        mask,
        mask.long(),
        long,
    )
    assert not report.fallbacks


def test_sums_that_may_be_beyond_what_float32_counts_are_left_to_the_host() -> None:
    x = torch.tensor([[1 << 24, 1, 1], [-(1 << 24), -1, -1]])
    report = together({"sums": lambda x: (x.sum(1), x.cumsum(1), x.sum())}, x)
    assert len(report.fallbacks) == 3
    assert all("beyond 2**24" in step.reason for step in report.fallbacks)
