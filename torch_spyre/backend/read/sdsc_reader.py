"""Reads an sdsc_<i>.json into an Sdsc and the start addresses of its tensors.

Every field of the documented form must be there and have the right type; what the fields say
together is examined by `rules`. Errors name the field by its path in the file.
Example: `read_sdsc(Path("sdsc_0.json"))` gives `SdscFile(sdsc, starts, ...)`.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torch_spyre.backend.errors import refuse
from torch_spyre.backend.formats import FORMATS
from torch_spyre.backend.read import redundant_fields
from torch_spyre.backend.read.fields import Field, expect_cores, read_fields
from torch_spyre.backend.read.sdsc import MASK_CONSTANT, Constant, Sdsc, Tensor
from torch_spyre.backend.read.sdsc_tensors import read_labels, read_tensors
from torch_spyre.hardware import CARD
from torch_spyre.opfuncs import OPFUNCS, find


@dataclass(frozen=True)
class SdscFile:
    """An operation and where its tensors begin: for each tensor an address for each core.

    Negative addresses are symbol ids."""

    file: str
    key: str
    sdsc: Sdsc
    starts: tuple[tuple[int, ...], ...]
    symbolic: tuple[bool, ...]
    """For each tensor: its addresses are symbol ids."""
    coordinates: tuple[Field, ...] = ()
    """For each tensor: how cores walk over its dimensions, as it stands in the file."""

    @cached_property
    def symbols(self) -> frozenset[int]:
        """All symbol ids of the file."""
        return frozenset(s for starts, on in zip(self.starts, self.symbolic) if on for s in starts)


def read_sdsc(path: Path) -> SdscFile:
    """Read one file. Raises BundleError."""
    name = path.name
    top = read_fields(name, path.read_bytes())
    keys = list(top.object())
    if len(keys) != 1:
        refuse(name, "", f"{len(keys)} top-level fields", 'one, like "0_add"')
    match = re.fullmatch(r"(\d+)_(\w+)", keys[0])
    if match is None:
        refuse(name, keys[0], f'the key "{keys[0]}"', "<number>_<operation>")
    op = match.group(2)
    if find(op) is None:
        refuse(name, keys[0], f'the operation "{op}"', ", ".join(OPFUNCS))
    # The path in messages begins below the key, which every file has exactly one of.
    return _read(Field(name, top.value[keys[0]]), keys[0], op)


def _read(top: Field, key: str, op: str) -> SdscFile:
    top.object()
    _read_folds(top)
    cores = top.at("numCoresUsed_").integer(1, CARD.cores)
    splits = {d: f.integer(1) for d, f in top.at("numWkSlicesPerDim_").members()}
    slices = _read_slices(top, cores, splits)
    _read_core_maps(top, cores)
    if len(top.at("dscs_").items()) != 1:
        top.at("dscs_").fail(f"{len(top.at('dscs_').items())} entries", "one")
    entry = top.at("dscs_").at(0)
    if list(entry.object()) != [op]:
        entry.fail(f"the operation {', '.join(entry.object()) or 'nothing'}", f"{op}, as in {key}")
    dsc = entry.at(op)
    sizes = _read_sizes(dsc, splits)
    _read_dsc_cores(dsc, cores, sizes, splits)
    labels = read_labels(dsc, sizes)
    constants = _read_constants(dsc, cores)
    masks = _read_masks(dsc, sizes)
    tensors, starts, symbolic = read_tensors(dsc, labels, cores, list(sizes))
    inputs, output, index = _read_compute_op(dsc, op, tensors)
    _read_mask_constant(dsc, op, masks, constants)
    sdsc = Sdsc(
        op=op,
        sizes=tuple(sizes.items()),
        splits=tuple((d, splits[d]) for d in sizes),
        slices=tuple(tuple(s[d] for d in sizes) for s in slices),
        masks=masks,
        constants=tuple(constants.values()),
        tensors=tensors,
        inputs=inputs,
        output=output,
        index=index,
    )
    nodes = dsc.at("scheduleTree_").items()
    coordinates = tuple(node.at("coordinates_") for node in nodes)
    return SdscFile(top.file, key, sdsc, starts, symbolic, coordinates)


# ---- Cores and slices ----------------------------------------------------------------------------


def _read_folds(top: Field) -> None:
    top.at("sdscFoldProps_").repeats([redundant_fields.TIME], "there is one point in time")
    top.at("sdscFolds_").repeats(redundant_fields.OPERATION, "there is one point in time")
    cores = top.at("numCoresUsed_").integer(1, CARD.cores)
    core, corelet, _ = redundant_fields.attributes(cores)
    top.at("coreFoldProp_").repeats(core, "as numCoresUsed_")
    top.at("coreletFoldProp_").repeats(corelet, "corelets share the work themselves")


def _read_slices(top: Field, cores: int, splits: dict[str, int]) -> list[dict[str, int]]:
    field = top.at("coreIdToWkSlice_")
    expect_cores(field, cores)
    slices = []
    for core in range(cores):
        entry = field.at(str(core))
        for dim in entry.object():
            if dim not in splits:
                entry.at(dim).fail(f"the dimension {dim}", ", ".join(splits))
        slices.append({d: entry.at(d).integer(0, n - 1) for d, n in splits.items()})
    return slices


def _read_core_maps(top: Field, cores: int) -> None:
    for name in ("coreIdToDsc_", "coreIdToDscSchedule"):
        expect_cores(top.at(name), cores)
    for _, entry in top.at("coreIdToDsc_").members():
        entry.must_be(0, "the number of the one dsc")
    top.at("coreIdToDscSchedule").repeats(redundant_fields.schedules(cores), "the one dsc, once")


def _read_sizes(dsc: Field, splits: dict[str, int]) -> dict[str, int]:
    field = dsc.at("N_")
    field.at("name_").must_be("n", "the name of all sizes")
    sizes = {}
    for name, entry in field.members():
        if name == "name_":
            continue
        if not name.endswith("_"):
            entry.fail(f'the key "{name}"', 'a dimension with a final "_", like mb_')
        sizes[name[:-1]] = entry.integer(1)
    for dim in splits:
        if dim not in sizes:
            refuse(field.file, f"{field.path}.{dim}_", "nothing", "a size for each split dimension")
    for dim in sizes:
        if dim not in splits:
            refuse(
                field.file,
                f"numWkSlicesPerDim_.{dim}",
                "nothing",
                "a split for each dimension of N_",
            )
    return sizes


def _read_dsc_cores(dsc: Field, cores: int, sizes: dict[str, int], splits: dict[str, int]) -> None:
    dsc.at("numCoresUsed_").must_be(cores, "as numCoresUsed_ of the file")
    dsc.at("numCoreletsUsed_").must_be(1, "corelets share the work themselves")
    dsc.at("coreIdsUsed_").must_be(list(range(cores)), "all cores in order")
    for dim, size in sizes.items():
        if size % splits[dim]:
            refuse(
                dsc.file,
                f"numWkSlicesPerDim_.{dim}",
                str(splits[dim]),
                f"a divisor of {dsc.path}.N_.{dim}_ = {size}",
            )
    stage = dsc.at("dataStageParam_").at("0")
    for part in ("ss_", "el_"):
        stage.at(part).at("name_").must_be("core", "they are sizes of a core")
        for dim, size in sizes.items():
            stage.at(part).at(f"{dim}_").must_be(
                size // splits[dim], f"N_.{dim}_ = {size} over {splits[dim]} slices"
            )


# ---- Constants and masks -------------------------------------------------------------------------


def _read_constants(dsc: Field, cores: int) -> dict[int, Constant]:
    field = dsc.at("constantInfo_")
    if field.value == "{}":
        return {}
    constants: dict[int, Constant] = {}
    for key, entry in field.members():
        if not key.isdecimal():
            entry.fail(f'the id "{key}"', "0, 1, ...")
        fmt = entry.at("dataFormat_").text(*FORMATS)
        name = entry.at("name_").text()
        if any(c.name == name for c in constants.values()):
            entry.at("name_").fail(f'"{name}" twice', "each constant once")
        data = entry.at("data_").at("data_").at("[0, 0, 0]")
        if len(data.items()) != 1:
            data.wrong("a list with one number")
        entry.at("data_").at("dim_prop_func").repeats(
            redundant_fields.OF_CONSTANTS, "one number for all"
        )
        entry.at("data_").at("dim_prop_attr").repeats(
            redundant_fields.attributes(cores), "as numCoresUsed_"
        )
        bits = data.at(0).integer(0, (1 << (8 * FORMATS[fmt].bytes)) - 1)
        constants[int(key)] = Constant(name, fmt, bits, decode(fmt, bits))
    return constants


def decode(fmt: str, bits: int) -> float:
    """The value of a constant."""
    if fmt == "IEEE_FP32":
        return float(struct.unpack("<f", struct.pack("<I", bits))[0])
    if fmt == "IEEE_FP16":
        return float(struct.unpack("<e", struct.pack("<H", bits))[0])
    if fmt == "SEN169_FP16":
        sign = -1.0 if bits & 0x8000 else 1.0
        exponent, fraction = bits >> 9 & 0x3F, bits & 0x1FF
        if (exponent, fraction) == (0, 0):
            return sign * 0.0
        if exponent == 63 and fraction >= 510:
            return float("nan") if fraction == 511 else sign * float("inf")
        return sign * 2.0 ** (exponent - 31) * (1 + fraction / 512)
    if fmt == "BFLOAT16":
        return decode("IEEE_FP32", bits << 16)
    return float(bits)


def _read_masks(dsc: Field, sizes: dict[str, int]) -> tuple[tuple[str, int, int], ...]:
    masks = []
    for dim, entry in dsc.at("coordinateMasking_").members():
        if dim not in sizes:
            entry.fail(f"the dimension {dim}", f"dimensions of N_: {', '.join(sizes)}")
        ranges = entry.items()
        if len(ranges) != 1 or len(ranges[0].items()) != 2:
            entry.wrong("one range [[first, count]]")
        first, count = ranges[0].integers()
        size = sizes[dim]
        if first < 1 or count < 1 or first + count != size:
            entry.wrong(f"a range that ends where N_.{dim}_ = {size} ends, and leaves an index")
        masks.append((dim, first, count))
    return tuple(masks)


def _read_mask_constant(
    dsc: Field,
    op: str,
    masks: tuple[tuple[str, int, int], ...],
    constants: dict[int, Constant],
) -> None:
    field = dsc.at("maskingConstId_")
    number = field.integer(-1, 1 << 31)
    row = find(op)
    if number == -1:
        if masks and row is not None and row.kind == "reduction":
            field.wrong(f'the id of the constant "{MASK_CONSTANT}", since dimensions are masked')
        return
    known = ", ".join(f"{i} ({c.name})" for i, c in constants.items()) or "no constants"
    if number not in constants:
        field.wrong(f"-1 or the id of a constant; there are {known}")
    if constants[number].name != MASK_CONSTANT:
        field.fail(f"{number} ({constants[number].name})", f'the id of "{MASK_CONSTANT}"')


# ---- The operation -------------------------------------------------------------------------------


def _read_compute_op(
    dsc: Field, op: str, tensors: tuple[Tensor, ...]
) -> tuple[tuple[int, ...], int, int | None]:
    if len(dsc.at("computeOp_").items()) != 1:
        dsc.at("computeOp_").fail(f"{len(dsc.at('computeOp_').items())} entries", "one")
    compute = dsc.at("computeOp_").at(0)
    row = find(op)
    assert row is not None
    compute.at("opFuncName").must_be(op, "as the key of the dsc")
    compute.at("exUnit").must_be(row.unit, f"the unit of {op}")
    compute.at("location").text("Inner")
    compute.at("attributes_").at("dataFormat_").text(*FORMATS)
    compute.at("attributes_").at("fidelity_").text("regular")
    inputs = _tensor_numbers(compute.at("inputLabeledDs"), tensors)
    outputs = _tensor_numbers(compute.at("outputLabeledDs"), tensors)
    if len(outputs) != 1:
        compute.at("outputLabeledDs").wrong("one output")
    indirect = compute.find("indirectAccessIndexLabeledDs")
    index: int | None = None
    if indirect is not None:
        found = _tensor_numbers(indirect, tensors)
        if len(found) != 1 or tensors[found[0]].indirection != "index_tensor":
            indirect.wrong("one tensor whose indirectAllocType_ is index_tensor")
        index = found[0]
    if row.kind == "reduction":
        inputs = tuple(i for i in inputs if i != outputs[0])
    low, high = row.arity, row.arity
    if row.name == "layernormnorm":
        low = 3
    if not low <= len(inputs) <= high:
        allowed = str(high) if low == high else f"{low} to {high}"
        compute.at("inputLabeledDs").fail(
            f"{len(inputs)} inputs", f"{allowed} for {op}" + _extra_input(row.kind)
        )
    used = {*inputs, *outputs, *(() if index is None else (index,))}
    for tensor in tensors:
        if tensor.number not in used:
            compute.at("inputLabeledDs").fail(
                f"no use of {tensor.name}", "an operation that uses each of its tensors"
            )
    return inputs, outputs[0], index


def _extra_input(kind: str) -> str:
    return ", besides the output" if kind == "reduction" else ""


def _tensor_numbers(field: Field, tensors: tuple[Tensor, ...]) -> tuple[int, ...]:
    names = {f"{t.name}-idx{t.number}": t.number for t in tensors}
    numbers = []
    for item in field.items():
        if item.text() not in names:
            item.wrong(", ".join(names))
        numbers.append(names[item.text()])
    return tuple(numbers)
