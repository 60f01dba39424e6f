"""Operations that are well written and make no sense: formats, sticks, slices, layouts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.broken_bundles import refusal
from tests.support.make_bundle import FP32, INT32, LX, T, op, write_bundle

SIZES = {"mb": 128, "out": 256}
ROWS = T(["mb", "out"])
SPARSE = T(["mb", "out"], scale={"out": -2})
MATMUL = {"mb": 128, "out": 256, "in": 128}
X = T(["mb", "in"], stick="in", label="INPUT")
Y = T(["in", "out"], label="KERNEL")
Z = T(["mb", "out", "in"], scale={"in": -1}, label="OUTPUT")
PLACED = {
    "placement": {"deviceSize_": [4, 128, 64], "strideMap_": [64, 256, 1], "size_": [128, 256],
                  "stride_": [256, 1]},
    "view": {"stride_": [256, 1], "offset_": 0},
}  # fmt: skip


@pytest.mark.parametrize(
    "operation, parts",
    [
        (op("add", SIZES, [ROWS.at(0), ROWS.at(1, fmt=INT32, label="KERNEL")], ROWS.at(2)),
         ["labeledDs_[1].dataFormat_", "IEEE_INT32 beside SEN169_FP16", "integers or floats"]),
        (op("realdiv", SIZES, [ROWS.at(i, fmt=INT32) for i in range(2)], ROWS.at(2, fmt=INT32)),
         ["realdiv on IEEE_INT32"]),
        (op("dl16tofp32", SIZES, [ROWS.at(0)], ROWS.at(1)),
         ["labeledDs_[1].dataFormat_", "a result of dl16tofp32 in SEN169_FP16", "IEEE_FP32"]),
        (op("add", SIZES, [ROWS.at(0), ROWS.at(1)], ROWS.at(2, fmt=INT32, label="KERNEL")),
         ["a result of add in IEEE_INT32", "float"]),
        (op("identity", SIZES, [ROWS.at(0)], ROWS.at(1, fmt=FP32, label="KERNEL")),
         ["identity from SEN169_FP16 to IEEE_FP32", "same size"]),
        (op("clip", SIZES, [ROWS.at(0)], ROWS.at(1), constants={"clipMin": 0.0}),
         ["constantInfo_", "constants clipMin", "clipMin, clipMax for clip"]),
        (op("exx2", SIZES, [ROWS.at(0)], SPARSE.at(1),
            constants={"exx2scale": 1.0, "useZeroMean": 1.0}), ["useZeroMean = 1.0", "0"]),
        (op("exx2nonstick", SIZES, [ROWS.at(0)], T(["out", "mb"], scale={"mb": -1}, where=1),
            constants={"exx2scale": 1.0, "useZeroMean": 0.0}), ["exx2 over the stick"]),
        (op("sumnonstick", SIZES, [ROWS.at(0)], SPARSE.at(1)), ["the stick is reduced"]),
        (op("sumnonstick", SIZES, [ROWS.at(0)], ROWS.at(1)), ["no reduced dimension"]),
        (op("add", SIZES, [ROWS.at(0), T(["out", "mb"], stick="mb", label="KERNEL", where=1)],
            ROWS.at(2)), ["KERNEL.stickDimOrder_", "mb, but Tensor0 has its sticks along out"]),
        (op("add", SIZES, [ROWS.at(0), T(["out", "mb"], stick="mb", label="KERNEL", where=1,
                                         scale={"mb": -2})], ROWS.at(2)),
         ["labeledDs_[1].scale_", "1 for out of Tensor1, which has one element per stick"]),
        (op("add", {"mb": 128, "out": 192}, [ROWS.at(0), ROWS.at(1)], ROWS.at(2),
            splits={"out": 6}),
         ["numWkSlicesPerDim_.out", "6 slices of 32 elements", "whole sticks of 64"]),
        (op("exp", SIZES, [ROWS.at(0)], ROWS.at(LX, (2 << 20) - 1024), splits={"mb": 4}),
         ["scheduleTree_[1]", "with 16384 bytes", "2097152, the end of the scratchpad"]),
        (op("relayout", SIZES, [ROWS.at(0)], ROWS.at(1, **PLACED)),
         ["scheduleTree_[0].placement_", "found nothing"]),
        (op("relayout", SIZES, [ROWS.at(0, **PLACED)],
            ROWS.at(1, **{**PLACED, "view": {"stride_": [1], "offset_": 0}})),
         ["view_.stride_", "1 entries"]),
        (op("relayout", SIZES, [ROWS.at(0, **PLACED)],
            ROWS.at(LX, **{**PLACED, "view": {"stride_": [256, 1], "offset_": 64}})),
         ["scheduleTree_[1].component_", "found lx", "hbm, or a view of the whole tensor"]),
        (op("batchmatmul", MATMUL, [X.at(0), Y.at(1, label="OUTPUT")], Y.at(2, label="KERNEL")),
         ["labeledDs_[1].dsType_", "OUTPUT", "KERNEL at this place"]),
        (op("batchmatmul", MATMUL, [T(["in", "mb"], stick="mb", label="INPUT"), Y.at(1)], Z.at(2)),
         ["primaryDsInfo_.INPUT.stickDimOrder_", "mb with scale 1", "the stick in"]),
        (op("batchmatmul", MATMUL, [X.at(0), Y.at(1)],
            T(["out", "mb", "in"], scale={"in": -1, "mb": -1}, label="OUTPUT", where=2)),
         ["labeledDs_[2].scale_", "-1 for mb"]),
        (op("batchmatmul", {**MATMUL, "in": 128}, [X.at(0), Y.at(1, gap={"in": -28})], Z.at(2)),
         ["backGapCore_.in", "Tensor1 has 100 of 128 indices", "masked"]),
    ],
)  # fmt: skip
def test_operations_that_make_no_sense(tmp_path, operation: Any, parts: list[str]):
    write_bundle(tmp_path, [operation])
    message = refusal(tmp_path)
    for part in parts:
        assert part in message, message
