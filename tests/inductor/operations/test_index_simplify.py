"""Quotients in index expressions: the same values for every point, with fewer symbols in each."""

from __future__ import annotations

import itertools
import random

import sympy
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from torch_spyre._inductor.operations.index_simplify import simplified

P = [sympy.Symbol(f"p{i}", integer=True, nonnegative=True) for i in range(3)]


def test_a_quotient_of_a_sum_that_never_carries_is_one_of_a_symbol() -> None:
    p0, p1, p2 = P
    ranges = {p0: 12, p1: 20, p2: 16}
    assert simplified(FloorDiv(16 * p0 + p2, 64), ranges) == FloorDiv(p0, 4)
    assert simplified(ModularIndexing(16 * p0 + p2, 1, 64), ranges) == sympy.expand(
        16 * ModularIndexing(p0, 1, 4) + p2
    )
    assert simplified(ModularIndexing(16 * p0 + 192 * p1 + p2, 192, 20), ranges) == p1
    carries = FloorDiv(16 * p0 + 5 * p2, 64)
    assert simplified(carries, ranges) == carries


def test_a_quotient_inside_of_a_quotient_counts_as_a_symbol() -> None:
    p0, p1, p2 = P
    ranges = {p0: 6, p1: 2, p2: 2}
    inner = p1 + 2 * ModularIndexing(p0, 1, 2) + 4 * ModularIndexing(p0, 2, 3)
    assert simplified(ModularIndexing(inner, 4, 3), ranges) == FloorDiv(p0, 2)
    assert simplified(ModularIndexing(inner + 12 * p2, 12, 2), ranges) == p2


def test_every_point_has_the_same_index_as_before() -> None:
    draw = random.Random(1)
    changed = 0
    for _ in range(80):
        ranges = {p: draw.choice([1, 2, 3, 4]) for p in P}
        base = sum(draw.choice([0, 1, 2, 3, 4, 6, 8, 12, 16, 48]) * p for p in P)
        base = sympy.sympify(base + draw.choice([0, 0, 1, 5]))
        if draw.random() < 0.5:
            base += draw.choice([1, 2, 4]) * ModularIndexing(P[1], draw.choice([1, 2]), 2)
        if draw.random() < 0.4:
            quotient = FloorDiv(base, draw.choice([2, 4, 8, 12, 64]))
        else:
            quotient = ModularIndexing(base, draw.choice([1, 2, 4, 12]), draw.choice([2, 3, 4, 12]))
        index = sympy.expand(3 * quotient + P[0])
        result = simplified(index, ranges)
        changed += result != index
        for point in itertools.product(*(range(ranges[p]) for p in P)):
            values = dict(zip(P, point, strict=True))
            assert index.subs(values) == result.subs(values), (index, result, values)
    assert changed > 20
