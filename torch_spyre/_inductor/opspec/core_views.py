"""Core mapping: each core's slice of the iteration space, and its part of each tensor.

In: an OpSpec, aligned, and how many slices each dimension is cut into. Out: the slice of every
dimension that each core computes, and for each tensor a CoreView.

Example: `Views(add).of({c0: 32})[0]` says which rows of the first tensor each core reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import prod

import sympy

from torch_spyre._inductor.opspec.op_dims import OpPlan, OpTensor, gaps_of, make_op_plan
from torch_spyre._inductor.opspec.op_spec import OpSpec
from torch_spyre._inductor.opspec.relayout import relayout_walk
from torch_spyre._inductor.opspec.ring_move import RING_MOVE
from torch_spyre.card_model.core_slices import CoreView, Share, core_view
from torch_spyre.card_model.view_slices import view_of

Slices = dict[str, dict[str, int]]
"""For each core, by its number as text, the number of its slice of every dimension."""


class Views:
    """Views of the tensors of an operation, for any division of it."""

    def __init__(self, op: OpSpec, k_fast: bool = True) -> None:
        self._plan = make_op_plan(op)
        self._k_fast = k_fast

    def of(self, counts: Mapping[sympy.Symbol, int]) -> tuple[CoreView | None, ...]:
        """With so many slices of each dimension."""
        dims = [replace(dim, slices=counts.get(dim.symbol, 1)) for dim in self._plan.dims]
        plan = replace(self._plan, dims=dims)
        return views_of(plan, slices_of(plan, self._k_fast))


def views_of(plan: OpPlan, slices: Slices) -> tuple[CoreView | None, ...]:
    """For each tensor which part each core has, or None where that is not a plain share of all of
    it: a view, an index, a gathered or padded axis."""
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


def _placed_view(plan: OpPlan, number: int, slices: Slices) -> CoreView | None:
    walk = relayout_walk(plan.op, number)
    if walk is None or not walk.sizes:
        return None
    mine = [tuple([own[p.label] for p in plan.dims]) for own in slices.values()]
    return view_of(walk, [p.slices for p in plan.dims], mine)


def _core_view(
    plan: OpPlan, tensor: OpTensor, slices: Slices, slots: Mapping[str, tuple[int, ...]]
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


def slices_of(plan: OpPlan, k_fast: bool) -> Slices:
    """For each core its slice of every dimension: the first dimension varies fastest, or the
    reduced one of a matmul, so that partial sums travel between neighbours."""
    if plan.op.op == RING_MOVE:  # its tensors have slices of their own
        whole = {p.label: 0 for p in plan.dims}
        return {str(c): whole for c in range(plan.op.op_info["ring"]["cores"])}
    counts = tuple((p.label, p.slices) for p in plan.dims)
    reduced_first = plan.kind == "matmul" and len(counts) >= 3 and counts[-1][1] > 1
    return _core_to_slices(counts, k_fast and reduced_first)


@lru_cache(maxsize=1024)
def _core_to_slices(counts: tuple[tuple[str, int], ...], last_first: bool) -> Slices:
    order = [counts[-1], *counts[:-1]] if last_first else counts
    result: Slices = {}
    for core in range(prod(count for _, count in counts)):
        rest, mine = core, {}
        for label, count in order:
            rest, mine[label] = divmod(rest, count)
        result[str(core)] = {label: mine[label] for label, _ in counts}
    return result
