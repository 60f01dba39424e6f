"""Estimates scratchpad residency of one buffer, ignoring capacity.

In: how each user of a buffer divides it. Out: which uses can be in scratchpads together
(`arrange`), and the cost of the copies and moves that bring it there (`estimate`). `residency`
follows `arrange` where the capacity allows; the search for divisions calls `estimate` very often.

A family has one view that its operation writes, or that is loaded from memory; views of others are
made from it by moves over the ring, where that is faster than going through memory.

Example: a result whose only reader has the same view is in LX for both, and nothing is copied. If
the reader divides it otherwise, there is one move.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from torch_spyre.card_model.core_slices import CoreView
from torch_spyre.card_model.cost_model import price, ring_work
from torch_spyre.card_model.ring import MOST_DIGITS, common_digits
from torch_spyre.hardware import CARD


class Family(NamedTuple):
    """Uses of a buffer in scratchpads, by their view."""

    root: CoreView
    uses: tuple[int, ...]
    written: bool
    """The first use writes it; else it is loaded."""
    derived: tuple[tuple[CoreView, tuple[int, ...]], ...] = ()
    """Made by moves."""

    @property
    def all_uses(self) -> list[int]:
        return [*self.uses, *(use for _, uses in self.derived for use in uses)]


def arrange(
    views: tuple[CoreView | None, ...],
    times: tuple[int, ...],
    is_written: bool,
    limit: int,
    moves: bool,
) -> tuple[Family, ...]:
    """`views` are those of the uses in order; of a writer, first, when it `is_written`; None where
    a use cannot be in scratchpads. `times` are the operations of the uses. `moves`: it may be sent
    over the ring."""
    groups: dict[CoreView, list[int]] = {}
    same: dict[int, list[int]] = {}  # who uses it in each layer has mostly one view
    for number, view in enumerate(views):
        if id(view) not in same:
            fits = view is not None and view.own_bytes <= limit
            same[id(view)] = groups.setdefault(view, []) if view is not None and fits else []
        same[id(view)].append(number)
    families = []
    while groups:
        written = is_written and any(uses[0] == 0 for uses in groups.values())
        if written:
            root = next(view for view, uses in groups.items() if uses[0] == 0)
        else:
            order = {view: i for i, view in enumerate(groups)}
            loadable = [view for view in groups if is_loadable(view)]
            if not loadable:
                break
            root = min(loadable, key=lambda v: (-len(groups[v]), v.own_bytes, order[v]))
        uses = groups.pop(root)
        derived = []
        if moves:
            for view in list(groups):
                if root.own_bytes + view.own_bytes > limit:
                    continue  # for the time of the move it is there twice
                if (us := move_us(root, view)) is not None and us <= copy_us(view):
                    derived.append((view, tuple(groups.pop(view))))
        family = Family(root, tuple(uses), written, tuple(derived))
        if len({times[use] for use in family.all_uses}) > 1:
            families.append(family)
    return tuple(families)


def is_loadable(view: CoreView) -> bool:
    """Whether a copy from memory makes it: one that has each part on one core."""
    return view.holders is None and view.own_bytes * view.cores == view.all_bytes


class Estimate(NamedTuple):
    in_lx: tuple[bool, ...]
    """For each use, the writer first if there is one."""
    us: float
    """Of copies and moves."""


def estimate(
    views: tuple[CoreView | None, ...],
    times: tuple[int, ...],
    is_written: bool,
    in_memory: bool,
    limit: int,
    moves: bool = True,
) -> Estimate:
    """`in_memory`: it comes from memory, or must be there at the end; the rest as in `arrange`."""
    in_lx = [False] * len(views)
    us = 0.0
    families = arrange(views, times, is_written, limit, moves)
    for family in families:
        uses = family.all_uses
        for number in uses:
            in_lx[number] = True
        if not family.written or in_memory or len(uses) < len(views):
            us += copy_us(family.root)  # into the scratchpads, or out of them
        for view, _ in family.derived:
            us += move_us(family.root, view) or 0.0
    return Estimate(tuple(in_lx), us)


@lru_cache(maxsize=1 << 12)
def copy_us(view: CoreView) -> float:
    """Of a copy between memory and the scratchpads."""
    port = CARD.lx_bytes_per_cycle * CARD.cycles_per_us
    sharers = view.own_bytes * view.cores / view.all_bytes
    again = max(1.0, sharers / CARD.read_sharers)
    moved = again * view.all_bytes / CARD.memory_bytes_per_us
    return max(moved, 2 * view.own_bytes / port) + CARD.transfer_start_us


@lru_cache(maxsize=1 << 13)
def move_us(source: CoreView, target: CoreView) -> float | None:
    """Of a move over the ring, about; None where there is none. To find the way of each stick
    takes too long for a search: each goes a quarter of the ring, over one of its links in both
    directions, and copies for several cores as much further."""
    digits = common_digits(source, target)
    if digits is None or len(digits) > MOST_DIGITS:
        return None
    copies = target.own_bytes * target.cores // target.all_bytes
    link = target.all_bytes // 8 * max(1, min(copies, 4))
    cores = max(source.cores, target.cores)
    return price(ring_work(cores, source.own_bytes, target.own_bytes, link, link)).us


def uses_in_order(writers: Sequence[int], readers: Sequence[int]) -> bool:
    """Whether a buffer is something that can stay: written at most once, and read after that."""
    if len(writers) > 1 or not readers:
        return False
    return not writers or readers[0] > writers[0]
