"""Indices as sums of terms: the same element at every point."""

from __future__ import annotations

import itertools
import random

import pytest
import sympy
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from tests.support.interpret import elements
from tests.support.operations import P
from torch_spyre._inductor.errors import UnsupportedAccess
from torch_spyre._inductor.operations.index_expressions import Atom, linear_index

p0, p1, p2, *_ = P


def test_terms_are_counted_with_their_coefficients_and_sizes() -> None:
    found = linear_index(200 * p0 + ModularIndexing(p1, 4, 8) + 7, {p0: 5, p1: 100})
    assert set(found.atoms) == {Atom(p0, 200, 5), Atom(p1, 1, 8, 4, 8)} and found.offset == 7


def test_a_remainder_that_never_wraps_is_a_plain_quotient() -> None:
    assert linear_index(ModularIndexing(p0, 1, 8), {p0: 8}).atoms == (Atom(p0, 1, 8),)
    assert linear_index(ModularIndexing(p0, 4, 8), {p0: 32}).atoms == (Atom(p0, 1, 8, 4),)
    assert linear_index(ModularIndexing(p0, 4, 8), {p0: 33}).atoms == (Atom(p0, 1, 8, 4, 8),)


def test_what_has_one_value_is_no_term() -> None:
    assert linear_index(3 * FloorDiv(p0, 8) + p1, {p0: 8, p1: 1}).atoms == ()


@pytest.mark.parametrize("seed", range(5))
def test_the_sum_of_the_terms_is_the_index_at_every_point(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(20):
        ranges = {p: draw.randint(1, 7) for p in (p0, p1, p2)}
        index = sympy.Integer(draw.randint(0, 9))
        for p in ranges:
            a, b, c = (draw.randint(1, 5) for _ in range(3))
            index += draw.choice([c * p, c * FloorDiv(p, a), c * ModularIndexing(p, a, b), 0])
        found = linear_index(index, ranges)
        values = elements(index, ranges)
        for point in itertools.product(*(range(n) for n in ranges.values())):
            at = dict(zip(ranges, point))
            total = found.offset
            for atom in found.atoms:
                digit = at[atom.symbol] // atom.divisor
                digit = digit % atom.modulus if atom.modulus else digit
                assert digit < atom.size
                total += atom.coefficient * digit
            assert total == values[point], (index, ranges, point)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (p0 * p1, "which coordinates cannot express"),
        (p0 / 2, "has the factor 1/2"),
        (FloorDiv(p0 + p1, 3), "which coordinates cannot express"),
        (p2, "depends on p2"),
    ],
)
def test_what_is_no_sum_of_such_terms_is_refused(index: sympy.Expr, words: str) -> None:
    with pytest.raises(UnsupportedAccess, match=words):
        linear_index(index, {p0: 4, p1: 4})
