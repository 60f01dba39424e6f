"""Pointwise operations, casts, reductions and plain copies as tile programs.

In: an Sdsc. Out: one Tile whose addresses stand for tensors (see `lower`). The dimensions are those
of the operation, kept ones first, the axis nearest to the stick of the output innermost;
dimensions that no core walks over are left out, the stick is always there.

Registers are in the order of the sticks. When all tensors of an operation have the arrangement
DL16_TO_FP32 that is the order; otherwise arranged tensors are put in standard order by `narrow`
after a load and by `widen` before a store.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod

from torch_spyre.backend.formats import FORMATS
from torch_spyre.backend.read.sdsc import Sdsc, Tensor
from torch_spyre.backend.steps import (
    NONE,
    Address,
    Form,
    Instruction,
    Operand,
    ReduceOp,
    Reduction,
    Space,
    Tile,
)
from torch_spyre.opfuncs import TILE_OPCODES

ARRANGED = "DL16_TO_FP32"
ARRANGED_LANES = 64  # a pair of sticks of 32
_REDUCE = {
    "sum": ReduceOp.SUM,
    "max": ReduceOp.MAX,
    "min": ReduceOp.MIN,
    "prod": ReduceOp.PRODUCT,
    "exx2": ReduceOp.EXX2,
}


def lower_tile(sdsc: Sdsc) -> Tile:
    """One operation as one tile program."""
    space = _Space(sdsc)
    code = _Code(sdsc, space)
    if sdsc.opfunc.kind == "reduction":
        return code.reduction()
    return code.pointwise()


def tensor_address(sdsc: Sdsc, tensor: Tensor, deltas: Sequence[int] | None = None) -> Address:
    """Stands for the start of a tensor, moved by `deltas`, until `lower.bind` puts it in place."""
    offsets = tuple(deltas) if deltas is not None else (0,) * sdsc.cores
    return Address(Space.DEVICE, tensor.number, offsets)


def float_bits(value: float) -> int:
    """Of the nearest float32, as an unsigned integer."""
    try:
        return int(struct.unpack("<I", struct.pack("<f", value))[0])
    except OverflowError:
        return 0x7F800000 if value > 0 else 0xFF800000


def arranged_column(lane: int) -> int:
    """Which of 64 columns a lane of a pair of sticks in the arrangement DL16_TO_FP32 holds."""
    stick, position = divmod(lane, 32)
    return position // 4 * 8 + stick * 4 + position % 4


# ---- The iteration space -------------------------------------------------------------------------


class _Space:
    """Dimensions, lanes, extents and tails of a tile program."""

    def __init__(self, sdsc: Sdsc) -> None:
        self.sdsc = sdsc
        self.stick = sdsc.stick
        used = [sdsc.tensors[i] for i in (*sdsc.inputs, sdsc.output)]
        self.out = used[-1]
        self.dense = [t for t in used if t.is_dense]
        arranged = [t.arrangement == ARRANGED for t in self.dense]
        self.all_arranged = bool(arranged) and all(arranged)
        self.lanes = max(t.per_stick for t in used)
        if any(arranged):
            self.lanes = max(self.lanes, ARRANGED_LANES)
        self.reduces = sdsc.opfunc.kind == "reduction"
        reduced = sdsc.reduced_dims() if self.reduces else ()
        self.reduces_lanes = self.stick in reduced
        self.kept_dims = self._ordered([d for d in sdsc.dims if d not in reduced], self.out)
        self.reduced_dims = self._ordered(list(reduced), sdsc.tensors[sdsc.inputs[0]])
        self.dims = self.kept_dims + self.reduced_dims
        self.extents = tuple(
            tuple(self._extent(core, d) for d in self.dims) for core in range(sdsc.cores)
        )
        self.tails = tuple(self._tail(core) for core in range(sdsc.cores))

    def _ordered(self, dims: list[str], tensor: Tensor) -> list[str]:
        """Outermost first, without those that have one point."""
        order = {d: i for i, d in enumerate(tensor.order)}
        dims = sorted(dims, key=lambda d: -order.get(d, len(order)))
        return [d for d in dims if d == self.stick or self._is_walked(d)]

    def _is_walked(self, dim: str) -> bool:
        """Some core has several points along it, or cores divide it."""
        cores = range(self.sdsc.cores)
        return self.sdsc.split(dim) > 1 or any(self._extent(core, dim) > 1 for core in cores)

    def _count(self, core: int, dim: str) -> int:
        """Elements of a dimension that count."""
        if self.reduces and dim in self.sdsc.reduced_dims():
            return self.sdsc.valid_in_slice(core, dim)
        if dim == self.stick and not self.dense:
            return 1  # one value stands for all lanes
        return self.sdsc.slice_size(dim)

    def _extent(self, core: int, dim: str) -> int:
        count = self._count(core, dim)
        return max(1, -(-count // self.lanes)) if dim == self.stick else count

    def _tail(self, core: int) -> int:
        if not self.reduces_lanes:
            return (1 << self.lanes) - 1
        groups = self._extent(core, self.stick)
        rest = self._count(core, self.stick) - (groups - 1) * self.lanes
        columns = map(arranged_column if self.all_arranged else int, range(self.lanes))
        return sum(1 << lane for lane, column in enumerate(columns) if column < rest)

    def starts(self) -> tuple[tuple[int, ...], ...]:
        """For each core its first point; nothing where shares do not begin with whole groups."""
        sdsc = self.sdsc
        size = sdsc.slice_size(self.stick)
        if sdsc.split(self.stick) > 1 and size % self.lanes:
            return ()
        units = {self.stick: self.lanes}
        return tuple(
            tuple(sdsc.slice(core, d) * sdsc.slice_size(d) // units.get(d, 1) for d in self.dims)
            for core in range(sdsc.cores)
        )

    def operand(self, tensor: Tensor, form: Form) -> Operand:
        sdsc = self.sdsc
        axes = sdsc.axes(tensor)
        per_group = self.lanes // tensor.per_stick if form == Form.VECTOR else 1
        strides = []
        for dim in self.dims:
            stride = axes[dim].stride if dim in axes and self._is_walked(dim) else 0
            strides.append(stride * per_group if dim == self.stick else stride)
        return Operand(
            tensor.format.number,
            form,
            tuple(strides),
            axes[self.stick].stride if per_group > 1 else 0,
            self._limits(tensor) if form == Form.VECTOR else (-1,) * sdsc.cores,
            tensor_address(sdsc, tensor),
        )

    def _limits(self, tensor: Tensor) -> tuple[int, ...]:
        """Sticks from where each core begins, where that is fewer than its groups have."""
        sdsc = self.sdsc
        own = -(-sdsc.slice_size(self.stick) // tensor.per_stick)
        entries = sdsc.axes(tensor)[self.stick].entries
        limits, limited = [], False
        for core in range(sdsc.cores):
            limit = own
            if tensor.gap(self.stick) < 0:
                before = 0 if tensor.is_local else sdsc.slice(core, self.stick) * own
                limit = max(0, min(own, entries - before))
            groups = self.extents[core][self.dims.index(self.stick)]
            limited |= limit < groups * (self.lanes // tensor.per_stick)
            limits.append(limit)
        return tuple(limits) if limited else (-1,) * sdsc.cores


# ---- Instructions --------------------------------------------------------------------------------


class _Code:
    """Writes the instructions of one operation, into registers that are written once."""

    def __init__(self, sdsc: Sdsc, space: _Space) -> None:
        self.sdsc = sdsc
        self.space = space
        self.operands: list[Operand] = []
        self.code: list[Instruction] = []
        self.registers = 0
        used = [sdsc.tensors[i] for i in (*sdsc.inputs, sdsc.output)]
        self.is_short = all(t.format.kind == "float" and t.format.bytes == 2 for t in used)
        """All tensors have 16 bits: functions need not be better than that."""

    def pointwise(self) -> Tile:
        sdsc = self.sdsc
        inputs = [self._load(position) for position in range(len(sdsc.inputs))]
        result = self._apply(inputs)
        out = self.space.out
        if out.is_dense:
            if out.arrangement == ARRANGED and not self.space.all_arranged:
                result = self._emit("widen", result)
            self._store(out, Form.VECTOR, result)
        else:
            self._store(out, Form.SPLAT_STORE, result)
        return self._tile(self.code, (), ())

    def reduction(self) -> Tile:
        sdsc, space = self.sdsc, self.space
        row = sdsc.opfunc
        source = self._load(0)
        body, self.code = self.code, []
        assert isinstance(row.tile, str)
        op = _REDUCE[row.tile]
        if op == ReduceOp.EXX2 and sdsc.tensors[sdsc.inputs[0]].format == FORMATS["SEN169_FP16"]:
            op = ReduceOp.SHORT_EXX2
        result = self._new()
        second = self._new() if op.has_two_results else NONE
        reductions = (Reduction(op, source, result),)
        if row.name == "mean":
            scale = float_bits(sdsc.constant("scaling_factor"))
            result = self._emit("mul_imm", result, immediates=(scale,))
        if op.has_two_results:
            self._store(space.out, Form.EXX2_STORE, result, second)
        elif space.out.is_dense:
            if space.out.arrangement == ARRANGED and not space.all_arranged:
                result = self._emit("widen", result)
            self._store(space.out, Form.VECTOR, result)
        else:
            self._store(space.out, Form.SPLAT_STORE, result)
        return self._tile(body, reductions, self.code)

    def _tile(
        self,
        body: list[Instruction],
        reductions: tuple[Reduction, ...],
        epilogue: Sequence[Instruction],
    ) -> Tile:
        sdsc, space = self.sdsc, self.space
        return Tile(
            name=sdsc.op,
            cores=sdsc.cores,
            lanes=space.lanes,
            kept=len(space.kept_dims),
            stick_dim=space.dims.index(space.stick),
            extents=space.extents,
            tails=space.tails,
            operands=tuple(self.operands),
            body=tuple(body),
            reductions=reductions,
            reduces_lanes=space.reduces_lanes,
            groups=reduction_groups(sdsc) if reductions else (),
            epilogue=tuple(epilogue),
            source=(sdsc.op,),
            starts=space.starts(),
        )

    def _new(self) -> int:
        self.registers += 1
        return self.registers - 1

    def _emit(self, opcode: str, *sources: int, immediates: Sequence[int] = ()) -> int:
        a, b, c = (*sources, NONE, NONE, NONE)[:3]
        if self.is_short and f"short_{opcode}" in TILE_OPCODES:
            opcode = f"short_{opcode}"
        first, second = (*immediates, 0, 0)[:2]
        target = self._new()
        self.code.append(Instruction(TILE_OPCODES[opcode], target, a, b, c, first, second))
        return target

    def _load(self, position: int) -> int:
        tensor = self.sdsc.tensors[self.sdsc.inputs[position]]
        self.operands.append(self.space.operand(tensor, self._load_form(tensor, position)))
        register = self._emit("load", len(self.operands) - 1)
        if tensor.is_dense and tensor.arrangement == ARRANGED and not self.space.all_arranged:
            register = self._emit("narrow", register)
        return register

    def _load_form(self, tensor: Tensor, position: int) -> Form:
        name = self.sdsc.opfunc.name
        if name == "layernormscale":
            return Form.EXX2_VARIANCE
        if name == "layernormnorm" and position == 1:
            return Form.EXX2_MEAN
        return Form.VECTOR if tensor.is_dense else Form.SPLAT

    def _store(self, tensor: Tensor, form: Form, a: int, b: int = NONE) -> None:
        self.operands.append(self.space.operand(tensor, form))
        number = len(self.operands) - 1
        self.code.append(Instruction(TILE_OPCODES["store"], number, a, b))

    def _apply(self, inputs: list[int]) -> int:
        """The operation itself, by its row in the table."""
        sdsc = self.sdsc
        row = sdsc.opfunc
        immediates = [float_bits(sdsc.constant(name)) for name in row.constants]
        if isinstance(row.tile, str):
            first = sdsc.tensors[sdsc.inputs[-1]]
            integers = first.format.kind == "int" and bool(row.int_tile)
            return self._emit(
                row.int_tile if integers else row.tile, *inputs, immediates=immediates
            )
        names = {f"x{i}": register for i, register in enumerate(inputs)}
        result = NONE
        for opcode, target, *sources in row.tile:
            registers = [s for s in sources if s not in row.constants]
            if any(s.startswith("x") and s not in names for s in registers):
                continue  # an optional input that is not there
            values = [float_bits(sdsc.constant(s)) for s in sources if s in row.constants]
            result = self._emit(opcode, *(names[s] for s in registers), immediates=values)
            names[target] = result
        return result


def reduction_groups(sdsc: Sdsc) -> tuple[int, ...]:
    """For each core the number of its group, when cores divide a reduced dimension."""
    reduced = sdsc.reduced_dims()
    if prod(sdsc.split(d) for d in reduced) == 1:
        return ()
    kept = [i for i, d in enumerate(sdsc.dims) if d not in reduced]
    numbers: dict[tuple[int, ...], int] = {}
    return tuple(
        numbers.setdefault(tuple(own[i] for i in kept), len(numbers)) for own in sdsc.slices
    )
