"""Loops around operations: which ones fit into a loop, and where the tiles lie, byte by byte."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
import sympy

from tests.support.operations import P, R, access, buffer, matmul, pointwise, reduction
from torch_spyre._inductor.layouts.to_op_spec import buffers_of, make_spec
from torch_spyre._inductor.operations.operation import Buffer, Operation
from torch_spyre._inductor.opspec.loops import Spec, unroll
from torch_spyre._inductor.opspec.op_spec import LoopSpec, OpSpec
from torch_spyre._inductor.planning.tiling.loops import (
    WHOLE,
    Around,
    Cut,
    Homes,
    Item,
    Loop,
    Node,
    OuterSizes,
    Uses,
    accesses_of,
    block_of,
    build,
    can_tile,
    items_of,
    renamed,
    shrink,
    stick_bytes,
    unit_of,
    with_runs,
    with_wide_tensors,
)

p0, p1, *_ = P
C0, C1, C2 = sympy.symbols("c0:3", integer=True, nonnegative=True)


def item(op: Operation, *symbols: sympy.Symbol | None) -> Item:
    return Item(op, make_spec(op), symbols)


def chain(rows: int, columns: int, *symbols: sympy.Symbol) -> tuple[list[Item], set[Buffer]]:
    """z = exp(abs(x)): two operations, y lives between them."""
    x, y, z = (buffer(name, (rows, columns), 1) for name in "xyz")
    ops = [pointwise("abs", [x], y, (rows, columns)), pointwise("exp", [y], z, (rows, columns))]
    return [item(op, *symbols) for op in ops], {x, z}


def shape(nodes: Sequence[Node]) -> list[object]:
    """Names of operations, loops as (count, body)."""
    return [
        (node.count, shape(node.body)) if isinstance(node, Loop) else node.op.opfunc
        for node in nodes
    ]


def built(items: Sequence[Item], arguments: set[Buffer], *cuts: Cut) -> list[Node]:
    return build(items, cuts, Uses(items, arguments.__contains__))


# ---- A tile --------------------------------------------------------------------------------------


def test_a_tile_of_rows_has_fewer_rows_in_every_column_of_sticks() -> None:
    x, z = buffer("x", (128, 256), 1), buffer("z", (128, 256), 1)
    inner = shrink(item(pointwise("exp", [x], z, (128, 256)), C0), 32, 0)
    assert [a.device_size for a in inner.spec.args] == [[4, 32, 64]] * 2
    assert inner.spec.iteration_space == {C0: (32, 1), C1: (256, 1)}
    assert inner.op.ranges == {p0: 32, p1: 256} and inner.symbols == ()
    assert inner.shapes == (((4, 128, 64),) * 2, ((4, 32, 64),) * 2)
    assert inner.around == (Around(C0, 0),)


def test_a_tile_of_columns_has_fewer_sticks() -> None:
    x, z = buffer("x", (128, 256), 1), buffer("z", (128, 256), 1)
    inner = shrink(item(pointwise("exp", [x], z, (128, 256)), C1), 128, 0)
    assert [a.device_size for a in inner.spec.args] == [[2, 128, 64]] * 2


def test_what_has_no_such_dimension_keeps_its_size() -> None:
    x, row, z = buffer("x", (128, 256), 1), buffer("r", (256,), 0), buffer("z", (128, 256), 1)
    inner = shrink(item(pointwise("add", [x, (row, p1)], z, (128, 256)), C0), 32, 0)
    sizes = [a.device_size for a in inner.spec.args]
    assert sizes[0] == sizes[2] == [4, 32, 64] and stick_bytes(inner.spec.args[1]) == 4 * 128
    uncut = shrink(item(pointwise("exp", [x], z, (128, 256)), None), 0, 0)
    assert uncut.spec.iteration_space == {C0: (128, 1), C1: (256, 1)}


def test_tiles_end_where_sticks_end() -> None:
    x, z = buffer("x", (128, 256), 1), buffer("z", (128, 256), 1)
    spec = make_spec(pointwise("exp", [x], z, (128, 256)))
    assert (unit_of(spec, C0), unit_of(spec, C1)) == (1, 64)


def test_all_tiles_together_have_the_bytes_of_the_axis() -> None:
    """128 rows of 64 numbers in each of 4 columns of sticks; a slice of rows is no plain part."""
    x, z = buffer("x", (128, 256), 1), buffer("z", (128, 256), 1)
    spec = make_spec(pointwise("exp", [x], z, (128, 256)))
    source = accesses_of(spec)[0]
    assert block_of(source, spec, C0) == 128 * 128 and block_of(source, spec, C1) == 4 * 128 * 128
    assert block_of(source, spec, C2) is None and block_of(source, spec, None) is None
    half = buffer("h", (64, 256), 1)
    for begin in (0, 64):
        sliced = make_spec(pointwise("exp", [(x, 256 * (p0 + begin) + p1)], half, (64, 256)))
        assert block_of(accesses_of(sliced)[0], sliced, C0) is None


def test_copies_between_any_layouts_and_topk_are_not_cut() -> None:
    x, z = buffer("x", (8, 128), 1), buffer("z", (8, 128), 1)
    assert can_tile(make_spec(pointwise("exp", [x], z, (8, 128))))
    assert not can_tile(make_spec(pointwise("relayout", [x], z, (8, 128), "copy")))
    topk = reduction("topkvalue", (buffer("x", (8, 128), 0), 128 * p0 + R[0]),
                     buffer("y", (8, 4), 0), (8, 4), 128)  # fmt: skip
    topk.kind, topk.info = "topk", {"k": 4, "k_symbol": p1}
    assert not can_tile(make_spec(topk))


# ---- What fits into a loop -----------------------------------------------------------------------


def test_a_chain_is_one_loop() -> None:
    items, arguments = chain(128, 256, C0)
    assert shape(built(items, arguments, Cut(4))) == [(4, ["abs", "exp"])]


def test_nothing_to_cut_is_no_loop() -> None:
    items, arguments = chain(128, 256)
    assert shape(built(items, arguments)) == ["abs", "exp"]


@pytest.mark.parametrize(
    ("rows", "cut", "tiles"),
    [
        (100, Cut(4), [25] * 4),
        (100, Cut(3), [34, 34, 32]),
        (100, Cut(3, 32), [64, 36]),  # multiples of 32, so that 32 cores share each
        (7, Cut(4), [2, 2, 2, 1]),
        (5, Cut(9), [1] * 5),
    ],
)
def test_the_last_tile_has_what_is_left(rows: int, cut: Cut, tiles: list[int]) -> None:
    items, arguments = chain(rows, 64, C0)
    nodes = built(items, arguments, cut)
    found = []
    for node in nodes:
        assert isinstance(node, Loop)
        first = next(items_of([node]))
        assert first.around[0].start == sum(found)
        found += [first.op.ranges[p0]] * node.count
    assert found == tiles


def test_the_last_tile_has_buffers_of_its_own_size() -> None:
    items, arguments = chain(100, 64, C0)
    whole, rest = built(items, arguments, Cut(3))
    (first, _), (last, last_reader) = items_of([whole]), items_of([rest])
    assert first.op.output.buffer.name == "y" and last.op.output.buffer.name == "y_rest"
    assert last_reader.op.inputs[0].buffer is last.op.output.buffer
    assert {b.name for b in buffers_of(last_reader.op)} == {"y_rest", "z"}


def test_columns_are_cut_at_whole_sticks() -> None:
    """200 columns are 4 sticks; in 3 tiles of 2, of which 2 are left."""
    items, arguments = chain(8, 200, C1)
    found = [(n.count, next(items_of([n])).op.ranges[p1]) for n in built(items, arguments, Cut(3))]
    assert found == [(1, 128), (1, 72)]


def test_two_cuts_are_two_loops() -> None:
    items, arguments = chain(128, 256, C0, C1)
    nodes = built(items, arguments, Cut(4), Cut(2))
    assert shape(nodes) == [(4, [(2, ["abs", "exp"])])]
    assert {tuple(i.op.ranges.values()) for i in items_of(nodes)} == {(32, 128)}


def softmax_like(rows: int, columns: int, symbol: sympy.Symbol) -> tuple[list[Item], set[Buffer]]:
    """z = x - sum(x, -1)."""
    x, z, s = (
        buffer("x", (rows, columns), 1),
        buffer("z", (rows, columns), 1),
        buffer("s", (rows,), -1),
    )
    ops = [reduction("sum", x, s, (rows,), columns),
           pointwise("sub", [x, (s, p0)], z, (rows, columns))]  # fmt: skip
    return [item(op, symbol) for op in ops], {x, z}


def test_a_sum_of_rows_and_its_reader_walk_together_along_rows() -> None:
    items, arguments = softmax_like(128, 256, C0)
    assert shape(built(items, arguments, Cut(4))) == [(4, ["sum", "sub"])]


def test_the_reader_of_a_sum_over_tiles_comes_after_their_loop() -> None:
    """It needs the sum over all columns, not over those of its tile."""
    items, arguments = softmax_like(128, 256, C1)
    found = shape(built(items, arguments, Cut(2)))
    assert found == [(2, ["sub"])] or "sum" not in str(found[-1])
    nodes = built(items, arguments, Cut(2))
    for node in nodes:  # whoever reads the sum is in no loop with who writes it
        assert len({i.op.opfunc for i in items_of([node])}) == 1


def test_what_the_loop_does_not_cut_comes_before_it_or_after_what_it_waits_for() -> None:
    rows, columns = 128, 256
    x, y, z, u, v, w = (buffer(n, (rows, columns), 1) for n in "xyzuvw")
    independent = item(pointwise("abs", [u], v, (rows, columns)), None)
    first = item(pointwise("exp", [x], y, (rows, columns)), C0)
    waits = item(pointwise("neg", [y], w, (rows, columns)), None)
    second = item(pointwise("sqrt", [y], z, (rows, columns)), C0)
    nodes = built([first, independent, waits, second], {x, z, u, v, w}, Cut(2))
    assert shape(nodes) == ["abs", (2, ["exp", "sqrt"]), "neg"]


def test_an_operation_that_writes_what_a_loop_reads_waits_for_it() -> None:
    rows, columns = 128, 256
    x, y, u = (buffer(n, (rows, columns), 1) for n in "xyu")
    reads = item(pointwise("exp", [x], y, (rows, columns)), C0)
    writes = item(pointwise("abs", [u], x, (rows, columns)), None)
    assert shape(built([reads, writes], {x, y, u}, Cut(2))) == [(2, ["exp"]), "abs"]


def test_two_uses_that_walk_along_different_dimensions_are_two_loops() -> None:
    rows = 128
    x, y, z = (buffer(n, (rows, rows), 1) for n in "xyz")
    first = item(pointwise("exp", [x], y, (rows, rows)), C0)
    second = item(pointwise("abs", [y], z, (rows, rows)), C1)
    assert shape(built([first, second], {x, z}, Cut(2))) == [(2, ["exp"]), (2, ["abs"])]


def test_only_in_names_buffers_of_a_group_that_others_do_not_use() -> None:
    items, arguments = chain(8, 64, C0)
    y, z = items[0].op.output.buffer, items[1].op.output.buffer
    uses = Uses(items, arguments.__contains__)
    assert uses.only_in(items) == [y] and uses.only_in(items[:1]) == []
    assert set(Uses(items, lambda b: False).only_in(items)) >= {y, z}


def test_a_renamed_operation_reads_and_writes_the_other_buffers() -> None:
    row = sympy.Symbol("indirect0", integer=True, nonnegative=True)
    table, index, z = buffer("t", (10, 64), 1), buffer("i", (8,), 0), buffer("z", (8, 64), 1)
    op = pointwise("identity", [(table, 64 * row + p1)], z, (8, 64), "gather")
    op.gather = {row: access((index, p0), ())}
    other = {b: replace(b, name=f"{b.name}2") for b in (table, index, z)}
    assert [b.name for b in buffers_of(renamed(op, other))] == ["t2", "i2", "z2"]
    assert [b.name for b in buffers_of(renamed(op, {z: other[z]}))] == ["t", "i", "z2"]


# ---- Trees ---------------------------------------------------------------------------------------


def test_runs_are_replaced_between_loops_and_inside_of_them() -> None:
    (a, b), _ = chain(8, 64)
    (c, d), _ = chain(8, 64)
    (e, f), _ = chain(8, 64)
    nodes: list[Node] = [a, b, Loop(2, [c, Loop(3, [d])]), e, f]
    runs: list[list[Item]] = []

    def planned(run: list[Item]) -> list[Item]:
        runs.append(run)
        return run[:1]

    found = with_runs(nodes, planned)
    assert runs == [[a, b], [c], [d], [e, f]]
    assert found == [a, Loop(2, [c, Loop(3, [d])]), e]


def test_a_buffer_lives_in_the_innermost_loop_around_all_its_users() -> None:
    (a, b), arguments = chain(8, 64)
    y = a.op.output.buffer
    assert Homes([Loop(2, [Loop(3, [a, b])])], arguments).depth(y) == 2
    assert Homes([Loop(2, [Loop(3, [a]), b])], arguments).depth(y) == 1
    assert Homes([Loop(2, [a]), Loop(2, [b])], arguments).depth(y) == 0
    homes = Homes([Loop(2, [a, b])], arguments)
    assert all(homes.depth(x) == 0 for x in arguments)
    assert homes.depth(buffer("made by a run", (8, 64), 1)) > 2
    assert homes.shared([a]) == {a.op.inputs[0].buffer}
    assert Homes([a, Loop(2, [b])], arguments).shared([a]) == {a.op.inputs[0].buffer, y}


def test_a_tile_says_how_large_its_tensors_are_only_where_a_core_cannot_address_them() -> None:
    items, arguments = chain(128, 256, C0)
    nodes = built(items, arguments, Cut(4))
    first, second = items_of(nodes)
    homes = Homes(nodes, arguments)
    assert with_wide_tensors(first, homes, 128 * 256 * 2) is first.spec
    wide = with_wide_tensors(first, homes, 128 * 256 * 2 - 1)
    assert wide.op_info[WHOLE] == ((4, 128, 64), (4, 32, 64))  # y lives inside
    assert with_wide_tensors(second, homes, 1).op_info[WHOLE] == ((4, 32, 64), (4, 128, 64))


# ---- Where tiles lie -----------------------------------------------------------------------------


def placed(nodes: Sequence[Node], arguments: set[Buffer]) -> list[OpSpec]:
    """All iterations one after the other, each tensor at the address of its tile."""
    homes = Homes(nodes, arguments)

    def tree(nodes: Sequence[Node]) -> list[Spec]:
        return [LoopSpec(n.count, tree(n.body)) if isinstance(n, Loop) else spec(n) for n in nodes]

    def spec(one: Item) -> OpSpec:
        args = [replace(a, allocation={"hbm": b}) for a, b in zip(one.spec.args, one.begins)]
        return replace(one.spec, args=args)

    def run(items: list[Item]) -> list[Item]:
        sizes = OuterSizes(items, homes)
        return [sizes.restored(i.op, i.spec, ()) for i in items]

    flat = unroll(tree(with_runs(nodes, run)))
    assert all(isinstance(s, OpSpec) for s in flat)
    return flat  # type: ignore[return-value]


def lanes(spec: OpSpec, number: int) -> list[int]:
    """Bytes at which the elements of a tensor lie that an operation touches, point by point."""
    arg = spec.args[number]
    eps = arg.device_size[-1]
    steps, step = [], 128 // eps
    for size in reversed(arg.device_size):
        steps.append(step)
        step *= size
    place = sum(c * s for c, s in zip(arg.device_coordinates, reversed(steps), strict=True))
    symbols = list(spec.iteration_space)
    function = sympy.lambdify(symbols, place, "math")
    points = itertools.product(*(range(n) for n, _ in spec.iteration_space.values()))
    (begin,) = arg.allocation.values()
    return [begin + int(function(*p)) for p in points]


@pytest.mark.parametrize(
    ("rows", "columns", "symbols", "cuts"),
    [
        (8, 128, [C0], [Cut(4)]),
        (9, 128, [C0], [Cut(2)]),  # 5 and 4
        (4, 200, [C1], [Cut(2)]),  # 2 sticks each, the last not full
        (3, 320, [C1], [Cut(2)]),  # 3 sticks and 2
        (9, 320, [C0, C1], [Cut(2), Cut(2)]),
        (9, 320, [C1, C0], [Cut(3), Cut(4)]),
        (8, 64, [C0, C0], [Cut(2), Cut(2)]),
    ],
)
def test_tiles_touch_every_element_once_and_where_it_lies(
    rows: int, columns: int, symbols: list[sympy.Symbol], cuts: list[Cut]
) -> None:
    items, arguments = chain(rows, columns, *symbols)
    tiles = placed(built(items, arguments, *cuts), arguments)
    for opfunc, number in (("abs", 0), ("exp", 1)):  # x is read, z is written: both lie outside
        (whole,) = [i for i in items if i.op.opfunc == opfunc]
        args = [replace(a, allocation={"hbm": 0}) for a in whole.spec.args]
        expected = lanes(replace(whole.spec, args=args), number)
        found = [at for s in tiles if s.op == opfunc for at in lanes(s, number)]
        assert len(found) == rows * columns and sorted(found) == sorted(expected)
    inner = [s.args[1] for s in tiles if s.op == "abs"]
    assert all(a.per_tile_fixed for a in inner), "y is one tile large and stays where it is"
    assert all(stick_bytes(a) < stick_bytes(items[0].spec.args[1]) for a in inner)


def test_tiles_of_a_product_take_their_rows_of_x_and_all_of_y() -> None:
    m, n, k = 8, 128, 128
    x, y, z = buffer("x", (m, k), 1), buffer("y", (k, n), 1), buffer("z", (m, n), 1)
    arguments = {x, y, z}
    tiles = placed(built([item(matmul(x, y, z, m, n, k), C0)], arguments, Cut(4)), arguments)
    assert [s.args[0].allocation["hbm"] for s in tiles] == [0, 256, 512, 768]  # 2 rows of 128 bytes
    assert [s.args[1].allocation["hbm"] for s in tiles] == [0] * 4
    assert [s.args[2].allocation["hbm"] for s in tiles] == [0, 256, 512, 768]


def test_what_stays_in_scratchpads_does_not_move_from_tile_to_tile() -> None:
    items, arguments = chain(8, 128, C0)
    nodes = built(items, arguments, Cut(4))
    run = list(items_of(nodes))
    x = run[0].op.inputs[0].buffer
    sizes = OuterSizes(run, Homes(nodes, arguments))
    moving, kept = (sizes.restored(run[0].op, run[0].spec, lx) for lx in ((), (x,)))
    assert moving.spec.args[0].device_size == [2, 8, 64] and moving.spec.tiled_symbols == [C0]
    assert kept.spec.args[0].per_tile_fixed and kept.spec.args[0].device_size == [2, 2, 64]


def test_a_dimension_that_one_tensor_has_in_two_parts_is_cut_at_the_outer_one() -> None:
    """32 rows, which x has as 4 times 8: in 3 tiles of 8 at least, that is 2 of 16."""
    x, y, z = buffer("x", (4, 8, 128), 2), buffer("y", (32, 128), 1), buffer("z", (32, 128), 1)
    parted = pointwise("exp", [(x, 128 * p0 + p1)], y, (32, 128))
    spec = make_spec(parted)
    (outer,) = [s for s, (n, _) in spec.iteration_space.items() if n == 4]
    items = [Item(parted, spec, (outer,)), item(pointwise("abs", [y], z, (32, 128)), C0)]
    nodes = built(items, {x, z}, Cut(3))
    assert shape(nodes) == [(2, ["exp", "abs"])]
    assert [list(i.op.ranges.values()) for i in items_of(nodes)] == [[16, 128]] * 2
    tiles = placed(nodes, {x, z})
    # The first dimension of x is the one beside the stick.
    assert [s.args[0].allocation["hbm"] for s in tiles if s.op == "exp"] == [0, 2 * 128]
    assert [s.args[1].allocation["hbm"] for s in tiles if s.op == "abs"] == [0, 16 * 128]
