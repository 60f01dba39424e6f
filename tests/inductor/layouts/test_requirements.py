"""What operations need of layouts: the documented rule of each kind, elements counted by hand."""

from __future__ import annotations

import itertools

import pytest
import sympy
import torch

from tests.support.operations import P, R, access, buffer, matmul, pointwise, reduction
from torch_spyre._C import ElementArrangement
from torch_spyre._inductor.layouts.requirements import Need, cost, keeps_order, needs
from torch_spyre._inductor.layouts.stick_layouts import STANDARD, WIDENED, layout_of
from torch_spyre._inductor.operations.operation import Operation

p0, p1, p2, *_ = P
r0 = R[0]
OUTPUT = -1


def short(op: Operation) -> list[tuple[int, sympy.Symbol | None, int]]:
    return [(need.position, need.stick, need.elements) for need in needs(op, {})]


# ---- Pointwise -----------------------------------------------------------------------------------


def test_inputs_and_output_with_the_same_stick_need_nothing() -> None:
    for stick in (0, 1, -1):
        x, y, z = (buffer(name, (128, 192), stick) for name in "xyz")
        assert short(pointwise("add", [x, y], z, (128, 192))) == []


def test_the_input_whose_sticks_lie_elsewhere_is_copied_along_those_of_the_output() -> None:
    for stick, symbol in ((0, p0), (1, p1)):
        x, y, z = (buffer(n, (128, 192), s) for n, s in zip("xyz", (stick, 1 - stick, stick)))
        assert short(pointwise("add", [x, y], z, (128, 192))) == [(1, symbol, 128 * 192)]


def test_a_view_that_is_transposed_needs_sticks_along_its_rows() -> None:
    """y = x.t() + 1: the columns of y are the rows of x."""
    y = buffer("y", (64, 128), 1)
    for stick, expected in ((0, []), (1, [(0, p1, 64 * 128)])):
        x = buffer("x", (128, 64), stick)
        assert short(pointwise("abs", [(x, p0 + 64 * p1)], y, (64, 128))) == expected


def test_what_is_the_same_in_all_columns_is_read_from_one_element_per_stick() -> None:
    """Broadcast along the stick: a column with a stick for each row, a row with plain sticks."""
    x, z = (buffer(name, (128, 192), 1) for name in "xz")
    column, row = buffer("c", (128, 1), -1), buffer("r", (192,), 0)
    assert short(pointwise("add", [x, (column, p0)], z, (128, 192))) == []
    assert short(pointwise("add", [x, (row, p1)], z, (128, 192))) == []
    dense = buffer("d", (128,), 0)
    # Copied so that each of the 128 elements has a stick of its own: 64 lanes each.
    assert short(pointwise("add", [x, (dense, p0)], z, (128, 192))) == [(1, None, 128 * 64)]
    sparse = buffer("s", (192,), -1)
    assert short(pointwise("add", [x, (sparse, p1)], z, (128, 192))) == [(1, p1, 192)]


def test_a_number_suits_every_operation() -> None:
    x, z, one = buffer("x", (128, 192), 0), buffer("z", (128, 192), 0), buffer("one", (), -1)
    assert short(pointwise("mul", [x, one], z, (128, 192))) == []


def test_a_write_into_a_part_of_a_stick_goes_through_a_temporary() -> None:
    """A piece of 70 columns in 200 that begins at 64 ends inside of a stick; 136 to 200 is to the
    end of the rows; 64 to 128 is one whole stick."""
    whole = buffer("z", (8, 200), 1)

    def piece(begin: int, columns: int) -> list[tuple[int, sympy.Symbol | None, int]]:
        x = buffer("x", (8, columns), 1)
        z = (whole, 200 * p0 + p1 + begin)
        return short(pointwise("abs", [x], z, (8, columns)))

    assert piece(64, 70) == [(OUTPUT, p1, 8 * 70)]
    assert piece(128, 72) == [] and piece(64, 64) == []
    assert piece(10, 64) == [(OUTPUT, p1, 8 * 64)]


def test_an_output_that_needs_a_temporary_takes_the_stick_of_most_of_its_inputs() -> None:
    whole = buffer("z", (128, 256), 1)
    rows, other, columns = (buffer(*b) for b in (("a", (128, 64), 0), ("b", (128, 64), 0),
                                                 ("c", (64,), 0)))  # fmt: skip
    z = (whole, 256 * p0 + p1 + 32)
    found = short(pointwise("where3", [rows, other, (columns, p1)], z, (128, 64)))
    assert found == [(OUTPUT, p0, 128 * 64), (2, None, 64 * 64)]


# ---- Reductions ----------------------------------------------------------------------------------


def test_a_sum_along_the_sticks_gives_one_element_per_stick() -> None:
    x, z = buffer("x", (128, 192), 1), buffer("z", (128,), -1)
    assert short(reduction("sum", x, z, (128,), 192)) == []
    dense = buffer("z", (128,), 0)
    assert short(reduction("sum", x, dense, (128,), 192)) == [(0, p0, 128 * 192)]


def test_a_sum_across_sticks_keeps_them() -> None:
    x, z = buffer("x", (128, 192), 0), buffer("z", (128,), 0)
    assert short(reduction("sum", x, z, (128,), 192)) == []
    sparse = buffer("z", (128,), -1)
    assert short(reduction("sum", x, sparse, (128,), 192)) == [(0, r0, 128 * 192)]


def test_moments_of_single_elements_need_sticks_along_the_rows() -> None:
    """A sum may read one element per stick, mean and variance come from whole sticks."""
    x, z = buffer("x", (128, 192), -1), buffer("z", (128,), -1)
    assert short(reduction("sum", x, z, (128,), 192)) == []
    assert short(reduction("exx2", x, z, (128,), 192)) == [(0, r0, 128 * 192)]


def test_mean_and_variance_stay_in_their_stick() -> None:
    x, z = (buffer(name, (128, 192), 0) for name in "xz")
    moments = buffer("m", (128,), -1, arrangement=ElementArrangement.EXX2)
    op = pointwise("layernormnorm", [x, (moments, p0)], z, (128, 192))
    assert [(n.position, n.stick) for n in needs(op, {})] == [(OUTPUT, p1), (0, p1)]
    plain = pointwise("add", [x, (moments, p0)], z, (128, 192))
    assert all(n.position != OUTPUT for n in needs(plain, {}))


# ---- Products ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sticks", list(itertools.product((0, 1), repeat=3)))
def test_a_product_has_sticks_along_k_in_x_and_along_n_in_y_and_the_result(
    sticks: tuple[int, int, int],
) -> None:
    m, n, k = 128, 192, 320
    x, y, z = (buffer(*b) for b in zip("xyz", ((m, k), (k, n), (m, n)), sticks))
    expected = [
        wanted
        for stick, wanted in zip(sticks, ((0, r0, m * k), (1, p1, k * n), (OUTPUT, p1, m * n)))
        if stick != 1
    ]
    assert short(matmul(x, y, z, m, n, k)) == expected


def test_what_a_product_does_not_vary_along_is_there_for_each_k() -> None:
    """x is a column that is expanded: its copy has all of K."""
    m, n, k = 64, 64, 128
    column, y, z = buffer("x", (m, 1), -1), buffer("y", (k, n), 1), buffer("z", (m, n), 1)
    op = matmul((column, p0), y, z, m, n, k)
    (need,) = needs(op, {})
    assert (need.position, need.stick, need.elements, need.include) == (0, r0, m * k, (r0,))


# ---- Rows by index -------------------------------------------------------------------------------


def gather(table_stick: int, out_stick: int) -> Operation:
    """z[p0, p1] = table[index[p0], p1] of 1000 rows with 256 columns."""
    row = sympy.Symbol("indirect0", integer=True, nonnegative=True)
    table, z = buffer("table", (1000, 256), table_stick), buffer("z", (8, 256), out_stick)
    index = buffer("index", (8,), 0, torch.int64)
    op = pointwise("identity", [(table, 256 * row + p1)], z, (8, 256), "gather")
    op.gather, op.info = {row: access((index, p0), (p0, p1))}, {"rows": {row: 1000}}
    return op


def test_a_gather_moves_whole_sticks_of_rows() -> None:
    assert short(gather(1, 1)) == []
    assert short(gather(0, 1)) == [(0, p1, 1000 * 256)]
    assert short(gather(1, 0)) == [(OUTPUT, p1, 8 * 256)]
    assert short(gather(0, 0)) == [(OUTPUT, p1, 8 * 256), (0, p1, 1000 * 256)]


def scatter(table_stick: int, value_stick: int) -> Operation:
    """table[index[p0], p1] = x[p0, p1]"""
    op = gather(table_stick, value_stick)
    ((row, index),) = op.gather.items()
    table, value = op.inputs[0], op.output
    return Operation("identity", "scatter", op.ranges, (), [value], table, op.info,
                     gather={row: index})  # fmt: skip


def test_a_scatter_copies_a_table_of_other_sticks_there_and_back() -> None:
    assert short(scatter(1, 1)) == []
    assert short(scatter(1, 0)) == [(0, p1, 8 * 256)]
    assert short(scatter(0, 1)) == [(OUTPUT, p1, 2 * 1000 * 256)]


# ---- The order that a cast leaves ---------------------------------------------------------------


def widened() -> tuple[Operation, Operation, Operation]:
    """A cast to float32 that leaves its lanes in pairs of sticks, a chain on it, and a cast back"""
    size = (8, 128)
    half, out = buffer("x", size, 1), buffer("y", size, 1)
    wide = [buffer(f"w{i}", size, 1, torch.float32, arrangement=WIDENED) for i in range(2)]
    return (pointwise("dl16tofp32", [half], wide[0], size),
            pointwise("exp", [wide[0]], wide[1], size),
            pointwise("fp32todl16", [wide[1]], out, size))  # fmt: skip


def test_lanes_keep_the_order_of_a_cast_until_another_cast_undoes_it() -> None:
    assert [short(op) for op in widened()] == [[], [], []]
    assert [keeps_order(op) for op in widened()] == [False, True, False]


def test_who_cannot_take_that_order_gets_a_copy_in_the_standard_one() -> None:
    _, chain, _ = widened()
    chain.output.buffer.layout = layout_of((8, 128), (128, 1), torch.float32, 1)
    assert needs(chain, {}) == [
        Need(0, p1, 1024, "its sticks are in the order that a cast left", STANDARD)
    ]
    other = buffer("i", (8, 128), 1, torch.int64)
    op = pointwise("equal", [chain.inputs[0].buffer, other], buffer("z", (8, 128), 1), (8, 128))
    assert [(n.position, n.arrangement) for n in needs(op, {})] == [(0, STANDARD)]


def test_others_of_the_same_operation_are_brought_into_that_order() -> None:
    _, chain, _ = widened()
    plain = buffer("p", (8, 128), 1, torch.float32)
    op = pointwise("add", [chain.inputs[0].buffer, plain], chain.output.buffer, (8, 128))
    assert [(n.position, n.arrangement) for n in needs(op, {})] == [(1, WIDENED)]


def test_half_of_a_pair_cannot_be_read() -> None:
    """Sticks of 32 come in pairs of 64: columns 32 to 64 are spread over both."""
    wide = buffer("w", (8, 128), 1, torch.float32, arrangement=WIDENED)
    z = buffer("z", (8, 32), 1, torch.float32)
    assert short(pointwise("exp", [(wide, 128 * p0 + p1 + 32)], z, (8, 32))) == [(0, p1, 8 * 32)]
    z64 = buffer("z", (8, 64), 1, torch.float32, arrangement=WIDENED)
    assert short(pointwise("exp", [(wide, 128 * p0 + p1 + 64)], z64, (8, 64))) == []


def test_a_view_of_narrow_sticks_must_hold_as_many_as_the_wide_ones_take() -> None:
    """Of 97 float32 from 32 on there are 3 sticks, and a cast of these 65 to 16 bits takes 4."""
    x, z = buffer("x", (8, 97), 1, torch.float32), buffer("z", (8, 65), 1)
    assert short(pointwise("fp32todl16", [(x, 97 * p0 + p1 + 32)], z, (8, 65))) == [(0, p1, 8 * 65)]
    x = buffer("x", (8, 129), 1, torch.float32)  # 5 sticks, of which 4 come after the first
    assert short(pointwise("fp32todl16", [(x, 129 * p0 + p1 + 32)], z, (8, 65))) == []


# ---- Cost ----------------------------------------------------------------------------------------


def test_the_cost_is_the_number_of_elements_that_are_copied() -> None:
    x, y, z = (buffer(n, (128, 192), s) for n, s in zip("xyz", (0, 0, 1)))
    assert cost(pointwise("add", [x, y], z, (128, 192)), {}) == 2 * 128 * 192


def test_a_copy_of_a_parameter_costs_next_to_nothing_unless_it_is_written() -> None:
    x, weight, z = (buffer(n, (128, 192), s) for n, s in zip("xyz", (1, 0, 1)))
    weight.static = True
    op = pointwise("add", [x, weight], z, (128, 192))
    assert cost(op, {}) == pytest.approx(128 * 192 / 1000)
    weight.written = True
    assert cost(op, {}) == 128 * 192


def test_a_copy_that_moves_sticks_moves_each_element_once() -> None:
    x, z = buffer("x", (128, 192), 0), buffer("z", (128, 192), 1)
    assert cost(pointwise("identity", [x], z, (128, 192), "copy"), {}) == 128 * 192 / 2


def test_layouts_that_are_considered_count_in_place_of_those_of_the_buffers() -> None:
    x, y, z = (buffer(n, (128, 192), 1) for n in "xyz")
    other = layout_of((128, 192), (192, 1), torch.float16, 0)
    op = pointwise("add", [x, y], z, (128, 192))
    assert cost(op, {x: other}) == 128 * 192
    assert cost(op, {x: other, y: other, z: other}) == 0
