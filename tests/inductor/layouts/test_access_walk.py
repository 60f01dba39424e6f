"""How accesses move over tiled tensors, against the position of every element."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest
import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from tests.support.operations import P, buffer
from torch_spyre._inductor.layouts.access_walk import Walk, walk
from torch_spyre._inductor.operations.operation import Buffer

p0, p1, p2, *_ = P
Ranges = dict[sympy.Symbol, int]


def found(x: Buffer, index: sympy.Expr, ranges: Ranges) -> Walk | None:
    assert x.layout is not None
    return walk(sympy.sympify(index), ranges, x.layout)


def positions(x: Buffer, stick: int, eps: int = 64) -> dict[int, tuple[tuple[int, ...], int]]:
    """Of each storage element: which stick it is in, and which lane of it."""
    placed = {}
    for point in itertools.product(*(range(n) for n in x.size)):
        element = sum(i * s for i, s in zip(point, x.stride, strict=True))
        whole = tuple(i // eps if d == stick else i for d, i in enumerate(point))
        placed[element] = whole, point[stick] % eps if stick >= 0 else 0
    return placed


def points(ranges: Ranges) -> Iterator[dict[sympy.Symbol, int]]:
    for values in itertools.product(*(range(n) for n in ranges.values())):
        yield dict(zip(ranges, values, strict=True))


def moves_other_than(
    sticks: dict[tuple[int, ...], tuple[int, ...]], which: int, stick: int | None
) -> bool:
    """Whether the stick that is visited changes when symbol number `which` alone does."""
    seen: dict[tuple[int, ...], tuple[int, ...]] = {}
    for point, at in sticks.items():
        others = tuple(v for i, v in enumerate(point) if i != which)
        if seen.setdefault(others, at) != at:
            return True
    return False


# ---- Worked examples -----------------------------------------------------------------------------


def test_the_last_dimension_counts_lanes_and_sticks_the_rows_lie_apart() -> None:
    x = buffer("x", (500, 200), stick=1)
    assert found(x, 200 * p0 + p1, {p0: 500, p1: 200}) == Walk(
        p1, frozenset({p0}), 200, 200, frozenset()
    )


def test_a_view_that_is_transposed_has_the_other_symbol_in_the_stick() -> None:
    x = buffer("x", (64, 32), stick=0)
    walked = found(x, p0 + 32 * p1, {p0: 32, p1: 64})
    assert walked is not None and (walked.stick, walked.outer) == (p1, {p0})


def test_a_slice_of_columns_begins_with_a_whole_stick_or_is_not_expressible() -> None:
    x = buffer("x", (8, 200), stick=1)
    ranges = {p0: 8, p1: 70}
    begins_at_64 = found(x, 200 * p0 + p1 + 64, ranges)
    assert begins_at_64 is not None and (begins_at_64.size, begins_at_64.end) == (70, 134)
    assert found(x, 200 * p0 + p1 + 32, ranges) is None
    assert found(x, 200 * p0 + p1 + 65, ranges) is None


def test_rows_of_80_read_as_sticks_of_64_are_not_expressible() -> None:
    x = buffer("x", (4, 80), stick=1)
    assert found(x, p0, {p0: 320}) is None
    assert found(buffer("y", (4, 128), stick=1), p0, {p0: 512}) is not None


def test_one_lane_of_a_full_stick_is_not_expressible_but_of_a_sparse_one_is() -> None:
    column, ranges = 200 * p0, {p0: 8}
    assert found(buffer("x", (8, 200), stick=1), column, ranges) is None
    assert found(buffer("x", (8, 200), stick=-1), column, ranges) == Walk(None, frozenset({p0}))


def test_every_second_element_of_a_stick_is_not_expressible() -> None:
    x = buffer("x", (8, 128), stick=1)
    assert found(x, 128 * p0 + 2 * p1, {p0: 8, p1: 64}) is None
    sparse = found(buffer("x", (8, 128), stick=-1), 128 * p0 + 2 * p1, {p0: 8, p1: 64})
    assert sparse is not None and sparse.stick is None and sparse.outer == {p0, p1}


def test_an_offset_past_the_tensor_or_before_it_is_not_expressible() -> None:
    x = buffer("x", (8, 64), stick=1)
    assert found(x, 64 * p0 + p1 + 64 * 4, {p0: 4, p1: 64}) is not None
    assert found(x, 64 * p0 + p1 + 64 * 5, {p0: 4, p1: 64}) is None  # rows 5 to 8
    assert found(x, 64 * p0 + p1 - 64, {p0: 4, p1: 64}) is None


def test_a_symbol_over_rows_and_columns_of_several_axes_is_spread() -> None:
    x = buffer("x", (4, 8, 128), stick=2)
    walked = found(x, 128 * p0 + p1, {p0: 32, p1: 128})
    assert walked is not None and walked.spread == {p0}
    assert found(x, 128 * ModularIndexing(p0, 1, 8) + p1, {p0: 16, p1: 128}) is not None
    divided = found(x, 1024 * FloorDiv(p0, 8) + p1, {p0: 32, p1: 128})
    assert divided is not None and (divided.outer, divided.spread) == ({p0}, frozenset())


def test_columns_in_several_places_have_no_common_end() -> None:
    x = buffer("x", (8, 256), stick=1)
    walked = found(x, 256 * p0 + 128 * p1 + p2, {p0: 8, p1: 2, p2: 70})
    assert walked is not None and (walked.stick, walked.size, walked.end) == (p2, 70, -1)


def test_a_number_in_a_tensor_of_one_element_moves_along_nothing() -> None:
    scalar = buffer("s", (), stick=-1)
    assert found(scalar, sympy.S.Zero, {p0: 8}) == Walk(None, frozenset())
    assert found(scalar, sympy.S.One, {p0: 8}) is None


# ---- All elements --------------------------------------------------------------------------------

SHAPES = [(6, 130), (3, 4, 65), (4, 3, 128), (128, 6), (70, 2, 3), (2, 3, 2, 64)]


def draw(random_: random.Random) -> tuple[Buffer, int, sympy.Expr, Ranges]:
    """A tensor, and a view of it: permuted, sliced, with steps, or two dimensions as one."""
    size = random_.choice(SHAPES)
    stick = random_.randrange(-1, len(size))
    x = buffer("x", size, stick)
    index, ranges = sympy.S.Zero, {}
    symbols = iter(P)
    d = 0
    while d < len(size):
        n, s = size[d], x.stride[d]
        choice = random_.random()
        if choice < 0.15 and d + 1 < len(size):  # two dimensions as one
            n, s, d = n * size[d + 1], x.stride[d + 1], d + 1
        elif choice < 0.3:
            begin = random_.choice([b for b in (0, 1, 2, 32, 64) if b < n])
            index, n = index + begin * s, random_.randint(1, n - begin)
        elif choice < 0.4 and n > 2:
            n, s = -(-n // 2), 2 * s
        elif choice < 0.5:
            n = 1
        if n > 1:
            symbol = next(symbols)
            index, ranges[symbol] = index + s * symbol, n
        d += 1
    return x, stick, sympy.expand(index), ranges


@pytest.mark.parametrize("seed", range(4))
def test_what_is_said_of_a_walk_holds_for_every_element(seed: int) -> None:
    random_ = random.Random(seed)
    walks = 0
    for _ in range(60):
        x, dim, index, ranges = draw(random_)
        walked = found(x, index, ranges)
        placed = positions(x, dim)
        value = sympy.lambdify(list(ranges), index)
        at = {tuple(point.values()): placed[value(*point.values())] for point in points(ranges)}
        what = (x, dim, index, ranges)
        if walked is None:
            assert not is_plain(x, dim, index, ranges), what
            continue
        walks += 1
        sticks = {point: stick for point, (stick, _) in at.items()}
        number = None if walked.stick is None else list(ranges).index(walked.stick)
        for point, (_, lane) in at.items():
            assert lane == (0 if number is None else point[number] % 64), (what, point)
        moving = {v for i, v in enumerate(ranges) if moves_other_than(sticks, i, number)}
        assert moving - {walked.stick} == set(walked.outer), what
    assert walks > 20


def is_plain(x: Buffer, dim: int, index: sympy.Expr, ranges: Ranges) -> bool:
    """A view whose symbols walk over one dimension each, the sticks from a whole one on: whatever
    the layout, coordinates can express it."""
    steps = {v: index.coeff(v) for v in ranges}
    rest, axes = index - sum(v * s for v, s in steps.items()), {}
    for d, (n, s) in enumerate(zip(x.size, x.stride, strict=True)):
        begin, rest = divmod(int(rest), s)
        axes[s] = (d, begin, n)
    for v, s in steps.items():
        if s not in axes:
            return False
        d, begin, n = axes[s]
        if begin + ranges[v] > n:
            return False
    stride = x.stride[dim] if dim >= 0 else 0
    return dim < 0 or (stride in steps.values() and axes[stride][1] % 64 == 0)


def test_sticks_of_float32_have_32_lanes() -> None:
    x = buffer("x", (4, 96), stick=1, dtype=torch.float32)
    walked = found(x, 96 * p0 + p1 + 32, {p0: 4, p1: 64})
    assert walked is not None and walked.end == 96
