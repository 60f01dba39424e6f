"""Residency candidates: runs of uses that may stay in LX, and the traffic that each saves.

A candidate is a run of uses, within one live range of a buffer, during which it stays in LX. The
run of all uses saves each of them; a shorter one costs a store when the operation that writes
stays, and a load when it begins later. Candidates of one live range exclude one another where they
share uses. Savings add up, so a solver only has to choose and to place.

Example: a buffer of 100 bytes that is written by operation 0 and read by 1, 5 and 6 has, besides
the run of all (400 bytes saved), the run 0..1 (100: one read less, the write became a store) and
the run 5..6 (100: two reads became one load).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch_spyre._inductor.planning.scratchpad.lifetimes import LifetimeBoundBuffer, Stay

_MOST_RUNS = 64
"""Of one life. Longer ones are cut where the longest pauses are."""


@dataclass(frozen=True)
class Candidate:
    number: int
    buffer: int
    life: int
    first: int
    last: int
    """Times, both included."""
    size: int
    value: int
    """Bytes of device memory traffic that it saves."""
    parents: tuple[int, ...] = ()
    """Candidates whose place it may take over."""

    def overlaps(self, other: Candidate) -> bool:
        return self.first <= other.last and other.first <= self.last

    def excludes(self, other: Candidate) -> bool:
        """Both are runs of the same life with uses in common."""
        same = self.buffer == other.buffer and self.life == other.life
        return same and self.overlaps(other)


def candidates_of(
    buffers: Sequence[LifetimeBoundBuffer], limit: int, evict: bool
) -> list[Candidate]:
    """All that fit into the scratchpad and save something."""
    found: list[Candidate] = []
    for at, buffer in enumerate(buffers):
        if buffer.size > limit:
            continue
        lives = buffer.lives()
        for number, life in enumerate(lives):
            is_input = buffer.first_use_is_read and number == 0
            kept = buffer.kept and number == len(lives) - 1
            for i, j in _runs(life, evict and not buffer.whole_only):
                saved = _saved(len(life), i, j, is_input, kept)
                if saved > 0:
                    worth = saved * buffer.bytes_per_use
                    run = (at, number, life[i], life[j], buffer.size, worth)
                    found.append(Candidate(len(found), *run))
    return _with_parents(buffers, found)


def _saved(uses: int, i: int, j: int, is_input: bool, kept: bool) -> int:
    """Uses that a run saves, loads and stores counted."""
    count = j - i + 1
    if i > 0 or is_input:
        return count - 1  # a load
    return count - (kept or count < uses)  # a store


def _runs(life: tuple[int, ...], evict: bool) -> list[tuple[int, int]]:
    last = len(life) - 1
    runs = [(0, last)]
    if not evict:
        return runs
    # Between operations that follow one another nothing else could take the place.
    pauses = [i for i in range(last) if life[i + 1] - life[i] > 1]
    pauses.sort(key=lambda i: life[i] - life[i + 1])
    while (len(pauses) + 1) * (len(pauses) + 2) // 2 > _MOST_RUNS:
        pauses.pop()
    begins = [0, *sorted(i + 1 for i in pauses)]
    ends = [*sorted(pauses), last]
    runs += [(i, j) for i in begins for j in ends if i <= j and (i, j) != (0, last)]
    return runs


def _with_parents(
    buffers: Sequence[LifetimeBoundBuffer], found: list[Candidate]
) -> list[Candidate]:
    """A parent's run must reach its last use, a child's must begin with its first."""
    numbers = {buffer.name: at for at, buffer in enumerate(buffers)}
    ends: dict[int, list[Candidate]] = {}
    for c in found:
        if c.last == buffers[c.buffer].uses[-1]:
            ends.setdefault(c.buffer, []).append(c)
    result = []
    for c in found:
        child = buffers[c.buffer]
        parents: list[int] = []
        if c.first == child.start and not child.first_use_is_read:
            for name in child.in_place_parents:
                for p in ends.get(numbers.get(name, -1), ()):
                    if p.last == c.first and p.size >= c.size:
                        parents.append(p.number)
        result.append(replace(c, parents=tuple(parents)) if parents else c)
    return result


def with_stays(
    buffers: Sequence[LifetimeBoundBuffer], stays: dict[int, list[Stay]]
) -> list[LifetimeBoundBuffer]:
    """The buffers with what was chosen for each, by number."""
    result = []
    for number, buffer in enumerate(buffers):
        mine = tuple(sorted(stays.get(number, ()), key=lambda s: (s.first, s.last)))
        is_whole = len(mine) == 1 and (mine[0].first, mine[0].last) == (
            buffer.uses[0], buffer.uses[-1],
        )  # fmt: skip
        result.append(replace(buffer, stays=mine, address=mine[0].address if is_whole else None))
    return result
