"""Bounds of operations that work element by element, or only move elements: see intervals.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from tests.fuzz.intervals import (
    ARGUMENT,
    BOOL,
    F16,
    FUNCTION,
    I64,
    RULES,
    UNIT,
    Interval,
    OutOfScope,
    Rule,
    cast,
    checked,
    common,
    floating,
    lift,
    plain_index,
    rule_for,
    stored,
)

# ---- moving elements: the same for both ends


def _both(function: Callable[..., Any]) -> Rule:
    def rule(*args: Any, **kwargs: Any) -> Any:
        first = next(a for a in _flat(args) if (isinstance(a, Interval) and a.dtype is not I64)
                     or (isinstance(a, Interval) and a is _flat(args)[0]))  # fmt: skip
        ends = []
        for end in ("lo", "hi"):
            try:
                ends.append(function(*_at(args, end, True), **_at(kwargs, end, False)))
            except (RuntimeError, IndexError, ValueError) as error:
                raise OutOfScope(str(error)) from error
        if isinstance(ends[0], torch.Tensor):
            return Interval(ends[0], ends[1], first.dtype)
        return tuple(Interval(a, b, first.dtype) for a, b in zip(*ends, strict=True))

    return rule


def _flat(args: Any) -> list[Any]:
    return [x for a in args for x in (_flat(a) if isinstance(a, (list, tuple)) else [a])]


def _at(args: Any, end: str, outermost: bool) -> Any:
    """Arguments with each tensor at one end; int64 tensors after the first are indices."""
    if isinstance(args, dict):
        return {name: _at(value, end, False) for name, value in args.items()}
    if isinstance(args, (list, tuple)):
        made = [getattr(a, end) if outermost and i == 0 and isinstance(a, Interval)
                else _at(a, end, False) for i, a in enumerate(args)]  # fmt: skip
        return type(args)(made)
    if isinstance(args, Interval):
        if args.dtype in (I64, BOOL):
            return plain_index(args)
        return getattr(args, end)
    return args


for _name in [
    "t",
    "transpose",
    "permute",
    "unsqueeze",
    "squeeze",
    "select",
    "narrow",
    "reshape",
    "view",
    "flatten",
    "unflatten",
    "expand",
    "movedim",
    "unbind",
    "chunk",
    "split",
    "diagonal",
    "unfold",
    "flip",
    "roll",
    "clone",
    "contiguous",
    "repeat",
    "view_as",
    "repeat_interleave",
    "tril",
    "triu",
    "index_select",
    "gather",
    "take_along_dim",
    "broadcast_to",
    "swapaxes",
    "index_put",
    "index_copy",
    "scatter",
    "slice_scatter",
    "select_scatter",
    "diagonal_scatter",
    "masked_select",
]:
    RULES[_name] = _both(getattr(torch.Tensor, _name))
RULES["__getitem__"] = _both(torch.Tensor.__getitem__)


@rule_for("pad")
def _pad(x: Interval, pad: Any, mode: str = "constant", value: float | None = None) -> Interval:
    filling = lift(0.0 if value is None else value, x.dtype)
    if not filling.is_exact():
        raise OutOfScope("padding with a number that is rounded")
    return _both(torch.nn.functional.pad)(x, pad, mode, float(value or 0.0))


def _joined(function: Callable[..., Any]) -> Rule:
    def rule(tensors: list[Interval], dim: int = 0) -> Interval:
        dtype = tensors[0].dtype
        for x in tensors[1:]:
            dtype = torch.promote_types(dtype, x.dtype)
        parts = [cast(x, dtype) for x in tensors]
        try:
            lo = function([x.lo for x in parts], dim)
            return Interval(lo, function([x.hi for x in parts], dim), dtype)
        except (RuntimeError, IndexError) as error:
            raise OutOfScope(str(error)) from error

    return rule


RULES["cat"], RULES["stack"] = _joined(torch.cat), _joined(torch.stack)


@rule_for("to")
def _to(x: Interval, dtype: Any) -> Interval:
    return cast(x, dtype) if isinstance(dtype, torch.dtype) else x


@rule_for("masked_fill")
def _masked_fill(x: Interval, mask: Interval, value: Any) -> Interval:
    return _where(mask, value, x)


@rule_for("where")
def _where(condition: Interval, x: Any, y: Any) -> Interval:
    x, y, dtype = common(x, y)
    sure, maybe = condition.lo > 0, condition.hi > 0
    lo = torch.where(sure, x.lo, torch.where(maybe, torch.minimum(x.lo, y.lo), y.lo))
    hi = torch.where(sure, x.hi, torch.where(maybe, torch.maximum(x.hi, y.hi), y.hi))
    return Interval(lo, hi, dtype)


@rule_for("copy")
def _copied(x: Interval, value: Any) -> Interval:
    value = cast(lift(value, x.dtype), x.dtype)
    return Interval(value.lo.expand(x.shape).clone(), value.hi.expand(x.shape).clone(), x.dtype)


@rule_for("fill")
def _filled(x: Interval, value: Any) -> Interval:
    return _copied(x, value)


@rule_for("zero")
def _zero(x: Interval) -> Interval:
    return _copied(x, 0)


# ---- functions of one number


def _function(name: str, compute: Callable[[torch.Tensor], torch.Tensor], error: bool,
              low: float = -math.inf, high: float = math.inf,
              absolute: float = 0.0) -> None:  # fmt: skip
    """A function that grows with its argument, which has to lie between `low` and `high`."""

    def rule(x: Interval, *args: Any, **kwargs: Any) -> Interval:
        if args or kwargs:
            raise NotImplementedError(f"{name} with arguments")
        x = floating(x)
        if x.numel() and (float(x.lo.min()) < low or float(x.hi.max()) > high):
            raise OutOfScope(f"{name} outside of {low} ... {high}")
        lo, hi = x.lo, x.hi
        if error:
            lo, hi = lo - lo.abs() * ARGUMENT, hi + hi.abs() * ARGUMENT
        lo, hi = compute(lo) - absolute, compute(hi) + absolute
        return stored(lo, hi, x.dtype, FUNCTION[x.dtype] if error else 0.0)

    RULES[name] = rule


_function("exp", torch.exp, True, -15, 10)
_function("log", torch.log, True, 2.0**-10)
_function("sigmoid", torch.sigmoid, True, -12)
_function("tanh", torch.tanh, True)
# PyTorch's erf of vectors is that of Abramowitz and Stegun, 7.1.26, good to 1.5e-7.
_function("erf", torch.erf, True, absolute=1.5e-7)
_function("expm1", torch.expm1, True, -15, 10)
_function("log1p", torch.log1p, True, -0.9)
_function("softplus", torch.nn.functional.softplus, True, -12)


def _falling(name: str, compute: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """A function of positive numbers that falls."""

    def rule(x: Interval) -> Interval:
        x = floating(x)
        if x.numel() and float(x.lo.min()) < 2.0**-6:
            raise OutOfScope(f"{name} near 0")
        return stored(compute(x.hi), compute(x.lo), x.dtype, FUNCTION[x.dtype])

    RULES[name] = rule


_falling("reciprocal", torch.reciprocal)


@rule_for("sqrt")
def _sqrt(x: Interval) -> Interval:
    x = floating(x)
    if x.numel() and float(x.lo.min()) < 0:
        raise OutOfScope("sqrt of a negative number")
    return stored(x.lo.sqrt(), x.hi.sqrt(), x.dtype, 4 * UNIT)


@rule_for("rsqrt")
def _rsqrt(x: Interval) -> Interval:
    return RULES["reciprocal"](_sqrt(x))  # which is how CPU computes it in half precision


def _smooth(name: str, compute: Callable[[torch.Tensor], torch.Tensor], slope: float) -> None:
    """A function that turns, and nowhere is steeper than `slope`."""

    def rule(x: Interval) -> Interval:
        x = floating(x)
        middle = (x.lo + x.hi) / 2
        reach = ((x.hi - x.lo) / 2 + x.magnitude() * ARGUMENT) * slope
        value = compute(middle)
        return stored(value - reach, value + reach, x.dtype, FUNCTION[x.dtype])

    RULES[name] = rule


_smooth("sin", torch.sin, 1.0)
_smooth("cos", torch.cos, 1.0)
_smooth("silu", torch.nn.functional.silu, 1.1)
_smooth("gelu", torch.nn.functional.gelu, 1.13)


def _stepping(name: str, compute: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """A function that grows with its argument and gives nothing that would have to be rounded."""
    RULES[name] = lambda x: Interval(compute(x.lo), compute(x.hi), x.dtype)


for _name in ("relu", "floor", "ceil", "trunc", "round", "sign"):
    _stepping(_name, getattr(torch, _name))


@rule_for("neg")
def _neg(x: Interval) -> Interval:
    return Interval(-x.hi, -x.lo, x.dtype)


@rule_for("abs")
def _abs(x: Interval) -> Interval:
    low = torch.where((x.lo <= 0) & (x.hi >= 0), 0.0, torch.minimum(x.lo.abs(), x.hi.abs()))
    return Interval(low, x.magnitude(), x.dtype)


@rule_for("square")
def square(x: Interval) -> Interval:
    size = _abs(x)
    return stored(size.lo**2, size.hi**2, x.dtype)


@rule_for("pow")
def _pow(x: Interval, exponent: Any) -> Interval:
    if exponent == 2:
        return square(x)
    if exponent == 3:
        squared, cubed = square(x), x.lo**3
        steps = mul(squared, x)
        once = stored(cubed, x.hi**3, x.dtype, FUNCTION.get(x.dtype, 0.0))
        return Interval(torch.minimum(steps.lo, once.lo), torch.maximum(steps.hi, once.hi), x.dtype)
    if exponent == 0.5:
        return RULES["sqrt"](x)
    raise NotImplementedError(f"pow with {exponent}")


@rule_for("clamp")
def _clamp(x: Interval, min: Any = None, max: Any = None) -> Interval:
    if min is not None:
        x = _maximum(x, min)
    return x if max is None else _minimum(x, max)


@rule_for("leaky_relu")
def _leaky_relu(x: Interval, negative_slope: float = 0.01) -> Interval:
    slope = lift(negative_slope, x.dtype)
    small = mul(x, slope)
    keep_lo, keep_hi = x.lo > 0, x.hi > 0
    return Interval(
        torch.where(keep_lo, x.lo, small.lo), torch.where(keep_hi, x.hi, small.hi), x.dtype
    )


@rule_for("logical_not", "bitwise_not")
def _not(x: Interval) -> Interval:
    if x.dtype is I64:
        return Interval(-x.hi - 1, -x.lo - 1, I64)
    x = cast(x, BOOL)
    return Interval(1 - x.hi, 1 - x.lo, BOOL)


# ---- functions of two numbers


@rule_for("add")
def add(x: Any, y: Any, alpha: Any = 1) -> Interval:
    x, y, dtype = common(x, y)
    if dtype is BOOL:
        return stored(torch.maximum(x.lo, y.lo), torch.maximum(x.hi, y.hi), BOOL)
    if alpha != 1:
        y = mul(y, alpha)
    return stored(x.lo + y.lo, x.hi + y.hi, dtype)


@rule_for("sub")
def sub(x: Any, y: Any, alpha: Any = 1) -> Interval:
    x, y, _ = common(x, y)
    return add(x, _neg(y), alpha)


@rule_for("rsub")
def _rsub(x: Any, y: Any) -> Interval:
    return sub(y, x)


def _corners(x: Interval, y: Interval, compute: Rule) -> tuple[torch.Tensor, torch.Tensor]:
    ends = [compute(a, b) for a in (x.lo, x.hi) for b in (y.lo, y.hi)]
    lo, hi = ends[0], ends[0]
    for end in ends[1:]:
        lo, hi = torch.minimum(lo, end), torch.maximum(hi, end)
    return lo, hi


@rule_for("mul")
def mul(x: Any, y: Any) -> Interval:
    x, y, dtype = common(x, y)
    return stored(*_corners(x, y, torch.mul), dtype)


@rule_for("div")
def div(x: Any, y: Any) -> Interval:
    by_number = not isinstance(y, Interval)
    x, y, _ = common(x, y)
    x, y = floating(x), floating(y)
    if y.numel() and float(_abs(y).lo.min()) < 2.0**-6:
        raise OutOfScope("division by almost 0")
    # As a product with the inverse, which is rounded, too, it is off by another unit of float32.
    quotient = stored(*_corners(x, y, torch.div), x.dtype, 4 * UNIT)
    if not by_number or x.dtype is not F16:
        return quotient
    # The inverse of a number is a constant of the program, and those are stored, too.
    inverse = stored(*_corners(Interval.exact(torch.ones(()), F16), y, torch.div), F16, 4 * UNIT)
    product = stored(*_corners(x, inverse, torch.mul), F16, 4 * UNIT)
    lo, hi = torch.minimum(quotient.lo, product.lo), torch.maximum(quotient.hi, product.hi)
    return Interval(lo, hi, F16)


@rule_for("maximum")
def _maximum(x: Any, y: Any) -> Interval:
    x, y, dtype = common(x, y)
    return Interval(torch.maximum(x.lo, y.lo), torch.maximum(x.hi, y.hi), dtype)


@rule_for("minimum")
def _minimum(x: Any, y: Any) -> Interval:
    x, y, dtype = common(x, y)
    return Interval(torch.minimum(x.lo, y.lo), torch.minimum(x.hi, y.hi), dtype)


def _exactly(name: str) -> None:
    """An operation of integers, in int64 as PyTorch does it."""

    def rule(x: Any, y: Any) -> Interval:
        x, y, dtype = common(x, y)
        if dtype not in (I64, BOOL) or not (x.is_exact() and y.is_exact()):
            raise OutOfScope(f"{name} of what is not known exactly")
        if name in ("floor_divide", "remainder") and bool((y.lo == 0).any()):
            raise OutOfScope(f"{name} by 0")
        ends = getattr(torch, name)(x.lo.to(dtype), y.lo.to(dtype))
        return checked(Interval.exact(ends.double(), dtype))

    RULES[name] = rule


for _name in ("floor_divide", "remainder", "bitwise_and", "bitwise_or", "bitwise_xor"):
    _exactly(_name)


@rule_for("logical_and")
def _and(x: Any, y: Any) -> Interval:
    x, y = cast(x, BOOL), cast(y, BOOL)
    return Interval(torch.minimum(x.lo, y.lo), torch.minimum(x.hi, y.hi), BOOL)


@rule_for("logical_or")
def _or(x: Any, y: Any) -> Interval:
    x, y = cast(x, BOOL), cast(y, BOOL)
    return Interval(torch.maximum(x.lo, y.lo), torch.maximum(x.hi, y.hi), BOOL)


@rule_for("logical_xor")
def _xor(x: Any, y: Any) -> Interval:
    return compared(cast(x, BOOL), cast(y, BOOL), "ne")


def compared(x: Any, y: Any, how: str) -> Interval:
    """1 where it is true of all numbers within the bounds, 0 where of none; else 0 ... 1."""
    x, y, _ = common(x, y)
    if how in ("gt", "ge"):
        x, y, how = y, x, {"gt": "lt", "ge": "le"}[how]
    if how in ("lt", "le"):
        compare = getattr(torch, how)
        surely, maybe = compare(x.hi, y.lo), compare(x.lo, y.hi)
    else:
        apart = (x.hi < y.lo) | (y.hi < x.lo)
        same = (x.lo == x.hi) & (y.lo == y.hi) & (x.lo == y.lo)
        surely, maybe = (same, ~apart) if how == "eq" else (apart, ~same)
    return Interval(surely.double(), maybe.double(), BOOL)


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    RULES[_name] = lambda x, y, how=_name: compared(x, y, how)
