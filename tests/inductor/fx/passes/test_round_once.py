"""Sums of what was float32 are rounded once; casts that a program asks for stay."""

from __future__ import annotations

import torch

from tests.support.dlfloat16_reference import round_values

GENERATOR = torch.Generator().manual_seed(5)


def held(*shape: int) -> torch.Tensor:
    """Numbers that the card holds."""
    return torch.randn(shape, generator=GENERATOR).half().to("spyre").cpu()


def test_a_narrowed_product_is_added_before_it_is_rounded() -> None:
    x, y = held(40, 70), held(40, 70)

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        third = (x.float() * 0.3).half()
        kept = (x.float() * 0.3).half()
        return third + y, torch.relu(y - (x.float() * 0.7).half()), kept, kept.float() + 1.0

    found = torch.compile(program)(x.to("spyre"), y.to("spyre"))
    added, less, kept, wide = (t.cpu().double() for t in found)
    a, b = x.double(), y.double()
    factors = torch.tensor([0.3, 0.7]).double()  # as float32 has them
    # One rounding of a sum in float32, whose own error is far below the last bit.
    exact = b + a * factors[0]
    assert bool(((added - exact).abs() <= exact.abs() * 2.0**-10 + 2.0**-22).all())
    exact = torch.relu(b - a * factors[1])
    assert bool(((less - exact).abs() <= exact.abs() * 2.0**-10 + 2.0**-22).all())
    narrowed = round_values((x.float() * 0.3).double())
    assert torch.equal(kept, narrowed) and torch.equal(wide, (narrowed.float() + 1.0).double())
