"""Tensors of intervals: between which two numbers every right result of a program lies.

In: a program of ordinary PyTorch calls, and its inputs as `Interval`. Out: for every element of
every result a lowest and a highest value. The program is run as it stands: an Interval takes part
in `torch.add(x, y)`, `x[1:].t()` or `x.mul_(2)`, and does for both ends at once what that means.

A right result is not one number. The card rounds to DLFloat16 after each operation, eager PyTorch
to half precision before that, a compiler leaves roundings out and takes operations apart, sums are
added in another order. So each operation widens its result outwards to all that these may give, by
the error that the format and the OpFunc are documented to have (`ends_of`, FUNCTION, `_summed`).
Nothing is widened where nothing is rounded: sums of small integers have to be met exactly.

    x = Interval.exact(torch.tensor([1.0, 3.0]), torch.float16)
    torch.exp(x / 3).lo, torch.exp(x / 3).hi
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

F16, F32, I64, BOOL = torch.float16, torch.float32, torch.int64, torch.bool

# docs/formats/program.md: functions move a rounding to DLFloat16 by less than a hundredth of half a
# unit; float32 functions are off by a few units. CPU's are better.
FUNCTION = {F16: 2.0**-10 / 100, F32: 2.0**-20}
# The argument of a function is off by as much at most: constants in it, its reduction to a range.
ARGUMENT = 2.0**-22
# One addition or product in float32.
UNIT = 2.0**-24
# Eager float16 ends at 65504, the card's later.
LARGEST = {F16: 60000.0, F32: 1e30, I64: 2.0**30, BOOL: 1.0}

# What functions of torch.nn.functional hand on although nobody gave it.
DEFAULTS: dict[str, Any] = {"inplace": False, "dtype": None, "eps": 1e-5, "approximate": "none"}


class OutOfScope(Exception):
    """A program means nothing that could be compared: it overflows, or divides by 0."""


# Fractions have 9 bits; the smallest number of the format is the one after 2^-31, which is 0.
_BITS = 10
_SMALLEST = 513 * 2.0**-40


def to_dlfloat16(x: torch.Tensor) -> torch.Tensor:
    """The numbers that the card holds for x, below its largest: nearest, ties away from zero."""
    fraction, exponent = torch.frexp(x.abs())
    rounded = torch.ldexp((fraction * 2.0**_BITS + 0.5).floor(), exponent - _BITS)
    tiny = x.abs() < _SMALLEST
    rounded = torch.where(tiny, torch.where(x.abs() * 2 >= _SMALLEST, _SMALLEST, 0.0), rounded)
    return torch.copysign(rounded, x)


def ends_of(
    lo: torch.Tensor, hi: torch.Tensor, dtype: torch.dtype, relative: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Widen both ends to what storing a result may make of them; `relative` is its error before."""
    if dtype in (I64, BOOL):
        return lo, hi
    if relative:
        lo, hi = lo - lo.abs() * relative, hi + hi.abs() * relative
    wide = [lo.float().double()], [hi.float().double()]
    if dtype is F16:
        for found, end in zip(wide, (lo, hi), strict=True):
            found += [to_dlfloat16(found[0]), end.half().double()]
            found += [to_dlfloat16(found[2]), found[1].half().double()]  # written, read by the host
    for end in wide[0]:
        lo = torch.minimum(lo, end)
    for end in wide[1]:
        hi = torch.maximum(hi, end)
    return lo, hi


class Interval:
    """A tensor of which only bounds are known; `lo` and `hi` are float64 with equal strides."""

    def __init__(self, lo: torch.Tensor, hi: torch.Tensor, dtype: torch.dtype) -> None:
        self.lo, self.hi, self.dtype = lo, hi, dtype

    @classmethod
    def exact(cls, values: torch.Tensor, dtype: torch.dtype) -> Interval:
        """A tensor whose elements are known, with the strides of `values`."""
        lo = values.double() if values.dtype != torch.float64 else values.clone()
        return cls(lo, lo.clone(), dtype)

    @property
    def shape(self) -> torch.Size:
        return self.lo.shape

    @property
    def ndim(self) -> int:
        return self.lo.ndim

    @property
    def device(self) -> torch.device:
        return self.lo.device

    def dim(self) -> int:
        return self.lo.ndim

    def size(self, dim: int) -> int:
        return self.lo.size(dim)

    def numel(self) -> int:
        return self.lo.numel()

    def is_exact(self) -> bool:
        return bool((self.lo == self.hi).all())

    def magnitude(self) -> torch.Tensor:
        return torch.maximum(self.lo.abs(), self.hi.abs())

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__") or not hasattr(torch.Tensor, name):
            raise AttributeError(name)
        return lambda *args, **kwargs: _call(name, (self, *args), kwargs)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        said = {k: v for k, v in (kwargs or {}).items() if DEFAULTS.get(k, ()) != v}
        said.pop("_stacklevel", None)
        return _call(func.__name__, args, said)

    def __getitem__(self, index: Any) -> Any:
        return _call("__getitem__", (self, index), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        target = self[index] if not _has_tensor(index) else None
        if target is not None:
            _write(target, value)
            return
        value = _cast(_lift(value, self.dtype), self.dtype)
        index = _plain_index(index)
        self.lo[index], self.hi[index] = value.lo, value.hi

    def __add__(self, other: Any) -> Interval:
        return _call("add", (self, other), {})

    def __radd__(self, other: Any) -> Interval:
        return _call("add", (self, other), {})

    def __sub__(self, other: Any) -> Interval:
        return _call("sub", (self, other), {})

    def __rsub__(self, other: Any) -> Interval:
        return _call("rsub", (self, other), {})

    def __mul__(self, other: Any) -> Interval:
        return _call("mul", (self, other), {})

    def __rmul__(self, other: Any) -> Interval:
        return _call("mul", (self, other), {})

    def __truediv__(self, other: Any) -> Interval:
        return _call("div", (self, other), {})

    def __neg__(self) -> Interval:
        return _call("neg", (self,), {})

    def __invert__(self) -> Interval:
        return _call("bitwise_not", (self,), {})

    def __matmul__(self, other: Any) -> Interval:
        return _call("matmul", (self, other), {})

    def __lt__(self, other: Any) -> Interval:
        return _call("lt", (self, other), {})

    def __gt__(self, other: Any) -> Interval:
        return _call("gt", (self, other), {})


def problem_of(got: torch.Tensor, bounds: Interval) -> str:
    """What is wrong with a result on the host; empty when every element lies within its bounds."""
    if got.dtype != bounds.dtype:
        return f"dtype {got.dtype}, expected {bounds.dtype}"
    if got.shape != bounds.shape:
        return f"shape {list(got.shape)}, expected {list(bounds.shape)}"
    wide = got.double()
    bad = torch.nonzero(~((wide >= bounds.lo) & (wide <= bounds.hi)))
    if not len(bad):
        return ""
    at = tuple(bad[0].tolist())
    return (
        f"{len(bad)} of {got.numel()} elements are wrong, first at {at}: {wide[at].item():.9g} "
        f"is not within {bounds.lo[at].item():.9g} ... {bounds.hi[at].item():.9g}"
    )


# -------------------------------------------------------------------------------------------------
# What calls mean, by their names; a name with a final _ writes to its first argument.

Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}


def _call(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    rule = RULES.get(name)
    if rule is not None:
        return rule(*args, **kwargs)
    if name.endswith("_") and not name.startswith("__") and name[:-1] in RULES:
        _write(args[0], RULES[name[:-1]](*args, **kwargs))
        return args[0]
    raise NotImplementedError(
        f"intervals do not know {name}: add a rule to tests/fuzz/intervals.py"
    )


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def add(rule: Rule) -> Rule:
        for name in names:
            RULES[name] = rule
        return rule

    return add


def _write(target: Interval, value: Any) -> None:
    value = _cast(_lift(value, target.dtype), target.dtype)
    target.lo.copy_(value.lo)
    target.hi.copy_(value.hi)


def _checked(result: Interval) -> Interval:
    """Refuse what overflows or is no number: eager and compiled may go different ways there."""
    largest = LARGEST[result.dtype]
    for end in (result.lo, result.hi):
        if bool(end.isnan().any()) or bool((end.abs() > largest).any()):
            raise OutOfScope(f"values beyond {largest:g}")
    return result


def _stored(
    lo: torch.Tensor, hi: torch.Tensor, dtype: torch.dtype, relative: float = 0.0
) -> Interval:
    return _checked(Interval(*ends_of(lo, hi, dtype, relative), dtype))


def _lift(value: Any, beside: torch.dtype) -> Interval:
    """A number in a program, as a 0-D tensor: beside float16 it may be rounded to that first."""
    if isinstance(value, Interval):
        return value
    if isinstance(value, bool):
        kind = BOOL
    elif isinstance(value, int):
        kind = I64
    else:
        kind = beside if beside.is_floating_point else F32
    x = torch.tensor(float(value), dtype=torch.float64)
    made = _stored(x, x, kind if kind.is_floating_point else F32)
    return Interval(made.lo, made.hi, kind)


def _cast(x: Interval, dtype: torch.dtype) -> Interval:
    if x.dtype is dtype:
        return x
    if dtype is BOOL:
        return _compared(x, Interval.exact(torch.zeros(()), x.dtype), "ne")
    if dtype is I64:
        return _checked(Interval(x.lo.trunc(), x.hi.trunc(), I64))
    return _stored(x.lo, x.hi, dtype)


def _common(x: Any, y: Any) -> tuple[Interval, Interval, torch.dtype]:
    """Two operands in their common type; a number takes part as PyTorch's rules say."""
    kinds = [_sample(v) for v in (x, y)]
    dtype = torch.result_type(*kinds)
    return _cast(_lift(x, dtype), dtype), _cast(_lift(y, dtype), dtype), dtype


def _sample(value: Any) -> Any:
    if not isinstance(value, Interval):
        return value
    return torch.empty([1] * value.ndim, dtype=value.dtype, device="meta")


def _floating(x: Interval) -> Interval:
    return x if x.dtype.is_floating_point else _cast(x, F32)


def _has_tensor(index: Any) -> bool:
    return any(isinstance(i, Interval) for i in (index if isinstance(index, tuple) else (index,)))


def _plain_index(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(_plain_index(i) for i in index)
    if not isinstance(index, Interval):
        return index
    if not index.is_exact():
        raise OutOfScope("an index that rounding could change")
    return index.lo.bool() if index.dtype is BOOL else index.lo.long()


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
            return _plain_index(args)
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
    "masked_select",
]:
    RULES[_name] = _both(getattr(torch.Tensor, _name))
RULES["__getitem__"] = _both(torch.Tensor.__getitem__)


@_rule("pad")
def _pad(x: Interval, pad: Any, mode: str = "constant", value: float | None = None) -> Interval:
    filling = _lift(0.0 if value is None else value, x.dtype)
    if not filling.is_exact():
        raise OutOfScope("padding with a number that is rounded")
    return _both(torch.nn.functional.pad)(x, pad, mode, float(value or 0.0))


def _joined(function: Callable[..., Any]) -> Rule:
    def rule(tensors: list[Interval], dim: int = 0) -> Interval:
        dtype = tensors[0].dtype
        for x in tensors[1:]:
            dtype = torch.promote_types(dtype, x.dtype)
        parts = [_cast(x, dtype) for x in tensors]
        try:
            lo = function([x.lo for x in parts], dim)
            return Interval(lo, function([x.hi for x in parts], dim), dtype)
        except (RuntimeError, IndexError) as error:
            raise OutOfScope(str(error)) from error

    return rule


RULES["cat"], RULES["stack"] = _joined(torch.cat), _joined(torch.stack)


@_rule("to")
def _to(x: Interval, dtype: Any) -> Interval:
    return _cast(x, dtype) if isinstance(dtype, torch.dtype) else x


@_rule("masked_fill")
def _masked_fill(x: Interval, mask: Interval, value: Any) -> Interval:
    return _where(mask, value, x)


@_rule("where")
def _where(condition: Interval, x: Any, y: Any) -> Interval:
    x, y, dtype = _common(x, y)
    sure, maybe = condition.lo > 0, condition.hi > 0
    lo = torch.where(sure, x.lo, torch.where(maybe, torch.minimum(x.lo, y.lo), y.lo))
    hi = torch.where(sure, x.hi, torch.where(maybe, torch.maximum(x.hi, y.hi), y.hi))
    return Interval(lo, hi, dtype)


@_rule("copy")
def _copied(x: Interval, value: Any) -> Interval:
    value = _cast(_lift(value, x.dtype), x.dtype)
    return Interval(value.lo.expand(x.shape).clone(), value.hi.expand(x.shape).clone(), x.dtype)


@_rule("fill")
def _filled(x: Interval, value: Any) -> Interval:
    return _copied(x, value)


@_rule("zero")
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
        x = _floating(x)
        if x.numel() and (float(x.lo.min()) < low or float(x.hi.max()) > high):
            raise OutOfScope(f"{name} outside of {low} ... {high}")
        lo, hi = x.lo, x.hi
        if error:
            lo, hi = lo - lo.abs() * ARGUMENT, hi + hi.abs() * ARGUMENT
        lo, hi = compute(lo) - absolute, compute(hi) + absolute
        return _stored(lo, hi, x.dtype, FUNCTION[x.dtype] if error else 0.0)

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
        x = _floating(x)
        if x.numel() and float(x.lo.min()) < 2.0**-6:
            raise OutOfScope(f"{name} near 0")
        return _stored(compute(x.hi), compute(x.lo), x.dtype, FUNCTION[x.dtype])

    RULES[name] = rule


_falling("reciprocal", torch.reciprocal)


@_rule("sqrt")
def _sqrt(x: Interval) -> Interval:
    x = _floating(x)
    if x.numel() and float(x.lo.min()) < 0:
        raise OutOfScope("sqrt of a negative number")
    return _stored(x.lo.sqrt(), x.hi.sqrt(), x.dtype, 4 * UNIT)


@_rule("rsqrt")
def _rsqrt(x: Interval) -> Interval:
    return RULES["reciprocal"](_sqrt(x))  # which is how CPU computes it in half precision


def _smooth(name: str, compute: Callable[[torch.Tensor], torch.Tensor], slope: float) -> None:
    """A function that turns, and nowhere is steeper than `slope`."""

    def rule(x: Interval) -> Interval:
        x = _floating(x)
        middle = (x.lo + x.hi) / 2
        reach = ((x.hi - x.lo) / 2 + x.magnitude() * ARGUMENT) * slope
        value = compute(middle)
        return _stored(value - reach, value + reach, x.dtype, FUNCTION[x.dtype])

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


@_rule("neg")
def _neg(x: Interval) -> Interval:
    return Interval(-x.hi, -x.lo, x.dtype)


@_rule("abs")
def _abs(x: Interval) -> Interval:
    low = torch.where((x.lo <= 0) & (x.hi >= 0), 0.0, torch.minimum(x.lo.abs(), x.hi.abs()))
    return Interval(low, x.magnitude(), x.dtype)


@_rule("square")
def _square(x: Interval) -> Interval:
    size = _abs(x)
    return _stored(size.lo**2, size.hi**2, x.dtype)


@_rule("pow")
def _pow(x: Interval, exponent: Any) -> Interval:
    if exponent == 2:
        return _square(x)
    if exponent == 3:
        squared, cubed = _square(x), x.lo**3
        steps = _mul(squared, x)
        once = _stored(cubed, x.hi**3, x.dtype, FUNCTION.get(x.dtype, 0.0))
        return Interval(torch.minimum(steps.lo, once.lo), torch.maximum(steps.hi, once.hi), x.dtype)
    if exponent == 0.5:
        return RULES["sqrt"](x)
    raise NotImplementedError(f"pow with {exponent}")


@_rule("clamp")
def _clamp(x: Interval, min: Any = None, max: Any = None) -> Interval:
    if min is not None:
        x = _maximum(x, min)
    return x if max is None else _minimum(x, max)


@_rule("leaky_relu")
def _leaky_relu(x: Interval, negative_slope: float = 0.01) -> Interval:
    slope = _lift(negative_slope, x.dtype)
    small = _mul(x, slope)
    keep_lo, keep_hi = x.lo > 0, x.hi > 0
    return Interval(
        torch.where(keep_lo, x.lo, small.lo), torch.where(keep_hi, x.hi, small.hi), x.dtype
    )


@_rule("logical_not", "bitwise_not")
def _not(x: Interval) -> Interval:
    if x.dtype is I64:
        return Interval(-x.hi - 1, -x.lo - 1, I64)
    x = _cast(x, BOOL)
    return Interval(1 - x.hi, 1 - x.lo, BOOL)


# ---- functions of two numbers


@_rule("add")
def _add(x: Any, y: Any, alpha: Any = 1) -> Interval:
    x, y, dtype = _common(x, y)
    if dtype is BOOL:
        return _stored(torch.maximum(x.lo, y.lo), torch.maximum(x.hi, y.hi), BOOL)
    if alpha != 1:
        y = _mul(y, alpha)
    return _stored(x.lo + y.lo, x.hi + y.hi, dtype)


@_rule("sub")
def _sub(x: Any, y: Any, alpha: Any = 1) -> Interval:
    x, y, _ = _common(x, y)
    return _add(x, _neg(y), alpha)


@_rule("rsub")
def _rsub(x: Any, y: Any) -> Interval:
    return _sub(y, x)


def _corners(x: Interval, y: Interval, compute: Rule) -> tuple[torch.Tensor, torch.Tensor]:
    ends = [compute(a, b) for a in (x.lo, x.hi) for b in (y.lo, y.hi)]
    lo, hi = ends[0], ends[0]
    for end in ends[1:]:
        lo, hi = torch.minimum(lo, end), torch.maximum(hi, end)
    return lo, hi


@_rule("mul")
def _mul(x: Any, y: Any) -> Interval:
    x, y, dtype = _common(x, y)
    return _stored(*_corners(x, y, torch.mul), dtype)


@_rule("div")
def _div(x: Any, y: Any) -> Interval:
    x, y, _ = _common(x, y)
    x, y = _floating(x), _floating(y)
    if y.numel() and float(_abs(y).lo.min()) < 2.0**-6:
        raise OutOfScope("division by almost 0")
    # As a product with the inverse, which is rounded, too, it is off by another unit of float32.
    return _stored(*_corners(x, y, torch.div), x.dtype, 4 * UNIT)


@_rule("maximum")
def _maximum(x: Any, y: Any) -> Interval:
    x, y, dtype = _common(x, y)
    return Interval(torch.maximum(x.lo, y.lo), torch.maximum(x.hi, y.hi), dtype)


@_rule("minimum")
def _minimum(x: Any, y: Any) -> Interval:
    x, y, dtype = _common(x, y)
    return Interval(torch.minimum(x.lo, y.lo), torch.minimum(x.hi, y.hi), dtype)


def _exactly(name: str) -> None:
    """An operation of integers, in int64 as PyTorch does it."""

    def rule(x: Any, y: Any) -> Interval:
        x, y, dtype = _common(x, y)
        if dtype not in (I64, BOOL) or not (x.is_exact() and y.is_exact()):
            raise OutOfScope(f"{name} of what is not known exactly")
        if name in ("floor_divide", "remainder") and bool((y.lo == 0).any()):
            raise OutOfScope(f"{name} by 0")
        ends = getattr(torch, name)(x.lo.to(dtype), y.lo.to(dtype))
        return _checked(Interval.exact(ends.double(), dtype))

    RULES[name] = rule


for _name in ("floor_divide", "remainder", "bitwise_and", "bitwise_or", "bitwise_xor"):
    _exactly(_name)


@_rule("logical_and")
def _and(x: Any, y: Any) -> Interval:
    x, y = _cast(x, BOOL), _cast(y, BOOL)
    return Interval(torch.minimum(x.lo, y.lo), torch.minimum(x.hi, y.hi), BOOL)


@_rule("logical_or")
def _or(x: Any, y: Any) -> Interval:
    x, y = _cast(x, BOOL), _cast(y, BOOL)
    return Interval(torch.maximum(x.lo, y.lo), torch.maximum(x.hi, y.hi), BOOL)


@_rule("logical_xor")
def _xor(x: Any, y: Any) -> Interval:
    return _compared(_cast(x, BOOL), _cast(y, BOOL), "ne")


def _compared(x: Any, y: Any, how: str) -> Interval:
    """1 where it is true of all numbers within the bounds, 0 where of none; else 0 ... 1."""
    x, y, _ = _common(x, y)
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
    RULES[_name] = lambda x, y, how=_name: _compared(x, y, how)


# ---- reductions


def _grid(values: torch.Tensor) -> float:
    """The largest power of 2 that all values are multiples of, down to 2^-12; 0: there is none."""
    if not bool((values * 2.0**12 == (values * 2.0**12).round()).all()):
        return 0.0
    for bits in range(13):
        if bool((values * 2.0**bits == (values * 2.0**bits).round()).all()):
            return 2.0**-bits
    return 0.0


def _summed(terms: torch.Tensor, total: torch.Tensor, size: torch.Tensor, count: int) -> Any:
    """How far float32 sums of `count` terms may be off: not at all if partial sums are exact."""
    grid = _grid(terms)
    exact = grid > 0 and bool((size <= grid * 2.0**24).all()) if size.numel() else True
    return torch.zeros_like(total) if exact else size * (count * UNIT)


def _dims(x: Interval, dim: Any) -> list[int]:
    if dim is None or dim == ():
        return list(range(x.ndim))
    return [d % max(x.ndim, 1) for d in (dim if isinstance(dim, (tuple, list)) else (dim,))]


def _count(x: Interval, dim: Any) -> int:
    return math.prod(x.shape[d] for d in _dims(x, dim)) if x.ndim else 1


@_rule("sum")
def _sum(x: Interval, dim: Any = None, keepdim: bool = False) -> Interval:
    dtype = x.dtype if x.dtype.is_floating_point else I64
    dims = _dims(x, dim)
    lo, hi = x.lo.sum(dims, keepdim), x.hi.sum(dims, keepdim)
    if dtype is I64:
        return _checked(Interval(lo, hi, I64))
    size = x.magnitude().sum(dims, keepdim)
    off = _summed(torch.cat([x.lo.flatten(), x.hi.flatten()]), lo, size, _count(x, dim))
    return _stored(lo - off, hi + off, dtype)


@_rule("mean")
def _mean(x: Interval, dim: Any = None, keepdim: bool = False) -> Interval:
    count = _count(x, dim)
    if count == 0:
        raise OutOfScope("mean of nothing")
    dims = _dims(x, dim)
    lo, hi = x.lo.sum(dims, keepdim), x.hi.sum(dims, keepdim)
    size = x.magnitude().sum(dims, keepdim)
    off = _summed(torch.cat([x.lo.flatten(), x.hi.flatten()]), lo, size, count)
    # The sum may be rounded before it is divided, where mean is taken apart.
    total = _stored(lo - off, hi + off, x.dtype)
    return _stored(total.lo / count, total.hi / count, x.dtype, 4 * UNIT)


def _running_mean(x: Interval, dim: int) -> Interval:
    """As CPU does it for a variance: corrected element by element, so never exact."""
    mean = _mean(x, dim, True)
    off = x.magnitude().amax(dim, keepdim=True) * (8 * UNIT)
    return Interval(mean.lo - off, mean.hi + off, x.dtype)


def _extreme(name: str) -> Rule:
    def rule(x: Interval, dim: Any = None, keepdim: bool = False) -> Interval:
        if _count(x, dim) == 0:
            raise OutOfScope(f"{name} of nothing")
        compute = getattr(torch, name)
        dims = _dims(x, dim)
        if not x.ndim:
            return x
        return Interval(compute(x.lo, dims, keepdim), compute(x.hi, dims, keepdim), x.dtype)

    return rule


RULES["amax"], RULES["amin"] = _extreme("amax"), _extreme("amin")


@_rule("any")
def _any(x: Interval, dim: Any = None, keepdim: bool = False) -> Interval:
    return _anywhere(_cast(x, BOOL), dim, keepdim, torch.amax, 0.0)


@_rule("all")
def _all(x: Interval, dim: Any = None, keepdim: bool = False) -> Interval:
    return _anywhere(_cast(x, BOOL), dim, keepdim, torch.amin, 1.0)


def _anywhere(x: Interval, dim: Any, keepdim: bool, compute: Rule, empty: float) -> Interval:
    dims = _dims(x, dim)
    if not x.ndim:
        return x
    if _count(x, dim) == 0:
        made = torch.full_like(x.lo.sum(dims, keepdim), empty)
        return Interval(made, made.clone(), BOOL)
    return Interval(compute(x.lo, dims, keepdim), compute(x.hi, dims, keepdim), BOOL)


def _arg_extreme(name: str) -> Rule:
    def rule(x: Interval, dim: int, keepdim: bool = False) -> Interval:
        if _count(x, dim) == 0 or not x.ndim:
            raise OutOfScope(f"{name} of nothing")
        lo, hi = (x.lo, x.hi) if name == "argmax" else (-x.hi, -x.lo)
        best = lo.amax(dim, keepdim=True)
        rivals = (hi >= best).sum(dim, keepdim=True)
        known = (rivals == 1) | _equal_rivals(lo, hi, best, dim)
        if not bool(known.all()):
            raise OutOfScope("the place of the largest is open")
        return Interval.exact(lo.argmax(dim, keepdim).double(), I64)

    return rule


def _equal_rivals(lo: torch.Tensor, hi: torch.Tensor, best: torch.Tensor, dim: int) -> torch.Tensor:
    """Where all that could be the largest are exactly equal: then it is the first of them."""
    return ((hi < best) | ((lo == best) & (hi == best))).all(dim, keepdim=True)


RULES["argmax"], RULES["argmin"] = _arg_extreme("argmax"), _arg_extreme("argmin")


@_rule("prod")
def _prod(x: Interval, dim: int) -> Interval:
    if not x.is_exact() or (x.numel() and _grid(x.lo) != 1.0):
        raise OutOfScope("prod of what is not an integer")
    if x.numel() and float(x.lo.abs().clamp(min=1).prod(dim).max()) > 512:
        raise OutOfScope("prod of too much")
    dtype = x.dtype if x.dtype.is_floating_point else I64
    return Interval.exact(x.lo.prod(dim), dtype)


@_rule("cumsum")
def _cumsum(x: Interval, dim: int) -> Interval:
    dtype = x.dtype if x.dtype.is_floating_point else I64
    lo, hi = x.lo.cumsum(dim), x.hi.cumsum(dim)
    if dtype is I64:
        return _checked(Interval(lo, hi, I64))
    size = x.magnitude().cumsum(dim)
    off = _summed(torch.cat([x.lo.flatten(), x.hi.flatten()]), lo, size, _count(x, dim))
    return _stored(lo - off, hi + off, dtype)


@_rule("sort")
def _sort(x: Interval, dim: int, descending: bool = False) -> tuple[Interval, None]:
    """The values alone: which of two equal ones comes first is open."""
    lo, hi = (e.sort(dim, descending=descending).values for e in (x.lo, x.hi))
    return Interval(lo, hi, x.dtype), None


@_rule("topk")
def _topk(x: Interval, k: int, dim: int, largest: bool = True) -> tuple[Interval, None]:
    values = _sort(x, dim, descending=largest)[0]
    return RULES["narrow"](values, dim, 0, k), None


@_rule("max")
def _max(x: Interval, dim: int, keepdim: bool = False) -> tuple[Interval, None]:
    return RULES["amax"](x, dim, keepdim), None


@_rule("min")
def _min(x: Interval, dim: int, keepdim: bool = False) -> tuple[Interval, None]:
    return RULES["amin"](x, dim, keepdim), None


# ---- taken apart as the compiler does it, which holds what a single kernel gives, too


@_rule("softmax")
def _softmax(x: Interval, dim: int) -> Interval:
    powers = RULES["exp"](_sub(x, RULES["amax"](x, dim, True)))
    # The largest is among the terms: no sum is below 1, and no quotient above.
    total = _sum(powers, dim, True)
    total = Interval(total.lo.clamp(min=1.0), total.hi, total.dtype)
    result = _div(powers, total)
    return Interval(result.lo.clamp(min=0.0), result.hi, result.dtype)


@_rule("log_softmax")
def _log_softmax(x: Interval, dim: int) -> Interval:
    below = _sub(x, RULES["amax"](x, dim, True))
    total = _sum(RULES["exp"](below), dim, True)
    return _sub(below, RULES["log"](Interval(total.lo.clamp(min=1.0), total.hi, total.dtype)))


@_rule("logsumexp")
def _logsumexp(x: Interval, dim: int, keepdim: bool = False) -> Interval:
    most = RULES["amax"](x, dim, True)
    total = _sum(RULES["exp"](_sub(x, most)), dim, True)
    total = Interval(total.lo.clamp(min=1.0), total.hi, total.dtype)
    result = _add(RULES["log"](total), most)
    return result if keepdim else RULES["squeeze"](result, dim)


@_rule("var")
def _var(x: Interval, dim: int, correction: int = 1, keepdim: bool = False) -> Interval:
    count = _count(x, dim)
    if count - correction <= 0:
        raise OutOfScope("var of too little")
    away = _square(_sub(x, _running_mean(x, dim)))
    total = _sum(away, dim, keepdim)
    # As a difference of mean squares it is off by a part of these.
    off = x.magnitude().square().sum(_dims(x, dim), keepdim) * (8 * UNIT)
    once = _stored(((total.lo - off) / (count - correction)).clamp(min=0.0),
                   (total.hi + off) / (count - correction), x.dtype, 8 * UNIT)  # fmt: skip
    if correction == 0:
        return once
    # Or in parts: the mean square, times a number.
    parts = _mul(_var(x, dim, 0, keepdim), count / (count - correction))
    return Interval(once.lo.minimum(parts.lo), once.hi.maximum(parts.hi), x.dtype)


@_rule("layer_norm")
def _layer_norm(x: Interval, shape: Any, weight: Any = None, bias: Any = None) -> Interval:
    spread = _var(x, -1, correction=0, keepdim=True)
    result = _mul(_sub(x, _running_mean(x, -1)), RULES["rsqrt"](_add(spread, 1e-5)))
    if weight is not None:
        result = _mul(result, weight)
    return result if bias is None else _add(result, bias)


# ---- products


@_rule("matmul", "mm", "bmm")
def _matmul(x: Interval, y: Interval) -> Interval:
    if not x.dtype.is_floating_point or x.dtype is not y.dtype:
        raise OutOfScope("products of integers or of different types")
    middle = [(v.lo + v.hi) / 2 for v in (x, y)]
    radius = [(v.hi - v.lo) / 2 for v in (x, y)]
    value = middle[0] @ middle[1]
    size = x.magnitude() @ y.magnitude()
    off = middle[0].abs() @ radius[1] + radius[0] @ (middle[1].abs() + radius[1])
    terms = torch.tensor([_grid(x.lo), _grid(x.hi), _grid(y.lo), _grid(y.hi)])
    step = float(terms[:2].min() * terms[2:].min())
    exact = step > 0 and bool((size <= step * 2.0**24).all()) if size.numel() else True
    if not exact or bool((off > 0).any()):
        off = off + size * (x.shape[-1] * UNIT)
    return _stored(value - off, value + off, x.dtype)


@_rule("linear")
def _linear(x: Interval, weight: Interval, bias: Interval | None = None) -> Interval:
    product = _matmul(x, RULES["t"](weight))
    return product if bias is None else _add(product, bias)


@_rule("addmm")
def _addmm(bias: Interval, x: Interval, y: Interval) -> Interval:
    return _add(_matmul(x, y), bias)


@_rule("index_add")
def _index_add(x: Interval, dim: int, index: Interval, source: Interval) -> Interval:
    where = _plain_index(index)
    if x.dtype is not source.dtype:
        raise OutOfScope("index_add of another type")
    lo, hi = x.lo.index_add(dim, where, source.lo), x.hi.index_add(dim, where, source.hi)
    size = x.magnitude().index_add(dim, where, source.magnitude())
    grid = _grid(torch.cat([e.flatten() for v in (x, source) for e in (v.lo, v.hi)]))
    exact = grid > 0 and bool((size <= grid * 512).all()) if size.numel() else True
    if x.dtype in (I64, BOOL) or exact:
        return _checked(Interval(lo, hi, x.dtype))
    # Eager PyTorch rounds after each of the additions.
    off = size * (source.shape[dim] * (2.0**-10 if x.dtype is F16 else UNIT))
    return _stored(lo - off, hi + off, x.dtype)
