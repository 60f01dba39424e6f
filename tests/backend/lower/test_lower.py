"""Operations as steps: numbers worked out by hand, and addresses found by brute force."""

from __future__ import annotations

import itertools
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.make_bundle import (
    FP16,
    FP32,
    INT32,
    LX,
    Op,
    Repeat,
    T,
    axis_entries,
    core_slices,
    op,
    write_bundle,
)
from torch_spyre.backend import BundleError, read_bundle, steps_of
from torch_spyre.backend.emit.program import ProgramWriter, read_program
from torch_spyre.backend.errors import ProgramError
from torch_spyre.backend.fuse.memory_regions import accesses
from torch_spyre.backend.lower import lower, lower_sdsc
from torch_spyre.backend.lower.movement import is_restickify
from torch_spyre.backend.lower.tile import arranged_column
from torch_spyre.backend.report import disassemble
from torch_spyre.backend.steps import (
    Address,
    Copy,
    CopySide,
    Form,
    Gather,
    Instruction,
    LoopBegin,
    LoopEnd,
    Matmul,
    Operand,
    ReduceOp,
    Space,
    Tile,
    Topk,
    addresses,
    with_addresses,
)
from torch_spyre.opfuncs import OPFUNCS, TILE_OPCODES

SIZES = {"mb": 128, "out": 256}
ROWS = T(["mb", "out"])
SPARSE = T(["mb", "out"], scale={"out": -2})
ALL_LANES = (1 << 64) - 1


def lowered(path: Path, operation: Op) -> Any:
    (only,) = read_bundle(write_bundle(path, [operation])).operations()
    return lower(only)


def opcodes(code: Any) -> list[int]:
    return [i.opcode for i in code]


def codes(*names: str) -> list[int]:
    return [TILE_OPCODES[name] for name in names]


def bits(value: float) -> int:
    return struct.unpack("<I", struct.pack("<f", value))[0]


# ---- pointwise -----------------------------------------------------------------------------------


def test_add_walks_over_sticks_outside_and_rows_inside(tmp_path):
    tile = lowered(
        tmp_path, op("add", SIZES, [ROWS.at(0), ROWS.at(1)], ROWS.at(2), splits={"mb": 4})
    )
    assert (tile.lanes, tile.kept, tile.stick_dim) == (64, 2, 0)
    assert tile.extents == ((4, 32),) * 4
    assert all(o.strides == (128 * 128, 128) for o in tile.operands)
    assert [o.address.argument for o in tile.operands] == [0, 1, 2]
    assert tile.operands[2].address.offsets == (0, 4096, 8192, 12288)
    assert opcodes(tile.body) == codes("load", "load", "add", "store")
    assert tile.time_us > 0


def test_the_axis_nearest_to_the_stick_of_the_output_is_innermost(tmp_path):
    sizes = {"mb": 4, "x": 6, "out": 128}
    out = T(["x", "out", "mb"], where=1)
    tile = lowered(tmp_path, op("exp", sizes, [T(["mb", "x", "out"])], out))
    assert tile.extents == ((4, 2, 6),)  # mb, sticks, x
    assert tile.operands[1].strides == (2 * 6 * 128, 6 * 128, 128)
    assert tile.operands[0].strides == (128, 6 * 4 * 128, 4 * 128)


def test_dimensions_of_one_point_are_dropped_but_the_stick_stays(tmp_path):
    sizes = {"mb": 4, "x": 1, "out": 64}
    tile = lowered(
        tmp_path, op("exp", sizes, [T(["mb", "x", "out"])], T(["mb", "x", "out"], where=1),
                     splits={"mb": 4})
    )  # fmt: skip
    assert tile.extents == ((1, 1),) * 4 and tile.stick_dim == 0
    assert tile.starts == tuple((0, row) for row in range(4))


def test_broadcast_has_stride_zero_and_sparse_inputs_are_splats(tmp_path):
    row = T(["out", "mb"], scale={"mb": -1}, where=1)
    tile = lowered(tmp_path, op("add", SIZES, [SPARSE, row], ROWS.at(2)))
    column, across, _ = tile.operands
    assert (column.form, column.strides) == (Form.SPLAT, (0, 128))
    assert (across.form, across.strides) == (Form.VECTOR, (128, 0))


def test_immediates_are_the_constants_in_order(tmp_path):
    clip = op(
        "clip", SIZES, [ROWS], ROWS.at(1), constants={"clipMin": -0.5, "clipMax": float("inf")}
    )
    (instruction,) = [i for i in lowered(tmp_path, clip).body if i.opcode == 61]
    assert (instruction.immediate0, instruction.immediate1) == (bits(-0.5), 0x7F800000)


def test_integers_have_their_own_instructions(tmp_path):
    tensors = [ROWS.at(i, fmt=INT32) for i in range(3)]
    tile = lowered(tmp_path / "a", op("add", SIZES, tensors[:2], tensors[2]))
    assert tile.lanes == 32 and codes("int_add")[0] in opcodes(tile.body)
    out = ROWS.at(2, label="KERNEL")
    tile = lowered(tmp_path / "b", op("lesserthan", SIZES, tensors[:2], out))
    assert tile.lanes == 64 and codes("int_lt")[0] in opcodes(tile.body)


def test_mixed_stick_sizes_make_groups_of_the_larger_one(tmp_path):
    # 70 columns: 3 sticks of float32, 2 of 16 bits; the iteration has 4 and 2.
    inputs = [ROWS.at(i, fmt=FP32, label="KERNEL", gap={"out": -32}) for i in range(2)]
    tile = lowered(tmp_path, op("equal", {"mb": 8, "out": 128}, inputs, ROWS.at(2)))
    assert tile.lanes == 64 and tile.extents == ((2, 8),)
    assert tile.operands[0].strides == (2 * 8 * 128, 128)
    assert tile.operands[0].sub_stride == 8 * 128
    assert tile.operands[0].limits == (3,) and tile.operands[2].limits == (-1,)


def test_limits_of_cores_that_divide_a_short_axis(tmp_path):
    # 200 columns: 7 sticks of float32, 4 of 16 bits over 2 cores.
    inputs = [ROWS.at(i, fmt=FP32, label="KERNEL", gap={"out": -32}) for i in range(2)]
    tile = lowered(
        tmp_path, op("equal", {"mb": 8, "out": 256}, inputs, ROWS.at(2), splits={"out": 2})
    )
    assert tile.operands[0].limits == (4, 3)


def test_a_last_half_group_is_not_stored_beyond_the_tensor(tmp_path):
    # 96 columns of float32, chosen by 16-bit booleans: 1.5 groups of 64 lanes.
    condition = ROWS.at(0, label="KERNEL", gap={"out": 32})
    f32 = [ROWS.at(i, fmt=FP32) for i in (1, 2, 3)]
    tile = lowered(tmp_path, op("where3", {"mb": 8, "out": 96}, [condition, *f32[:2]], f32[2]))
    assert tile.extents == ((2, 8),)
    assert tile.operands[3].limits == (3,)


def test_layernormnorm_leaves_out_inputs_that_are_not_there(tmp_path):
    row = T(["out", "mb"], scale={"mb": -1})
    inputs = [ROWS.at(0), SPARSE.at(1, arrangement="EXX2"), SPARSE.at(2), row.at(3), row.at(4)]
    expected = {
        3: codes("sub", "mul"),
        4: codes("sub", "mul", "mul"),
        5: codes("sub", "mul", "mul", "add"),
    }
    for count, operations in expected.items():
        operation = op("layernormnorm", SIZES, inputs[:count], ROWS.at(count))
        tile = lowered(tmp_path / str(count), operation)
        assert opcodes(tile.body) == codes("load") * count + operations + codes("store")
        assert tile.operands[1].form == Form.EXX2_MEAN
        assert tile.operands[2].form == Form.SPLAT


# ---- arrangements --------------------------------------------------------------------------------


def test_arranged_columns_follow_the_definition():
    # host column = group * 8 + stick * 4 + elem, position = group * 4 + elem
    for stick, group, elem in itertools.product(range(2), range(8), range(4)):
        assert arranged_column(stick * 32 + group * 4 + elem) == group * 8 + stick * 4 + elem


def test_casts_widen_and_narrow(tmp_path):
    wide = ROWS.at(1, fmt=FP32, arrangement="DL16_TO_FP32", label="KERNEL")
    tile = lowered(tmp_path / "a", op("dl16tofp32", SIZES, [ROWS], wide))
    assert opcodes(tile.body) == codes("load", "copy", "widen", "store") and tile.lanes == 64
    tile = lowered(tmp_path / "b", op("fp32todl16", SIZES, [wide.at(0)], ROWS.at(1)))
    assert opcodes(tile.body) == codes("load", "narrow", "copy", "store")
    tile = lowered(tmp_path / "c", op("mul", SIZES, [wide.at(0), wide.at(1)], wide.at(2)))
    assert opcodes(tile.body) == codes("load", "load", "mul", "store") and tile.lanes == 64
    plain = ROWS.at(1, fmt=FP32, label="KERNEL")
    tile = lowered(tmp_path / "d", op("dl16tofp32", SIZES, [ROWS], plain))
    assert opcodes(tile.body) == codes("load", "copy", "store")


# ---- reductions ----------------------------------------------------------------------------------


def test_sum_over_the_stick(tmp_path):
    tile = lowered(tmp_path, op("sum", SIZES, [ROWS], SPARSE.at(1), splits={"mb": 4}))
    assert (tile.kept, tile.dims, tile.stick_dim) == (1, 2, 1)
    assert tile.extents == ((32, 4),) * 4 and tile.reduces_lanes and not tile.groups
    assert tile.operands[1].form == Form.SPLAT_STORE
    assert tile.operands[1].strides == (128, 0)
    assert [r.op for r in tile.reductions] == [ReduceOp.SUM]
    assert opcodes(tile.epilogue) == codes("store")


def test_mean_is_a_sum_times_a_factor(tmp_path):
    operation = op("mean", SIZES, [ROWS], SPARSE.at(1), constants={"scaling_factor": 1 / 256})
    tile = lowered(tmp_path, operation)
    assert tile.reductions[0].op == ReduceOp.SUM
    assert opcodes(tile.epilogue) == codes("mul_imm", "store")
    assert tile.epilogue[0].immediate0 == bits(1 / 256)


def test_reduction_over_rows_keeps_the_lanes(tmp_path):
    out = T(["out", "mb"], scale={"mb": -1}, where=1)
    tile = lowered(tmp_path, op("maxnonstick", SIZES, [ROWS], out, splits={"out": 2}))
    assert (tile.kept, tile.stick_dim, tile.reduces_lanes) == (1, 0, False)
    assert tile.extents == ((2, 128),) * 2
    assert tile.operands[1].form == Form.VECTOR and tile.operands[1].strides == (128, 0)


def masked(columns: int, splits: dict[str, int], **changes: Any) -> Op:
    padded = {"mb": 32, "out": -(-columns // 64) * 64}
    return op(
        "max", padded, [ROWS.at(0, **changes)], SPARSE.at(1, fmt=changes.get("fmt", FP16)),
        splits=splits, masks={"out": (columns, padded["out"] - columns)},
        constants={"samv-maskvalue": (FP16, 0xFFFE)},
    )  # fmt: skip


def test_padding_is_masked_in_the_last_group(tmp_path):
    tile = lowered(tmp_path / "a", masked(100, {}))
    assert tile.extents == ((32, 2),) and tile.tails == ((1 << 36) - 1,)
    tile = lowered(tmp_path / "b", masked(250, {"out": 4}))
    assert tile.extents == ((32, 1),) * 4
    assert tile.tails == (ALL_LANES,) * 3 + ((1 << 58) - 1,)


def test_padding_of_arranged_sticks_is_masked_in_pairs(tmp_path):
    tile = lowered(tmp_path, masked(70, {}, fmt=FP32, arrangement="DL16_TO_FP32"))
    assert tile.lanes == 64 and tile.extents == ((32, 2),)
    # Columns 64..69 are in the second pair: 0..3 in its first stick, 4 and 5 in its second.
    assert tile.tails == (0b1111 | 0b11 << 32,)


def test_cores_that_divide_a_reduced_dimension_form_groups(tmp_path):
    tile = lowered(tmp_path, op("sum", SIZES, [ROWS], SPARSE.at(1), splits={"mb": 2, "out": 4}))
    assert tile.groups == (0, 1, 0, 1, 0, 1, 0, 1)  # mb is the fastest
    assert tile.extents == ((64, 1),) * 8


def test_exx2_stores_two_results(tmp_path):
    constants = {"exx2scale": 1 / 256, "useZeroMean": 0.0}
    out = SPARSE.at(1, arrangement="EXX2")
    tile = lowered(tmp_path / "a", op("exx2", SIZES, [ROWS], out, constants=constants))
    assert tile.reductions[0].op == ReduceOp.SHORT_EXX2
    (store,) = tile.epilogue
    first = tile.reductions[0].destination
    assert (store.a, store.b) == (first, first + 1)
    assert tile.operands[1].form == Form.EXX2_STORE
    scale = op("layernormscale", {"mb": 128, "out": 64}, [out.at(0)], ROWS.at(1),
               constants={"eps": 1e-5})  # fmt: skip
    tile = lowered(tmp_path / "b", scale)
    assert tile.operands[0].form == Form.EXX2_VARIANCE
    assert opcodes(tile.body) == codes("load", "add_imm", "rsqrt", "store")
    assert tile.body[1].immediate0 == bits(1e-5)


# ---- every row of the table ----------------------------------------------------------------------


def example(name: str) -> Op:
    """Some operation of this name."""
    row = OPFUNCS[name]
    fmt = row.formats[0]
    if row.kind == "matmul":
        sizes = {"mb": 32, "out": 128, "in": 128}
        return op(
            name, sizes,
            [T(["mb", "in"], fmt, stick="in", label="INPUT"),
             T(["in", "out"], fmt, label="KERNEL", where=1)],
            T(["mb", "out"], FP16, label="OUTPUT", where=2),
        )  # fmt: skip
    if row.kind == "topk":
        result = INT32 if row.result == INT32 else fmt
        return op(
            name, {"mb": 16, "x": 4, "out": 64},
            [T(["mb", "out", "x"], scale={"x": -1}, label="KERNEL")],
            T(["x", "out", "mb"], result, scale={"mb": -1}, where=1),
        )  # fmt: skip
    constants: dict[str, Any] = dict.fromkeys(row.constants, 0.0)
    if row.kind == "reduction":
        return op(name, SIZES, [ROWS.at(0, fmt=fmt)], SPARSE.at(1, fmt=fmt), constants=constants)
    result = {"same": fmt, "bool": FP16, "float": FP32}.get(row.result, row.result)
    changes: dict[str, Any] = {}
    if name == "relayout":
        changes = {
            "placement": {"deviceSize_": [4, 128, 64], "strideMap_": [64, 256, 1],
                          "size_": [128, 256], "stride_": [256, 1]},
            "view": {"stride_": [256, 1], "offset_": 0},
        }  # fmt: skip
    inputs = [ROWS.at(i, fmt=fmt, label="KERNEL", **changes) for i in range(row.arity)]
    return op(name, SIZES, inputs, ROWS.at(row.arity, fmt=result, **changes), constants=constants)


KINDS = {"matmul": Matmul, "topk": Topk}


# Slices of a move over the ring come from views: tests/inductor/codegen/test_ring_bundle.py.
@pytest.mark.parametrize("name", [name for name in OPFUNCS if name != "ringmove"])
def test_every_operation_of_the_table_becomes_a_step(tmp_path, name: str):
    step = lowered(tmp_path, example(name))
    expected = KINDS.get(OPFUNCS[name].kind, Tile)
    if name in ("ReStickifyOpHBM", "relayout"):
        expected = Copy
    assert isinstance(step, expected)
    writer = ProgramWriter()
    writer.add(step)
    (read,) = read_program(writer.bytes())
    assert read.name == step.name and read.time_us == step.time_us
    if isinstance(step, Matmul):
        step = replace(step, starts=())  # for the scheduler alone
    if not isinstance(step, Tile):
        assert read == replace(step, source=())


# ---- addresses by brute force --------------------------------------------------------------------


def element_bytes(operation: Op, tensor: T) -> dict[tuple[int, ...], int]:
    """Where each iterated element lies, straight from the definition in superdsc.md."""
    entries = axis_entries(operation, tensor)
    strides, stride = {}, 128
    for dim, count in entries.items():
        strides[dim] = stride
        stride *= count
    places = {}
    for point in itertools.product(*(range(n) for n in operation.sizes.values())):
        at = tensor.offset
        for dim, index in zip(operation.sizes, point):
            if dim not in strides:
                continue
            if dim == tensor.stick:
                at += index // tensor.per_stick * strides[dim]
                at += index % tensor.per_stick * (128 // tensor.per_stick)
            else:
                at += index * strides[dim]
        places[point] = at
    return places


@pytest.mark.parametrize("splits", [{}, {"mb": 2}, {"x": 3, "out": 2}, {"mb": 2, "x": 3, "out": 2}])
def test_the_points_of_all_cores_are_the_elements_of_the_tensor(tmp_path, splits: dict[str, int]):
    sizes = {"mb": 4, "x": 3, "out": 128}
    source = T(["x", "out", "mb"], gap={"x": 2}, offset=256)
    out = T(["mb", "x", "out"], where=1, gap={"out": 64})
    operation = op("exp", sizes, [source], out, splits=splits)
    tile = lowered(tmp_path, operation)
    for tensor, operand in zip((source, out), tile.operands):
        expected = set(element_bytes(operation, tensor).values())
        found = []
        for core in range(tile.cores):
            for point in itertools.product(*(range(e) for e in tile.extents[core])):
                start = operand.address.offsets[core]
                start += sum(i * s for i, s in zip(point, operand.strides))
                found += range(start, start + 128, 2)
        assert len(found) == len(set(found)) and set(found) == expected


def placed_bytes(side: CopySide, core: int) -> list[int]:
    """Bytes of the elements of one core's view, through the placement."""
    offset, *sizes = side.views[core]
    size = 128 // side.device_size[-1]
    levels = sorted(
        (stride, count, device)
        for stride, count, device in zip(
            side.stride_map,
            side.device_size,
            [size * _product(side.device_size[i + 1 :]) for i in range(len(side.device_size))],
        )
        if stride > 0 and count > 1
    )
    result = []
    for point in itertools.product(*(range(n) for n in sizes)):
        element = offset + sum(i * s for i, s in zip(point, side.view_strides))
        at = side.address.offsets[core]
        for stride, _, device in reversed(levels):
            at += element // stride * device
            element %= stride
        assert element == 0
        result.append(at)
    return result


def _product(numbers: Any) -> int:
    result = 1
    for n in numbers:
        result *= n
    return result


@pytest.mark.parametrize(
    "rows, columns, splits", [(64, 128, {}), (64, 128, {"out": 2}), (40, 70, {})]
)
def test_restickify_moves_each_element_to_its_place(
    tmp_path, rows: int, columns: int, splits: dict[str, int]
):
    padded = {"mb": 64, "out": 128}
    sizes = {"mb": rows, "out": columns}
    masks = {d: (n, padded[d] - n) for d, n in sizes.items() if n != padded[d]}
    source = ROWS.at(0, gap={"mb": rows - 64} if rows != 64 else {})
    out = T(["out", "mb"], stick="mb", where=1, label="KERNEL", offset=1280,
            gap={"out": columns - 128} if columns != 128 else {})  # fmt: skip
    operation = op("ReStickifyOpHBM", padded, [source], out, splits=splits, masks=masks)
    step = lowered(tmp_path, operation)
    assert isinstance(step, Copy)
    for tensor, side in ((source, step.source_side), (out, step.destination)):
        places = element_bytes(operation, tensor)
        for core, own in enumerate(core_slices(operation)):
            ranges = []
            for dim, size in padded.items():
                each = size // operation.splits[dim]
                first = own[dim] * each
                ranges.append(range(first, min(first + each, sizes[dim])))
            expected = [places[p] for p in itertools.product(*ranges)]
            assert placed_bytes(side, core) == expected


def test_restickify_from_lx_reads_each_core_s_own_part(tmp_path):
    source = ROWS.at(LX, 512)
    out = T(["out", "mb"], stick="mb", where=0, label="KERNEL")
    step = lowered(tmp_path, op("ReStickifyOpHBM", SIZES, [source], out, splits={"mb": 2}))
    assert step.source_side.device_size == (4, 64, 64)
    assert step.source_side.views == ((0, 64, 256),) * 2
    assert step.source_side.address.offsets == (512, 512)
    assert step.destination.views == ((0, 64, 256), (64 * 256, 64, 256))
    assert step.destination.address.offsets == (0, 0)


def test_relayout_takes_slices_from_the_views(tmp_path):
    placed = {
        "placement": {"deviceSize_": [4, 128, 64], "strideMap_": [64, 256, 1],
                      "size_": [128, 256], "stride_": [256, 1]},
        "view": {"stride_": [256, 1], "offset_": 512},
    }  # fmt: skip
    step = lowered(
        tmp_path,
        op("relayout", {"mb": 64, "out": 256}, [ROWS.at(0, **placed)], ROWS.at(1, **placed),
           splits={"mb": 2, "out": 2}),
    )  # fmt: skip
    offsets = [512 + 256 * 32 * m + 128 * n for n in range(2) for m in range(2)]
    assert [v[0] for v in step.source_side.views] == offsets
    assert all(v[1:] == (32, 128) for v in step.source_side.views)


def test_in_lx_a_relayout_takes_each_core_to_its_own_sticks(tmp_path):
    """4 heads of 32 columns, one for each core: two cores have the same stick of a row."""
    rows = {
        "placement": {"deviceSize_": [2, 128, 64], "strideMap_": [64, 128, 1],
                      "size_": [128, 128], "stride_": [128, 1]},
        "view": {"stride_": [32, 128, 1], "offset_": 0},
    }  # fmt: skip
    heads = {
        "placement": {"deviceSize_": [4, 1, 128, 64], "strideMap_": [4096, -1, 32, 1],
                      "size_": [4, 128, 32], "stride_": [4096, 32, 1]},
        "view": {"stride_": [4096, 32, 1], "offset_": 0},
    }  # fmt: skip
    three = T(["mb", "x", "out"])
    step = lowered(
        tmp_path,
        op("relayout", {"mb": 4, "x": 128, "out": 32}, [three.at(LX, 0, **rows)],
           three.at(LX, 1 << 16, **heads), splits={"mb": 4}),
    )  # fmt: skip
    source, out = step.source_side, step.destination
    assert (source.device_size, source.stride_map) == ((128, 64), (128, 1))
    assert source.views == tuple((lane, 1, 128, 32) for lane in (0, 32, 0, 32))
    assert (out.device_size, out.stride_map) == ((128, 64), (32, 1))
    assert out.views == ((0, 1, 128, 32),) * 4
    assert source.address.offsets == (0,) * 4 and out.address.offsets == (1 << 16,) * 4


def test_an_identity_is_a_copy_step_only_when_sticks_do_not_correspond(tmp_path):
    same = op("identity", SIZES, [ROWS.at(0)], ROWS.at(1))
    assert isinstance(lowered(tmp_path / "a", same), Tile)
    scalar = op("identity", SIZES, [T(["mb", "out"], scale={"mb": -1, "out": -2})], ROWS.at(1))
    assert isinstance(lowered(tmp_path / "b", scalar), Tile)
    other = op(
        "identity", SIZES, [ROWS.at(0)], T(["out", "mb"], stick="mb", label="KERNEL", where=1)
    )
    assert isinstance(lowered(tmp_path / "c", other), Copy)
    (operation,) = read_bundle(tmp_path / "c").operations()
    assert is_restickify(operation.sdsc)


# ---- matmul --------------------------------------------------------------------------------------


def matmul(splits: dict[str, int], k: int = 256) -> Op:
    padded = -(-k // 64) * 64
    masks = {"in": (k, padded - k)} if padded != k else {}
    gap = {"in": k - padded} if padded != k else {}
    return op(
        "batchmatmul", {"mb": 128, "out": 512, "in": padded},
        [T(["mb", "in"], stick="in", label="INPUT"),
         T(["in", "out"], label="KERNEL", where=1, gap=gap)],
        T(["mb", "out"], label="OUTPUT", where=2), splits=splits, masks=masks,
    )  # fmt: skip


def test_matmul_of_the_worked_example(tmp_path):
    step = lowered(tmp_path, matmul({"mb": 4, "out": 2}))
    assert step.extents == ((32, 256, 256),) * 8 and step.groups == ()
    assert step.x.strides == (128, 128 * 128)  # rows, sticks of K
    assert step.y.strides == (128, 256 * 128)
    assert step.out.address.offsets == tuple(4096 * (c % 4) + 65536 * (c // 4) for c in range(8))


def test_matmul_with_masked_and_divided_depth(tmp_path):
    step = lowered(tmp_path, matmul({"in": 2}, k=100))
    assert [e[-1] for e in step.extents] == [64, 36]
    assert step.groups == (0, 0)
    assert step.y.strides == (128, 100 * 128)


def test_matmul_without_rows(tmp_path):
    operation = op(
        "batchmatmul", {"out": 128, "in": 128},
        [T(["in"], stick="in", label="INPUT"), T(["in", "out"], label="KERNEL", where=1)],
        T(["out"], label="OUTPUT", where=2), splits={"out": 2},
    )  # fmt: skip
    step = lowered(tmp_path, operation)
    assert step.extents == ((1, 64, 128),) * 2 and step.x.strides == (0, 128)


@pytest.mark.parametrize("n, split, valid", [(32, 1, [32]), (100, 2, [64, 36]), (64, 1, [64])])
def test_matmul_counts_the_valid_columns(tmp_path, n: int, split: int, valid: list[int]):
    padded = -(-n // 64) * 64
    operation = op(
        "batchmatmul", {"mb": 16, "out": padded, "in": 64},
        [T(["mb", "in"], stick="in", label="INPUT"), T(["in", "out"], label="KERNEL", where=1)],
        T(["mb", "out"], label="OUTPUT", where=2), splits={"out": split},
        masks={"out": (n, padded - n)} if padded != n else {},
    )  # fmt: skip
    step = lowered(tmp_path, operation)
    assert [e[-2] for e in step.extents] == valid
    (out,) = [a.region for a in accesses(step, ()) if a.writes]
    assert (out.low, out.high, out.filled) == (0, 16 * padded * 2, 128)


def test_epilogue_of_a_matmul_is_part_of_its_addresses_accesses_time_and_words(tmp_path):
    step = lowered(tmp_path, matmul({"mb": 4, "out": 2}))
    assert isinstance(step, Matmul)
    bias = Operand(
        0, Form.VECTOR, (0, 128), 0, (), Address(Space.ARGUMENT, 3, (0,) * 4 + (512,) * 4)
    )
    load, store, add, exp = (TILE_OPCODES[name] for name in ("load", "store", "add", "exp"))
    code = (
        Instruction(load, 7, 1), Instruction(add, 8, 0, 7), Instruction(exp, 9, 8),
        Instruction(store, 0, 9),
    )  # fmt: skip
    joined = replace(step, operands=(bias,), epilogue=code)
    assert addresses(joined) == (*addresses(step), bias.address)
    moved = tuple(replace(a, argument=a.argument + 1) for a in addresses(joined))
    assert addresses(with_addresses(joined, moved)) == moved

    uses = {(a.operand, a.writes): a.region for a in accesses(joined, ())}
    assert uses[0, True] == next(a.region for a in accesses(step, ()) if a.writes)
    assert (uses[1, False].low, uses[1, False].high, uses[1, False].filled) == (0, 1024, 128)
    assert not any(a.writes for a in accesses(replace(joined, epilogue=code[:-1]), ()))

    writer = ProgramWriter()
    writer.add(joined)
    (read,) = read_program(writer.bytes())
    assert isinstance(read, Matmul)
    assert read.operands == (bias,) and read.extents == joined.extents
    # The sums are in register 0, which is free again after the addition.
    assert read.epilogue == (
        Instruction(load, 1, 1), Instruction(add, 0, 0, 1), Instruction(exp, 0, 0),
        Instruction(store, 0, 0),
    )  # fmt: skip
    text = disassemble([joined])
    assert "@1 SEN169_FP16 strides [0, 128] arg 3" in text and "r8 = add r0, r7" in text


def test_an_epilogue_with_too_many_registers_is_refused(tmp_path):
    step = lowered(tmp_path, matmul({}))
    constant, add, store = (TILE_OPCODES[name] for name in ("constant", "add", "store"))
    values = [Instruction(constant, r) for r in range(1, 40)]
    sums = [Instruction(add, 40, 0, 1)]
    sums += [Instruction(add, 39 + r, 38 + r, r) for r in range(2, 40)]
    code = (*values, *sums, Instruction(store, 0, sums[-1].destination))
    with pytest.raises(ProgramError, match="found 40 registers in use, allowed: 32"):
        ProgramWriter().add(replace(step, epilogue=code))


def test_fp8_products_count_elements_of_the_result(tmp_path):
    step = lowered(tmp_path, example("batchmatmulfp8"))
    assert step.extents == ((32, 128, 128),)
    assert step.y.format == 3 and step.out.format == 0


# ---- gather and topk -----------------------------------------------------------------------------


def gather(splits: dict[str, int]) -> Op:
    index = T(["mb", "out"], INT32, stick="mb", scale={"out": -1}, label="KERNEL_IDX", where=0,
              indirection="index_tensor")  # fmt: skip
    value = T(["mb", "out"], where=1, indirection="value_tensor", gap={"mb": 1000 - 64})
    sizes = {"mb": 64, "out": 128}
    return op("identity", sizes, [value], ROWS.at(2), splits=splits, index=index)


def test_gather_of_rows(tmp_path):
    step = lowered(tmp_path, gather({"mb": 8}))
    assert isinstance(step, Gather)
    assert step.extents == ((2, 8),) * 8  # sticks, rows
    assert (step.rows, step.row_stride) == (1000, 128)
    assert step.value.strides == (1000 * 128, 0)
    assert step.value.address.offsets == (0,) * 8
    assert (step.stick_dim, step.stick_stride) == (1, 128)
    assert step.first_index == tuple(range(0, 64, 8))
    assert step.index.address.offsets == (0,) * 8 and step.index.strides == (0, 0)
    assert step.out.strides == (64 * 128, 128)


def test_gather_is_for_copies_only(tmp_path):
    operation = gather({})
    add = op("abs", operation.sizes, operation.inputs, operation.output, index=operation.index)
    with pytest.raises(BundleError, match="indirectAccessIndexLabeledDs: found an indirect abs"):
        lowered(tmp_path, add)


def test_topk_by_a_dimension_of_its_own_or_a_shorter_one(tmp_path):
    own = example("topkvalue")
    step = lowered(tmp_path / "a", own)
    assert (step.count, step.k, step.extents) == (16, 4, ((1,),))
    assert step.input.strides == (16 * 128, 128) and step.output.strides == (4 * 128, 128)
    shorter = op(
        "topkindex", {"mb": 16, "out": 64}, [ROWS.at(0, label="KERNEL")],
        ROWS.at(1, fmt=INT32, gap={"mb": -12}),
    )  # fmt: skip
    step = lowered(tmp_path / "b", shorter)
    assert (step.count, step.k, step.indices, step.lanes) == (16, 4, True, 64)
    assert step.output.sub_stride == 4 * 128


def test_topk_along_the_stick_asks_for_a_restickify(tmp_path):
    operation = op(
        "topkvalue", {"mb": 16, "x": 4, "out": 64},
        [T(["mb", "out", "x"], scale={"x": -1}, label="KERNEL")],
        T(["mb", "x", "out"], stick="x", scale={"out": -1}, gap={"x": 60}, where=1),
    )  # fmt: skip
    with pytest.raises(BundleError, match=r"sdsc_0.json: topkvalue.*restickify first"):
        lowered(tmp_path, operation)


# ---- common --------------------------------------------------------------------------------------


def test_equal_operations_are_lowered_once(tmp_path):
    operations = [op("tanh", SIZES, [ROWS.at(i)], ROWS.at(i + 1)) for i in range(5)]
    bundle = read_bundle(write_bundle(tmp_path, operations))
    lower_sdsc.cache_clear()
    steps = [lower(operation) for operation in bundle.operations()]
    assert lower_sdsc.cache_info().misses == 1
    assert [s.operands[1].address.argument for s in steps] == [1, 2, 3, 4, 5]
    assert [s.name for s in steps] == [f"{i}_tanh" for i in range(5)]


def test_loops_surround_their_steps(tmp_path):
    tile = {"gap": {"mb": 96}, "loop_strides": (32 * 128,)}
    body = op("exp", {"mb": 32, "out": 256}, [ROWS.at(0, **tile)], ROWS.at(1, **tile))
    bundle = read_bundle(write_bundle(tmp_path, [Repeat(4, [body])]))
    begin, step, end = steps_of(bundle)
    assert (begin, end) == (LoopBegin(4), LoopEnd())
    assert step.operands[0].address.loop_strides == (4096,)
    writer = ProgramWriter()
    writer.add_all([begin, step, end])
    read = read_program(writer.bytes())
    assert read[0] == LoopBegin(4) and read[1].operands == step.operands
