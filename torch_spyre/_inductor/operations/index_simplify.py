"""Simplifies index expressions: quotients and remainders of sums, by the ranges of their symbols.

A view of a view divides a sum of symbols, which coordinates cannot express. Often the division
distributes over the sum: with p0 < 12 and p2 < 16,

    (16*p0 + p2) // 64   is   p0 // 4
    (16*p0 + p2) % 64    is   16*(p0 % 4) + p2

Views of views of views have nested quotients. The inner ones are simplified first and become
symbols with a range of their own in the outer expression: with p0 < 6 and p1 < 2,

    (p1 + 2*(p0 % 2) + 4*(p0 // 2)) // 4   is   p0 // 2
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

import sympy
from torch.utils._sympy.functions import FloorDiv, ModularIndexing


class _Sum(NamedTuple):
    """coefficient * symbol (or quotient) for each of them, and a number; nothing is negative."""

    terms: tuple[tuple[sympy.Expr, int], ...]
    number: int

    def expr(self) -> sympy.Expr:
        return sympy.Add(*(c * s for s, c in self.terms), self.number)

    def most(self, ranges: Mapping[sympy.Expr, int]) -> int:
        return self.number + sum(c * (ranges[s] - 1) for s, c in self.terms)

    def divided(self, by: int) -> _Sum:
        """The part that is a multiple, divided."""
        kept = tuple((s, c // by) for s, c in self.terms if c % by == 0)
        return _Sum(kept, self.number // by)

    def rest(self, by: int) -> _Sum:
        """The other part."""
        return _Sum(tuple((s, c) for s, c in self.terms if c % by), self.number % by)


def simplified(index: sympy.Expr, ranges: Mapping[sympy.Symbol, int]) -> sympy.Expr:
    """The same index; division distributes over sums where no carry occurs."""
    if not index.has(FloorDiv, ModularIndexing):
        return index
    return _simplified(index, tuple(ranges.items()))


@lru_cache(maxsize=4096)
def _simplified(index: sympy.Expr, ranges: tuple[tuple[sympy.Symbol, int], ...]) -> sympy.Expr:
    sizes: dict[sympy.Expr, int] = dict(ranges)  # of quotients, too, as they are met

    def take_apart(expr: sympy.Expr) -> sympy.Expr:
        if not expr.has(FloorDiv, ModularIndexing):
            return expr
        expr = expr.func(*(take_apart(a) for a in expr.args))
        if not isinstance(expr, (FloorDiv, ModularIndexing)):
            return expr
        base, divisor = expr.args[0], expr.args[1]
        modulus = expr.args[2] if isinstance(expr, ModularIndexing) else sympy.S.Zero
        total = _sum_of(base, sizes)
        if total is None or not divisor.is_Integer or not modulus.is_Integer:
            return expr
        return _quotient(total, int(divisor), int(modulus), sizes)

    return sympy.expand(take_apart(index))


def _sum_of(expr: sympy.Expr, sizes: dict[sympy.Expr, int]) -> _Sum | None:
    terms, number = [], 0
    for term in sympy.Add.make_args(sympy.expand(expr)):
        coefficient, rest = term.as_coeff_Mul()
        if not coefficient.is_Integer or coefficient < 0:
            return None
        if rest == 1:
            number = int(coefficient)
        elif rest in sizes or _note_size(rest, sizes):
            terms.append((rest, int(coefficient)))
        else:
            return None
    return _Sum(tuple(terms), number)


def _note_size(quotient: sympy.Expr, sizes: dict[sympy.Expr, int]) -> bool:
    """Whether this is a quotient of known range."""
    if not isinstance(quotient, (FloorDiv, ModularIndexing)):
        return False
    total, divisor = _sum_of(quotient.args[0], sizes), quotient.args[1]
    if total is None or not divisor.is_Integer:
        return False
    size = total.most(sizes) // int(divisor) + 1
    if isinstance(quotient, ModularIndexing):
        if not quotient.args[2].is_Integer:
            return False
        size = min(size, int(quotient.args[2]))
    sizes[quotient] = size
    return True


def _quotient(
    total: _Sum, divisor: int, modulus: int, ranges: Mapping[sympy.Expr, int]
) -> sympy.Expr:
    """(total // divisor) % modulus; a modulus of 0 is none."""
    if modulus:
        whole = divisor * modulus
        total = _Sum(tuple((s, c) for s, c in total.terms if c % whole), total.number % whole)
        if total.most(ranges) < whole:
            modulus = 0
    if total.most(ranges) < divisor:
        return sympy.S.Zero
    for by in _factors(total, divisor):
        if total.rest(by).most(ranges) < by:  # it never carries
            return _quotient(total.divided(by), divisor // by, modulus, ranges)
    if divisor == 1 and modulus:
        for by in _factors(total, modulus):
            rest = total.rest(by)
            if rest.most(ranges) < by:
                above = _quotient(total.divided(by), 1, modulus // by, ranges)
                return by * above + rest.expr()
    if not modulus:
        return total.expr() if divisor == 1 else FloorDiv(total.expr(), divisor)
    return ModularIndexing(total.expr(), divisor, modulus)


def _factors(total: _Sum, of: int) -> Iterator[int]:
    """Coefficients that divide a number, the largest first."""
    candidates = {c for _, c in total.terms} | {of}
    return iter(sorted((c for c in candidates if c > 1 and of % c == 0), reverse=True))
