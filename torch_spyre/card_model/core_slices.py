"""Core views: which slice of a tensor each core has, in a canonical form.

In: for each device axis of a tensor, innermost first, its size, that of one core's slice, and the
slice of each core. Out: a CoreView with contiguous axes collapsed, so that two operations that walk
over the same slices in other dimensions have equal views: one can read from the scratchpads what
the other has left there.

Example: 1024 rows over 4 cores, and 8 batches of 128 rows over 4 cores by batch, are the same view.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch_spyre.constants import BYTES_IN_STICK


@dataclass(frozen=True)
class Share:
    """Of one axis."""

    entries: int
    own: int
    """Entries of one core."""
    slots: tuple[int, ...]
    """For each core the number of its share."""


@dataclass(frozen=True)
class CoreView:
    cores: int
    shares: tuple[Share, ...]
    """Innermost first. Axes of one entry do not count."""
    holders: tuple[int, ...] | None = None
    """The cores that have their part; None for all. Of those that add up a sum together only the
    first one has it."""

    def __hash__(self) -> int:
        found = self.__dict__.get("_hash")
        if found is None:
            found = hash((self.cores, self.shares, self.holders))
            object.__setattr__(self, "_hash", found)
        return found

    @property
    def holding_cores(self) -> Sequence[int]:
        return range(self.cores) if self.holders is None else self.holders

    @cached_property
    def own_bytes(self) -> int:
        """Bytes that a core has."""
        size = BYTES_IN_STICK
        for share in self.shares:
            size *= share.own
        return size

    @cached_property
    def all_bytes(self) -> int:
        size = BYTES_IN_STICK
        for share in self.shares:
            size *= share.entries
        return size


def core_view(
    cores: int, axes: Iterable[Share], holders: tuple[int, ...] | None = None
) -> CoreView:
    """The view of axes, innermost first."""
    merged: list[Share] = []
    for axis in axes:
        if axis.entries == 1:
            continue
        last = merged[-1] if merged else None
        if last is not None and last.own == last.entries:
            merged[-1] = Share(last.entries * axis.entries, last.own * axis.own, axis.slots)
        elif last is not None and axis.own == 1:
            ratio = last.entries // last.own
            slots = tuple(o * ratio + i for o, i in zip(axis.slots, last.slots))
            merged[-1] = Share(last.entries * axis.entries, last.own, slots)
        else:
            merged.append(axis)
    return CoreView(cores, tuple(merged), holders)


def trimmed(view: CoreView) -> CoreView:
    """The canonical form: no cores after the last one that has a part, and no slices for idle cores
    in between, so that views with the same parts compare equal."""
    held = set(view.holding_cores)
    cores = max(held) + 1
    shares = [
        Share(
            s.entries, s.own, tuple([n if c in held else 0 for c, n in enumerate(s.slots[:cores])])
        )
        for s in view.shares
    ]
    return core_view(cores, shares, None if len(held) == cores else tuple(sorted(held)))
