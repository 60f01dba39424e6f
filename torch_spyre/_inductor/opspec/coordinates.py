"""Coordinates: the device axes of a tensor as functions of iteration symbols.

In: sympy expressions over iteration symbols (Inductor's FloorDiv and ModularIndexing included).
Out: `Coordinate`, a sum of `Term`s and a constant, exact or refused with `Misaligned`. Everything
between the OpSpec boundaries works on these; sympy is slow and only met when reading and writing.
`compute_coordinates` gives one for each axis of a layout; `alignment.py` then rewrites all tensors
of an operation so that each axis carries one symbol, which is what SuperDSC can say.

Example: `floor(Mod(c0, 50)/10) + 3` is Coordinate((Term(c0, den=10, mod=50),), const=3); row-major
(128, 256) float16 with index 256*c0 + c1 gives [floor(c1/64), c0, Mod(c1, 64)].
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import sympy


class Misaligned(Exception):
    """An access that one symbol per device axis cannot express; a copy in between helps."""

    def __init__(self, coordinate: object, reason: str) -> None:
        super().__init__(f"coordinate {coordinate}: {reason}")
        self.coordinate = coordinate
        self.reason = reason


class Term(NamedTuple):
    """num * (((var % base) % mod) // den); a modulus of 0 is absent.

    `base` is there for the one case of two moduli that do not nest: a padded stick inside of a
    flattened or repeated dimension, e.g. Mod(Mod(c0, 240), 64).
    """

    var: sympy.Expr
    """An iteration symbol, or an IndirectAccess."""
    num: int = 1
    den: int = 1
    mod: int = 0
    base: int = 0


class Coordinate(NamedTuple):
    """A sum."""

    terms: tuple[Term, ...] = ()
    const: int = 0


Ranges = tuple[tuple[sympy.Expr, int], ...]
"""Sizes of symbols as a hashable value: `tuple(ranges.items())`."""

UNBOUNDED = 1 << 62


def digits_end(term: Term, ranges: Mapping[sympy.Expr, int]) -> int:
    """The first value of `var % ...` that does not occur: the range, or the smallest modulus."""
    end = ranges.get(term.var, UNBOUNDED)
    if 0 < term.base < end:
        end = term.base
    if 0 < term.mod < end:
        end = term.mod
    return end


def largest(term: Term, ranges: Mapping[sympy.Expr, int]) -> int:
    """The largest value of the term, its factor not counted."""
    return (digits_end(term, ranges) - 1) // term.den


# ---- Division with remainder ---------------------------------------------------------------------


def divide(
    value: Coordinate,
    divisor: int,
    ranges: Mapping[sympy.Expr, int],
    allow_carry_of_constant: bool = False,
) -> tuple[Coordinate, Coordinate]:
    """Quotient and remainder of a sum, term by term. Raises Misaligned when they would need a carry
    from one term into another, which no sum of terms can express."""
    quotient: list[Term] = []
    remainder: list[Term] = []
    most = 0
    for term in value.terms:
        if term.num % divisor == 0:
            quotient.append(term._replace(num=term.num // divisor))
            continue
        bound = term.num * largest(term, ranges)
        if bound < divisor:
            remainder.append(term)
            most += bound
        elif divisor % term.num:
            raise Misaligned(to_expr(value), f"a step of {term.num} against a stride of {divisor}")
        else:
            quotient.append(term._replace(num=1, den=term.den * (divisor // term.num)))
            rest = _modulo(term, divisor // term.num)
            remainder.append(rest)
            most += rest.num * largest(rest, ranges)
    high, low = value.const // divisor, value.const % divisor
    if most + low >= divisor and not (allow_carry_of_constant and most < divisor):
        raise Misaligned(to_expr(value), f"sums carry over the stride {divisor}")
    return Coordinate(tuple(quotient), high), Coordinate(tuple(remainder), low)


def _modulo(term: Term, modulus: int) -> Term:
    end = term.den * modulus
    if term.mod == 0:
        base = term.base
    elif term.mod <= end:
        return term
    elif term.mod % end == 0:
        base = term.base
    elif term.base == 0:
        base = term.mod
    else:
        raise Misaligned(to_expr(Coordinate((term,))), f"a third modulus, {end}")
    return term._replace(mod=end, base=0 if base and base % end == 0 else base)


# ---- From sympy ----------------------------------------------------------------------------------


@lru_cache(maxsize=1 << 16)
def parse(expr: sympy.Expr, ranges: Ranges) -> Coordinate:
    """An integer expression as a sum of terms. Raises Misaligned."""
    value, denominator = _parse(sympy.sympify(expr), dict(ranges))
    if denominator != 1:
        raise Misaligned(expr, "is not an integer")
    return value


def _parse(expr: sympy.Expr, ranges: dict[sympy.Expr, int]) -> tuple[Coordinate, int]:
    """Numerators and the common denominator."""
    if expr.is_Symbol:
        if expr not in ranges:
            raise Misaligned(expr, "is not a symbol of the iteration space")
        return Coordinate((Term(expr),)), 1
    if expr.is_Rational:
        return Coordinate((), int(expr.p)), int(expr.q)
    if expr.is_Mul:
        return _parse_product(expr, ranges)
    if expr.is_Add:
        parts = [_parse(part, ranges) for part in expr.args]
        common = math.lcm(*(q for _, q in parts))
        return _sum([_scaled(value, common // q) for value, q in parts]), common
    name = type(expr).__name__
    if name == "IndirectAccess":
        return Coordinate((Term(expr),)), 1
    if name == "floor":
        value, q = _parse(expr.args[0], ranges)
        if len(value.terms) == 1 and value.const == 0 and value.terms[0].num == 1:
            # Also when it is always 0: floor(c1/64) of 50 columns still says "whole sticks".
            return Coordinate((value.terms[0]._replace(den=value.terms[0].den * q),)), 1
        return divide(value, q, ranges)[0], 1
    if name in ("FloorDiv", "CleanDiv", "Mod", "PythonMod", "ModularIndexing"):
        value, q = _parse(expr.args[0], ranges)
        numbers = expr.args[1:]
        if q == 1 and all(n.is_Integer and n.is_positive for n in numbers):
            if name in ("Mod", "PythonMod"):
                return divide(value, int(numbers[0]), ranges)[1], 1
            value = divide(value, int(numbers[0]), ranges)[0]
            if name == "ModularIndexing":
                value = divide(value, int(numbers[1]), ranges)[1]
            return value, 1
    raise Misaligned(expr, f"{name} is not an index expression")


def _parse_product(expr: sympy.Expr, ranges: dict[sympy.Expr, int]) -> tuple[Coordinate, int]:
    number, rest = expr.as_coeff_Mul(rational=True)
    if rest.is_Mul:
        raise Misaligned(expr, "is not linear")
    value, q = _parse(rest, ranges)
    p, q = int(number.p), int(number.q) * q
    common = math.gcd(p, q)
    return _scaled(value, p // common), q // common


def _scaled(value: Coordinate, factor: int) -> Coordinate:
    if factor == 1:
        return value
    return Coordinate(
        tuple(t._replace(num=t.num * factor) for t in value.terms), value.const * factor
    )


def _sum(values: list[Coordinate]) -> Coordinate:
    terms: dict[Term, int] = {}
    for value in values:
        for term in value.terms:
            key = term._replace(num=1)
            terms[key] = terms.get(key, 0) + term.num
    return Coordinate(
        tuple(key._replace(num=num) for key, num in terms.items() if num),
        sum(value.const for value in values),
    )


# ---- To sympy ------------------------------------------------------------------------------------


@lru_cache(maxsize=1 << 16)
def to_expr(coordinate: Coordinate) -> sympy.Expr:
    """The canonical form: `floor(c1/64)`, `Mod(c1, 64)`, `floor(Mod(c0, 50)/10)`."""
    total: sympy.Expr = sympy.Integer(coordinate.const)
    for term in coordinate.terms:
        value = term.var
        if term.base:
            value = sympy.Mod(value, term.base)
        if term.mod:
            value = sympy.Mod(value, term.mod)
        if term.den > 1:
            value = sympy.floor(value / term.den)
        total = total + term.num * value
    return total


# ---- Coordinates of a view -----------------------------------------------------------------------


def compute_coordinates(
    device_size: Sequence[int],
    stride_map: Sequence[int],
    ranges: Mapping[sympy.Symbol, int],
    host_index: sympy.Expr,
) -> list[sympy.Expr]:
    """One expression for each device axis, for the element at `host_index` of the storage.

    The index is taken apart greedily, the axis of the largest stride first; axes of size 1 and of
    strides 0 and -1 get 0. Exact, with one exception: an offset inside of the stick stays in the
    stick's coordinate, e.g. `Mod(c1, 64) + 32`, for the caller to see. Other carries, negative
    steps and steps between two strides raise Misaligned.
    """
    sizes: dict[sympy.Expr, int] = dict(ranges)
    rest = parse(host_index, tuple(sizes.items()))
    if rest.const < 0 or any(term.num < 0 for term in rest.terms):
        raise Misaligned(host_index, "runs backwards")
    rest = Coordinate(tuple(t for t in rest.terms if largest(t, sizes)), rest.const)
    for term in rest.terms:
        if not term.var.is_Symbol:
            sizes[term.var] = _gathered_size(term, device_size, stride_map)

    stick = len(device_size) - 1
    # The axis of whole sticks: what an offset inside of the stick would carry into.
    outer_stride = stride_map[stick] * device_size[stick]
    axes = [j for j, size in enumerate(device_size) if size > 1 and stride_map[j] > 0]
    coordinates = [Coordinate()] * len(device_size)
    for j in sorted(axes, key=lambda j: -stride_map[j]):
        coordinates[j], rest = divide(rest, stride_map[j], sizes, stride_map[j] == outer_stride)
    if rest.terms or rest.const:
        raise Misaligned(host_index, f"no axis of strides {list(stride_map)} holds {to_expr(rest)}")
    return [to_expr(coordinate) for coordinate in coordinates]


def _gathered_size(term: Term, device_size: Sequence[int], stride_map: Sequence[int]) -> int:
    for size, stride in zip(device_size, stride_map):
        if stride == term.num and term == Term(term.var, term.num):
            return size
    raise Misaligned(term.var, f"gathers in steps of {term.num}, which is no axis's stride")


class Stick(NamedTuple):
    """What lies along the lanes of a tensor's sticks."""

    symbol: sympy.Symbol | None
    """None: one element per stick."""
    offset: int
    """Lane of the first element."""


def stick_expression(coordinates: Sequence[sympy.Expr]) -> Stick:
    """What the last coordinate says. Legal are v, Mod(v, eps), 0, and these with a constant."""
    expr = sympy.sympify(coordinates[-1])
    value = parse(expr, tuple((symbol, 1 << 62) for symbol in sorted(expr.free_symbols, key=str)))
    if not value.terms:
        return Stick(None, value.const)
    term = value.terms[0]
    if len(value.terms) > 1 or term.num != 1 or term.den != 1 or not term.var.is_Symbol:
        raise Misaligned(expr, "is no legal stick: expected v, Mod(v, n), 0, or these + constant")
    return Stick(term.var, value.const)
