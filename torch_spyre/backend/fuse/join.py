"""Joins two steps into one.

In: a step, and a Tile that reads what it writes. Out: one step, or None when it would not give the
same bits. Values that the second reads stay in registers, rounded to the format that they would
have had in memory. Joins that exist:

  pointwise + any Tile       one body after the other
  reduction + pointwise      over the kept dimensions alone: it becomes part of the epilogue
  reduction + any Tile       over the same rows: it becomes a further phase
  matrix product + pointwise it becomes the product's epilogue

Memory that both touch must be the same sticks at every point, or not overlap at all: then it does
not matter that one point (or row) is finished before the next one begins. `align` brings both
steps to the same dimensions and to the same division among cores first.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from functools import lru_cache

from torch_spyre.backend.formats import FORMAT_OF_NUMBER
from torch_spyre.backend.fuse.align import How, align, align_results
from torch_spyre.backend.fuse.dead_code import Joined, clean
from torch_spyre.backend.fuse.memory_regions import accesses, exact, matmul_region, operand_region
from torch_spyre.backend.register_allocation import (
    LOAD,
    ROUND,
    SPREAD,
    STORE,
    lasting_registers,
    peak_epilogue_registers,
    peak_registers,
    results,
    sources,
)
from torch_spyre.backend.steps import (
    MAX_OPERANDS,
    MAX_REGISTERS,
    NONE,
    Form,
    Instruction,
    Matmul,
    Operand,
    Phase,
    ReduceOp,
    Tile,
)
from torch_spyre.opfuncs import TILE_OPCODES

_WIDEN, _NARROW, _WHERE = (TILE_OPCODES[name] for name in ("widen", "narrow", "where"))
_CLIP = TILE_OPCODES["clip"]
_COMPARING = {TILE_OPCODES[name] for name in ("isnan", "eq", "ne", "lt", "le", "gt", "ge")}
# Their result is one of their operands, or its negative.
_SELECTING = {
    TILE_OPCODES[name] for name in ("abs", "neg", "relu", "copy", "max", "min", "widen", "narrow")
}
_NAME_PARTS = 6
_MAX_ROW_BYTES = 256 << 10
"""Of the registers that last from phase to phase: what stays in a cache."""

Code = list[Instruction]


@lru_cache(maxsize=4096)
def join(first: Joined, second: Tile, loop_counts: tuple[int, ...]) -> Joined | None:
    """Both in one step without a name, or None. `shapes` asks once for steps that lie alike."""
    if isinstance(first, Matmul):
        return _join_product(first, second, loop_counts)
    for how, a, b in align(first, second):
        if _may_interleave(a, b, how, loop_counts):
            joined = _Joiner(a, b.operands).join(b, how)
            if joined is not None:
                return joined
    return None


def is_small_enough(step: Joined) -> bool:
    if isinstance(step, Matmul):
        return (
            len(step.epilogue_operands) <= MAX_OPERANDS
            and peak_epilogue_registers(step.epilogue) <= MAX_REGISTERS
        )
    row = max((_row_lanes(step, extents) for extents in step.extents), default=0)
    return (
        len(step.operands) <= MAX_OPERANDS
        and peak_registers(step) <= MAX_REGISTERS
        and 4 * row * lasting_registers(step) <= _MAX_ROW_BYTES
    )


def _row_lanes(tile: Tile, extents: tuple[int, ...]) -> int:
    lanes = tile.lanes
    for extent in extents[tile.kept :]:
        lanes *= extent
    return lanes


# ---- Memory --------------------------------------------------------------------------------------


def _parts(tile: Tile) -> dict[str, tuple[Instruction, ...]]:
    """Instructions that run at every point, and those that run once for several."""
    return {
        "body": tuple(i for p in tile.phases for i in p.body),
        "epilogue": tuple(i for p in tile.phases for i in p.epilogue),
    }


def _touched(
    code: tuple[Instruction, ...], operands: tuple[Operand, ...], opcode: int
) -> list[Operand]:
    numbers = {i.a if opcode == LOAD else i.destination for i in code if i.opcode == opcode}
    return [operands[n] for n in sorted(numbers)]


_ORDERS = ((STORE, LOAD), (LOAD, STORE), (STORE, STORE))


def _may_interleave(first: Tile, second: Tile, how: How, loop_counts: tuple[int, ...]) -> bool:
    for part_of_first, code_a in _parts(first).items():
        for part_of_second, code_b in _parts(second).items():
            # What runs once for several points must not touch what runs at each of them. An
            # epilogue and what becomes part of it run at the same points; a further phase runs
            # when the whole row is through.
            at_same_points = part_of_second == "body" and (
                how == How.ROWS or (part_of_first == "epilogue") == (how == How.EPILOGUE)
            )
            for op_a, op_b in _ORDERS:
                for a in _touched(code_a, first.operands, op_a):
                    for b in _touched(code_b, second.operands, op_b):
                        if at_same_points and exact(a, b, first.lanes):
                            continue
                        region_a = operand_region(first, a, loop_counts)
                        if region_a.overlaps(operand_region(second, b, loop_counts)):
                            return False
    return True


# ---- Products ------------------------------------------------------------------------------------


def _join_product(first: Matmul, second: Tile, loop_counts: tuple[int, ...]) -> Matmul | None:
    if any(i.opcode in (_WIDEN, _NARROW) for i in second.code):
        return None
    operands = align_results(first, second)
    if operands is None:
        return None
    aligned = replace(second, operands=operands)
    stored = Instruction(STORE, 0, 0)
    code = first.epilogue or (stored,)
    for op_a, op_b in _ORDERS:
        for a in _touched(code, first.epilogue_operands, op_a):
            for b in _touched(second.body, operands, op_b):
                if exact(a, b, second.lanes):
                    continue
                region = matmul_region(first, b, loop_counts)
                if matmul_region(first, a, loop_counts).overlaps(region):
                    return None
    inputs = [a.region for a in accesses(first, loop_counts) if a.operand < 0]
    for b in _touched(second.body, operands, STORE):
        region = matmul_region(first, b, loop_counts)
        if any(region.overlaps(i) for i in inputs):
            return None
    stand_in = Tile(
        first.name, first.cores, second.lanes, first.batch + 2, first.batch + 1,
        extents=tuple((*e[:-2], first.sticks(e[-2])) for e in first.extents),
        tails=(), operands=first.epilogue_operands, body=code,
    )  # fmt: skip
    joined = _Joiner(stand_in, operands).join(aligned, How.POINTS, tidy=False)
    if joined is None:
        return None
    source = first.source + second.source
    step = replace(
        first,
        operands=joined.operands[1:],
        epilogue=joined.body,
        source=source,
        name=joined_name(source),
    )
    cleaned = clean(step)
    assert isinstance(cleaned, Matmul)
    return cleaned


# ---- Registers -----------------------------------------------------------------------------------


@dataclass
class _Draft:
    """A phase that is being written."""

    body: Code = field(default_factory=list)
    reductions: tuple = ()
    epilogue: Code = field(default_factory=list)


class _Joiner:
    """Appends the second's code to the first's, which is rewritten on the way."""

    def __init__(self, first: Tile, operands: tuple[Operand, ...]) -> None:
        self.first = first
        self.theirs = operands
        self.phases = [_Draft(list(p.body), p.reductions, list(p.epilogue)) for p in first.phases]
        self.operands: list[Operand] = list(first.operands)
        self.next = 1 + _highest_register(first)
        self.uniform = _uniform_registers(first)
        self.in_epilogue = False

    @property
    def code(self) -> Code:
        """Where instructions go."""
        return self.phases[-1].epilogue if self.in_epilogue else self.phases[-1].body

    def join(self, second: Tile, how: How, *, tidy: bool = True) -> Tile | None:
        shift = self.next
        self.next += 1 + _highest_register(second)
        self.in_epilogue = how == How.EPILOGUE
        if how == How.ROWS and self.phases[-1].reductions:
            self.phases.append(_Draft())
        lane_names: dict[int, int] = {}  # registers of the second that became others
        for number, phase in enumerate(second.phases):
            if number:
                self.phases.append(_Draft())
            for i in phase.body:
                if not self._append(i, lane_names, shift):
                    return None
            if phase.reductions:
                self.phases[-1].reductions = tuple(
                    replace(r, source=lane_names[r.source], destination=r.destination + shift)
                    for r in phase.reductions
                )
                self.phases[-1].epilogue = [self._moved(i, shift) for i in phase.epilogue]
        source = self.first.source + second.source
        base = second if second.reductions and how == How.POINTS else self.first
        joined = replace(
            base, operands=tuple(self.operands), source=source, name=joined_name(source)
        )
        joined = joined.with_phases(
            [Phase(tuple(d.body), d.reductions, tuple(d.epilogue)) for d in self.phases]
        )
        if not tidy:
            return joined
        cleaned = clean(joined)
        assert isinstance(cleaned, Tile)
        return cleaned

    def _moved(self, i: Instruction, shift: int) -> Instruction:
        """An instruction of an epilogue of the second, whose registers are all its own."""
        a, b, c = (r if r == NONE else r + shift for r in (i.a, i.b, i.c))
        destination = i.destination + shift
        if i.opcode == LOAD:
            a, b, c = self._operand(self.theirs[i.a]), i.b, i.c
        elif i.opcode == STORE:
            destination = self._operand(self.theirs[i.destination])
        elif i.opcode == ROUND:
            b, c = i.b, i.c
        return replace(i, destination=destination, a=a, b=b, c=c)

    def _append(self, i: Instruction, names: dict[int, int], shift: int) -> bool:
        """One instruction of a body of the second; False when that is not possible."""
        if i.opcode == LOAD:
            return self._append_load(i, names, shift)
        a, b, c = (names.get(r, r) for r in (i.a, i.b, i.c))
        if i.opcode == STORE:
            number = self._operand(self.theirs[i.destination])
            self.code.append(replace(i, destination=number, a=a, b=b))
            return True
        if i.opcode == ROUND:
            b, c = i.b, i.c
        if i.opcode == SPREAD:
            a, b, c = i.a + shift, i.b, i.c
            if self.first.reduces_lanes:
                self.uniform.add(i.destination + shift)
        if i.opcode == _NARROW:
            widened = next(
                (w for w in self.code if w.destination == a and w.opcode == _WIDEN), None
            )
            if widened is not None:
                names[i.destination] = widened.a
                return True
        names[i.destination] = i.destination + shift
        self.code.append(replace(i, destination=i.destination + shift, a=a, b=b, c=c))
        read = sources(self.code[-1])
        if i.opcode != SPREAD and all(r in self.uniform for r in read):
            self.uniform.add(i.destination + shift)
        return True

    def _append_load(self, i: Instruction, names: dict[int, int], shift: int) -> bool:
        operand = self.theirs[i.a]
        register, possible = self._find(operand)
        if not possible:
            return False
        if register == NONE:
            register = i.destination + shift
            self.code.append(replace(i, destination=register, a=self._operand(operand)))
            if operand.form != Form.VECTOR:
                self.uniform.add(register)
        names[i.destination] = register
        return True

    def _operand(self, operand: Operand) -> int:
        if operand in self.operands:
            return self.operands.index(operand)
        self.operands.append(operand)
        return len(self.operands) - 1

    # ---- Values that are there already

    def _find(self, operand: Operand) -> tuple[int, bool]:
        """A register that holds what a load would give, and whether a load would be right."""
        for draft in reversed(self.phases):
            for code in (draft.epilogue, draft.body):
                is_result = code is draft.epilogue
                reachable = is_result or not self.in_epilogue
                spreads = is_result and not self.in_epilogue and self.first.reduces_lanes
                for at in range(len(code) - 1, -1, -1):
                    i = code[at]
                    if i.opcode == STORE and exact(
                        self.operands[i.destination], operand, self.first.lanes
                    ):
                        register = self._from_store(code, at, operand, spreads)
                        if register == NONE or not reachable:
                            return NONE, False
                        return self._brought(register, is_result), True
                    is_same = i.opcode == LOAD and self.operands[i.a] == operand
                    if is_same and reachable and (not spreads or i.destination in self.uniform):
                        return self._brought(i.destination, is_result), True
        return NONE, True

    def _brought(self, register: int, is_result: bool) -> int:
        """A register of an epilogue that is needed at every point."""
        if not is_result or self.in_epilogue:
            return register
        for i in self.code:
            if i.opcode == SPREAD and i.a == register:
                return i.destination
        spread = self.next
        self.next += 1
        self.code.append(Instruction(SPREAD, spread, register))
        if register in self.uniform or self.first.reduces_lanes:
            self.uniform.add(spread)
        return spread

    def _from_store(self, code: Code, at: int, operand: Operand, spreads: bool) -> int:
        """`spreads`: what comes of it is the first lane of each group, in all of them."""
        i = code[at]
        stored = self.operands[i.destination]
        limited = any(limit >= 0 for o in (stored, operand) for limit in o.limits)
        both = FORMAT_OF_NUMBER[stored.format], FORMAT_OF_NUMBER[operand.format]
        if limited or (both[0] != both[1] and not all(f.exact for f in both)):
            return NONE
        if stored.form == Form.EXX2_STORE:
            by_form = {Form.EXX2_MEAN: i.a, Form.EXX2_VARIANCE: i.b}
            return by_form.get(operand.form, NONE)
        if operand.form not in (Form.VECTOR, Form.SPLAT):
            return NONE
        if spreads and operand.form == Form.SPLAT:
            return self._rounded(code, at)
        same_lanes = stored.form == operand.form == Form.VECTOR and not spreads
        if not same_lanes and i.a not in self.uniform:
            return NONE
        return self._rounded(code, at)

    def _rounded(self, code: Code, at: int) -> int:
        """The register of a store, rounded as the store rounds."""
        i = code[at]
        fmt = FORMAT_OF_NUMBER[self.operands[i.destination].format]
        if fmt.exact or fmt.kind == "int":
            return i.a
        if i.a in self._representable(fmt.number):
            return i.a
        register = self.next
        self.next += 1
        if i.a in self.uniform:
            self.uniform.add(register)
        # Whatever else used the value before it was stored goes on with the exact one.
        code[at : at + 1] = [
            Instruction(ROUND, register, i.a, fmt.number),
            replace(i, a=register),
        ]
        return register

    def _representable(self, number: int) -> set[int]:
        """Registers whose values a format has: rounding to it would not change them."""
        known: set[int] = set()
        for draft in self.phases:
            self._note_representable(draft.body, number, known)
            for r in draft.reductions:
                if r.op in (ReduceOp.MAX, ReduceOp.MIN) and r.source in known:
                    known.add(r.destination)
            self._note_representable(draft.epilogue, number, known)
        return known

    def _note_representable(self, code: Code, number: int, known: set[int]) -> None:
        for i in code:
            if i.opcode == LOAD:
                # Mean and variance of an EXX2 stick are float32 whatever its format is.
                operand = self.operands[i.a]
                fits = operand.format == number and operand.form in (Form.VECTOR, Form.SPLAT)
            elif i.opcode == ROUND:
                fits = i.b == number
            elif i.opcode == SPREAD:
                fits = i.a in known
            elif i.opcode == _WHERE:
                fits = i.b in known and i.c in known
            elif i.opcode == _CLIP:
                bounds = _is_everywhere(i.immediate0) and _is_everywhere(i.immediate1)
                fits = bounds and i.a in known
            else:
                selects = i.opcode in _SELECTING and all(r in known for r in sources(i))
                fits = selects or i.opcode in _COMPARING
            if fits and i.opcode != STORE:
                known.add(i.destination)


def _is_everywhere(bits: int) -> bool:
    """A float32 that every format of 16 bits has: few fraction bits, of ordinary magnitude."""
    magnitude = bits & 0x7FFFFFFF
    ordinary = 2.0**-13 <= struct.unpack("<f", struct.pack("<I", magnitude))[0] < 2.0**15
    return magnitude in (0, 0x7F800000) or (ordinary and magnitude & 0xFFFF == 0)


def _highest_register(tile: Tile) -> int:
    registers = [0]
    for phase in tile.phases:
        for i in (*phase.body, *phase.epilogue):
            registers += [i.destination, i.a, i.b, i.c]
        for r in phase.reductions:
            registers += [r.source, *results(r)]
    return max(registers)


def _uniform_registers(tile: Tile) -> set[int]:
    """Registers that hold the same value in every lane."""
    uniform: set[int] = set()
    for phase in tile.phases:
        for i in phase.body:
            _note_uniform(i, tile, uniform)
        for reduction in phase.reductions:
            if tile.reduces_lanes or reduction.source in uniform:
                uniform.update(results(reduction))
        for i in phase.epilogue:
            _note_uniform(i, tile, uniform)
    return uniform


def _note_uniform(i: Instruction, tile: Tile, uniform: set[int]) -> None:
    if i.opcode == STORE:
        return
    if i.opcode == LOAD:
        if tile.operands[i.a].form != Form.VECTOR:
            uniform.add(i.destination)
    elif i.opcode == SPREAD:
        if i.a in uniform:
            uniform.add(i.destination)
    elif all(r in uniform for r in sources(i)):
        uniform.add(i.destination)


def joined_name(source: tuple[str, ...]) -> str:
    if len(source) <= _NAME_PARTS:
        return "+".join(source)
    return "+".join(
        (*source[: _NAME_PARTS - 2], f"{len(source) - _NAME_PARTS + 1} more", source[-1])
    )
