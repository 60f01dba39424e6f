"""Joins two tile programs into one.

In: two Tiles of which the second reads what the first writes. Out: one Tile, or None when it would
not give the same bits. Values that the second reads stay in registers, rounded to the format that
they would have had in memory. Three joins exist:

  pointwise + pointwise   one body after the other
  pointwise + reduction   the first becomes part of the reduction's body
  reduction + pointwise   the second, over the kept dimensions alone, becomes its epilogue

Memory that both touch must be the same sticks at every point, or not overlap at all: then it does
not matter that one point is finished before the next one begins.
"""

from __future__ import annotations

from dataclasses import replace

from torch_spyre.backend.formats import FORMAT_OF_NUMBER
from torch_spyre.backend.regions import exact, operand_region
from torch_spyre.backend.registers import LOAD, ROUND, STORE, peak_registers, results, sources
from torch_spyre.backend.steps import (
    MAX_OPERANDS,
    MAX_REGISTERS,
    NONE,
    Form,
    Instruction,
    Operand,
    Tile,
)
from torch_spyre.backend.timing import with_time
from torch_spyre.opfuncs import TILE_OPCODES

_WIDEN, _NARROW = TILE_OPCODES["widen"], TILE_OPCODES["narrow"]
_NAME_PARTS = 6

Code = list[Instruction]


def join(first: Tile, second: Tile, loop_counts: tuple[int, ...]) -> Tile | None:
    """Both in one step, or None."""
    if first.cores != second.cores or first.lanes != second.lanes:
        return None
    if first.reductions and (second.reductions or first.groups):
        return None
    aligned = _align(first, second)
    if aligned is None:
        return None
    first, second = aligned
    if not _may_interleave(first, second, loop_counts):
        return None
    return _Joiner(first, second).join()


def is_small_enough(tile: Tile) -> bool:
    return len(tile.operands) <= MAX_OPERANDS and peak_registers(tile) <= MAX_REGISTERS


def drop_stores(tile: Tile, operands: set[int]) -> Tile:
    """Without stores to some operands, and without what nobody needs any more."""

    def keep(code: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
        return tuple(i for i in code if i.opcode != STORE or i.destination not in operands)

    return clean(replace(tile, body=keep(tile.body), epilogue=keep(tile.epilogue)))


def clean(tile: Tile) -> Tile:
    """Drop instructions whose results nobody reads, and operands that nobody uses."""
    epilogue = _live(tile.epilogue, set())
    if tile.reductions and not epilogue:
        full = (1 << tile.lanes) - 1
        tile = replace(
            tile,
            kept=tile.dims,
            reductions=(),
            reduces_lanes=False,
            groups=(),
            tails=(full,) * tile.cores,
        )
    body = _live(tile.body, {r.source for r in tile.reductions})
    used: list[int] = []
    for i in (*body, *epilogue):
        number = i.a if i.opcode == LOAD else i.destination if i.opcode == STORE else None
        if number is not None and number not in used:
            used.append(number)
    used.sort()
    numbers = {old: new for new, old in enumerate(used)}
    tile = replace(
        tile,
        body=_renumber(body, numbers),
        epilogue=_renumber(epilogue, numbers),
        operands=tuple(tile.operands[n] for n in used),
    )
    timed = with_time(tile)
    assert isinstance(timed, Tile)
    return timed


def _live(code: tuple[Instruction, ...], needed: set[int]) -> tuple[Instruction, ...]:
    kept: Code = []
    for i in reversed(code):
        if i.opcode == STORE or i.destination in needed:
            kept.append(i)
            needed.update(sources(i))
    return tuple(reversed(kept))


def _renumber(code: tuple[Instruction, ...], numbers: dict[int, int]) -> tuple[Instruction, ...]:
    result = []
    for i in code:
        if i.opcode == LOAD:
            i = replace(i, a=numbers[i.a])
        elif i.opcode == STORE:
            i = replace(i, destination=numbers[i.destination])
        result.append(i)
    return tuple(result)


# ---- Dimensions ----------------------------------------------------------------------------------


def _align(first: Tile, second: Tile) -> tuple[Tile, Tile] | None:
    """Both with the same dimensions in the same order, as their common memory shows."""
    for store in _operands(first, STORE):
        for load in _operands(second, LOAD):
            if store.address == load.address:
                aligned = _align_by(first, second, store, load)
                if aligned is not None:
                    return aligned
    return None


def _align_by(first: Tile, second: Tile, store: Operand, load: Operand) -> tuple[Tile, Tile] | None:
    if first.reductions:
        return _align_epilogue(first, second, store, load)
    order = _match(first, second, store, load, range(second.dims))
    if order is None or second.dims != first.dims:
        return None
    return _reorder(first, second, order), second


def _align_epilogue(
    first: Tile, second: Tile, store: Operand, load: Operand
) -> tuple[Tile, Tile] | None:
    """The second one walks over the kept dimensions of the first."""
    own = list(range(second.dims))
    if first.reduces_lanes:
        # There is one group: a result is the same in every lane.
        if any(e[second.stick_dim] != 1 for e in second.extents):
            return None
        if any(limit >= 0 for o in second.operands for limit in o.limits):
            return None
        own.remove(second.stick_dim)
    if len(own) != first.kept:
        return None
    order: list[int] = []
    for dim in range(first.kept):
        found = [
            d
            for d in own
            if d not in order
            and store.strides[dim] == load.strides[d]
            and all(a[dim] == b[d] for a, b in zip(first.extents, second.extents))
            and (first.stick_dim == dim) == (second.stick_dim == d)
        ]
        if len(found) != 1:
            return None
        order.append(found[0])
    rest = (0,) * (first.dims - first.kept)
    operands = tuple(
        replace(o, strides=(*(o.strides[d] for d in order), *rest)) for o in second.operands
    )
    aligned = replace(second, operands=operands, extents=first.extents, stick_dim=first.stick_dim)
    return first, replace(aligned, kept=first.kept)


def _match(
    first: Tile, second: Tile, store: Operand, load: Operand, dims: range
) -> list[int] | None:
    """For each dimension of the second the one of the first."""
    order: list[int] = []
    for dim in dims:
        found = [
            d
            for d in range(first.dims)
            if d not in order
            and store.strides[d] == load.strides[dim]
            and all(a[d] == b[dim] for a, b in zip(first.extents, second.extents))
            and (first.stick_dim == d) == (second.stick_dim == dim)
        ]
        if len(found) != 1:
            return None
        order.append(found[0])
    return order


def _reorder(first: Tile, second: Tile, order: list[int]) -> Tile:
    """The first with the dimensions of the second."""
    operands = tuple(replace(o, strides=tuple(o.strides[d] for d in order)) for o in first.operands)
    return replace(
        first,
        operands=operands,
        extents=second.extents,
        stick_dim=second.stick_dim,
        kept=second.kept,
    )


# ---- Memory --------------------------------------------------------------------------------------


def _operands(tile: Tile, opcode: int, part: str = "") -> list[Operand]:
    """Those that are loaded or stored, in the body, in the epilogue or anywhere."""
    code = {"": (*tile.body, *tile.epilogue), "body": tile.body, "epilogue": tile.epilogue}[part]
    numbers = {i.a if opcode == LOAD else i.destination for i in code if i.opcode == opcode}
    return [tile.operands[n] for n in sorted(numbers)]


def _may_interleave(first: Tile, second: Tile, loop_counts: tuple[int, ...]) -> bool:
    for part_of_first in ("body", "epilogue"):
        for part_of_second in ("body", "epilogue"):
            # What runs once for several points must not touch what runs at each of them. An
            # epilogue and what becomes part of it run at the same points.
            at_same_points = (part_of_first == "epilogue") == bool(first.reductions) and (
                part_of_second == "body"
            )
            for op_a, op_b in ((STORE, LOAD), (LOAD, STORE), (STORE, STORE)):
                for a in _operands(first, op_a, part_of_first):
                    for b in _operands(second, op_b, part_of_second):
                        if at_same_points and exact(a, b, first.lanes):
                            continue
                        region_a = operand_region(first, a, loop_counts)
                        if region_a.overlaps(operand_region(second, b, loop_counts)):
                            return False
    return True


# ---- Registers -----------------------------------------------------------------------------------


class _Joiner:
    """Puts the second's code behind the first's, which is rewritten on the way."""

    def __init__(self, first: Tile, second: Tile) -> None:
        self.first = first
        self.second = second
        self.code: Code = list(first.epilogue if first.reductions else first.body)
        self.operands: list[Operand] = list(first.operands)
        self.next = 1 + max(
            (
                r
                for t in (first, second)
                for i in (*t.body, *t.epilogue)
                for r in (i.destination, *sources(i))
            ),
            default=0,
        )
        self.next = max(
            [self.next, *(r + 1 for t in (first, second) for d in t.reductions for r in results(d))]
        )
        self.uniform = _uniform_registers(first)

    def join(self) -> Tile | None:
        shift = self.next
        self.next += shift
        names: dict[int, int] = {}  # registers of the second that became others
        for i in self.second.body:
            if i.opcode == LOAD:
                operand = self.second.operands[i.a]
                register, possible = self._find(operand)
                if not possible:
                    return None
                if register != NONE:
                    names[i.destination] = register
                    continue
                number = self._operand(operand)
                self.code.append(replace(i, destination=i.destination + shift, a=number))
                names[i.destination] = i.destination + shift
                if operand.form != Form.VECTOR:
                    self.uniform.add(i.destination + shift)
                continue
            self._append(i, names, shift)
        return self._finish(names, shift)

    def _append(self, i: Instruction, names: dict[int, int], shift: int) -> None:
        a, b, c = (names.get(r, r) for r in (i.a, i.b, i.c))
        if i.opcode == STORE:
            number = self._operand(self.second.operands[i.destination])
            self.code.append(replace(i, destination=number, a=a, b=b))
            return
        if i.opcode == ROUND:
            b, c = i.b, i.c
        if i.opcode == _NARROW:
            widened = next(
                (w for w in self.code if w.destination == a and w.opcode == _WIDEN), None
            )
            if widened is not None:
                names[i.destination] = widened.a
                return
        names[i.destination] = i.destination + shift
        self.code.append(replace(i, destination=i.destination + shift, a=a, b=b, c=c))
        if all(r in self.uniform for r in sources(self.code[-1])):
            self.uniform.add(i.destination + shift)

    def _operand(self, operand: Operand) -> int:
        if operand in self.operands:
            return self.operands.index(operand)
        self.operands.append(operand)
        return len(self.operands) - 1

    def _find(self, operand: Operand) -> tuple[int, bool]:
        """A register that holds what a load would give, and whether a load would be right."""
        for at in range(len(self.code) - 1, -1, -1):
            i = self.code[at]
            if i.opcode == STORE and exact(self.operands[i.destination], operand, self._lanes):
                register = self._from_store(at, operand)
                return register, register != NONE
            if i.opcode == LOAD and self.operands[i.a] == operand:
                return i.destination, True
        return NONE, True

    @property
    def _lanes(self) -> int:
        return self.first.lanes

    def _from_store(self, at: int, operand: Operand) -> int:
        i = self.code[at]
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
        same_lanes = stored.form == operand.form == Form.VECTOR
        if not same_lanes and i.a not in self.uniform:
            return NONE
        return self._rounded(at)

    def _rounded(self, at: int) -> int:
        """The register of a store, rounded as the store rounds."""
        i = self.code[at]
        fmt = FORMAT_OF_NUMBER[self.operands[i.destination].format]
        if fmt.exact or fmt.kind == "int":
            return i.a
        if Instruction(ROUND, i.a, self._source(i.a), fmt.number) in self.code:
            return i.a
        register = self.next
        self.next += 1
        if i.a in self.uniform:
            self.uniform.add(register)
        # Whatever else used the value before it was stored goes on with the exact one.
        self.code[at : at + 1] = [
            Instruction(ROUND, register, i.a, fmt.number),
            replace(i, a=register),
        ]
        return register

    def _source(self, register: int) -> int:
        """What the instruction that made a register read first."""
        return next(
            (j.a for j in self.code if j.destination == register and j.opcode == ROUND), NONE
        )

    def _finish(self, names: dict[int, int], shift: int) -> Tile:
        first, second = self.first, self.second
        source = first.source + second.source
        if first.reductions:
            joined = replace(first, epilogue=tuple(self.code))
        else:
            reductions = tuple(
                replace(r, source=names[r.source], destination=r.destination + shift)
                for r in second.reductions
            )
            epilogue = []
            for i in second.epilogue:
                a, b, c = (r if r == NONE else r + shift for r in (i.a, i.b, i.c))
                destination = i.destination + shift
                if i.opcode == LOAD:
                    a, b, c = self._operand(second.operands[i.a]), i.b, i.c
                elif i.opcode == STORE:
                    destination = self._operand(second.operands[i.destination])
                elif i.opcode == ROUND:
                    b, c = i.b, i.c
                epilogue.append(replace(i, destination=destination, a=a, b=b, c=c))
            joined = replace(
                second, body=tuple(self.code), reductions=reductions, epilogue=tuple(epilogue)
            )
        joined = replace(joined, operands=tuple(self.operands), source=source, name=_name(source))
        return clean(joined)


def _uniform_registers(tile: Tile) -> set[int]:
    """Registers that hold the same value in every lane."""
    uniform: set[int] = set()
    for i in tile.body:
        _note_uniform(i, tile, uniform)
    for reduction in tile.reductions:
        if tile.reduces_lanes or reduction.source in uniform:
            uniform.update(results(reduction))
    for i in tile.epilogue:
        _note_uniform(i, tile, uniform)
    return uniform


def _note_uniform(i: Instruction, tile: Tile, uniform: set[int]) -> None:
    if i.opcode == STORE:
        return
    if i.opcode == LOAD:
        if tile.operands[i.a].form != Form.VECTOR:
            uniform.add(i.destination)
    elif all(r in uniform for r in sources(i)):
        uniform.add(i.destination)


def _name(source: tuple[str, ...]) -> str:
    if len(source) <= _NAME_PARTS:
        return "+".join(source)
    return "+".join(
        (*source[: _NAME_PARTS - 2], f"{len(source) - _NAME_PARTS + 1} more", source[-1])
    )
