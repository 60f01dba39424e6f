"""Files of operations that are wrong: fields that are missing, say something else or contradict.

Each case changes one thing of the handwritten bundle, and the message names the place.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.broken_bundles import broken_copy, refusal
from tests.support.make_bundle import FP16
from torch_spyre.backend import BundleError, read_bundle

Json = Any

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
    # Names of nodes are free as long as nothing refers to them; that a reduction lists its output
    # among its inputs as well says nothing.
    assert set(passed) <= {("name_", "changed"), ("inputLabeledDs", "missing")}


def test_there_are_more_than_a_hundred_ways_to_break_a_file():
    assert len(BROKEN) > 100


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
