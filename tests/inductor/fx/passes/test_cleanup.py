"""Rewrites of the FX graph: known indices, masks that say nothing, repeated heads, transfers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_spyre
from tests.support.together import together
from torch_spyre._inductor.fx.passes.cleanup import _have_same_bits
from torch_spyre._inductor.inspect import debug_dir
from torch_spyre.show.explain import Explanation

F = torch.nn.functional


def values(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-8, 9, shape, generator=generator).half() / 8


def check(function: Callable[..., Any], *inputs: torch.Tensor) -> Explanation:
    """As the CPU, bit for bit."""
    expected = function(*inputs)
    told = torch_spyre.explain(function, *(t.to("spyre") for t in inputs))
    assert torch.equal(told.result.cpu(), expected)
    assert not told.fallbacks
    return told


def span(x: torch.Tensor, *arguments: int) -> torch.Tensor:
    return torch.arange(*arguments, device=x.device)


RANGES: list[tuple[str, Callable[..., Any]]] = [
    ("rows and columns", lambda x: x[span(x, 6)[:, None], span(x, 70)] + 1),
    ("with dimensions in between", lambda x: x[span(x, 6)[:, None, None], span(x, 70)] + 1),
    ("columns outside", lambda x: x[span(x, 6), span(x, 70)[:, None]] + 1),
    ("a part", lambda x: x[span(x, 2, 5)[:, None], span(x, 64)] + 1),
    ("one row", lambda x: x[span(x, 3, 4), span(x, 70)] + 1),
    ("in steps", lambda x: x[span(x, 1, 6, 2)] + 1),
    ("from the end", lambda x: x[span(x, -6, -2)] + 1),
]


@pytest.mark.parametrize("function", [pytest.param(f, id=n) for n, f in RANGES])
def test_indices_that_are_ranges_make_a_view(function: Callable[..., Any]) -> None:
    told = check(function, values(6, 70))
    assert not any("IEEE_INT32" in op.formats for op in told.ops), "no index is read"


def test_the_same_range_twice_is_a_diagonal_and_no_view() -> None:
    x = values(6, 6)
    told = torch_spyre.explain(lambda x: x[span(x, 6), span(x, 6)] + 1, x.to("spyre"))
    assert torch.equal(told.result.cpu(), x.diagonal() + 1)


def test_a_range_out_of_bounds_is_refused_as_by_pytorch() -> None:
    x = values(6, 70).to("spyre")
    with pytest.raises((IndexError, RuntimeError), match=r"out of (bounds|range)"):
        torch.compile(lambda x: x[span(x, 7)[:, None], span(x, 70)] + 1)(x).cpu()


def test_masks_that_let_everything_through_cost_nothing() -> None:
    def masked(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        everything = span(x, 6)[:, None] >= 0
        return torch.where(everything & mask, x, x * 2)

    told = check(masked, values(6, 70), values(6, 70) > 0)
    asked_for = [op.opfunc for op in told.ops if not op.reason]  # not copies of the plan
    assert sorted(asked_for) == ["mul", "where3"]


def test_masks_that_let_something_through_stay() -> None:
    def masked(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.where((span(x, 6)[:, None] >= 2) & mask, x, x * 2)

    check(masked, values(6, 70), values(6, 70) > 0)


def repeat(x: torch.Tensor, groups: int) -> torch.Tensor:
    """As transformers does it."""
    b, heads, s, d = x.shape
    return x[:, :, None].expand(b, heads, groups, s, d).reshape(b, heads * groups, s, d)


@pytest.mark.parametrize("queries", [1, 5])
def test_products_with_repeated_heads_do_not_repeat_them(queries: int) -> None:
    def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return q @ repeat(k, 4).transpose(-1, -2)

    # Sums of 64 signs: exact in 9 fraction bits.
    told = check(scores, values(2, 8, queries, 64).sign(), values(2, 2, 30, 64).sign())
    moved = [r.elements for r in told.restickifies if r.buffer.startswith("arg")]
    assert max(moved) <= 2 * 2 * 30 * 64


def test_grouped_queries_attend_as_on_the_cpu() -> None:
    q, k, v = values(2, 8, 5, 64), values(2, 2, 30, 64), values(2, 2, 30, 64)
    mask = torch.ones(2, 1, 5, 30, dtype=torch.bool)
    mask[1, :, :, 7:] = False
    expected = F.scaled_dot_product_attention(
        q.float(), k.float(), v.float(), mask, enable_gqa=True
    )
    inputs = [t.to("spyre") for t in (q, k, v, mask)]
    told = torch_spyre.explain(
        lambda q, k, v, m: F.scaled_dot_product_attention(q, repeat(k, 4), repeat(v, 4), m), *inputs
    )
    assert not told.fallbacks
    error = (told.result.cpu().float() - expected).abs().max() / expected.abs().max()
    assert error < 8 * 2**-10  # eight roundings from the scaled query to the result


def test_a_tensor_from_the_host_does_not_cut_the_graph() -> None:
    def late(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x * 2)
        return y + count.to(x.device)

    x = values(6, 70)
    told = torch_spyre.explain(late, x.to("spyre"), torch.tensor(3.0).half())
    assert torch.equal(told.result.cpu(), late(x, torch.tensor(3.0).half()))
    assert len(told.kernels) == 1


def test_a_table_that_is_also_a_weight_is_turned_once() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(96, 128)
            self.head = torch.nn.Linear(128, 96, bias=False)
            self.head.weight = self.words.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.words(ids))

    torch.manual_seed(0)
    model = Tied()
    ids = torch.tensor([[5, 3, 90]])
    expected = model(ids)
    on_card = model.half().to("spyre")
    with torch.no_grad():
        told = torch_spyre.explain(on_card, ids.to("spyre"))
    computed = [op.opfunc for op in told.ops if op.opfunc != "ringmove"]
    assert computed == ["identity", "batchmatmul"]
    error = (told.result.cpu().float() - expected).abs().max() / expected.abs().max()
    assert error < 3 * 2**-10


def test_a_number_that_no_tensor_depends_on_does_not_compile_again() -> None:
    class Counter:
        def __init__(self) -> None:
            self.count = 7

    def step(x: torch.Tensor, counter: Counter) -> torch.Tensor:
        counter.count += 1
        return x + 1

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    counter, compiled = Counter(), torch.compile(step, fullgraph=True)
    x = values(6, 70).to("spyre")
    for _ in range(5):
        compiled(x, counter)
    assert counter.count == 12
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2


def test_a_factor_is_applied_before_the_views_of_a_product():
    def heads(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).view(2, 6, 4, 32).transpose(1, 2) * 0.5 + 1

    x, w = values(12, 64), values(64, 128)
    told = check(heads, x, w)
    names = [op.opfunc for op in told.ops]
    assert names.index("mul") < names.index("relayout") < names.index("add")

    def used_twice(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        product = (x @ w).view(2, 6, 128)
        return product * 2 - product

    check(used_twice, x, w)


def test_constants_that_are_equal_are_kept_once() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = x + torch.arange(64, device=x.device).view(1, 64) / 8
        return x - torch.arange(64, device=x.device).flip(0) / 8

    x = torch.ones(4, 64, dtype=torch.float16)
    torch._dynamo.reset()
    with debug_dir.listen() as record:
        result = torch.compile(program)(x.to("spyre"))
    assert torch.allclose(result.cpu().float(), program(x.float()), atol=0.05)
    (plan,) = record.plans
    assert len([name for name in plan.buffers if "_spyre_constant" in name]) == 2


def test_constants_that_are_equal_and_changed_in_place_stay_apart() -> None:
    def program(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        first = torch.arange(64, device=x.device).to(x.dtype).view(8, 8).repeat(1, 8)
        second = torch.arange(64, device=x.device).to(x.dtype).view(8, 8).repeat(1, 8)
        first[index] = x
        second[index] = 2 * x
        return first + 3 * second

    x, index = torch.ones(2, 64, dtype=torch.float16), torch.tensor([1, 5])
    torch._dynamo.reset()
    compiled = torch.compile(program)
    expected = program(x.float(), index)
    for _ in range(2):  # and what is kept is as it was
        result = compiled(x.to("spyre"), index.to("spyre"))
        assert torch.allclose(result.cpu().float(), expected, rtol=0.01)


def test_counters_that_are_changed_at_the_end_are_computed_there() -> None:
    def program(x: torch.Tensor, count: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
        more, larger = count * 2 + 1, size + 1
        y = torch.exp(x * size) + count
        count.copy_(more)
        size.copy_(larger)
        return y + size

    def inputs() -> list[torch.Tensor]:
        return [values(4, 64), torch.tensor([3, 5], dtype=torch.int32).repeat(32), values(64)]

    here, there = inputs(), [t.to("spyre") for t in inputs()]
    torch._dynamo.reset()
    compiled = torch.compile(program)
    for _ in range(2):
        wide = [here[0].float(), here[1], here[2].float()]
        expected, result = program(*wide), compiled(*there)
        here[2] = wide[2].half()
        assert torch.allclose(result.cpu().float(), expected, rtol=0.01)
        assert torch.equal(there[1].cpu(), here[1])
        assert torch.equal(there[2].cpu(), here[2])


def test_constants_are_compared_whatever_their_strides() -> None:
    """One element that is expanded is contiguous with a stride of 0."""
    one = torch.ones(()).half().expand(1)
    assert _have_same_bits(one, torch.ones(1).half())
    assert not _have_same_bits(one, -one)


def test_what_is_made_of_constant_tensors_is_computed_while_compiling() -> None:
    def buckets(x: torch.Tensor) -> torch.Tensor:
        at = torch.arange(23, device=x.device)
        apart = at[:, None] - at
        half = torch.tensor(4.0, device=x.device)
        far = torch.ceil(torch.log(apart.abs() / half + 1) / torch.log(torch.tensor(3.0)) * 3)
        return x + torch.where(apart.abs() <= half, apart, far.long() * torch.sign(apart))

    report = together({"buckets": buckets}, torch.zeros(23, 23))
    assert not report.fallbacks
    assert [op.opfunc for op in report.ops] == ["int32tofp", "add"]


def test_known_numbers_of_several_dimensions_are_rows_of_one() -> None:
    def rows(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        batch = torch.arange(2, device=x.device)[:, None, None]
        places = torch.tensor([[1, 4, -3]], device=x.device)[..., None]
        columns = torch.arange(8, device=x.device)
        return (
            x[batch, places, columns],  # whole rows
            x[batch, places, columns.flip(0)],
            x[batch[..., 0], places[..., 0]],
            x[:, places[..., 0], columns[:3]],
            torch.gather(x, 1, places.expand(2, 3, 8).remainder(5)),
        )

    x = torch.arange(80.0).reshape(2, 5, 8)
    report = together({"rows": rows}, x, tolerance=0)
    assert not report.fallbacks


def test_a_known_index_out_of_bounds_is_an_error() -> None:
    def beyond(x: torch.Tensor) -> torch.Tensor:
        return x[torch.tensor([0, 1], device=x.device), torch.tensor([4, 5], device=x.device)]

    with pytest.raises((RuntimeError, IndexError), match="out of bounds"):
        torch.compile(beyond)(torch.randn(2, 5).half().to("spyre")).cpu()
