"""What an operation costs, against numbers worked by hand from torch_spyre/hardware.py.

Memory: 204,800 bytes in a microsecond, 0.88 us for each operand that starts. A scratchpad: 128
bytes a cycle of 1/1500 us. SFP: 8 lanes in each of 2 corelets.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import sympy
import torch

from tests.support.operations import P, access, buffer, matmul, pointwise, reduction
from torch_spyre._inductor.layouts.to_op_spec import make_spec
from torch_spyre._inductor.operations.operation import Operation
from torch_spyre._inductor.opspec.op_spec import OpSpec
from torch_spyre._inductor.planning.op_cost import Content, Pricer, modelled_us, slices_of

p0, p1, p2, *_ = P
MEMORY, START, PORT, LANES = 204_800, 0.88, 128 * 1500, 16 * 1500


def spec_of(op: Operation, space: str = "hbm") -> OpSpec:
    made = make_spec(op)
    return replace(made, args=[replace(a, allocation={space: 0}) for a in made.args])


def divided(spec: OpSpec, *slices: int) -> dict[sympy.Symbol, int]:
    return dict(zip(spec.iteration_space, slices, strict=True))


def add(rows: int, columns: int, space: str = "hbm") -> OpSpec:
    x, y, z = (buffer(n, (rows, columns), 1) for n in "xyz")
    return spec_of(pointwise("add", [x, y], z, (rows, columns)), space)


def test_an_addition_reads_twice_and_writes_once() -> None:
    spec = add(4096, 4096)
    cost = Pricer(spec).price(divided(spec, 32, 1))
    assert cost.memory_us == pytest.approx(3 * 4096 * 4096 * 2 / MEMORY)
    assert cost.start_us == pytest.approx(3 * START)
    assert cost.sfp_us == pytest.approx(4096 * 4096 / 32 / LANES)
    assert cost.lx_us == pytest.approx(3 * 4096 * 4096 * 2 / 32 / PORT)
    assert cost.us == pytest.approx(3 * 4096 * 4096 * 2 / MEMORY + 3 * START)


def test_the_rest_of_a_last_stick_is_moved_and_computed() -> None:
    """65 columns are 2 sticks of 64: 128 bytes each, for each of 512 rows."""
    spec = add(512, 65)
    cost = Pricer(spec).price(divided(spec, 32, 1))
    work = Pricer(spec).work(divided(spec, 32, 1))
    assert work.read_bytes == 2 * 512 * 2 * 128 and work.write_bytes == 512 * 2 * 128
    assert cost.sfp_us == pytest.approx(512 / 32 * 128 / LANES)


@pytest.mark.parametrize("in_lx", list(itertools.product((False, True), repeat=3)))
def test_only_what_is_not_in_scratchpads_moves_and_starts(in_lx: tuple[bool, ...]) -> None:
    spec = add(1024, 1024)
    pricer, slices = Pricer(spec), divided(spec, 32, 1)
    cost = pricer.price(slices, in_lx)
    outside = in_lx.count(False)
    assert cost.memory_us == pytest.approx(outside * 1024 * 1024 * 2 / MEMORY)
    assert cost.start_us == pytest.approx(outside * START)
    work = pricer.work(slices, in_lx)
    assert work.lx_bytes == in_lx.count(True) * 1024 * 1024 * 2
    assert pricer.us(slices, in_lx) == pytest.approx(cost.us)


def test_the_places_that_tensors_have_count_when_none_are_given() -> None:
    spec = add(1024, 1024, "lx")
    pricer = Pricer(spec)
    assert pricer.work(divided(spec, 32, 1)).read_bytes == 0
    assert pricer.work(divided(spec, 32, 1), (False,) * 3).read_bytes == 2 * 1024 * 1024 * 2


def test_one_operation_is_priced_for_any_order_of_questions() -> None:
    """What is remembered for one place or division is not taken for another."""
    spec = add(256, 512)
    questions = list(itertools.product([(1, 1), (32, 1), (4, 8), (8, 4)],
                                       itertools.product((False, True), repeat=3)))  # fmt: skip
    together = Pricer(spec)
    for slices, in_lx in questions + questions[::-1]:
        own = Pricer(spec).price(divided(spec, *slices), in_lx)
        assert together.price(divided(spec, *slices), in_lx) == own
        assert together.us(divided(spec, *slices), in_lx) == own.us


def test_a_function_takes_twelve_cycles_of_an_element() -> None:
    x, z = buffer("x", (512, 64), 1), buffer("z", (512, 64), 1)
    spec = spec_of(pointwise("exp", [x], z, (512, 64)))
    assert Pricer(spec).price(divided(spec, 32, 1)).sfp_us == pytest.approx(16 * 64 * 12 / LANES)


def test_a_product_multiplies_its_padded_share() -> None:
    """M 128 over 4 cores, N 100 in 2 sticks over 2, K 70 in 2 sticks: 32 x 64 x 128 on a core."""
    x, y, z = buffer("x", (128, 70), 1), buffer("y", (70, 100), 1), buffer("z", (128, 100), 1)
    spec = spec_of(matmul(x, y, z, 128, 100, 70))
    work = Pricer(spec).work(divided(spec, 4, 2, 1))
    assert (work.macs, work.rows, work.hops) == (32 * 64 * 128, 32, 0)
    cost = Pricer(spec).price(divided(spec, 4, 2, 1))
    assert cost.pt_us == pytest.approx(32 * 64 * 128 / (1_536_000 * (4 / 8) ** 0.5))


def test_a_sum_over_slices_of_k_hands_its_partial_sums_on() -> None:
    x, y, z = buffer("x", (64, 256), 1), buffer("y", (256, 128), 1), buffer("z", (64, 128), 1)
    spec = spec_of(matmul(x, y, z, 64, 128, 256))
    work = Pricer(spec).work(divided(spec, 1, 1, 4))
    assert (work.hops, work.partial) == (3, 64 * 128)
    cost = Pricer(spec).price(divided(spec, 1, 1, 4))
    assert cost.ring_us == pytest.approx(3 * 64 * 128 * 1.4e-4)


def test_a_sum_along_rows_writes_a_stick_for_each() -> None:
    x, z = buffer("x", (512, 640), 1), buffer("z", (512,), -1)
    spec = spec_of(reduction("sum", x, z, (512,), 640))
    work = Pricer(spec).work(divided(spec, 32, 1))
    assert (work.read_bytes, work.write_bytes) == (512 * 640 * 2, 512 * 128)
    assert work.lane_cycles == 16 * 640


def test_single_elements_are_computed_a_stick_each() -> None:
    """One element per stick: its 64 lanes are worked on, whatever is in the others."""
    x, z = buffer("x", (512,), -1), buffer("z", (512,), -1)
    spec = spec_of(pointwise("reciprocal", [x], z, (512,)))
    work = Pricer(spec).work(divided(spec, 32))
    assert work.lane_cycles == 16 * 64 * 12 and work.read_bytes == 512 * 128


def test_a_gather_reads_a_stick_for_each_point_and_not_the_table() -> None:
    row = sympy.Symbol("indirect0", integer=True, nonnegative=True)
    table, index, z = (buffer("t", (10_000, 256), 1), buffer("i", (64,), 0, torch.int64),
                       buffer("z", (64, 256), 1))  # fmt: skip
    op = pointwise("identity", [(table, 256 * row + p1)], z, (64, 256), "gather")
    op.gather, op.info = {row: access((index, p0), (p0, p1))}, {"rows": {row: 10_000}}
    spec = spec_of(op)
    work = Pricer(spec).work(divided(spec, 32, 1))
    assert [f.total_bytes for f in work.flows] == [64 * 256 * 2, 64 * 4, 64 * 256 * 2]
    assert work.lane_cycles == 0


def test_a_relayout_moves_the_sticks_on_both_sides() -> None:
    """Columns 3 to 11 of 200 lie in one stick of each of 4 rows; so does the result."""
    x, z = buffer("x", (4, 200), 1), buffer("z", (4, 8), 1)
    spec = spec_of(pointwise("relayout", [(x, 200 * p0 + p1 + 3)], z, (4, 8), "copy"))
    work = Pricer(spec).work(divided(spec, 4, 1))
    assert (work.read_bytes, work.write_bytes) == (4 * 128, 4 * 128)
    in_lx = Pricer(spec).work(divided(spec, 4, 1), (False, True))
    assert (in_lx.read_bytes, in_lx.write_bytes) == (4 * 128, 0)


def test_a_read_that_32_cores_share_takes_four_times_as_long() -> None:
    """One read serves eight: y of a product whose rows alone are divided."""
    x, y, z = buffer("x", (2048, 64), 1), buffer("y", (64, 4096), 1), buffer("z", (2048, 4096), 1)
    spec = spec_of(matmul(x, y, z, 2048, 4096, 64))
    cost = Pricer(spec).price(divided(spec, 32, 1, 1))
    expected = 2 * (2048 * 64 + 4 * 64 * 4096 + 2048 * 4096) / MEMORY
    assert cost.memory_us == pytest.approx(expected)


# ---- Equal operations ----------------------------------------------------------------------------


def test_addresses_do_not_make_another_operation_and_slices_do_if_they_count() -> None:
    spec = add(64, 128)
    moved = replace(spec, args=[replace(a, allocation={"pool": 4096}) for a in spec.args])
    cut = replace(spec, iteration_space={s: (n, 2) for s, (n, _) in spec.iteration_space.items()})
    other = add(64, 192)
    assert Content(spec) == Content(moved) and hash(Content(spec)) == hash(Content(moved))
    assert Content(spec) != Content(cut) and Content(spec) != Content(other)
    assert Content(spec, divided=False) == Content(cut, divided=False)
    info = replace(spec, op_info={"constants": {"alpha": 1.0}})
    assert Content(spec) != Content(info)


def test_an_operation_is_priced_as_it_is_divided() -> None:
    spec = add(1024, 1024)
    cut = replace(spec, iteration_space={s: (n, d) for (s, (n, _)), d in
                                         zip(spec.iteration_space.items(), (16, 2))})  # fmt: skip
    assert slices_of(cut) == divided(spec, 16, 2)
    in_lx = (True, True, False)
    for one in (spec, cut):
        assert modelled_us(one, in_lx) == Pricer(one).price(slices_of(one), in_lx).us
    assert modelled_us(cut, in_lx) < modelled_us(spec, in_lx)


def test_a_cast_works_on_the_sticks_of_the_wider_side() -> None:
    """65 columns: of float32 3 sticks of 32, of 16 bits 2 of 64, which are 128 lanes."""
    x, z = buffer("x", (64, 65), 1, torch.float32), buffer("z", (64, 65), 1)
    spec = spec_of(pointwise("fp32todl16", [x], z, (64, 65)))
    work = Pricer(spec).work(divided(spec, 32, 1))
    assert work.lane_cycles == 2 * 128 and work.write_bytes == 64 * 2 * 128
