"""The model of device time, against numbers worked by hand (docs/architecture/device_time.md)."""

from __future__ import annotations

import math

import pytest

from torch_spyre.card_model.cost_model import (
    Axis,
    Dim,
    Flow,
    TensorUse,
    cycles,
    placed_flow,
    price,
    work,
)
from torch_spyre.hardware import CARD
from torch_spyre.opfuncs import OPFUNCS


def tensor(strides, stick, writes=False, in_lx=False, per_stick=64):
    return TensorUse(writes, in_lx, per_stick, stick, strides)


def pointwise(name, rows, columns, cores, in_lx=False):
    sticks = columns // 64
    dims = {"r": Dim(rows, rows, cores), "c": Dim(columns, columns, 1)}
    one = {"r": 128, "c": 128 * rows}
    uses = [tensor(one, "c", in_lx=in_lx), tensor(one, "c", in_lx=in_lx), tensor(one, "c", True)]
    return sticks, work(OPFUNCS[name], cores, dims, uses)


def test_an_addition_moves_each_element_once_and_is_bound_by_memory():
    _, add = pointwise("add", 4096, 4096, 32)
    assert (add.read_bytes, add.write_bytes, add.lx_bytes) == (2 << 25, 1 << 25, 0)
    cost = price(add)
    assert cost.memory_us == pytest.approx(3 * (1 << 25) / 204_800)
    assert cost.sfp_us == pytest.approx(128 * 4096 / (16 * 1500))
    assert cost.start_us == pytest.approx(3 * 0.88)
    assert cost.us == pytest.approx(cost.memory_us + cost.start_us)
    assert cost.bound == "memory"


def test_operands_in_scratchpads_cost_no_memory_time_and_no_start():
    _, add = pointwise("add", 4096, 4096, 32, in_lx=True)
    assert (add.read_bytes, add.lx_bytes) == (0, 2 << 25)
    cost = price(add)
    assert cost.memory_us == pytest.approx((1 << 25) / 204_800)
    assert cost.start_us == pytest.approx(0.88)


def test_a_read_that_many_cores_share_moves_once_and_takes_longer_beyond_eight_of_them():
    dims = {"m": Dim(2048, 2048, 16), "k": Dim(4096, 4096, 1), "n": Dim(4096, 4096, 2)}
    x = tensor({"m": 128, "k": 128 * 2048}, "k")
    y = tensor({"k": 128, "n": 128 * 4096}, "n")
    out = tensor({"m": 128, "n": 128 * 2048}, "n", writes=True)
    product = work(OPFUNCS["batchmatmul"], 32, dims, [x, y, out])
    assert product.read_bytes == 2 * (2048 * 4096 + 4096 * 4096)
    cost = price(product)
    bytes_of = [f.total_bytes for f in product.flows]
    assert cost.memory_us == pytest.approx((bytes_of[0] + 2 * bytes_of[1] + bytes_of[2]) / 204_800)
    assert cost.pt_us == pytest.approx(2048 * 4096 * 4096 / 32 / 1_536_000)
    assert (product.rows, product.hops) == (128, 0)


def test_partial_sums_travel_from_core_to_core_in_float32():
    dims = {"m": Dim(64, 64, 1), "k": Dim(8192, 8192, 4), "n": Dim(128, 128, 2)}
    x = tensor({"m": 128, "k": 128 * 64}, "k")
    y = tensor({"k": 128, "n": 128 * 8192}, "n")
    out = tensor({"m": 128, "n": 128 * 64}, "n", writes=True)
    product = work(OPFUNCS["batchmatmul"], 8, dims, [x, y, out])
    assert product.ring_bytes == 3 * 64 * 128 * 4
    assert price(product).ring_us == pytest.approx(3 * 64 * 128 * 1.4e-4)


def test_few_rows_use_a_part_of_the_array_as_in_the_public_cost_model():
    for rows, expected in ((64, 1.0), (16, math.sqrt(2 / 8)), (1, math.sqrt(1 / 8))):
        dims = {"m": Dim(rows, rows, 1), "k": Dim(64, 64, 1), "n": Dim(64, 64, 1)}
        uses = [
            tensor({"m": 128}, "k"),
            tensor({"k": 128}, "n"),
            tensor({"m": 128}, "n", writes=True),
        ]
        product = work(OPFUNCS["batchmatmul"], 1, dims, uses)
        assert price(product).pt_us == pytest.approx(rows * 64 * 64 / 1_536_000 / expected)


def test_short_bursts_leave_gaps():
    whole = Flow(False, False, 128, (Axis(64, 1, 64, 128),))
    apart = Flow(False, False, 128, (Axis(64, 1, 64, 256),))
    cut = Flow(False, False, 128, (Axis(16, 4, 64, 128),))
    assert (whole.bursts, apart.bursts, cut.bursts) == (2, 64, 4)
    assert whole.total_bytes == apart.total_bytes == cut.total_bytes == 8192


def test_a_relayout_moves_the_sticks_that_its_elements_lie_in():
    # 128 x 64 elements, row after row in sticks; a view that walks down a column touches them all.
    rows = placed_flow([128, 64], [4, 1], [64, 1], [1, 128, 64], [64, 64, 1], writes=False)
    column = placed_flow([64, 128], [1, 1], [1, 64], [1, 128, 64], [64, 64, 1], writes=False)
    half = placed_flow([64, 64], [1, 1], [64, 1], [1, 128, 64], [64, 64, 1], writes=True)
    assert (rows.total_bytes, column.total_bytes, half.total_bytes) == (16384, 16384, 8192)
    assert rows.core_bytes == 4096


def test_a_part_of_a_stick_moves_that_stick():
    # Rows of 200 elements in 4 sticks each, 8 rows: sticks, rows, lanes.
    layout = ([4, 8, 64], [64, 200, 1])

    def sticks(sizes, strides, offset):
        ones = [1] * len(sizes)
        return placed_flow(sizes, ones, strides, *layout, offset=offset, writes=True).total_bytes

    assert sticks([8, 10], [200, 1], 0) == 8 * 128
    assert sticks([8, 10], [200, 1], 60) == 8 * 2 * 128, "lanes 60 to 69 lie in two sticks"
    assert sticks([10], [1], 2 * 200 + 60) == 2 * 128
    assert sticks([8, 20], [200, 2], 1) == 8 * 128, "every second lane of one stick"
    assert sticks([8], [200], 199) == 8 * 128
    assert sticks([8, 200], [200, 1], 0) == 8 * 4 * 128


def test_functions_take_more_cycles_than_simple_operations_and_copies_none():
    assert cycles(OPFUNCS["add"]) == 1
    assert cycles(OPFUNCS["exp"]) == cycles(OPFUNCS["realdiv"]) == CARD.sfp_special_cycles
    assert cycles(OPFUNCS["layernormnorm"]) == 4
    assert cycles(OPFUNCS["identity"]) == 0


def test_softmax_of_the_published_example_takes_what_upstream_says():
    # 4096 x 2048 over 32 cores, six operations, everything between input and output in LX: 320 us.
    dims = {"r": Dim(4096, 4096, 32), "c": Dim(2048, 2048, 1)}
    full, row = {"r": 128, "c": 128 * 4096}, {"r": 128}

    def use(writes=False, memory=False, small=False):
        return TensorUse(writes, not memory, 64, None if small else "c", row if small else full)

    total = CARD.job_us
    for name, uses in (
        ("max", [use(memory=True), use(writes=True, small=True)]),
        ("sub", [use(), use(small=True), use(writes=True)]),
        ("exp", [use(), use(writes=True)]),
        ("sum", [use(), use(writes=True, small=True)]),
        ("mul", [use(), use(small=True), use(writes=True, memory=True)]),
    ):
        total += price(work(OPFUNCS[name], 32, dims, uses)).us
    rows = {"r": dims["r"]}
    inverse = [use(small=True), use(writes=True, small=True)]
    total += price(work(OPFUNCS["reciprocal"], 32, rows, inverse)).us
    assert total == pytest.approx(320, rel=0.02)
