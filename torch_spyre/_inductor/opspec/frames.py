"""Frames: the address-independent part of an operation, memoised by content.

In: an OpSpec, aligned and divided over cores. Out: its Frame: the core mapping, and the byte offset
of each core's data from the start of each tensor. Memoised by content.

Example: `frame_of(add).offsets[0][1]` is how far from the first tensor's start the second core
begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch_spyre._inductor.opspec.access import InvalidOpSpec
from torch_spyre._inductor.opspec.core_views import Slices, slices_of, views_of
from torch_spyre._inductor.opspec.loops import loop_strides
from torch_spyre._inductor.opspec.op_dims import OpPlan, OpTensor, make_op_plan
from torch_spyre._inductor.opspec.op_spec import OpSpec
from torch_spyre.card_model.core_slices import CoreView


@dataclass(frozen=True, eq=False)  # equal content is one object: `frame_of`
class Frame:
    """An operation without its addresses: what each tensor's cores add to where it begins."""

    plan: OpPlan
    slices: Slices
    offsets: tuple[tuple[int, ...], ...]
    """For each tensor the bytes from its start to the start of each core's slice."""
    advances: tuple[tuple[int, ...], ...]
    """For each tensor the bytes that an iteration of each loop adds."""

    @cached_property
    def views(self) -> tuple[CoreView | None, ...]:
        """For each tensor which part each core has (`views_of`)."""
        return views_of(self.plan, self.slices)


def content_key(op: OpSpec, k_fast: bool, loop_counts: Sequence[int]) -> tuple[Any, ...]:
    """Equal for operations that differ in the addresses of tensors only."""
    args = tuple(
        (
            arg.is_input,
            arg.device_dtype,
            tuple(arg.device_size),
            tuple(arg.device_coordinates),
            "lx" in arg.allocation,
            None if arg.stride_map is None else tuple(arg.stride_map),
            arg.per_tile_fixed,
            arg.fixed_loops,
            arg.name,
            arg.element_arrangement,
        )
        for arg in op.args
    )
    space = tuple(op.iteration_space.items())
    info = repr(op.op_info) if op.op_info else ""
    tiled = (tuple(op.tiled_symbols), tuple(loop_counts)) if op.tiled_symbols else ()
    return (op.op, op.is_reduction, space, args, info, tiled, k_fast)


_frames: dict[tuple[Any, ...], Frame] = {}
_MOST_FRAMES = 4096


def frame_of(op: OpSpec, k_fast: bool = True, loop_counts: Sequence[int] = ()) -> Frame:
    """The frame of an operation; made once for equal content."""
    key = content_key(op, k_fast, loop_counts)
    frame = _frames.get(key)
    if frame is None:
        plan = make_op_plan(op)
        slices = slices_of(plan, k_fast)
        advances = tuple(loop_strides(op, loop_counts))
        offsets = tuple(
            tuple(_offsets(plan, tensor, slices, advance))
            for tensor, advance in zip(plan.tensors, advances)
        )
        frame = Frame(plan, slices, offsets, advances)
        if len(_frames) >= _MOST_FRAMES:
            _frames.clear()
        _frames[key] = frame
    return frame


# ---- Where the data of a core begins -------------------------------------------------------------


def _offsets(plan: OpPlan, tensor: OpTensor, slices: Slices, advance: tuple[int, ...]) -> list[int]:
    """Bytes from the start of the tensor to the start of each core's slice."""
    if tensor.access.space == "lx":
        if any(advance):
            place = f"operation {plan.op.op}, tensor {tensor.number}"
            raise InvalidOpSpec("tensors in LX stay in a loop", place, advance, "unrolled loops")
        return [_first_byte_in_lx(plan, tensor)] * len(slices)
    if plan.op.op == "relayout":
        return [0] * len(slices)
    word, eps = tensor.access.word, tensor.access.eps
    first = 0
    moving = []
    for axis in tensor.access.axes:
        first += axis.first * axis.step * word
        dim = plan.by_symbol[axis.symbol]
        if dim.slices > 1 and not axis.gathered:
            share = dim.padded // dim.slices
            if axis.sticks:
                if share % eps:
                    place = f"operation {plan.op.op}, tensor {tensor.number}"
                    raise InvalidOpSpec("slices of whole sticks", place, share, f"n * {eps}")
                share //= eps
            moving.append((dim.label, share * axis.step * word))
    if not moving:
        return [first] * len(slices)
    offsets = [first] * len(slices)
    for label, step in moving:
        offsets = [o + mine[label] * step for o, mine in zip(offsets, slices.values())]
    return offsets


def _first_byte_in_lx(plan: OpPlan, tensor: OpTensor) -> int:
    """A core keeps only its own slice in LX, so that axes are shorter there."""
    step, first = tensor.access.eps, 0
    for axis in tensor.access.axes:
        first += axis.first * step
        step *= axis.size // plan.by_symbol[axis.symbol].slices
    return first * tensor.access.word
