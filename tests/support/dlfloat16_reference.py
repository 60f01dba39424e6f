"""DLFloat16 defined slowly and independently of the card: by its table of values.

A code is 1 sign, 6 exponent (bias 31) and 9 fraction bits. Code 0 is zero; exponent 63 with
fraction 511 is NaN and with fraction 510 infinity; there are no subnormals. Encoding takes the
nearest value, ties away from zero. Example: round_trip(torch.tensor([65504.0])) is 65536.
"""

from __future__ import annotations

import math

import torch


def decode(code: int) -> float:
    sign = -1.0 if code & 0x8000 else 1.0
    exponent, fraction = (code >> 9) & 63, code & 511
    if exponent == 0 and fraction == 0:
        return math.copysign(0.0, sign)
    if exponent == 63 and fraction >= 510:
        return math.nan if fraction == 511 else sign * math.inf
    return sign * math.ldexp(512 + fraction, exponent - 31 - 9)


MAGNITUDES = [decode(code) for code in range(0x7FFE)]  # ascending, without infinity and NaN
_PAST_LARGEST = (MAGNITUDES[-1] + math.ldexp(512 + 510, 63 - 31 - 9)) / 2
_TABLE = torch.tensor(MAGNITUDES, dtype=torch.float64)


def round_values(x: torch.Tensor) -> torch.Tensor:
    """The values that storing float64 numbers on the card gives: a search in the table."""
    magnitude = x.abs()
    above = torch.searchsorted(_TABLE, magnitude.nan_to_num(0.0).contiguous()).clamp(
        1, len(_TABLE) - 1
    )
    low, high = _TABLE[above - 1], _TABLE[above]
    nearest = torch.where(magnitude - low >= high - magnitude, high, low)
    nearest = torch.where(magnitude >= _PAST_LARGEST, math.inf, nearest)
    return torch.where(x.isnan(), x, torch.copysign(nearest, x))


def round_trip(host: torch.Tensor) -> torch.Tensor:
    """What comes back when a host tensor that is stored as DLFloat16 goes to the card."""
    rounded = round_values(host.double())
    if host.dtype == torch.float16:  # 65504 becomes 65536 on the card and must come back as it was
        rounded = torch.where(rounded.abs() == 65536.0, torch.sign(rounded) * 65504.0, rounded)
    return rounded.to(host.dtype)
