"""Assignments to a part of a tensor: they move what they write, not what they write into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_spyre
from torch_spyre.show.explain import Explanation

SHAPE = (4, 32, 128)


def numbers(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    """Integers that every format holds exactly, none of them above 96."""
    return torch.arange(torch.Size(shape).numel()).reshape(shape).remainder(97).to(dtype)


def other(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    """Numbers that are in no buffer before they are written to it."""
    return numbers(*shape, dtype=dtype) + 100


def check(function: Callable[..., Any], *inputs: torch.Tensor) -> Explanation:
    """The result and every input after the call are those of the CPU."""
    on_cpu = [t.clone() for t in inputs]
    expected = function(*on_cpu)
    on_card = [t.to("spyre") for t in inputs]
    torch.spyre.reset_counters()
    told = torch_spyre.explain(function, *on_card)
    for actual, wanted in zip(_tensors(told.result), _tensors(expected), strict=True):
        assert torch.equal(actual.cpu(), wanted)
    for actual, wanted in zip(on_card, on_cpu, strict=True):
        assert torch.equal(actual.cpu(), wanted)
    return told


def _tensors(result: Any) -> list[torch.Tensor]:
    if result is None:
        return []
    return [result] if isinstance(result, torch.Tensor) else list(result)


def changed_bytes(function: Callable[..., Any], *inputs: torch.Tensor) -> int:
    """Of the sticks of the first input in which a function changes something."""
    before, *rest = (t.clone() for t in inputs)
    after = before.clone()
    function(after, *rest)
    lanes = 128 // before.itemsize
    assert before.shape[-1] % lanes == 0
    return int((before != after).unflatten(-1, (-1, lanes)).any(-1).sum()) * 128


def rows(c: torch.Tensor, v: torch.Tensor) -> None:
    c[:, 3:4] = v


def every_second_row(c: torch.Tensor, v: torch.Tensor) -> None:
    c[:, 1:9:2] = v


def two_places(c: torch.Tensor, v: torch.Tensor) -> None:
    c[:, 3:4] = v
    c[:, -9:-8] = v


def one_index(c: torch.Tensor, v: torch.Tensor) -> None:
    c[:, 3] = v


def nested(c: torch.Tensor, v: torch.Tensor) -> None:
    c[1:3][:, 3:5][..., 64:] = v


def of_parts(c: torch.Tensor, v: torch.Tensor) -> None:
    c.chunk(2, 1)[1].split(8, 1)[0][:, 2:4] = v


def lanes(c: torch.Tensor, v: torch.Tensor) -> None:
    c[1:3, :, 3:5] = v


def lanes_of_two_sticks(c: torch.Tensor, v: torch.Tensor) -> None:
    c[1:3, :, 60:70] = v


def one_lane(c: torch.Tensor, v: torch.Tensor) -> None:
    c[1:3, ..., 127] = v


def transposed(c: torch.Tensor, v: torch.Tensor) -> None:
    c.transpose(0, 1)[3:4] = v


def transposed_twice(c: torch.Tensor, v: torch.Tensor) -> None:
    t = c.transpose(0, 1)
    t[3:4] = v
    t[7:8] = v


def flat(c: torch.Tensor, v: torch.Tensor) -> None:
    t = c.view(-1, 128)
    t[30:34] = v
    t[70:74] = v


def copied(c: torch.Tensor, v: torch.Tensor) -> None:
    c[1].narrow(0, 3, 2).copy_(v)


def filled(c: torch.Tensor) -> None:
    c[:, 3:5].fill_(200.0)
    c[2, 9].zero_()


def added(c: torch.Tensor, v: torch.Tensor) -> None:
    c[:, 3:5].add_(v)


WRITES: list[tuple[str, Callable[..., Any], tuple[torch.Tensor, ...]]] = [
    ("a row of each", rows, (other(4, 1, 128),)),
    ("one value for all", rows, (other(128),)),
    ("every second row", every_second_row, (other(4, 4, 128),)),
    ("two places", two_places, (other(4, 1, 128),)),
    ("one index", one_index, (other(4, 128),)),
    ("a part of a part", nested, (other(2, 2, 64),)),
    ("a part of a split", of_parts, (other(4, 2, 128),)),
    ("a part of a stick", lanes, (other(2, 32, 2),)),
    ("parts of two sticks", lanes_of_two_sticks, (other(2, 32, 10),)),
    ("one lane", one_lane, (other(2, 32),)),
    ("a transposed view", transposed, (other(1, 4, 128),)),
    ("two places of a transposed view", transposed_twice, (other(1, 4, 128),)),
    ("two places of a flat view", flat, (other(4, 128),)),
    ("copy_", copied, (other(2, 128),)),
    ("numbers", filled, ()),
    ("arithmetic", added, (other(128),)),
]  # fmt: skip


@pytest.mark.parametrize(("function", "values"), [pytest.param(f, v, id=n) for n, f, v in WRITES])
def test_a_write_to_a_part_moves_that_part_alone(
    function: Callable[..., Any], values: tuple[torch.Tensor, ...]
) -> None:
    buffer = numbers(*SHAPE)
    told = check(function, buffer, *values)
    counted = torch.spyre.counters()
    written = changed_bytes(function, buffer, *values)
    assert not told.fallbacks
    assert counted["hbm_write_bytes"] == written
    assert counted["hbm_read_bytes"] <= written + 256, "what is written, and numbers"
    assert told.hbm_bytes == counted["hbm_write_bytes"] + counted["hbm_read_bytes"]
    assert "test_slice_writes.py" in told.ops[-1].source, "operations know their line"


# ---- The old value is still needed --------------------------------------------------------------


def read_before(c: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    before = c.amax(-1)
    c[:, 3:4] = v
    return before + c.amax(-1)


def part_read_after(c: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    before = c[:, 3:4].clone()
    c[:, 3:4] = v
    return before, c[:, 2:5] - before


def all_read_after(c: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    before = c.clone()
    c[:, 3:4] = v
    return before + c


def not_changed(c: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.slice_scatter(c, v, 1, 3, 4) + c


def not_changed_along_lanes(c: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.select_scatter(c, v[:, 0, :32], 2, 5).transpose(0, 1) + c.transpose(0, 1)


def not_changed_in_steps(c: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.slice_scatter(c, v, 1, 3, 4, 2) + c.transpose(0, 1).contiguous().transpose(0, 1)


def swapped(c: torch.Tensor, v: torch.Tensor) -> None:
    first = c[:, 0].clone()
    c[:, 0] = c[:, 1]
    c[:, 1] = first + v[:, 0]


def shifted(c: torch.Tensor, v: torch.Tensor) -> None:
    c[:, :-1] = c[:, 1:].clone()
    c[:, -1:] = v


def two_views(c: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    first, last = c[:, :20], c[:, 10:]
    first[:, 12:13] = v
    last.mul_(2)
    return first + last[:, :20]


@pytest.mark.parametrize(
    "function",
    [read_before, part_read_after, all_read_after, not_changed, not_changed_along_lanes,
     not_changed_in_steps, swapped, shifted, two_views],
)  # fmt: skip
def test_who_reads_the_old_value_gets_it(function: Callable[..., Any]) -> None:
    told = check(function, numbers(*SHAPE), other(4, 1, 128))
    assert not told.fallbacks


def test_a_slice_that_is_all_does_not_take_the_place_of_the_tensor() -> None:
    """Earlier writes to the tensor would go to what is assigned."""

    def function(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        y = (x * 2).index_copy(0, i, x[:1])
        return y.slice_scatter(v, 0, 0, 2)

    check(function, numbers(2, 64), torch.tensor([1]), other(2, 64))


def test_what_is_read_where_it_is_written_is_read_first() -> None:
    """PyTorch leaves open what eager copies do then; a graph is a function of the old value."""

    def shift(c: torch.Tensor) -> None:
        c[:, 1:] = c[:, :-1]

    before = numbers(4, 64, 256)
    on_card = before.to("spyre")
    torch.compile(shift)(on_card)
    assert torch.equal(on_card.cpu()[:, 1:], before[:, :-1])


def test_inputs_may_be_views_of_one_storage() -> None:
    def function(a: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        before = b + 1
        a[:, 3:4] = v
        b[:2].mul_(2)
        return before + b

    results = []
    for device in ("cpu", "spyre"):
        whole = numbers(4, 32, 128).to(device)
        value = other(4, 1, 128).to(device)
        run = torch.compile(function) if device == "spyre" else function
        result = run(whole[:, :20], whole[:, 10:].transpose(0, 1), value)
        results.append((result.cpu(), whole.cpu()))
    for expected, actual in zip(*results, strict=True):
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("begin", [0, 1])
def test_an_input_may_begin_anywhere_in_its_storage(begin: int) -> None:
    def function(c: torch.Tensor, v: torch.Tensor) -> None:
        t = c.transpose(0, 1)
        t[3:5] = v
        t[7:9] = v

    whole, value = numbers(8, 32, 128), other(2, 4, 128)
    on_card = whole.to("spyre")
    torch.compile(function)(on_card[begin::2], value.to("spyre"))
    function(whole[begin::2], value)
    assert torch.equal(on_card.cpu(), whole)


def test_a_result_of_the_host_can_be_written_to() -> None:
    def function(c: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        found = torch.sort(c, -1)[0]
        found[:, 3:4] = v
        found.unbind()[1][5:6].add_(2)
        return found + 1

    buffer, value = numbers(*SHAPE), other(4, 1, 128)
    actual = torch.compile(function)(buffer.to("spyre"), value.to("spyre"))
    assert torch.equal(actual.cpu(), function(buffer, value))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.bool, torch.int8]
)
def test_other_types(dtype: torch.dtype) -> None:
    def function(c: torch.Tensor, v: torch.Tensor) -> None:
        c[:, 3:5, 60:70] = v
        c[0, 1] = 1

    check(function, numbers(*SHAPE).to(dtype), numbers(4, 2, 10).to(dtype))


def test_gradients_go_through_writes() -> None:
    def function(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        y = torch.zeros_like(x)
        y[:, :8] = x[:, 8:] * 2
        y[..., 3:5] = v * 3
        y[1:, 2].mul_(x[1:, 3])
        return y * x

    x, v = (numbers(3, 16, 64) % 5) / 8, (numbers(3, 16, 2) % 7) / 8
    grads = []
    for device in ("cpu", "spyre"):
        inputs = [t.detach().clone().to(device).requires_grad_() for t in (x, v)]
        run = torch.compile(function) if device == "spyre" else function
        result = run(*inputs)
        result.sum().backward()
        grads.append([result.detach().cpu(), *(t.grad.cpu() for t in inputs)])
    for expected, actual in zip(*grads, strict=True):
        torch.testing.assert_close(actual, expected, atol=2e-3, rtol=2e-3)


def test_a_place_that_differs_from_call_to_call() -> None:
    """The start of the slice becomes an open number of one graph after the second call."""

    def function(c: torch.Tensor, v: torch.Tensor, start: int) -> torch.Tensor:
        c[:, :, start : start + v.shape[2]] = v
        return c[:, :, : start + 1].amax(2)

    compiled = torch.compile(function)
    buffer = numbers(2, 3, 16, 64)
    on_card = buffer.to("spyre")
    for start in (1, 5, 2, 15):
        value = other(2, 3, 1, 64) + start
        actual = compiled(on_card, value.to("spyre"), start)
        expected = function(buffer, value, start)
        assert torch.equal(actual.cpu(), expected)
        assert torch.equal(on_card.cpu(), buffer)
