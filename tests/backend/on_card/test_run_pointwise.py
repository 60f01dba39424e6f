"""Every row of the OpFunc table on the card: pointwise operations, casts, comparisons."""

from __future__ import annotations

import pytest
import torch

from tests.support.make_bundle import FP8, FP16, FP32, INT32, T, op
from tests.support.run_bundle import run
from tests.support.values import DTYPES, ROWS, TOLERANCE, compare, on_card, sticks, values
from torch_spyre.opfuncs import OPFUNCS

POINTWISE = [
    (row.name, fmt)
    for row in OPFUNCS.values()
    for fmt in row.formats
    if row.kind == "pointwise" and row.reference is not None and fmt in DTYPES
]
CONSTANTS = {"clipMin": -0.5, "clipMax": 0.75, "softplusBeta": 2.0, "softplusThresh": 3.0}


@pytest.mark.parametrize("name, fmt", POINTWISE)
def test_pointwise(tmp_path, name: str, fmt: str):
    row = OPFUNCS[name]
    size = {"mb": 32, "out": 100}
    padded = {"mb": 32, "out": 128}
    result = FP16 if row.result == "bool" else fmt
    hosts, inputs = [], []
    for position in range(row.arity):
        own = FP16 if name == "where3" and position == 0 else fmt
        domain = row.domain
        if name == "where3":
            domain = "bool" if position == 0 else "any"
        hosts.append(values(tuple(size.values()), own, domain))
        inputs.append(ROWS.at(position, fmt=own, label="OUTPUT" if own == result else "KERNEL"))
    out = torch.zeros(tuple(size.values()), dtype=DTYPES[result])
    operation = op(
        name, padded, inputs, ROWS.at(row.arity, fmt=result), splits={"mb": 4},
        constants={c: CONSTANTS[c] for c in row.constants},
    )  # fmt: skip
    found = run(tmp_path, [operation], *hosts, out)[-1]
    wide = [h if h.dtype == torch.int32 else h.float() for h in hosts]
    expected = row.reference(torch, *wide, **{c: CONSTANTS[c] for c in row.constants})
    compare(found, expected, TOLERANCE[fmt] if fmt != FP16 else 4e-3)


CASTS = [
    ("dl16tofp32", FP16, FP32),
    ("fp32todl16", FP32, FP16),
    ("int32tofp", INT32, FP32),
    ("int32tofp", INT32, FP16),
    ("fptoint32", FP32, INT32),
    ("fptoint32", FP16, INT32),
]


@pytest.mark.parametrize("columns", [64, 70, 100, 256])
@pytest.mark.parametrize("name, source, target", CASTS)
def test_casts_at_any_width(tmp_path, name: str, source: str, target: str, columns: int):
    x = on_card(values((16, columns), source) * 3)
    padded = {"mb": 16, "out": -(-columns // 64) * 64}

    def tensor(fmt: str, where: int) -> T:
        short = sticks(columns, fmt) - padded["out"]
        label = "OUTPUT" if fmt == target else "KERNEL"
        return ROWS.at(where, fmt=fmt, label=label, gap={"out": short} if short else {})

    operation = op(name, padded, [tensor(source, 0)], tensor(target, 1), splits={"mb": 2})
    out = torch.zeros((16, columns), dtype=DTYPES[target])
    found = run(tmp_path, [operation], x, out)[1]
    compare(found, x.to(DTYPES[target]), 2e-3)


@pytest.mark.parametrize("columns", [64, 100, 192])
def test_casts_with_the_arrangement_of_the_card(tmp_path, columns: int):
    padded = {"mb": 8, "out": sticks(columns)}
    x = values((8, columns))
    wide = ROWS.at(1, fmt=FP32, arrangement="DL16_TO_FP32", label="KERNEL")
    squared = ROWS.at(2, fmt=FP32, arrangement="DL16_TO_FP32")
    operations = [
        op("dl16tofp32", padded, [ROWS.at(0)], wide, splits={"mb": 2}),
        op("mul", padded, [wide.at(1, label="OUTPUT")] * 2, squared, splits={"mb": 2}),
        op("fp32todl16", padded, [squared.at(2, label="KERNEL")], ROWS.at(3), splits={"mb": 2}),
    ]
    blanks = [torch.zeros((8, columns)), torch.zeros((8, columns)), torch.zeros_like(x)]
    for fuse in (True, False):
        _, cast, square, back = run(tmp_path / str(fuse), operations, x, *blanks, fuse=fuse)
        compare(cast, x, 0)
        compare(square, x.float() ** 2, 0)
        compare(back, x.float() ** 2)


@pytest.mark.parametrize("columns", [40, 64, 70, 96, 100])
def test_comparison_of_float32_and_choice_by_it(tmp_path, columns: int):
    x, y = values((8, columns), FP32), values((8, columns), FP32)
    chosen = sticks(columns, FP32)
    wide = sticks(columns)
    f32 = ROWS.at(0, fmt=FP32, label="KERNEL")
    short = {"out": chosen - wide} if chosen != wide else {}
    longer = {"out": wide - chosen} if chosen != wide else {}
    operations = [
        op("lesserthan", {"mb": 8, "out": wide},
           [f32.at(0, gap=short), f32.at(1, gap=short)], ROWS.at(2), splits={"mb": 2}),
        op("where3", {"mb": 8, "out": chosen},
           [ROWS.at(2, gap=longer, label="KERNEL"), f32.at(0, label="OUTPUT"),
            f32.at(1, label="OUTPUT")], f32.at(3, label="OUTPUT"), splits={"mb": 2}),
    ]  # fmt: skip
    found = run(tmp_path, operations, x, y, torch.zeros(x.shape).half(), torch.zeros(x.shape))
    compare(found[2], x < y, 0)
    compare(found[3], torch.minimum(x, y), 0)


def test_fp8_round_trip(tmp_path):
    x = on_card(values((8, 256)) * 4)
    f8 = ROWS.at(1, fmt=FP8, label="KERNEL")
    operations = [
        op("qfp8ch", {"mb": 8, "out": 256}, [ROWS.at(0)], f8, splits={"mb": 2}),
        op("fp8todl16", {"mb": 8, "out": 256}, [f8], ROWS.at(2), splits={"out": 2}),
    ]
    expected = x.to(torch.float8_e4m3fn)
    found = run(tmp_path, operations, x, torch.zeros((8, 256)).to(torch.float8_e4m3fn), x * 0)
    compare(found[2], expected.half(), 0)
