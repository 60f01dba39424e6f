"""Legalisation of numbers beyond DLFloat16: PyTorch computes with a number beside tensors in
float32, the card in the format of the tensors.

In: a use of an OpFunc on 16-bit floats. Out: values whose numbers the format holds, and that give
the same: results beyond the format are infinities, those within are right to rounding.

    x * 1e12    becomes    (x * 2**8) * 3.90625e9
    x >= 1e12   becomes    x > 8.56e9, the largest number of the format: only infinity is
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch_spyre._inductor.operations.opfunc_map import Constant, PointwiseOp, Value
from torch_spyre.dtypes import DLFLOAT16_LEAST, DLFLOAT16_MAX, DLFLOAT16_TINY, SIXTEEN_BITS

_TOP, _BOTTOM = 31, -30
"""Exponents of numbers that are used in place of those beyond: far from both ends."""


def legalised(value: PointwiseOp) -> Value:
    """The same value, of numbers that the format holds."""
    rule = _RULES.get(value.opfunc)
    if rule is None or value.args[-1].dtype not in SIXTEEN_BITS:
        return value
    if not any(isinstance(a, Constant) and _is_beyond(a.value) for a in value.args):
        return value
    if all(isinstance(a, Constant) for a in value.args):
        return value
    return rule(value)


def _is_beyond(number: float) -> bool:
    size = abs(number)
    return 0 < size < DLFLOAT16_LEAST or DLFLOAT16_MAX < size < math.inf


# ---- Rules by OpFunc ----------------------------------------------------------------------------


def _product(value: PointwiseOp) -> Value:
    x, y = value.args
    if isinstance(x, Constant):
        x, y = y, x
    assert isinstance(y, Constant)
    rest, exponent = _near(float(y.value))
    # The power of two first: what goes over the end then does so in the result as well.
    return _use(value, "mul", _scaled(value, x, exponent), Constant(y.dtype, rest))


def _quotient(value: PointwiseOp) -> Value:
    x, y = value.args
    if isinstance(y, Constant):
        rest, exponent = _near(float(y.value))
        return _use(value, "realdiv", _scaled(value, x, -exponent), Constant(y.dtype, rest))
    assert isinstance(x, Constant)
    rest, exponent = _near(float(x.value))
    return _scaled(value, _use(value, "realdiv", Constant(x.dtype, rest), y), exponent)


def _sum(value: PointwiseOp) -> Value:
    x, y = value.args
    if isinstance(y, Constant):
        number = float(y.value)
        return _plus(value, x, -number if value.opfunc == "sub" else number)
    assert isinstance(x, Constant)
    if value.opfunc == "sub":
        y = PointwiseOp(value.dtype, "neg", (y,))
    return _plus(value, y, float(x.value))


def _plus(value: PointwiseOp, x: Value, number: float) -> Value:
    """In parts: with infinity for the number, the sum with the other infinity would be NaN."""
    if abs(number) <= DLFLOAT16_MAX:  # a tiny one: rounding does the right thing
        return _use(value, "add", x, Constant(x.dtype, number))
    parts = 2 if abs(number) < 2 * DLFLOAT16_MAX else 3
    part = math.copysign(min(abs(number) / 2, DLFLOAT16_MAX), number)
    for _ in range(parts):
        x = _use(value, "add", x, Constant(x.dtype, part))
    return x


def _comparison(value: PointwiseOp) -> Value:
    x, y = value.args
    opfunc = value.opfunc
    if isinstance(x, Constant):
        x, y, opfunc = y, x, _MIRRORED[opfunc]
    assert isinstance(y, Constant)
    number = float(y.value)
    if abs(number) > DLFLOAT16_MAX:  # beyond the last number there is but infinity
        last = math.copysign(DLFLOAT16_MAX, number)
        strict = _ABOVE if number > 0 else _BELOW
        return PointwiseOp(value.dtype, strict[opfunc], (x, _end(opfunc, y, last)))
    if abs(number) >= DLFLOAT16_TINY:
        return value
    first = math.copysign(DLFLOAT16_TINY, number)  # nothing is between it and 0
    strict = _BELOW if number > 0 else _ABOVE
    return PointwiseOp(value.dtype, strict[opfunc], (x, _end(opfunc, y, first)))


def _end(opfunc: str, number: Constant, bound: float) -> Constant:
    """No tensor has a number that the format does not hold."""
    return Constant(number.dtype, math.nan if opfunc in ("equal", "notequal") else bound)


_MIRRORED = {"lesserthan": "greaterthan", "lesserequal": "greaterequal",
             "greaterthan": "lesserthan", "greaterequal": "lesserequal",
             "equal": "equal", "notequal": "notequal"}  # fmt: skip
_ABOVE = {"lesserthan": "lesserequal", "lesserequal": "lesserequal", "greaterthan": "greaterthan",
          "greaterequal": "greaterthan", "equal": "equal", "notequal": "notequal"}  # fmt: skip
"""In place of a comparison with a number right above the bound that is used for it."""
_BELOW = {"lesserthan": "lesserthan", "lesserequal": "lesserthan", "greaterthan": "greaterequal",
          "greaterequal": "greaterequal", "equal": "equal", "notequal": "notequal"}  # fmt: skip
"""The same, right below."""


def _power(value: PointwiseOp) -> Value:
    base, exponent = value.args
    if not isinstance(base, Constant) or base.value < 0:
        return value  # an exponent beyond the format has the result of infinity
    root = math.sqrt(math.sqrt(float(base.value)))
    four = _use(value, "mul", exponent, Constant(exponent.dtype, 4.0))
    return _use(value, "pow", Constant(base.dtype, root), four)


_RULES: dict[str, Callable[[PointwiseOp], Value]] = {
    "mul": _product, "realdiv": _quotient, "add": _sum, "sub": _sum, "pow": _power,
    **dict.fromkeys(_MIRRORED, _comparison),
}  # fmt: skip


# ---- Parts of numbers ---------------------------------------------------------------------------


def _near(number: float) -> tuple[float, int]:
    """A number as a product: one that the format holds well, and a power of two."""
    if DLFLOAT16_LEAST <= abs(number) <= DLFLOAT16_MAX:
        return number, 0
    mantissa, exponent = math.frexp(number)
    own = _TOP if exponent > 0 else _BOTTOM + 1
    return math.ldexp(mantissa, own), exponent - own


def _scaled(value: PointwiseOp, x: Value, exponent: int) -> Value:
    """x * 2**exponent, in as many steps as the format needs."""
    while exponent:
        step = max(_BOTTOM, min(_TOP, exponent))
        x = _use(value, "mul", x, Constant(x.dtype, 2.0**step))
        exponent -= step
    return x


def _use(value: PointwiseOp, opfunc: str, *args: Value) -> Value:
    return PointwiseOp(value.dtype, opfunc, args)
