"""Rows by index, and the indices of the largest: gather, scatter and top k on the card."""

from __future__ import annotations

import pytest
import torch

from tests.support.make_bundle import FP16, INT32, UINT32, T, op
from tests.support.run_bundle import run
from tests.support.values import DTYPES, ROWS, compare, sticks, values
from torch_spyre.opfuncs import OPFUNCS


@pytest.mark.parametrize(
    ("count", "split"),
    [(count, split) for count in (32, 100, 40) for split in (1, 4, 20) if count % split == 0],
)
def test_gather_of_rows(tmp_path, count: int, split: int):
    table = values((50, 128))
    index = torch.randint(-50, 50, (count,), dtype=torch.int32)
    sizes = {"mb": count, "out": 128}
    pad = sticks(count, INT32) - count
    rows = T(["mb", "out"], INT32, stick="mb", scale={"out": -1}, label="KERNEL_IDX", where=0,
             indirection="index_tensor", gap={"mb": pad} if pad else {})  # fmt: skip
    value = T(["mb", "out"], where=1, indirection="value_tensor", gap={"mb": 50 - count})
    operation = op("identity", sizes, [value], ROWS.at(2), splits={"mb": split}, index=rows)
    found = run(tmp_path, [operation], index, table, torch.zeros((count, 128)).half())[2]
    assert torch.equal(found, table[index.long()])


@pytest.mark.parametrize(("count", "split"), [(1, 1), (5, 1), (40, 1), (32, 4)])
def test_scatter_of_rows(tmp_path, count: int, split: int):
    table, rows = values((50, 128)), values((count, 128))
    index = torch.randperm(50, generator=torch.Generator().manual_seed(2))[:count].int()
    pad = sticks(count, INT32) - count
    places = T(["mb", "out"], INT32, stick="mb", scale={"out": -1}, label="KERNEL_IDX", where=0,
               indirection="index_tensor", gap={"mb": pad} if pad else {})  # fmt: skip
    target = T(["mb", "out"], where=2, indirection="value_tensor", gap={"mb": 50 - count})
    sizes = {"mb": count, "out": 128}
    operation = op("identity", sizes, [ROWS.at(1)], target, splits={"mb": split}, index=places)
    found = run(tmp_path, [operation], index, rows, table)[2]
    expected = table.clone()
    expected[index.long()] = rows
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", ["topkvalue", "topkindex"])
@pytest.mark.parametrize("columns", [64, 100])
def test_topk_along_rows(tmp_path, name: str, columns: int):
    x = values((40, columns))
    fmt = FP16 if name == "topkvalue" else INT32
    sizes = {"mb": 40, "x": 3, "out": 128 if columns > 64 else 64}
    source = T(["mb", "out", "x"], scale={"x": -1}, where=0, label="KERNEL")
    out = T(["x", "out", "mb"], fmt, scale={"mb": -1}, where=1)
    operation = op(name, sizes, [source], out)
    found = run(tmp_path, [operation], x, torch.zeros((3, columns), dtype=DTYPES[fmt]))[1]
    expected = OPFUNCS[name].reference(torch, x.float(), 3, 0)
    compare(found, expected, 0)


def test_unused_formats_of_index_tensors_are_accepted(tmp_path):
    """Gather indices are SENUINT32 in files of the documented front-end."""
    table = values((8, 64))
    index = torch.tensor([3, 1, 2, 0] * 8, dtype=torch.int32)
    rows = T(["mb", "out"], UINT32, stick="mb", scale={"out": -1}, label="KERNEL_IDX",
             indirection="index_tensor", where=0)  # fmt: skip
    value = T(["mb", "out"], where=1, indirection="value_tensor", gap={"mb": 8 - 32})
    operation = op("identity", {"mb": 32, "out": 64}, [value], ROWS.at(2), index=rows)
    found = run(tmp_path, [operation], index, table, torch.zeros((32, 64)).half())[2]
    assert torch.equal(found, table[index.long()])
