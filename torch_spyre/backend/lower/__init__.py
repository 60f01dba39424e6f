"""Each operation of a bundle as a step of a device program.

In: an Operation. Out: a Step. The kind of the OpFunc says which module does it; operations that
differ in their addresses alone are lowered once and then put in place by `bind`.

Example: `lower(read_bundle(directory).operations()[0])` is a Tile named "0_add".
"""

from __future__ import annotations

from functools import lru_cache

from torch_spyre.backend.errors import BundleError
from torch_spyre.backend.lower.matmul import lower_matmul
from torch_spyre.backend.lower.movement import (
    is_restickify,
    lower_gather,
    lower_relayout,
    lower_restickify,
    lower_topk,
)
from torch_spyre.backend.lower.ring import lower_ring
from torch_spyre.backend.lower.tile import lower_tile
from torch_spyre.backend.lower.work import with_work
from torch_spyre.backend.read.bundle import Operation
from torch_spyre.backend.read.sdsc import Sdsc
from torch_spyre.backend.steps import Address, Step, addresses, changed, with_addresses


def lower(operation: Operation) -> Step:
    """The step of an operation, with its addresses and its modelled time."""
    try:
        step = lower_sdsc(operation.sdsc)
    except BundleError as error:
        raise BundleError(f"{operation.file}: {error}") from None
    step = bind(step, operation.addresses)
    step = changed(step, name=operation.name, source=(operation.name,))
    for copy in operation.copies:
        other = lower_sdsc(copy.sdsc)
        step = changed(
            step,
            works=(*other.works, *step.works),
            time_us=other.time_us + step.time_us,
            source=(copy.name, *step.source),
        )
    return step


@lru_cache(maxsize=1024)
def lower_sdsc(sdsc: Sdsc) -> Step:
    """The step with addresses that name tensors: `argument` is the number of the tensor."""
    return with_work(_lower(sdsc), sdsc)


def _lower(sdsc: Sdsc) -> Step:
    row = sdsc.opfunc
    if row.kind == "matmul":
        return lower_matmul(sdsc)
    if sdsc.index is not None:
        return lower_gather(sdsc)
    if row.kind == "topk":
        return lower_topk(sdsc)
    if row.name == "relayout":
        return lower_relayout(sdsc)
    if row.name == "ringmove":
        return lower_ring(sdsc)
    if row.name == "ReStickifyOpHBM" or (row.kind == "copy" and is_restickify(sdsc)):
        return lower_restickify(sdsc)
    return lower_tile(sdsc)


def bind(step: Step, places: tuple[Address, ...]) -> Step:
    """Put the tensors of a step where they are."""
    bound = []
    for stand_in in addresses(step):
        place = places[stand_in.argument]
        offsets = tuple([a + b for a, b in zip(place.offsets, stand_in.offsets)])
        bound.append(Address(place.space, place.argument, offsets, place.loop_strides))
    return with_addresses(step, tuple(bound))
