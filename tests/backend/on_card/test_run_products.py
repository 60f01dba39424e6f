"""Matrix products on the card, compared with CPU PyTorch in float32."""

from __future__ import annotations

import pytest
import torch

from tests.support.make_bundle import FP8, FP16, FP32, T, op
from tests.support.run_bundle import run
from tests.support.values import compare, sticks, values

X = T(["mb", "in"], stick="in", label="INPUT")
Y = T(["in", "out"], label="KERNEL", where=1, host=["in", "out"])
Z = T(["mb", "out"], label="OUTPUT", where=2)


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.double() @ y.double()


@pytest.mark.parametrize(
    "splits", [{}, {"mb": 4, "out": 2}, {"in": 2}, {"mb": 2, "out": 2, "in": 2}]
)
@pytest.mark.parametrize("m, k, n", [(128, 256, 512), (32, 128, 128)])
def test_matmul(tmp_path, splits: dict[str, int], m: int, k: int, n: int):
    x, y = values((m, k)), values((k, n))
    operation = op("batchmatmul", {"mb": m, "out": n, "in": k}, [X, Y], Z, splits=splits)
    found = run(tmp_path, [operation], x, y, torch.zeros((m, n)).half())[2]
    compare(found / k**0.5, product(x, y) / k**0.5, 4e-3)


@pytest.mark.parametrize("k", [1, 70, 100, 190])
@pytest.mark.parametrize("fmt", [FP16, FP32])
def test_matmul_with_a_padded_depth(tmp_path, k: int, fmt: str):
    x, y = values((16, k), fmt), values((k, 128), fmt)
    padded = sticks(k, fmt)
    masks = {"in": (k, padded - k)} if padded != k else {}
    short = {"in": k - padded} if padded != k else {}
    tensors = [t.at(i, fmt=fmt) for i, t in enumerate((X, Y.at(1, gap=short), Z))]
    tensors[1] = tensors[1].at(1, gap=short)
    splits = {"mb": 2, "in": 2} if padded % 128 == 0 else {"mb": 2}
    operation = op(
        "batchmatmul", {"mb": 16, "out": 128, "in": padded}, tensors[:2], tensors[2],
        splits=splits, masks=masks,
    )  # fmt: skip
    found = run(tmp_path, [operation], x, y, torch.zeros((16, 128), dtype=x.dtype))[2]
    compare(found, product(x, y), 8e-3 if fmt == FP16 else 1e-4)


@pytest.mark.parametrize("n, split", [(1, 1), (32, 1), (100, 2)])
@pytest.mark.parametrize("rows", [1, 4, 40])
def test_matmul_with_padded_columns(tmp_path, n: int, split: int, rows: int):
    x, y = values((rows, 128)), values((128, n))
    padded = sticks(n)
    operation = op(
        "batchmatmul", {"mb": rows, "out": padded, "in": 128}, [X, Y], Z,
        splits={"out": split}, masks={"out": (n, padded - n)},
    )  # fmt: skip
    found = run(tmp_path, [operation], x, y, torch.zeros((rows, n)).half())[2]
    compare(found / 11, product(x, y) / 11)


def test_batches_and_a_shared_weight(tmp_path):
    x, y, w = values((3, 8, 128)), values((3, 128, 64)), values((128, 64))
    sizes = {"x": 3, "mb": 8, "out": 64, "in": 128}
    bx = T(["mb", "in", "x"], stick="in", label="INPUT", where=0)
    by = T(["in", "out", "x"], label="KERNEL", where=1, host=["x", "in", "out"])
    bz = T(["mb", "x", "out"], label="OUTPUT", where=3)
    shared = T(["in", "out", "x"], scale={"x": -1}, label="KERNEL", where=2, host=["in", "out"])
    operations = [
        op("batchmatmul", sizes, [bx, by], bz, splits={"x": 3, "mb": 2}),
        op("batchmatmul", sizes, [bx, shared], bz.at(4), splits={"x": 3, "mb": 2}),
    ]
    blank = torch.zeros((3, 8, 64)).half()
    found = run(tmp_path, operations, x, y, w, blank, blank)
    compare(found[3] / 11, product(x, y) / 11)
    compare(found[4] / 11, product(x, w) / 11)


def test_fp8_matmul(tmp_path):
    x = (values((16, 256)) / 2).to(torch.float8_e4m3fn)
    y = (values((256, 256)) / 2).to(torch.float8_e4m3fn)
    operation = op(
        "batchmatmulfp8", {"mb": 16, "out": 256, "in": 256},
        [X.at(0, fmt=FP8), Y.at(1, fmt=FP8)], Z, splits={"mb": 4},
    )  # fmt: skip
    found = run(tmp_path, [operation], x, y, torch.zeros((16, 256)).half())[2]
    compare(found, product(x.float(), y.float()), 8e-3)
