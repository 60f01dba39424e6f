"""What the plan of scratchpads will do with one buffer, before it is known whether all fit.

In: how each user of a buffer divides it. Out: which of the uses are in scratchpads, and what the
copies cost that bring it there or to others. `residency` does it, this says so beforehand: the
search for divisions asks it very often. A test holds both to the same answers where there is room.

Example: a result whose only reader has the same view is in LX for both, and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from torch_spyre.core_views import CoreView
from torch_spyre.hardware import CARD


class Estimate(NamedTuple):
    in_lx: tuple[bool, ...]
    """For each use, the writer first if there is one."""
    us: float
    """Of copies."""


@lru_cache(maxsize=1 << 14)
def estimate(
    views: tuple[CoreView | None, ...],
    times: tuple[int, ...],
    is_written: bool,
    in_memory: bool,
    limit: int,
) -> Estimate:
    """`views` are those of the uses in order; of a writer, first, when it `is_written`; None where
    a use cannot be in scratchpads. `times` are the operations of the uses. `in_memory`: it comes
    from memory, or must be there at the end."""
    groups: dict[CoreView, list[int]] = {}
    for number, view in enumerate(views):
        if view is not None and view.own_bytes <= limit:
            groups.setdefault(view, []).append(number)
    in_lx = [False] * len(views)
    us = 0.0
    for view, uses in groups.items():
        if len({times[number] for number in uses}) < 2:
            continue
        for number in uses:
            in_lx[number] = True
        if not (is_written and uses[0] == 0) or in_memory or len(uses) < len(views):
            us += copy_us(view)  # into the scratchpads, or out of them
    return Estimate(tuple(in_lx), us)


@lru_cache(maxsize=1 << 12)
def copy_us(view: CoreView) -> float:
    """Of a copy between memory and the scratchpads."""
    port = CARD.lx_bytes_per_cycle * CARD.cycles_per_us
    sharers = view.own_bytes * view.cores / view.all_bytes
    again = max(1.0, sharers / CARD.read_sharers)
    moved = again * view.all_bytes / CARD.memory_bytes_per_us
    return max(moved, 2 * view.own_bytes / port) + CARD.transfer_start_us


def uses_in_order(writers: Sequence[int], readers: Sequence[int]) -> bool:
    """Whether a buffer is something that can stay: written at most once, and read after that."""
    if len(writers) > 1 or not readers:
        return False
    return not writers or readers[0] > writers[0]
