"""Reads an sdsc_<i>.json into an Sdsc and the start addresses of its tensors.

Every field of the documented form must be there and have the right type; what the fields say
together is examined by `checks`. Errors name the field by its path in the file.
Example: `read_sdsc(Path("sdsc_0.json"))` gives `SdscFile(sdsc, starts, ...)`.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from torch_spyre.backend.errors import BundleError, refuse
from torch_spyre.backend.formats import ARRANGEMENTS, FORMATS
from torch_spyre.backend.read import redundant_fields
from torch_spyre.backend.read.sdsc import MASK_CONSTANT, Constant, Parts, Placement, Sdsc, Tensor
from torch_spyre.hardware import CARD
from torch_spyre.opfuncs import OPFUNCS, find

LABELS = ("OUTPUT", "KERNEL", "INPUT", "KERNEL_IDX")
INDIRECTIONS = ("no_indirection", "index_tensor", "value_tensor")


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


class Field:
    """A value of the file and its path.

    There is one for each value that is looked at, so it is made fast; its path is put together
    when a message needs it."""

    __slots__ = ("file", "key", "parent", "value")

    def __init__(
        self, file: str, value: Any, parent: Field | None = None, key: str | int = ""
    ) -> None:
        self.file = file
        self.value = value
        self.parent = parent
        self.key = key

    @property
    def path(self) -> str:
        return "" if self.parent is None else self.parent.path_of(self.key)

    def path_of(self, key: str | int) -> str:
        """The path of a member."""
        if isinstance(key, int):
            return f"{self.path}[{key}]"
        return f"{self.path}.{key}" if self.path else key

    def fail(self, found: str, allowed: str) -> NoReturn:
        refuse(self.file, self.path, found, allowed)

    def show(self) -> str:
        text = json.dumps(self.value)
        return text if len(text) <= 60 else text[:57] + "..."

    def wrong(self, allowed: str) -> NoReturn:
        self.fail(self.show(), allowed)

    def at(self, key: str | int) -> Field:
        """A member of an object or an array, which must be there."""
        if isinstance(key, int):
            return Field(self.file, self.value[key], self, key)
        members = self.value if type(self.value) is dict else self.object()
        if key not in members:
            refuse(self.file, self.path_of(key), "nothing", f"this field; there are {self._keys()}")
        return Field(self.file, members[key], self, key)

    def find(self, key: str) -> Field | None:
        members = self.object()
        return Field(self.file, members[key], self, key) if key in members else None

    def _keys(self) -> str:
        return ", ".join(self.object()) or "no fields"

    def object(self) -> dict[str, Any]:
        if not isinstance(self.value, dict):
            self.wrong("an object")
        return self.value

    def members(self) -> Iterator[tuple[str, Field]]:
        for key in self.object():
            yield key, self.at(key)

    def items(self) -> list[Field]:
        if not isinstance(self.value, list):
            self.wrong("an array")
        return [self.at(i) for i in range(len(self.value))]

    def integer(self, low: int | None = None, high: int | None = None) -> int:
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            self.wrong("an integer")
        if (low is not None and self.value < low) or (high is not None and self.value > high):
            bounds = f"{low} or more" if high is None else f"{low} to {high}"
            self.wrong(f"an integer of {bounds}")
        return self.value

    def decimal(self) -> int:
        """An integer written as a string, as in "4096" and "-1"."""
        if not isinstance(self.value, str) or not re.fullmatch(r"-?\d+", self.value):
            self.wrong('a decimal string like "4096"')
        return int(self.value)

    def text(self, *allowed: str) -> str:
        if not isinstance(self.value, str):
            self.wrong("a string")
        if allowed and self.value not in allowed:
            self.wrong(", ".join(allowed))
        return self.value

    def texts(self) -> tuple[str, ...]:
        return tuple(item.text() for item in self.items())

    def integers(self) -> tuple[int, ...]:
        return tuple(item.integer() for item in self.items())

    def must_be(self, expected: Any, why: str) -> None:
        if self.value != expected:
            self.wrong(f"{json.dumps(expected)}, {why}")

    def repeats(self, expected: Any, why: str) -> None:
        """Must say what other fields say already; the error names the innermost difference."""
        if self.value == expected:
            return
        if isinstance(expected, dict):
            for key, value in expected.items():
                self.at(key).repeats(value, why)
            extra = next(key for key in self.object() if key not in expected)
            self.at(extra).fail("a field too many", f"{', '.join(expected) or 'none'}, {why}")
        if isinstance(expected, list) and len(self.items()) == len(expected):
            for item, value in zip(self.items(), expected, strict=True):
                item.repeats(value, why)
        self.must_be(expected, why)


def read_sdsc(path: Path) -> SdscFile:
    """Read one file. Raises BundleError."""
    name = path.name
    try:
        content = json.loads(path.read_bytes(), object_pairs_hook=_unique(name))
    except ValueError as error:
        refuse(name, "", f"not valid JSON: {error}", "an object")
    top = Field(name, content)
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
    return _read(Field(name, content[keys[0]]), keys[0], op)


def _unique(file: str) -> Any:
    def hook(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for i, key in enumerate(keys) if key in keys[:i])
            raise BundleError(f"{file}: {twice}: found twice in one object, allowed: once")
        return result

    return hook


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
    labels = _read_labels(dsc, sizes)
    constants = _read_constants(dsc, cores)
    masks = _read_masks(dsc, sizes)
    tensors, starts, symbolic = _read_tensors(dsc, labels, cores, list(sizes))
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
    _expect_cores(field, cores)
    slices = []
    for core in range(cores):
        entry = field.at(str(core))
        for dim in entry.object():
            if dim not in splits:
                entry.at(dim).fail(f"the dimension {dim}", ", ".join(splits))
        slices.append({d: entry.at(d).integer(0, n - 1) for d, n in splits.items()})
    return slices


def _expect_cores(field: Field, cores: int) -> None:
    """An object with exactly the keys "0" to "<cores - 1>"."""
    found = list(field.object())
    for core in range(cores):
        if str(core) not in found:
            field.fail(f"no entry for core {core}", f"one for each of {cores} cores")
    for core_key in found:
        if not core_key.isdecimal() or int(core_key) >= cores:
            field.fail(f'an entry "{core_key}"', f"one for each of {cores} cores")


def _read_core_maps(top: Field, cores: int) -> None:
    for name in ("coreIdToDsc_", "coreIdToDscSchedule"):
        _expect_cores(top.at(name), cores)
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


# ---- Labels, constants, masks --------------------------------------------------------------------


@dataclass(frozen=True)
class _Label:
    order: tuple[str, ...]
    stick: str
    per_stick: int


def _read_order(field: Field, sizes: list[str]) -> tuple[str, ...]:
    order = field.texts()
    for dim in order:
        if dim not in sizes:
            field.fail(f"the dimension {dim}", f"dimensions of N_: {', '.join(sizes)}")
        if order.count(dim) > 1:
            field.fail(f"the dimension {dim} twice", "each dimension once")
    return order


def _read_labels(dsc: Field, sizes: dict[str, int]) -> dict[str, _Label]:
    labels = {}
    for name, entry in dsc.at("primaryDsInfo_").members():
        if name not in LABELS:
            entry.fail(f'the label "{name}"', ", ".join(LABELS))
        order = _read_order(entry.at("layoutDimOrder_"), list(sizes))
        sticks = entry.at("stickDimOrder_").texts()
        stick_sizes = entry.at("stickSize_").integers()
        if len(sticks) != 1 or sticks[0] not in order:
            entry.at("stickDimOrder_").wrong(f"one dimension of {', '.join(order) or 'none'}")
        if len(stick_sizes) != 1:
            entry.at("stickSize_").wrong("one size")
        labels[name] = _Label(order, sticks[0], stick_sizes[0])
    return labels


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


# ---- Tensors -------------------------------------------------------------------------------------


def _read_tensors(
    dsc: Field, labels: dict[str, _Label], cores: int, dims: list[str]
) -> tuple[tuple[Tensor, ...], tuple[tuple[int, ...], ...], tuple[bool, ...]]:
    nodes = dsc.at("scheduleTree_").items()
    entries = dsc.at("labeledDs_").items()
    if len(nodes) != len(entries):
        dsc.at("scheduleTree_").fail(
            f"{len(nodes)} nodes", f"one for each of {len(entries)} tensors"
        )
    node_names = [node.at("name_").text() for node in nodes]
    tensors: list[Tensor] = []
    starts, symbolic = [], []
    for number, (node, entry) in enumerate(zip(nodes, entries)):
        for field in (node, entry):
            field.at("ldsIdx_").must_be(number, "its position")
        node.at("nodeType_").text("allocate")
        node.at("prev_").must_be("", "nodes do not depend on each other")
        name = entry.at("dsName_").text()
        if any(t.name == name for t in tensors):
            entry.at("dsName_").fail(f'"{name}" twice', "each name once")
        if node_names.count(node_names[number]) > 1:
            node.at("name_").fail(f'"{node_names[number]}" twice', "each name once")
        label = labels.get(entry.at("dsType_").text())
        if label is None:
            entry.at("dsType_").wrong(f"labels of primaryDsInfo_: {', '.join(labels)}")
        tensors.append(_read_tensor(number, name, node, entry, label, cores, dims, node_names))
        is_symbolic = node.find("isStartAddrSymbolic_") is not None and bool(
            node.at("isStartAddrSymbolic_").integer(0, 1)
        )
        starts.append(_read_starts(node.at("startAddressCoreCorelet_"), cores, is_symbolic))
        symbolic.append(is_symbolic)
    return tuple(tensors), tuple(starts), tuple(symbolic)


def _read_tensor(
    number: int,
    name: str,
    node: Field,
    entry: Field,
    label: _Label,
    cores: int,
    dims: list[str],
    node_names: list[str],
) -> Tensor:
    fmt = FORMATS[entry.at("dataFormat_").text(*FORMATS)]
    entry.at("wordLength").must_be(fmt.bytes, f"the bytes of {fmt.name}")
    if label.per_stick != fmt.per_stick:
        refuse(
            node.file,
            f"{node.path.rsplit('.', 1)[0]}.primaryDsInfo_.{entry.at('dsType_').text()}.stickSize_",
            f"[{label.per_stick}]",
            f"[{fmt.per_stick}], the elements of a stick of {name} in {fmt.name}",
        )
    order = _read_order(node.at("layoutDimOrder_"), dims)
    if sorted(order) != sorted(label.order):
        node.at("layoutDimOrder_").wrong(
            f"the dimensions of its label in any order: {', '.join(label.order)}"
        )
    _expect_length(node.at("maxDimSizes_"), len(label.order))
    for limit in node.at("maxDimSizes_").items():
        if limit.value not in (-1, 1):
            limit.wrong("-1, or 1 for a gathered axis")
    scale = entry.at("scale_")
    _expect_length(scale, len(label.order))
    scales = dict(zip(label.order, scale.integers()))
    for position, (dim, value) in enumerate(scales.items()):
        allowed = (1, -1, -2) if dim == label.stick else (1, -1)
        if value not in allowed:
            scale.at(position).wrong(
                f"{', '.join(map(str, allowed))} for the dimension {dim}"
                + (" (-2 is for the stick)" if value == -2 else "")
            )
    walked = [scales[dim] == 1 for dim in order]
    if walked != sorted(walked, reverse=True):
        node.at("layoutDimOrder_").wrong("dimensions of scale -1 and -2 after all others")
    component = node.at("component_").text("hbm", "lx")
    if entry.at("memOrg_").find(component) is None:
        entry.at("memOrg_").wrong(f"{component}, where the tensor is allocated")
    if any(memory != {"isPresent": 1} for memory in entry.at("memOrg_").object().values()):
        for _, memory in entry.at("memOrg_").members():
            memory.repeats({"isPresent": 1}, "what is not present is not listed")
    info = node.at("coordinates_").at("coordInfo")
    for dim in label.order:
        info.at(dim).object()
    return Tensor(
        number=number,
        name=name,
        label=entry.at("dsType_").text(),
        format=fmt,
        arrangement=_read_arrangement(entry, fmt.name),
        order=order,
        label_order=label.order,
        scales=tuple(scales.items()),
        stick=label.stick,
        per_stick=label.per_stick,
        in_lx=component == "lx",
        gaps=_read_gaps(node, label.order, cores),
        indirection=_read_indirection(node, node_names),
        placement=_read_placement(node, len(label.order)),
        parts=_read_parts(node.at("coordinates_"), label.order, cores),
    )


def _expect_length(field: Field, length: int) -> None:
    found = len(field.items())
    if found != length:
        field.fail(f"{found} entries", f"{length}, one for each dimension of the label")


def _read_arrangement(entry: Field, fmt: str) -> str:
    field = entry.find("elementArrangement_")
    if field is None:
        return "STANDARD"
    name = field.text(*ARRANGEMENTS)
    if name == "DL16_TO_FP32" and fmt != "IEEE_FP32":
        field.fail(f"{name} on {fmt}", "DL16_TO_FP32 on IEEE_FP32 only")
    return name


def _read_gaps(node: Field, order: tuple[str, ...], cores: int) -> tuple[tuple[str, int], ...]:
    field = node.find("backGapCore_")
    if field is None:
        return ()
    gaps = []
    for dim, entry in field.members():
        if dim not in order:
            entry.fail(f"the dimension {dim}", ", ".join(order))
        values = {key: f.decimal() for key, f in entry.members()}
        if "-1" not in values:
            _expect_cores(entry, cores)
        if len(set(values.values())) != 1:
            entry.wrong("one gap, the same for all cores")
        gaps.append((dim, next(iter(values.values()))))
    return tuple(gaps)


def _read_indirection(node: Field, node_names: list[str]) -> str:
    kind = node.at("indirectAllocType_").text(*INDIRECTIONS)
    if kind != "no_indirection":
        partner = node.at("relatedIndirectAccessAlloc_")
        if partner.text() not in node_names:
            partner.wrong(f"the name of a node: {', '.join(node_names)}")
    if kind == "index_tensor":
        node.at("indexTensorType_").text("index")
    return kind


def _read_parts(coordinates: Field, order: tuple[str, ...], cores: int) -> Parts | None:
    """`coreIdToWkSlice_` of a tensor that has slices of its own; there it is not empty."""
    field = coordinates.at("coreIdToWkSlice_")
    if not field.object():
        return None
    splits = {}
    for dim in order:
        attributes = coordinates.at("coordInfo").at(dim).at("folds").at("dim_prop_attr").items()
        splits[dim] = attributes[0].at("factor_").integer(1)
    slices = []
    for key, entry in field.members():
        if not key.isdecimal() or int(key) >= cores:
            entry.fail(f'an entry "{key}"', f"cores 0 to {cores - 1}")
        own = [entry.at(dim).integer(0, splits[dim] - 1) for dim in order]
        slices.append((int(key), tuple(own)))
    return Parts(tuple(splits.items()), tuple(sorted(slices)))


def _read_placement(node: Field, rank: int) -> Placement | None:
    placement = node.find("placement_")
    if placement is None:
        return None
    device_size = placement.at("deviceSize_").integers()
    stride_map = placement.at("strideMap_").integers()
    if len(device_size) != len(stride_map):
        placement.at("strideMap_").wrong(f"{len(device_size)} entries, as deviceSize_")
    size = placement.at("size_").integers()
    stride = placement.at("stride_").integers()
    if len(size) != len(stride):
        placement.at("stride_").wrong(f"{len(size)} entries, as size_")
    view = node.at("view_")
    _expect_length(view.at("stride_"), rank)
    return Placement(
        device_size,
        stride_map,
        size,
        stride,
        view.at("stride_").integers(),
        view.at("offset_").integer(0),
    )


def _read_starts(field: Field, cores: int, symbolic: bool) -> tuple[int, ...]:
    field.at("dim_prop_func").repeats(redundant_fields.OF_ADDRESSES, "one address for each core")
    field.at("dim_prop_attr").repeats(redundant_fields.attributes(cores), "as numCoresUsed_")
    data = field.at("data_")
    starts = []
    for core in range(cores):
        key = f"[{core}, 0, 0]"
        entry = data.find(key)
        if entry is None:
            data.fail(f"no entry {key}", f"a start address for each of {cores} cores")
        start = entry.decimal()
        if symbolic and start >= 0:
            entry.wrong("a negative symbol id, since isStartAddrSymbolic_ is 1")
        if not symbolic and start < 0:
            entry.wrong("an address of 0 or more, since isStartAddrSymbolic_ is not 1")
        starts.append(start)
    if len(data.object()) != cores:
        extra = [k for k in data.object() if k not in {f"[{c}, 0, 0]" for c in range(cores)}]
        data.fail(f"an entry {extra[0]}", f"a start address for each of {cores} cores")
    return tuple(starts)


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
