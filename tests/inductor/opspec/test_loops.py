"""Counted loops: how far addresses move, against the position of every tile worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sympy

from tests.support.operations import buffer, pointwise
from torch_spyre._inductor.layouts.to_op_spec import make_spec
from torch_spyre._inductor.opspec.access import InvalidOpSpec
from torch_spyre._inductor.opspec.loops import (
    Turn,
    loop_strides,
    runs_of,
    turns_of,
    unroll,
)
from torch_spyre._inductor.opspec.op_spec import NO_SYMBOL, LoopSpec, OpSpec

c0, c1 = sympy.symbols("c0 c1", integer=True, nonnegative=True)
ROW, COLUMN = 128, 128 * 128
"""Bytes from row to row of a [4, 128, 64] tensor, and from one column of sticks to the next."""


def tile(rows: int, columns: int, *symbols: sympy.Symbol, **fields: Any) -> OpSpec:
    """exp of a tile of (128, 256), whose tensors have their whole size."""
    x, z = buffer("x", (128, 256), 1), buffer("z", (128, 256), 1)
    spec = make_spec(pointwise("exp", [x], z, (128, 256)))
    args = [replace(a, allocation={"hbm": 0}, **fields) for a in spec.args]
    space = {c0: (rows, 1), c1: (columns, 1)}
    return replace(spec, args=args, iteration_space=space, tiled_symbols=list(symbols))


def test_an_operation_outside_of_loops_does_not_move() -> None:
    assert loop_strides(tile(128, 256)) == [(), ()]


def test_tiles_of_rows_and_of_columns() -> None:
    assert loop_strides(tile(32, 256, c0), [4])[0] == (32 * ROW,)
    assert loop_strides(tile(128, 128, c1), [2])[0] == (2 * COLUMN,)
    assert loop_strides(tile(32, 128, c0, c1), [4, 2])[0] == (32 * ROW, 2 * COLUMN)
    assert loop_strides(tile(32, 256, NO_SYMBOL), [4])[0] == ()


def test_an_outer_loop_over_the_same_symbol_steps_over_all_tiles_of_the_inner_one() -> None:
    assert loop_strides(tile(8, 256, c0, c0), [3, 5])[0] == (5 * 8 * ROW, 8 * ROW)
    three = loop_strides(tile(2, 256, c0, c0, c0), [2, 3, 5])[0]
    assert three == (15 * 2 * ROW, 5 * 2 * ROW, 2 * ROW)
    between = loop_strides(tile(8, 64, c0, c1, c0), [3, 4, 5])[0]
    assert between == (5 * 8 * ROW, COLUMN, 8 * ROW)


def test_what_lives_inside_of_loops_moves_with_the_inner_ones_alone() -> None:
    spec = tile(8, 64, c0, c1)
    assert loop_strides(tile(8, 64, c0, c1, fixed_loops=1), [4, 4])[0] == (0, COLUMN)
    assert loop_strides(tile(8, 64, c0, c1, fixed_loops=2), [4, 4])[0] == ()
    assert loop_strides(tile(8, 64, c0, c1, per_tile_fixed=True), [4, 4])[0] == ()
    assert loop_strides(spec, [4, 4])[0] == (8 * ROW, COLUMN)


def test_a_tile_that_ends_inside_of_a_stick_is_refused() -> None:
    with pytest.raises(InvalidOpSpec, match=r"tiles of whole sticks: found 96, allowed n \* 64"):
        loop_strides(tile(128, 96, c1), [2])


def starts(specs: list[OpSpec | LoopSpec]) -> list[int]:
    return [s.args[0].allocation["hbm"] for s in unroll(specs) if isinstance(s, OpSpec)]


def test_loops_written_out_visit_the_tiles_in_order() -> None:
    nest = LoopSpec(2, [LoopSpec(3, [tile(8, 64, c0, c1)])])
    assert starts([nest]) == [a * 8 * ROW + b * COLUMN for a in range(2) for b in range(3)]
    same = LoopSpec(2, [LoopSpec(3, [tile(8, 256, c0, c0)])])
    assert starts([same]) == [n * 8 * ROW for n in range(6)]
    inner_only = LoopSpec(2, [LoopSpec(3, [tile(8, 256, c0)])])
    assert starts([inner_only]) == [n * 8 * ROW for n in (0, 1, 2, 0, 1, 2)]
    assert all(not s.tiled_symbols for s in unroll([nest]) if isinstance(s, OpSpec))


def test_turns_name_each_operation_in_each_iteration_once() -> None:
    a, b, c = tile(8, 64, c0), tile(8, 64, c0), tile(8, 64, c0)
    specs = [LoopSpec(2, [a, LoopSpec(2, [b])]), c]
    assert [(r.spec, r.loops, r.count) for r in runs_of(specs)] == [
        (a, (2,), 2), (b, (2, 2), 4), (c, (), 1)
    ]  # fmt: skip
    assert turns_of(specs, unrolled=False) == [Turn(0, ()), Turn(1, ()), Turn(2, ())]
    assert turns_of(specs, unrolled=True) == [
        Turn(0, (0,)), Turn(1, (0, 0)), Turn(1, (0, 1)),
        Turn(0, (1,)), Turn(1, (1, 0)), Turn(1, (1, 1)), Turn(2, ()),
    ]  # fmt: skip
