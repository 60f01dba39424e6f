"""`relayout`: the copy of any view into any other, which coordinates cannot express.

In: an OpSpec whose op_info["relayout"] holds, for "input" and "output", the layout of the storage
(device_size, stride_map), the shape it was made for (size, stride), and the view (view_stride, in
the order of the iteration space, and offset). Out: the fields `placement_` and `view_`.

Example: x.t() of a (40, 60) tensor reads with view_stride [1, 60].
"""

from __future__ import annotations

from math import prod
from typing import Any

import sympy

from torch_spyre._inductor.opspec.access import Access, Axis, InvalidOpSpec
from torch_spyre._inductor.opspec.op_spec import OpSpec
from torch_spyre.card_model.view_slices import Walk

SIDES = ("input", "output")
KEYS = ("device_size", "stride_map", "size", "stride", "view_stride", "offset")

_SCALAR = sympy.Symbol("_scalar")


def relayout_accesses(op: OpSpec) -> list[Access]:
    """Accesses that name all dimensions; only the fields of `relayout_fields` place them."""
    symbols = list(op.iteration_space) or [_SCALAR]
    axes = tuple(Axis(symbol, 1, 0, 0, False) for symbol in symbols)
    return [Access(arg, axes, symbols[-1], arg.device_size[-1], False) for arg in op.args]


def relayout_fields(op: OpSpec, number: int, dims: int) -> dict[str, Any]:
    """What the allocate node of a tensor has in addition."""
    info = relayout_info(op, number)
    strides = list(info["view_stride"])
    return {
        "placement_": {
            "deviceSize_": list(info["device_size"]),
            "strideMap_": list(info["stride_map"]),
            "size_": list(info["size"]),
            "stride_": list(info["stride"]),
        },
        "view_": {"stride_": strides + [0] * (dims - len(strides)), "offset_": info["offset"]},
    }


def relayout_walk(op: OpSpec, number: int) -> Walk | None:
    """How a tensor is walked over; None for one whose sticks have an order of their own, which is
    never in scratchpads."""
    if op.args[number].element_arrangement != "STANDARD":
        return None
    info = relayout_info(op, number)
    return Walk(
        tuple([size for size, _ in op.iteration_space.values()]),
        tuple(info["view_stride"]),
        info["offset"],
        tuple(info["device_size"]),
        tuple(info["stride_map"]),
        prod(info["size"]),
        not op.args[number].is_input,
    )


def relayout_info(op: OpSpec, number: int) -> dict[str, Any]:
    """op_info["relayout"] for a tensor, complete."""
    place = f"operation {op.op}, tensor {number}"
    info = op.op_info.get("relayout", {}).get(SIDES[number])
    if info is None or any(key not in info for key in KEYS):
        raise InvalidOpSpec('op_info["relayout"]', place, info, f"the keys {', '.join(KEYS)}")
    if len(info["view_stride"]) != len(op.iteration_space):
        allowed = f"{len(op.iteration_space)} strides, one for each dimension"
        raise InvalidOpSpec("view_stride", place, info["view_stride"], allowed)
    result: dict[str, Any] = info
    return result
