"""Moves between scratchpads over the ring (`ringmove`) as steps.

In: an Sdsc whose two tensors are in LX, each with slices of its own (docs/formats/superdsc.md).
Out: a Ring step with the transfers between cores, and its work.
"""

from __future__ import annotations

from torch_spyre.backend.sdsc import Sdsc, Tensor
from torch_spyre.backend.steps import Address, Ring, Space
from torch_spyre.core_views import CoreView, Share, core_view
from torch_spyre.device_time import Work, ring_work
from torch_spyre.ring import Route, route


def part_view(sdsc: Sdsc, tensor: Tensor) -> CoreView:
    """Which part each core has, by the tensor's own slices."""
    assert tensor.parts is not None
    slices = dict(tensor.parts.slices)
    cores = max(slices) + 1
    nowhere = (0,) * len(tensor.parts.splits)
    shares = []
    for position, (dim, split) in enumerate(tensor.parts.splits):
        if dim == tensor.stick:
            continue
        size = sdsc.size(dim)
        slots = tuple([slices.get(core, nowhere)[position] for core in range(cores)])
        shares.append(Share(size, size // split, slots))
    order = [dim for dim, _ in tensor.parts.splits if dim != tensor.stick]
    by_dim = dict(zip(order, shares))
    inner_first = [by_dim[dim] for dim in tensor.order if dim in by_dim]
    holders = None if len(slices) == cores else tuple(sorted(slices))
    return core_view(cores, inner_first, holders)


def ring_route(sdsc: Sdsc) -> Route | None:
    """The way of the sticks; None when the two views have no digits in common."""
    source, out = sdsc.tensors[sdsc.inputs[0]], sdsc.tensors[sdsc.output]
    return route(part_view(sdsc, source), part_view(sdsc, out))


def lower_ring(sdsc: Sdsc) -> Ring:
    """Each transfer is a box of sticks from one core to another."""
    way = ring_route(sdsc)
    assert way is not None
    nowhere = (0,) * sdsc.cores
    return Ring(
        name=sdsc.op,
        cores=sdsc.cores,
        axes=way.axes,
        source_address=Address(Space.LX, sdsc.inputs[0], nowhere),
        target_address=Address(Space.LX, sdsc.output, nowhere),
        transfers=way.transfers,
        source=(sdsc.op,),
    )


def work_of_ring(sdsc: Sdsc) -> Work:
    """What it moves."""
    way = ring_route(sdsc)
    assert way is not None
    source, out = (part_view(sdsc, sdsc.tensors[n]) for n in (sdsc.inputs[0], sdsc.output))
    return ring_work(sdsc.cores, source.own_bytes, out.own_bytes, way.ring_bytes, way.link_bytes)
