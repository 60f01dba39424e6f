"""Steps apart from where their operands lie: those of equal layers are one shape at many places.

In: Tiles and Matmuls. Out: Placed ones, a Shape and a place for each operand. What depends on the
shape alone is found out once: the bytes it touches, what is left of it without some of its stores,
whether it is small enough. What two steps become together depends on their shapes and on how their
operands lie to one another, and is found out once, too.

Example: `shapes = Shapes(); shapes.join(shapes.placed(a, ()), shapes.placed(b, ()))`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch_spyre.backend.fuse import join as joining
from torch_spyre.backend.fuse.dead_code import drop_stores
from torch_spyre.backend.fuse.lane_order import in_one_order
from torch_spyre.backend.fuse.memory_regions import accesses, regions
from torch_spyre.backend.steps import (
    Address,
    Matmul,
    Space,
    Step,
    Tile,
    addresses,
    changed,
    with_addresses,
)
from torch_spyre.card_model.cost_model import Work
from torch_spyre.constants import BYTES_IN_STICK

Counts = tuple[int, ...]
"""How often the loops around a step run."""
Places = Sequence[tuple[int, int]]
"""For each operand its argument, and its lowest offset there."""


class Span(NamedTuple):
    """Bytes that a step touches."""

    place: tuple[Space, int]
    """Where; spans of different places do not overlap."""
    low: int
    high: int
    filled: int
    """As of a Region."""
    operand: int
    """Number of the operand of a Tile, or of the epilogue of a Matmul; -1 for others."""


def spans(step: Step, counts: Counts) -> tuple[list[Span], list[Span]]:
    """What a step reads and what it writes."""
    reads: list[Span] = []
    writes: list[Span] = []
    for access in accesses(step, counts):
        r = access.region
        span = Span((r.space, r.argument), r.low, r.high, r.filled, access.operand)
        (writes if access.writes else reads).append(span)
    return reads, writes


@dataclass(eq=False)
class Shape:
    """A step whose operands have their numbers for arguments, and lie from offset 0 on."""

    number: int
    step: Tile | Matmul
    counts: Counts

    def __post_init__(self) -> None:
        self.reads, self.writes = spans(self.step, self.counts)
        self.spaces = [address.space for address in addresses(self.step)]
        self.ranges = [(r.low, r.high) for r in regions(self.step, self.counts)]
        self.is_small_enough = joining.is_small_enough(self.step)
        self.final = in_one_order(self.step) if isinstance(self.step, Tile) else self.step
        self.smaller: dict[frozenset[int], tuple[Shape, list[int]] | None] = {}
        """Without some stores: the shape, and the operands that it still has."""


@dataclass(eq=False)
class Placed:
    """A step: its shape, and where its operands lie."""

    shape: Shape
    places: Places
    source: tuple[str, ...]
    works: tuple[Work, ...]
    time_us: float

    def spans(self, of_shape: Iterable[Span]) -> list[Span]:
        """Those of the shape, where they really are."""
        result = []
        for (space, number), low, high, filled, operand in of_shape:
            argument, at = self.places[number]
            if at % BYTES_IN_STICK and filled:  # sticks begin elsewhere
                filled = BYTES_IN_STICK
            result.append(Span((space, argument), at + low, at + high, filled, operand))
        return result

    def step(self) -> Tile | Matmul:
        """For the program."""
        there = [
            Address(a.space, argument, tuple([at + o for o in a.offsets]), a.loop_strides)
            for a, (argument, at) in zip(addresses(self.shape.final), self.places)
        ]
        step = with_addresses(self.shape.final, tuple(there))
        name = joining.joined_name(self.source)
        return changed(step, name=name, source=self.source, works=self.works, time_us=self.time_us)


_Inside = tuple[tuple[int, int], ...]
"""For each operand the number of a piece of memory, and its lowest offset there."""


class Shapes:
    """The shapes of a program, and what became of them."""

    def __init__(self) -> None:
        self._shapes: dict[tuple[Step, Counts], Shape] = {}
        self._known: dict[tuple[Any, ...], tuple[Shape, Step]] = {}
        self._joined: dict[tuple[int, int, _Inside], tuple[Shape, _Inside] | None] = {}

    def placed(self, step: Tile | Matmul, counts: Counts) -> Placed:
        """A step with its shape."""
        places = []
        offsets = []
        for address in addresses(step):
            low = min(address.offsets)
            places.append((address.argument, low))
            from_zero = tuple([offset - low for offset in address.offsets])
            offsets.append((address.space, from_zero, address.loop_strides))
        key = (*_parts(step), *offsets, counts)
        known = self._known.get(key)
        if known is None:
            # With the step, so that nothing else gets the ids of its parts.
            known = self._known[key] = self._shape(step, counts), step
        return Placed(known[0], places, step.source, step.works, step.time_us)

    def _shape(self, step: Tile | Matmul, counts: Counts) -> Shape:
        there = [
            _moved(address, number, -min(address.offsets))
            for number, address in enumerate(addresses(step))
        ]
        bare: Any = with_addresses(step, tuple(there))
        bare = replace(bare, name="", source=(), works=(), time_us=0.0)
        key = (bare, counts)
        if key not in self._shapes:
            self._shapes[key] = Shape(len(self._shapes), bare, counts)
        return self._shapes[key]

    def join(self, first: Placed, second: Placed) -> Placed | None:
        """Both in one step, or None where that would not give the same bits."""
        pieces, inside = _pieces(first, second)
        key = (first.shape.number, second.shape.number, inside)
        if key not in self._joined:
            self._joined[key] = self._join(first.shape, second.shape, inside)
        found = self._joined[key]
        if found is None:
            return None
        shape, places = found
        # On the card both remain what they are: operands that the join keeps in registers count.
        return Placed(
            shape,
            [(pieces[piece][0], pieces[piece][1] + at) for piece, at in places],
            first.source + second.source,
            first.works + second.works,
            first.time_us + second.time_us,
        )

    def _join(self, first: Shape, second: Shape, inside: _Inside) -> tuple[Shape, _Inside] | None:
        sides: list[Any] = []
        rest = iter(inside)
        for shape in (first, second):
            there = [_moved(address, *next(rest)) for address in addresses(shape.step)]
            sides.append(with_addresses(shape.step, tuple(there)))
        joined = joining.join(*sides, second.counts)
        if joined is None:
            return None
        places = tuple([(a.argument, min(a.offsets)) for a in addresses(joined)])
        return self._shape(joined, second.counts), places

    def without_stores(self, placed: Placed, operands: frozenset[int]) -> Placed | None:
        """Without stores to some operands; None when nothing is left to do."""
        shape = placed.shape
        if operands not in shape.smaller:
            left = drop_stores(shape.step, operands)
            if isinstance(left, Tile) and not left.operands:
                shape.smaller[operands] = None
            else:
                kept = [address.argument for address in addresses(left)]
                shape.smaller[operands] = self._shape(left, shape.counts), kept
        found = shape.smaller[operands]
        if found is None:
            return None
        smaller, kept = found
        return replace(placed, shape=smaller, places=[placed.places[n] for n in kept])


def _parts(step: Tile | Matmul) -> tuple[Any, ...]:
    """All of a step but its addresses, name and work. Equal for steps that one lowering made, which
    share their parts: large ones are compared by their ids alone."""
    operands = [
        (o.format, o.form, id(o.strides), o.sub_stride, id(o.limits)) for o in step.operands
    ]
    if isinstance(step, Matmul):
        sides = [(side.format, id(side.strides)) for side in (step.x, step.y, step.out)]
        large = map(id, (step.extents, step.groups, step.epilogue, step.starts))
        choice = None if step.choice is None else id(step.choice.strides)
        return (Matmul, step.cores, step.batch, step.large, choice, *large, *sides, *operands)
    small = (step.cores, step.lanes, step.kept, step.stick_dim, step.reduces_lanes)
    code = map(id, (step.body, step.reductions, step.epilogue, step.further))
    large = map(id, (step.extents, step.tails, step.groups, step.starts))
    return (Tile, *small, *code, *large, *operands)


def _pieces(first: Placed, second: Placed) -> tuple[list[tuple[int, int]], _Inside]:
    """The pieces of memory that two steps use, argument and first byte: operands that overlap lie
    in the same one. And where their operands lie in these."""
    used = [
        (space, argument, at + low, at + high, at)
        for placed in (first, second)
        for (argument, at), space, (low, high) in zip(
            placed.places, placed.shape.spaces, placed.shape.ranges
        )
    ]
    order = sorted(range(len(used)), key=used.__getitem__)
    piece_of = [0] * len(used)
    begins: list[tuple[int, int]] = []
    firsts: list[int] = []
    last_space, last_argument, end = None, None, 0
    for number in order:
        space, argument, low, high, _ = used[number]
        if begins and space == last_space and argument == last_argument and low < end:
            end = max(end, high)
            firsts[-1] = min(firsts[-1], number)
        else:
            begins.append((argument, low))
            firsts.append(number)
            last_space, last_argument, end = space, argument, high
        piece_of[number] = len(begins) - 1
    # Numbered as the steps come to them, wherever they lie.
    by_use = sorted(range(len(begins)), key=firsts.__getitem__)
    number_of = {piece: number for number, piece in enumerate(by_use)}
    inside = tuple([
        (number_of[piece], at - begins[piece][1]) for piece, (*_, at) in zip(piece_of, used)
    ])  # fmt: skip
    return [begins[piece] for piece in by_use], inside


def _moved(address: Address, argument: int, by: int) -> Address:
    offsets = tuple([offset + by for offset in address.offsets])
    return Address(address.space, argument, offsets, address.loop_strides)
