"""Operations that move elements: restickify, relayout, gather, scatter and topk.

In: an Sdsc. Out: a Copy, Gather or Topk step. A restickify is described to the card as a copy
between two storages whose elements are counted along the operation's dimensions: every place of a
device axis gets a number of its own, so that the layout is one-to-one and gaps cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch_spyre.backend.errors import BundleError
from torch_spyre.backend.formats import ARRANGEMENTS
from torch_spyre.backend.lower.tile import tensor_address
from torch_spyre.backend.read.rules import gathered_dim
from torch_spyre.backend.read.sdsc import Axis, Placement, Sdsc, Tensor
from torch_spyre.backend.steps import (
    Copy,
    CopySide,
    Form,
    Gather,
    GatherSide,
    Operand,
    Topk,
)
from torch_spyre.card_model.view_slices import LocalStorage, local_offset, local_storage

# ---- Restickify ----------------------------------------------------------------------------------


def lower_restickify(sdsc: Sdsc) -> Copy:
    """Each core copies its slice, padding left out."""
    source, out = sdsc.tensors[sdsc.inputs[0]], sdsc.tensors[sdsc.output]
    return Copy(
        name=sdsc.op,
        cores=sdsc.cores,
        source_side=_counted_side(sdsc, source),
        destination=_counted_side(sdsc, out),
        source=(sdsc.op,),
    )


def _counted_side(sdsc: Sdsc, tensor: Tensor) -> CopySide:
    axes = sdsc.axes(tensor)
    stick = tensor.stick
    counted = [d for d in sdsc.dims if d in axes]
    sizes = {d: axes[d].entries * (tensor.per_stick if d == stick else 1) for d in counted}
    strides, stride = {}, 1
    for dim in reversed(counted):
        strides[dim] = stride
        stride *= sizes[dim]
    device_size, stride_map = [], []
    for dim in reversed(axes):
        device_size.append(axes[dim].entries)
        stride_map.append(strides[dim] * (tensor.per_stick if dim == stick else 1))
    device_size.append(tensor.per_stick)
    # One element per stick: every lane stands for it.
    stride_map.append(strides.get(stick, 0))
    views = []
    for core in range(sdsc.cores):
        offset = 0
        if not tensor.is_local:
            offset = sum(sdsc.slice(core, d) * sdsc.slice_size(d) * strides[d] for d in counted)
        views.append((offset, *(sdsc.valid_in_slice(core, d) for d in sdsc.dims)))
    back = [-sdsc.slice_offset(tensor, core) for core in range(sdsc.cores)]
    return CopySide(
        format=tensor.format.number,
        arrangement=ARRANGEMENTS[tensor.arrangement],
        device_size=tuple(device_size),
        stride_map=tuple(stride_map),
        sizes=tuple(sizes.values()),
        strides=tuple(strides[d] for d in counted),
        view_strides=tuple(strides.get(d, 0) for d in sdsc.dims),
        views=tuple(views),
        address=tensor_address(sdsc, tensor, back),
    )


# ---- Relayout ------------------------------------------------------------------------------------


def lower_relayout(sdsc: Sdsc) -> Copy:
    """A copy between the placements and views that the file gives; in LX a core's share of one."""
    source, out = sdsc.tensors[sdsc.inputs[0]], sdsc.tensors[sdsc.output]
    return Copy(
        name=sdsc.op,
        cores=sdsc.cores,
        source_side=_placed_side(sdsc, source),
        destination=_placed_side(sdsc, out),
        source=(sdsc.op,),
    )


def _placed_side(sdsc: Sdsc, tensor: Tensor) -> CopySide:
    placement = tensor.placement
    assert placement is not None
    walk = sdsc.walk(tensor)
    storage: Placement | LocalStorage = placement
    splits = [sdsc.split(d) for d in sdsc.dims]
    if tensor.is_local:
        own = local_storage(walk, splits)
        assert own is not None, tensor  # rules._check_relayout has seen to that
        storage = own
    views = []
    for core in range(sdsc.cores):
        if tensor.is_local:
            offset = local_offset(walk, splits, sdsc.slices[core])
        else:
            offset = walk.offset
            for dim, stride in zip(sdsc.dims, walk.strides):
                offset += sdsc.slice(core, dim) * sdsc.slice_size(dim) * stride
        views.append((offset, *(sdsc.slice_size(d) for d in sdsc.dims)))
    return CopySide(
        format=tensor.format.number,
        arrangement=ARRANGEMENTS[tensor.arrangement],
        device_size=storage.device_size,
        stride_map=storage.stride_map,
        sizes=storage.size,
        strides=storage.stride,
        view_strides=walk.strides,
        views=tuple(views),
        address=tensor_address(sdsc, tensor),
    )


# ---- Gather --------------------------------------------------------------------------------------


def _walk(
    sdsc: Sdsc, out: Tensor, dims: Sequence[str], lanes: int
) -> tuple[list[str], tuple[int, ...]]:
    """Dimensions as they lie in `out`, outermost first, and a core's points along each of them:
    along the sticks groups of lanes."""
    order = {d: i for i, d in enumerate(out.order)}
    dims = sorted(dims, key=lambda d: -order.get(d, len(order)))
    sizes = [sdsc.slice_size(d) for d in dims]
    return dims, tuple(-(-n // lanes) if d == out.stick else n for d, n in zip(dims, sizes))


def lower_gather(sdsc: Sdsc) -> Gather:
    """One stick of a row for each point: read at a row (gather) or written to one (scatter)."""
    assert sdsc.index is not None
    value, out = sdsc.tensors[sdsc.inputs[0]], sdsc.tensors[sdsc.output]
    index = sdsc.tensors[sdsc.index]
    row_dim = gathered_dim(sdsc)
    if not row_dim or row_dim == value.stick or not value.is_dense or value.stick != out.stick:
        what = "scatter" if sdsc.scatters else "gather"
        raise BundleError(
            f"{sdsc.op}: found a {what} of {value.name} along {row_dim or 'no dimension'} into "
            f"{out.name}, allowed: rows of sticks, with the stick {value.stick} in both"
        )
    dims, points = _walk(sdsc, out, sdsc.dims, out.per_stick)
    value_axes, out_axes, index_axes = (sdsc.axes(t) for t in (value, out, index))
    row_axis = (out_axes if sdsc.scatters else value_axes)[row_dim]

    def strides(axes: dict[str, Axis], skip: str) -> tuple[int, ...]:
        return tuple(axes[d].stride if d in axes and d != skip else 0 for d in dims)

    has_stick = index.is_dense and index.stick in dims
    first, back = [], []
    for core in range(sdsc.cores):
        start = sdsc.slice(core, index.stick) * sdsc.slice_size(index.stick) if has_stick else 0
        sticks, rest = divmod(start, index.per_stick)
        in_lx = index.is_local or not has_stick
        first.append(0 if in_lx else start)
        step = index_axes[index.stick].stride if has_stick else 0
        back.append(0 if in_lx else -(sticks * step + rest * index.format.bytes))
    return Gather(
        name=sdsc.op,
        cores=sdsc.cores,
        extents=(points,) * sdsc.cores,
        rows=row_axis.entries,
        row_stride=row_axis.stride,
        value=GatherSide(
            strides(value_axes, "" if sdsc.scatters else row_dim), tensor_address(sdsc, value)
        ),
        index=GatherSide(
            strides(index_axes, index.stick if has_stick else ""),
            tensor_address(sdsc, index, back),
        ),
        stick_dim=dims.index(index.stick) if has_stick else -1,
        stick_stride=index_axes[index.stick].stride if has_stick else 0,
        first_index=tuple(first),
        out=GatherSide(
            strides(out_axes, row_dim if sdsc.scatters else ""), tensor_address(sdsc, out)
        ),
        source=(sdsc.op,),
        scatters=sdsc.scatters,
    )


# ---- Topk ----------------------------------------------------------------------------------------


def lower_topk(sdsc: Sdsc) -> Topk:
    """The k largest or smallest along one dimension, lane by lane.

    That dimension belongs to the input alone and another one, of size k, to the output alone; or
    it is one dimension, whose axis in the output is shorter."""
    source, out = sdsc.tensors[sdsc.inputs[0]], sdsc.tensors[sdsc.output]
    source_axes, out_axes = sdsc.axes(source), sdsc.axes(out)
    reduced, chosen, k = topk_dims(sdsc, source, out)
    if source.stick in (reduced, chosen) or source.stick != out.stick or not source.is_dense:
        raise BundleError(
            f"{sdsc.op}: found {sdsc.op} along {reduced}, with sticks along {source.stick} and "
            f"{out.stick}, allowed: a dimension that is not the stick; restickify first"
        )
    if sdsc.split(reduced) * sdsc.split(chosen) != 1:
        raise BundleError(
            f"{sdsc.op}: numWkSlicesPerDim_: found {sdsc.split(reduced)} slices of {reduced}, "
            f"allowed: 1 for the dimension of {sdsc.op}"
        )
    stick = source.stick
    lanes = max(source.per_stick, out.per_stick)
    kept = [d for d in sdsc.dims if d not in (reduced, chosen)]
    dims, points = _walk(sdsc, out, kept, lanes)
    operands = []
    for tensor, axes, last in ((source, source_axes, reduced), (out, out_axes, chosen)):
        per_group = lanes // tensor.per_stick
        strides = [axes[d].stride * (per_group if d == stick else 1) for d in dims]
        strides.append(axes[last].stride if last in axes else 0)
        own = -(-sdsc.slice_size(stick) // tensor.per_stick)
        limits = []
        for core in range(sdsc.cores):
            limit = own
            if tensor.gap(stick) < 0:
                before = 0 if tensor.is_local else sdsc.slice(core, stick) * own
                limit = max(0, min(own, axes[stick].entries - before))
            limits.append(limit)
        groups = points[dims.index(stick)]
        if all(limit >= groups * per_group for limit in limits):
            limits = [-1] * sdsc.cores
        operands.append(
            Operand(
                tensor.format.number,
                Form.VECTOR,
                tuple(strides),
                axes[stick].stride if per_group > 1 else 0,
                tuple(limits),
                tensor_address(sdsc, tensor),
            )
        )
    return Topk(
        name=sdsc.op,
        cores=sdsc.cores,
        lanes=lanes,
        stick_dim=dims.index(stick),
        extents=(points,) * sdsc.cores,
        count=sdsc.size(reduced),
        k=k,
        largest=sdsc.op.startswith("topk"),
        indices=sdsc.op.endswith("index"),
        input=operands[0],
        output=operands[1],
        source=(sdsc.op,),
    )


def topk_dims(sdsc: Sdsc, source: Tensor, out: Tensor) -> tuple[str, str, int]:
    """The dimension of the values, that of the chosen, and how many are chosen."""
    alone = [d for d in sdsc.dims if source.scale(d) == 1 and out.scale(d) != 1]
    chosen = [d for d in sdsc.dims if out.scale(d) == 1 and source.scale(d) != 1]
    if len(alone) == 1 and len(chosen) == 1:
        return alone[0], chosen[0], sdsc.size(chosen[0])
    shorter = [
        d
        for d, axis in sdsc.axes(out).items()
        if d != out.stick and axis.entries < sdsc.size(d) and source.scale(d) == 1
    ]
    if not alone and not chosen and len(shorter) == 1:
        return shorter[0], shorter[0], sdsc.axes(out)[shorter[0]].entries
    if len(alone) == 1 and not chosen:
        return alone[0], alone[0], 1
    raise BundleError(
        f"{sdsc.op}: found the dimensions {', '.join(alone) or 'none'} in {source.name} alone and "
        f"{', '.join(chosen) or 'none'} in {out.name} alone, allowed: one of each, or one "
        f"dimension that is shorter in {out.name}"
    )


def is_restickify(sdsc: Sdsc) -> bool:
    """A plain copy whose sticks do not correspond, so that elements change lanes."""
    source, out = sdsc.tensors[sdsc.inputs[0]], sdsc.tensors[sdsc.output]
    if not out.is_dense:
        return source.is_dense
    if source.is_dense:
        return source.stick != out.stick
    return source.scale(out.stick) == 1
