"""Reads the tensors of an sdsc file: their labels, formats, layouts, slices and start addresses.

In: the fields of the dsc. Out: Tensors, and for each its addresses.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_spyre.backend.errors import refuse
from torch_spyre.backend.formats import ARRANGEMENTS, FORMATS
from torch_spyre.backend.read import redundant_fields
from torch_spyre.backend.read.fields import Field, expect_cores
from torch_spyre.backend.read.sdsc import Parts, Placement, Tensor

LABELS = ("OUTPUT", "KERNEL", "INPUT", "KERNEL_IDX")
INDIRECTIONS = ("no_indirection", "index_tensor", "value_tensor")


@dataclass(frozen=True)
class Label:
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


def read_labels(dsc: Field, sizes: dict[str, int]) -> dict[str, Label]:
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
        labels[name] = Label(order, sticks[0], stick_sizes[0])
    return labels


def read_tensors(
    dsc: Field, labels: dict[str, Label], cores: int, dims: list[str]
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
    label: Label,
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
            expect_cores(entry, cores)
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
