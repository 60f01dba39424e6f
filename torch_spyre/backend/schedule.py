"""Decides which steps become one, and what need not be stored.

In: the steps of a bundle in order, with its loops. Out: fewer steps with the same results, bit for
bit. Steps are joined (`fuse`) when one reads what another wrote and nothing in between is in the
way; a store to the pool is dropped when nobody reads it any more. Stores to scratchpads stay: their
content outlives the bundle, unless the bundle says that it does not (`sharing`).

Example: add, exp and sum of one tensor are three steps; scheduled they are one, and neither the sum
of the two inputs nor its exponential is ever written to memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch_spyre.backend.fuse import drop_stores, is_small_enough, join
from torch_spyre.backend.orders import in_one_order
from torch_spyre.backend.regions import Access, accesses
from torch_spyre.backend.steps import Item, LoopBegin, LoopEnd, Matmul, Space, Step, Tile


def schedule(items: Iterable[Item], pool: int | None = None, *, fuse: bool = True) -> list[Item]:
    """Join steps where that is possible. `pool` is the number of the argument whose content nobody
    needs after the bundle."""
    if not fuse:
        return list(items)
    program = _Program(items, pool)
    program.join_steps()
    return [in_one_order(item) if isinstance(item, Tile) else item for item in program.items()]


@dataclass
class _Node:
    """A step in its place, and what it touches."""

    step: Step
    loops: tuple[int, ...]
    """Numbers of the loops around it, outermost first."""
    counts: tuple[int, ...]
    touches: tuple[Access, ...]

    def conflicts(self, other: _Node) -> bool:
        """Their order matters."""
        return any(
            (a.writes or b.writes) and a.region.overlaps(b.region)
            for a in self.touches
            for b in other.touches
        )


class _Program:
    def __init__(self, items: Iterable[Item], pool: int | None) -> None:
        self._pool = pool
        self._entries: list[_Node | LoopBegin | LoopEnd] = []
        loops: list[int] = []
        counts: list[int] = []
        for number, item in enumerate(items):
            if isinstance(item, LoopBegin):
                loops.append(number)
                counts.append(item.count)
                self._entries.append(item)
            elif isinstance(item, LoopEnd):
                loops.pop()
                counts.pop()
                self._entries.append(item)
            else:
                self._entries.append(_node(item, tuple(loops), tuple(counts)))
        self._written = {
            access.region.place
            for entry in self._entries
            if isinstance(entry, _Node)
            for access in entry.touches
            if access.writes
        }

    def items(self) -> list[Item]:
        return [e.step if isinstance(e, _Node) else e for e in self._entries]

    def join_steps(self) -> None:
        at = 0
        while at < len(self._entries):
            joined_at = self._join_with_earlier(at)
            # What is one step now may also follow another one.
            at = at + 1 if joined_at is None else joined_at

    def _join_with_earlier(self, at: int) -> int | None:
        """Join the step with the nearest one that it can be joined with; where it is now."""
        node = self._entries[at]
        if not isinstance(node, _Node) or not isinstance(node.step, Tile):
            return None
        between: list[_Node] = []
        # What it reads and nobody has written on the way: before the last one who wrote all of it
        # there is no step to join with, because that one is in the way.
        open_reads = [a for a in node.touches if not a.writes and a.region.place in self._written]
        for before in range(at - 1, -1, -1):
            earlier = self._entries[before]
            if not isinstance(earlier, _Node) or not open_reads:
                return None  # a loop begins or ends
            if isinstance(earlier.step, (Tile, Matmul)) and _is_linked(earlier, node):
                move_up = not any(node.conflicts(m) for m in between)
                move_down = move_up or not any(earlier.conflicts(m) for m in between)
                if move_up or move_down:
                    joined = join(earlier.step, node.step, node.counts)
                    if joined is not None:
                        place = before if move_up else at - 1
                        if self._replace(before, at, place, joined):
                            return place
            between.append(earlier)
            open_reads = [
                read
                for read in open_reads
                if not any(a.writes and a.region.covers(read.region) for a in earlier.touches)
            ]
        return None

    def _replace(self, first: int, second: int, place: int, joined: Tile | Matmul) -> bool:
        """Put a joined step at `place`, without the stores that nobody reads. False, and nothing
        is changed, when it is too large."""
        old = list(self._entries)
        node = old[second]
        assert isinstance(node, _Node)
        del self._entries[second], self._entries[first]
        self._entries.insert(place, _node(joined, node.loops, node.counts))
        dead = self._dead_stores(place)
        if dead:
            joined = drop_stores(joined, dead)
            if isinstance(joined, Tile) and not joined.operands:
                del self._entries[place]  # nobody needs any of it
                return True
            self._entries[place] = _node(joined, node.loops, node.counts)
        if not is_small_enough(joined):
            self._entries = old
            return False
        return True

    def _dead_stores(self, at: int) -> set[int]:
        """Operands of a step that nobody needs after the bundle, and that are never read again."""
        node = self._entries[at]
        assert isinstance(node, _Node)
        return {
            access.operand
            for access in node.touches
            if access.writes and self._is_temporary(access) and not self._is_read_later(at, access)
        }

    def _is_temporary(self, access: Access) -> bool:
        region = access.region
        in_pool = region.space == Space.ARGUMENT and region.argument == self._pool
        return in_pool or region.space == Space.SHARED

    def _is_read_later(self, at: int, store: Access) -> bool:
        node = self._entries[at]
        assert isinstance(node, _Node)
        if node.loops:
            # The next iteration begins with what stands before; conservatively all of it.
            around = [
                e for e in self._entries if isinstance(e, _Node) and e.loops[:1] == node.loops[:1]
            ]
            if any(_reads(e, store) for e in around):
                return True
        # The pool gives memory away in other pieces than it got it: what is not yet overwritten.
        left = [store.region]
        for later in self._entries[at + 1 :]:
            if not isinstance(later, _Node) or (node.loops and later.loops[:1] == node.loops[:1]):
                continue
            reads = [a.region for a in later.touches if not a.writes]
            if any(region.overlaps(read) for region in left for read in reads):
                return True
            for access in later.touches:
                if access.writes and access.region.is_dense:
                    left = [rest for region in left for rest in region.without(access.region)]
            if not left:
                return False
        return False


def _node(step: Step, loops: tuple[int, ...], counts: tuple[int, ...]) -> _Node:
    return _Node(step, loops, counts, accesses(step, counts))


def _reads(node: _Node, store: Access) -> bool:
    return any(not a.writes and a.region.overlaps(store.region) for a in node.touches)


def _is_linked(earlier: _Node, later: _Node) -> bool:
    """The later one reads something that the earlier one writes."""
    return any(
        a.writes and not b.writes and a.region.overlaps(b.region)
        for a in earlier.touches
        for b in later.touches
    )
