"""What each core has of the tensors of a move over the ring, and the route between the two.

In: an Sdsc whose two tensors are in LX, each with slices of its own. Out: a CoreView for each of
them, and the Route that the rules check and the lowering writes.
"""

from __future__ import annotations

from torch_spyre.backend.read.sdsc import Sdsc, Tensor
from torch_spyre.card_model.core_slices import CoreView, Share, core_view
from torch_spyre.card_model.ring import Route, route


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
