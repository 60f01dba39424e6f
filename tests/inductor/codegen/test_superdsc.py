"""SuperDSC files: worked examples field by field, golden files, and a reader of our own.

`python -m tests.inductor.codegen.test_superdsc` regenerates the golden files.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from pathlib import Path

import pytest
import sympy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sympy import Integer, Mod, Symbol, floor

from tests.inductor.opspec.test_coordinates import aligned_copy, views, walk
from torch_spyre._C import DataFormats, encode_constant
from torch_spyre._inductor.codegen.bundle import generate_bundle
from torch_spyre._inductor.codegen.json_text import dump_json
from torch_spyre._inductor.codegen.superdsc import generate
from torch_spyre._inductor.codegen.symbols import Address, SymbolTable
from torch_spyre._inductor.opspec.alignment import align
from torch_spyre._inductor.opspec.coordinates import Misaligned
from torch_spyre._inductor.opspec.op_spec import IndirectAccess, OpSpec, TensorArg
from torch_spyre._inductor.opspec.validate import InvalidOpSpec, validate_op_spec, validate_superdsc
from torch_spyre._inductor.planning.division.documented_rules import divide

c0, c1, c2, c3 = sympy.symbols("c0 c1 c2 c3")
FP16, FP32 = DataFormats.SEN169_FP16, DataFormats.IEEE_FP32
INT32 = DataFormats.IEEE_INT32
GOLDEN = Path(__file__).parent / "golden"
SEGMENT = 1 << 34
LABELS = ["mb", "x", "y", "i", "j", "ki", "kj"]


def tensor(number, device_size, coordinates, *, out=False, dtype=FP16, lx=None, **more):
    allocation = {"hbm": 0} if lx is None else {"lx": lx}
    exprs = [sympy.sympify(c) for c in coordinates]
    index = number if lx is None else -1
    return TensorArg(not out, index, dtype, device_size, exprs, allocation, **more)


def rows(row, column, eps=64):
    """Coordinates of a row-major matrix."""
    return [floor(column / eps), row, Mod(column, eps)]


def op(name, space, *args, info=None, reduction=False, tiled=()):
    spec = OpSpec(name, reduction, space, list(args), info or {}, list(tiled))
    return align(spec)


def add(slices=4, info=None):
    a = [tensor(i, [4, 128, 64], rows(c0, c1), out=i == 2) for i in range(3)]
    return op("add", {c0: (128, slices), c1: (256, 1)}, *a, info=info)


def matmul(m, n, k):
    return op(
        "batchmatmul",
        {c0: (128, m), c1: (512, n), c2: (256, k)},
        tensor(0, [4, 128, 64], rows(c0, c2)),
        tensor(1, [8, 256, 64], rows(c2, c1)),
        tensor(2, [8, 128, 64], rows(c0, c1), out=True),
        reduction=True,
    )


def sum_stick(slices=4):
    return op(
        "sum",
        {c0: (128, slices), c1: (256, 1)},
        tensor(0, [4, 128, 64], rows(c0, c1)),
        tensor(1, [1, 128, 64], [0, c0, 0], out=True),
        reduction=True,
    )


def emit(spec, **more):
    """(top, dsc) of an operation, checked by both validators."""
    validate_op_spec(spec)
    content = generate(spec, 0, **more)
    validate_superdsc(content)
    ((key, top),) = content.items()
    name = key.removeprefix("0_")
    return top, top["dscs_"][0][name], name


def starts(dsc, number):
    return [
        int(a) for a in dsc["scheduleTree_"][number]["startAddressCoreCorelet_"]["data_"].values()
    ]


def folds(dsc, number, dim):
    info = dsc["scheduleTree_"][number]["coordinates_"]["coordInfo"][dim]
    alphas = [f["Affine"]["alpha_"] for f in info["folds"]["dim_prop_func"]]
    factors = [f["factor_"] for f in info["folds"]["dim_prop_attr"]]
    return info["elemArr"], alphas, factors


# ---- Worked examples -----------------------------------------------------------------------------


def test_add_of_128_by_256_on_4_cores():
    top, dsc, name = emit(add())
    assert name == "add"
    assert top["coreFoldProp_"] == {"factor_": 4, "label_": "core"}
    assert top["numWkSlicesPerDim_"] == {"mb": 4, "out": 1}
    assert top["coreIdToWkSlice_"] == {str(c): {"mb": c, "out": 0} for c in range(4)}
    assert dsc["N_"] == {"name_": "n", "mb_": 128, "out_": 256}
    share = {"name_": "core", "mb_": 32, "out_": 256}
    assert dsc["dataStageParam_"] == {"0": {"ss_": share, "el_": share}}
    assert dsc["primaryDsInfo_"] == {
        "OUTPUT": {
            "layoutDimOrder_": ["mb", "out"],
            "stickDimOrder_": ["out"],
            "stickSize_": [64],
        }
    }
    for number in range(3):
        assert starts(dsc, number) == [number * SEGMENT + 4096 * c for c in range(4)]
        assert folds(dsc, number, "mb") == (1, [32, 0, 0, 1], [4, 1, 1, 32])
        assert folds(dsc, number, "out") == (2, [256, 0, 0, 64, 1], [1, 1, 1, 4, 64])
        entry = dsc["labeledDs_"][number]
        assert (entry["wordLength"], entry["dataFormat_"]) == (2, "SEN169_FP16")
        assert entry["scale_"] == [1, 1]
        assert entry["memOrg_"] == {"hbm": {"isPresent": 1}, "lx": {"isPresent": 1}}
    assert (dsc["constantInfo_"], dsc["coordinateMasking_"], dsc["maskingConstId_"]) == (
        "{}",
        {},
        -1,
    )
    (compute,) = dsc["computeOp_"]
    assert (compute["exUnit"], compute["opFuncName"]) == ("sfp", "add")
    assert compute["inputLabeledDs"] == ["Tensor0-idx0", "Tensor1-idx1"]
    assert compute["outputLabeledDs"] == ["Tensor2-idx2"]


def test_matmul_split_4_2_1():
    top, dsc, _ = emit(matmul(4, 2, 1))
    for c in range(8):
        assert top["coreIdToWkSlice_"][str(c)] == {"mb": c % 4, "out": c // 4, "in": 0}
    assert starts(dsc, 0) == [4096 * (c % 4) for c in range(8)]
    assert starts(dsc, 1) == [SEGMENT + 131072 * (c // 4) for c in range(8)]
    assert starts(dsc, 2) == [2 * SEGMENT + 4096 * (c % 4) + 65536 * (c // 4) for c in range(8)]
    assert dsc["dataStageParam_"]["0"]["ss_"] == {
        "name_": "core",
        "mb_": 32,
        "out_": 256,
        "in_": 256,
    }
    assert {k: v["layoutDimOrder_"] for k, v in dsc["primaryDsInfo_"].items()} == {
        "INPUT": ["mb", "in"],
        "KERNEL": ["in", "out"],
        "OUTPUT": ["mb", "out"],
    }
    assert (dsc["computeOp_"][0]["exUnit"], dsc["computeOp_"][0]["opFuncName"]) == (
        "pt",
        "batchmatmul",
    )


def test_matmul_split_2_2_2_numbers_the_reduced_dimension_fastest():
    top, dsc, _ = emit(matmul(2, 2, 2))
    assert dsc["dataStageParam_"]["0"]["ss_"] == {
        "name_": "core",
        "mb_": 64,
        "out_": 256,
        "in_": 128,
    }
    for c in range(8):
        mb, out, k = (c // 2) % 2, c // 4, c % 2
        assert top["coreIdToWkSlice_"][str(c)] == {"mb": mb, "out": out, "in": k}
        assert starts(dsc, 0)[c] == 8192 * mb + 32768 * k
        assert starts(dsc, 1)[c] == SEGMENT + 16384 * k + 131072 * out
        assert starts(dsc, 2)[c] == 2 * SEGMENT + 8192 * mb + 65536 * out
    top, _, _ = emit(matmul(2, 2, 2), k_fast=False)
    assert top["coreIdToWkSlice_"]["1"] == {"mb": 1, "out": 0, "in": 0}


def test_sum_over_the_stick():
    _, dsc, name = emit(sum_stick())
    assert name == "sum"
    assert dsc["labeledDs_"][1]["scale_"] == [1, -2]
    assert folds(dsc, 1, "out") == (2, [64, 0, 0, 64, 0], [1, 1, 1, 1, 64])
    assert dsc["computeOp_"][0]["inputLabeledDs"] == ["Tensor0-idx0", "Tensor1-idx1"]
    assert dsc["computeOp_"][0]["outputLabeledDs"] == ["Tensor1-idx1"]


def test_sum_over_rows():
    spec = op(
        "sum",
        {c0: (128, 1), c1: (256, 4)},
        tensor(0, [4, 128, 64], rows(c0, c1)),
        tensor(1, [4, 64], [floor(c1 / 64), Mod(c1, 64)], out=True),
        reduction=True,
    )
    assert spec.args[1].device_size == [1, 4, 64]
    _, dsc, name = emit(spec)
    assert name == "sumnonstick"
    assert dsc["primaryDsInfo_"]["OUTPUT"]["layoutDimOrder_"] == ["mb", "out"]
    assert dsc["labeledDs_"][1]["scale_"] == [-1, 1]
    assert dsc["scheduleTree_"][1]["layoutDimOrder_"] == ["out", "mb"]
    assert starts(dsc, 1) == [SEGMENT + 128 * c for c in range(4)]


def padded_reduction(name, info=None):
    return op(
        name,
        {c0: (128, 4), c1: (100, 1)},
        tensor(0, [2, 128, 64], rows(c0, c1)),
        tensor(1, [1, 128, 64], [0, c0, 0], out=True),
        reduction=True,
        info=info,
    )


def test_max_over_100_columns_masks_28():
    _, dsc, _ = emit(padded_reduction("max"))
    assert dsc["N_"]["out_"] == 128
    assert dsc["coordinateMasking_"] == {"out": [[100, 28]]}
    assert dsc["maskingConstId_"] == 0
    constant = dsc["constantInfo_"]["0"]
    assert (constant["name_"], constant["dataFormat_"]) == ("samv-maskvalue", "SEN169_FP16")
    assert constant["data_"]["data_"] == {"[0, 0, 0]": [encode_constant(float("-inf"), FP16)]}


def test_the_mask_of_mean_is_its_second_constant():
    _, dsc, _ = emit(padded_reduction("mean", {"constants": {"scaling_factor": 0.01}}))
    assert dsc["maskingConstId_"] == 1
    names = {k: v["name_"] for k, v in dsc["constantInfo_"].items()}
    assert names == {"0": "scaling_factor", "1": "samv-maskvalue"}
    value = dsc["constantInfo_"]["0"]
    assert value["dataFormat_"] == "IEEE_FP32"
    assert value["data_"]["data_"] == {"[0, 0, 0]": [encode_constant(0.01, FP32)]}


def restickify(m=128, n=256):
    a, b = -(-n // 64), -(-m // 64)
    return op(
        "identity",
        {c0: (m, 1), c1: (n, 1)},
        tensor(0, [a, m, 64], rows(c0, c1)),
        tensor(1, [b, n, 64], rows(c1, c0), out=True),
    )


def test_restickify_has_two_layout_classes():
    _, dsc, name = emit(restickify())
    assert name == "ReStickifyOpHBM"
    assert dsc["primaryDsInfo_"] == {
        "OUTPUT": {
            "layoutDimOrder_": ["mb", "out"],
            "stickDimOrder_": ["out"],
            "stickSize_": [64],
        },
        "KERNEL": {"layoutDimOrder_": ["out", "mb"], "stickDimOrder_": ["mb"], "stickSize_": [64]},
    }
    assert dsc["computeOp_"][0]["exUnit"] == "sfp"


def test_a_padded_restickify_masks_both_dimensions():
    _, dsc, _ = emit(restickify(100, 200))
    assert dsc["N_"] == {"name_": "n", "mb_": 128, "out_": 256}
    assert dsc["coordinateMasking_"] == {"mb": [[100, 28]], "out": [[200, 56]]}
    assert dsc["maskingConstId_"] == -1
    assert dsc["scheduleTree_"][0]["backGapCore_"] == {"mb": {"-1": "-28"}}
    assert dsc["scheduleTree_"][1]["backGapCore_"] == {"out": {"-1": "-56"}}


def test_a_slice_of_rows_has_an_offset_and_a_gap():
    spec = op(
        "identity",
        {c0: (64, 4), c1: (256, 1)},
        tensor(0, [4, 128, 64], rows(c0 + 32, c1)),
        tensor(1, [4, 64, 64], rows(c0, c1), out=True),
    )
    _, dsc, _ = emit(spec)
    assert starts(dsc, 0) == [4096 + 2048 * c for c in range(4)]
    assert dsc["scheduleTree_"][0]["backGapCore_"] == {"mb": {"-1": "64"}}
    assert "backGapCore_" not in dsc["scheduleTree_"][1]


# ---- More forms ----------------------------------------------------------------------------------


def test_matmul_masks_what_is_missing_of_its_sticks():
    spec = op(
        "batchmatmul",
        {c0: (30, 1), c1: (70, 1), c2: (100, 1)},
        tensor(0, [2, 30, 64], rows(c0, c2)),
        tensor(1, [2, 100, 64], rows(c2, c1)),
        tensor(2, [2, 30, 64], rows(c0, c1), out=True),
        reduction=True,
    )
    _, dsc, _ = emit(spec)
    assert dsc["N_"] == {"name_": "n", "mb_": 30, "out_": 128, "in_": 128}
    assert dsc["coordinateMasking_"] == {"in": [[100, 28]], "out": [[70, 58]]}
    assert dsc["scheduleTree_"][1]["backGapCore_"] == {"in": {"-1": "-28"}}


def test_a_batched_matmul_with_shared_weights_lists_what_each_tensor_has():
    spec = op(
        "batchmatmul",
        {c0: (3, 1), c1: (128, 1), c2: (64, 1), c3: (64, 1)},
        tensor(0, [3, 1, 128, 64], [c0, 0, c1, c3]),
        tensor(1, [1, 64, 64], [0, c3, c2]),
        tensor(2, [3, 1, 128, 64], [c0, 0, c1, c2], out=True),
        reduction=True,
    )
    _, dsc, _ = emit(spec)
    assert [n["layoutDimOrder_"] for n in dsc["scheduleTree_"]] == [
        ["mb", "in", "x"],
        ["in", "out"],
        ["mb", "out", "x"],
    ]


def test_a_scalar_stands_for_all_lanes():
    spec = op(
        "mul",
        {c0: (128, 1), c1: (256, 1)},
        tensor(0, [4, 128, 64], rows(c0, c1)),
        tensor(1, [1, 64], [0, 0]),
        tensor(2, [4, 128, 64], rows(c0, c1), out=True),
    )
    _, dsc, _ = emit(spec)
    assert dsc["labeledDs_"][1]["scale_"] == [-1, -2]
    assert list(dsc["primaryDsInfo_"]) == ["OUTPUT"]
    assert folds(dsc, 1, "mb") == (1, [1, 0, 0, 1], [1, 1, 1, 1])


def test_an_operation_on_scalars_gets_a_stick_of_its_own():
    spec = op("neg", {}, tensor(0, [1, 64], [0, 0]), tensor(1, [1, 64], [0, 0], out=True))
    _, dsc, _ = emit(spec)
    assert dsc["N_"] == {"name_": "n", "mb_": 64}
    spec = op(
        "layernormscale",
        {c0: (128, 4)},
        tensor(0, [1, 128, 64], [0, c0, 0], element_arrangement="EXX2"),
        tensor(1, [1, 128, 64], [0, c0, 0], out=True),
        info={"constants": {"eps": 1e-5}},
    )
    _, dsc, _ = emit(spec)
    assert dsc["N_"] == {"name_": "n", "out_": 128, "x_": 64}
    assert [entry["scale_"] for entry in dsc["labeledDs_"]] == [[1, -2], [1, 1]]
    assert dsc["labeledDs_"][0]["elementArrangement_"] == "EXX2"
    assert "elementArrangement_" not in dsc["labeledDs_"][1]


def test_a_cast_of_a_vector_has_two_dimensions_and_two_classes():
    spec = op(
        "dl16tofp32",
        {c0: (68, 1)},
        tensor(0, [2, 64], [floor(c0 / 64), Mod(c0, 64)]),
        tensor(1, [4, 32], [floor(c0 / 32), Mod(c0, 32)], out=True, dtype=FP32),
    )
    _, dsc, _ = emit(spec)
    assert dsc["N_"] == {"name_": "n", "mb_": 1, "out_": 128}
    assert [v["stickSize_"] for v in dsc["primaryDsInfo_"].values()] == [[64], [32]]
    assert [entry["wordLength"] for entry in dsc["labeledDs_"]] == [2, 4]


def test_copies_of_integers_are_labelled_as_floats():
    spec = op(
        "identity",
        {c0: (128, 1)},
        tensor(0, [4, 32], [floor(c0 / 32), Mod(c0, 32)], dtype=INT32),
        tensor(1, [4, 32], [floor(c0 / 32), Mod(c0, 32)], dtype=INT32, out=True),
    )
    _, dsc, _ = emit(spec)
    assert {entry["dataFormat_"] for entry in dsc["labeledDs_"]} == {"IEEE_FP32"}
    assert dsc["computeOp_"][0]["attributes_"]["dataFormat_"] == "IEEE_FP32"


def test_tensors_in_lx_have_one_address_for_all_cores():
    a = [
        tensor(i, [4, 128, 64], rows(c0, c1), out=i == 2, lx=256 if i == 2 else None)
        for i in range(3)
    ]
    _, dsc, _ = emit(op("add", {c0: (128, 4), c1: (256, 1)}, *a))
    node = dsc["scheduleTree_"][2]
    assert (node["name_"], node["component_"]) == ("allocate-Tensor2_lx", "lx")
    assert starts(dsc, 2) == [256] * 4
    assert dsc["labeledDs_"][2]["memOrg_"] == {"lx": {"isPresent": 1}}


def gather():
    row = IndirectAccess(Symbol("idx"))
    return op(
        "identity",
        {c0: (40, 1), c1: (256, 4)},
        tensor(0, [2, 32], [floor(c0 / 32), Mod(c0, 32)], dtype=INT32, name="idx"),
        tensor(1, [4, 1000, 64], [floor(c1 / 64), row, Mod(c1, 64)]),
        tensor(2, [4, 40, 64], rows(c0, c1), out=True),
    )


def test_a_gather_names_its_index_and_its_value_tensor():
    _, dsc, _ = emit(gather())
    index, value, out = dsc["scheduleTree_"]
    assert index["indirectAllocType_"] == "index_tensor"
    assert index["relatedIndirectAccessAlloc_"] == "allocate-Tensor1_hbm"
    assert index["indexTensorType_"] == "index"
    assert index["backGapCore_"] == {"mb": {"-1": "24"}}
    assert value["indirectAllocType_"] == "value_tensor"
    assert value["relatedIndirectAccessAlloc_"] == "allocate-Tensor0_hbm"
    assert value["layoutDimOrder_"] == ["mb", "out"]
    assert value["maxDimSizes_"] == [1, -1]
    assert value["backGapCore_"] == {"mb": {"-1": "960"}}
    assert out["indirectAllocType_"] == "no_indirection"
    assert [entry["dsType_"] for entry in dsc["labeledDs_"]] == ["KERNEL_IDX", "OUTPUT", "OUTPUT"]
    assert dsc["labeledDs_"][0]["dataFormat_"] == "SENUINT32"
    assert dsc["labeledDs_"][0]["memOrg_"] == {"hbm": {"isPresent": 1}}
    (compute,) = dsc["computeOp_"]
    assert compute["inputLabeledDs"] == ["Tensor1-idx1"]
    assert compute["indirectAccessIndexLabeledDs"] == ["Tensor0-idx0"]
    assert compute["attributes_"]["dataFormat_"] == "SEN169_FP16"


def test_topk_lists_only_its_input():
    spec = op(
        "topkvalue",
        {c0: (128, 1), c1: (4, 1), c2: (50, 1)},
        tensor(0, [50, 2, 64], [c2, floor(c0 / 64), Mod(c0, 64)]),
        tensor(1, [4, 2, 64], [c1, floor(c0 / 64), Mod(c0, 64)], out=True),
        reduction=True,
    )
    _, dsc, name = emit(spec)
    assert name == "topkvalue"
    assert dsc["computeOp_"][0]["inputLabeledDs"] == ["Tensor0-idx0"]
    orders = [node["layoutDimOrder_"] for node in dsc["scheduleTree_"]]
    assert orders == [["mb", "out"], ["mb", "x"]]


def relayout(slices=1):
    side = {"device_size": [1, 40, 64], "stride_map": [64, 60, 1], "size": [40, 60]}
    info = {
        "input": {**side, "stride": [60, 1], "view_stride": [1, 60], "offset": 0},
        "output": {
            "device_size": [1, 60, 64],
            "stride_map": [64, 40, 1],
            "size": [60, 40],
            "stride": [40, 1],
            "view_stride": [40, 1],
            "offset": 0,
        },
    }
    zero = [Integer(0)] * 3
    return op(
        "relayout",
        {c0: (60, slices), c1: (40, 1)},
        tensor(0, [1, 40, 64], zero),
        tensor(1, [1, 60, 64], zero, out=True),
        info={"relayout": info},
    )


def test_a_relayout_says_where_elements_lie():
    _, dsc, _ = emit(relayout(4))
    source, target = dsc["scheduleTree_"]
    assert dsc["N_"] == {"name_": "n", "mb_": 60, "out_": 40}
    assert source["placement_"] == {
        "deviceSize_": [1, 40, 64],
        "strideMap_": [64, 60, 1],
        "size_": [40, 60],
        "stride_": [60, 1],
    }
    assert source["view_"] == {"stride_": [1, 60], "offset_": 0}
    assert target["view_"] == {"stride_": [40, 1], "offset_": 0}
    assert starts(dsc, 0) == [0] * 4
    assert starts(dsc, 1) == [SEGMENT] * 4


def test_symbols_stand_for_each_distinct_address():
    table = SymbolTable()
    generate(matmul(4, 2, 1), 0, table)
    generate(add(), 1, table)
    assert list(table.files[0].values()) == list(range(-1, -15, -1))  # 4 + 2 + 8
    assert table.files[0][Address(1, 131072)] == -6
    assert list(table.files[1].values()) == list(range(-15, -27, -1))


def test_the_pool_is_segment_0_and_arguments_move_up():
    spec = add()
    spec.args[1].allocation, spec.args[1].arg_index = {"pool": 512}, -1
    _, dsc, _ = emit(spec, has_pool=True)
    assert starts(dsc, 0)[0] == SEGMENT
    assert starts(dsc, 1)[0] == 512
    assert starts(dsc, 2)[0] == 3 * SEGMENT


# ---- Read back -----------------------------------------------------------------------------------


def read(content, logical):
    """For each point the byte address in each tensor, as docs/formats/superdsc.md says."""
    ((_, top),) = content.items()
    ((_, dsc),) = top["dscs_"][0].items()
    dims = list(top["numWkSlicesPerDim_"])
    share = {d: dsc["N_"][f"{d}_"] // top["numWkSlicesPerDim_"][d] for d in dims}
    tensors = []
    for node, entry in zip(dsc["scheduleTree_"], dsc["labeledDs_"]):
        info = dsc["primaryDsInfo_"][entry["dsType_"]]
        scale = dict(zip(info["layoutDimOrder_"], entry["scale_"]))
        (stick,), (eps,) = info["stickDimOrder_"], info["stickSize_"]
        gaps = {d: int(g["-1"]) for d, g in node.get("backGapCore_", {}).items()}
        stride, strides = 128, {}
        for d in node["layoutDimOrder_"]:
            if scale[d] == 1:
                strides[d] = stride
                entries = dsc["N_"][f"{d}_"] + gaps.get(d, 0)
                stride *= entries // eps if d == stick else entries
        data = node["startAddressCoreCorelet_"]["data_"]
        tensors.append((strides, stick, eps, entry["wordLength"], data))
    found: Counter[tuple[int, ...]] = Counter()
    for core, mine in top["coreIdToWkSlice_"].items():
        for point in itertools.product(*(range(share[d]) for d in dims)):
            local = dict(zip(dims, point))
            if any(mine[d] * share[d] + local[d] >= logical[d] for d in dims):
                continue
            addresses = []
            for strides, stick, eps, word, data in tensors:
                at = int(data[f"[{core}, 0, 0]"])
                for d, stride in strides.items():
                    i = local[d]
                    at += i // eps * stride + i % eps * word if d == stick else i * stride
                addresses.append(at)
            found[tuple(addresses)] += 1
    return found


def labels_of(spec):
    names = [*LABELS[: len(spec.iteration_space) - 1], "out"]
    sizes = [n for n, _ in spec.iteration_space.values()]
    logical = dict(zip(names, sizes))
    if not any(a.device_coordinates[-1].free_symbols for a in spec.args):
        logical[LABELS[len(sizes)]] = 1
    return logical


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(views(), st.sampled_from([1, 2, 4, 32]))
def test_every_core_finds_its_elements_of_any_view(case, cores):
    try:
        spec, expected = aligned_copy(case)
        spec = divide(align(spec), cores, 1 << 28)
    except Misaligned:
        return
    for number, a in enumerate(spec.args):
        a.arg_index = number
    validate_op_spec(spec)
    content = generate(spec, 0)
    validate_superdsc(content)
    if not spec.iteration_space:
        return
    in_bytes = Counter({(2 * x, SEGMENT + 2 * y): n for (x, y), n in expected.items()})
    assert read(content, labels_of(spec)) == in_bytes


@pytest.mark.parametrize("reduced", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("cores", [1, 4, 32])
def test_reductions_read_and_write_the_right_elements(reduced, cores):
    size, symbols = [4, 6, 130], [c0, c1, c2]
    layout = [6, 3, 4, 64]
    kept = [d for d in range(3) if d not in reduced]
    axes = [(6, c1, 1), (3, floor(c2 / 64), 2), (4, c0, 0)]
    coords = [expr if dim in kept else Integer(0) for _, expr, dim in axes]
    shape = [n if dim in kept else 1 for n, _, dim in axes]
    stick = Mod(c2, 64) if 2 in kept else Integer(0)
    spec = op(
        "sum",
        {s: (n, 1) for s, n in zip(symbols, size)},
        tensor(0, layout, [c1, floor(c2 / 64), c0, Mod(c2, 64)]),
        tensor(1, [*shape, 64], [*coords, stick], out=True),
        reduction=True,
    )
    spec = divide(spec, cores, 1 << 28)
    _, _, name = emit(spec)
    assert name == ("sum" if 2 in reduced else "sumnonstick")
    elements = Counter({(2 * x, SEGMENT + 2 * y): n for (x, y), n in walk(spec).items()})
    assert read(generate(spec, 0), labels_of(spec)) == elements


# ---- Golden files --------------------------------------------------------------------------------

GOLDEN_CASES = {
    "add": (lambda: [add()], {"symbolic": False}),
    "add_symbolic": (lambda: [add()], {"symbolic": True}),
    "matmul": (lambda: [matmul(4, 2, 1)], {"symbolic": False}),
    "sum_stick": (lambda: [sum_stick()], {"symbolic": False}),
    "gather": (lambda: [gather()], {"symbolic": False}),
    "restickify_padded": (lambda: [restickify(100, 200)], {"symbolic": False}),
    "relayout": (lambda: [relayout(4)], {"symbolic": True}),
}


@pytest.mark.parametrize("case", GOLDEN_CASES)
def test_files_are_the_golden_ones(case, tmp_path):
    specs, options = GOLDEN_CASES[case]
    generate_bundle(specs(), tmp_path, has_pool=False, **options)
    for expected in sorted((GOLDEN / case).iterdir()):
        found = (tmp_path / expected.name).read_text()
        if expected.suffix == ".json":
            assert json.loads(found) == json.loads(expected.read_text())
        assert found == expected.read_text()


def write_golden_files():
    for case, (specs, options) in GOLDEN_CASES.items():
        (GOLDEN / case).mkdir(parents=True, exist_ok=True)
        generate_bundle(specs(), GOLDEN / case, has_pool=False, **options)


def test_json_is_that_of_the_standard_library():
    content = generate(gather(), 3)
    text = dump_json(content)
    assert json.loads(text) == json.loads(json.dumps(content))
    assert text == dump_json(generate(gather(), 3))


# ---- Rules ---------------------------------------------------------------------------------------


def changed(change, spec=None):
    spec = spec or add()
    change(spec)
    return spec


def set_field(number, **fields):
    def change(spec):
        for key, value in fields.items():
            setattr(spec.args[number], key, value)

    return change


@pytest.mark.parametrize(
    "rule, change",
    [
        ("name of an OpFunc", lambda s: setattr(s, "op", "plus")),
        ("exactly one output", set_field(2, is_input=True)),
        ("exactly one output", set_field(0, is_input=False)),
        ("number of inputs", lambda s: s.args.pop(0)),
        ("constants", lambda s: s.op_info.update(constants={"eps": 1.0})),
        ("is_reduction", lambda s: setattr(s, "is_reduction", True)),
        ("address keys", set_field(1, allocation={"hbm": 0, "lx": 0})),
        ("address", set_field(1, allocation={"hbm": 64})),
        ("arg_index", set_field(1, arg_index=-1)),
        ("elements of a stick", set_field(1, device_size=[4, 128, 32])),
        ("a coordinate per axis", set_field(1, device_coordinates=[c0, c1])),
        ("coordinates", set_field(1, device_coordinates=[*rows(Symbol("q"), c1)])),
        ("aligned coordinates", set_field(1, device_coordinates=[*rows(c0 + c1, c1)])),
        ("aligned coordinates", set_field(1, device_coordinates=[floor(c1 / 64), c0, 2 * c1])),
        ("inside of the axis", set_field(1, device_coordinates=[*rows(c0 + 1, c1)])),
        ("one stick", set_field(1, device_size=[2, 256, 64], device_coordinates=rows(c1, c0))),
        ("format of the inputs", set_field(1, device_dtype=DataFormats.SENINT16)),
        ("format of the output", set_field(2, device_dtype=DataFormats.BFLOAT16)),
        ("element_arrangement", set_field(1, element_arrangement="SWIRL")),
        ("slices divide", lambda s: s.iteration_space.update({c0: (128, 3)})),
        ("slices divide", lambda s: s.iteration_space.update({c1: (256, 8)})),
        ("cores", lambda s: s.iteration_space.update({c0: (128, 64)})),
        ("tiled_symbols", lambda s: s.tiled_symbols.append(c3)),
    ],
)
def test_a_broken_rule_is_named(rule, change):
    with pytest.raises(InvalidOpSpec) as error:
        validate_op_spec(changed(change))
    assert error.value.rule.startswith(rule)
    assert "operation" in error.value.place


def test_topk_and_two_reduced_dimensions_are_not_cut():
    spec = matmul(1, 1, 1)
    validate_op_spec(spec)
    x = tensor(0, [6, 2, 4, 64], [c1, floor(c2 / 64), c0, Mod(c2, 64)])
    out = tensor(1, [2, 64], [floor(c2 / 64), Mod(c2, 64)], out=True)
    spec = op("sum", {c2: (128, 1), c0: (4, 2), c1: (6, 2)}, x, out, reduction=True)
    with pytest.raises(InvalidOpSpec, match="one reduced dimension is cut"):
        validate_op_spec(spec)


def test_a_file_with_a_missing_field_is_refused():
    content = generate(add(), 0)
    validate_superdsc(content)
    del content["0_add"]["dscs_"][0]["add"]["labeledDs_"]
    with pytest.raises(InvalidOpSpec, match="labeledDs_"):
        validate_superdsc(content)


def test_sticks_per_core_are_whole():
    assert math.prod(n for _, n in divide(add(1), 32, 1 << 28).iteration_space.values()) == 32


if __name__ == "__main__":
    write_golden_files()
