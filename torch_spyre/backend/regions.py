"""Which memory a step reads and writes, for the scheduler.

In: a step and how often the loops around it run. Out: Accesses, each with the bytes between its
first and its last one (a hull, so never too small). `exact` says that two operands are at the same
place at every point of every core, which is what fusing needs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from torch_spyre.backend.formats import FORMAT_OF_NUMBER
from torch_spyre.backend.registers import LOAD, STORE
from torch_spyre.backend.steps import (
    Address,
    Copy,
    Gather,
    Instruction,
    Matmul,
    Operand,
    Space,
    Step,
    Tile,
    Topk,
)
from torch_spyre.constants import BYTES_IN_STICK


@dataclass(frozen=True)
class Region:
    """Bytes from `low` to `high` of an argument, or of the scratchpads of all cores."""

    space: Space
    argument: int
    low: int
    high: int
    is_dense: bool
    """Every byte in between belongs to it."""

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

    def without(self, other: Region) -> list[Region]:
        """What is left of it: up to two regions."""
        if not self.overlaps(other):
            return [self]
        ends = ((self.low, other.low), (other.high, self.high))
        return [replace(self, low=low, high=high) for low, high in ends if low < high]

    def covers(self, other: Region) -> bool:
        return (
            self.is_dense
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
            Access(operand_region(step, step.operands[number], loop_counts), writes, number)
            for number, writes in _operand_uses(step.code)
        )
    if isinstance(step, Matmul):
        return _matmul_accesses(step, loop_counts)
    result = []
    for address, extent, size, writes in _plain_extents(step):
        region = _region(address, [extent] * step.cores, loop_counts, size)
        result.append(Access(region, writes))
    return tuple(result)


def _operand_uses(code: tuple[Instruction, ...]) -> list[tuple[int, bool]]:
    reads = {i.a for i in code if i.opcode == LOAD}
    writes = {i.destination for i in code if i.opcode == STORE}
    return [(n, False) for n in sorted(reads)] + [(n, True) for n in sorted(writes)]


@lru_cache(maxsize=1 << 14)  # cores do the same
def _walked(points: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int]:
    """Bytes to the last of the places that points lie at, and their number."""
    walked = [(p, s) for p, s in zip(points, strides) if s]
    return sum((p - 1) * s for p, s in walked), prod(p for p, _ in walked)


def operand_region(tile: Tile, operand: Operand, loop_counts: tuple[int, ...]) -> Region:
    sticks = operand.sticks_per_group(tile.lanes)
    within = (sticks - 1) * operand.sub_stride + BYTES_IN_STICK
    walked = [_walked(points, operand.strides) for points in tile.extents]
    extents = [last + within for last, _ in walked]
    size = sum([count for _, count in walked]) * sticks * BYTES_IN_STICK
    if any(limit >= 0 for limit in operand.limits) or tile.groups:
        size = 0  # part of it is left out
    return _region(operand.address, extents, loop_counts, size)


def _region(
    address: Address, extents: list[int], loop_counts: tuple[int, ...], size: int
) -> Region:
    """`size` is the number of bytes touched in one iteration, by all cores together."""
    low = min(address.offsets)
    high = max(o + e for o, e in zip(address.offsets, extents))
    if address.space == Space.LX:
        size = size // len(extents)
    is_dense = size == high - low
    for count, stride in zip(loop_counts, address.loop_strides):
        is_dense = is_dense and stride == 0
        low += min(0, stride * (count - 1))
        high += max(0, stride * (count - 1))
    return Region(address.space, address.argument, low, high, is_dense)


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


def _matmul_accesses(step: Matmul, loop_counts: tuple[int, ...]) -> tuple[Access, ...]:
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
        extents = [_walk(points, side.strides)] * step.cores
        result.append(Access(_region(side.address, extents, loop_counts, 0), writes=False))
    operands = step.epilogue_operands
    uses = _operand_uses(step.epilogue) if step.epilogue else [(0, True)]
    for number, writes in uses:
        region = matmul_region(step, operands[number], loop_counts)
        result.append(Access(region, writes, number))
    return tuple(result)


def matmul_region(step: Matmul, operand: Operand, loop_counts: tuple[int, ...]) -> Region:
    """Of an operand of the epilogue."""
    extents, size = [], 0
    for *batch_rows, columns, _depth in step.extents:
        walked = [(p, s) for p, s in zip((*batch_rows, step.sticks(columns)), operand.strides) if s]
        extents.append(sum((p - 1) * s for p, s in walked) + BYTES_IN_STICK)
        size += prod(p for p, _ in walked) * BYTES_IN_STICK
    if step.groups:
        size = 0  # one core of a group stores
    return _region(operand.address, extents, loop_counts, size)


def exact(a: Operand, b: Operand, lanes: int) -> bool:
    """Both are the same sticks at every point of every core."""
    return (
        a.address == b.address
        and a.strides == b.strides
        and a.per_stick == b.per_stick
        and a.sticks_per_group(lanes) == b.sticks_per_group(lanes)
        and a.sub_stride == b.sub_stride
    )
