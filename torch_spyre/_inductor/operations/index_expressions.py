"""The index of an access as a sum of integer terms.

In: an index expression over iteration symbols. Out: a LinearIndex, exact, or UnsupportedAccess.

Example: `linear_index(200*p0 + ModularIndexing(p1, 1, 64), ranges)` has the atoms 200*p0 and
(p1 % 64).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import sympy
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from torch_spyre._inductor.errors import UnsupportedAccess


@dataclass(frozen=True)
class Atom:
    """coefficient * ((symbol // divisor) % modulus), `size` values from 0 on."""

    symbol: sympy.Symbol
    coefficient: int
    size: int
    divisor: int = 1
    modulus: int = 0

    @property
    def plain(self) -> bool:
        return self.divisor == 1 and self.modulus == 0


@dataclass(frozen=True)
class LinearIndex:
    """An index as a sum of atoms and a constant."""

    atoms: tuple[Atom, ...]
    offset: int


def linear_index(index: sympy.Expr, ranges: dict[sympy.Symbol, int]) -> LinearIndex:
    """Parse an index. Raises UnsupportedAccess for what is no sum of such terms."""
    return _linear_index(index, tuple(ranges.items()))


@lru_cache(maxsize=8192)
def _linear_index(index: sympy.Expr, ranges: tuple[tuple[sympy.Symbol, int], ...]) -> LinearIndex:
    sizes = dict(ranges)
    atoms: dict[tuple[sympy.Symbol, int, int], int] = {}
    offset = 0
    for term in sympy.Add.make_args(index):
        coefficient, rest = term.as_coeff_Mul()
        if not coefficient.is_Integer:
            raise UnsupportedAccess(f"the index {index} has the factor {coefficient}")
        if rest == 1:
            offset += int(coefficient)
            continue
        key = _atom_key(rest, index)
        atoms[key] = atoms.get(key, 0) + int(coefficient)
    result = []
    for (symbol, divisor, modulus), coefficient in atoms.items():
        if symbol not in sizes:
            raise UnsupportedAccess(f"the index {index} depends on {symbol}")
        size = -(-sizes[symbol] // divisor)
        if modulus:
            if size <= modulus:
                modulus = 0
            size = min(size, modulus or size)
        if size > 1 and coefficient:
            result.append(Atom(symbol, coefficient, size, divisor, modulus))
    return LinearIndex(tuple(result), offset)


def _atom_key(expr: sympy.Expr, index: sympy.Expr) -> tuple[sympy.Symbol, int, int]:
    if isinstance(expr, sympy.Symbol):
        return expr, 1, 0
    if isinstance(expr, FloorDiv) and _is_plain(expr.args[0], expr.args[1]):
        return expr.args[0], int(expr.args[1]), 0
    if isinstance(expr, ModularIndexing) and _is_plain(*expr.args):
        return expr.args[0], int(expr.args[1]), int(expr.args[2])
    raise UnsupportedAccess(
        f"the index {index} has the term {expr}, which coordinates cannot express",
        hint="call .contiguous() on the tensor before it is reshaped",
    )


def _is_plain(symbol: sympy.Expr, *numbers: sympy.Expr) -> bool:
    return isinstance(symbol, sympy.Symbol) and all(n.is_Integer for n in numbers)
