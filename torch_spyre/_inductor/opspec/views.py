"""Where a view's elements lie on the card: coordinates over device axes, and their alignment.

In: the layout of a storage (device_size, stride_map), the ranges of a loop nest, and Inductor's
index expression. Out: one coordinate for each device axis. `align` then rewrites all tensors of an
operation so that each axis carries one symbol, which is what SuperDSC can say.

Example: row-major (128, 256) float16, index 256*c0 + c1, gives [floor(c1/64), c0, Mod(c1, 64)].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import sympy

from torch_spyre._inductor.opspec.alignment import align
from torch_spyre._inductor.opspec.coordinates import (
    Coordinate,
    Misaligned,
    Term,
    divide,
    largest,
    parse,
    to_expr,
)

__all__ = ["Misaligned", "Stick", "align", "compute_coordinates", "stick_expression"]


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
