"""Validator of OpSpecs, and of the schema of SuperDSC files.

In: an OpSpec as codegen takes it (aligned, divided over cores), or the JSON of a file. Out:
nothing, or InvalidOpSpec with the rule, the place, what was found and what is allowed. Runs in
tests and under SPYRE_VALIDATE. The back-end checks the content of files; here it is their shape.

Example: `operation add, tensor 2: address keys: found ['hbm', 'lx'], allowed one of hbm, pool, lx`.
"""

from __future__ import annotations

from math import prod
from typing import Any

from torch_spyre import opfuncs
from torch_spyre._C import DataFormats, ElementArrangement
from torch_spyre._inductor.opspec.access import Access, InvalidOpSpec, kind_of, read_accesses
from torch_spyre._inductor.opspec.loops import Spec
from torch_spyre._inductor.opspec.op_spec import (
    NO_SYMBOL,
    LoopSpec,
    OpSpec,
    TensorArg,
    UnimplementedOp,
)
from torch_spyre._inductor.opspec.relayout import relayout_info
from torch_spyre.constants import BYTES_IN_STICK
from torch_spyre.hardware import CARD

__all__ = ["InvalidOpSpec", "validate_op_spec", "validate_superdsc"]

SPACES = ("hbm", "pool", "lx")
ARRANGEMENTS = tuple(ElementArrangement.__members__)
# Fewest inputs, where the last ones are optional.
OPTIONAL_INPUTS = {"layernormnorm": 3}


def validate_op_spec(spec: Spec) -> None:
    """Check one operation, or all of a loop."""
    if isinstance(spec, LoopSpec):
        if spec.count < 1:
            raise InvalidOpSpec("count of a loop", "loop", spec.count, "1 or more")
        for part in spec.body:
            validate_op_spec(part)
    elif not isinstance(spec, UnimplementedOp):
        place = f"operation {spec.op}"
        kind = kind_of(spec)
        _check_signature(spec, kind, place)
        for number, arg in enumerate(spec.args):
            _check_arg(arg, f"{place}, tensor {number}")
        _check_space(spec, place)
        if spec.op == "relayout":
            for number in range(len(spec.args)):
                relayout_info(spec, number)
        else:
            accesses = read_accesses(spec)
            _check_axes(spec, accesses, place)
            _check_sticks(spec, kind, accesses, place)
            _check_slices(spec, kind, accesses, place)


# ---- 1. What the OpFunc table says ---------------------------------------------------------------


def _check_signature(op: OpSpec, kind: str, place: str) -> None:
    row = opfuncs.find(op.op)
    assert row is not None
    outputs = [number for number, arg in enumerate(op.args) if not arg.is_input]
    if outputs != [len(op.args) - 1]:
        raise InvalidOpSpec("exactly one output, last", place, outputs, [len(op.args) - 1])
    inputs = [arg for arg in op.args if arg.is_input and arg.name is None]
    fewest = OPTIONAL_INPUTS.get(op.op, row.arity)
    if not fewest <= len(inputs) <= row.arity:
        raise InvalidOpSpec("number of inputs", place, len(inputs), f"{fewest} to {row.arity}")
    constants = list(op.op_info.get("constants", {}))
    if constants != list(row.constants):
        raise InvalidOpSpec("constants", place, constants, list(row.constants))
    reduces = kind in ("reduction", "matmul", "topk")
    if op.is_reduction != reduces:
        raise InvalidOpSpec("is_reduction", place, op.is_reduction, reduces)
    # A condition is no operand: the format is that of what is chosen.
    found = inputs[-1].device_dtype.name
    if found not in row.formats:
        raise InvalidOpSpec("format of the inputs", place, found, row.formats)
    results = {"bool": (opfuncs.FP16,), "float": opfuncs.FLOATS}.get(row.result, (row.result,))
    result = op.args[-1].device_dtype.name
    if row.result != "same" and result not in results:
        raise InvalidOpSpec("format of the output", place, result, results)
    if row.result == "same" and result != found and not op.is_reduction:
        raise InvalidOpSpec("format of the output", place, result, found)


# ---- 2. Each tensor ------------------------------------------------------------------------------


def _check_arg(arg: TensorArg, place: str) -> None:
    spaces = list(arg.allocation)
    if len(spaces) != 1 or spaces[0] not in SPACES:
        raise InvalidOpSpec("address keys", place, spaces, f"one of {', '.join(SPACES)}")
    address = arg.allocation[spaces[0]]
    if address < 0 or address % BYTES_IN_STICK:
        raise InvalidOpSpec("address", place, address, f"a multiple of {BYTES_IN_STICK}")
    if (arg.arg_index >= 0) != (spaces[0] == "hbm"):
        raise InvalidOpSpec("arg_index", place, arg.arg_index, "0 or more for hbm, else -1")
    if any(size < 1 for size in arg.device_size) or len(arg.device_size) < 2:
        raise InvalidOpSpec("device_size", place, arg.device_size, "two or more positive sizes")
    eps = arg.device_dtype.elems_per_stick()
    if arg.device_size[-1] != eps:
        raise InvalidOpSpec("elements of a stick", place, arg.device_size[-1], eps)
    if len(arg.device_coordinates) != len(arg.device_size):
        found = len(arg.device_coordinates)
        raise InvalidOpSpec("a coordinate per axis", place, found, len(arg.device_size))
    if arg.stride_map is not None and len(arg.stride_map) != len(arg.device_size):
        raise InvalidOpSpec("a stride per axis", place, arg.stride_map, len(arg.device_size))
    if arg.element_arrangement not in ARRANGEMENTS:
        raise InvalidOpSpec("element_arrangement", place, arg.element_arrangement, ARRANGEMENTS)
    index_formats = (DataFormats.IEEE_INT32, DataFormats.SENUINT32)
    if arg.name is not None and arg.device_dtype not in index_formats:
        raise InvalidOpSpec("format of indices", place, arg.device_dtype.name, "IEEE_INT32")


def _check_space(op: OpSpec, place: str) -> None:
    for symbol, (size, slices) in op.iteration_space.items():
        if size < 1 or slices < 1:
            raise InvalidOpSpec(f"sizes of {symbol}", place, (size, slices), "1 or more")
    cores = prod(slices for _, slices in op.iteration_space.values())
    if cores > CARD.cores:
        raise InvalidOpSpec("cores", place, cores, f"1 to {CARD.cores}")
    unknown = [s for s in op.tiled_symbols if s not in op.iteration_space and s != NO_SYMBOL]
    if unknown:
        raise InvalidOpSpec("tiled_symbols", place, unknown, list(op.iteration_space))


def _check_axes(op: OpSpec, accesses: list[Access], place: str) -> None:
    for number, access in enumerate(accesses):
        seen = set()
        for axis in access.axes:
            where = f"{place}, tensor {number}, {axis.symbol}"
            if axis.symbol in seen:
                raise InvalidOpSpec("one axis per symbol", where, "two", "one")
            seen.add(axis.symbol)
            extent = op.iteration_space[axis.symbol][0]
            if axis.sticks:
                extent = -(-extent // access.eps)
            if not axis.gathered and axis.first + extent > axis.size:
                raise InvalidOpSpec("inside of the axis", where, axis.first + extent, axis.size)


# ---- 3. Sticks and slices ------------------------------------------------------------------------


def _check_sticks(op: OpSpec, kind: str, accesses: list[Access], place: str) -> None:
    values = [a for a in accesses if not a.is_index]
    if kind == "matmul":
        x, y, out = values
        *_, column, reduced = op.iteration_space
        if (x.stick, y.stick, out.stick) != (reduced, column, column):
            found = (x.stick, y.stick, out.stick)
            raise InvalidOpSpec("sticks of matmul", place, found, (reduced, column, column))
        return
    sticks = {a.stick for a in values if a.stick is not None}
    if kind == "restickify":
        if len(sticks) != 2:
            raise InvalidOpSpec("sticks of a restickify", place, sticks, "two different ones")
        return
    if len(sticks) > 1:
        raise InvalidOpSpec("one stick for all tensors", place, sticks, "one symbol")
    for number, access in enumerate(values):
        mixed = [a.symbol for a in access.axes if a.symbol in sticks and not a.sticks]
        if mixed:
            where = f"{place}, tensor {number}"
            raise InvalidOpSpec("the stick is no other axis", where, mixed, "whole sticks")


def _check_slices(op: OpSpec, kind: str, accesses: list[Access], place: str) -> None:
    cut = {symbol: n for symbol, (_, n) in op.iteration_space.items() if n > 1}
    if kind == "topk" and cut:
        raise InvalidOpSpec("topk runs on one core", place, cut, "no slices")
    for symbol, slices in cut.items():
        size = op.iteration_space[symbol][0]
        eps = max((a.eps for a in accesses if a.stick == symbol and not a.is_index), default=1)
        if -(-size // eps) % slices:
            where = f"{place}, {symbol}"
            raise InvalidOpSpec("slices divide", where, slices, f"divisors of {-(-size // eps)}")
        if kind == "restickify" and size % eps:
            raise InvalidOpSpec("a padded dimension stays whole", f"{place}, {symbol}", slices, 1)
    reduced = [s for s in cut if s not in accesses[-1].symbols]
    if len(reduced) > 1:
        raise InvalidOpSpec("one reduced dimension is cut", place, reduced, "one or none")


# ---- 4. Files ------------------------------------------------------------------------------------

_TOP = {
    "sdscFoldProps_": list, "sdscFolds_": dict, "coreFoldProp_": dict, "coreletFoldProp_": dict,
    "numCoresUsed_": int, "coreIdToDsc_": dict, "numWkSlicesPerDim_": dict,
    "coreIdToWkSlice_": dict, "coreIdToDscSchedule": dict, "dscs_": list,
}  # fmt: skip
_DSC = {
    "numCoresUsed_": int, "numCoreletsUsed_": int, "coreIdsUsed_": list, "N_": dict,
    "coordinateMasking_": dict, "maskingConstId_": int, "dataStageParam_": dict,
    "primaryDsInfo_": dict, "scheduleTree_": list, "labeledDs_": list,
    "constantInfo_": (dict, str), "computeOp_": list,
}  # fmt: skip
_NODE = {
    "nodeType_": str, "name_": str, "prev_": str, "ldsIdx_": int, "component_": str,
    "layoutDimOrder_": list, "maxDimSizes_": list, "indirectAllocType_": str,
    "startAddressCoreCorelet_": dict, "coordinates_": dict,
}  # fmt: skip
_LABELED = {
    "ldsIdx_": int, "dsName_": str, "dsType_": str, "scale_": list, "wordLength": int,
    "dataFormat_": str, "memOrg_": dict,
}  # fmt: skip


def validate_superdsc(content: dict[str, Any]) -> None:
    """Check that all fields are there, and that they agree in number."""
    if len(content) != 1:
        raise InvalidOpSpec("one operation per file", "file", list(content), "one key")
    ((name, top),) = content.items()
    _check_fields(top, _TOP, name)
    cores, slices = top["numCoresUsed_"], top["numWkSlicesPerDim_"]
    product = cores if name.endswith("_ringmove") else prod(slices.values())
    if product != cores or len(top["coreIdToWkSlice_"]) != cores:
        raise InvalidOpSpec("cores are the product of slices", name, cores, slices)
    opfunc = name.partition("_")[2]
    if [list(dsc) for dsc in top["dscs_"]] != [[opfunc]]:
        raise InvalidOpSpec("name of the dsc", name, top["dscs_"], opfunc)
    dsc = top["dscs_"][0][opfunc]
    _check_fields(dsc, _DSC, name)
    dims = [f"{dim}_" for dim in slices]
    if list(dsc["N_"]) != ["name_", *dims]:
        raise InvalidOpSpec("dimensions", f"{name}, N_", list(dsc["N_"]), dims)
    nodes, labeled = dsc["scheduleTree_"], dsc["labeledDs_"]
    if len(nodes) != len(labeled):
        raise InvalidOpSpec("a node per tensor", name, len(nodes), len(labeled))
    for node, entry in zip(nodes, labeled):
        place = f"{name}, {entry.get('dsName_')}"
        _check_fields(node, _NODE, place)
        _check_fields(entry, _LABELED, place)
        info = dsc["primaryDsInfo_"].get(entry["dsType_"])
        if info is None or len(info["layoutDimOrder_"]) != len(entry["scale_"]):
            raise InvalidOpSpec("scale of each dimension", place, entry["scale_"], info)
        if sorted(node["layoutDimOrder_"]) != sorted(info["layoutDimOrder_"]):
            found, allowed = node["layoutDimOrder_"], info["layoutDimOrder_"]
            raise InvalidOpSpec("dimensions of the class", place, found, allowed)
        starts = node["startAddressCoreCorelet_"].get("data_", {})
        if len(starts) != cores:
            raise InvalidOpSpec("a start address per core", place, len(starts), cores)


def _check_fields(found: dict[str, Any], fields: dict[str, Any], place: str) -> None:
    for key, kind in fields.items():
        if not isinstance(found.get(key), kind):
            raise InvalidOpSpec(f"field {key}", place, found.get(key), kind)
