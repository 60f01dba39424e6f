"""Numbers beyond the format: what they become is held by the format, and gives the same."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torch_spyre._inductor.operations.number_range import legalised
from torch_spyre._inductor.operations.opfunc_map import Constant, Load, PointwiseOp, Value
from torch_spyre.dtypes import DLFLOAT16_LEAST, DLFLOAT16_MAX, DLFLOAT16_TINY

X = Load(torch.float16, "x", 0)
SIZES = (1e-38, 1e-12, DLFLOAT16_TINY / 1.5, 9e9, 1e10, 1.8e10, 1e12, 3e38)
NUMBERS = [sign * size for size in SIZES for sign in (1, -1)]
VALUES = (0.0, 1.0, -1.0, 3.5, 1e-9, -1e-9, 2e-5, 1e9, -8e9, DLFLOAT16_MAX, -DLFLOAT16_MAX,
          DLFLOAT16_TINY, -DLFLOAT16_TINY, math.inf, -math.inf)  # fmt: skip


def quotient(a: float, b: float) -> float:
    return float(torch.tensor(a, dtype=torch.float64) / torch.tensor(b, dtype=torch.float64))


FUNCTIONS: dict[str, Callable[[float, float], Any]] = {
    "mul": operator.mul, "add": operator.add, "sub": operator.sub, "realdiv": quotient,
    "lesserthan": operator.lt, "lesserequal": operator.le, "greaterthan": operator.gt,
    "greaterequal": operator.ge, "equal": operator.eq, "notequal": operator.ne,
}  # fmt: skip


def in_format(value: float) -> float:
    """The range of the format without its rounding."""
    if abs(value) > DLFLOAT16_MAX:
        return math.copysign(math.inf, value)
    return value if abs(value) >= DLFLOAT16_TINY / 2 else math.copysign(0.0, value)


def evaluate(value: Value, x: float) -> Any:
    if isinstance(value, Load):
        return x
    if isinstance(value, Constant):
        number = float(value.value)
        assert not number or math.isinf(number) or math.isnan(number) or (
            DLFLOAT16_TINY <= abs(number) <= DLFLOAT16_MAX
        )  # fmt: skip
        return number
    assert isinstance(value, PointwiseOp)
    arguments = [evaluate(a, x) for a in value.args]
    if value.opfunc == "neg":
        return -arguments[0]
    found = FUNCTIONS[value.opfunc](*arguments)
    return found if isinstance(found, bool) else in_format(found)


@pytest.mark.parametrize("right", [True, False], ids=["x op c", "c op x"])
@pytest.mark.parametrize("opfunc", FUNCTIONS)
def test_a_number_beyond_the_format_has_its_effect(opfunc: str, right: bool) -> None:
    tiny_sum = opfunc in ("add", "sub")
    for number, x in itertools.product(NUMBERS, VALUES):
        if tiny_sum and abs(number) < 1:
            continue  # rounding does it
        constant = Constant(torch.float16, number)
        args = (X, constant) if right else (constant, X)
        value = legalised(PointwiseOp(torch.float16, opfunc, args))
        if (
            tiny_sum
            and abs(in_format(number)) == math.inf
            and x == -math.copysign(DLFLOAT16_MAX, number)
        ):
            continue  # the one finite number whose sum is between the last one and infinity
        found = evaluate(value, x)
        expected = FUNCTIONS[opfunc](x, number) if right else FUNCTIONS[opfunc](number, x)
        if not isinstance(expected, bool):
            expected = in_format(expected)
        same = found == expected or math.isclose(found, expected, rel_tol=2.0**-8)
        both_nan = isinstance(found, float) and math.isnan(found) and math.isnan(expected)
        near_zero = abs(found) <= 2 * DLFLOAT16_TINY and abs(expected) <= 2 * DLFLOAT16_TINY
        assert same or both_nan or near_zero, (number, x, found, expected, value)


def test_numbers_that_the_format_holds_are_left_alone() -> None:
    for number in (0.0, 1.0, DLFLOAT16_LEAST, DLFLOAT16_MAX, -1e9, math.inf):
        value = PointwiseOp(torch.float16, "mul", (X, Constant(torch.float16, number)))
        assert legalised(value) is value


def test_float32_and_integers_are_left_alone() -> None:
    for dtype in (torch.float32, torch.int32):
        args = (Load(dtype, "x", 0), Constant(dtype, 10**12))
        value = PointwiseOp(dtype, "mul", args)
        assert legalised(value) is value


def test_powers_of_numbers_beyond_the_format() -> None:
    value = legalised(PointwiseOp(torch.float16, "pow", (Constant(torch.float16, 1e12), X)))
    assert isinstance(value, PointwiseOp) and value.opfunc == "pow"
    base, exponent = value.args
    assert isinstance(base, Constant) and isinstance(exponent, PointwiseOp)
    for x in (-0.5, 0.0, 0.25, 0.7):
        assert base.value ** evaluate(exponent, x) == pytest.approx(1e12**x, rel=1e-6)
