"""Division of work over cores: documented examples, and the rules of each kind of operation."""

from __future__ import annotations

import math

import pytest
import sympy
from sympy import Integer, Mod, Symbol, floor

from torch_spyre._C import DataFormats
from torch_spyre._inductor.opspec.alignment import align
from torch_spyre._inductor.opspec.op_spec import IndirectAccess, OpSpec, TensorArg
from torch_spyre._inductor.opspec.validate import validate_op_spec
from torch_spyre._inductor.planning.division.documented_matmul import best_split, matmul_cost
from torch_spyre._inductor.planning.division.documented_rules import divide, divisions

c0, c1, c2, c3 = sympy.symbols("c0 c1 c2 c3")
FP16, FP32, INT32 = DataFormats.SEN169_FP16, DataFormats.IEEE_FP32, DataFormats.IEEE_INT32
MIB = 1 << 20


def tensor(number, device_size, coordinates, out=False, dtype=FP16, name=None):
    exprs = [sympy.sympify(c) for c in coordinates]
    return TensorArg(not out, number, dtype, device_size, exprs, {"hbm": 0}, name=name)


def rows(row, column):
    return [floor(column / 64), row, Mod(column, 64)]


def op(name, space, *args, reduction=False, info=None):
    sizes = {symbol: (size, 1) for symbol, size in space.items()}
    return align(OpSpec(name, reduction, sizes, list(args), info or {}))


def slices(spec, cores=32, span=256 * MIB):
    divided = divide(spec, cores, span)
    validate_op_spec(divided)
    return {str(s): n for s, (_, n) in divided.iteration_space.items()}


def documented(spec, cores=32):
    divided = divide(spec, cores, 256 * MIB, matmul_model=True)
    validate_op_spec(divided)
    return {str(s): n for s, (_, n) in divided.iteration_space.items()}


def add(m, n):
    sticks = -(-n // 64)
    args = [tensor(i, [sticks, m, 64], rows(c0, c1), i == 2) for i in range(3)]
    return op("add", {c0: m, c1: n}, *args)


def matmul(m, n, k):
    a, b = -(-n // 64), -(-k // 64)
    return op(
        "batchmatmul",
        {c0: m, c1: n, c2: k},
        tensor(0, [b, m, 64], rows(c0, c2)),
        tensor(1, [a, k, 64], rows(c2, c1)),
        tensor(2, [a, m, 64], rows(c0, c1), True),
        reduction=True,
    )


def reduction(name, m, n, info=None):
    return op(
        name,
        {c0: m, c1: n},
        tensor(0, [-(-n // 64), m, 64], rows(c0, c1)),
        tensor(1, [1, m, 64], [0, c0, 0], True),
        reduction=True,
        info=info,
    )


# ---- The documented cost model of matmul ---------------------------------------------------------


@pytest.mark.parametrize(
    "m, n, k, argmin, cost, expected",
    [
        (128, 512, 256, (2, 8, 1), 2.92, (32, 1, 1)),
        (128, 4096, 4096, (2, 8, 1), 261.46, (32, 1, 1)),
        (512, 4096, 4096, (4, 8, 1), 379.56, (4, 8, 1)),
        (2048, 4096, 4096, (4, 8, 1), 1026.73, (4, 8, 1)),
        (64, 12800, 4096, (4, 8, 1), 759.09, (4, 8, 1)),
        (2048, 12800, 4096, (4, 8, 1), 3034.45, (4, 8, 1)),
        (32, 4096, 12800, (1, 8, 4), 670.60, (1, 8, 4)),
        (64, 128, 8192, (1, 2, 4), 24.34, (32, 1, 1)),
    ],
)
def test_documented_splits_of_a_matmul(m, n, k, argmin, cost, expected):
    best = best_split(1, m, n, k, 32)
    assert best == (1, *argmin)
    assert matmul_cost((1, m, n, k), best) == pytest.approx(cost, abs=0.005)
    assert tuple(documented(matmul(m, n, k)).values()) == expected


def test_documented_split_of_one_row():
    assert best_split(1, 1, 4096, 4096, 32) == (1, 1, 8, 2)
    assert matmul_cost((1, 1, 4096, 4096), (1, 1, 8, 2)) == pytest.approx(316.42, abs=0.005)
    assert matmul_cost((1, 1, 4096, 4096), (1, 1, 32, 1)) == pytest.approx(806.65, abs=0.005)
    x = tensor(0, [64, 1, 64], [floor(c2 / 64), 0, Mod(c2, 64)])
    y = tensor(1, [64, 4096, 64], rows(c2, c1))
    out = tensor(2, [64, 1, 64], [floor(c1 / 64), 0, Mod(c1, 64)], True)
    spec = op("batchmatmul", {c1: 4096, c2: 4096}, x, y, out, reduction=True)
    # 16 cores are fewer than the 32 of the default.
    assert [n for n in documented(spec).values() if n > 1] == [32]


@pytest.mark.parametrize(
    "m, n, k, split, cost",
    [
        (128, 512, 256, (32, 1, 1), 159.93),
        (128, 4096, 4096, (32, 1, 1), 969.90),
        (512, 4096, 4096, (32, 1, 1), 1268.73),
        (2048, 4096, 4096, (32, 1, 1), 2009.77),
        (64, 12800, 4096, (1, 25, 1), 1720.38),
        (2048, 12800, 4096, (32, 1, 1), 5584.21),
        (32, 4096, 12800, (1, 32, 1), 2167.39),
        (64, 128, 8192, (32, 1, 1), 215.62),
    ],
)
def test_documented_costs_of_the_default_splits(m, n, k, split, cost):
    assert matmul_cost((1, m, n, k), (1, *split)) == pytest.approx(cost, abs=0.005)
    assert tuple(slices(matmul(m, n, k)).values()) == split


def test_the_worked_example_is_cut_by_its_span_first():
    # (8192, 32768) is 512 MiB: two slices of K, and the rows take the cores that are left.
    assert documented(matmul(8192, 4096, 32768)) == {"c0": 16, "c1": 1, "c2": 2}


def test_batches_are_priced_by_the_documented_model():
    spec = op(
        "batchmatmul",
        {c0: 4, c1: 512, c2: 4096, c3: 4096},
        tensor(0, [4, 64, 512, 64], [c0, floor(c3 / 64), c1, Mod(c3, 64)]),
        tensor(1, [4, 64, 4096, 64], [c0, floor(c2 / 64), c3, Mod(c2, 64)]),
        tensor(2, [4, 64, 512, 64], [c0, floor(c2 / 64), c1, Mod(c2, 64)], True),
        reduction=True,
    )
    assert tuple(documented(spec).values()) == best_split(4, 512, 4096, 4096, 32)


# ---- All divisions -------------------------------------------------------------------------------


def test_divisions_are_all_that_divide_and_cut_one_reduced_dimension_at_most():
    expected = {
        (m, n, k)
        for m in range(1, 9)
        for n in range(1, 9)
        for k in range(1, 9)
        if 6 % m == 0 and 4 % n == 0 and 8 % k == 0 and m * n * k <= 8
    }
    found = [tuple(d.values()) for d in divisions(matmul(6, 256, 512), 8, 256 * MIB)]
    assert set(found) == expected and len(found) == len(expected)


def test_divisions_respect_the_span():
    for division in divisions(matmul(8192, 4096, 32768), 32, 256 * MIB):
        # 512 MiB in 512 axes of sticks: the outermost one must be cut.
        assert division[c2] >= 2


# ---- The largest dimensions of the result --------------------------------------------------------


def test_add_of_128_by_256_on_4_cores_cuts_rows():
    assert slices(add(128, 256), 4) == {"c0": 4, "c1": 1}


def test_the_stick_is_counted_in_sticks():
    assert slices(add(2, 64 * 16)) == {"c0": 2, "c1": 16}
    assert slices(add(3, 1000)) == {"c0": 1, "c1": 16}
    assert slices(add(7, 100)) == {"c0": 7, "c1": 2}


@pytest.mark.parametrize(
    "m, n, k, expected",
    [
        (128, 512, 256, (32, 1, 1)),
        (128, 4096, 4096, (32, 1, 1)),
        (512, 4096, 4096, (32, 1, 1)),
        (64, 12800, 4096, (1, 25, 1)),
        (32, 4096, 12800, (1, 32, 1)),
        (64, 128, 8192, (32, 1, 1)),
    ],
)
def test_matmul_without_its_cost_model(m, n, k, expected):
    assert tuple(slices(matmul(m, n, k)).values()) == expected


def test_one_row_goes_over_columns():
    x = tensor(0, [64, 64], [floor(c2 / 64), Mod(c2, 64)])
    y = tensor(1, [64, 4096, 64], rows(c2, c1))
    out = tensor(2, [64, 64], [floor(c1 / 64), Mod(c1, 64)], True)
    spec = op("batchmatmul", {c1: 4096, c2: 4096}, x, y, out, reduction=True)
    assert slices(spec) == {"z0": 1, "c1": 32, "c2": 1}


def test_cores_that_are_left_go_to_one_reduced_dimension():
    assert slices(reduction("sum", 4, 512)) == {"c0": 4, "c1": 8}
    assert slices(reduction("sum", 4, 500)) == {"c0": 4, "c1": 8}
    info = {"constants": {"exx2scale": 1 / 512, "useZeroMean": False}}
    assert slices(reduction("exx2", 4, 512, info)) == {"c0": 4, "c1": 1}


def test_only_one_of_two_reduced_dimensions_is_cut():
    spec = op(
        "sum",
        {c0: 5, c1: 16, c2: 128},
        tensor(0, [16, 2, 5, 64], [c1, floor(c2 / 64), c0, Mod(c2, 64)]),
        tensor(1, [2, 64], [floor(c2 / 64), Mod(c2, 64)], True),
        reduction=True,
    )
    assert slices(spec) == {"c0": 1, "c1": 16, "c2": 2}


def test_one_core_and_given_slices_stay():
    assert slices(add(128, 256), 1) == {"c0": 1, "c1": 1}
    spec = add(128, 256)
    spec.iteration_space[c1] = (256, 2)
    assert slices(spec) == {"c0": 1, "c1": 2}


# ---- Kinds with rules of their own ---------------------------------------------------------------


def test_topk_runs_on_one_core():
    spec = op(
        "topkvalue",
        {c0: 128, c1: 4, c2: 50},
        tensor(0, [50, 2, 64], [c2, floor(c0 / 64), Mod(c0, 64)]),
        tensor(1, [4, 2, 64], [c1, floor(c0 / 64), Mod(c0, 64)], True),
        reduction=True,
    )
    assert set(slices(spec).values()) == {1}


@pytest.mark.parametrize(
    "m, n, expected",
    [(128, 256, (2, 4)), (100, 256, (1, 4)), (128, 200, (2, 1)), (100, 200, (1, 1))],
)
def test_padded_dimensions_of_a_restickify_stay_whole(m, n, expected):
    spec = op(
        "identity",
        {c0: m, c1: n},
        tensor(0, [-(-n // 64), m, 64], rows(c0, c1)),
        tensor(1, [-(-m // 64), n, 64], rows(c1, c0), True),
    )
    assert tuple(slices(spec).values()) == expected


def test_mixed_formats_are_cut_by_the_longer_stick():
    spec = op(
        "dl16tofp32",
        {c0: 1, c1: 320},
        tensor(0, [5, 64], [floor(c1 / 64), Mod(c1, 64)]),
        tensor(1, [10, 32], [floor(c1 / 32), Mod(c1, 32)], True, FP32),
    )
    assert slices(spec)["c1"] == 5


@pytest.mark.parametrize("indices, expected", [(64, (2, 4)), (40, (1, 4))])
def test_a_gather_cuts_whole_sticks_of_indices(indices, expected):
    row = IndirectAccess(Symbol("idx"))
    spec = op(
        "identity",
        {c0: indices, c1: 256},
        tensor(0, [2, 32], [floor(c0 / 32), Mod(c0, 32)], dtype=INT32, name="idx"),
        tensor(1, [4, 1000, 64], [floor(c1 / 64), row, Mod(c1, 64)]),
        tensor(2, [4, indices, 64], rows(c0, c1), True),
    )
    assert tuple(slices(spec).values()) == expected


@pytest.mark.parametrize(
    "size, stride, expected",
    [
        ([60, 40], [40, 1], (30, 1)),  # 40 columns share a stick
        ([6, 128], [128, 1], (6, 2)),
        ([6, 130], [130, 1], (6, 1)),  # the last stick is not full
        ([8, 8, 16], [128, 16, 1], (8, 1, 1)),  # a view of rows of 128
    ],
)
def test_slices_of_a_relayout_never_share_a_stick_of_the_output(size, stride, expected):
    shape = size if len(size) == 2 else [8, 128]
    sticks = -(-shape[1] // 64)
    side = {
        "device_size": [sticks, shape[0], 64],
        "stride_map": [64, shape[1], 1],
        "size": shape,
        "stride": [shape[1], 1],
        "view_stride": stride,
        "offset": 0,
    }
    zero = [Integer(0)] * 3
    spec = op(
        "relayout",
        dict(zip((c0, c1, c2), size)),
        tensor(0, side["device_size"], zero),
        tensor(1, side["device_size"], zero, True),
        info={"relayout": {"input": side, "output": side}},
    )
    assert tuple(slices(spec).values()) == expected


# ---- The span limit ------------------------------------------------------------------------------


def test_a_span_above_the_limit_is_cut_first():
    # 32 sticks * 4096 rows * 128 B = 16 MiB, the outermost axis counts sticks.
    spec = add(4096, 2048)
    assert slices(spec, 32) == {"c0": 32, "c1": 1}
    assert slices(spec, 32, 4 * MIB) == {"c0": 8, "c1": 4}
    assert slices(spec, 4, 4 * MIB) == {"c0": 1, "c1": 4}


def test_inner_axes_are_cut_when_the_outermost_is_used_up():
    # Outermost axis: 4 sticks of 1 MiB; when each core has one stick, rows count.
    spec = add(8192, 256)
    assert slices(spec, 32, MIB) == {"c0": 8, "c1": 4}
    assert slices(spec, 32, MIB // 4) == {"c0": 4, "c1": 4}


def test_the_largest_span_within_the_limit_is_kept():
    spec = add(1024, 64 * 24)  # 24 sticks of 128 KiB: 3 MiB
    cut = slices(spec, 24, MIB)
    assert cut["c1"] == 3
    assert math.prod(cut.values()) <= 24


def test_a_span_that_cannot_be_cut_enough_is_reported(caplog):
    spec = add(4096, 7 * 64)
    with caplog.at_level("CRITICAL", logger="spyre.inductor.passes"):
        slices(spec, 2, MIB)
    assert "more than" in caplog.text
