"""Reductions and layer normalisation on the card, compared with CPU PyTorch in float32."""

from __future__ import annotations

import math

import pytest
import torch

from tests.support.make_bundle import FP16, FP32, POOL, Op, T, op
from tests.support.run_bundle import run
from tests.support.values import ROWS, SPARSE, compare, sticks, values
from torch_spyre.opfuncs import OPFUNCS

EXX2 = {"exx2scale": 1.0, "useZeroMean": 0.0}


REDUCTIONS = ["sum", "max", "min", "mean", "prod"]
IDENTITY = {"max": 0xFFFE, "min": 0x7FFE}


def reduce_reference(name: str, x: torch.Tensor, dims: list[int]) -> torch.Tensor:
    if name == "prod":
        for dim in sorted(dims, reverse=True):
            x = x.prod(dim)
        return x
    return OPFUNCS[name].reference(torch, x, dims, False)


def reduction(
    name: str, columns: int, splits: dict[str, int], fmt: str = FP16, arrangement: str = "STANDARD"
) -> Op:
    padded = {"mb": 32, "out": sticks(columns, FP16 if arrangement != "STANDARD" else fmt)}
    masks, constants = {}, {}
    if name == "mean":
        constants["scaling_factor"] = 1 / columns
    if padded["out"] != columns:
        masks = {"out": (columns, padded["out"] - columns)}
        identity = {"max": -math.inf, "min": math.inf}.get(name, 0.0)
        constants["samv-maskvalue"] = identity if fmt == FP32 else (FP16, IDENTITY.get(name, 0))
    source = ROWS.at(0, fmt=fmt, arrangement=arrangement)
    out = SPARSE.at(1, fmt=fmt)
    return op(name, padded, [source], out, splits=splits, masks=masks, constants=constants)


@pytest.mark.parametrize("columns", [64, 100, 256, 300])
@pytest.mark.parametrize("fmt", [FP16, FP32])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduction_over_the_stick(tmp_path, name: str, fmt: str, columns: int):
    x = values((32, columns), fmt, "one" if name == "prod" else "any")
    out = torch.zeros(32, dtype=x.dtype)
    found = run(tmp_path, [reduction(name, columns, {"mb": 4}, fmt)], x, out)[1]
    compare(found, reduce_reference(name, x.float(), [1]), 8e-3 if fmt == FP16 else 2e-5)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduction_over_a_stick_that_cores_divide(tmp_path, name: str):
    x = values((32, 250), FP16, "one" if name == "prod" else "any")
    out = torch.zeros(32).half()
    found = run(tmp_path, [reduction(name, 250, {"mb": 2, "out": 4})], x, out)[1]
    compare(found, reduce_reference(name, x.float(), [1]), 8e-3)


@pytest.mark.parametrize("name", ["sum", "max"])
@pytest.mark.parametrize("columns", [64, 70, 100, 130])
def test_reduction_of_arranged_float32(tmp_path, name: str, columns: int):
    x = values((32, columns), FP32)
    operation = reduction(name, columns, {"mb": 4}, FP32, "DL16_TO_FP32")
    found = run(tmp_path, [operation], x, torch.zeros(32))[1]
    compare(found, reduce_reference(name, x, [1]), 1e-5)


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("splits", [{}, {"out": 2}, {"mb": 4}, {"mb": 4, "out": 2}])
def test_reduction_over_rows(tmp_path, name: str, splits: dict[str, int]):
    x = values((32, 100), FP16, "one" if name == "prod" else "any")
    out = T(["out", "mb"], scale={"mb": -1}, where=1)
    constants = {"scaling_factor": 1 / 32} if name == "mean" else {}
    operation = op(
        name + "nonstick", {"mb": 32, "out": 128}, [ROWS.at(0)], out, splits=splits,
        constants=constants,
    )  # fmt: skip
    found = run(tmp_path, [operation], x, torch.zeros(100).half())[1]
    compare(found, reduce_reference(name, x.float(), [0]), 8e-3)


def test_reduction_over_several_dimensions(tmp_path):
    x = values((4, 6, 128))
    sizes = {"mb": 4, "x": 6, "out": 128}
    source = T(["mb", "x", "out"], where=0)
    rows = T(["x", "mb", "out"], scale={"mb": -1, "out": -2}, where=1)
    everything = T(["mb", "x", "out"], scale={"mb": -1, "x": -1, "out": -2}, where=2)
    operations = [
        op("sum", sizes, [source], rows, splits={"mb": 2, "x": 3}),
        op("sum", sizes, [source], everything, splits={"mb": 2, "out": 2}),
    ]
    found = run(tmp_path, operations, x, torch.zeros(6).half(), torch.zeros(()).half())
    compare(found[1], x.float().sum((0, 2)), 8e-3)
    compare(found[2], x.float().sum(), 8e-3)


@pytest.mark.parametrize("name", ["max", "min"])
def test_nan_goes_on_through_a_reduction(tmp_path, name: str):
    x = values((32, 100))
    x[3, 99] = math.nan
    found = run(tmp_path, [reduction(name, 100, {"mb": 4})], x, torch.zeros(32).half())[1]
    assert found[3].isnan() and found.isnan().sum() == 1


@pytest.mark.parametrize("inputs", [3, 4, 5])
@pytest.mark.parametrize("columns", [128, 100])
@pytest.mark.parametrize("fuse", [True, False])
def test_layer_normalisation(tmp_path, inputs: int, columns: int, fuse: bool):
    x, weight, bias = values((32, columns)), values((columns,)), values((columns,))
    padded = {"mb": 32, "out": sticks(columns)}
    mask = {"out": (columns, padded["out"] - columns)} if columns % 64 else {}
    constants = dict(EXX2) | ({"samv-maskvalue": (FP16, 0)} if mask else {})
    moments = SPARSE.at(POOL, arrangement="EXX2")
    scale = T(["mb", "out"], where=POOL, offset=32 * 128)
    vector = T(["out", "mb"], scale={"mb": -1})
    arguments = [ROWS.at(0), moments, SPARSE.at(POOL, 32 * 128), vector.at(1), vector.at(2)]
    operations = [
        op("exx2", padded, [ROWS.at(0)], moments, splits={"mb": 4}, masks=mask,
           constants=constants),
        op("layernormscale", {"mb": 32, "out": 64}, [moments], scale, splits={"mb": 4},
           constants={"eps": 1e-5}),
        op("layernormnorm", padded, arguments[:inputs], ROWS.at(inputs - 2), splits={"mb": 4}),
    ]  # fmt: skip
    hosts = [x, weight, bias][: inputs - 2]
    found = run(tmp_path, operations, *hosts, x * 0, fuse=fuse)[-1]
    expected = torch.nn.functional.layer_norm(
        x.float(), (columns,), weight.float() if inputs > 3 else None,
        bias.float() if inputs > 4 else None,
    )  # fmt: skip
    compare(found, expected, 8e-3)
