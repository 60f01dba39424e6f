"""Bundles compiled and run on the card, compared with CPU PyTorch in float32."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.backend.make_bundle import FP8, FP16, FP32, INT32, LX, POOL, UINT32, Op, Repeat, T, op
from tests.backend.run import run
from torch_spyre.opfuncs import OPFUNCS

DTYPES = {FP16: torch.float16, FP32: torch.float32, INT32: torch.int32}
ROWS = T(["mb", "out"])
SPARSE = T(["mb", "out"], scale={"out": -2})
TOLERANCE = {FP16: 4e-3, FP32: 2e-6, INT32: 0.0}
EXX2 = {"exx2scale": 1.0, "useZeroMean": 0.0}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(1)


def values(shape: tuple[int, ...], fmt: str = FP16, domain: str = "any") -> torch.Tensor:
    if fmt == INT32:
        return torch.randint(-1000, 1000, shape, dtype=torch.int32)
    x = torch.randn(shape)
    if domain == "positive":
        x = x.abs() + 0.1
    elif domain == "nonzero":
        x = torch.where(x < 0, x - 0.2, x + 0.2)
    elif domain == "bool":
        x = (x > 0).float()
    elif domain == "one":
        x = 1 + x / 64
    return on_card(x.to(DTYPES[fmt]))


def on_card(x: torch.Tensor) -> torch.Tensor:
    """The values that the card has for these: its 16-bit format has one fraction bit less."""
    return x.to("spyre").cpu()


def sticks(size: int, fmt: str = FP16) -> int:
    per_stick = T([], fmt).per_stick
    return -(-size // per_stick) * per_stick


def compare(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 4e-3) -> None:
    torch.testing.assert_close(
        found.float(), expected.float(), rtol=tolerance, atol=tolerance, equal_nan=True
    )


# ---- every row of the table ----------------------------------------------------------------------

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


# ---- broadcast, slices, layouts ------------------------------------------------------------------


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
    from tests.backend.make_bundle import write_bundle
    from torch_spyre.backend import compile_bundle

    write_bundle(path, [operation])
    plan = _C.prepare_kernel(str(compile_bundle(path)))
    arguments = [x.to("spyre"), out.to("spyre")]
    _C.launch_jobplan(plan, arguments)
    return arguments[1].cpu()


# ---- reductions ----------------------------------------------------------------------------------

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


# ---- layer normalisation -------------------------------------------------------------------------


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


# ---- matmul --------------------------------------------------------------------------------------

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


# ---- Scatter: gather the other way around --------------------------------------------------------


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


# ---- scratchpads, loops, fusion ------------------------------------------------------------------


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("symbolic", [True, False])
def test_softmax_with_intermediates_in_lx_and_pool(tmp_path, fuse: bool, symbolic: bool):
    x = values((128, 256))
    sizes, splits = {"mb": 128, "out": 256}, {"mb": 4}
    largest, total = SPARSE.at(LX, 0), SPARSE.at(LX, 8192)
    shifted, raised = ROWS.at(POOL), ROWS.at(POOL, 65536)
    operations = [
        op("max", sizes, [ROWS.at(0)], largest, splits=splits),
        op("sub", sizes, [ROWS.at(0), largest], shifted, splits=splits),
        op("exp", sizes, [shifted], raised, splits=splits),
        op("sum", sizes, [raised], total, splits=splits),
        op("realdiv", sizes, [raised, total], ROWS.at(1), splits=splits),
    ]
    found = run(tmp_path, operations, x, x * 0, fuse=fuse, symbolic=symbolic)[1]
    compare(found, x.float().softmax(1))


@pytest.mark.parametrize("fuse", [True, False])
def test_a_loop_over_tiles_of_rows(tmp_path, fuse: bool):
    x = values((128, 256))
    sizes = {"mb": 32, "out": 256}
    tile = {"gap": {"mb": 96}, "loop_strides": (32 * 128,)}
    scratch = ROWS.at(POOL, loop_strides=(0,))
    operations = [
        Repeat(4, [
            op("exp", sizes, [ROWS.at(0, **tile)], scratch, splits={"mb": 2}),
            op("add", sizes, [scratch, ROWS.at(0, **tile)], ROWS.at(1, **tile), splits={"mb": 2}),
        ])
    ]  # fmt: skip
    found = run(tmp_path, operations, x, x * 0, fuse=fuse)[1]
    compare(found, x.float().exp() + x.float())


def test_an_accumulator_in_a_loop_is_stored_each_time(tmp_path):
    x = values((128, 64))
    sizes = {"mb": 32, "out": 64}
    total = ROWS.at(POOL, loop_strides=(0,))
    part = ROWS.at(0, gap={"mb": 96}, loop_strides=(32 * 128,))
    zero = ROWS.at(POOL)
    operations = [
        op("sub", sizes, [ROWS.at(0, gap={"mb": 96}), ROWS.at(0, gap={"mb": 96})], zero),
        Repeat(4, [op("add", sizes, [total, part], total)]),
        op("neg", sizes, [zero], ROWS.at(1)),
    ]
    found = run(tmp_path, operations, x, torch.zeros((32, 64)).half())[1]
    compare(found, -x.float().reshape(4, 32, 64).sum(0), 8e-3)


def random_program(seed: int) -> list[Op]:
    """Operations over a few tensors that are written again and again: arguments 0 to 2, five in the
    pool, two columns of one value a row in the pool."""
    generator = torch.Generator().manual_seed(seed)

    def pick(n: int) -> int:
        return int(torch.randint(n, (), generator=generator))

    sizes = {"mb": 16, "out": 128}
    full, column_bytes = 16 * 128 * 2, 16 * 128

    def place(which: int) -> T:
        return ROWS.at(which) if which < 3 else ROWS.at(POOL, (which - 3) * full)

    def column(tensor: T) -> T:
        return tensor.at(POOL, 5 * full + pick(2) * column_bytes)

    # Nothing is read from the pool that was not written there before.
    operations = [op("identity", sizes, [place(n % 3)], place(n), splits={"mb": 2})
                  for n in range(3, 8)]  # fmt: skip
    operations += [
        op("max", sizes, [place(n)], SPARSE.at(POOL, 5 * full + n * column_bytes)) for n in range(2)
    ]
    for _ in range(14):
        kind = pick(8)
        splits = [{"mb": 2}, {"mb": 2}, {"mb": 2, "out": 2}][pick(3)]
        x, y, out = place(pick(8)), place(pick(8)), place(2 + pick(6))
        if kind == 0:
            made = op(["sum", "max"][pick(2)], sizes, [x], column(SPARSE), splits=splits)
        elif kind == 1:
            made = op("mul", sizes, [x, column(SPARSE)], out, splits=splits)
        elif kind == 2:
            of_columns = {"mb": 16, "out": 64}
            made = op("sigmoid", of_columns, [column(ROWS)], column(ROWS), splits={"mb": 2})
        elif kind < 5:
            made = op(["tanh", "neg"][pick(2)], sizes, [x], out, splits=splits)
        else:
            name = ["add", "maximum", "sub"][kind - 5]
            made = op(name, sizes, [x, y], out, splits=splits)
        operations.append(made)
    operations.append(op("identity", sizes, [place(3)], place(1), splits={"mb": 2}))
    operations.append(op("mul", sizes, [place(4), column(SPARSE)], place(0), splits={"mb": 2}))
    return operations


def random_shapes(seed: int) -> list[Op]:
    """The same, with products and with rows that some operations see as batches of rows, on other
    numbers of cores each."""
    generator = torch.Generator().manual_seed(seed)

    def pick(n: int) -> int:
        return int(torch.randint(n, (), generator=generator))

    rows, cube = {"mb": 16, "out": 128}, {"x": 4, "mb": 4, "out": 128}
    full, column_bytes = 16 * 128 * 2, 16 * 128

    def placed(tensor: T, which: int) -> T:
        return tensor.at(which) if which < 3 else tensor.at(POOL, (which - 3) * full)

    operations = [op("identity", rows, [placed(ROWS, n % 3)], placed(ROWS, n)) for n in range(3, 8)]
    for n in range(2):
        column = replace(ROWS, scale={"out": -2}).at(POOL, 5 * full + n * column_bytes)
        operations.append(op("max", rows, [placed(ROWS, n)], column))
    for _ in range(12):
        kind = pick(8)
        is_cube = pick(2) == 1
        shape = T(["mb", "x", "out"]) if is_cube else ROWS
        sizes = cube if is_cube else rows
        cut = [{}, {"mb": 2}, {"out": 2}, {"mb": 4, "out": 2}, {"x": 2} if is_cube else {"mb": 8}]
        splits = cut[pick(5)]
        value = replace(shape, scale={"out": -2}).at(POOL, 5 * full + pick(2) * column_bytes)
        first = 3 if is_cube else 0  # arguments have two dimensions
        x, y = (placed(shape, first + pick(8 - first)) for _ in range(2))
        out = placed(shape, 3 + pick(5))
        if kind < 2:
            operations.append(
                op(["sum", "max"][kind], sizes, [x], value, splits=cut[[0, 1, 4][pick(3)]])
            )
        elif kind == 2:
            operations.append(op("mul", sizes, [x, value], out, splits=splits))
        elif kind == 3:
            source, target = 3 + pick(5), 2 + pick(6)
            if target == source:  # a core would write what another one still reads
                target = 2
            operands = [
                placed(T(["mb", "in"], stick="in", label="INPUT"), source),
                T(["in", "out"], label="KERNEL", where=3),
            ]
            result = replace(placed(ROWS, target), label="OUTPUT")
            split = [{}, {"mb": 2}, {"out": 2}, {"mb": 4, "out": 2}][pick(4)]
            operations.append(
                op("batchmatmul", {**rows, "in": 128}, operands, result, splits=split)
            )
        elif kind < 6:
            operations.append(op(["tanh", "gelufwd"][kind - 4], sizes, [x], out, splits=splits))
        else:
            operations.append(op(["add", "maximum"][kind - 6], sizes, [x, y], out, splits=splits))
    operations.append(op("add", rows, [placed(ROWS, 3), placed(ROWS, 4)], placed(ROWS, 1)))
    operations.append(op("add", rows, [placed(ROWS, 5), placed(ROWS, 6)], placed(ROWS, 0)))
    return operations


@pytest.mark.parametrize("number", range(60))
def test_fused_and_unfused_shapes_give_the_same_bits(tmp_path, number: int):
    hosts = [values((16, 128)) for _ in range(3)]
    hosts.append(values((128, 128)) * 0.1)
    operations = random_shapes(number)
    fused, plain = (
        run(tmp_path / str(fuse), operations, *hosts, fuse=fuse) for fuse in (True, False)
    )
    for a, b in zip(fused, plain):
        assert torch.equal(a.view(torch.int16), b.view(torch.int16))


@pytest.mark.parametrize("number", range(60))
def test_fused_and_unfused_give_the_same_bits(tmp_path, number: int):
    hosts = [values((16, 128)) for _ in range(3)]
    operations = random_program(number)
    fused, plain = (
        run(tmp_path / str(fuse), operations, *hosts, fuse=fuse) for fuse in (True, False)
    )
    for a, b in zip(fused, plain):
        assert torch.equal(a.view(torch.int16), b.view(torch.int16))


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
