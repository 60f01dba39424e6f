"""Which steps become one, what is still stored, and when steps must stay apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.make_bundle import FP32, LX, POOL, Op, Repeat, T, op, write_bundle
from torch_spyre.backend import read_bundle, steps_of
from torch_spyre.backend.emit.program import ProgramWriter, read_program
from torch_spyre.backend.fuse import join as joining
from torch_spyre.backend.fuse import schedule
from torch_spyre.backend.fuse.shapes import Shapes
from torch_spyre.backend.register_allocation import (
    LOAD,
    ROUND,
    SPREAD,
    STORE,
    lasting_registers,
    peak_registers,
)
from torch_spyre.backend.steps import (
    MAX_OPERANDS,
    Address,
    Copy,
    CopySide,
    LoopBegin,
    LoopEnd,
    Matmul,
    MatmulSide,
    ReduceOp,
    Space,
    Tile,
    addresses,
    with_addresses,
)
from torch_spyre.card_model.cost_model import price
from torch_spyre.opfuncs import TILE_OPCODES

SIZES = {"mb": 128, "out": 256}
SPLITS = {"mb": 4}
ROWS = T(["mb", "out"])
SPARSE = T(["mb", "out"], scale={"out": -2})
FULL = 128 * 256 * 2
COLUMN = 128 * 128


def pool(number: int) -> T:
    return ROWS.at(POOL, number * FULL)


def unary(name: str, source: T, out: T, splits: dict[str, int] | None = None) -> Op:
    return op(name, SIZES, [source], out, splits=SPLITS if splits is None else splits)


def binary(name: str, a: T, b: T, out: T) -> Op:
    return op(name, SIZES, [a, b], out, splits=SPLITS)


def scheduled(path: Path, nodes: Sequence[Op | Repeat], fuse: bool = True) -> list:
    items = steps_of(read_bundle(write_bundle(path, nodes)), fuse=fuse)
    writer = ProgramWriter()
    writer.add_all(items)
    assert len(read_program(writer.bytes())) == len(items)
    return items


def names(items: list) -> list[str]:
    return [item.name for item in items if not isinstance(item, (LoopBegin, LoopEnd))]


def stores(tile: Tile) -> list[int]:
    """Arguments that a step writes."""
    numbers = [i.destination for i in tile.code if i.opcode == STORE]
    return [tile.operands[n].address.argument for n in numbers]


def count(tile: Tile, opcode: int) -> int:
    return sum(i.opcode == opcode for i in tile.code)


# ---- what is joined ------------------------------------------------------------------------------


def test_a_chain_becomes_one_step_and_its_intermediates_are_never_stored(tmp_path):
    operations = [
        binary("add", ROWS.at(0), ROWS.at(1), pool(0)),
        unary("exp", pool(0), pool(1)),
        binary("mul", pool(1), ROWS.at(0), ROWS.at(2)),
    ]
    (tile,) = scheduled(tmp_path, operations)
    assert tile.name == "0_add+1_exp+2_mul"
    assert stores(tile) == [3]  # the pool is argument 0
    assert count(tile, LOAD) == 2  # argument 0 is loaded once
    rounds = [i for i in tile.body if i.opcode == ROUND]
    assert [i.b for i in rounds] == [0, 0]  # to the format that memory would have had
    assert len(scheduled(tmp_path / "plain", operations, fuse=False)) == 3


def test_float32_needs_no_rounding(tmp_path):
    f32 = T(["mb", "out"], FP32)
    operations = [
        op("exp", SIZES, [f32.at(0)], f32.at(POOL), splits=SPLITS),
        op("neg", SIZES, [f32.at(POOL)], f32.at(1), splits=SPLITS),
    ]
    (tile,) = scheduled(tmp_path, operations)
    assert count(tile, ROUND) == 0


def test_rounding_before_relu_is_fused_into_the_store_if_it_has_no_other_reader(tmp_path):
    sub = binary("sub", ROWS.at(0), ROWS.at(1), pool(0))
    relu = unary("relufwd", pool(0), pool(1))
    (tile,) = scheduled(tmp_path / "one", [sub, unary("relufwd", pool(0), ROWS.at(2))])
    assert count(tile, ROUND) == 0
    (tile,) = scheduled(tmp_path / "two", [sub, relu, unary("neg", pool(1), ROWS.at(2))])
    assert count(tile, ROUND) == 0
    also_read = [sub, relu, binary("mul", pool(0), pool(1), ROWS.at(2))]
    (tile,) = scheduled(tmp_path / "read", also_read)
    assert count(tile, ROUND) == 1  # which relu hands on


def test_a_chain_becomes_the_body_of_a_reduction_and_what_follows_its_epilogue(tmp_path):
    result = SPARSE.at(POOL, 2 * FULL)
    scalar = {"mb": 128, "out": 64}
    operations = [
        binary("sub", ROWS.at(0), ROWS.at(1), pool(0)),
        binary("mul", pool(0), pool(0), pool(1)),
        op("sum", SIZES, [pool(1)], result, splits=SPLITS),
        op("sqrt", scalar, [T(["mb", "out"], where=POOL, offset=2 * FULL)],
           T(["mb", "out"], where=POOL, offset=3 * FULL), splits=SPLITS),
        op("reciprocal", scalar, [T(["mb", "out"], where=POOL, offset=3 * FULL)],
           T(["mb", "out"], where=2), splits=SPLITS),
    ]  # fmt: skip
    (tile,) = scheduled(tmp_path, operations)
    assert [i.opcode for i in tile.body if i.opcode > ROUND] == [
        TILE_OPCODES["sub"],
        TILE_OPCODES["mul"],
    ]
    assert [i.opcode for i in tile.epilogue if i.opcode > ROUND] == [
        TILE_OPCODES["sqrt"],
        TILE_OPCODES["reciprocal"],
    ]
    assert stores(tile) == [3]
    assert count(tile, ROUND) == 4


def test_softmax_is_one_step_of_three_phases(tmp_path):
    largest, total = SPARSE.at(POOL, 3 * FULL), SPARSE.at(POOL, 3 * FULL + COLUMN)
    operations = [
        op("max", SIZES, [ROWS.at(0)], largest, splits=SPLITS),
        binary("sub", ROWS.at(0), largest, pool(0)),
        unary("exp", pool(0), pool(1)),
        op("sum", SIZES, [pool(1)], total, splits=SPLITS),
        binary("realdiv", pool(1), total, ROWS.at(1)),
    ]
    (tile,) = scheduled(tmp_path, operations)
    assert tile.name == "0_max+1_sub+2_exp+3_sum+4_realdiv"
    assert [[r.op for r in phase.reductions] for phase in tile.phases] == [
        [ReduceOp.MAX],
        [ReduceOp.SUM],
        [],
    ]
    # The row is loaded once and only the quotient is stored.
    assert count(tile, LOAD) == 1 and stores(tile) == [2]
    assert lasting_registers(tile) == 2  # the row, its exponential


def test_a_row_that_is_too_long_for_a_cache_is_not_kept(tmp_path):
    sizes = {"mb": 4, "out": 1 << 17}
    row = T(["mb", "out"])
    largest = SPARSE.at(POOL)
    operations = [
        op("max", sizes, [row.at(0)], largest, splits={"mb": 4}),
        op("sub", sizes, [row.at(0), largest], row.at(1), splits={"mb": 4}),
    ]
    assert names(scheduled(tmp_path, operations)) == ["0_max", "1_sub"]


def test_a_layer_norm_is_one_step(tmp_path):
    moments = SPARSE.at(POOL, arrangement="EXX2")
    scale = ROWS.at(POOL, COLUMN)
    operations = [
        op("exx2", SIZES, [ROWS.at(0)], moments, splits=SPLITS,
           constants={"exx2scale": 1.0, "useZeroMean": 0.0}),
        op("layernormscale", {"mb": 128, "out": 64}, [moments], scale, splits=SPLITS,
           constants={"eps": 1e-5}),
        op("layernormnorm", SIZES, [ROWS.at(0), moments, SPARSE.at(POOL, COLUMN)], ROWS.at(1),
           splits=SPLITS),
    ]  # fmt: skip
    (tile,) = scheduled(tmp_path, operations)
    assert tile.name == "0_exx2+1_layernormscale+2_layernormnorm"
    assert count(tile, LOAD) == 1 and stores(tile) == [2]
    assert count(tile, SPREAD) == 2  # mean and scale


def test_a_step_takes_over_the_division_of_another(tmp_path):
    for number, splits in enumerate(({"mb": 2}, {"out": 4}, {})):
        operations = [
            unary("exp", ROWS.at(0), pool(0)),
            unary("neg", pool(0), ROWS.at(1), splits),
        ]
        (tile,) = scheduled(tmp_path / str(number), operations)
        assert tile.cores == 4 and tile.name == "0_exp+1_neg"


def test_rows_and_batches_of_rows_are_the_same_points(tmp_path):
    batches = {"x": 4, "mb": 32, "out": 256}
    cube = T(["mb", "x", "out"])
    operations = [
        unary("exp", ROWS.at(0), pool(0)),
        op("neg", batches, [cube.at(POOL)], cube.at(1), splits={"x": 2}),
    ]
    (tile,) = scheduled(tmp_path, operations)
    assert stores(tile) == [2] and tile.cores == 4


def product(out: T, splits: dict[str, int]) -> Op:
    x = T(["mb", "in"], stick="in", label="INPUT")
    y = T(["in", "out"], label="KERNEL")
    sizes = {"mb": 128, "out": 256, "in": 64}
    return op("batchmatmul", sizes, [x.at(0), y.at(1)], out, splits=splits)


def test_bias_activation_and_residual_become_the_epilogue_of_a_product(tmp_path):
    bias = T(["out", "mb"], scale={"mb": -1})
    batches = {"x": 4, "mb": 32, "out": 256}
    cube = T(["mb", "x", "out"])
    operations = [
        product(replace(pool(0), label="OUTPUT"), {"out": 2, "mb": 2}),
        binary("add", pool(0), bias.at(2), pool(1)),
        unary("gelufwd", pool(1), pool(2)),
        op("add", batches, [cube.at(POOL, 2 * FULL), cube.at(3)], cube.at(4), splits={"x": 4}),
    ]
    (step,) = scheduled(tmp_path, operations)
    assert isinstance(step, Matmul) and step.cores == 4
    assert [o.address.argument for o in step.operands] == [3, 4, 5]  # bias, residual, result
    opcodes = [i.opcode for i in step.epilogue if i.opcode > ROUND]
    assert opcodes == [TILE_OPCODES[n] for n in ("add", "short_gelu", "add")]
    # The sum, with the bias, after the activation: each is rounded as if it had been stored.
    assert sum(i.opcode == ROUND for i in step.epilogue) == 3


def test_an_epilogue_does_not_overwrite_what_the_product_reads(tmp_path):
    operations = [
        product(replace(pool(0), label="OUTPUT"), {"mb": 2}),
        unary("neg", pool(0), ROWS.at(0)),
    ]
    assert len(scheduled(tmp_path, operations)) == 2


def test_two_chains_meet_in_one_step(tmp_path):
    operations = [
        unary("exp", ROWS.at(0), pool(0)),
        unary("tanh", ROWS.at(1), pool(1)),
        binary("add", pool(0), pool(1), ROWS.at(2)),
    ]
    (tile,) = scheduled(tmp_path, operations)
    assert stores(tile) == [3]


def test_steps_with_other_dimension_names_and_orders_are_recognised(tmp_path):
    operations = [
        op("exp", {"mb": 4, "x": 8, "out": 128}, [T(["mb", "x", "out"])],
           T(["x", "mb", "out"], where=POOL)),
        op("neg", {"mb": 8, "x": 4, "out": 128}, [T(["mb", "x", "out"], where=POOL)],
           T(["x", "out", "mb"], where=1)),
    ]  # fmt: skip
    (tile,) = scheduled(tmp_path, operations)
    assert tile.name == "0_exp+1_neg" and stores(tile) == [2]


def test_widen_and_narrow_cancel(tmp_path):
    wide = T(["mb", "out"], FP32, arrangement="DL16_TO_FP32", label="KERNEL")
    operations = [
        op("dl16tofp32", SIZES, [ROWS.at(0)], wide.at(POOL), splits=SPLITS),
        op("fp32todl16", SIZES, [wide.at(POOL)], ROWS.at(1), splits=SPLITS),
    ]
    (tile,) = scheduled(tmp_path, operations)
    opcodes = [i.opcode for i in tile.body]
    assert TILE_OPCODES["widen"] not in opcodes and TILE_OPCODES["narrow"] not in opcodes


def test_a_chain_of_float32_between_16_bits_has_the_order_of_its_ends(tmp_path):
    wide = T(["mb", "out"], FP32, arrangement="DL16_TO_FP32", label="KERNEL")
    first, second = wide.at(POOL), wide.at(POOL, 2 * FULL)

    def order_of(out: T, last: str, name: str) -> set[int]:
        operations = [
            op("dl16tofp32", SIZES, [ROWS.at(0)], first, splits=SPLITS),
            op("exp", SIZES, [first], second, splits=SPLITS),
            op(last, SIZES, [second], out, splits=SPLITS),
        ]
        (tile,) = scheduled(tmp_path / name, operations)
        return {i.opcode for i in tile.body} & {TILE_OPCODES["widen"], TILE_OPCODES["narrow"]}

    assert order_of(ROWS.at(1), "fp32todl16", "stored in 16 bits") == set()
    # What goes to memory in the other order has to be in it.
    assert order_of(wide.at(1), "neg", "stored in 32 bits") == {TILE_OPCODES["widen"]}


# ---- what stays in memory ------------------------------------------------------------------------


def test_results_in_arguments_and_scratchpads_are_stored(tmp_path):
    operations = [
        unary("exp", ROWS.at(0), ROWS.at(1)),
        unary("neg", ROWS.at(1), ROWS.at(LX, 0)),
        unary("tanh", ROWS.at(LX, 0), ROWS.at(2)),
    ]
    (tile,) = scheduled(tmp_path, operations)
    assert len(stores(tile)) == 3 and count(tile, LOAD) == 1


def turned(source: T, out: T) -> Op:
    """Nothing that can be joined: the sticks go along the other dimension."""
    target = T(["out", "mb"], stick="mb", where=out.where, offset=out.offset, label="KERNEL")
    return op("ReStickifyOpHBM", SIZES, [source], target)


def test_a_value_that_is_read_elsewhere_is_stored(tmp_path):
    operations = [
        unary("exp", ROWS.at(0), pool(0)),
        unary("neg", pool(0), ROWS.at(1)),
        turned(pool(0), ROWS.at(2)),
    ]
    first, second = scheduled(tmp_path, operations)
    assert first.name == "0_exp+1_neg" and stores(first) == [0, 2]
    assert isinstance(second, Copy)


def test_a_value_that_is_overwritten_before_it_is_read_is_not_stored(tmp_path):
    operations = [
        unary("exp", ROWS.at(0), pool(0)),
        unary("neg", pool(0), ROWS.at(1)),
        turned(ROWS.at(2), pool(0)),
        unary("abs", pool(0), ROWS.at(3), {"mb": 2}),
    ]
    steps = scheduled(tmp_path, operations)
    assert names(steps)[0] == "0_exp+1_neg" and stores(steps[0]) == [2]


def test_a_partial_overwrite_does_not_free_a_value(tmp_path):
    half = ROWS.at(POOL, gap={"mb": 64})
    operations = [
        unary("exp", ROWS.at(0), pool(0)),
        unary("neg", pool(0), ROWS.at(1)),
        op("tanh", {"mb": 64, "out": 256}, [ROWS.at(2, gap={"mb": 64})], half),
        unary("abs", pool(0), ROWS.at(3), {"mb": 2}),
    ]
    assert 0 in stores(scheduled(tmp_path, operations)[0])


def narrow_copy(sizes: tuple[int, int]) -> Copy:
    """32 columns for the sticks of pool(0)."""
    at = Address(Space.ARGUMENT, 0, (0,))
    side = CopySide(0, 0, (512, 64), (sizes[1], 1), sizes, (sizes[1], 1), (sizes[1], 1),
                    ((0, 512, 32),), at)  # fmt: skip
    return Copy("copy", 1, replace(side, address=Address(Space.ARGUMENT, 7, (0,))), side)


def narrow_product(columns: int, first: int = 0) -> Matmul:
    """Multiplies with columns of pool(0)."""
    x = MatmulSide(0, (1024, 128), Address(Space.ARGUMENT, 5, (0,)))
    y = MatmulSide(0, (128, 65536), Address(Space.ARGUMENT, 0, (2 * first,)))
    out = MatmulSide(0, (128, 128), Address(Space.ARGUMENT, 6, (0,)))
    return Matmul("product", 1, 0, ((8, columns, 512),), x, y, out)


@pytest.mark.parametrize(
    ("copy", "product", "dead"),
    [
        (narrow_copy((512, 32)), narrow_product(32), True),
        (narrow_copy((512, 32)), narrow_product(20), True),
        (narrow_copy((512, 32)), narrow_product(33), False),
        (narrow_copy((512, 32)), narrow_product(32, first=32), False),
        (narrow_copy((512, 64)), narrow_product(32), False),  # half of a tensor
    ],
)
def test_a_value_is_not_stored_when_all_that_is_read_of_its_sticks_is_overwritten(
    tmp_path, copy, product, dead
):
    operations = [unary("exp", ROWS.at(0), pool(0)), unary("neg", pool(0), ROWS.at(1))]
    items = steps_of(read_bundle(write_bundle(tmp_path, operations)), fuse=False)
    first, *rest = schedule([*items, copy, product], pool=0)
    assert stores(first) == ([2] if dead else [0, 2])
    assert names(rest) == ["copy", "product"]


def test_a_value_that_lies_between_the_sticks_of_another_one_does_not_free_it(tmp_path):
    """Both are between the first and the last byte of the other, also in scratchpads."""
    rows = ROWS.at(1, gap={"mb": 64})
    between = ROWS.at(1, 64 * 128, gap={"mb": 64})
    half = {"mb": 64, "out": 256}
    operations = [
        op("exp", half, [ROWS.at(0, gap={"mb": 64})], rows),
        op("neg", half, [rows], ROWS.at(2, gap={"mb": 64})),
        op("tanh", half, [ROWS.at(3, gap={"mb": 64})], between),
        op("ReStickifyOpHBM", half, [rows], T(["out", "mb"], stick="mb", where=4, label="KERNEL")),
    ]
    items = scheduled(tmp_path, operations, fuse=False)
    value = addresses(items[0])[1].argument
    shared = [
        with_addresses(
            item,
            tuple(
                replace(a, space=Space.SHARED, argument=0) if a.argument == value else a
                for a in addresses(item)
            ),
        )
        for item in items
    ]
    first = schedule(shared)[0]
    assert first.name == "0_exp+1_neg" and len(stores(first)) == 2


def test_without_a_pool_no_store_is_eliminated(tmp_path):
    operations = [unary("exp", ROWS.at(0), ROWS.at(1)), unary("neg", ROWS.at(1), ROWS.at(2))]
    bundle = read_bundle(write_bundle(tmp_path, operations, symbolic=False))
    (tile,) = steps_of(bundle)
    assert stores(tile) == [1, 2]
    # With concrete addresses only the caller knows that argument 0 is a pool.
    write_bundle(tmp_path, [unary("exp", ROWS.at(0), pool(0)), unary("neg", pool(0), ROWS.at(1))],
                 symbolic=False)  # fmt: skip
    (tile,) = steps_of(read_bundle(tmp_path))
    assert stores(tile) == [0, 2]
    (tile,) = steps_of(read_bundle(tmp_path, pool=True))
    assert stores(tile) == [2]


# ---- what stays apart ----------------------------------------------------------------------------


def test_scratchpads_of_other_cores_are_out_of_reach(tmp_path):
    for number, splits in enumerate(({"mb": 2}, {"out": 4}, {})):
        operations = [
            unary("exp", ROWS.at(0), ROWS.at(LX, 0)),
            unary("neg", ROWS.at(LX, 0), ROWS.at(1), splits),
        ]
        assert len(scheduled(tmp_path / str(number), operations)) == 2


def test_a_shifted_view_is_not_the_same_memory(tmp_path):
    # The second reads rows 1..64 of what the first wrote to rows 0..63 and so on.
    sizes = {"mb": 64, "out": 256}
    operations = [
        unary("exp", ROWS.at(0), pool(0)),
        op("neg", sizes, [ROWS.at(POOL, 128, gap={"mb": 64})], ROWS.at(1)),
    ]
    assert len(scheduled(tmp_path, operations)) == 2


def test_broadcast_of_a_result_is_another_step(tmp_path):
    row = T(["out", "mb"], scale={"mb": -1}, where=POOL)
    operations = [
        op("exp", {"out": 256}, [T(["out"])], T(["out"], where=POOL)),
        op("add", SIZES, [ROWS.at(1), row], ROWS.at(2)),
    ]
    assert len(scheduled(tmp_path, operations)) == 2


def test_a_step_is_not_moved_over_one_that_writes_what_it_reads(tmp_path):
    x = T(["mb", "in"], stick="in", label="INPUT")
    y = T(["in", "out"], label="KERNEL")
    z = T(["mb", "out"], label="OUTPUT")
    sizes = {"mb": 128, "out": 256, "in": 256}
    operations = [
        unary("exp", ROWS.at(0), pool(0)),
        op("batchmatmul", sizes, [x.at(POOL, 0), y.at(2)], z.at(POOL, FULL), splits=SPLITS),
        binary("add", pool(0), pool(1), ROWS.at(1)),
    ]
    steps = scheduled(tmp_path, operations)
    # The product needs the exponential; the sum goes on where the product ends.
    assert [type(s) for s in steps] == [Tile, Matmul]
    assert steps[0].name == "0_exp" and stores(steps[0]) == [0]


def test_a_step_is_moved_when_nothing_is_in_the_way(tmp_path):
    operations = [
        unary("exp", ROWS.at(0), pool(0)),
        unary("tanh", ROWS.at(1), ROWS.at(2)),
        unary("neg", pool(0), ROWS.at(3)),
    ]
    steps = scheduled(tmp_path, operations)
    assert sorted(names(steps)) == ["0_exp+2_neg", "1_tanh"]


def test_a_step_that_overwrites_an_input_elsewhere_is_not_fused(tmp_path):
    # exp reads rows 0..127 of argument 0; the last one writes them one row further down.
    shifted = ROWS.at(0, 128, gap={"mb": 1})
    operations = [
        op("exp", SIZES, [ROWS.at(0, gap={"mb": 1})], pool(0)),
        op("neg", SIZES, [pool(0)], shifted),
    ]
    assert len(scheduled(tmp_path, operations)) == 2


def test_in_place_operations_are_joined(tmp_path):
    operations = [
        unary("exp", ROWS.at(0), pool(0)),
        binary("add", pool(0), ROWS.at(0), ROWS.at(0)),
        unary("neg", ROWS.at(0), ROWS.at(1)),
    ]
    (tile,) = scheduled(tmp_path, operations)
    assert count(tile, LOAD) == 1 and stores(tile) == [1, 2]


def test_partial_sums_have_no_epilogue_of_others(tmp_path):
    result = SPARSE.at(POOL)
    operations = [
        op("sum", SIZES, [ROWS.at(0)], result, splits={"mb": 2, "out": 2}),
        op("sqrt", {"mb": 128, "out": 64}, [ROWS.at(POOL)], ROWS.at(1), splits=SPLITS),
    ]
    assert len(scheduled(tmp_path, operations)) == 2


def test_two_reductions_stay_two(tmp_path):
    column = T(["out", "mb"], scale={"mb": -1}, where=POOL)
    operations = [
        op("sumnonstick", SIZES, [ROWS.at(0)], column),
        op("sum", {"mb": 1, "out": 256}, [T(["out", "mb"], scale={"mb": -1}, where=POOL)],
           T(["mb", "out"], scale={"out": -2}, where=1)),
    ]  # fmt: skip
    assert len(scheduled(tmp_path, operations)) == 2


def test_an_epilogue_does_not_overwrite_what_the_body_reads(tmp_path):
    # The result goes to rows that other points still read.
    operations = [
        op("sum", SIZES, [ROWS.at(0)], SPARSE.at(POOL), splits=SPLITS),
        op("neg", {"mb": 128, "out": 64}, [ROWS.at(POOL)], ROWS.at(0, gap={"out": 192}),
           splits=SPLITS),
    ]  # fmt: skip
    assert len(scheduled(tmp_path, operations)) == 2


# ---- limits and loops ----------------------------------------------------------------------------


def test_long_chains_are_cut_before_operands_run_out(tmp_path):
    operations = []
    for i in range(60):
        source = ROWS.at(0) if i == 0 else pool(i % 2)
        operations.append(binary("add", source, ROWS.at(1, i * FULL), pool((i + 1) % 2)))
    operations.append(unary("neg", pool(0), ROWS.at(2)))
    steps = scheduled(tmp_path, operations)
    assert 2 < len(steps) < 5
    assert all(len(s.operands) <= MAX_OPERANDS for s in steps)
    assert [n for s in steps for n in s.source][-1] == "60_neg"
    assert "more" in steps[0].name


def test_long_chains_are_cut_before_registers_run_out(tmp_path):
    operations = [unary("exp", ROWS.at(0), pool(0))]
    for i in range(40):
        operations.append(unary("neg", pool(i), pool(i + 1)))
    for i in range(40):
        source = pool(40) if i == 0 else pool(50 + i - 1)
        operations.append(binary("add", source, pool(i), pool(50 + i)))
    operations.append(unary("abs", pool(89), ROWS.at(1)))
    steps = scheduled(tmp_path, operations)
    assert all(peak_registers(s) <= 32 for s in steps)
    assert sum(len(s.source) for s in steps) == len(operations)


def test_chains_in_loops(tmp_path):
    sizes = {"mb": 32, "out": 256}
    moving = {"gap": {"mb": 96}, "loop_strides": (32 * 128,)}
    scratch = ROWS.at(POOL, loop_strides=(0,))
    body = [
        op("exp", sizes, [ROWS.at(0, **moving)], scratch),
        op("neg", sizes, [scratch], ROWS.at(1, **moving)),
    ]
    items = scheduled(tmp_path, [Repeat(4, body), unary("abs", ROWS.at(1), ROWS.at(2), {})])
    assert [type(i) for i in items] == [LoopBegin, Tile, LoopEnd, Tile]
    assert items[1].name == "0_exp+1_neg" and stores(items[1]) == [2]


def test_what_the_next_iteration_reads_is_stored(tmp_path):
    total = ROWS.at(POOL, loop_strides=(0,))
    part = ROWS.at(0, loop_strides=(FULL,))
    body = [
        op("add", SIZES, [total, part], total),
        op("neg", SIZES, [total], ROWS.at(1, loop_strides=(0,))),
    ]
    items = scheduled(tmp_path, [Repeat(4, body)])
    tile = items[1]
    assert isinstance(tile, Tile) and stores(tile) == [0, 2]


def test_formats_that_differ_are_not_joined(tmp_path):
    """A buffer that is written in one format and read in another goes through memory."""
    operations = [
        unary("exp", ROWS.at(0), pool(0)),
        op("identity", {"mb": 128, "out": 128}, [T(["mb", "out"], FP32, where=POOL)],
           T(["mb", "out"], FP32, where=1), splits=SPLITS),
    ]  # fmt: skip
    assert len(scheduled(tmp_path, operations)) == 2


# ---- Equal layers -------------------------------------------------------------------------------


def test_steps_that_lie_alike_are_joined_alike(tmp_path, monkeypatch):
    """A layer that stands elsewhere gets what the first one got, at its own addresses."""
    compared, together = [], Shapes.join

    def join(shapes, first, second):
        joined = together(shapes, first, second)
        a, b = first.step(), second.step()
        direct = joining.join.__wrapped__(a, b, ())
        if joined is not None:
            works = first.works + second.works
            assert joined.works == works
            direct = replace(direct, works=works, time_us=sum(price(w).us for w in works))
        assert (joined and joined.step()) == direct
        compared.append(joined)
        return joined

    monkeypatch.setattr(Shapes, "join", join)
    joining.join.cache_clear()
    nodes, places = [], iter((3, 0, 7, 1, 5, 2, 6, 4))  # not the same distances in both layers
    for layer in range(2):
        a, b, c, d = (next(places) for _ in range(4))
        source, other, out = (ROWS.at(layer * 3 + n) for n in range(3))
        nodes += [
            binary("add", source, other, pool(a)),
            unary("exp", pool(a), pool(b)),
            binary("mul", pool(b), pool(a), pool(c)),
            unary("neg", pool(c), pool(d)),
            binary("sub", pool(d), other, out),
        ]
    items = scheduled(tmp_path, nodes)
    assert len(compared) > 4 and any(compared)
    assert joining.join.cache_info().misses <= len(compared) // 2
    first, second = (item for item in items if isinstance(item, Tile))
    assert first.code == second.code
