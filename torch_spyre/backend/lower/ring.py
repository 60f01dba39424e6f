"""Moves between scratchpads over the ring (`ringmove`) as steps.

In: an Sdsc whose two tensors are in LX, each with slices of its own (docs/formats/superdsc.md).
Out: a Ring step with the transfers between cores, and its work.
"""

from __future__ import annotations

from torch_spyre.backend.read.ring_slices import part_view, ring_route
from torch_spyre.backend.read.sdsc import Sdsc
from torch_spyre.backend.steps import Address, Ring, Space
from torch_spyre.card_model.cost_model import Work, ring_work


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
