"""What the fields of an operation must say together, before it is lowered.

In: an Sdsc (its fields one by one are fine), later its addresses. Out: nothing,
or a BundleError that names the field that is wrong. In the order in which a reader would look:
slices, operation and formats, axes, sticks, addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch_spyre.backend.errors import refuse
from torch_spyre.backend.formats import TILE_FORMATS
from torch_spyre.backend.read import redundant_fields
from torch_spyre.backend.read.ring_slices import ring_route
from torch_spyre.backend.read.sdsc import Sdsc, Tensor
from torch_spyre.backend.read.sdsc_reader import SdscFile
from torch_spyre.backend.steps import Address, Space
from torch_spyre.card_model.view_slices import local_storage
from torch_spyre.constants import BYTES_IN_STICK, SEGMENT_BYTES
from torch_spyre.hardware import CARD

TILE_KINDS = ("pointwise", "cast", "reduction")


def check_sdsc(file: SdscFile) -> None:
    """All rules that do not need to know where bundle.mlir puts the tensors."""
    if file.sdsc.op == "ringmove":
        _check_formats(file)
        _check_ring(file)
        return
    _check_slices(file)
    _check_formats(file)
    if file.sdsc.op == "relayout":
        _check_relayout(file)
        return
    _check_axes(file)
    _check_sticks(file)
    _check_operation(file)


def check_coordinates(file: SdscFile) -> None:
    """`coordinates_` of each tensor says once more what sizes, splits and scales say."""
    sizes, splits = dict(file.sdsc.sizes), dict(file.sdsc.splits)
    for tensor, field in zip(file.sdsc.tensors, file.coordinates, strict=True):
        if tensor.parts is None or file.sdsc.op != "ringmove":
            field.at("coreIdToWkSlice_").must_be({}, "slices are those of the file")
        for dim, scale in tensor.scales:
            size = sizes[dim]
            split = splits[dim] if tensor.parts is None else tensor.parts.split(dim)
            per_stick = tensor.per_stick if dim == tensor.stick else 0
            expected = redundant_fields.coordinates(size // split, split, scale, per_stick)
            if field.value["coordInfo"][dim] == expected:
                continue
            entry = field.at("coordInfo").at(dim)
            # Not documented are sticks that are not walked over, or not in whole ones.
            if per_stick and (scale == -1 or (scale == 1 and size // split % per_stick)):
                for part in expected:
                    entry.at(part)
            else:
                entry.repeats(expected, f"N_.{dim}_ = {size} over {split}, scale {scale}")


def node_path(file: SdscFile, tensor: Tensor) -> str:
    return f"dscs_[0].{file.sdsc.op}.scheduleTree_[{tensor.number}]"


def label_path(file: SdscFile, tensor: Tensor) -> str:
    return f"dscs_[0].{file.sdsc.op}.labeledDs_[{tensor.number}]"


# ---- Slices --------------------------------------------------------------------------------------


def _check_slices(file: SdscFile) -> None:
    sdsc = file.sdsc
    product = prod(n for _, n in sdsc.splits)
    shown = " * ".join(f"{d} {n}" for d, n in sdsc.splits)
    if product > sdsc.cores:
        refuse(
            file.file,
            "numWkSlicesPerDim_",
            f"{product} slices ({shown}) for {sdsc.cores} cores, which leaves slices undone",
            "as many slices as numCoresUsed_",
        )
    if product < sdsc.cores:
        refuse(
            file.file,
            "numWkSlicesPerDim_",
            f"{product} slices ({shown}) for {sdsc.cores} cores",
            "as many slices as numCoresUsed_",
        )
    first: dict[tuple[int, ...], int] = {}
    for core, own in enumerate(sdsc.slices):
        if own in first:
            shown = ", ".join(f"{d} {s}" for d, s in zip(sdsc.dims, own))
            refuse(
                file.file,
                f"coreIdToWkSlice_.{core}",
                f"the slice ({shown}) of core {first[own]} again",
                "each slice for one core",
            )
        first[own] = core


# ---- Operation and formats -----------------------------------------------------------------------


def _check_formats(file: SdscFile) -> None:
    sdsc = file.sdsc
    row = sdsc.opfunc
    first = sdsc.tensors[sdsc.inputs[1 if row.name == "where3" else 0]]
    if first.format.name not in row.formats:
        refuse(
            file.file,
            f"{label_path(file, first)}.dataFormat_",
            f"{sdsc.op} on {first.format.name}",
            ", ".join(row.formats),
        )
    out = sdsc.tensors[sdsc.output]
    if row.kind in TILE_KINDS:
        _check_tile_formats(file, first, out)
    if row.kind == "copy" and first.format.bytes != out.format.bytes:
        refuse(
            file.file,
            f"{label_path(file, out)}.dataFormat_",
            f"{sdsc.op} from {first.format.name} to {out.format.name}",
            "formats with elements of the same size",
        )
    names = {c.name for c in sdsc.constants}
    for name in row.constants:
        if name not in names:
            refuse(
                file.file,
                f"dscs_[0].{sdsc.op}.constantInfo_",
                f"constants {', '.join(sorted(names)) or 'none'}",
                f"{', '.join(row.constants)} for {sdsc.op}",
            )
    if row.name == "exx2" and sdsc.constant("useZeroMean") != 0:
        refuse(
            file.file,
            f"dscs_[0].{sdsc.op}.constantInfo_",
            f"useZeroMean = {sdsc.constant('useZeroMean')}",
            "0",
        )


def _check_tile_formats(file: SdscFile, first: Tensor, out: Tensor) -> None:
    sdsc = file.sdsc
    row = sdsc.opfunc
    for number in (*sdsc.inputs, sdsc.output):
        tensor = sdsc.tensors[number]
        if tensor.format.name not in TILE_FORMATS:
            refuse(
                file.file,
                f"{label_path(file, tensor)}.dataFormat_",
                f"{tensor.format.name} in {sdsc.op}",
                ", ".join(sorted(TILE_FORMATS)),
            )
    for position, number in enumerate(sdsc.inputs):
        tensor = sdsc.tensors[number]
        is_condition = row.name == "where3" and position == 0
        if tensor.format.kind != first.format.kind and not is_condition:
            refuse(
                file.file,
                f"{label_path(file, tensor)}.dataFormat_",
                f"{tensor.format.name} beside {first.format.name}",
                "integers or floats in all inputs",
            )
    kind = first.format.kind
    if row.result in ("bool", "float"):
        kind = "float"
    elif row.result != "same":
        if out.format.name != row.result:
            refuse(
                file.file,
                f"{label_path(file, out)}.dataFormat_",
                f"a result of {sdsc.op} in {out.format.name}",
                row.result,
            )
        kind = out.format.kind
    if out.format.kind != kind:
        refuse(
            file.file,
            f"{label_path(file, out)}.dataFormat_",
            f"a result of {sdsc.op} in {out.format.name}",
            f"a format of {kind} elements",
        )


def _check_relayout(file: SdscFile) -> None:
    sdsc = file.sdsc
    for tensor in sdsc.tensors:
        if tensor.placement is None:
            refuse(
                file.file,
                f"{node_path(file, tensor)}.placement_",
                "nothing",
                "deviceSize_, strideMap_, size_ and stride_ of the storage",
            )
        last = tensor.placement.device_size[-1] if tensor.placement.device_size else 0
        if last != tensor.per_stick:
            refuse(
                file.file,
                f"{node_path(file, tensor)}.placement_.deviceSize_",
                f"a last axis of {last}",
                f"{tensor.per_stick}, a stick of {tensor.format.name}",
            )
        if tensor.in_lx and (
            tensor.arrangement != "STANDARD"
            or local_storage(sdsc.walk(tensor), [n for _, n in sdsc.splits]) is None
        ):
            refuse(
                file.file,
                f"{node_path(file, tensor)}.component_",
                "lx for a view or slices of which no core has a plain share of the sticks",
                "hbm, or a view of the whole tensor in slices that whole sticks belong to",
            )


def _check_ring(file: SdscFile) -> None:
    """A move over the ring: both tensors in LX, with slices of their own, the same dimensions in
    the same order, and every part that is wanted is there."""
    sdsc = file.sdsc
    for tensor in sdsc.tensors:
        path = f"{node_path(file, tensor)}.coordinates_.coreIdToWkSlice_"
        if not tensor.in_lx:
            refuse(file.file, f"{node_path(file, tensor)}.component_", "hbm", "lx in ringmove")
        if tensor.parts is None:
            refuse(file.file, path, "{}", "the slices of each core that has a part")
        for dim, split in tensor.parts.splits:
            if split not in (1, sdsc.size(dim)):
                refuse(file.file, path, f"{split} slices of {dim}", f"1 or {sdsc.size(dim)}")
    source, out = sdsc.tensors[sdsc.inputs[0]], sdsc.tensors[sdsc.output]
    same = (source.order, source.scales, source.gaps) == (out.order, out.scales, out.gaps)
    if not same or source.gaps or source.format != out.format:
        refuse(
            file.file,
            f"dscs_[0].{sdsc.op}.labeledDs_",
            "two tensors that differ in more than their slices",
            "the same dimensions, order and format",
        )
    try:
        route = ring_route(sdsc)
    except KeyError as error:
        where = f"{node_path(file, source)}.coordinates_.coreIdToWkSlice_"
        refuse(file.file, where, f"no core with the part {error}", "all parts")
    if route is None:
        refuse(file.file, node_path(file, out), "slices that no move makes", "common digits")


# ---- Axes and sticks -----------------------------------------------------------------------------


def _check_axes(file: SdscFile) -> None:
    sdsc = file.sdsc
    for tensor in sdsc.tensors:
        for dim in tensor.order:
            if tensor.scale(dim) != 1:
                continue
            size, gap = sdsc.local_size(tensor, dim), tensor.gap(dim)
            field = f"{node_path(file, tensor)}.backGapCore_.{dim}"
            if size + gap < 1:
                refuse(
                    file.file,
                    field,
                    f"a gap of {gap} on {size} indices, which leaves an axis of {size + gap}",
                    "a gap that leaves 1 or more",
                )
            if dim == tensor.stick and (size + gap) % tensor.per_stick:
                refuse(
                    file.file,
                    field,
                    f"{size} indices and a gap of {gap}: {size + gap} elements",
                    f"whole sticks of {tensor.per_stick} elements",
                )
            if dim != tensor.stick and gap < 0 and not _may_be_short(sdsc, tensor, dim):
                refuse(
                    file.file,
                    field,
                    f"a gap of {gap}: {tensor.name} has {size + gap} of {size} indices",
                    "a gap of 0 or more, unless the rest is masked",
                )


def _may_be_short(sdsc: Sdsc, tensor: Tensor, dim: str) -> bool:
    """Masked indices are not there to be read or written. The output of topk has k entries, a
    gathered axis as many as there are rows."""
    if sdsc.opfunc.kind == "topk" and tensor.number == sdsc.output:
        return True
    is_table = tensor.indirection == "value_tensor" and sdsc.index is not None
    if is_table and dim == gathered_dim(sdsc):
        return True
    return sdsc.size(dim) + tensor.gap(dim) >= sdsc.valid(dim)


def _check_sticks(file: SdscFile) -> None:
    sdsc = file.sdsc
    for tensor in sdsc.tensors:
        if not tensor.is_dense or tensor.indirection == "index_tensor":
            continue
        size, split = sdsc.slice_size(tensor.stick), sdsc.split(tensor.stick)
        if split > 1 and size % tensor.per_stick:
            refuse(
                file.file,
                f"numWkSlicesPerDim_.{tensor.stick}",
                f"{split} slices of {size} elements, which cut sticks of {tensor.name}",
                f"slices of whole sticks of {tensor.per_stick} elements",
            )
    if sdsc.opfunc.kind not in TILE_KINDS or sdsc.index is not None:
        return
    dense = [t for t in sdsc.tensors if t.is_dense]
    for tensor in sdsc.tensors:
        if dense and not tensor.is_dense and tensor.scale(dense[0].stick) == 1:
            refuse(
                file.file,
                f"{label_path(file, tensor)}.scale_",
                f"1 for {dense[0].stick} of {tensor.name}, which has one element per stick",
                f"-1 for {dense[0].stick}, or a restickify before {sdsc.op}",
            )
    for tensor in dense[1:]:
        if tensor.stick != dense[0].stick:
            refuse(
                file.file,
                f"dscs_[0].{sdsc.op}.primaryDsInfo_.{tensor.label}.stickDimOrder_",
                f"{tensor.stick}, but {dense[0].name} has its sticks along {dense[0].stick}",
                f"the same stick dimension in all tensors of {sdsc.op}",
            )


def _check_operation(file: SdscFile) -> None:
    sdsc = file.sdsc
    row = sdsc.opfunc
    out = sdsc.tensors[sdsc.output]
    reduced = [d for d in sdsc.reduced_dims() if sdsc.size(d) > 1]
    scale_path = f"{label_path(file, out)}.scale_"
    if row.kind == "reduction":
        _check_reduction(file, out, scale_path)
    elif row.kind == "matmul":
        _check_matmul(file)
    elif row.kind != "topk":
        uniform = not any(sdsc.tensors[i].is_dense for i in sdsc.inputs)
        for dim in reduced:
            if dim == out.stick and uniform:
                continue  # one value a stick, from one value a stick
            if sdsc.scatters and sdsc.tensors[sdsc.index or 0].scale(dim) == 1:
                continue  # the index chooses the places
            refuse(
                file.file,
                scale_path,
                f"{out.scale(dim)} for {dim}, so that {sdsc.size(dim)} results go to one place",
                f"1 in every dimension of an output of {sdsc.op}",
            )
    if sdsc.index is not None and row.name not in ("identity", "batchmatmul"):
        refuse(
            file.file,
            f"dscs_[0].{sdsc.op}.computeOp_[0].indirectAccessIndexLabeledDs",
            f"an indirect {sdsc.op}",
            "identity, which copies the rows that are chosen, or batchmatmul",
        )
    if row.kind in ("pointwise", "cast", "topk") or row.name == "relayout":
        for dim, *_ in sdsc.masks:
            refuse(
                file.file,
                f"dscs_[0].{sdsc.op}.coordinateMasking_.{dim}",
                f"masked indices in {sdsc.op}",
                "masks in reductions, matmul and restickify",
            )


def _check_reduction(file: SdscFile, out: Tensor, scale_path: str) -> None:
    sdsc = file.sdsc
    stick = sdsc.stick
    lanes = out.scale(stick) != 1
    if sdsc.is_nonstick and lanes:
        refuse(
            file.file,
            scale_path,
            f"{out.scale(stick)} for {stick}: the stick is reduced",
            f"1 for the stick in {sdsc.op}",
        )
    if not sdsc.is_nonstick and not lanes:
        refuse(
            file.file,
            scale_path,
            f"1 for {stick}: the stick is not reduced",
            f"-2 for the stick in {sdsc.op}, or the operation {sdsc.op}nonstick",
        )
    if sdsc.is_nonstick and not sdsc.reduced_dims():
        refuse(file.file, scale_path, "no reduced dimension", f"-1 for one or more in {sdsc.op}")
    if sdsc.opfunc.name == "exx2" and sdsc.is_nonstick:
        refuse(file.file, f"dscs_[0].{sdsc.op}", sdsc.op, "exx2 over the stick")
    for dim, *_ in sdsc.masks:
        if dim not in sdsc.reduced_dims():
            refuse(
                file.file,
                f"dscs_[0].{sdsc.op}.coordinateMasking_.{dim}",
                f"the dimension {dim}, which is not reduced",
                f"reduced dimensions: {', '.join(sdsc.reduced_dims())}",
            )


def _check_matmul(file: SdscFile) -> None:
    sdsc = file.sdsc
    expected = (("INPUT", "in"), ("KERNEL", "out"), ("OUTPUT", "out"))
    for number, (label, stick) in zip((*sdsc.inputs, sdsc.output), expected):
        tensor = sdsc.tensors[number]
        if tensor.label != label:
            refuse(
                file.file,
                f"{label_path(file, tensor)}.dsType_",
                tensor.label,
                f"{label} at this place of {sdsc.op}",
            )
        if tensor.stick != stick or not tensor.is_dense:
            refuse(
                file.file,
                f"dscs_[0].{sdsc.op}.primaryDsInfo_.{label}.stickDimOrder_",
                f"{tensor.stick} with scale {tensor.scale(tensor.stick)}",
                f"the stick {stick} with scale 1",
            )
        if tensor.format.kind != "float":
            refuse(
                file.file, f"{label_path(file, tensor)}.dataFormat_", tensor.format.name, "floats"
            )
    out = sdsc.tensors[sdsc.output]
    for dim in sdsc.dims:
        if (out.scale(dim) == 1) == (dim == "in") and sdsc.size(dim) > 1:
            refuse(
                file.file,
                f"{label_path(file, out)}.scale_",
                f"{out.scale(dim)} for {dim}",
                "1 for all dimensions but in, which is reduced",
            )
    for number, dims in zip(sdsc.inputs, (("in",), ("in", "out"))):
        tensor = sdsc.tensors[number]
        for dim in dims:
            if tensor.scale(dim) != 1:
                refuse(
                    file.file,
                    f"{label_path(file, tensor)}.scale_",
                    f"{tensor.scale(dim)} for {dim}",
                    f"1 for {', '.join(dims)} of {tensor.label}",
                )


# ---- Addresses -----------------------------------------------------------------------------------


def check_addresses(file: SdscFile, addresses: Sequence[Address]) -> None:
    """Where the tensors lie: alignment, extent, and that each core begins at its own slice."""
    sdsc = file.sdsc
    for tensor, address in zip(sdsc.tensors, addresses):
        extent = extent_of(sdsc, tensor)
        room = CARD.lx_bytes if address.space == Space.LX else SEGMENT_BYTES
        partial = tensor.indirection == "index_tensor" and tensor.is_dense
        for core, start in enumerate(address.offsets):
            whole = start
            if partial:
                first = sdsc.slice(core, tensor.stick) * sdsc.slice_size(tensor.stick)
                whole -= first % tensor.per_stick * tensor.format.bytes
            if whole % BYTES_IN_STICK == 0 and 0 <= start <= room - extent:
                continue
            at = f"{node_path(file, tensor)}.startAddressCoreCorelet_.data_.[{core}, 0, 0]"
            if whole % BYTES_IN_STICK:
                refuse(file.file, at, str(start), f"a multiple of {BYTES_IN_STICK}")
            what = "the scratchpad" if address.space == Space.LX else "the segment"
            refuse(
                file.file,
                at,
                f"{start} with {extent} bytes of {tensor.name}",
                f"up to {room}, the end of {what}",
            )
    if sdsc.op not in ("relayout", "ringmove"):
        _check_output_once(file, addresses[sdsc.output])
        for tensor, address in zip(sdsc.tensors, addresses):
            _check_starts(file, tensor, address)


def extent_of(sdsc: Sdsc, tensor: Tensor) -> int:
    """Bytes from where a core begins to the last byte that it may touch."""
    if tensor.placement is not None:
        return sdsc.storage_bytes(tensor)
    last = 0
    for dim, axis in sdsc.axes(tensor).items():
        count = sdsc.slice_size(dim)
        if dim == tensor.stick:
            count = -(-count // tensor.per_stick)
        last += (min(count, axis.entries) - 1) * axis.stride
    return last + BYTES_IN_STICK


def _check_output_once(file: SdscFile, address: Address) -> None:
    """Cores that write to the same place must hold parts of the same result."""
    sdsc = file.sdsc
    if address.space == Space.LX:
        return
    out = sdsc.tensors[sdsc.output]
    chosen = gathered_dim(sdsc) if sdsc.scatters else ""  # the index says where, not the core
    kept = [i for i, d in enumerate(sdsc.dims) if out.scale(d) == 1 and d != chosen]
    owners: dict[int, tuple[int, tuple[int, ...]]] = {}
    for core, start in enumerate(address.offsets):
        own = tuple(sdsc.slices[core][i] for i in kept)
        first, slice_of_first = owners.setdefault(start, (core, own))
        if slice_of_first != own:
            refuse(
                file.file,
                f"{node_path(file, out)}.startAddressCoreCorelet_.data_.[{core}, 0, 0]",
                f"{start}, where core {first} writes another slice",
                "a place of its own for each slice of the output",
            )


def _check_starts(file: SdscFile, tensor: Tensor, address: Address) -> None:
    sdsc = file.sdsc
    if address.space == Space.LX:
        return
    gathered = ""
    if tensor.indirection == "value_tensor" and sdsc.index is not None:
        gathered = gathered_dim(sdsc)
    slices = sdsc.slice_offsets(tensor, gathered)
    base = address.offsets[0] - slices[0]
    for core, start in enumerate(address.offsets):
        expected = base + slices[core]
        if start != expected:
            refuse(
                file.file,
                f"{node_path(file, tensor)}.startAddressCoreCorelet_.data_.[{core}, 0, 0]",
                f"{start}",
                f"{expected}, where the slice of core {core} in {tensor.name} begins",
            )


def gathered_dim(sdsc: Sdsc) -> str:
    """The dimension whose axis in the value tensor is chosen by the index: the last dimension of
    the index tensor that the value tensor walks over. A scatter's value tensor is its output, a
    product's its second input."""
    assert sdsc.index is not None
    index = sdsc.tensors[sdsc.index]
    table = sdsc.inputs[1 if sdsc.opfunc.kind == "matmul" else 0]
    value = sdsc.tensors[sdsc.output if sdsc.scatters else table]
    own = [d for d in sdsc.dims if index.scale(d) == 1]
    found = [d for d in own if value.scale(d) == 1]
    return found[-1] if found else ""
