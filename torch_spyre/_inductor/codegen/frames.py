"""What operations that differ only in addresses have in common.

In: an OpSpec, aligned and divided over cores. Out: its Frame: which core does what, and how many
bytes after the start of a tensor each core's data begins. Made once for equal content.

Example: `frame_of(add).places(add)[0][1]` is where the second core finds its part of the first
tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import sympy

from torch_spyre._inductor.codegen.json_text import SharedDict
from torch_spyre._inductor.codegen.sdsc_dims import OpPlan, OpTensor, gaps_of, make_op_plan
from torch_spyre._inductor.codegen.symbols import LX, POOL, SEGMENT_BITS, Address
from torch_spyre._inductor.opspec.access import InvalidOpSpec, space_of
from torch_spyre._inductor.opspec.loops import loop_strides
from torch_spyre._inductor.opspec.op_spec import OpSpec
from torch_spyre._inductor.opspec.relayout import relayout_walk
from torch_spyre._inductor.opspec.ring_move import RING_MOVE
from torch_spyre.card_model.core_slices import CoreView, Share, core_view
from torch_spyre.card_model.view_slices import view_of


@dataclass(frozen=True)
class Frame:
    """An operation without its addresses: what each tensor's cores add to where it begins."""

    plan: OpPlan
    slices: SharedDict
    offsets: tuple[tuple[int, ...], ...]
    """For each tensor the bytes from its start to the start of each core's slice."""
    advances: tuple[tuple[int, ...], ...]
    """For each tensor the bytes that an iteration of each loop adds."""

    def places(self, op: OpSpec) -> list[list[Address]]:
        """Where the tensors of an operation of this frame are, for each core."""
        return _places(op, self.offsets, self.advances)

    def different_places(self, op: OpSpec) -> list[list[Address]]:
        """The same without those that a core before has, too."""
        return _places(op, self._different, self.advances)

    @cached_property
    def _different(self) -> tuple[tuple[int, ...], ...]:
        return tuple([tuple(dict.fromkeys(offsets)) for offsets in self.offsets])

    @cached_property
    def views(self) -> tuple[CoreView | None, ...]:
        """For each tensor which part each core has, or None where that is not a plain share of all
        of it: a view, an index, a gathered or padded axis."""
        return _views(self.plan, self.slices)


def _places(
    op: OpSpec, offsets: Sequence[tuple[int, ...]], advances: Sequence[tuple[int, ...]]
) -> list[list[Address]]:
    result = []
    for arg, mine, advance in zip(op.args, offsets, advances):
        space = space_of(arg)
        start = arg.allocation[space]
        base = {"lx": LX, "pool": POOL}.get(space, arg.arg_index)
        if base != LX:
            start &= (1 << SEGMENT_BITS) - 1
        result.append([Address(base, start + offset, advance) for offset in mine])
    return result


class Views:
    """Views of the tensors of an operation, for any division of it."""

    def __init__(self, op: OpSpec, k_fast: bool = True) -> None:
        self._plan = make_op_plan(op)
        self._k_fast = k_fast

    def of(self, counts: Mapping[sympy.Symbol, int]) -> tuple[CoreView | None, ...]:
        """As `Frame.views`, with so many slices of each dimension."""
        dims = [replace(dim, slices=counts.get(dim.symbol, 1)) for dim in self._plan.dims]
        plan = replace(self._plan, dims=dims)
        return _views(plan, _slices(plan, self._k_fast))


def _views(plan: OpPlan, slices: SharedDict) -> tuple[CoreView | None, ...]:
    if plan.op.op == "relayout":
        return tuple([_placed_view(plan, tensor.number, slices) for tensor in plan.tensors])
    if plan.op.op == RING_MOVE:
        return (None,) * len(plan.tensors)
    slots = {p.label: tuple([mine[p.label] for mine in slices.values()]) for p in plan.dims}
    chosen = plan.tensors[-1] if plan.kind == "topk" else None  # a core has more places than k
    return tuple([
        None if tensor is chosen or tensor.access.is_index
        else _core_view(plan, tensor, slices, slots)
        for tensor in plan.tensors
    ])  # fmt: skip


def _placed_view(plan: OpPlan, number: int, slices: SharedDict) -> CoreView | None:
    walk = relayout_walk(plan.op, number)
    if walk is None or not walk.sizes:
        return None
    mine = [tuple([own[p.label] for p in plan.dims]) for own in slices.values()]
    return view_of(walk, [p.slices for p in plan.dims], mine)


def _core_view(
    plan: OpPlan, tensor: OpTensor, slices: SharedDict, slots: Mapping[str, tuple[int, ...]]
) -> CoreView | None:
    gaps = gaps_of(plan, tensor)
    shares = []
    for axis in tensor.access.axes:
        dim = plan.by_symbol[axis.symbol]
        gap = gaps.get(dim.label, 0)
        if gap > 0 or (gap and dim.slices > 1):
            return None  # with fewer places than the iteration a core has all of them, or a part
        if axis.first or axis.gathered or axis.size % dim.slices:
            return None
        shares.append(Share(axis.size, axis.size // dim.slices, slots[dim.label]))
    holders = None
    kept = tensor.access.symbols
    summed = [p.label for p in plan.dims if p.slices > 1 and p.symbol not in kept]
    if summed and tensor is plan.tensors[-1]:  # the first core of those that share it has it
        own = enumerate(slices.values())
        holders = tuple([core for core, mine in own if not any(mine[d] for d in summed)])
    return core_view(len(slices), shares, holders)


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
        slices = _slices(plan, k_fast)
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


# ---- Which core does what, and where its data begins ---------------------------------------------


def _slices(plan: OpPlan, k_fast: bool) -> SharedDict:
    """For each core its slice of every dimension: the first dimension varies fastest, or the
    reduced one of a matmul, so that partial sums travel between neighbours."""
    if plan.op.op == RING_MOVE:  # its tensors have slices of their own
        whole = {p.label: 0 for p in plan.dims}
        return SharedDict({str(c): whole for c in range(plan.op.op_info["ring"]["cores"])})
    counts = tuple((p.label, p.slices) for p in plan.dims)
    reduced_first = plan.kind == "matmul" and len(counts) >= 3 and counts[-1][1] > 1
    return _core_to_slices(counts, k_fast and reduced_first)


@lru_cache(maxsize=1024)
def _core_to_slices(counts: tuple[tuple[str, int], ...], last_first: bool) -> SharedDict:
    order = [counts[-1], *counts[:-1]] if last_first else counts
    result = SharedDict()
    for core in range(prod(count for _, count in counts)):
        rest, mine = core, {}
        for label, count in order:
            rest, mine[label] = divmod(rest, count)
        result[str(core)] = {label: mine[label] for label, _ in counts}
    return result


def _offsets(
    plan: OpPlan, tensor: OpTensor, slices: SharedDict, advance: tuple[int, ...]
) -> list[int]:
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
