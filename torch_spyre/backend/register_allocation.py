"""Register allocation for tile programs: virtual registers to 32 real ones, by linear scan.

In: a Tile whose registers are virtual, each written once. Out: the same with numbers below 32. The
bodies of all phases share one file of registers, the epilogues another: results of reductions pass
from the first to the second, SPREAD takes them back. `peak_registers` says how many a Tile needs,
so that fuse stops in time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torch_spyre.backend.errors import ProgramError
from torch_spyre.backend.steps import (
    MAX_REGISTERS,
    NONE,
    Instruction,
    Phase,
    Reduction,
    Tile,
)
from torch_spyre.opfuncs import TILE_OPCODES

LOAD, STORE, ROUND, SPREAD = (TILE_OPCODES[name] for name in ("load", "store", "round", "spread"))


def sources(instruction: Instruction) -> tuple[int, ...]:
    """Registers that an instruction reads, in its own file."""
    if instruction.opcode in (LOAD, SPREAD):
        return ()
    if instruction.opcode == ROUND:
        return (instruction.a,)
    return tuple(r for r in (instruction.a, instruction.b, instruction.c) if r != NONE)


def results(reduction: Reduction) -> tuple[int, ...]:
    """Registers that a reduction writes."""
    count = 2 if reduction.op.has_two_results else 1
    return tuple(range(reduction.destination, reduction.destination + count))


def peak_registers(tile: Tile) -> int:
    """Most registers in use at one time."""
    return max(_allocate(tile)[1], 1)


def lasting_registers(tile: Tile) -> int:
    """How many registers of the bodies a later phase reads: these hold whole rows."""
    count = 0
    written: set[int] = set()
    for phase in tile.phases:
        own = {i.destination for i in phase.body if i.opcode != STORE}
        used = {r for i in phase.body for r in sources(i)} | {r.source for r in phase.reductions}
        count += len((used - own) & written)
        written = (written - used) | own
    return count


def allocate_registers(tile: Tile) -> Tile:
    """Raises ProgramError when there are too few registers."""
    allocated, peak = _allocate(tile)
    if peak > MAX_REGISTERS:
        raise ProgramError(f"{tile.name}: found {peak} registers in use, allowed: {MAX_REGISTERS}")
    return allocated


def peak_epilogue_registers(code: tuple[Instruction, ...]) -> int:
    """As peak_registers, of the epilogue of a Matmul."""
    return _allocate_epilogue(code)[1]


def allocate_epilogue(name: str, code: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
    """Of a Matmul, whose sums are in register 0. Raises ProgramError when there are too few
    registers."""
    allocated, peak = _allocate_epilogue(code)
    if peak > MAX_REGISTERS:
        raise ProgramError(f"{name}: found {peak} registers in use, allowed: {MAX_REGISTERS}")
    return allocated


def _allocate_epilogue(code: tuple[Instruction, ...]) -> tuple[tuple[Instruction, ...], int]:
    file = _File()
    for at, i in enumerate(code):
        file.note_uses(sources(i), at)
    file.define(0, 1)
    return tuple(file.place(i, at) for at, i in enumerate(code)), file.peak


class _File:
    """A file of registers. Linear scan: a register is free again after its last use."""

    def __init__(self) -> None:
        self.names: dict[int, int] = {}
        self.last: dict[int, int] = {}
        self.busy: set[int] = set()
        self.peak = 0

    def note_uses(self, registers: Iterable[int], at: int) -> None:
        for register in registers:
            self.last[register] = at

    def release(self, registers: Iterable[int], at: int) -> None:
        for register in registers:
            if self.last[register] == at:
                self.busy.discard(self.names[register])

    def define(self, register: int, count: int, wanted: int = NONE) -> int:
        """Free registers in a row for `register` and those that follow it."""
        real = wanted
        if real == NONE:
            real = next(r for r in range(64) if self.busy.isdisjoint(range(r, r + count)))
        for offset in range(count):
            self.names[register + offset] = real + offset
            if register + offset in self.last:
                self.busy.add(real + offset)
        self.peak = max(self.peak, real + count)
        return real

    def place(self, i: Instruction, at: int) -> Instruction:
        a, b, c = (self.names.get(r, r) for r in (i.a, i.b, i.c))
        if i.opcode in (LOAD, SPREAD):
            a, b, c = i.a, i.b, i.c
        elif i.opcode == ROUND:
            b, c = i.b, i.c
        self.release(set(sources(i)), at)
        destination = i.destination
        if i.opcode != STORE:
            # The card rounds a result in place at no cost.
            in_place = i.opcode == ROUND and a not in self.busy
            destination = self.define(destination, 1, a if in_place else NONE)
        return replace(i, destination=destination, a=a, b=b, c=c)


def _allocate(tile: Tile) -> tuple[Tile, int]:
    lanes, values = _File(), _File()
    for at, kind, i in _timeline(tile):
        if kind == "reductions":
            lanes.note_uses((r.source for r in i), at)
        elif kind == "body":
            lanes.note_uses(sources(i), at)
            if i.opcode == SPREAD:
                values.note_uses((i.a,), at)
        else:
            values.note_uses(sources(i), at)
    phases: list[Phase] = []
    body: list[Instruction] = []
    for at, kind, i in _timeline(tile):
        if kind == "body":
            if i.opcode == SPREAD:
                source = values.names[i.a]
                values.release((i.a,), at)
                i = replace(i, a=source)
            body.append(lanes.place(i, at))
        elif kind == "reductions":
            reductions = tuple(
                Reduction(
                    r.op,
                    lanes.names[r.source],
                    values.define(r.destination, len(results(r))),
                )
                for r in i
            )
            lanes.release({r.source for r in i}, at)
            phases.append(Phase(tuple(body), reductions))
            body = []
        else:
            epilogue = (*phases[-1].epilogue, values.place(i, at))
            phases[-1] = replace(phases[-1], epilogue=epilogue)
    return tile.with_phases(phases), max(lanes.peak, values.peak)


def _timeline(tile: Tile) -> list[tuple[int, str, Any]]:
    """Numbered: instructions of bodies and epilogues, and between them the phase's reductions."""
    events: list[tuple[str, Any]] = []
    for phase in tile.phases:
        events += [("body", i) for i in phase.body]
        events.append(("reductions", phase.reductions))
        events += [("epilogue", i) for i in phase.epilogue]
    return [(at, kind, what) for at, (kind, what) in enumerate(events)]
