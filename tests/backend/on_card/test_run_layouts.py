"""Broadcasts, slices, orders of axes and copies across sticks, on the card."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from tests.support.make_bundle import FP16, FP32, INT32, Op, T, op
from tests.support.run_bundle import run
from tests.support.values import ROWS, SPARSE, compare, sticks, values


def test_broadcast_of_rows_columns_and_scalars(tmp_path):
    x, row = values((32, 128)), values((128,))
    column, scalar = values((32,)), values((1,))
    sizes = {"mb": 32, "out": 128}
    operations = [
        op("add", sizes, [ROWS.at(0), T(["out", "mb"], scale={"mb": -1}, where=1)], ROWS.at(4),
           splits={"mb": 2, "out": 2}),
        op("mul", sizes, [ROWS.at(4), SPARSE.at(2)], ROWS.at(4), splits={"mb": 2, "out": 2}),
        op("sub", sizes, [ROWS.at(4), T(["mb", "out"], scale={"mb": -1, "out": -2}, where=3)],
           ROWS.at(4), splits={"mb": 2, "out": 2}),
    ]  # fmt: skip
    expected = (x.float() + row.float()) * column.float()[:, None] - scalar.float()
    for fuse in (True, False):
        found = run(
            tmp_path / str(fuse), operations, x, row, column, scalar.reshape(()), x * 0, fuse=fuse
        )
        compare(found[4], expected, 8e-3)


def test_a_slice_of_rows_is_copied_into_a_slice(tmp_path):
    x = values((128, 128))
    target = torch.zeros((96, 128)).half()
    # Rows 32..63 of the source go to rows 16..47 of the target.
    source = ROWS.at(0, 32 * 128, gap={"mb": 96})
    out = ROWS.at(1, 16 * 128, gap={"mb": 64})
    operation = op("identity", {"mb": 32, "out": 128}, [source], out, splits={"mb": 4})
    expected = target.clone()
    expected[16:48] = x[32:64]
    compare(run(tmp_path, [operation], x, target)[1], expected, 0)


@pytest.mark.parametrize("order", list(itertools.permutations(["mb", "x", "out"])))
def test_every_order_of_axes(tmp_path, order: tuple[str, ...]):
    a, b = values((4, 6, 128)), values((4, 6, 128))
    sizes = {"mb": 4, "x": 6, "out": 128}
    tensors = [
        T(["mb", "x", "out"], where=0),
        T(list(order), where=1),
        T(["x", "out", "mb"], where=2),
    ]
    operation = op("add", sizes, tensors[:2], tensors[2], splits={"mb": 2, "x": 3, "out": 2})
    compare(run(tmp_path, [operation], a, b, a * 0)[2], a.float() + b.float())


@pytest.mark.parametrize("rows, columns", [(128, 256), (100, 70), (64, 64), (3, 200), (200, 3)])
@pytest.mark.parametrize("fmt", [FP16, FP32, INT32])
def test_restickify(tmp_path, rows: int, columns: int, fmt: str):
    x = values((rows, columns), fmt)
    padded = {"mb": sticks(rows, fmt), "out": sticks(columns, fmt)}
    source_gap = {"mb": rows - padded["mb"]} if rows != padded["mb"] else {}
    out_gap = {"out": columns - padded["out"]} if columns != padded["out"] else {}
    masks = {}
    for dim, size in (("mb", rows), ("out", columns)):
        if size != padded[dim]:
            masks[dim] = (size, padded[dim] - size)
    splits = {"mb": 2} if rows == 128 else {}
    source = ROWS.at(0, fmt=fmt, gap=source_gap)
    out = T(["out", "mb"], fmt, stick="mb", gap=out_gap, where=1, label="KERNEL")
    operation = op("ReStickifyOpHBM", padded, [source], out, masks=masks, splits=splits)
    assert torch.equal(run(tmp_path, [operation], x, x * 0)[1], x)


def test_identity_to_another_stick_is_a_restickify(tmp_path):
    x = values((128, 64))
    out = T(["out", "mb"], stick="mb", where=1, label="KERNEL")
    operation = op("identity", {"mb": 128, "out": 64}, [ROWS.at(0)], out, splits={"mb": 2})
    assert torch.equal(run(tmp_path, [operation], x, x * 0)[1], x)


def test_one_element_per_stick_becomes_a_dense_row(tmp_path):
    x = values((128,))
    source = T(["mb", "out"], scale={"out": -2}, where=0)
    out = T(["mb", "out"], stick="mb", scale={"out": -1}, where=1, label="KERNEL")
    operation = op("ReStickifyOpHBM", {"mb": 128, "out": 1}, [source], out, splits={"mb": 2})
    assert torch.equal(run(tmp_path, [operation], x, x * 0)[1], x)


def test_relayout_of_a_transposed_view(tmp_path):
    x = values((100, 70))
    source = ROWS.at(
        0,
        placement={"deviceSize_": [2, 100, 64], "strideMap_": [64, 70, 1], "size_": [100, 70],
                   "stride_": [70, 1]},
        view={"stride_": [1, 70], "offset_": 70 * 4},
        gap={"mb": 30, "out": 32},
    )  # fmt: skip
    out = ROWS.at(
        1,
        placement={"deviceSize_": [2, 70, 64], "strideMap_": [64, 96, 1], "size_": [70, 96],
                   "stride_": [96, 1]},
        view={"stride_": [96, 1], "offset_": 0},
        gap={"out": 32},
    )  # fmt: skip
    operation = op("relayout", {"mb": 70, "out": 96}, [source], out, splits={"mb": 7})
    # The view: rows 4 to 99 of x, transposed. Layouts are those of the placements.
    found = run_relayout(tmp_path, operation, x, torch.zeros((70, 96)).half())
    assert torch.equal(found, x[4:].T)


def run_relayout(path: Path, operation: Op, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    import torch_spyre._C as _C
    from tests.support.make_bundle import write_bundle
    from torch_spyre.backend import compile_bundle

    write_bundle(path, [operation])
    plan = _C.prepare_kernel(str(compile_bundle(path)))
    arguments = [x.to("spyre"), out.to("spyre")]
    _C.launch_jobplan(plan, arguments)
    return arguments[1].cpu()
