"""Integer arithmetic is that of the CPU, bit for bit, however large the numbers are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from tests.support.together import together
from torch_spyre import _C
from torch_spyre._inductor.inspect import debug_dir

I31, I32, I53, I62, I63 = 1 << 31, 1 << 32, 1 << 53, 1 << 62, 1 << 63
EDGES = [0, 1, -1, 7, I31 - 1, -I31, I31, -I31 - 1, I32, I32 + 5, I53 + 1, -I53 - 1, I62, -I62,
         I63 - 1, -I63]  # fmt: skip
WITHIN_32 = [n for n in EDGES if -I31 <= n < I31]


def programs() -> dict[str, Callable[..., Any]]:
    return {
        "arithmetic": lambda x, y: (x + y, x - y, x * y, -x, abs(x), ~x, x + 1, x * x * x),
        "chain": lambda x, y: ((x * 3 + y) * x - 5) * y,
        "division": lambda x, y: (x // 7, x % 7, torch.fmod(x, 7), 7 % (x | 1)),
        "cut": lambda x, y: torch.div(x, 5, rounding_mode="trunc"),
        "added": lambda x, y: torch.zeros_like(x).index_put((x % 2,), y, accumulate=True) + 1,
        "bits": lambda x, y: (x & y, x | y, x ^ y, x << 3, x >> 2),
        "comparison": lambda x, y: (x < y, x == y, torch.where(x < y, x, y), x.clamp(-5, 5)),
        "reductions": lambda x, y: (x.sum(), x.prod(), x.amax(), x.amin(), x.argmax(), x.cumsum(0)),
        "then": lambda x, y: (x.sum() + y, (x * x) % 7 + 1, (x + y) - y, torch.maximum(x + 1, y)),
        "casts": lambda x, y: (x.int() + 1, x.short() * 3, x.to(torch.uint8) + 200, x.bool()),
    }


@pytest.mark.parametrize("numbers", [WITHIN_32, EDGES], ids=["within 32 bits", "beyond"])
def test_int64_is_exact(numbers: list[int]) -> None:
    x = torch.tensor(numbers)
    together(programs(), x, x.flip(0))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.int8, torch.uint8])
def test_narrow_integers_wrap_at_their_own_width(dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    x = torch.tensor([limits.min, limits.max, limits.max // 2 + 1, 3, 0]).to(dtype)
    together(
        {
            "own": lambda x, y: (x + y, x * y, x - y, -x, x + 1, x * x * x),
            "wide": lambda x, y: (x.long() + y.long(), x.long() * y, x.long() * 3 + 1),
            "back": lambda x, y: ((x.long() * 5).to(dtype), x.sum(), x.prod()),
        },
        x,
        x.flip(0),
    )


def test_floats_become_the_integers_that_they_become_on_the_cpu() -> None:
    x = torch.tensor([3e9, -3e9, 2.0**40, -(2.0**62), 1.5, -0.5, 16777217.0])
    together({"cast": lambda x: (x.long(), x.long() + 1, x.floor().long() * 2)}, x)


def test_larger_numbers_than_before_compile_again_and_smaller_ones_do_not() -> None:
    torch._dynamo.reset()
    seen = []

    def program(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1) * mask

    compiled = torch.compile(program, dynamic=False)
    mask = torch.tensor([1, 0, 1, 1])
    small, within, beyond = (torch.tensor([5, -6, 7, n]) for n in (8, I31 - 1, I62 + 1))
    for x in (small, within, small, beyond, within, small):
        with debug_dir.listen() as record:
            found = compiled(x.to("spyre"), mask.to("spyre"))
        assert torch.equal(found.cpu(), program(x, mask))
        seen.append(len(record.plans))
    assert seen == [1, 1, 0, 1, 0, 0]


def test_what_is_known_about_numbers_follows_what_is_written() -> None:
    x = torch.tensor([0, 1, 1]).to("spyre")
    assert _C._integer_class(x) == 1
    x[1:].fill_(70)
    assert _C._integer_class(x) == 24
    y = torch.zeros(3, dtype=torch.int64).to("spyre")
    y.copy_(x * 1_000_000)
    assert _C._integer_class(y) == _C._integer_class(y.clone()) == 32
    y[0] = I32
    assert _C._integer_class(y) == 64
    increased = torch.compile(lambda t: t.add_(1), dynamic=False)
    counter = torch.tensor([(1 << 24) - 2, 4]).to("spyre")
    for i, size in enumerate((24, 32, 32)):
        increased(counter)  # by a kernel, and by the host from there on
        assert _C._integer_class(counter) == size, i
    assert counter.tolist() == [(1 << 24) + 1, 7]


def test_positions_and_masks_stay_on_the_card() -> None:
    def positions(ids: torch.Tensor, mask: torch.Tensor, past: torch.Tensor) -> Any:
        table = torch.arange(512, device=ids.device)
        at = past + torch.arange(ids.shape[1], device=ids.device)
        return at, table[None] <= at[:, None], (1 - mask) * -5, at.clamp(max=3) * 128 + ids % 1

    ids, mask = torch.randint(2, 150_000, (2, 9)), torch.ones(2, 9, dtype=torch.int64)
    report = together({"positions": positions}, ids, mask, torch.tensor([40]))
    assert not report.fallbacks


def test_a_loop_counts_beyond_32_bits() -> None:
    def program(i: torch.Tensor) -> Any:
        step = (1 << 30) + 1
        return torch.while_loop(lambda i: i < 9 * step, lambda i: (i + step,), (i,))

    start = torch.tensor(3)
    found = torch.compile(program)(start.to("spyre"))
    assert [t.item() for t in tree_leaves(found)] == [t.item() for t in tree_leaves(program(start))]


def test_a_range_is_what_an_expression_can_give() -> None:
    from torch_spyre._inductor.lowering.int_ranges import _RULES, Range

    def of(name: str, *ends: tuple[float, float]) -> tuple[float, float]:
        found = _RULES[name](*(Range(*e) for e in ends))
        return found.low, found.high

    assert of("sub", (0, 5), (-3, 2)) == (-2, 8)
    assert of("mul", (-4, 2), (-3, 5)) == (-20, 12)
    assert of("abs", (-4, 2)) == (0, 4) and of("abs", (-4, -2)) == (2, 4)
    assert of("clip", (-9, 100), (0, 0), (7, 7)) == (0, 7)
    assert of("fptoint32", (-1.5, 2.5)) == (-2, 3)
