"""The default scratchpad allocator: greedy orders, then branch and bound or local search.

Candidates are placed one after the other, each where it fits, in several orders. If that does not
save everything, few of them go to branch and bound, and of many the best order is improved by
bringing forward what did not fit, and by exchanges. What still does not fit may be split: it stays
at one address until some use and at another one from there on. The budget is a count of steps and
not a time, so that the same graph has the same plan everywhere.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from torch_spyre._inductor.planning.scratchpad.branch_and_bound import BranchAndBound
from torch_spyre._inductor.planning.scratchpad.candidates import (
    Candidate,
    candidates_of,
    with_stays,
)
from torch_spyre._inductor.planning.scratchpad.greedy import aligned
from torch_spyre._inductor.planning.scratchpad.lifetimes import LifetimeBoundBuffer, Stay

WORK = 400_000
"""Looks at what is already placed, in all orders together."""
_PROVABLE = 40
_PROOF_STEPS = 20_000
_STRETCH = 16
"""Times that are looked up together."""
_PATIENCE = 4
"""Rounds of exchanges without success."""

Order = list[Candidate]


def search(
    buffers: Sequence[LifetimeBoundBuffer],
    limit: int,
    alignment: int,
    *,
    evict: bool = True,
    move: bool = True,
    prove: bool = True,
    work: int = WORK,
) -> list[LifetimeBoundBuffer]:
    """A good layout in a bounded time."""
    found = candidates_of(buffers, limit, evict)
    if not found:
        return with_stays(buffers, {})
    most = _most(found)
    room = _Room(limit, alignment, work)
    best = _best_order(found, buffers, room)
    is_proven = best.value == most
    if prove and not is_proven and len(found) <= _PROVABLE:
        proof = BranchAndBound(found, limit, alignment, _PROOF_STEPS)
        proof.best_value = best.value
        chosen = proof.solve()
        is_proven = proof.is_proven
        if chosen:
            best = _Placing(room, [found[n] for n in chosen], chosen)
    if not is_proven:
        best = _improve(best, found, room)
    if move and best.value < most:
        best.move_the_rest(found, buffers)
    return with_stays(buffers, best.stays())


def _most(candidates: Sequence[Candidate]) -> int:
    """Upper bound of savings, with unlimited capacity."""
    most: dict[tuple[int, int], int] = {}
    for c in candidates:
        key = (c.buffer, c.life)
        most[key] = max(most.get(key, 0), c.value)
    return sum(most.values())


class _Room:
    """The scratchpad, and the work that may still be done."""

    def __init__(self, limit: int, alignment: int, work: int) -> None:
        self.limit = limit
        self.alignment = alignment
        self.work = work


class _Placing:
    """Candidates placed in an order."""

    def __init__(
        self, room: _Room, order: Sequence[Candidate], addresses: dict[int, int] | None = None
    ) -> None:
        self.room = room
        self.order = list(order)
        self.at: dict[int, int] = {}
        self.value = 0
        self._taken: list[tuple[Candidate, int]] = []
        self._near: dict[int, list[int]] = {}
        """For each stretch of time the numbers of those that are taken then."""
        self._moved: list[tuple[Candidate, Stay]] = []
        self._lives: dict[tuple[int, int], list[Candidate]] = {}
        for c in order:
            if addresses is not None:
                self._take(c, addresses[c.number])
            else:
                self._place(c)

    def stays(self) -> dict[int, list[Stay]]:
        stays: dict[int, list[Stay]] = {}
        for c, at in self._taken:
            stays.setdefault(c.buffer, []).append(Stay(c.first, c.last, at))
        for c, stay in self._moved:
            stays.setdefault(c.buffer, []).append(stay)
        return stays

    def _place(self, c: Candidate) -> None:
        if any(c.excludes(other) for other in self._lives.get((c.buffer, c.life), ())):
            return
        at = self.find(c)
        if at is not None:
            self._take(c, at)

    def _take(self, c: Candidate, at: int) -> None:
        for stretch in range(c.first // _STRETCH, c.last // _STRETCH + 1):
            self._near.setdefault(stretch, []).append(len(self._taken))
        self._taken.append((c, at))
        self._lives.setdefault((c.buffer, c.life), []).append(c)
        self.at[c.number] = at
        self.value += c.value

    def find(self, c: Candidate) -> int | None:
        """Where it fits: where a relative gives its place, or in the first gap."""
        self.room.work -= len(self._taken) + 1
        first, last, number = c.first, c.last, c.number
        taken: list[tuple[int, int]] = []
        relatives: list[tuple[int, int]] = []
        for other, at in self._taken_about(first, last):
            if other.first <= last and first <= other.last:
                if other.number in c.parents or number in other.parents:
                    relatives.append((at, at + other.size))
                else:
                    taken.append((at, at + other.size))
        for other, stay in self._moved:
            if stay.first <= last and first <= stay.last:
                taken.append((stay.address, stay.address + other.size))
        for own, _ in relatives:
            free = all(end <= own or own + c.size <= begin for begin, end in taken)
            others = all(end <= own or own + c.size <= begin for begin, end in relatives
                         if begin != own)  # fmt: skip
            if free and others and own + c.size <= self.room.limit:
                return own
        return self._first_gap(taken + relatives, c.size)

    def _taken_about(self, first: int, last: int) -> list[tuple[Candidate, int]]:
        """Those that are there at some of these times, and some others; as they were taken."""
        stretches = range(first // _STRETCH, last // _STRETCH + 1)
        near = [self._near[stretch] for stretch in stretches if stretch in self._near]
        numbers = near[0] if len(near) == 1 else sorted(set().union(*near))
        return [self._taken[number] for number in numbers]

    def _first_gap(self, taken: list[tuple[int, int]], size: int) -> int | None:
        at = 0
        for begin, end in sorted(taken):
            if begin - at >= size:
                break
            at = max(at, aligned(end, self.room.alignment))
        return at if at + size <= self.room.limit else None

    # ---- Moves ----

    def move_the_rest(
        self, candidates: Sequence[Candidate], buffers: Sequence[LifetimeBoundBuffer]
    ) -> None:
        """Whole lives that found no place of their own: at one place first, then at another."""
        for c in sorted(candidates, key=lambda c: (-c.value, c.number)):
            if (c.buffer, c.life) in self._lives:
                continue
            uses = buffers[c.buffer].uses
            if buffers[c.buffer].whole_only:
                continue
            if self._move(c, uses[bisect_left(uses, c.first) + 1 :]):
                self._lives[(c.buffer, c.life)] = [c]
                self.value += c.value

    def _move(self, c: Candidate, times: Sequence[int]) -> bool:
        for time in times:
            if time > c.last:
                break
            before = self.find(_part(c, c.first, time))
            if before is None:
                return False  # longer ones do not fit either
            stay = Stay(c.first, time, before)
            self._moved.append((c, stay))
            after = self.find(_part(c, time, c.last))
            if after is not None:
                self._moved.append((c, Stay(time, c.last, after, moved=True)))
                return True
            self._moved.pop()
        return False


def _part(c: Candidate, first: int, last: int) -> Candidate:
    """Part of its live range, which shares bytes with no other buffer."""
    return Candidate(-1, c.buffer, c.life, first, last, c.size, 0)


# ---- Orders --------------------------------------------------------------------------------------

_KEYS: tuple[Callable[[Candidate], tuple], ...] = (
    lambda c: (-c.value / (c.size * (c.last - c.first + 1)), c.last - c.first),
    lambda c: (c.first, -c.value),
    lambda c: (-c.value,),
    lambda c: (-c.size, c.first),
    lambda c: (c.last - c.first, -c.value),
)


def _best_order(
    candidates: list[Candidate], buffers: Sequence[LifetimeBoundBuffer], room: _Room
) -> _Placing:
    """Whole live ranges first, then parts of those that did not fit."""
    best: _Placing | None = None
    most = _most(candidates)
    lives: dict[int, list[tuple[int, ...]]] = {}
    is_whole = {}
    for c in candidates:
        if c.buffer not in lives:
            lives[c.buffer] = buffers[c.buffer].lives()
        life = lives[c.buffer][c.life]
        is_whole[c.number] = (c.first, c.last) == (life[0], life[-1])
    for key in _KEYS:
        order = sorted(
            candidates,
            key=lambda c: (not is_whole[c.number], key(c), c.number),
        )
        placing = _Placing(room, order)
        if best is None or placing.value > best.value:
            best = placing
        if best.value == most or room.work < 0:
            break
    assert best is not None
    return best


def _improve(best: _Placing, candidates: list[Candidate], room: _Room) -> _Placing:
    most = _most(candidates)
    seed, in_vain = 1, 0
    while room.work > 0 and best.value < most and in_vain < _PATIENCE:
        better = _bring_forward(best, room)
        if better is not None:
            best, in_vain = better, 0
            continue
        # No single one helps: exchange two and go on from there, if that costs nothing.
        in_vain += 1
        for _ in range(len(best.order)):
            order = list(best.order)
            i, seed = _below(len(order), seed)
            j, seed = _below(len(order), seed)
            order[i], order[j] = order[j], order[i]
            placing = _Placing(room, order)
            if placing.value > best.value:
                in_vain = 0
            if placing.value >= best.value:
                best = placing
            if room.work <= 0 or in_vain == 0:
                break
    return best


def _below(count: int, seed: int) -> tuple[int, int]:
    """A deterministic pseudo-random number below a count, and the next seed."""
    seed = (seed * 1103515245 + 12345) % 2**31
    return seed // 65536 % count, seed


def _bring_forward(best: _Placing, room: _Room) -> _Placing | None:
    """An order in which a candidate that did not fit comes first, if that saves more."""
    left = [c for c in best.order if c.number not in best.at]
    left.sort(key=lambda c: (-c.value, c.number))
    for c in left:
        if room.work <= 0:
            return None
        order = [c, *(o for o in best.order if o is not c)]
        placing = _Placing(room, order)
        if placing.value > best.value:
            return placing
    return None
