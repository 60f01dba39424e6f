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

# Defaults that functions of torch.nn.functional pass on.
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
        target = self[index] if not has_tensor(index) else None
        if target is not None:
            _write(target, value)
            return
        value = cast(lift(value, self.dtype), self.dtype)
        index = plain_index(index)
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
        f"intervals do not know {name}: add a rule to element_rules.py or reduction_rules.py"
    )


def rule_for(*names: str) -> Callable[[Rule], Rule]:
    def add(rule: Rule) -> Rule:
        for name in names:
            RULES[name] = rule
        return rule

    return add


def _write(target: Interval, value: Any) -> None:
    value = cast(lift(value, target.dtype), target.dtype)
    target.lo.copy_(value.lo)
    target.hi.copy_(value.hi)


def checked(result: Interval) -> Interval:
    """Refuse what overflows or is no number: eager and compiled may go different ways there."""
    largest = LARGEST[result.dtype]
    for end in (result.lo, result.hi):
        if bool(end.isnan().any()) or bool((end.abs() > largest).any()):
            raise OutOfScope(f"values beyond {largest:g}")
    return result


def stored(
    lo: torch.Tensor, hi: torch.Tensor, dtype: torch.dtype, relative: float = 0.0
) -> Interval:
    return checked(Interval(*ends_of(lo, hi, dtype, relative), dtype))


def lift(value: Any, beside: torch.dtype) -> Interval:
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
    made = stored(x, x, kind if kind.is_floating_point else F32)
    return Interval(made.lo, made.hi, kind)


def cast(x: Interval, dtype: torch.dtype) -> Interval:
    if x.dtype is dtype:
        return x
    if dtype is BOOL:
        return RULES["ne"](x, Interval.exact(torch.zeros(()), x.dtype))
    if dtype is I64:
        return checked(Interval(x.lo.trunc(), x.hi.trunc(), I64))
    return stored(x.lo, x.hi, dtype)


def common(x: Any, y: Any) -> tuple[Interval, Interval, torch.dtype]:
    """Two operands in their common type; a number takes part as PyTorch's rules say."""
    kinds = [sample(v) for v in (x, y)]
    dtype = torch.result_type(*kinds)
    return cast(lift(x, dtype), dtype), cast(lift(y, dtype), dtype), dtype


def sample(value: Any) -> Any:
    if not isinstance(value, Interval):
        return value
    return torch.empty([1] * value.ndim, dtype=value.dtype, device="meta")


def floating(x: Interval) -> Interval:
    return x if x.dtype.is_floating_point else cast(x, F32)


def has_tensor(index: Any) -> bool:
    return any(isinstance(i, Interval) for i in (index if isinstance(index, tuple) else (index,)))


def plain_index(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(plain_index(i) for i in index)
    if not isinstance(index, Interval):
        return index
    if not index.is_exact():
        raise OutOfScope("an index that rounding could change")
    return index.lo.bool() if index.dtype is BOOL else index.lo.long()


# The rules themselves, which need all of the above.
from tests.fuzz import element_rules, reduction_rules  # noqa: E402, F401
