"""Which memory a step reads and writes, for the scheduler.

In: a step and how often the loops around it run. Out: Accesses, each with the bytes between its
first and its last one (a hull, so never too small). `exact` says that two operands are at the same
place at every point of every core, which is what fusing needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from torch_spyre.backend.formats import FORMAT_OF_NUMBER
from torch_spyre.backend.registers import LOAD, STORE
from torch_spyre.backend.steps import (
    Address,
    Copy,
    Gather,
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

    def overlaps(self, other: Region) -> bool:
        return (
            self.space == other.space
            and self.argument == other.argument
            and self.low < other.high
            and other.low < self.high
        )

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
    """Number of the operand of a Tile."""


def accesses(step: Step, loop_counts: tuple[int, ...]) -> tuple[Access, ...]:
    """All memory that a step touches."""
    if isinstance(step, Tile):
        return tuple(
            Access(operand_region(step, step.operands[number], loop_counts), writes, number)
            for number, writes in _operand_uses(step)
        )
    result = []
    for address, extent, size, writes in _plain_extents(step):
        region = _region(address, [extent] * step.cores, loop_counts, size)
        result.append(Access(region, writes))
    return tuple(result)


def _operand_uses(tile: Tile) -> list[tuple[int, bool]]:
    code = (*tile.body, *tile.epilogue)
    reads = {i.a for i in code if i.opcode == LOAD}
    writes = {i.destination for i in code if i.opcode == STORE}
    return [(n, False) for n in sorted(reads)] + [(n, True) for n in sorted(writes)]


def operand_region(tile: Tile, operand: Operand, loop_counts: tuple[int, ...]) -> Region:
    sticks = operand.sticks_per_group(tile.lanes)
    within = (sticks - 1) * operand.sub_stride + BYTES_IN_STICK
    extents, size = [], 0
    for points in tile.extents:
        walked = [(p, s) for p, s in zip(points, operand.strides) if s]
        extents.append(sum((p - 1) * s for p, s in walked) + within)
        size += prod(p for p, _ in walked) * sticks * BYTES_IN_STICK
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
    if isinstance(step, Matmul):
        return _matmul_extents(step)
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
        value = _walk(most, step.value.strides) + (step.rows - 1) * step.row_stride
        size = BYTES_IN_STICK * sum(prod(e) for e in step.extents)
        return [
            (step.value.address, value, 0, False),
            (step.index.address, index, 0, False),
            (step.out.address, _walk(most, step.out.strides), size, True),
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


def _matmul_extents(step: Matmul) -> list[tuple[Address, int, int, bool]]:
    *batch, rows, columns, depth = _largest(step.extents)
    x_sticks = -(-depth // FORMAT_OF_NUMBER[step.x.format].per_stick)
    size = 0 if step.groups else BYTES_IN_STICK * sum(prod(e[:-1]) for e in step.extents)
    return [
        (step.x.address, _walk((*batch, rows, x_sticks), step.x.strides), 0, False),
        (step.y.address, _walk((*batch, depth, columns), step.y.strides), 0, False),
        (step.out.address, _walk((*batch, rows, columns), step.out.strides), size, True),
    ]


def exact(a: Operand, b: Operand, lanes: int) -> bool:
    """Both are the same sticks at every point of every core."""
    return (
        a.address == b.address
        and a.strides == b.strides
        and a.per_stick == b.per_stick
        and a.sticks_per_group(lanes) == b.sticks_per_group(lanes)
        and a.sub_stride == b.sub_stride
    )
