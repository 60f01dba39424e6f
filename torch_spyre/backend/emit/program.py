"""Writes and reads device programs: the words of docs/formats/program.md.

In: steps. Out: bytes, and back; `report.disassemble` prints them for people. When a Tile is written
its virtual registers get real numbers (`register_allocation`).

Example: `writer = ProgramWriter(); writer.add(step); path.write_bytes(writer.bytes())`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from torch_spyre.backend.errors import ProgramError
from torch_spyre.backend.register_allocation import allocate_epilogue, allocate_registers
from torch_spyre.backend.steps import (
    Address,
    Choice,
    Copy,
    CopySide,
    Form,
    Gather,
    GatherSide,
    Instruction,
    Item,
    Kind,
    LoopBegin,
    LoopEnd,
    Matmul,
    MatmulSide,
    Operand,
    Phase,
    ReduceOp,
    Reduction,
    Ring,
    Space,
    Step,
    Tile,
    Topk,
    loops_around,
)
from torch_spyre.card_model.cost_model import Axis, Flow, Work, price
from torch_spyre.card_model.ring import BoxAxis, Transfer

MAGIC = b"SPYREPRG"
VERSION = 5
_HEADER = struct.Struct("<8sII")
_LOW = (1 << 64) - 1


# ---- Writing -------------------------------------------------------------------------------------


class ProgramWriter:
    """Collects steps and loops, in order."""

    def __init__(self) -> None:
        self._words: list[int] = []
        self._loops = 0

    def add_all(self, items: Iterable[Item]) -> None:
        for item in items:
            self.add(item)

    def add(self, item: Item) -> None:
        if isinstance(item, LoopBegin):
            self._step(Kind.LOOP_BEGIN, 0, "loop", 0.0, [item.count])
            self._loops += 1
        elif isinstance(item, LoopEnd):
            self._loops -= 1
            if self._loops < 0:
                raise ProgramError("found a loop end, allowed: after a loop begin")
            self._step(Kind.LOOP_END, 0, "end", 0.0, [])
        else:
            if loops_around(item) != self._loops:
                raise ProgramError(
                    f"{item.name}: found {loops_around(item)} loop strides, "
                    f"allowed: {self._loops}, one for each loop around it"
                )
            for work in item.works:
                self._step(Kind.WORK, work.cores, work.name, price(work).us, _encode_work(work))
            kind, payload = _encode(item)
            time = 0.0 if item.works else item.time_us
            self._step(kind, item.cores, item.name, time, payload)

    def _step(self, kind: Kind, cores: int, name: str, time_us: float, payload: list[int]) -> None:
        text = name.encode()
        padded = text.ljust(-(-len(text) // 8) * 8, b"\0")
        name_words = list(struct.unpack(f"<{len(padded) // 8}q", padded))
        time = struct.unpack("<q", struct.pack("<d", time_us))[0]
        head = [cores, self._loops, len(text), *name_words, time]
        self._words += [int(kind), 2 + len(head) + len(payload), *head, *payload]

    def bytes(self) -> bytes:
        """The whole program."""
        if self._loops:
            raise ProgramError(f"found {self._loops} loops without an end, allowed: none")
        header = _HEADER.pack(MAGIC, VERSION, len(self._words))
        return header + struct.pack(f"<{len(self._words)}Q", *[w & _LOW for w in self._words])


def _encode_work(work: Work) -> list[int]:
    words = [work.lane_cycles, work.macs, work.rows, work.hops, work.partial, work.moved, work.link]
    words.append(len(work.flows))
    for flow in work.flows:
        words += [int(flow.writes), int(flow.in_lx), flow.unit, len(flow.axes)]
        words += _flat(flow.axes)
    return words


def _encode(step: Step) -> tuple[Kind, list[int]]:
    if isinstance(step, Tile):
        return Kind.TILE, _encode_tile(allocate_registers(step))
    if isinstance(step, Matmul):
        if step.choice is not None:
            return Kind.CHOSEN_MATMUL, _encode_matmul(step) + _encode_choice(step.choice)
        return Kind.MATMUL, _encode_matmul(step)
    if isinstance(step, Copy):
        return Kind.COPY, _encode_copy(step)
    if isinstance(step, Gather):
        return (Kind.SCATTER if step.scatters else Kind.GATHER), _encode_gather(step)
    if isinstance(step, Ring):
        return Kind.RING, _encode_ring(step)
    return Kind.TOPK, _encode_topk(step)


def _flat(rows: Sequence[Sequence[int]]) -> list[int]:
    return [value for row in rows for value in row]


def _encode_address(a: Address) -> list[int]:
    return [int(a.space), a.argument, *a.offsets, *a.loop_strides]


def _encode_operand(o: Operand) -> list[int]:
    head = [o.format, int(o.form), *o.strides, o.sub_stride, *o.limits]
    return [*head, *_encode_address(o.address)]


def _encode_code(code: Sequence[Instruction]) -> list[int]:
    words = [len(code)]
    for i in code:
        words += [i.opcode, i.destination, i.a, i.b, i.c, i.immediate0, i.immediate1, 0]
    return words


def _encode_tile(t: Tile) -> list[int]:
    words = [t.lanes, t.kept, t.dims - t.kept, t.stick_dim, *_flat(t.extents)]
    for tail in t.tails:
        words += [tail & _LOW, tail >> 64]
    words.append(len(t.operands))
    for operand in t.operands:
        words += _encode_operand(operand)
    words += _encode_code(t.body)
    words.append(len(t.reductions))
    if t.reductions:
        words += [int(t.reduces_lanes), int(bool(t.groups)), *t.groups]
        words += _encode_reductions(t.reductions)
        words += _encode_code(t.epilogue)
        words.append(len(t.further))
        for phase in t.further:
            words += [*_encode_code(phase.body), len(phase.reductions)]
            words += _encode_reductions(phase.reductions)
            if phase.reductions:
                words += _encode_code(phase.epilogue)
    return words


def _encode_reductions(reductions: Sequence[Reduction]) -> list[int]:
    return _flat([(int(r.op), r.source, r.destination) for r in reductions])


def _encode_matmul(m: Matmul) -> list[int]:
    words = [m.x.format, m.y.format, m.out.format, int(m.large), m.batch, *_flat(m.extents)]
    for side in (m.x, m.y, m.out):
        words += [*side.strides, *_encode_address(side.address)]
    words += [int(bool(m.groups)), *m.groups, len(m.operands)]
    for o in m.operands:
        words += [o.format, int(o.form), *o.strides, *_encode_address(o.address)]
    return words + _encode_code(allocate_epilogue(m.name, m.epilogue))


def _encode_choice(c: Choice) -> list[int]:
    return [
        c.count, c.stride, *c.strides, int(c.along_sticks), c.stick_stride,
        *_encode_address(c.address), *c.first,
    ]  # fmt: skip


def _encode_copy(c: Copy) -> list[int]:
    words: list[int] = []
    for s in (c.source_side, c.destination):
        words += [s.format, s.arrangement, len(s.device_size), *s.device_size, *s.stride_map]
        words += [len(s.sizes), *s.sizes, *s.strides, len(s.view_strides), *s.view_strides]
        words += [*_flat(s.views), *_encode_address(s.address)]
    return words


def _encode_gather(g: Gather) -> list[int]:
    return [
        len(g.extents[0]), *_flat(g.extents), g.rows, g.row_stride,
        *g.value.strides, *_encode_address(g.value.address),
        *g.index.strides, g.stick_dim, g.stick_stride, *_encode_address(g.index.address),
        *g.first_index,
        *g.out.strides, *_encode_address(g.out.address),
    ]  # fmt: skip


def _encode_ring(r: Ring) -> list[int]:
    return [
        len(r.axes), *_flat(r.axes), *_encode_address(r.source_address),
        *_encode_address(r.target_address), len(r.transfers), *_flat(r.transfers),
    ]  # fmt: skip


def _encode_topk(t: Topk) -> list[int]:
    return [
        t.lanes, len(t.extents[0]), t.stick_dim, *_flat(t.extents), t.count, t.k, int(t.largest),
        *_encode_operand(t.input), int(t.indices), *_encode_operand(t.output),
    ]  # fmt: skip


# ---- Reading -------------------------------------------------------------------------------------


def read_program(data: bytes) -> list[Item]:
    """The steps of a program. Raises ProgramError for bytes that are none."""
    if len(data) < _HEADER.size:
        raise ProgramError(f"found {len(data)} bytes, allowed: a header of {_HEADER.size} or more")
    magic, version, count = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise ProgramError(f"found magic {magic!r}, allowed: {MAGIC!r}")
    if version != VERSION:
        raise ProgramError(f"found version {version}, allowed: {VERSION}")
    if len(data) - _HEADER.size < 8 * count:
        room = (len(data) - _HEADER.size) // 8
        raise ProgramError(f"found {room} words, allowed: {count} as the header says")
    words = struct.unpack_from(f"<{count}q", data, _HEADER.size)
    items: list[Item] = []
    works: list[Work] = []
    at = 0
    while at < count:
        length = words[at + 1] if at + 1 < count else 0
        if length < 6 or at + length > count:
            raise ProgramError(f"word {at + 1}: found a step of {length} words, allowed: 6 or more")
        item = _Reader(words[at : at + length], at).step()
        if isinstance(item, Work):
            works.append(item)
        elif isinstance(item, (LoopBegin, LoopEnd)):
            items.append(item)
        elif works:
            time = sum((price(work).us for work in works), 0.0)
            items.append(replace(item, works=tuple(works), time_us=time))
            works = []
        else:
            items.append(item)
        at += length
    if works:
        raise ProgramError(f"found the work of '{works[0].name}' at the end, allowed: its step")
    return items


class _Reader:
    def __init__(self, words: Sequence[int], start: int) -> None:
        self._words = words
        self._at = 0
        self._start = start

    def _next(self) -> int:
        if self._at >= len(self._words):
            raise ProgramError(f"word {self._start + self._at}: found the end of a step too early")
        self._at += 1
        return self._words[self._at - 1]

    def _list(self, count: int) -> tuple[int, ...]:
        return tuple(self._next() for _ in range(count))

    def step(self) -> Item | Work:
        kind, _length, cores, loops, name_bytes = self._list(5)
        packed = struct.pack(f"<{-(-name_bytes // 8)}q", *self._list(-(-name_bytes // 8)))
        self._cores, self._loops = cores, loops
        self._name = packed[:name_bytes].decode()
        self._time: float = struct.unpack("<d", struct.pack("<q", self._next()))[0]
        readers: dict[Kind, Callable[[], Item | Work]] = {
            Kind.TILE: self._tile,
            Kind.MATMUL: self._matmul,
            Kind.CHOSEN_MATMUL: self._chosen_matmul,
            Kind.COPY: self._copy,
            Kind.GATHER: self._gather,
            Kind.SCATTER: lambda: replace(self._gather(), scatters=True),
            Kind.TOPK: self._topk,
            Kind.RING: self._ring,
            Kind.WORK: self._work,
            Kind.LOOP_BEGIN: lambda: LoopBegin(self._next()),
            Kind.LOOP_END: LoopEnd,
        }
        if kind not in list(Kind):
            allowed = ", ".join(str(int(k)) for k in Kind)
            raise ProgramError(f"word {self._start}: found kind {kind}, allowed: {allowed}")
        item = readers[Kind(kind)]()
        if self._at != len(self._words):
            raise ProgramError(
                f"word {self._start + self._at}: found {len(self._words) - self._at} words after "
                f"step '{self._name}', allowed: none"
            )
        return item

    def _work(self) -> Work:
        cycles, macs, rows, hops, partial, moved, link, count = self._list(8)
        flows = []
        for _ in range(count):
            writes, in_lx, unit, dims = self._list(4)
            axes = tuple(Axis(*self._list(4)) for _ in range(dims))
            flows.append(Flow(bool(writes), bool(in_lx), unit, axes))
        return Work(
            self._name, self._cores, tuple(flows), cycles, macs, rows, hops, partial, moved, link
        )

    def _rows(self, width: int) -> tuple[tuple[int, ...], ...]:
        return tuple(self._list(width) for _ in range(self._cores))

    def _address(self) -> Address:
        space, argument = self._list(2)
        return Address(Space(space), argument, self._list(self._cores), self._list(self._loops))

    def _operand(self, dims: int) -> Operand:
        number, form = self._list(2)
        strides, sub_stride = self._list(dims), self._next()
        limits = self._list(self._cores)
        return Operand(number, Form(form), strides, sub_stride, limits, self._address())

    def _code(self) -> tuple[Instruction, ...]:
        return tuple(Instruction(*self._list(8)[:7]) for _ in range(self._next()))

    def _tile(self) -> Tile:
        lanes, kept, reduced, stick_dim = self._list(4)
        extents = self._rows(kept + reduced)
        tails = tuple((low & _LOW) | (high & _LOW) << 64 for low, high in self._rows(2))
        operands = tuple(self._operand(kept + reduced) for _ in range(self._next()))
        body = self._code()
        reductions: tuple[Reduction, ...] = ()
        epilogue: tuple[Instruction, ...] = ()
        groups: tuple[int, ...] = ()
        further: tuple[Phase, ...] = ()
        count, reduces_lanes = self._next(), False
        if count:
            reduces_lanes, has_groups = (bool(w) for w in self._list(2))
            groups = self._list(self._cores) if has_groups else ()
            reductions = self._reductions(count)
            epilogue = self._code()
            further = tuple(self._phase() for _ in range(self._next()))
        return Tile(
            self._name, self._cores, lanes, kept, stick_dim, extents, tails, operands, body,
            reductions, reduces_lanes, groups, epilogue, further, self._time,
        )  # fmt: skip

    def _reductions(self, count: int) -> tuple[Reduction, ...]:
        rows = (self._list(3) for _ in range(count))
        return tuple(Reduction(ReduceOp(op), a, b) for op, a, b in rows)

    def _phase(self) -> Phase:
        body, count = self._code(), self._next()
        return Phase(body, self._reductions(count), self._code() if count else ())

    def _matmul(self) -> Matmul:
        formats = self._list(3)
        large, batch = bool(self._next()), self._next()
        extents = self._rows(batch + 3)
        x, y, out = (MatmulSide(f, self._list(batch + 2), self._address()) for f in formats)
        groups = self._list(self._cores) if self._next() else ()
        operands = tuple(self._epilogue_operand(batch + 2) for _ in range(self._next()))
        return Matmul(
            self._name, self._cores, batch, extents, x, y, out, groups, operands, self._code(),
            self._time, large=large,
        )  # fmt: skip

    def _chosen_matmul(self) -> Matmul:
        step = self._matmul()
        count, stride = self._list(2)
        strides = self._list(step.batch + 1)
        along, stick_stride = self._list(2)
        address = self._address()
        first = self._list(self._cores)
        choice = Choice(count, stride, strides, bool(along), stick_stride, address, first)
        return replace(step, choice=choice)

    def _epilogue_operand(self, dims: int) -> Operand:
        number, form = self._list(2)
        return Operand(number, Form(form), self._list(dims), 0, (), self._address())

    def _copy_side(self) -> CopySide:
        number, arrangement, axes = self._list(3)
        device_size, stride_map = self._list(axes), self._list(axes)
        rank = self._next()
        sizes, strides = self._list(rank), self._list(rank)
        view = self._next()
        return CopySide(
            number, arrangement, device_size, stride_map, sizes, strides,
            self._list(view), self._rows(1 + view), self._address(),
        )  # fmt: skip

    def _copy(self) -> Copy:
        source, destination = self._copy_side(), self._copy_side()
        return Copy(self._name, self._cores, source, destination, self._time)

    def _gather(self) -> Gather:
        dims = self._next()
        extents = self._rows(dims)
        rows, row_stride = self._list(2)
        value = GatherSide(self._list(dims), self._address())
        index_strides = self._list(dims)
        stick_dim, stick_stride = self._list(2)
        index = GatherSide(index_strides, self._address())
        first = self._list(self._cores)
        out = GatherSide(self._list(dims), self._address())
        return Gather(
            self._name, self._cores, extents, rows, row_stride, value, index, stick_dim,
            stick_stride, first, out, self._time,
        )  # fmt: skip

    def _ring(self) -> Ring:
        axes = tuple(BoxAxis(*self._list(3)) for _ in range(self._next()))
        source, target = self._address(), self._address()
        transfers = tuple(Transfer(*self._list(4)) for _ in range(self._next()))
        return Ring(self._name, self._cores, axes, source, target, transfers, self._time)

    def _topk(self) -> Topk:
        lanes, kept, stick_dim = self._list(3)
        extents = self._rows(kept)
        count, k, largest = self._list(3)
        source = self._operand(kept + 1)
        indices = self._next()
        out = self._operand(kept + 1)
        return Topk(
            self._name, self._cores, lanes, stick_dim, extents, count, k, bool(largest),
            bool(indices), source, out, self._time,
        )  # fmt: skip
