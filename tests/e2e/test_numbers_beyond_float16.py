"""Numbers beside 16-bit tensors that the tensors' own format does not hold.

PyTorch computes with such a number in float32: results beyond the format are infinities, results
within it are right to rounding. In comparisons the number is first rounded to the tensors' type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F

from tests.support.together import host_steps, together

Program = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

WITHIN: dict[str, Program] = {
    "additive mask": lambda x, m: torch.exp((1.0 - m) * -1e9 + x),
    "additive mask, beyond DLFloat16": lambda x, m: torch.exp((1.0 - m) * -1e30 + x),
    "nothing of much": lambda x, m: m * 0 * 1e38,
    "there and back": lambda x, m: m * 7e4 * 1e-3,
    "there and back, far": lambda x, m: x * 1e-5 * 1e12 * 1e-7,
    "there and back, small": lambda x, m: (x + 4) * 1e-8 * 1e8,
    "quotient of a tiny number": lambda x, m: torch.exp((m - 1) / 1e-30),
    "quotient of a huge number": lambda x, m: (x + 4) * 1e4 / 1e12 * 1e8,
    "a huge number divided": lambda x, m: 1e12 / ((x + 4) * 1e5) * 1e-6,
    "a tiny number divided": lambda x, m: 1e-12 / ((x + 4) * 1e-8),
    "clamp from above": lambda x, m: x.clamp(max=1e9),
    "clamp from below": lambda x, m: x.clamp(min=-1e12),
    "hardtanh": lambda x, m: F.hardtanh(x, -1e9, 1e9),
    "maximum": lambda x, m: torch.maximum(x, torch.full_like(x, -1e4) * 1e6),
    "masked_fill": lambda x, m: torch.softmax(x.masked_fill(m == 0, -1e9), -1),
    "where": lambda x, m: torch.softmax(torch.where(m == 0, -1e9, x), -1),
    "minus infinity and a huge number": lambda x, m: torch.exp(torch.log(m * 0) + 1e12),
    "rsqrt of a small sum": lambda x, m: torch.rsqrt(x * x + 1 + 1e-12),
    "alpha": lambda x, m: torch.add(x, m, alpha=1e-12),
    "addcmul": lambda x, m: torch.addcmul(x, m, m, value=-1e9) * 1e-9,
    "power of a huge number": lambda x, m: 1e12 ** (x / 20),
    "power of a tiny number": lambda x, m: 1e-12 ** (x / 20),
    "softmax with a mask": lambda x, m: torch.softmax(x @ x.T + (1.0 - m[:4, :4]) * -3e38, -1),
}  # fmt: skip


@pytest.fixture(autouse=True)
def on_card() -> Iterator[None]:
    before = torch.spyre.get_eager()
    torch.spyre.set_eager("card")
    yield
    torch.spyre.set_eager(before)


def example(dtype: torch.dtype = torch.float16) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(4, 100, dtype=dtype).clamp(-3, 3)
    mask = torch.ones(4, 100, dtype=dtype)
    mask[:, 70:] = 0
    return x, mask


def test_compiled_results_within_the_format_are_right() -> None:
    report = together(WITHIN, *example(), tolerance=2.0**-6)
    assert not host_steps(report)


REFUSED = ("masked_fill", "hardtanh")
"""PyTorch refuses these numbers in eager mode on every device: float16 does not hold them."""


BY_THE_HOST = ("addcmul",)
"""No eager programs: what is rounded to float16 between them is infinity."""


@pytest.mark.parametrize("name", [n for n in WITHIN if n not in (*REFUSED, *BY_THE_HOST)])
def test_eager_results_are_those_of_compiled_ones(name: str) -> None:
    x, mask = (t.to("spyre") for t in example())
    torch._dynamo.reset()
    compiled = torch.compile(WITHIN[name])(x, mask).cpu()
    eager = WITHIN[name](x, mask).cpu()
    torch.testing.assert_close(eager, compiled, rtol=2.0**-7, atol=2.0**-7, equal_nan=True)


@pytest.mark.parametrize("name", REFUSED)
def test_what_pytorch_refuses_is_refused(name: str) -> None:
    x, mask = example()
    with pytest.raises(RuntimeError, match="without overflow"):
        WITHIN[name](x, mask)
    with pytest.raises(RuntimeError, match="without overflow"):
        WITHIN[name](x.to("spyre"), mask.to("spyre"))


BEYOND: dict[str, Program] = {
    "x + 1e5 - 1e5 is no NaN": lambda x, m: (x + 1e5 - 1e5).isnan(),
    "x * 1e38": lambda x, m: (m + 1) * 1e38,
    "x / 1e-38": lambda x, m: (m + 1) / 1e-38,
    "x - 1e12": lambda x, m: x - 1e12,
    "1e12 - x": lambda x, m: 1e12 - x,
    "minus infinity + 1e12": lambda x, m: torch.log(m * 0) + 1e12,
    "infinity - 1e12": lambda x, m: -torch.log(m * 0) - 1e12,
    "where": lambda x, m: torch.where(m == 0, 1e12, x),
    "tiny products are 0": lambda x, m: x * 1e-30,
}


@pytest.mark.parametrize("compiles", [True, False], ids=["compiled", "eager"])
def test_results_beyond_the_format_are_infinities(compiles: bool) -> None:
    x, mask = example()
    for name, program in BEYOND.items():
        torch._dynamo.reset()
        run = torch.compile(program) if compiles else program
        actual = run(x.to("spyre"), mask.to("spyre")).cpu()
        expected = program(x.float(), mask.float())
        if expected.is_floating_point():
            expected = expected.half()
        torch.testing.assert_close(actual, expected, msg=lambda m, name=name: f"{name}: {m}")


NUMBERS = (1e-12, -1e-12, 6e-8, 0.1, 7e4, 1e9, -1e9, 1e12, -1e12)
COMPARISONS = {"<": torch.lt, "<=": torch.le, ">": torch.gt, ">=": torch.ge, "==": torch.eq,
               "!=": torch.ne}  # fmt: skip


@pytest.mark.parametrize("compiles", [True, False], ids=["compiled", "eager"])
def test_comparisons_round_the_number_as_pytorch_does(compiles: bool) -> None:
    values = torch.tensor([torch.inf, -torch.inf, 0.0, -0.0, 6e-8, -6e-8, 0.1, 1.0, 65472.0],
                          dtype=torch.float16)  # fmt: skip
    here = torch.cat([values, torch.zeros(64 - len(values), dtype=torch.float16)])
    there = here.to("spyre")

    def compare(x: torch.Tensor) -> list[torch.Tensor]:
        return [f(x, number) for f in COMPARISONS.values() for number in NUMBERS]

    torch._dynamo.reset()
    actual = (torch.compile(compare) if compiles else compare)(there)
    names = [f"x {sign} {number}" for sign in COMPARISONS for number in NUMBERS]
    wrong = [
        name
        for name, a, e in zip(names, actual, compare(here), strict=True)
        if not torch.equal(a.cpu(), e)
    ]
    assert not wrong


def test_bfloat16_compares_with_numbers_that_only_it_holds() -> None:
    here = torch.tensor([torch.inf, -torch.inf, 0.0, 3.0] * 16, dtype=torch.bfloat16)

    def compare(x: torch.Tensor) -> list[torch.Tensor]:
        return [f(x, number) for f in COMPARISONS.values() for number in (1e12, -1e12, 1e-12)]

    torch._dynamo.reset()
    for actual in (torch.compile(compare), compare):
        for a, e in zip(actual(here.to("spyre")), compare(here), strict=True):
            assert torch.equal(a.cpu(), e)
