"""What fuse must leave as it was: each load finds what the same operation stored.

In: the steps before and after fuse. Out: nothing, or BrokenRule.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch_spyre.backend.fuse.shapes import Span, spans
from torch_spyre.backend.steps import NONE, Item, LoopBegin, LoopEnd, Space, Step
from torch_spyre.constants import BYTES_IN_STICK
from torch_spyre.validation import BrokenRule

_Place = tuple[Space, int]
_Stores = tuple[list[int], set[int]]


class _Program:
    """Steps in order, and what each touches."""

    def __init__(self, items: Sequence[Item]) -> None:
        self.steps: list[Step] = []
        self.reads: list[list[Span]] = []
        self.writes: dict[_Place, list[tuple[int, Span]]] = {}
        """With the number of the step."""
        self.loops: list[int] = []
        """For each step the number of the outermost loop around it; -1 without."""
        around: list[tuple[int, int]] = []
        for number, item in enumerate(items):
            if isinstance(item, LoopBegin):
                around.append((number, item.count))
            elif isinstance(item, LoopEnd):
                around.pop()
            else:
                reads, writes = spans(item, tuple(count for _, count in around))
                for span in writes:
                    self.writes.setdefault(span.place, []).append((len(self.steps), span))
                self.steps.append(item)
                self.reads.append(reads)
                self.loops.append(around[0][0] if around else -1)

    def writers(self, span: Span, before: int) -> set[int]:
        """The steps whose stores a step finds in some bytes."""
        found = set()
        loop = self.loops[before] if before < len(self.loops) else -1
        left = [(span.low, span.high)]
        for number, store in reversed(self.writes.get(span.place, [])):
            if number >= before:  # of the iteration before
                if self.loops[number] == loop >= 0 and _overlap(store, [(span.low, span.high)]):
                    found.add(number)
            elif _overlap(store, left):
                found.add(number)
                if store.filled == BYTES_IN_STICK:
                    pieces = [((a, min(b, store.low)), (max(a, store.high), b)) for a, b in left]
                    left = [part for pair in pieces for part in pair if part[0] < part[1]]
        return found


def _overlap(span: Span, ranges: Sequence[tuple[int, int]]) -> bool:
    return any(low < span.high and span.low < high for low, high in ranges)


def check_fused(before: Sequence[Item], after: Sequence[Item], pool: int | None) -> None:
    """Each load finds what the same operation stored as before: no live store is lost, and no step
    overtakes another one that it depends on. So does who reads the results."""
    old, new = _Program(before), _Program(after)
    part_of = _joined_steps(new)
    numbers = [part_of.get(step.name, NONE) for step in old.steps]
    known: dict[tuple[int, _Place, int, int], list[_Stores]] = {}
    for step, number in enumerate(numbers):
        for span in old.reads[step] if number != NONE else []:
            same = known.setdefault((number, *span[:3]), [])
            wanted = _stores(old.writers(span, step), numbers)
            if wanted not in same:
                same.append(wanted)
    for number, reads in enumerate(new.reads):
        for span in reads:
            _expect_writers(new, span, number, known.get((number, *span[:3]), []))
    end = len(old.steps)
    for place, stores in old.writes.items():
        if place not in ((Space.SHARED, 0), (Space.ARGUMENT, pool)):
            for _, span in stores:
                wanted = _stores(old.writers(span, end), numbers)
                _expect_writers(new, span, len(new.steps), [wanted])


def _joined_steps(program: _Program) -> dict[str, int]:
    """For each operation the number of the step that it is part of."""
    found: dict[str, int] = {}
    for number, step in enumerate(program.steps):
        for source in step.source:
            if source in found:
                where = f"step {number}, {step.name}"
                raise BrokenRule("operations", where, f"{source} twice", "each in one step")
            found[source] = number
    return found


def _stores(writers: set[int], numbers: list[int]) -> _Stores:
    """The same in the program after fuse: the latest of them, and all."""
    latest = [numbers[max(writers)]] if writers else []
    return latest, {numbers[n] for n in writers}


def _expect_writers(program: _Program, span: Span, at: int, allowed: list[_Stores]) -> None:
    """The latest store before a load is still there, and is the latest. Earlier ones may be dead:
    spans have gaps, in which a load seems to find what it does not read."""
    found = program.writers(span, at)
    if not any(found.issuperset(latest) and (not found or max(found) in some)
               for latest, some in allowed):  # fmt: skip
        (space, argument), low, high = span[:3]
        steps = program.steps
        where = f"step {at}, {steps[at].name}" if at < len(steps) else "end of the program"
        names = [[steps[n].name if n != NONE else "a lost step" for n in sorted(some)]
                 for some in (found, *(some for _, some in allowed))]  # fmt: skip
        what = f"bytes {low} to {high} of {space.name} {argument} from {names[0]}"
        raise BrokenRule("stores before loads", where, what, " or ".join(map(str, names[1:])))
