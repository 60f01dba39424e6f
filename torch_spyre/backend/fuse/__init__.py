"""Vertical fusion of steps, and elimination of dead stores.

In: the steps of a bundle in order, with its loops. Out: fewer steps with the same results, bit for
bit. Steps are joined (`fuse`) when one reads what another wrote and nothing in between is in the
way; a store to the pool is dropped when it is dead. Stores to scratchpads stay: their content
outlives the bundle, unless the bundle says that it does not (`shared_lx`).

Example: add, exp and sum of one tensor are three steps; scheduled they are one, and neither the sum
of the two inputs nor its exponential is ever written to memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch_spyre.backend.fuse.lane_order import in_one_order
from torch_spyre.backend.fuse.shapes import Placed, Shapes, Span, spans
from torch_spyre.backend.steps import Item, LoopBegin, LoopEnd, Matmul, Space, Step, Tile
from torch_spyre.constants import BYTES_IN_STICK


def schedule(items: Iterable[Item], pool: int | None = None, *, fuse: bool = True) -> list[Item]:
    """Join steps where that is possible. `pool` is the number of the argument whose content is dead
    after the bundle."""
    if not fuse:
        return list(items)
    program = _Program(items, pool)
    program.join_steps()
    return program.items()


@dataclass(eq=False)
class _Node:
    """A step in its place, and what it touches."""

    step: Step | None
    """None for one that was joined of others."""
    placed: Placed | None
    """None for those that are never joined."""
    is_tile: bool
    loops: tuple[int, ...]
    """Numbers of the loops around it, outermost first."""
    reads: list[Span]
    writes: list[Span]

    def item(self) -> Step:
        if self.step is None:
            assert self.placed is not None
            return self.placed.step()
        return in_one_order(self.step) if isinstance(self.step, Tile) else self.step

    def conflicts(self, other: _Node) -> bool:
        """Their order matters."""
        return (
            _overlap(self.writes, other.writes)
            or _overlap(self.writes, other.reads)
            or _overlap(self.reads, other.writes)
        )


class _Program:
    def __init__(self, items: Iterable[Item], pool: int | None) -> None:
        self._pool = pool
        self._shapes = Shapes()
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
                self._entries.append(self._node(item, tuple(loops), tuple(counts)))
        self._written = {
            span.place
            for entry in self._entries
            if isinstance(entry, _Node)
            for span in entry.writes
        }

    def _node(self, step: Step, loops: tuple[int, ...], counts: tuple[int, ...]) -> _Node:
        if isinstance(step, (Tile, Matmul)):
            node = _node_of(self._shapes.placed(step, counts), loops)
            node.step = step
            return node
        return _Node(step, None, False, loops, *spans(step, counts))

    def items(self) -> list[Item]:
        return [e.item() if isinstance(e, _Node) else e for e in self._entries]

    def join_steps(self) -> None:
        at = 0
        while at < len(self._entries):
            joined_at = self._join_with_earlier(at)
            # What is one step now may also follow another one.
            at = at + 1 if joined_at is None else joined_at

    def _join_with_earlier(self, at: int) -> int | None:
        """Join the step with the nearest one that it can be joined with; where it is now."""
        node = self._entries[at]
        if not isinstance(node, _Node) or not node.is_tile:
            return None
        assert node.placed is not None
        between: list[_Node] = []
        move_up = True
        # What it reads and no step has written on the way: before the last one that wrote all of it
        # there is no step to join with, because that one is in the way.
        open_reads = [span for span in node.reads if span.place in self._written]
        for before in range(at - 1, -1, -1):
            earlier = self._entries[before]
            if not isinstance(earlier, _Node) or not open_reads:
                return None  # a loop begins or ends
            is_linked = _overlap(earlier.writes, node.reads)
            if (
                is_linked
                and earlier.placed is not None
                and (move_up or not any(earlier.conflicts(m) for m in between))
            ):
                joined = self._shapes.join(earlier.placed, node.placed)
                joined_at = before if move_up else at - 1
                if joined is not None and self._replace(before, at, joined_at, joined):
                    return joined_at
            between.append(earlier)
            move_up = move_up and not (is_linked or earlier.conflicts(node))
            open_reads = [s for s in open_reads if not _covers(earlier.writes, s, dense=True)]
            if not move_up:
                # It stays where it is, and the step that wrote what it reads would have to
                # come, not past others that read the same: no search passes the last layer.
                open_reads = [s for s in open_reads if not _covers(earlier.reads, s)]
        return None

    def _replace(self, first: int, second: int, at: int, joined: Placed) -> bool:
        """Put a joined step at `at`, without its dead stores. False, and nothing
        is changed, when it is too large."""
        entries = self._entries
        earlier, node = entries[first], entries[second]
        assert isinstance(node, _Node)
        del entries[second], entries[first]
        entries.insert(at, _node_of(joined, node.loops))
        dead = self._dead_stores(at)
        left = self._shapes.without_stores(joined, dead) if dead else joined
        if left is None:
            del entries[at]  # all of it was dead
            return True
        if not left.shape.is_small_enough:
            del entries[at]
            entries.insert(first, earlier)
            entries.insert(second, node)
            return False
        if left is not joined:
            entries[at] = _node_of(left, node.loops)
        return True

    def _dead_stores(self, at: int) -> frozenset[int]:
        """Operands of a step that are dead once it has stored them."""
        node = self._entries[at]
        assert isinstance(node, _Node)
        return frozenset(
            span.operand
            for span in node.writes
            if self._is_temporary(span) and not self._is_read_later(at, node, span)
        )

    def _is_temporary(self, span: Span) -> bool:
        space, argument = span.place
        return space == Space.SHARED or (space == Space.ARGUMENT and argument == self._pool)

    def _is_read_later(self, at: int, node: _Node, store: Span) -> bool:
        if node.loops:
            # The next iteration begins with what stands before; conservatively all of it.
            around = [
                e for e in self._entries if isinstance(e, _Node) and e.loops[:1] == node.loops[:1]
            ]
            if any(_overlap(e.reads, [store]) for e in around):
                return True
        # The pool gives memory away in other pieces than it got it: what is not yet overwritten,
        # and from which byte of its sticks on.
        left = [(store.low, store.high, 0)]
        entries, place = self._entries, store.place
        for number in range(at + 1, len(entries)):
            later = entries[number]
            if not isinstance(later, _Node) or (node.loops and later.loops[:1] == node.loops[:1]):
                continue
            for where, low, high, used, _ in later.reads:
                if where == place and any(a < high and low < b and f < used for a, b, f in left):
                    return True
            for where, low, high, filled, _ in later.writes:
                if filled and where == place:
                    left = _without(left, low, high, filled)
            if not left:
                return False
        return False


def _node_of(placed: Placed, loops: tuple[int, ...]) -> _Node:
    shape = placed.shape
    is_tile = isinstance(shape.step, Tile)
    reads, writes = placed.spans(shape.reads), placed.spans(shape.writes)
    return _Node(None, placed, is_tile, loops, reads, writes)


def _overlap(some: list[Span], others: list[Span]) -> bool:
    for place, low, high, _, _ in some:
        for where, first, end, _, _ in others:
            if low < end and first < high and place == where:
                return True
    return False


def _covers(some: list[Span], span: Span, *, dense: bool = False) -> bool:
    """One of them has all of the span; with `dense`, each byte of it."""
    place, first, end, _, _ = span
    for where, low, high, filled, _ in some:
        is_wanted = filled == BYTES_IN_STICK or not dense
        if low <= first and end <= high and place == where and is_wanted:
            return True
    return False


def _without(
    spans: list[tuple[int, int, int]], low: int, high: int, filled: int
) -> list[tuple[int, int, int]]:
    """What is left of some stretches of sticks, from a byte of each stick on, when the first bytes
    of the sticks from `low` to `high` are written."""
    result = []
    for first, end, at in spans:
        inside = (max(first, low), min(end, high), max(at, filled))
        pieces = ((first, min(end, low), at), inside, (max(first, high), end, at))
        result += [(a, b, f) for a, b, f in pieces if a < b and f < BYTES_IN_STICK]
    return result
