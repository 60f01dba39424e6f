"""Gives the values of a tile program real registers.

In: a Tile whose registers are virtual, each written once. Out: the same with numbers below 32. Body
and epilogue are separate: only the results of the reductions pass between them. `peak_registers`
says how many a Tile needs, so that the scheduler stops in time.
"""

from __future__ import annotations

from dataclasses import replace

from torch_spyre.backend.errors import ProgramError
from torch_spyre.backend.steps import (
    MAX_REGISTERS,
    NONE,
    Instruction,
    ReduceOp,
    Reduction,
    Tile,
)
from torch_spyre.opfuncs import TILE_OPCODES

LOAD, STORE, ROUND = (TILE_OPCODES[name] for name in ("load", "store", "round"))


def sources(instruction: Instruction) -> tuple[int, ...]:
    """Registers that an instruction reads."""
    if instruction.opcode == LOAD:
        return ()
    if instruction.opcode == ROUND:
        return (instruction.a,)
    return tuple(r for r in (instruction.a, instruction.b, instruction.c) if r != NONE)


def results(reduction: Reduction) -> tuple[int, ...]:
    """Registers that a reduction writes."""
    count = 2 if reduction.op == ReduceOp.EXX2 else 1
    return tuple(range(reduction.destination, reduction.destination + count))


def peak_registers(tile: Tile) -> int:
    """Most registers in use at one time."""
    return max(_allocate(tile)[1], 1)


def allocate_registers(tile: Tile) -> Tile:
    """Raises ProgramError when there are too few registers."""
    allocated, peak = _allocate(tile)
    if peak > MAX_REGISTERS:
        raise ProgramError(f"{tile.name}: found {peak} registers in use, allowed: {MAX_REGISTERS}")
    return allocated


def _allocate(tile: Tile) -> tuple[Tile, int]:
    alive = tuple(r.source for r in tile.reductions)
    body, body_names, peak = _assign(tile.body, {}, alive)
    # Results go behind the sources: no result may overwrite what another reduction still reads.
    first = max((body_names[r] for r in alive), default=-1) + 1
    names: dict[int, int] = {}
    for reduction in tile.reductions:
        for register in results(reduction):
            names[register] = first + len(names)
    epilogue, _, epilogue_peak = _assign(tile.epilogue, dict(names), ())
    reductions = tuple(
        Reduction(r.op, body_names[r.source], names[r.destination]) for r in tile.reductions
    )
    return (
        replace(tile, body=body, reductions=reductions, epilogue=epilogue),
        max(peak, epilogue_peak, first + len(names)),
    )


def _assign(
    code: tuple[Instruction, ...], names: dict[int, int], alive: tuple[int, ...]
) -> tuple[tuple[Instruction, ...], dict[int, int], int]:
    """Linear scan: a register is free again after its last use."""
    last: dict[int, int] = {}
    for at, instruction in enumerate(code):
        for register in sources(instruction):
            last[register] = at
    for register in alive:
        last[register] = len(code)
    busy = {real for virtual, real in names.items() if virtual in last}
    peak = max(busy, default=-1) + 1
    result = []
    for at, instruction in enumerate(code):
        a, b, c = (names.get(r, r) for r in (instruction.a, instruction.b, instruction.c))
        if instruction.opcode == LOAD:
            a, b, c = instruction.a, instruction.b, instruction.c
        elif instruction.opcode == ROUND:
            b, c = instruction.b, instruction.c
        for register in set(sources(instruction)):
            if last[register] == at:
                busy.discard(names[register])
        destination = instruction.destination
        if instruction.opcode != STORE:
            real = next(r for r in range(len(busy) + 1) if r not in busy)
            if instruction.opcode == ROUND and a not in busy:
                real = a  # the card rounds a result in place at no cost
            names[destination] = real
            if destination in last:
                busy.add(real)
            peak = max(peak, real + 1)
            destination = real
        result.append(replace(instruction, destination=destination, a=a, b=b, c=c))
    return tuple(result), names, peak
