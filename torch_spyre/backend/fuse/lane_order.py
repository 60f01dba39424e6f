"""Chains of float32 between tensors of 16 bits, without the order that casts leave.

A cast from 16 bits to float32 leaves the lanes of a pair of sticks in another order (`widen`), the
cast back undoes it (`narrow`). Where a step does both and nothing in between goes to memory in that
order, no result shows it: what works lane by lane gives the same lanes in either order. Without
the two the card's step is a few instructions shorter and can be translated to machine code.

    load x; widen; exp; narrow; store        becomes        load x; exp; store

In: a Tile with virtual registers. Out: the same, or one without `widen` and `narrow`.
"""

from __future__ import annotations

from dataclasses import replace

from torch_spyre.backend.register_allocation import LOAD, ROUND, SPREAD, STORE, sources
from torch_spyre.backend.steps import Form, Instruction, Tile
from torch_spyre.opfuncs import TILE_OPCODES

_WIDEN, _NARROW = TILE_OPCODES["widen"], TILE_OPCODES["narrow"]


def in_one_order(tile: Tile) -> Tile:
    """Without `widen` and `narrow`, where that gives the same bits."""
    if all(i.opcode not in (_WIDEN, _NARROW) for i in tile.code):
        return tile
    if any(phase.reductions for phase in tile.phases):
        return tile  # sums over lanes are rounded in the order of the lanes
    arranged = _arranged(tile)
    for i in tile.code:
        if i.opcode == STORE and i.a in arranged:
            return tile
        if i.opcode == LOAD and i.destination in arranged:
            return tile
    names: dict[int, int] = {}
    phases = [
        replace(p, body=_without(p.body, names), epilogue=_without(p.epilogue, names))
        for p in tile.phases
    ]
    return tile.with_phases(phases)


def _arranged(tile: Tile) -> set[int]:
    """Registers that are in the order of a cast, as far as one can tell: those that `narrow` reads
    and `widen` writes, and whatever they are computed with."""
    uniform = _uniform(tile)
    together: list[set[int]] = []
    for i in tile.code:
        if i.opcode in (LOAD, STORE, SPREAD, _WIDEN, _NARROW):
            continue
        together.append({i.destination, *sources(i)} - uniform)
    arranged = {i.destination for i in tile.code if i.opcode == _WIDEN}
    arranged |= {i.a for i in tile.code if i.opcode == _NARROW}
    count = -1
    while count != len(arranged):
        count = len(arranged)
        for registers in together:
            if not arranged.isdisjoint(registers):
                arranged |= registers
    return arranged


def _uniform(tile: Tile) -> set[int]:
    """Registers with the same value in all lanes."""
    uniform: set[int] = set()
    for i in tile.code:
        if i.opcode == LOAD:
            if tile.operands[i.a].form != Form.VECTOR:
                uniform.add(i.destination)
        elif i.opcode not in (STORE, SPREAD) and all(r in uniform for r in sources(i)):
            uniform.add(i.destination)
    return uniform


def _without(code: tuple[Instruction, ...], names: dict[int, int]) -> tuple[Instruction, ...]:
    """`names` says which register has what a dropped instruction would have given."""
    kept = []
    for i in code:
        if i.opcode in (_WIDEN, _NARROW):
            names[i.destination] = names.get(i.a, i.a)
        elif i.opcode in (LOAD, SPREAD):
            kept.append(i)
        elif i.opcode == ROUND:
            kept.append(replace(i, a=names.get(i.a, i.a)))
        else:
            a, b, c = (names.get(r, r) for r in (i.a, i.b, i.c))
            kept.append(replace(i, a=a, b=b, c=c))
    return tuple(kept)
