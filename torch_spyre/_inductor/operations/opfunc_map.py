"""Instruction selection: a method of SpyreOpFuncs maps each LoopLevelIR operation to OpFuncs.

All that the front-end can compute on the card. A method gets values (see `trace`) and returns the
OpFunc that computes the result; adding one is all a pointwise operation needs.

    class SpyreOpFuncs:
        def relu(x): return opfunc("relufwd", x)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from torch_spyre._inductor.errors import NoOpFunc, UnsupportedType
from torch_spyre.dtypes import FLOATS, INTEGERS, SIXTEEN_BITS
from torch_spyre.opfuncs import OPFUNCS

# ---- Values of a traced body --------------------------------------------------------------------


@dataclass(frozen=True)
class Value:
    """Something a body computes."""

    dtype: torch.dtype


@dataclass(frozen=True)
class Load(Value):
    name: str
    index: sympy.Expr


@dataclass(frozen=True)
class Constant(Value):
    value: float | int | bool
    sign: float = field(init=False, repr=False)
    """0.0 and -0.0 are equal, and two numbers."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sign", math.copysign(1, self.value))


@dataclass(frozen=True)
class PointwiseOp(Value):
    """An OpFunc on values. `dtype` is filled in by the tracer where it is None."""

    opfunc: str = ""
    args: tuple[Value, ...] = ()
    info: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class DotOp(Value):
    """A product that a reduction sums: the body of a matmul."""

    args: tuple[Value, ...] = ()


def opfunc(
    name: str, *operands: Value | float, dtype: torch.dtype | None = None, **constants: Any
) -> Value:
    """Use of an OpFunc in a method of SpyreOpFuncs; keyword arguments are its constants.

    A number among the operands has the type of the tensors, as in `x < 0`.
    """
    args = _values(operands)
    result = dtype if dtype is not None else promote(args)
    info = (("constants", tuple(constants.items())),) if constants else ()
    return PointwiseOp(result, name, args, info)


def _values(operands: tuple[Value | float, ...]) -> tuple[Value, ...]:
    known = [a for a in operands if isinstance(a, Value)]
    if len(known) == len(operands):
        return tuple(known)
    if not known:
        raise UnsupportedType("numbers alone have no type; spyre_ops.constant(number, dtype) has")
    dtype = promote(tuple(known))
    fractions = [a for a in operands if isinstance(a, float) and not a.is_integer()]
    if fractions and not dtype.is_floating_point:
        raise UnsupportedType(f"{fractions[0]} is no number of {dtype}; cast the tensor before")
    return tuple(a if isinstance(a, Value) else Constant(dtype, a) for a in operands)


def promote(args: tuple[Value, ...]) -> torch.dtype:
    """The type of a result: that of the tensors; a constant alone does not widen it."""
    tensors = [a for a in args if not isinstance(a, Constant)] or list(args)
    dtype = tensors[0].dtype
    for arg in tensors[1:]:
        dtype = torch.promote_types(dtype, arg.dtype)
    return dtype


def constant(value: float | int | bool, like: Value) -> Constant:
    """A constant of the type of another value."""
    return Constant(like.dtype, value)


# ---- What maps to what --------------------------------------------------------------------------


class SpyreOpFuncs:
    """One method for each operation of LoopLevelIR that the card can do.

    The method gets values and returns a value made of `opfunc(...)`. Where an ATen operation has
    the
    name of a method here and Inductor would decompose it, the method wins: it is mapped directly.
    Users add their own: `SpyreOpFuncs.sinc = staticmethod(lambda x: opfunc("sinc", x))`.
    """


def _simple(method: str, name: str | None = None) -> None:
    row = OPFUNCS[name or method]
    result = torch.bool if row.result == "bool" else None

    def use(*args: Value) -> Value:
        return opfunc(row.name, *args, dtype=result)

    use.__name__ = method
    use.__doc__ = f"`{row.name}`"
    setattr(SpyreOpFuncs, method, staticmethod(use))


for _name in [
    "abs",
    "add",
    "exp",
    "floor",
    "log",
    "maximum",
    "minimum",
    "mul",
    "neg",
    "reciprocal",
    "rsqrt",
    "sigmoid",
    "sqrt",
    "sub",
    "tanh",
    "silu",
    "ceil",
    "trunc",
    "round",
    "sin",
    "cos",
    "erf",
    "log1p",
    "expm1",
    "isnan",
    "pow",
]:
    _simple(_name)
for _alias, _name in {
    "truediv": "realdiv", "eq": "equal", "ne": "notequal", "lt": "lesserthan", "le": "lesserequal",
    "gt": "greaterthan", "ge": "greaterequal", "gelu": "gelufwd",
    "gelu_tanh": "gelutanh",
}.items():  # fmt: skip
    _simple(_alias, _name)


def _method(function: Callable[..., Value]) -> Callable[..., Value]:
    setattr(SpyreOpFuncs, function.__name__, staticmethod(function))
    return function


@_method
def where(condition: Value, x: Value | float, y: Value | float) -> Value:
    x, y = _values((x, y))
    return opfunc("where3", condition, x, y, dtype=promote((x, y)))


@_method
def square(x: Value) -> Value:
    return opfunc("mul", x, x)


@_method
def clamp(x: Value, low: float, high: float) -> Value:
    return opfunc("clip", x, clipMin=float(low), clipMax=float(high))


@_method
def softplus(x: Value, beta: float, threshold: float) -> Value:
    return opfunc("softplus", x, softplusBeta=float(beta), softplusThresh=float(threshold))


@_method
def logical_and(x: Value, y: Value) -> Value:
    return opfunc("mul", as_bool(x), as_bool(y), dtype=torch.bool)


@_method
def logical_or(x: Value, y: Value) -> Value:
    return opfunc("maximum", as_bool(x), as_bool(y), dtype=torch.bool)


@_method
def logical_xor(x: Value, y: Value) -> Value:
    return opfunc("notequal", as_bool(x), as_bool(y), dtype=torch.bool)


@_method
def logical_not(x: Value) -> Value:
    return opfunc("equal", x, constant(0, x), dtype=torch.bool)


def _bool_only(name: str, function: Callable[..., Value]) -> None:
    def use(*args: Value) -> Value:
        if any(a.dtype is not torch.bool for a in args):
            raise NoOpFunc(f"the card has no {name} for integers")
        return function(*args)

    setattr(SpyreOpFuncs, name, staticmethod(use))


_bool_only("bitwise_and", logical_and)
_bool_only("bitwise_or", logical_or)
_bool_only("bitwise_xor", logical_xor)


@_method
def bitwise_not(x: Value) -> Value:
    return logical_not(x) if x.dtype is torch.bool else opfunc("sub", constant(-1, x), x)


@_method
def relu(x: Value) -> Value:
    if x.dtype in INTEGERS:
        return opfunc("maximum", x, constant(0, x))
    return opfunc("relufwd", x)


@_method
def isinf(x: Value) -> Value:
    return opfunc("equal", opfunc("abs", x), constant(math.inf, x), dtype=torch.bool)


# ---- Whole quotients ----------------------------------------------------------------------------
# The card has no division of integers. A quotient in float32 is off by at most 256 / divisor + 1;
# what is left of x without so many times the divisor is small, so that its quotient is exact. All
# of it wraps around at 32 bits, which what is left does not notice.

_LARGEST_DIVISOR = 1 << 21
"""float32 holds what is left of twice as many and some more, with a half."""


def _floor_quotient(x: Value, y: Value, name: str) -> tuple[Value, Value]:
    """x // y and x % y, for a number y."""
    if x.dtype not in INTEGERS:
        raise NoOpFunc(f"the card has no {name} for {x.dtype}")
    if not isinstance(y, Constant):
        raise NoOpFunc(f"the card has {name} of integers by a number, not by a tensor")
    if not 0 < y.value <= _LARGEST_DIVISOR:
        raise NoOpFunc(f"the card has {name} of integers by 1 to {_LARGEST_DIVISOR}, not {y.value}")
    divisor = Constant(torch.int32, int(y.value))
    near = _near_quotient(x, divisor, 0.0)
    left = _left(x, near, divisor)
    # Half of one more keeps the quotient away from whole numbers, whichever way it is rounded.
    quotient = opfunc("add", near, _near_quotient(left, divisor, 0.5), dtype=torch.int32)
    return quotient, _left(x, quotient, divisor)


def _near_quotient(x: Value, divisor: Constant, more: float) -> Value:
    whole = cast(x, torch.float32)
    if more:
        whole = opfunc("add", whole, constant(more, whole))
    return cast(
        opfunc("floor", opfunc("realdiv", whole, cast(divisor, torch.float32))), torch.int32
    )


def _left(x: Value, quotient: Value, divisor: Constant) -> Value:
    product = opfunc("mul", quotient, divisor, dtype=torch.int32)
    return opfunc("sub", x, product, dtype=torch.int32)


@_method
def floordiv(x: Value, y: Value) -> Value:
    return _floor_quotient(x, y, "division")[0]


@_method
def truncdiv(x: Value, y: Value) -> Value:
    """As floordiv, and one more for a negative x that leaves something."""
    quotient, left = _floor_quotient(x, y, "division")
    more = opfunc("mul", opfunc("lesserthan", x, constant(0, x), dtype=torch.bool), as_bool(left))
    return opfunc("add", quotient, cast(more, torch.int32), dtype=torch.int32)


def _between(x: Value, low: int, high: int) -> Value:
    """x, which lies there: the compiler does not see it from sums and products."""
    return opfunc("minimum", opfunc("maximum", x, constant(low, x)), constant(high, x))


@_method
def remainder(x: Value, y: Value) -> Value:
    left = _floor_quotient(x, y, "a remainder")[1]
    return _between(left, 0, y.value - 1)  # type: ignore[attr-defined]


@_method
def mod(x: Value, y: Value) -> Value:
    """With the sign of x, as fmod."""
    left = _floor_quotient(x, y, "a remainder")[1]
    divisor = constant(y.value, left)  # type: ignore[attr-defined]
    less = opfunc("mul", opfunc("lesserthan", x, constant(0, x), dtype=torch.bool), as_bool(left))
    left = opfunc("sub", left, opfunc("mul", cast(less, torch.int32), divisor))
    return _between(left, 1 - int(divisor.value), int(divisor.value) - 1)


def _in_float32(name: str, function: Callable[[Value], Value]) -> None:
    """A function of 16-bit numbers, made of others in float32: it is rounded once.

    Of float32 numbers the host's is nearer.
    """

    def use(x: Value) -> Value:
        if x.dtype not in SIXTEEN_BITS:
            raise NoOpFunc(f"the card has no {name} for {x.dtype}")
        return cast(function(cast(x, torch.float32)), x.dtype)

    use.__name__ = name
    setattr(SpyreOpFuncs, name, staticmethod(use))


_in_float32("log2", lambda x: opfunc("mul", opfunc("log", x), constant(1 / math.log(2), x)))
_in_float32("log10", lambda x: opfunc("mul", opfunc("log", x), constant(1 / math.log(10), x)))


@_method
def identity(x: Value) -> Value:
    return x


@_method
def layernormscale(x: Value, eps: float) -> Value:
    return opfunc("layernormscale", x, eps=float(eps))


@_method
def layernormnorm(x: Value, mean: Value, scale: Value, *weight_and_bias: Value) -> Value:
    return opfunc("layernormnorm", x, mean, scale, *weight_and_bias, dtype=x.dtype)


@_method
def qfp8ch(x: Value) -> Value:
    return opfunc("qfp8ch", cast(x, torch.float16), dtype=torch.float8_e4m3fn)


@_method
def restickify(x: Value) -> Value:
    return PointwiseOp(x.dtype, "identity", (x,))


def as_bool(x: Value) -> Value:
    """0 or 1."""
    return x if x.dtype is torch.bool else opfunc("notequal", x, constant(0, x), dtype=torch.bool)


# ---- Casts --------------------------------------------------------------------------------------


def cast(x: Value, dtype: torch.dtype) -> Value:
    """The value in another type, by the casts that the card has."""
    source = x.dtype
    if source == dtype or (source in INTEGERS and dtype in INTEGERS):
        return x
    if isinstance(x, Constant):
        return Constant(dtype, x.value)
    if dtype is torch.bool:
        return as_bool(x)
    sixteen = (*SIXTEEN_BITS, torch.bool)
    if source in sixteen and dtype in sixteen:
        return PointwiseOp(dtype, "identity", (x,))  # all three are DLFloat16 on the card
    if source in sixteen and dtype is torch.float32:
        return PointwiseOp(dtype, "dl16tofp32", (x,))
    if source is torch.float32 and dtype in SIXTEEN_BITS:
        return PointwiseOp(dtype, "fp32todl16", (x,))
    if source in INTEGERS and dtype in FLOATS:
        return PointwiseOp(dtype, "int32tofp", (x,))
    if source in (*FLOATS, torch.bool) and dtype in INTEGERS:
        return PointwiseOp(dtype, "fptoint32", (x,))
    if source is torch.float16 and dtype is torch.float8_e4m3fn:
        return PointwiseOp(dtype, "qfp8ch", (x,))
    if source is torch.float8_e4m3fn and dtype is torch.float16:
        return PointwiseOp(dtype, "fp8todl16", (x,))
    raise UnsupportedType(f"the card has no cast from {source} to {dtype}")


INTEGER_OPFUNCS = frozenset(row.name for row in OPFUNCS.values() if row.int_tile)
