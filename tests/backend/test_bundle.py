"""Reading bundles: what a good one says, and every way in which one can be wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import torch_spyre._C as _C
from tests.backend.make_bundle import FP16, FP32, INT32, LX, POOL, Repeat, T, op, write_bundle
from torch_spyre.backend import BundleError, mlir, read_bundle
from torch_spyre.backend.formats import ARRANGEMENTS, FORMATS
from torch_spyre.backend.reader import decode
from torch_spyre.backend.steps import Address, Space

HANDWRITTEN = Path(__file__).parent / "handwritten"
SIZES = {"mb": 128, "out": 256}
ROWS = T(["mb", "out"])
SPARSE = T(["mb", "out"], scale={"out": -2})
Json = Any


# ---- a good bundle -------------------------------------------------------------------------------


def test_the_handwritten_bundle_says_what_it_should():
    bundle = read_bundle(HANDWRITTEN)
    add, total = bundle.operations()
    assert bundle.pool == 0
    assert bundle.parameters[0] == "pool_base_addr" and len(bundle.parameters) == 4
    assert (add.name, total.name) == ("0_add", "1_sum")
    assert add.sdsc.sizes == (("mb", 96), ("out", 320)) and add.sdsc.cores == 4
    assert [a.argument for a in add.addresses] == [1, 2, 0]
    assert add.addresses[0].offsets == tuple(24 * 128 * c for c in range(4))
    assert total.sdsc.tensors[1].scale("out") == -2
    assert total.sdsc.reduced_dims() == ("out",)
    # 96 rows of 5 sticks: one row is 128 bytes from the next, one stick 96 rows.
    axes = add.sdsc.axes(add.sdsc.tensors[0])
    assert {d: (a.entries, a.stride) for d, a in axes.items()} == {
        "mb": (96, 128),
        "out": (5, 96 * 128),
    }


def test_equal_operations_are_equal_values(tmp_path):
    operations = [
        op("exp", SIZES, [ROWS.at(0)], ROWS.at(1)),
        op("exp", SIZES, [ROWS.at(1)], ROWS.at(2)),
    ]
    first, second = read_bundle(write_bundle(tmp_path, operations)).operations()
    assert first.sdsc == second.sdsc and hash(first.sdsc) == hash(second.sdsc)
    assert first.addresses != second.addresses


def test_a_bundle_read_by_lines_is_that_of_the_grammar():
    text = (HANDWRITTEN / "bundle.mlir").read_text()
    by_lines = mlir._parse_lines(text)
    assert by_lines is not None
    assert by_lines == mlir._Parser(text, "bundle.mlir").parse()
    other = text.replace(" = ", "  =  ")  # the same program, in another form
    assert mlir._parse_lines(other) is None
    assert mlir.parse_bundle_mlir(other) == by_lines


def test_concrete_addresses_name_arguments_by_their_segment(tmp_path):
    operations = [op("add", SIZES, [ROWS.at(0), ROWS.at(1, 4096)], ROWS.at(2), splits={"mb": 2})]
    bundle = read_bundle(write_bundle(tmp_path, operations, symbolic=False))
    addresses = bundle.operations()[0].addresses
    assert addresses[1] == Address(Space.ARGUMENT, 1, (4096, 4096 + 64 * 128))
    assert bundle.pool is None
    assert read_bundle(tmp_path, pool=True).pool == 0


def test_loops_and_affine_maps_become_strides(tmp_path):
    moving = ROWS.at(0, loop_strides=(65536, 256))
    still = ROWS.at(1, loop_strides=(0, 0))
    inner = Repeat(3, [op("exp", SIZES, [moving], still)])
    (outer,) = read_bundle(write_bundle(tmp_path, [Repeat(4, [inner])])).body
    (loop,) = outer.body
    (operation,) = loop.body
    assert (outer.count, loop.count) == (4, 3)
    assert [a.loop_strides for a in operation.addresses] == [(65536, 256), (0, 0)]


def test_a_tensor_in_lx_has_the_axes_of_one_core(tmp_path):
    operations = [op("exp", SIZES, [ROWS.at(0)], ROWS.at(LX, 256), splits={"mb": 4})]
    (operation,) = read_bundle(write_bundle(tmp_path, operations)).operations()
    axes = operation.sdsc.axes(operation.sdsc.tensors[1])
    assert axes["mb"].entries == 32 and axes["out"].stride == 32 * 128
    assert operation.addresses[1] == Address(Space.LX, 0, (256,) * 4)


def test_gaps_make_axes_longer_or_shorter(tmp_path):
    # Rows 32..95 of 128, as a copy.
    source = ROWS.at(0, 32 * 128, gap={"mb": 64})
    operations = [op("identity", {"mb": 64, "out": 256}, [source], ROWS.at(1), splits={"mb": 4})]
    (operation,) = read_bundle(write_bundle(tmp_path, operations)).operations()
    assert operation.sdsc.axes(operation.sdsc.tensors[0])["mb"].entries == 128
    assert operation.addresses[0].offsets == tuple(4096 + 2048 * c for c in range(4))


def test_formats_are_those_of_the_card():
    for name, fmt in FORMATS.items():
        known = getattr(_C.DataFormats, name)
        assert (known.value, known.elems_per_stick()) == (fmt.number, fmt.per_stick), name
    for name, number in ARRANGEMENTS.items():
        assert getattr(_C.ElementArrangement, name).value == number


@pytest.mark.parametrize("value", [0.0, 1.0, -2.5, 0.1, 3e8, 1e-9, float("inf"), float("-inf")])
def test_constants_are_decoded_as_the_card_encodes_them(value: float):
    for name, digits in (("IEEE_FP32", 1e-6), ("SEN169_FP16", 2e-3)):
        bits = _C.encode_constant(value, getattr(_C.DataFormats, name))
        assert decode(name, bits) == pytest.approx(value, rel=digits, abs=1e-30)


# ---- ways to break the handwritten one -----------------------------------------------------------

ADD = "0_add"


def dsc(content: Json) -> Json:
    (top,) = content.values()
    ((_, inner),) = top["dscs_"][0].items()
    return inner


def top(content: Json) -> Json:
    (inner,) = content.values()
    return inner


def remove(*path: str | int) -> Callable[[Json], None]:
    """Delete a field of the file, by its path below the key."""

    def change(content: Json) -> None:
        place = top(content)
        for part in path[:-1]:
            place = place[part]
        del place[path[-1]]

    return change


def put(*path_and_value: Any) -> Callable[[Json], None]:
    """Set a field of the file, by its path below the key."""
    *path, last, value = path_and_value

    def change(content: Json) -> None:
        place = top(content)
        for part in path:
            place = place[part]
        place[last] = value

    return change


def put_many(*changes: Callable[[Json], None]) -> Callable[[Json], None]:
    def change(content: Json) -> None:
        for one in changes:
            one(content)

    return change


def rename_key(new: str) -> Callable[[Json], None]:
    def change(content: Json) -> None:
        content[new] = content.pop(next(iter(content)))

    return change


D = ("dscs_", 0, "add")
S = ("dscs_", 0, "sum")
NODE, LABELED = (*D, "scheduleTree_"), (*D, "labeledDs_")
START = (*NODE, 1, "startAddressCoreCorelet_", "data_")


def mask(first: int, count: int, **constants: int) -> Callable[[Json], None]:
    """Mask the stick of the sum, with constants of these names and an id for the mask."""

    def change(content: Json) -> None:
        inner = dsc(content)
        inner["coordinateMasking_"] = {"out": [[first, count]]}
        inner["maskingConstId_"] = constants.pop("id", 0)
        inner["constantInfo_"] = {
            str(i): {"dataFormat_": FP16, "name_": name.replace("_", "-"),
                     "data_": {"dim_prop_func": [{"Const": {}}, {"Const": {}}, {"Map": {}}],
                               "dim_prop_attr": content["1_sum"]["dscs_"][0]["sum"][
                                   "scheduleTree_"][0]["startAddressCoreCorelet_"]["dim_prop_attr"],
                               "data_": {"[0, 0, 0]": [bits]}}}
            for i, (name, bits) in enumerate(constants.items())
        } or "{}"  # fmt: skip

    return change


# name of the case: (file, change, parts of the message)
BROKEN: dict[str, tuple[int, Callable[[Json], None], list[str]]] = {
    # fields that are not there, or of the wrong type
    **{
        f"missing {'.'.join(map(str, path))}": (
            0,
            remove(*path),
            [str(path[-1]), "found nothing" if isinstance(path[-1], str) else "found"],
        )
        for path in [
            ("sdscFoldProps_",), ("coreFoldProp_",), ("numCoresUsed_",), ("coreIdToDsc_",),
            ("numWkSlicesPerDim_",), ("coreIdToWkSlice_",), ("coreIdToDscSchedule",), ("dscs_",),
            (*D, "numCoresUsed_"), (*D, "N_"), (*D, "coordinateMasking_"), (*D, "maskingConstId_"),
            (*D, "dataStageParam_"), (*D, "primaryDsInfo_"), (*D, "constantInfo_"),
            (*D, "computeOp_"), (*D, "primaryDsInfo_", "OUTPUT", "stickSize_"),
            (*NODE, 0, "layoutDimOrder_"), (*NODE, 0, "component_"), (*NODE, 2, "maxDimSizes_"),
            (*NODE, 1, "startAddressCoreCorelet_"), (*NODE, 1, "coordinates_"),
            (*NODE, 1, "coordinates_", "coordInfo", "mb"), (*NODE, 1, "indirectAllocType_"),
            (*LABELED, 0, "scale_"), (*LABELED, 0, "dataFormat_"), (*LABELED, 1, "wordLength"),
            (*LABELED, 1, "memOrg_"), (*D, "computeOp_", 0, "exUnit"),
            (*D, "computeOp_", 0, "attributes_"), (*D, "computeOp_", 0, "inputLabeledDs"),
        ]
    },
    "a string for a number": (
        0, put("numCoresUsed_", "4"), ["numCoresUsed_", 'found "4"', "an integer"]),
    "an object for an array": (0, put("dscs_", {}), ["dscs_", "found {}", "an array"]),
    # the operation
    "unknown operation": (
        0, rename_key("0_addd"), ['the operation "addd"', "allowed: abs, neg, add"]),
    "a key without a number": (0, rename_key("add"), ['the key "add"', "<number>_<operation>"]),
    "another operation in dscs_": (
        0, rename_key("0_sub"), ["dscs_[0]", "the operation add", "sub, as in 0_sub"]),
    "another operation in computeOp_": (
        0, put(*D, "computeOp_", 0, "opFuncName", "mul"),
        ["computeOp_[0].opFuncName", 'found "mul"', '"add"']),
    "wrong unit": (
        0, put(*D, "computeOp_", 0, "exUnit", "pt"), ["exUnit", 'found "pt"', '"sfp"']),
    "too few inputs": (
        0, put(*D, "computeOp_", 0, "inputLabeledDs", ["Tensor0-idx0"]),
        ["computeOp_[0].inputLabeledDs", "found 1 inputs", "allowed: 2 for add"]),
    "too many inputs of a reduction": (
        1, put(*S, "computeOp_", 0, "inputLabeledDs", ["Tensor0-idx0"] * 3),
        ["inputLabeledDs", "found 3 inputs", "1 for sum, besides the output"]),
    "an unknown tensor": (
        0, put(*D, "computeOp_", 0, "inputLabeledDs", ["Tensor0-idx0", "Tensor7-idx7"]),
        ["inputLabeledDs[1]", "Tensor7-idx7", "Tensor1-idx1"]),
    "two outputs": (
        0, put(*D, "computeOp_", 0, "outputLabeledDs", ["Tensor1-idx1", "Tensor2-idx2"]),
        ["outputLabeledDs", "allowed: one output"]),
    "a tensor without use": (
        0, put(*D, "computeOp_", 0, "inputLabeledDs", ["Tensor0-idx0", "Tensor0-idx0"]),
        ["inputLabeledDs", "no use of Tensor1"]),
    # cores and slices
    "too many cores": (0, put("numCoresUsed_", 33), ["numCoresUsed_", "found 33", "1 to 32"]),
    "no core": (0, put("numCoresUsed_", 0), ["numCoresUsed_", "found 0", "1 to 32"]),
    "a fold of other size": (
        0, put("coreFoldProp_", "factor_", 8), ["coreFoldProp_.factor_", "found 8", "4"]),
    "corelets": (0, put(*D, "numCoreletsUsed_", 2), ["numCoreletsUsed_", "found 2", "1"]),
    "core ids out of order": (
        0, put(*D, "coreIdsUsed_", [1, 0, 2, 3]), ["coreIdsUsed_", "[0, 1, 2, 3]"]),
    "a core without dsc": (0, remove("coreIdToDsc_", "2"), ["coreIdToDsc_", "core 2"]),
    "a core without slice": (
        0, remove("coreIdToWkSlice_", "3"), ["coreIdToWkSlice_", "core 3", "4 cores"]),
    "a slice for a core too many": (
        0, put("coreIdToWkSlice_", "4", {"mb": 0, "out": 0}), ["coreIdToWkSlice_", '"4"']),
    "a slice without dimension": (
        0, remove("coreIdToWkSlice_", "1", "out"), ["coreIdToWkSlice_.1.out", "found nothing"]),
    "a slice of an unknown dimension": (
        0, put("coreIdToWkSlice_", "1", "x", 0), ["coreIdToWkSlice_.1.x", "dimension x", "mb"]),
    "a slice out of range": (
        0, put("coreIdToWkSlice_", "1", "mb", 4), ["coreIdToWkSlice_.1.mb", "found 4", "0 to 3"]),
    "two cores with one slice": (
        0, put("coreIdToWkSlice_", "2", "mb", 1),
        ["coreIdToWkSlice_.2", "(mb 1, out 0) of core 1", "each slice for one core"]),
    "slices that nobody does": (
        0, put_many(put("numWkSlicesPerDim_", "out", 5),
                    put(*D, "dataStageParam_", "0", "ss_", "out_", 64),
                    put(*D, "dataStageParam_", "0", "el_", "out_", 64)),
        ["numWkSlicesPerDim_", "20 slices (mb 4 * out 5) for 4 cores", "undone"]),
    "more cores than slices": (
        0, put_many(put("numWkSlicesPerDim_", "mb", 2),
                    *(put("coreIdToWkSlice_", str(c), "mb", c % 2) for c in range(4)),
                    put(*D, "dataStageParam_", "0", "ss_", "mb_", 48),
                    put(*D, "dataStageParam_", "0", "el_", "mb_", 48)),
        ["numWkSlicesPerDim_", "2 slices (mb 2 * out 1) for 4 cores"]),
    "a split that does not divide": (
        0, put(*D, "N_", "mb_", 98), ["numWkSlicesPerDim_.mb", "found 4", "add.N_.mb_ = 98"]),
    "a split of nothing": (
        0, put("numWkSlicesPerDim_", "mb", 0), ["numWkSlicesPerDim_.mb", "found 0", "1 or more"]),
    "a stage of other size": (
        0, put(*D, "dataStageParam_", "0", "el_", "mb_", 32),
        ["dataStageParam_.0.el_.mb_", "found 32", "24", "96 over 4 slices"]),
    # sizes
    "a size of nothing": (
        0, put(*D, "N_", "mb_", 0), ["dscs_[0].add.N_.mb_", "found 0", "1 or more"]),
    "a missing size": (
        0, remove(*D, "N_", "mb_"), ["dscs_[0].add.N_.mb_", "found nothing", "each split"]),
    "a missing split": (
        0, remove("numWkSlicesPerDim_", "out"), ["coreIdToWkSlice_.0.out", "dimension out", "mb"]),
    "a size without underscore": (
        0, put(*D, "N_", "x", 1), ["N_.x", 'the key "x"', "like mb_"]),
    # labels
    "an unknown label": (
        0, put(*D, "primaryDsInfo_", "RESULT", {}), ["primaryDsInfo_.RESULT", "OUTPUT, KERNEL"]),
    "a tensor of an unknown label": (
        0, put(*LABELED, 0, "dsType_", "KERNEL"), ["labeledDs_[0].dsType_", "KERNEL", "OUTPUT"]),
    "an unknown dimension in a label": (
        0, put(*D, "primaryDsInfo_", "OUTPUT", "layoutDimOrder_", ["mb", "x"]),
        ["primaryDsInfo_.OUTPUT.layoutDimOrder_", "dimension x", "mb, out"]),
    "a dimension twice in a label": (
        0, put(*D, "primaryDsInfo_", "OUTPUT", "layoutDimOrder_", ["mb", "mb"]),
        ["layoutDimOrder_", "mb twice"]),
    "a stick that is no dimension": (
        0, put(*D, "primaryDsInfo_", "OUTPUT", "stickDimOrder_", ["x"]),
        ["stickDimOrder_", '["x"]', "one dimension of mb, out"]),
    "two sticks": (
        0, put(*D, "primaryDsInfo_", "OUTPUT", "stickDimOrder_", ["mb", "out"]),
        ["stickDimOrder_", "one dimension"]),
    "a stick of another size": (
        0, put(*D, "primaryDsInfo_", "OUTPUT", "stickSize_", [32]),
        ["primaryDsInfo_.OUTPUT.stickSize_", "found [32]", "[64]", "SEN169_FP16"]),
    # tensors
    "an unknown format": (
        0, put(*LABELED, 0, "dataFormat_", "FP17"), ["labeledDs_[0].dataFormat_", "FP17", FP16]),
    "a word length of another format": (
        0, put(*LABELED, 0, "wordLength", 4), ["labeledDs_[0].wordLength", "found 4", "2", FP16]),
    "a format the operation does not have": (
        0, put_many(*(put(*LABELED, i, "dataFormat_", "IEEE_FP16") for i in range(3))),
        ["labeledDs_[0].dataFormat_", "add on IEEE_FP16", "SEN169_FP16, IEEE_FP32, IEEE_INT32"]),
    "too few scales": (
        0, put(*LABELED, 2, "scale_", [1]), ["labeledDs_[2].scale_", "1 entries", "2"]),
    "an unknown scale": (
        0, put(*LABELED, 2, "scale_", [1, 3]), ["labeledDs_[2].scale_[1]", "found 3", "1, -1, -2"]),
    "a sparse scale on a row": (
        0, put(*LABELED, 0, "scale_", [-2, 1]), ["labeledDs_[0].scale_[0]", "-2 is for the stick"]),
    "too few maximal sizes": (
        0, put(*NODE, 0, "maxDimSizes_", [-1]), ["scheduleTree_[0].maxDimSizes_", "1 entries"]),
    "an order of other dimensions": (
        0, put(*NODE, 0, "layoutDimOrder_", ["out"]),
        ["scheduleTree_[0].layoutDimOrder_", '["out"]', "mb, out"]),
    "reduced dimensions before others": (
        1, put(*S, "scheduleTree_", 1, "layoutDimOrder_", ["out", "mb"]),
        ["scheduleTree_[1].layoutDimOrder_", "after all others"]),
    "two tensors of one name": (
        0, put(*LABELED, 1, "dsName_", "Tensor0"), ["labeledDs_[1].dsName_", '"Tensor0" twice']),
    "two nodes of one name": (
        0, put(*NODE, 1, "name_", "allocate-Tensor0_hbm"),
        ["scheduleTree_[0].name_", "twice"]),
    "a tensor out of order": (
        0, put(*NODE, 1, "ldsIdx_", 2), ["scheduleTree_[1].ldsIdx_", "found 2", "1"]),
    "a node too few": (
        0, remove(*NODE, 2), ["scheduleTree_", "found 2 nodes", "each of 3 tensors"]),
    "a node of another kind": (
        0, put(*NODE, 0, "nodeType_", "move"), ["nodeType_", 'found "move"', "allocate"]),
    "an unknown component": (
        0, put(*NODE, 0, "component_", "l3"), ["component_", 'found "l3"', "hbm, lx"]),
    "a component that is not present": (
        0, put(*LABELED, 0, "memOrg_", {"lx": {"isPresent": 1}}), ["memOrg_", "hbm"]),
    "an unknown arrangement": (
        0, put(*LABELED, 0, "elementArrangement_", "ODD"),
        ["elementArrangement_", '"ODD"', "STANDARD, DL16_TO_FP32"]),
    "an arrangement of another format": (
        0, put(*LABELED, 0, "elementArrangement_", "DL16_TO_FP32"),
        ["elementArrangement_", "DL16_TO_FP32 on SEN169_FP16"]),
    "an unknown indirection": (
        0, put(*NODE, 0, "indirectAllocType_", "maybe"), ["indirectAllocType_", "maybe"]),
    "an output that does not vary": (
        0, put_many(put(*LABELED, 2, "scale_", [-1, 1]),
                    put(*NODE, 2, "layoutDimOrder_", ["out", "mb"])),
        ["labeledDs_[2].scale_", "-1 for mb", "96 results go to one place"]),
    "a reduction that keeps its stick": (
        1, put(*S, "labeledDs_", 1, "scale_", [1, 1]),
        ["labeledDs_[1].scale_", "the stick is not reduced", "sumnonstick"]),
    # gaps
    "a gap of an unknown dimension": (
        0, put(*NODE, 0, "backGapCore_", {"x": {"-1": "4"}}), ["backGapCore_.x", "dimension x"]),
    "a gap that is no string": (
        0, put(*NODE, 0, "backGapCore_", {"mb": {"-1": 4}}), ["backGapCore_.mb.-1", "found 4"]),
    "a gap that eats the axis": (
        0, put(*NODE, 0, "backGapCore_", {"mb": {"-1": "-96"}}),
        ["scheduleTree_[0].backGapCore_.mb", "axis of 0", "1 or more"]),
    "a gap inside a stick": (
        0, put(*NODE, 0, "backGapCore_", {"out": {"-1": "32"}}),
        ["scheduleTree_[0].backGapCore_.out", "352 elements", "whole sticks of 64"]),
    "rows that are not there": (
        0, put(*NODE, 0, "backGapCore_", {"mb": {"-1": "-4"}}),
        ["backGapCore_.mb", "has 92 of 96 indices", "unless the rest is masked"]),
    "gaps that differ": (
        0, put(*NODE, 0, "backGapCore_", {"mb": {"0": "4", "1": "8", "2": "4", "3": "4"}}),
        ["backGapCore_.mb", "the same for all cores"]),
    # addresses
    "a core without address": (
        0, remove(*START, "[2, 0, 0]"), ["startAddressCoreCorelet_.data_", "no entry [2, 0, 0]"]),
    "an address for a core too many": (
        0, put(*START, "[4, 0, 0]", "-5"), ["data_", "an entry [4, 0, 0]", "4 cores"]),
    "an address that is no number": (
        0, put(*START, "[1, 0, 0]", "0x80"), ["data_.[1, 0, 0]", '"0x80"', "decimal"]),
    "a concrete address among symbols": (
        0, put(*START, "[1, 0, 0]", "4096"), ["data_.[1, 0, 0]", '"4096"', "negative symbol id"]),
    "a symbol among concrete addresses": (
        0, remove(*NODE, 1, "isStartAddrSymbolic_"), ['found "-5"', "isStartAddrSymbolic_ is not"]),
    "a symbol that is not passed": (
        0, put(*START, "[1, 0, 0]", "-99"), ["symbol id -99", "symbol_ids of line", "-1, -2"]),
    "a symbol that is not used": (
        0, put(*START, "[1, 0, 0]", "-5"), ["bundle.mlir: line", "symbol id -6", "does not use"]),
    "a start in another core's slice": (
        0, put_many(put(*START, "[1, 0, 0]", "-7"), put(*START, "[2, 0, 0]", "-6")),
        ["scheduleTree_[1]", "[1, 0, 0]", "found 6144", "3072, where the slice of core 1"]),
    "an output written twice": (
        1, put_many(put(*S, "scheduleTree_", 1, "startAddressCoreCorelet_", "data_", "[1, 0, 0]",
                        "-17"),
                    put(*S, "scheduleTree_", 1, "startAddressCoreCorelet_", "data_", "[0, 0, 0]",
                        "-18"),
                    put(*S, "scheduleTree_", 1, "startAddressCoreCorelet_", "data_", "[2, 0, 0]",
                        "-17")),
        ["line", "symbol id -19"]),
    # masks and constants
    "a mask of an unknown dimension": (
        1, put(*S, "coordinateMasking_", {"x": [[1, 1]]}), ["coordinateMasking_.x", "dimension x"]),
    "a mask outside": (
        1, mask(300, 40, samv_maskvalue=0), ["coordinateMasking_.out", "[[300, 40]]", "320"]),
    "a mask that ends too early": (
        1, mask(300, 10, samv_maskvalue=0), ["coordinateMasking_.out", "[[300, 10]]", "320"]),
    "a mask of everything": (
        1, mask(0, 320, samv_maskvalue=0), ["coordinateMasking_.out", "[[0, 320]]"]),
    "a mask of another form": (
        1, put(*S, "coordinateMasking_", {"out": [300, 20]}), ["coordinateMasking_.out"]),
    "a mask without constant": (
        1, mask(300, 20, id=0), ["maskingConstId_", "found 0", "no constants"]),
    "a mask without id": (
        1, mask(300, 20, id=-1, samv_maskvalue=0), ["maskingConstId_", "found -1", "samv-maskvalue"]
    ),
    "a mask with the id of another constant": (
        1, mask(300, 20, id=0, scaling=0, samv_maskvalue=0),
        ["maskingConstId_", "0 (scaling)", "samv-maskvalue"]),
    "a mask of a kept dimension": (
        1, put_many(mask(300, 20, samv_maskvalue=0),
                    put(*S, "coordinateMasking_", {"mb": [[90, 6]]})),
        ["coordinateMasking_.mb", "not reduced", "out"]),
    "a mask in a pointwise operation": (
        0, put(*D, "coordinateMasking_", {"out": [[300, 20]]}),
        ["coordinateMasking_.out", "masked indices in add"]),
    "a constant that does not fit": (
        1, mask(300, 20, samv_maskvalue=1 << 16), ["constantInfo_.0.data_", "65536", "0 to 65535"]),
}  # fmt: skip


def broken_copy(tmp_path: Path) -> Path:
    directory = tmp_path / "bundle"
    shutil.copytree(HANDWRITTEN, directory)
    return directory


def refusal(directory: Path) -> str:
    with pytest.raises(BundleError) as error:
        read_bundle(directory)
    message = str(error.value)
    assert "\n" not in message and len(message) < 1000
    return message


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_and_the_message_names_the_place(tmp_path, name: str):
    number, change, parts = BROKEN[name]
    directory = broken_copy(tmp_path)
    path = directory / f"sdsc_{number}.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    message = refusal(directory)
    if not any("line" in part for part in parts):
        assert message.startswith(f"sdsc_{number}.json: ")
    for part in parts:
        assert part in message, message
    assert "allowed: " in message


def leaves(value: Json, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of everything in a file that holds nothing itself."""
    if not isinstance(value, (dict, list)) or not value:
        return [path]
    members = value.items() if isinstance(value, dict) else enumerate(value)
    return [found for key, member in members for found in leaves(member, (*path, key))]


@pytest.mark.parametrize("number", [0, 1])
def test_no_field_may_be_missing_or_say_something_else(tmp_path, number):
    directory = broken_copy(tmp_path)
    path = directory / f"sdsc_{number}.json"
    whole = path.read_text()
    passed = []
    for place in leaves(json.loads(whole)):
        for missing in (True, False):
            content = json.loads(whole)
            inner = content
            for key in place[:-1]:
                inner = inner[key]
            if missing:
                del inner[place[-1]]
            else:
                inner[place[-1]] = 99 if isinstance(inner[place[-1]], int) else "something"
            path.write_text(json.dumps(content))
            try:
                read_bundle(directory)
            except BundleError as error:
                assert ": found " in str(error) and ", allowed: " in str(error), error
            else:
                name = [key for key in place if isinstance(key, str)][-1]
                passed.append((name, "missing" if missing else "changed"))
    # Names of nodes are free as long as nobody refers to them; that a reduction lists its output
    # among its inputs as well says nothing.
    assert set(passed) <= {("name_", "changed"), ("inputLabeledDs", "missing")}


def test_there_are_more_than_a_hundred_ways_to_break_a_file():
    assert len(BROKEN) > 100


# ---- files and bundle.mlir -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, parts",
    [
        ("{", ["not valid JSON", "line 1 column 2"]),
        ("", ["not valid JSON"]),
        ("[]", ["found []", "an object"]),
        ("{}", ["0 top-level fields", '"0_add"']),
        ('{"0_add": {}, "1_add": {}}', ["2 top-level fields"]),
        ('{"0_add": 3}', ["found 3", "an object"]),
        ('{"0_add": {"a": 1, "a": 2}}', ["a: found twice in one object"]),
    ],
)
def test_a_file_that_is_no_operation(tmp_path, text: str, parts: list[str]):
    directory = broken_copy(tmp_path)
    (directory / "sdsc_0.json").write_text(text)
    message = refusal(directory)
    assert message.startswith("sdsc_0.json: ")
    for part in parts:
        assert part in message, message


def test_missing_directory_and_files(tmp_path):
    assert "nowhere: found no such directory" in refusal(tmp_path / "nowhere")
    assert "found no bundle.mlir" in refusal(tmp_path)
    directory = broken_copy(tmp_path)
    (directory / "sdsc_1.json").rename(directory / "sdsc_2.json")
    message = refusal(directory)
    assert "bundle.mlir: line 23: found unknown file 'sdsc_1.json'" in message
    assert "allowed: sdsc_0.json, sdsc_2.json" in message


def test_a_file_that_is_not_used(tmp_path):
    directory = broken_copy(tmp_path)
    shutil.copy(directory / "sdsc_1.json", directory / "sdsc_2.json")
    assert refusal(directory).startswith("sdsc_2.json: found no sdsc_execute of it in bundle.mlir")


def replaced(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    return change


EXECUTE = "sdscbundle.sdsc_execute (%pool, "


@pytest.mark.parametrize(
    "change, parts",
    [
        (replaced("module", "modul"), ["line 1, column 1", "found 'modul'", "'module'"]),
        (replaced("@sdsc_bundle", "@main"), ["line 2", "found '@main'", "'@sdsc_bundle'"]),
        (replaced("\t\treturn\n", ""), ["found '}'", "an operation of the subset, or 'return'"]),
        (replaced("\t}\n}\n", "\t}\n"), ["the end of the file", "'}'"]),
        (lambda text: text + "module", ["found 'module'", "the end of the file"]),
        (replaced("return", "?"), ["found '?'", "MLIR subset"]),
        (replaced("arith.addi", "arith.muli"), ["found 'arith.muli'", "arith.addi"]),
        (replaced("%arg_0, %offset_3072", "%arg_9, %offset_3072"),
         ["line 8, column 33", "unknown SSA value %arg_9", "%pool, %arg_0"]),
        (replaced("%arg_0, %offset_3072", "%arg_0_base_addr, %offset_3072"),
         ["unknown SSA value %arg_0_base_addr (a parameter: extract its value first)"]),
        (replaced("%arg_0, %offset_3072", "%arg_0, %arg_1"), ["an address with two bases"]),
        (replaced("arith.constant 3072", "arith.constant many"), ["found 'many'", "an integer"]),
        (replaced("from %arg_1_base_addr", "from %arg_7_base_addr"),
         ["unknown parameter %arg_7_base_addr", "%pool_base_addr, %arg_0_base_addr"]),
        (replaced("%arg_1_base_addr:", "%arg_0_base_addr:"), ["%arg_0_base_addr appears twice"]),
        (replaced("%arg_1 =", "%arg_0 ="), ["%arg_0 is defined twice", "once"]),
        (replaced("!sdscbundle.input_arg<index>", "index"), ["'index'", "!sdscbundle.input_arg"]),
        (replaced(EXECUTE, "sdscbundle.sdsc_execute ("),
         ["line 23", "found 7 operands and 8 symbol_ids", "one operand for each"]),
        (replaced("-13, -14", "-13, -13"), ["symbol id -13 appears twice"]),
        (replaced("-13, -14", "-13, 14"), ["symbol id 14", "negative integers"]),
        (replaced("-13, -14", "-13, -21"), ["sdsc_1.json", "symbol id -14", "-13, -21, -15"]),
        (replaced('sdsc_filename="sdsc_1.json", ', ""), ["without sdsc_filename"]),
        (replaced('"symbol_ids"', '"ids"'), ['unknown attribute "ids"', "symbol_ids"]),
        (replaced('"sdsc_1.json"', "sdsc_1.json"), ["found 'sdsc_1.json'", "a file name"]),
        (replaced('"sdsc_1.json"', '"../x.json"'), ["unknown file '../x.json'"]),
        (replaced("%pool_base_addr: !sdscbundle.input_arg<index>, %arg_0_base_addr",
                  "%arg_0_base_addr: !sdscbundle.input_arg<index>, %pool_base_addr"),
         ["%pool_base_addr is parameter 1", "allowed: 0"]),
        (replaced("arith.constant 3072", "arith.constant 3073"),
         ["sdsc_0.json", "data_.[1, 0, 0]", "found 3073", "a multiple of 128"]),
        (replaced("arith.constant 3072", "arith.constant 17179869184"),
         ["sdsc_0.json", "17179869184 with", "the end of the segment"]),
        (replaced("arith.constant 3072", "arith.constant -3072"), ["found -3072 with", "up to"]),
        (replaced("%arg_2_core_3072 = arith.addi %arg_2", "%arg_2_core_3072 = arith.addi %arg_1"),
         ["sdsc_1.json", "several bases", "one base for all cores"]),
        (replaced("(%pool, %pool_core_3072", "(%pool_core_3072, %pool_core_3072"),
         ["sdsc_1.json", "scheduleTree_[0]", "found 3072", "allowed: 6144, where the slice"]),
        (replaced("%arg_2, %arg_2_core_3072", "%arg_2, %arg_2"),
         ["scheduleTree_[1]", "found 0, where core 0 writes another slice", "place of its own"]),
    ],
)  # fmt: skip
def test_a_broken_bundle_mlir(tmp_path, change: Callable[[str], str], parts: list[str]):
    directory = broken_copy(tmp_path)
    path = directory / "bundle.mlir"
    path.write_text(change(path.read_text()))
    message = refusal(directory)
    for part in parts:
        assert part in message, message


LOOP = """#map_0 = affine_map<(d0)[s0] -> (s0 + 128*d0)>
module {
\tfunc.func @sdsc_bundle(%arg_0_base_addr: !sdscbundle.input_arg<index>) {
\t\t%arg_0 = sdscbundle.input_arg_extract value from %arg_0_base_addr : !sdscbundle.input_arg<index> -> index
\t\t%c0 = arith.constant 0 : index
\t\t%c1 = arith.constant 1 : index
\t\t%n = arith.constant 4 : index
\t\tscf.for %i_0 = %c0 to %n step %c1 {
\t\t\t%a = affine.apply #map_0(%i_0)[%arg_0]
\t\t}
\t\treturn
\t}
}
"""  # noqa: E501


@pytest.mark.parametrize(
    "change, parts",
    [
        (replaced("%c0 to %n", "%c0 to %arg_0"), ["loop upper bound %arg_0 is not constant"]),
        (replaced("= %c0 to", "= %arg_0 to"), ["loop lower bound %arg_0 is not constant"]),
        (replaced("constant 4", "constant 0"), ["loop runs 0 times", "once or more"]),
        (replaced("constant 1", "constant 0"), ["loop step is 0", "1 or more"]),
        (replaced("#map_0(", "#map_1("), ["unknown map #map_1", "#map_0"]),
        (replaced("(%i_0)[%arg_0]", "(%i_0, %i_0)[%arg_0]"), ["2 dimensions for #map_0"]),
        (replaced("(%i_0)[%arg_0]", "(%i_0)"), ["0 symbols for #map_0", "allowed: 1"]),
        (replaced("128*d0", "d0*d0"), ["found 'd0'", "constants times dimensions"]),
        (replaced("128*d0", "2*s0"), ["two bases"]),
        (replaced("%a =", "%c0 ="), ["%c0 is defined twice"]),
        (replaced("(%i_0)[", "(%i_1)["), ["unknown SSA value %i_1"]),
    ],
)
def test_a_broken_loop(tmp_path, change: Callable[[str], str], parts: list[str]):
    (tmp_path / "bundle.mlir").write_text(LOOP)
    assert read_bundle(tmp_path).operations() == []
    (tmp_path / "bundle.mlir").write_text(change(LOOP))
    message = refusal(tmp_path)
    assert message.startswith("bundle.mlir: line ")
    for part in parts:
        assert part in message, message


def test_cores_that_move_differently_in_a_loop(tmp_path):
    moving = ROWS.at(0, loop_strides=(128,))
    operation = op("exp", SIZES, [moving], ROWS.at(1, loop_strides=(0,)), splits={"mb": 2})
    write_bundle(tmp_path, [Repeat(2, [operation])])
    path = tmp_path / "bundle.mlir"
    lines = path.read_text().split("\n")
    lines.insert(0, "#map_9 = affine_map<(d0)[s0] -> (s0 + 256*d0)>")
    at = next(i for i, line in enumerate(lines) if "affine.apply #map_0" in line)
    lines[at] = lines[at].replace("#map_0", "#map_9")
    path.write_text("\n".join(lines))
    assert "cores that move differently in a loop" in refusal(tmp_path)


# ---- what other operations may not be ------------------------------------------------------------

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


def test_concrete_addresses_in_a_bundle_with_parameters(tmp_path):
    operations = [op("exp", SIZES, [ROWS.at(0)], ROWS.at(1))]
    write_bundle(tmp_path / "a", operations)
    write_bundle(tmp_path / "b", operations, symbolic=False)
    shutil.copy(tmp_path / "b" / "sdsc_0.json", tmp_path / "a")
    path = tmp_path / "a" / "bundle.mlir"
    text = path.read_text()
    start = text.index("sdscbundle.sdsc_execute")
    call = 'sdscbundle.sdsc_execute () {sdsc_filename="sdsc_0.json"}'
    path.write_text(text[:start] + call + "\n\t\treturn\n\t}\n}\n")
    assert "bundle.mlir has parameters" in refusal(tmp_path / "a")


def test_addresses_in_several_segments(tmp_path):
    operation = op("exp", SIZES, [ROWS.at(0)], ROWS.at(1), splits={"mb": 2})
    write_bundle(tmp_path, [operation], symbolic=False)
    path = tmp_path / "sdsc_0.json"
    path.write_text(path.read_text().replace('"8192"', f'"{2 << 34}"'))
    assert "addresses in segments [0, 2]" in refusal(tmp_path)


def test_a_pool_is_known_by_its_name(tmp_path):
    operations = [
        op("exp", SIZES, [ROWS.at(0)], ROWS.at(POOL)),
        op("exp", SIZES, [ROWS.at(POOL)], ROWS.at(1)),
    ]
    assert read_bundle(write_bundle(tmp_path, operations)).pool == 0
