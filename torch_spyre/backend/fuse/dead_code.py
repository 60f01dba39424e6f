"""Dead-code elimination in a step: stores that nothing reads, and what only they need.

In: a Tile or a Matmul, virtual registers. Out: the same without instructions, reductions and
operands that no store needs; phases that reduce nothing any more become part of the next, and a
rounding goes that the store repeats.

Example: exp and sum of it as one step; without its store to the pool the step has two operands.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from torch_spyre.backend.register_allocation import LOAD, ROUND, SPREAD, STORE, results, sources
from torch_spyre.backend.steps import Form, Instruction, Matmul, Operand, Phase, Tile
from torch_spyre.opfuncs import TILE_OPCODES

# Rounding before them or after them is the same.
_ODD_OR_ONE_SIDED = {TILE_OPCODES[name] for name in ("abs", "neg", "relu")}

Joined = Tile | Matmul


def drop_stores(step: Joined, operands: Collection[int]) -> Joined:
    """Without stores to some operands, and without what is dead then."""

    def keep(code: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
        return tuple(i for i in code if i.opcode != STORE or i.destination not in operands)

    if isinstance(step, Matmul):
        return clean(replace(step, epilogue=keep(step.epilogue)))
    phases = [replace(p, body=keep(p.body), epilogue=keep(p.epilogue)) for p in step.phases]
    return clean(step.with_phases(phases))


def clean(step: Joined) -> Joined:
    """Drop instructions whose results are not read, and operands that are not used."""
    return _clean_product(step) if isinstance(step, Matmul) else _clean_tile(step)


def _clean_product(step: Matmul) -> Matmul:
    code = _without_early_rounds(_live(step.epilogue, set()), step.epilogue_operands)
    used = [n for n in _used_operands(code) if n > 0]
    numbers = {0: 0, **{old: new for new, old in enumerate(used, start=1)}}
    operands = tuple(step.operands[n - 1] for n in used)
    return replace(step, epilogue=_renumber(code, numbers), operands=operands)


def _clean_tile(tile: Tile) -> Tile:
    phases = _live_phases(tile)
    if tile.reductions and not phases[0].reductions:
        full = (1 << tile.lanes) - 1
        tile = replace(
            tile,
            kept=tile.dims,
            reduces_lanes=False,
            groups=(),
            tails=(full,) * tile.cores,
        )
    if len(phases) == 1 and not phases[0].reductions:
        body = _without_early_rounds(phases[0].body, tile.operands)
        phases = [replace(phases[0], body=body)]
    tile = tile.with_phases(phases)
    used = _used_operands(tile.code)
    numbers = {old: new for new, old in enumerate(used)}
    phases = [
        replace(p, body=_renumber(p.body, numbers), epilogue=_renumber(p.epilogue, numbers))
        for p in phases
    ]
    return replace(tile.with_phases(phases), operands=tuple(tile.operands[n] for n in used))


def _live_phases(tile: Tile) -> list[Phase]:
    """Phases without what is not needed. One that reduces nothing any more is part of the next."""
    lanes: set[int] = set()
    values: set[int] = set()
    phases: list[Phase] = []
    for phase in reversed(tile.phases):
        epilogue = _live(phase.epilogue, values)
        reductions = tuple(r for r in phase.reductions if not values.isdisjoint(results(r)))
        lanes |= {r.source for r in reductions}
        body = _live(phase.body, lanes)
        values |= {i.a for i in body if i.opcode == SPREAD}
        if phases and not reductions:
            phases[0] = replace(phases[0], body=(*body, *phases[0].body))
        elif body or reductions or not phases:
            phases.insert(0, Phase(body, reductions, epilogue))
    while len(phases) > 1 and not phases[-1].body and not phases[-1].reductions:
        phases.pop()
    return phases


def _live(code: tuple[Instruction, ...], needed: set[int]) -> tuple[Instruction, ...]:
    kept: list[Instruction] = []
    for i in reversed(code):
        if i.opcode == STORE or i.destination in needed:
            kept.append(i)
            needed.update(sources(i))
    return tuple(reversed(kept))


def _without_early_rounds(
    code: tuple[Instruction, ...], operands: tuple[Operand, ...]
) -> tuple[Instruction, ...]:
    """relu(round(x)), stored in the format that was rounded to, is relu(x): the store rounds."""
    uses: dict[int, list[Instruction]] = {}
    for i in code:
        for register in sources(i):
            uses.setdefault(register, []).append(i)

    def rounds(store: Instruction, number: int) -> bool:
        if store.opcode != STORE:
            return False
        operand = operands[store.destination]
        return operand.form == Form.VECTOR and operand.format == number

    names: dict[int, int] = {}
    for i in code:
        if i.opcode != ROUND:
            continue
        users = uses.get(i.destination, [])
        while len(users) == 1 and users[0].opcode in _ODD_OR_ONE_SIDED:
            users = uses.get(users[0].destination, [])
            if all(rounds(user, i.b) for user in users):
                names[i.destination] = names.get(i.a, i.a)
    return tuple(
        replace(i, a=names.get(i.a, i.a)) if i.opcode in _ODD_OR_ONE_SIDED else i
        for i in code
        if i.opcode != ROUND or i.destination not in names
    )


def _used_operands(code: tuple[Instruction, ...]) -> list[int]:
    loaded = {i.a for i in code if i.opcode == LOAD}
    return sorted(loaded | {i.destination for i in code if i.opcode == STORE})


def _renumber(code: tuple[Instruction, ...], numbers: dict[int, int]) -> tuple[Instruction, ...]:
    result = []
    for i in code:
        if i.opcode == LOAD:
            i = replace(i, a=numbers[i.a])
        elif i.opcode == STORE:
            i = replace(i, destination=numbers[i.destination])
        result.append(i)
    return tuple(result)
