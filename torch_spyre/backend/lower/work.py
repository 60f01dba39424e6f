"""The work of an operation of a bundle, for the model of device time.

In: an Sdsc. Out: a Work (`card_model/cost_model.py` has the model and prices it). The work is
that of the operation as the bundle has it; steps that were joined keep the works of all their
operations.

Example: `work_of(sdsc).read_bytes` of `add` over (128, 256) in float16 is 131072.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from torch_spyre.backend.lower.movement import topk_dims
from torch_spyre.backend.lower.ring import work_of_ring
from torch_spyre.backend.read.sdsc import Sdsc, Tensor
from torch_spyre.backend.steps import Step
from torch_spyre.card_model.cost_model import (
    Dim,
    Flow,
    TensorUse,
    Work,
    placed_flow,
    price,
    relayout_work,
    work,
)


def with_work(step: Step, sdsc: Sdsc) -> Step:
    """The step with the work of its operation and its modelled time."""
    own = work_of(sdsc)
    return replace(step, works=(own,), time_us=price(own).us)


def device_bytes(step: Step) -> int:
    """Bytes that the step's operations move between device memory and the cores."""
    return sum(w.read_bytes + w.write_bytes for w in step.works)


def work_of(sdsc: Sdsc) -> Work:
    """What the operation moves and computes."""
    row = sdsc.opfunc
    if row.name == "relayout":
        numbers = (sdsc.inputs[0], sdsc.output)
        flows = [_placed(sdsc, sdsc.tensors[n], n == sdsc.output) for n in numbers]
        return relayout_work(sdsc.cores, flows)
    if row.name == "ringmove":
        return work_of_ring(sdsc)
    dims: dict[Hashable, Dim] = {
        d: Dim(min(sdsc.valid(d), sdsc.size(d)), sdsc.size(d), sdsc.split(d)) for d in sdsc.dims
    }
    numbers = (*sdsc.inputs, *(() if sdsc.index is None else (sdsc.index,)), sdsc.output)
    uses = [_use(sdsc, sdsc.tensors[n], n == sdsc.output) for n in numbers]
    if sdsc.index is not None and row.kind != "matmul":
        gathered = len(uses) - 1 if sdsc.scatters else 0
        return work(row, sdsc.cores, dims, uses, gathered=gathered)
    if row.kind != "topk":
        return work(row, sdsc.cores, dims, uses)
    source, out = sdsc.tensors[sdsc.inputs[0]], sdsc.tensors[sdsc.output]
    reduced, chosen, k = topk_dims(sdsc, source, out)
    result = work(row, sdsc.cores, dims, uses, chosen=k)
    if reduced != chosen:
        return result
    # One dimension stands for both: the result has k places along it.
    short = work(row, sdsc.cores, {**dims, reduced: Dim(k, k, 1)}, uses[-1:], chosen=k)
    return result._replace(flows=(*result.flows[:-1], *short.flows))


def _use(sdsc: Sdsc, tensor: Tensor, writes: bool) -> TensorUse:
    axes = sdsc.axes(tensor)
    return TensorUse(
        writes,
        tensor.in_lx,
        tensor.per_stick,
        tensor.stick if tensor.is_dense else None,
        {d: axis.stride for d, axis in axes.items()},
        tensor.format.bytes,
        {} if tensor.in_lx else {d: axis.entries for d, axis in axes.items()},
    )


def _placed(sdsc: Sdsc, tensor: Tensor, writes: bool) -> Flow:
    placement = tensor.placement
    assert placement is not None
    stride = dict(zip(tensor.label_order, placement.view_stride))
    return placed_flow(
        [sdsc.size(d) for d in sdsc.dims],
        [sdsc.split(d) for d in sdsc.dims],
        [stride.get(d, 0) for d in sdsc.dims],
        placement.device_size,
        placement.stride_map,
        offset=placement.view_offset,
        writes=writes,
        in_lx=tensor.in_lx,
    )
