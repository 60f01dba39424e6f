"""Stores through an index tensor: rows go straight to their places, the rest to the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_spyre
from torch_spyre.show.explain import Explanation


def numbers(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    """Integers that every format holds exactly."""
    return torch.arange(torch.Size(shape).numel()).reshape(shape).remainder(97).to(dtype)


def rows(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def assign(target: torch.Tensor, index: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    target[:, :, index] = value
    return target


def all_layers(cache: torch.Tensor, index: torch.Tensor, value: torch.Tensor) -> None:
    for number, layer in enumerate(cache.unbind()):
        layer.index_copy_(1, index, value + number)


def turned(cache: torch.Tensor, index: torch.Tensor, value: torch.Tensor) -> None:
    cache.transpose(1, 2).index_copy_(1, index, value)


def check(function: Callable[..., Any], *inputs: torch.Tensor) -> Explanation:
    """The result and every input after the call are those of the CPU."""
    on_cpu = [t.clone() for t in inputs]
    expected = function(*on_cpu)
    on_card = [t.to("spyre") for t in inputs]
    told = torch_spyre.explain(function, *on_card)
    assert expected is None or torch.equal(told.result.cpu(), expected)
    for actual, wanted in zip(on_card, on_cpu, strict=True):
        assert torch.equal(actual.cpu(), wanted)
    return told


IN_PLACE: list[tuple[str, Callable[..., Any], tuple[torch.Tensor, ...]]] = [
    ("a cache", lambda c, i, v: c.index_copy_(2, i, v),
     (numbers(2, 3, 10, 64), rows(7, 0, 3), numbers(2, 3, 3, 64) + 1)),
    ("rows for many cores", lambda c, i, v: c.index_copy_(0, i, v),
     (numbers(100, 64), torch.arange(99, 35, -1), numbers(64, 64) + 1)),
    ("one position", lambda c, i, v: c.index_copy_(2, i, v),
     (numbers(2, 3, 10, 64), rows(9), numbers(2, 3, 1, 64) + 1)),
    ("rows that end inside a stick", lambda c, i, v: c.index_copy_(2, i, v),
     (numbers(2, 3, 10, 80), rows(7), numbers(2, 3, 1, 80) + 1)),
    ("rows shorter than a stick, counted from the end", assign,
     (numbers(2, 3, 10, 32), rows(-1, 2), numbers(2, 3, 2, 32) + 1)),
    ("one value for all rows", lambda c, i, v: c.index_put_((i,), v),
     (numbers(10, 100), rows(4, 9, 2), numbers(100) + 1)),
    ("two dimensions of indices", lambda c, i, v: c.index_put_((i,), v),
     (numbers(10, 100), torch.tensor([[1, 2], [5, 7]]), numbers(2, 2, 100) + 1)),
    ("integers", lambda c, i, v: c.index_copy_(0, i, v),
     (numbers(10, 64, dtype=torch.int64), rows(4, 9, 2), numbers(3, 64, dtype=torch.int64) + 1)),
    ("float32", lambda c, i, v: c.index_copy_(0, i, v),
     (numbers(10, 100).float(), rows(4, 8, 2), numbers(3, 100).float() + 1)),
    ("one layer of a cache", lambda c, i, v: c[1].index_copy_(2, i, v),
     (numbers(3, 2, 3, 10, 64), rows(7, 9, 3), numbers(2, 3, 3, 64) + 1)),
    ("some heads of it", lambda c, i, v: c[1, :, 1:3].index_copy_(2, i, v),
     (numbers(3, 2, 3, 10, 64), rows(7, 3), numbers(2, 2, 2, 64) + 1)),
    ("a transposed tensor", turned,
     (numbers(2, 3, 10, 64), rows(7, 3), numbers(2, 2, 3, 64) + 1)),
]  # fmt: skip


@pytest.mark.parametrize(("function", "inputs"), [pytest.param(f, i, id=n) for n, f, i in IN_PLACE])
def test_rows_are_written_in_place_by_one_operation(
    function: Callable[..., Any], inputs: tuple[torch.Tensor, ...]
) -> None:
    told = check(function, *inputs)
    assert not told.fallbacks
    assert [op.opfunc for op in told.ops] == ["identity"], "nothing but the rows is moved"


NATIVE: list[tuple[str, Callable[..., Any], tuple[torch.Tensor, ...]]] = [
    ("a number", lambda c, i: c.index_fill_(0, i, 3.0), (numbers(10, 100), rows(4, 9, 2))),
    ("a new tensor", lambda c, i, v: c.index_copy(1, i, v) * 2,
     (numbers(4, 10, 100), rows(4, 9, 2), numbers(4, 3, 100) + 1)),
    ("zeros made in the graph",
     lambda i, v: torch.zeros(2, 10, 64, dtype=v.dtype, device=v.device).index_copy_(1, i, v) + 1,
     (rows(0, 1, 2), numbers(2, 3, 64))),
    ("computed rows and values", lambda c, i, v: c.index_copy_(0, i + 1, v * 2),
     (numbers(10, 100), rows(4, 8, 2), numbers(3, 100) + 1)),
    ("read afterwards", lambda c, i, v: (c.index_copy_(0, i, v) + 1).amax(0),
     (numbers(10, 100), rows(4, 8, 2), numbers(3, 100) + 1)),
    ("read before and after", lambda c, i, v: c + c.index_copy(0, i, v),
     (numbers(10, 100), rows(4, 8, 2), numbers(3, 100) + 1)),
    ("along the sticks of an input", lambda c, i, v: c.index_copy_(1, i, v),
     (numbers(4, 100), rows(4, 9, 2), numbers(4, 3) + 1)),
    ("twice along the sticks", lambda c, i, v: c.index_copy_(1, i, v).index_copy_(1, i + 1, v * 2),
     (numbers(4, 100), rows(4, 9, 2), numbers(4, 3) + 1)),
    ("a view", lambda c, i, v: c[:, 1].index_copy_(0, i, v),
     (numbers(10, 3, 100), rows(4, 8, 2), numbers(3, 100) + 1)),
    ("a transposed tensor", lambda c, i, v: c.t().index_copy_(0, i, v),
     (numbers(100, 10), rows(4, 8, 2), numbers(3, 100) + 1)),
    ("pages as one table", lambda c, i, v: c.view(-1, 2, 64).index_copy_(0, i, v),
     (numbers(3, 8, 2, 64), rows(9, 23), numbers(2, 2, 64) + 1)),
    ("all layers", all_layers, (numbers(3, 2, 10, 64), rows(5, 2), numbers(2, 2, 64) + 1)),
    ("a layer, along the sticks", lambda c, i, v: c[1].index_copy_(1, i, v),
     (numbers(3, 8, 100), rows(5, 99), numbers(8, 2) + 1)),
    ("a part of a dimension", lambda c, i, v: c[1, 2:7].index_copy_(0, i, v),
     (numbers(3, 8, 2, 64), rows(3, 4), numbers(2, 2, 64) + 1)),
    ("a layer that is read afterwards", lambda c, i, v: c[2].index_copy_(0, i, v) + c[0],
     (numbers(3, 8, 2, 64), rows(3, 4), numbers(2, 2, 64) + 1)),
    ("a layer that is read before and after",
     lambda c, i, v: c.clone() + c[2].index_copy_(0, i, v) + c,
     (numbers(3, 8, 2, 64), rows(3, 4), numbers(2, 2, 64) + 1)),
    ("single elements of a vector", lambda c, i, v: c.index_copy_(0, i, v),
     (numbers(100), rows(4, 9, 2), numbers(3) + 1)),
]  # fmt: skip


@pytest.mark.parametrize(("function", "inputs"), [pytest.param(f, i, id=n) for n, f, i in NATIVE])
def test_other_stores_of_rows_are_native_too(
    function: Callable[..., Any], inputs: tuple[torch.Tensor, ...]
) -> None:
    assert not check(function, *inputs).fallbacks


ON_THE_HOST: list[tuple[str, str, Callable[..., Any], tuple[torch.Tensor, ...]]] = [
    ("sums", "no stores with atomic_add", lambda c, i, v: c.index_put_((i,), v, accumulate=True),
     (numbers(10, 100), rows(4, 4, 2), numbers(3, 100) + 1)),
    ("two dimensions apart", "scatters along one dimension",
     lambda c, i, j, v: torch.ops.aten.index_put_(c, [i, None, j], v),
     (numbers(10, 8, 100), rows(4, 4, 2), rows(1, 2, 3), numbers(3, 8) + 1)),
    ("a place for each element", "single elements", lambda c, i, v: c.scatter_(1, i, v),
     (numbers(4, 100), rows(4, 9).expand(4, 2).contiguous(), numbers(4, 2) + 1)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "function", "inputs"), [pytest.param(r, f, i, id=n) for n, r, f, i in ON_THE_HOST]
)
def test_what_the_card_cannot_store_is_left_to_the_host_with_a_reason(
    reason: str, function: Callable[..., Any], inputs: tuple[torch.Tensor, ...]
) -> None:
    (step,) = check(function, *inputs).fallbacks
    assert reason in step.reason


def test_a_position_out_of_bounds_is_an_error_that_names_it() -> None:
    cache, value = numbers(4, 64).to("spyre"), numbers(1, 64).to("spyre")
    store = torch.compile(lambda c, i, v: c.index_copy_(0, i, v))
    with pytest.raises(RuntimeError, match="index 4 is out of bounds for dimension with size 4"):
        store(cache, rows(4).to("spyre"), value).cpu()


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64], ids=str)
def test_rows_of_a_part_that_the_card_cannot_hold_are_written_by_the_host(
    dtype: torch.dtype,
) -> None:
    def function(c: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        c[1].index_copy_(0, i, v)
        return c + 1

    values = numbers(2, 70, dtype=dtype) + (2**40 if dtype is torch.int64 else 0)
    told = check(function, numbers(3, 8, 70, dtype=dtype), rows(5, 1), values)
    assert told.fallbacks
