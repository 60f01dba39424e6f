"""Counted loops: the stride of each tensor's address per iteration, and loop unrolling.

In: OpSpecs inside of LoopSpecs; the tensors keep their full device_size and the iteration space is
that of one tile. Out: strides in bytes, or a flat list of operations.

Example: rows of a [4, 128, 64] tensor in tiles of 32: 32 rows are 32 * 64 * 2 = 4096 bytes apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from torch_spyre._inductor.opspec.access import Access, InvalidOpSpec, read_accesses
from torch_spyre._inductor.opspec.op_spec import LoopSpec, OpSpec, UnimplementedOp


def loop_strides(op: OpSpec, loop_counts: Sequence[int] = ()) -> list[tuple[int, ...]]:
    """For each tensor the bytes that one iteration of each loop of `op.tiled_symbols` adds to its
    address; all zeros become an empty tuple. Counts are those of all loops around."""
    if not op.tiled_symbols:
        return [()] * len(op.args)
    depth = len(op.tiled_symbols)
    counts = [1] * (depth - len(loop_counts)) + list(loop_counts)[-depth:]
    # Tiles that each loop steps over: two loops over one symbol nest.
    tiles = []
    for level, symbol in enumerate(op.tiled_symbols):
        step = 1
        for inner in range(level + 1, depth):
            if op.tiled_symbols[inner] == symbol:
                step *= counts[inner]
        tiles.append(step)
    result = []
    for number, access in enumerate(read_accesses(op)):
        fixed = depth if access.arg.per_tile_fixed else access.arg.fixed_loops
        strides = tuple(
            0 if level < fixed else n * _tile_bytes(op, number, access, symbol)
            for level, (n, symbol) in enumerate(zip(tiles, op.tiled_symbols))
        )
        result.append(strides if any(strides) else ())
    return result


def _tile_bytes(op: OpSpec, number: int, access: Access, symbol: object) -> int:
    for axis in access.axes:
        if axis.symbol == symbol and not axis.gathered:
            size = op.iteration_space[axis.symbol][0]
            if axis.sticks and size % access.eps:
                place = f"operation {op.op}, tensor {number}"
                raise InvalidOpSpec("tiles of whole sticks", place, size, f"n * {access.eps}")
            return (size // access.eps if axis.sticks else size) * axis.step * access.word
    return 0


Spec = OpSpec | LoopSpec | UnimplementedOp


@dataclass(frozen=True)
class Run:
    """An operation and the loops around it."""

    spec: OpSpec
    loops: tuple[int, ...]
    """How often they run, outermost first."""

    @property
    def count(self) -> int:
        """How often it runs."""
        return prod(self.loops)


def runs_of(specs: Iterable[Spec], loops: tuple[int, ...] = ()) -> list[Run]:
    """All operations in order, those of a loop once."""
    runs: list[Run] = []
    for spec in specs:
        if isinstance(spec, LoopSpec):
            runs += runs_of(spec.body, (*loops, spec.count))
        elif isinstance(spec, OpSpec):
            runs.append(Run(spec, loops))
    return runs


class Turn(NamedTuple):
    """An operation of a bundle."""

    number: int
    """Of the operation, those of a loop counted once."""
    counters: tuple[int, ...]
    """Which iteration of each loop around it this is; empty where loops stay loops."""


def turns_of(specs: Sequence[Spec], unrolled: bool) -> list[Turn]:
    """The operations of a bundle in order; in every iteration one, when loops are written out."""
    if not unrolled:
        return [Turn(number, ()) for number in range(len(runs_of(specs)))]
    return _turns(specs, 0, ())


def _turns(specs: Sequence[Spec], first: int, counters: tuple[int, ...]) -> list[Turn]:
    turns: list[Turn] = []
    for spec in specs:
        if isinstance(spec, LoopSpec):
            for counter in range(spec.count):
                turns += _turns(spec.body, first, (*counters, counter))
            first += len(runs_of(spec.body))
        else:
            turns.append(Turn(first, counters))
            first += 1
    return turns


def unroll(specs: Sequence[Spec]) -> list[OpSpec | UnimplementedOp]:
    """The operations one after the other, without loops."""
    return _unroll(specs, [], [])


def _unroll(
    specs: Sequence[Spec], counts: list[int], counters: list[int]
) -> list[OpSpec | UnimplementedOp]:
    flat: list[OpSpec | UnimplementedOp] = []
    for spec in specs:
        if isinstance(spec, LoopSpec):
            for counter in range(spec.count):
                flat += _unroll(spec.body, [*counts, spec.count], [*counters, counter])
        elif isinstance(spec, OpSpec) and spec.tiled_symbols:
            flat.append(_at(spec, counts, counters))
        else:
            flat.append(spec)
    return flat


def _at(op: OpSpec, counts: list[int], counters: list[int]) -> OpSpec:
    """One iteration of an operation."""
    args = []
    for arg, strides in zip(op.args, loop_strides(op, counts)):
        moved = sum(s * n for s, n in zip(strides, counters[len(counters) - len(strides) :]))
        allocation = {space: at + moved for space, at in arg.allocation.items()}
        args.append(replace(arg, allocation=allocation))
    return replace(op, args=args, tiled_symbols=[])
