"""Numbers for operations that run on the card, and how close results have to be."""

from __future__ import annotations

import torch

from tests.support.make_bundle import FP16, FP32, INT32, T

DTYPES = {FP16: torch.float16, FP32: torch.float32, INT32: torch.int32}
ROWS = T(["mb", "out"])
SPARSE = T(["mb", "out"], scale={"out": -2})
TOLERANCE = {FP16: 4e-3, FP32: 2e-6, INT32: 0.0}


def values(shape: tuple[int, ...], fmt: str = FP16, domain: str = "any") -> torch.Tensor:
    if fmt == INT32:
        return torch.randint(-1000, 1000, shape, dtype=torch.int32)
    x = torch.randn(shape)
    if domain == "positive":
        x = x.abs() + 0.1
    elif domain == "nonzero":
        x = torch.where(x < 0, x - 0.2, x + 0.2)
    elif domain == "bool":
        x = (x > 0).float()
    elif domain == "one":
        x = 1 + x / 64
    return on_card(x.to(DTYPES[fmt]))


def on_card(x: torch.Tensor) -> torch.Tensor:
    """The values that the card has for these: its 16-bit format has one fraction bit less."""
    return x.to("spyre").cpu()


def sticks(size: int, fmt: str = FP16) -> int:
    per_stick = T([], fmt).per_stick
    return -(-size // per_stick) * per_stick


def compare(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 4e-3) -> None:
    torch.testing.assert_close(
        found.float(), expected.float(), rtol=tolerance, atol=tolerance, equal_nan=True
    )
