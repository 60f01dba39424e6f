"""The steps of a device program, as data.

`lower` makes them, `fuse` joins them, `emit` writes and reads them. The words of each are in
docs/formats/program.md; names here follow that page. Registers of a Tile are virtual until the
program is written: any number, each written once.

Example: the address of an operand at byte 4096 of argument 2, the same for two cores and no loops:
`Address(Space.ARGUMENT, 2, (4096, 4096), ())`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from math import prod
from typing import Any

from torch_spyre.backend.formats import FORMAT_OF_NUMBER
from torch_spyre.card_model.cost_model import Work
from torch_spyre.card_model.ring import BoxAxis, Transfer

MAX_REGISTERS = 32
MAX_OPERANDS = 24
MAX_DIMS = 16
NONE = -1


class Kind(IntEnum):
    TILE = 1
    MATMUL = 2
    COPY = 3
    GATHER = 4
    TOPK = 5
    LOOP_BEGIN = 6
    LOOP_END = 7
    SCATTER = 8
    WORK = 9
    RING = 10
    CHOSEN_MATMUL = 11


class Space(IntEnum):
    DEVICE = 0
    ARGUMENT = 1
    LX = 2
    SHARED = 3
    """The shared LX buffer: what scratchpads hold, as one (emulator only)."""


class Form(IntEnum):
    VECTOR = 0
    SPLAT = 1
    EXX2_MEAN = 2
    EXX2_VARIANCE = 3
    EXX2_STORE = 4
    SPLAT_STORE = 5


class ReduceOp(IntEnum):
    SUM = 0
    MAX = 1
    MIN = 2
    PRODUCT = 3
    EXX2 = 4
    SHORT_EXX2 = 5
    """The same of numbers with the bits of SEN169_FP16."""

    @property
    def has_two_results(self) -> bool:
        return self in (ReduceOp.EXX2, ReduceOp.SHORT_EXX2)


@dataclass(frozen=True)
class Address:
    """Where an operand begins, for each core."""

    space: Space
    argument: int
    offsets: tuple[int, ...]
    """Bytes, one for each core."""
    loop_strides: tuple[int, ...] = ()
    """Bytes for each loop around the step, outermost first."""


@dataclass(frozen=True)
class Operand:
    """An operand of a tile program or of topk."""

    format: int
    form: Form
    strides: tuple[int, ...]
    sub_stride: int
    limits: tuple[int, ...]
    address: Address

    @property
    def per_stick(self) -> int:
        return FORMAT_OF_NUMBER[self.format].per_stick

    def sticks_per_group(self, lanes: int) -> int:
        return lanes // self.per_stick if self.form == Form.VECTOR else 1


@dataclass(frozen=True)
class Instruction:
    """LOAD has the operand number in `a`; STORE has it in `destination`."""

    opcode: int
    destination: int
    a: int = NONE
    b: int = NONE
    c: int = NONE
    immediate0: int = 0
    immediate1: int = 0


@dataclass(frozen=True)
class Reduction:
    op: ReduceOp
    source: int
    destination: int


@dataclass(frozen=True)
class Phase:
    """Instructions at every point, their reductions, and instructions on the results."""

    body: tuple[Instruction, ...] = ()
    reductions: tuple[Reduction, ...] = ()
    epilogue: tuple[Instruction, ...] = ()


@dataclass(frozen=True)
class Tile:
    """A chain of pointwise operations, or a reduction with what precedes and follows it. Further
    phases work on the same points, row after row, and know what the phases before had."""

    name: str
    cores: int
    lanes: int
    kept: int
    """Number of kept dimensions; they come first in `extents`."""
    stick_dim: int
    extents: tuple[tuple[int, ...], ...]
    """For each core its points per dimension, outermost first."""
    tails: tuple[int, ...]
    """For each core a mask of valid lanes in its last group."""
    operands: tuple[Operand, ...]
    body: tuple[Instruction, ...]
    reductions: tuple[Reduction, ...] = ()
    reduces_lanes: bool = False
    groups: tuple[int, ...] = ()
    """For each core the number of its group, or nothing."""
    epilogue: tuple[Instruction, ...] = ()
    further: tuple[Phase, ...] = ()
    time_us: float = 0.0
    source: tuple[str, ...] = ()
    """The operations it stands for, in order."""
    starts: tuple[tuple[int, ...], ...] = ()
    """For each core its first point per dimension, where cores divide a grid; not written."""
    works: tuple[Work, ...] = ()
    """What the operations it stands for do on the card, in order."""

    @property
    def dims(self) -> int:
        return len(self.extents[0])

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (Phase(self.body, self.reductions, self.epilogue), *self.further)

    def with_phases(self, phases: Sequence[Phase]) -> Tile:
        first = phases[0]
        return replace(
            self,
            body=first.body,
            reductions=first.reductions,
            epilogue=first.epilogue,
            further=tuple(phases[1:]),
        )

    @property
    def code(self) -> tuple[Instruction, ...]:
        """All instructions, in order."""
        return tuple(i for p in self.phases for i in (*p.body, *p.epilogue))


@dataclass(frozen=True)
class MatmulSide:
    format: int
    strides: tuple[int, ...]
    """Bytes: batch dimensions, rows, sticks."""
    address: Address


@dataclass(frozen=True)
class Choice:
    """Which y each row of a product has: numbers of equal matrices."""

    count: int
    stride: int
    """Bytes from one matrix to the next."""
    strides: tuple[int, ...]
    """Of the numbers, in bytes: batch dimensions, rows."""
    along_sticks: bool
    """Numbers of neighbouring rows are neighbours in a stick; their stride is 0 then."""
    stick_stride: int
    address: Address
    first: tuple[int, ...]
    """For each core the number of its first row, from where its address is."""


@dataclass(frozen=True)
class Matmul:
    name: str
    cores: int
    batch: int
    extents: tuple[tuple[int, ...], ...]
    """For each core: batch..., M, N, K in valid elements; whole sticks of N are stored."""
    x: MatmulSide
    y: MatmulSide
    out: MatmulSide
    groups: tuple[int, ...] = ()
    operands: tuple[Operand, ...] = ()
    """What the epilogue loads and stores beside `out`: VECTOR or SPLAT, strides as those of a side,
    sub_stride 0, limits ()."""
    epilogue: tuple[Instruction, ...] = ()
    """Runs on the sums, which are in register 0. Operand 0 is `out`, those from 1 on are
    `operands`. Without instructions the sums are rounded and stored to `out`."""
    time_us: float = 0.0
    source: tuple[str, ...] = ()
    starts: tuple[tuple[int, ...], ...] = ()
    """For each core its first batch..., row, stick of columns, as in a Tile."""
    works: tuple[Work, ...] = ()
    large: bool = False
    """The whole product, however it is divided: the card may add two terms at a time."""
    choice: Choice | None = None
    """Rows choose their y."""

    def sticks(self, columns: int) -> int:
        """Of `out` that a number of columns takes."""
        return -(-columns // FORMAT_OF_NUMBER[self.out.format].per_stick)

    @property
    def epilogue_operands(self) -> tuple[Operand, ...]:
        """All that the epilogue can name, in order: `out` first."""
        out = Operand(self.out.format, Form.VECTOR, self.out.strides, 0, (), self.out.address)
        return (out, *self.operands)


@dataclass(frozen=True)
class CopySide:
    format: int
    arrangement: int
    device_size: tuple[int, ...]
    stride_map: tuple[int, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    view_strides: tuple[int, ...]
    views: tuple[tuple[int, ...], ...]
    """For each core: offset of its view in elements, then its sizes."""
    address: Address


@dataclass(frozen=True)
class Copy:
    name: str
    cores: int
    source_side: CopySide
    destination: CopySide
    time_us: float = 0.0
    source: tuple[str, ...] = ()
    works: tuple[Work, ...] = ()


@dataclass(frozen=True)
class GatherSide:
    strides: tuple[int, ...]
    address: Address


@dataclass(frozen=True)
class Gather:
    name: str
    cores: int
    extents: tuple[tuple[int, ...], ...]
    rows: int
    row_stride: int
    value: GatherSide
    index: GatherSide
    stick_dim: int
    stick_stride: int
    first_index: tuple[int, ...]
    out: GatherSide
    time_us: float = 0.0
    source: tuple[str, ...] = ()
    scatters: bool = False
    """The index chooses rows of `out`, not of `value`."""
    works: tuple[Work, ...] = ()


@dataclass(frozen=True)
class Topk:
    name: str
    cores: int
    lanes: int
    stick_dim: int
    extents: tuple[tuple[int, ...], ...]
    count: int
    k: int
    largest: bool
    indices: bool
    input: Operand
    output: Operand
    time_us: float = 0.0
    source: tuple[str, ...] = ()
    works: tuple[Work, ...] = ()


@dataclass(frozen=True)
class Ring:
    """A move between scratchpads: boxes of sticks from core to core."""

    name: str
    cores: int
    axes: tuple[BoxAxis, ...]
    source_address: Address
    target_address: Address
    transfers: tuple[Transfer, ...]
    time_us: float = 0.0
    source: tuple[str, ...] = ()
    works: tuple[Work, ...] = ()


@dataclass(frozen=True)
class LoopBegin:
    count: int


@dataclass(frozen=True)
class LoopEnd:
    pass


Step = Tile | Matmul | Copy | Gather | Topk | Ring
Item = Step | LoopBegin | LoopEnd


def addresses(step: Step) -> tuple[Address, ...]:
    """Of all operands, in the order in which they are written."""
    if isinstance(step, Tile):
        return tuple(o.address for o in step.operands)
    if isinstance(step, Matmul):
        sides = (step.x.address, step.y.address, step.out.address)
        choice = () if step.choice is None else (step.choice.address,)
        return (*sides, *(o.address for o in step.operands), *choice)
    if isinstance(step, Copy):
        return (step.source_side.address, step.destination.address)
    if isinstance(step, Gather):
        return (step.value.address, step.index.address, step.out.address)
    if isinstance(step, Ring):
        return (step.source_address, step.target_address)
    return (step.input.address, step.output.address)


def loops_around(step: Step) -> int:
    return len(addresses(step)[0].loop_strides)


def points(extents: tuple[int, ...]) -> int:
    return prod(extents)


def changed(made: Any, **fields: Any) -> Any:
    """`replace` for what checks nothing when it is made, in a fifth of the time: there is one step
    and one operand for each operation of each layer."""
    new = object.__new__(type(made))
    new.__dict__.update(made.__dict__)
    new.__dict__.update(fields)
    return new


def with_addresses(step: Step, new: tuple[Address, ...]) -> Step:
    """The step with other addresses, in the order of `addresses`."""
    if isinstance(step, Tile):
        operands = tuple([changed(o, address=a) for o, a in zip(step.operands, new)])
        return changed(step, operands=operands)
    if isinstance(step, Matmul):
        return changed(
            step,
            x=changed(step.x, address=new[0]),
            y=changed(step.y, address=new[1]),
            out=changed(step.out, address=new[2]),
            operands=tuple([changed(o, address=a) for o, a in zip(step.operands, new[3:])]),
            choice=step.choice and changed(step.choice, address=new[-1]),
        )
    if isinstance(step, Copy):
        return replace(
            step,
            source_side=replace(step.source_side, address=new[0]),
            destination=replace(step.destination, address=new[1]),
        )
    if isinstance(step, Gather):
        return replace(
            step,
            value=replace(step.value, address=new[0]),
            index=replace(step.index, address=new[1]),
            out=replace(step.out, address=new[2]),
        )
    if isinstance(step, Ring):
        return replace(step, source_address=new[0], target_address=new[1])
    return replace(
        step,
        input=replace(step.input, address=new[0]),
        output=replace(step.output, address=new[1]),
    )
