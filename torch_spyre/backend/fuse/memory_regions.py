"""Which memory a step reads and writes, for fuse.

In: a step and how often the loops around it run. Out: Accesses, each with the bytes between its
first and its last one (a hull, so never too small). `exact` says that two operands are at the same
place at every point of every core, which is what fusing needs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from torch_spyre.backend.formats import FORMAT_OF_NUMBER
from torch_spyre.backend.register_allocation import LOAD, STORE
from torch_spyre.backend.steps import (
    Address,
    Copy,
    CopySide,
    Gather,
    Instruction,
    Matmul,
    Operand,
    Ring,
    Space,
    Step,
    Tile,
    Topk,
)
from torch_spyre.constants import BYTES_IN_STICK

PANEL = 16
"""Columns that a product reads at a time; what it reads too many has no effect."""


@dataclass(frozen=True)
class Region:
    """Bytes from `low` to `high` of an argument, or of the scratchpads of all cores."""

    space: Space
    argument: int
    low: int
    high: int
    filled: int
    """Of each stick in between: how many bytes from its begin on are written for certain, or read
    at most. Sticks of tensors with few columns are not full."""

    @property
    def place(self) -> tuple[Space, int]:
        """What regions must have in common to overlap."""
        return self.space, self.argument

    def overlaps(self, other: Region) -> bool:
        return (
            self.space == other.space
            and self.argument == other.argument
            and self.low < other.high
            and other.low < self.high
        )

    def hull(self, other: Region) -> Region:
        """Both, and what is between them."""
        low, high = min(self.low, other.low), max(self.high, other.high)
        return replace(self, low=low, high=high, filled=0)

    def without(self, other: Region) -> list[Region]:
        """What is left of it: up to two regions."""
        if not self.overlaps(other):
            return [self]
        ends = ((self.low, other.low), (other.high, self.high))
        return [replace(self, low=low, high=high) for low, high in ends if low < high]

    def covers(self, other: Region) -> bool:
        return (
            self.filled == BYTES_IN_STICK
            and self.overlaps(other)
            and self.low <= other.low
            and other.high <= self.high
        )


@dataclass(frozen=True)
class Access:
    region: Region
    writes: bool
    operand: int = -1
    """Number of the operand of a Tile, or of the epilogue of a Matmul."""


def accesses(step: Step, loop_counts: tuple[int, ...]) -> tuple[Access, ...]:
    """All memory that a step touches."""
    if isinstance(step, Tile):
        return tuple(
            _access(operand_region(step, step.operands[number], loop_counts), writes, number)
            for number, writes in _operand_uses(step.code)
        )
    if isinstance(step, Matmul):
        return _matmul_accesses(step, loop_counts)
    result = []
    for address, extent, size, writes in _plain_extents(step):
        region = _region(address, [extent] * step.cores, loop_counts, size)
        result.append(_access(region, writes))
    if isinstance(step, Copy):
        written = result[1].region
        if not written.filled and not any(step.destination.address.loop_strides):
            filled = _filled_by(step.destination) if written.low % BYTES_IN_STICK == 0 else 0
            result[1] = Access(replace(written, filled=filled), writes=True)
    return tuple(result)


def _access(region: Region, writes: bool, operand: int = -1) -> Access:
    if not writes:  # all of it, if nothing more is known
        region = replace(region, filled=BYTES_IN_STICK)
    return Access(region, writes, operand)


def _filled_by(side: CopySide) -> int:
    """Of how many bytes each stick of the destination gets the first ones, where all have the same:
    (8, 12, 32, 128) with the 32 along the sticks fills 64 of 128 bytes. A tensor of which only a
    part is written has the rest from before."""
    if side.arrangement or side.address.space == Space.LX:
        return 0
    lanes = [n for n, s in zip(side.sizes, side.strides) if s == side.stride_map[-1]]
    most = max(lanes, default=0)  # elements of a stick, from its begin on
    sticks = prod(side.device_size[:-1])
    if most > side.device_size[-1] or most * sticks != sum(prod(v[1:]) for v in side.views):
        return 0
    return FORMAT_OF_NUMBER[side.format].bytes * most


def regions(step: Tile | Matmul, loop_counts: tuple[int, ...]) -> list[Region]:
    """Of all operands, in the order of their addresses."""
    if isinstance(step, Tile):
        return [operand_region(step, operand, loop_counts) for operand in step.operands]
    inputs = [access.region for access in _input_accesses(step, loop_counts)]
    results = [matmul_region(step, o, loop_counts) for o in step.epilogue_operands]
    return inputs + results + [access.region for access in _choice_access(step, loop_counts)]


def _operand_uses(code: tuple[Instruction, ...]) -> list[tuple[int, bool]]:
    reads = {i.a for i in code if i.opcode == LOAD}
    writes = {i.destination for i in code if i.opcode == STORE}
    return [(n, False) for n in sorted(reads)] + [(n, True) for n in sorted(writes)]


@lru_cache(maxsize=1 << 14)  # layers do the same
def _walked(
    extents: tuple[tuple[int, ...], ...], strides: tuple[int, ...]
) -> tuple[tuple[int, ...], int]:
    """For each core the bytes to the last of the places that its points lie at, and the number of
    places of all cores."""
    known: dict[tuple[int, ...], tuple[int, int]] = {}
    for points in extents:
        if points not in known:  # cores do the same too
            walked = [(p, s) for p, s in zip(points, strides) if s]
            known[points] = sum((p - 1) * s for p, s in walked), prod(p for p, _ in walked)
    lasts = tuple([known[points][0] for points in extents])
    return lasts, sum([known[points][1] for points in extents])


def operand_region(tile: Tile, operand: Operand, loop_counts: tuple[int, ...]) -> Region:
    sticks = operand.sticks_per_group(tile.lanes)
    within = (sticks - 1) * operand.sub_stride + BYTES_IN_STICK
    lasts, count = _walked(tile.extents, operand.strides)
    size = count * sticks * BYTES_IN_STICK
    if tile.groups or any(limit >= 0 for limit in operand.limits):
        size = 0  # part of it is left out
    return _region(operand.address, [last + within for last in lasts], loop_counts, size)


def _region(
    address: Address, extents: list[int], loop_counts: tuple[int, ...], size: int
) -> Region:
    """`size` is the number of bytes touched in one iteration, by all cores together."""
    low = min(address.offsets)
    high = max([o + e for o, e in zip(address.offsets, extents)])
    if address.space == Space.LX:
        size = size // len(extents)
    filled = BYTES_IN_STICK if size == high - low else 0
    for count, stride in zip(loop_counts, address.loop_strides):
        filled = filled if stride == 0 else 0
        low += min(0, stride * (count - 1))
        high += max(0, stride * (count - 1))
    return Region(address.space, address.argument, low, high, filled)


def _walk(extents: tuple[int, ...], strides: tuple[int, ...]) -> int:
    return sum((e - 1) * s for e, s in zip(extents, strides) if s > 0) + BYTES_IN_STICK


def _plain_extents(step: Step) -> list[tuple[Address, int, int, bool]]:
    """For each operand: address, bytes from there, bytes written for certain, whether it writes."""
    if isinstance(step, Copy):
        result = []
        for side, writes in ((step.source_side, False), (step.destination, True)):
            extent = BYTES_IN_STICK * prod(side.device_size[:-1])
            size = FORMAT_OF_NUMBER[side.format].bytes * sum(prod(v[1:]) for v in side.views)
            result.append((side.address, extent, size, writes))
        return result
    if isinstance(step, Gather):
        most = _largest(step.extents)
        last = max(step.first_index) + (most[step.stick_dim] if step.stick_dim >= 0 else 1)
        index = _walk(most, step.index.strides) + last // 32 * step.stick_stride
        value, out = _walk(most, step.value.strides), _walk(most, step.out.strides)
        rows = (step.rows - 1) * step.row_stride
        size = BYTES_IN_STICK * sum(prod(e) for e in step.extents)
        if step.scatters:
            out, size = out + rows, 0  # which rows is not known
        else:
            value += rows
        return [
            (step.value.address, value, 0, False),
            (step.index.address, index, 0, False),
            (step.out.address, out, size, True),
        ]
    if isinstance(step, Ring):
        read = sum((a.extent - 1) * a.source_stride for a in step.axes) + BYTES_IN_STICK
        written = sum((a.extent - 1) * a.target_stride for a in step.axes) + BYTES_IN_STICK
        return [
            (step.source_address, max(t.source_offset for t in step.transfers) + read, 0, False),
            (step.target_address, max(t.target_offset for t in step.transfers) + written, 0, True),
        ]
    assert isinstance(step, Topk)
    most = _largest(step.extents)
    result = []
    for operand, last, writes in ((step.input, step.count, False), (step.output, step.k, True)):
        sticks = operand.sticks_per_group(step.lanes)
        extent = _walk((*most, last), operand.strides) + (sticks - 1) * operand.sub_stride
        result.append((operand.address, extent, 0, writes))
    return result


def _largest(extents: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    return tuple(max(column) for column in zip(*extents))


def _input_accesses(step: Matmul, loop_counts: tuple[int, ...]) -> list[Access]:
    *batch, rows, columns, depth = _largest(step.extents)
    x_sticks, y_sticks = (
        -(-count // FORMAT_OF_NUMBER[side.format].per_stick)
        for count, side in ((depth, step.x), (columns, step.y))
    )
    result = []
    for side, points in (
        (step.x, (*batch, rows, x_sticks)),
        (step.y, (*batch, depth, y_sticks)),
    ):
        walked = _walk(points, side.strides)
        if side is step.y and step.choice is not None:
            walked += (step.choice.count - 1) * step.choice.stride
        extents = [walked] * step.cores
        access = _access(_region(side.address, extents, loop_counts, 0), writes=False)
        used = depth if side is step.x else columns
        places = (*side.address.offsets, *side.address.loop_strides, *side.strides)
        if points[-1] == 1 and not any(place % BYTES_IN_STICK for place in places):
            some = -(-used // PANEL) * PANEL * FORMAT_OF_NUMBER[side.format].bytes
            access = Access(replace(access.region, filled=min(some, BYTES_IN_STICK)), writes=False)
        result.append(access)
    return result


def _choice_access(step: Matmul, loop_counts: tuple[int, ...]) -> list[Access]:
    """Of the numbers by which rows choose their y."""
    choice = step.choice
    if choice is None:
        return []
    *points, _columns, _depth = _largest(step.extents)
    extent = _walk(tuple(points), choice.strides)
    if choice.along_sticks:
        extent += (max(choice.first) + points[-1]) // 32 * choice.stick_stride
    region = _region(choice.address, [extent] * step.cores, loop_counts, 0)
    return [_access(region, writes=False)]


def _matmul_accesses(step: Matmul, loop_counts: tuple[int, ...]) -> tuple[Access, ...]:
    result = _input_accesses(step, loop_counts)
    operands = step.epilogue_operands
    uses = _operand_uses(step.epilogue) if step.epilogue else [(0, True)]
    for number, writes in uses:
        region = matmul_region(step, operands[number], loop_counts)
        result.append(_access(region, writes, number))
    return (*result, *_choice_access(step, loop_counts))


def matmul_region(step: Matmul, operand: Operand, loop_counts: tuple[int, ...]) -> Region:
    """Of an operand of the epilogue."""
    lasts, count = _walked(_sticks_of(step.extents, step.out.format), operand.strides)
    size = 0 if step.groups else count * BYTES_IN_STICK  # one core of a group stores
    return _region(operand.address, [last + BYTES_IN_STICK for last in lasts], loop_counts, size)


@lru_cache(maxsize=1 << 12)
def _sticks_of(extents: tuple[tuple[int, ...], ...], number: int) -> tuple[tuple[int, ...], ...]:
    """Points of the results of a product, for each core: batch..., rows, sticks of columns."""
    per_stick = FORMAT_OF_NUMBER[number].per_stick
    return tuple((*points, -(-columns // per_stick)) for *points, columns, _depth in extents)


def exact(a: Operand, b: Operand, lanes: int) -> bool:
    """Both are the same sticks at every point of every core."""
    return (
        a.address == b.address
        and a.strides == b.strides
        and a.per_stick == b.per_stick
        and a.sticks_per_group(lanes) == b.sticks_per_group(lanes)
        and a.sub_stride == b.sub_stride
    )
