"""Padded dimensions: which elements of a padded tensor are valid.

A program specialised on 128 tokens runs 37: its tensors are larger than those of the call, and
only some of their elements are valid. Which ones follows from the factors of each dimension, from
the outermost to the innermost. With n tokens, of which up to N fit:

    (4, n, 64)             [4], [n], [64]     elements 0 to n-1 of N are valid
    .view(4 * n, 64)       [4 n], [64]        of each of 4 stretches of N elements the first n
    .view(4, n, 8, 8)      [4], [n], [8], [8]

A part is a number or an expression of open sizes; of a part of size N the first n are valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy


class NotPaddable(Exception):
    """Padding would be visible; the graph is compiled for the sizes that it has."""


@dataclass(frozen=True)
class Dim:
    """A dimension: its parts without ones, and whether all of its elements are equal."""

    parts: tuple[sympy.Expr, ...]
    uniform: bool = False

    @property
    def size(self) -> sympy.Expr:
        return sympy.Mul(*self.parts)

    @property
    def is_open(self) -> bool:
        return any(p.free_symbols for p in self.parts)

    @property
    def is_prefix(self) -> bool:
        """Whether the valid elements are a prefix."""
        return not any(p.free_symbols for p in self.parts[1:])


Dims = tuple[Dim, ...]


def expr_of(size: Any) -> sympy.Expr:
    """A size as an expression."""
    node = getattr(size, "node", None)
    return sympy.sympify(size) if node is None else sympy.sympify(node.expr)


def dim(parts: Sequence[Any], uniform: bool = False) -> Dim:
    """A dimension of parts; numbers beside each other become one."""
    joined: list[sympy.Expr] = []
    for part in map(sympy.sympify, parts):
        if part == 1:
            continue
        if part.is_Integer and joined and joined[-1].is_Integer:
            joined[-1] = joined[-1] * part
        else:
            joined.append(part)
    return Dim(tuple(joined), uniform)


def whole(sizes: Sequence[Any], uniform: bool = False) -> Dims:
    """Dimensions of one part each."""
    return tuple(dim([expr_of(s)], uniform) for s in sizes)


def has_open(dims: Dims) -> bool:
    return any(d.is_open for d in dims)


def is_one_part(size: sympy.Expr) -> bool:
    """Whether a size can only be one part: 4*n may be 4 times n, or n times 4."""
    return size.is_Integer or size.is_Symbol or not size.is_Mul


def view(dims: Dims, sizes: Sequence[sympy.Expr]) -> Dims:
    """The dimensions of a view of the given sizes."""
    if any(d.uniform and d.is_open for d in dims):
        if all(d.uniform or not d.is_open for d in dims) and all(map(is_one_part, sizes)):
            return tuple(dim([s], uniform=True) for s in sizes)
        raise NotPaddable("a view of a tensor that was expanded to an open size")
    parts = [p for d in dims for p in d.parts]
    result = []
    for size in sizes:
        taken, size = [], sympy.sympify(size)
        while size != 1:
            if not parts:
                raise NotPaddable(f"a view to {list(sizes)} whose parts are not known")
            first = parts[0]
            rest = sympy.cancel(size / first)
            if rest.as_numer_denom()[1] == 1:
                taken.append(parts.pop(0))
                size = rest
                continue
            common = sympy.igcd(first, size.as_coeff_Mul()[0]) if first.is_Integer else 1
            if common == 1:
                raise NotPaddable(f"a view to {list(sizes)} that takes open sizes apart")
            taken.append(sympy.Integer(common))
            parts[0] = first / common
            size = sympy.cancel(size / common)
        result.append(dim(taken))
    return tuple(result)


def broadcast(operands: Sequence[Dims]) -> Dims:
    """The dimensions of the result of a pointwise operation."""
    rank = max((len(d) for d in operands), default=0)
    result: list[Dim] = []
    for place in range(rank):
        own = [d[place - rank + len(d)] for d in operands if place - rank + len(d) >= 0]
        wide = [d for d in own if d.parts]
        known = [d for d in wide if not (d.uniform and d.is_open)]
        chosen = (known or wide or [Dim(())])[0]
        if any(d.parts != chosen.parts for d in known):
            raise NotPaddable(f"sizes that are made of other parts: {[d.parts for d in known]}")
        result.append(Dim(chosen.parts, uniform=not known and bool(wide)))
    return tuple(result)
