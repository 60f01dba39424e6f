"""Registers of tile programs: every instruction still reads the values that it read before."""

from __future__ import annotations

import random

import pytest

from torch_spyre.backend.errors import ProgramError
from torch_spyre.backend.register_allocation import (
    LOAD,
    ROUND,
    STORE,
    allocate_epilogue,
    allocate_registers,
    peak_epilogue_registers,
    peak_registers,
    sources,
)
from torch_spyre.backend.steps import Instruction, Tile
from torch_spyre.opfuncs import TILE_OPCODES

ADD, EXP, WHERE = (TILE_OPCODES[name] for name in ("add", "exp", "where"))
ARITY = {EXP: 1, ROUND: 1, ADD: 2, WHERE: 3}


def tile(body: list[Instruction]) -> Tile:
    return Tile("t", 1, 64, 1, 0, ((1,),), (0,), (), tuple(body))


def stored(code: tuple[Instruction, ...], before: dict[int, object] | None = None) -> list[object]:
    """What is stored, as expressions: a register has what was written to it last."""
    registers: dict[int, object] = dict(before or {})
    found: list[object] = []
    for i in code:
        if i.opcode == LOAD:
            registers[i.destination] = ("operand", i.a)
        elif i.opcode == STORE:
            found.append((i.destination, registers[i.a]))
        else:
            registers[i.destination] = (i.opcode, *(registers[r] for r in sources(i)))
    return found


def random_code(draw: random.Random, length: int, first: int = 0) -> list[Instruction]:
    """Virtual registers, each written once; some results are never used."""
    code: list[Instruction] = []
    known = list(range(first))
    for number in range(first, length):
        opcode = draw.choice([LOAD, *ARITY]) if known else LOAD
        if opcode == LOAD:
            code.append(Instruction(LOAD, number, draw.randrange(4)))
        else:
            operands = [draw.choice(known[-6:]) for _ in range(ARITY[opcode])]
            code.append(Instruction(opcode, number, *operands))
        known.append(number)
        if draw.random() < 0.2:
            code.append(Instruction(STORE, draw.randrange(4), draw.choice(known[-6:])))
    code.append(Instruction(STORE, 9, known[-1]))
    return code


@pytest.mark.parametrize("seed", range(20))
def test_real_registers_hold_the_same_values_when_they_are_read(seed: int) -> None:
    body = random_code(random.Random(seed), 40)
    allocated = allocate_registers(tile(body))
    assert stored(allocated.body) == stored(tuple(body))
    used = {i.destination for i in allocated.body if i.opcode != STORE}
    assert max(used) < peak_registers(tile(body)) <= 32


@pytest.mark.parametrize("seed", range(20))
def test_the_sums_of_a_product_stay_until_their_last_use(seed: int) -> None:
    code = tuple(random_code(random.Random(seed), 30, first=1))
    found = allocate_epilogue("product", code)
    assert stored(found, {0: "sums"}) == stored(code, {0: "sums"})
    assert peak_epilogue_registers(code) <= 32


def test_a_chain_needs_one_register_more_than_it_keeps() -> None:
    chain = [Instruction(LOAD, 0, 0)]
    chain += [Instruction(EXP, n, n - 1) for n in range(1, 50)]
    assert peak_registers(tile([*chain, Instruction(STORE, 0, 49)])) == 1
    both = [Instruction(LOAD, 0, 0), Instruction(LOAD, 1, 1), Instruction(ADD, 2, 0, 1)]
    assert peak_registers(tile([*both, Instruction(STORE, 0, 2)])) == 2


def test_more_than_32_values_at_one_time_are_refused() -> None:
    for count, fits in ((32, True), (33, False)):
        code = [Instruction(LOAD, n, n) for n in range(count)]
        code += [Instruction(STORE, n, n) for n in range(count)]
        assert peak_registers(tile(code)) == count
        if fits:
            allocate_registers(tile(code))
        else:
            with pytest.raises(ProgramError, match="t: found 33 registers in use, allowed: 32"):
                allocate_registers(tile(code))
