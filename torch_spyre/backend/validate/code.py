"""Rules of what a step computes: operands of tiles and products, instructions, registers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch_spyre.backend.formats import FORMAT_OF_NUMBER, FORMATS, TILE_FORMATS
from torch_spyre.backend.register_allocation import (
    LOAD,
    ROUND,
    SPREAD,
    STORE,
    peak_epilogue_registers,
    peak_registers,
    results,
    sources,
)
from torch_spyre.backend.steps import MAX_REGISTERS, Form, Instruction, Matmul, Operand, Tile, Topk
from torch_spyre.backend.validate.places import Found, Scope, operands_of
from torch_spyre.opfuncs import OPFUNCS, TILE_OPCODES

MAX_STEP_OPERANDS = 32
"""Of the card; fuse stops at MAX_OPERANDS."""
LANES = (32, 64, 128)
_FORMS: dict[tuple[type, int], tuple[Form, ...]] = {
    (Tile, LOAD): (Form.VECTOR, Form.SPLAT, Form.EXX2_MEAN, Form.EXX2_VARIANCE),
    (Tile, STORE): (Form.VECTOR, Form.SPLAT_STORE, Form.EXX2_STORE),
    (Matmul, LOAD): (Form.VECTOR, Form.SPLAT),
    (Matmul, STORE): (Form.VECTOR,),
}
_NAMES = {number: name for name, number in TILE_OPCODES.items()}
_WIDEN, _NARROW = TILE_OPCODES["widen"], TILE_OPCODES["narrow"]
_ANY_KIND = ("copy", "widen", "narrow", "constant_bits", "where", "spread")
_COMPARING = ("eq", "ne", "lt", "le", "gt", "ge")


def lanes(step: Tile | Topk, scope: Scope) -> Found:
    if step.lanes not in LANES:
        yield step.lanes, LANES
    if isinstance(step, Tile):
        full = 1 << step.lanes
        wrong = [tail for tail in step.tails if not 0 <= tail < full]
        if wrong:
            yield f"tail {wrong[0]:#x}", f"a mask of {step.lanes} lanes"


def formats(step: Tile | Matmul | Topk, scope: Scope) -> Found:
    numbers = [o.format for o in operands_of(step)]
    if isinstance(step, Matmul):
        numbers += [step.x.format, step.y.format]
    for number in numbers:
        found = FORMAT_OF_NUMBER.get(number)
        if found is None or found.name not in TILE_FORMATS:
            yield found.name if found else number, ", ".join(sorted(TILE_FORMATS))
    if isinstance(step, Matmul):
        kinds = [FORMAT_OF_NUMBER[side.format].kind for side in (step.x, step.y)]
        if kinds != ["float", "float"] or step.out.format == FORMATS["SEN143_FP8"].number:
            yield kinds, "floats as inputs, and an output that is not SEN143_FP8"


def operand_count(step: Tile | Matmul, scope: Scope) -> Found:
    count = len(operands_of(step))
    if count > MAX_STEP_OPERANDS:
        yield count, f"up to {MAX_STEP_OPERANDS}"


def whole_sticks(step: Tile | Matmul | Topk, scope: Scope) -> Found:
    """A group of lanes is a number of sticks of each vector."""
    lanes = FORMAT_OF_NUMBER[step.out.format].per_stick if isinstance(step, Matmul) else step.lanes
    for number, o in enumerate(operands_of(step)):
        if o.form == Form.VECTOR and lanes % o.per_stick:
            yield f"{o.per_stick} in a stick of @{number}", f"divisors of {lanes}"


def _code(step: Tile | Matmul) -> tuple[Instruction, ...]:
    return step.epilogue if isinstance(step, Matmul) else step.code


def _operand_uses(code: Iterable[Instruction]) -> Iterator[tuple[Instruction, int]]:
    """Loads and stores with the number of their operand."""
    for i in code:
        if i.opcode in (LOAD, STORE):
            yield i, i.a if i.opcode == LOAD else i.destination


def opcodes(step: Tile | Matmul, scope: Scope) -> Found:
    for i in _code(step):
        if i.opcode not in _NAMES:
            yield i.opcode, "an opcode of opfuncs.TILE_OPCODES"
        elif isinstance(step, Matmul) and i.opcode in (_WIDEN, _NARROW, SPREAD):
            yield _NAMES[i.opcode], "none that moves lanes in the epilogue of a product"
        elif isinstance(step, Tile) and i.opcode in (_WIDEN, _NARROW) and step.lanes == LANES[0]:
            yield f"{_NAMES[i.opcode]} of {step.lanes} lanes", LANES[1:]


def operand_numbers(step: Tile | Matmul, scope: Scope) -> Found:
    count = len(operands_of(step))
    for i, number in _operand_uses(_code(step)):
        if not 0 <= number < count:
            yield f"{_NAMES[i.opcode]} @{number}", f"@0 to @{count - 1}"


def forms(step: Tile | Matmul, scope: Scope) -> Found:
    operands = operands_of(step)
    for i, number in _operand_uses(_code(step)):
        form, allowed = operands[number].form, _FORMS[type(step), i.opcode]
        if form not in allowed:
            yield f"{_NAMES[i.opcode]} of {form.name}", ", ".join(f.name for f in allowed)


def _arities() -> dict[int, int]:
    """By opcode the number of registers that it reads, from the table of OpFuncs."""
    found = {"round": 1, "load": 0, "spread": 0, "mul_imm": 1, "widen": 1, "narrow": 1,
             "constant": 0, "constant_bits": 0}  # fmt: skip
    for row in OPFUNCS.values():
        if not isinstance(row.tile, str):
            for opcode, _, *read in row.tile:
                found[opcode] = len([s for s in read if s not in row.constants])
        elif row.kind != "reduction":
            found.update({name: row.arity for name in (row.tile, row.int_tile) if name})
    return {n: found[name.removeprefix("short_")] for n, name in _NAMES.items() if n != STORE}


_ARITY = _arities()


def arity(step: Tile | Matmul, scope: Scope) -> Found:
    operands = operands_of(step)
    for i in _code(step):
        if i.opcode == STORE:
            expected = 2 if operands[i.destination].form == Form.EXX2_STORE else 1
        else:
            expected = _ARITY[i.opcode]
        if len(sources(i)) != expected:
            yield f"{_NAMES[i.opcode]} of {len(sources(i))} registers", expected


def immediates(step: Tile | Matmul, scope: Scope) -> Found:
    for i in _code(step):
        if not (0 <= i.immediate0 < 1 << 32 and 0 <= i.immediate1 < 1 << 32):
            yield f"{_NAMES[i.opcode]} with {i.immediate0}, {i.immediate1}", "32 bits each"


def defined(step: Tile | Matmul, scope: Scope) -> Found:
    """Bodies and epilogues have registers of their own. Sums of a product are in register 0."""
    if isinstance(step, Matmul):
        yield from _reads_first(step.epilogue, {0}, set())
        return
    lanes: set[int] = set()
    values: set[int] = set()
    for phase in step.phases:
        yield from _reads_first(phase.body, lanes, values)
        for r in phase.reductions:
            if r.source not in lanes:
                yield f"r{r.source} is read first", "reads after the write"
            values.update(results(r))
        yield from _reads_first(phase.epilogue, values, values)


def _reads_first(code: Iterable[Instruction], written: set[int], values: set[int]) -> Found:
    for i in code:
        needed = {i.a} - values if i.opcode == SPREAD else set(sources(i)) - written
        if needed:
            yield f"r{min(needed)} is read first", "reads after the write"
        if i.opcode != STORE:
            if i.destination < 0 or i.destination in written:
                yield f"r{i.destination} is written twice", "one write for each register"
            written.add(i.destination)


def registers(step: Tile | Matmul, scope: Scope) -> Found:
    if len(_code(step)) <= MAX_REGISTERS // 2:  # two results of each reduction, one of the rest
        return
    if isinstance(step, Matmul):
        peak = peak_epilogue_registers(step.epilogue)
    else:
        peak = peak_registers(step)
    if peak > MAX_REGISTERS:
        yield f"{peak} in use at one time", f"up to {MAX_REGISTERS}"


def kinds(step: Tile | Matmul, scope: Scope) -> Found:
    """Integers are for the opcodes of integers and stores of their formats, floats for the rest.
    In a joined step the bits that one operation stored may be something else to the next."""
    if isinstance(step, Matmul) or len(step.source) > 1:
        return
    lanes: dict[int, str] = {}
    values: dict[int, str] = {}
    for phase in step.phases:
        yield from _other_kinds(phase.body, lanes, step.operands)
        values.update({n: lanes[r.source] for r in phase.reductions for n in results(r)})
        yield from _other_kinds(phase.epilogue, values, step.operands)


def _other_kinds(
    code: Iterable[Instruction], known: dict[int, str], operands: tuple[Operand, ...]
) -> Found:
    for i in code:
        read = [known[r] for r in sources(i)]
        takes, gives = _signature(i, operands)
        if takes and set(read) - {takes, "any"}:
            yield f"{_NAMES[i.opcode]} of {', '.join(read)}", takes
        if i.opcode != STORE:
            known[i.destination] = gives or (read or ["any"])[-1]


def _signature(i: Instruction, operands: tuple[Operand, ...]) -> tuple[str, str]:
    """The kind of registers that it reads, and of the one that it writes; empty: any, the same."""
    name = _NAMES[i.opcode]
    if i.opcode == LOAD:
        return "", FORMAT_OF_NUMBER[operands[i.a].format].kind
    if i.opcode == STORE:
        return FORMAT_OF_NUMBER[operands[i.destination].format].kind, ""
    if i.opcode == ROUND:
        return FORMAT_OF_NUMBER[i.b].kind, ""
    if name in _ANY_KIND:
        return "", ""
    takes = "int" if name.startswith("int_") else "float"
    to_float = name == "int_to_float" or name.removeprefix("int_") in _COMPARING
    return takes, "int" if name == "float_to_int" else "float" if to_float else takes


def phases(step: Tile, scope: Scope) -> Found:
    """What reduces has something to reduce, and only the last phase may reduce nothing."""
    reduces = [bool(phase.reductions) for phase in step.phases]
    if reduces[0] != (step.kept < step.dims or step.reduces_lanes):
        yield f"{len(step.reductions)} reductions", "some if dimensions or lanes are reduced"
    if not all(reduces[:-1]) or (len(reduces) > 1 and step.groups):
        yield f"phases that reduce: {reduces}", "all but the last, and one with groups"
    if any(phase.epilogue and not phase.reductions for phase in step.phases):
        yield "an epilogue", "none without a reduction"


def epilogue_strides(step: Tile, scope: Scope) -> Found:
    code = [i for phase in step.phases for i in phase.epilogue]
    for _, number in _operand_uses(code):
        strides = step.operands[number].strides
        if any(strides[step.kept :]):
            yield f"@{number} with {strides}", "0 along what is reduced"
