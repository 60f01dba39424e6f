"""The documented solvers: a buffer stays for its whole live range, or not at all.

greedy    linear scan over time, first fit
firstfit  the most useful buffers first, each into the first gap of its live range
bestfit   the same, into the tightest gap

Baselines for comparison; `search` is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch_spyre._inductor.planning.scratchpad.lifetimes import LifetimeBoundBuffer, whole

Buffers = Sequence[LifetimeBoundBuffer]


def aligned(number: int, alignment: int) -> int:
    return -(-number // alignment) * alignment


def greedy(buffers: Buffers, limit: int, alignment: int) -> list[LifetimeBoundBuffer]:
    """At each time free what has ended, then place what begins, in the order given."""
    live: dict[str, tuple[int, int]] = {}
    addresses: dict[str, int] = {}
    by_name = {b.name: b for b in buffers}
    for time in sorted({b.start for b in buffers} | {b.end for b in buffers}):
        live = {n: place for n, place in live.items() if by_name[n].end > time}
        for buffer in buffers:
            if buffer.start != time:
                continue
            parent = next((p for p in buffer.in_place_parents if p in live), None)
            at = (
                _room(list(live.values()), buffer.size, limit, alignment)
                if parent is None
                else live.pop(parent)[0]
            )
            if at is not None:
                live[buffer.name] = (at, buffer.size)
                addresses[buffer.name] = at
    return [whole(b, addresses[b.name]) if b.name in addresses else b for b in buffers]


def _room(taken: list[tuple[int, int]], size: int, limit: int, alignment: int) -> int | None:
    """At 0, else on top of all, else in the first gap."""
    taken.sort()
    if not taken or taken[0][0] >= size:
        return 0 if size <= limit else None
    top = aligned(max(at + length for at, length in taken), alignment)
    if top + size <= limit:
        return top
    for (at, length), (above, _) in pairwise(taken):
        gap = aligned(at + length, alignment)
        if gap + size <= above:
            return gap
    return None


def firstfit(buffers: Buffers, limit: int, alignment: int) -> list[LifetimeBoundBuffer]:
    return _fit(buffers, limit, alignment, tightest=False)


def bestfit(buffers: Buffers, limit: int, alignment: int) -> list[LifetimeBoundBuffer]:
    return _fit(buffers, limit, alignment, tightest=True)


def _fit(buffers: Buffers, limit: int, alignment: int, *, tightest: bool) -> list:
    addresses: dict[str, int] = {}
    placed: list[LifetimeBoundBuffer] = []
    for buffer in by_usefulness(buffers):
        parents = set(buffer.in_place_parents)
        gaps = _gaps(
            [
                (addresses[p.name], p.size)
                for p in placed
                if p.name not in parents and p.start < buffer.end and buffer.start < p.end
            ],
            limit,
            alignment,
        )
        at = _choose(gaps, buffer, [addresses[p] for p in parents if p in addresses], tightest)
        if at is not None:
            addresses[buffer.name] = at
            placed.append(buffer)
    return [whole(b, addresses[b.name]) if b.name in addresses else b for b in buffers]


def _choose(
    gaps: list[tuple[int, int]], buffer: LifetimeBoundBuffer, parents: list[int], tightest: bool
) -> int | None:
    """The place of a parent, else the first or the tightest gap."""
    for at in sorted(parents):
        if any(low <= at and at + buffer.size <= high for low, high in gaps):
            return at
    fitting = [(low, high) for low, high in gaps if high - low >= buffer.size]
    if not fitting:
        return None
    return min(fitting, key=lambda g: g[1] - g[0])[0] if tightest else fitting[0][0]


def _gaps(taken: list[tuple[int, int]], limit: int, alignment: int) -> list[tuple[int, int]]:
    gaps, at = [], 0
    for low, size in sorted(taken):
        if low > at:
            gaps.append((at, low))
        at = max(at, aligned(low + size, alignment))
    if at < limit:
        gaps.append((at, limit))
    return gaps


def by_usefulness(buffers: Buffers) -> list[LifetimeBoundBuffer]:
    """Few operations of life for each use first; then parents before their children."""
    parents = {p for b in buffers for p in b.in_place_parents}

    def rank(buffer: LifetimeBoundBuffer) -> tuple[float, int]:
        span = buffer.end - buffer.start
        related = 0.25 * bool(buffer.in_place_parents) + 0.25 * (buffer.name in parents)
        uses = len(buffer.uses) + 0.5 * (not buffer.first_use_is_read)
        return ((span - related) / uses, span)

    ordered = sorted(buffers, key=rank)
    by_name = {b.name: b for b in buffers}
    result: dict[str, LifetimeBoundBuffer] = {}

    def add(buffer: LifetimeBoundBuffer) -> None:
        for parent in buffer.in_place_parents:
            if parent in by_name and parent not in result:
                add(by_name[parent])
        result.setdefault(buffer.name, buffer)

    for buffer in ordered:
        add(buffer)
    return list(result.values())
