"""What a step costs on the card, as a first model: the slower of moving bytes and computing.

Deterministic, in microseconds, from the numbers of hardware.py. A stick that several points of one
core use counts once, and so does a slice that several cores read: the ring hands it to all of them.
Device memory is shared by all cores; scratchpads and units are each core's own, so there the
slowest core counts.

Example: `add` of two (4096, 4096) float16 tensors moves 100 MB and takes about 492 us.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from torch_spyre.backend.formats import FORMAT_OF_NUMBER
from torch_spyre.backend.registers import LOAD, STORE
from torch_spyre.backend.steps import (
    Address,
    Copy,
    CopySide,
    Gather,
    Instruction,
    Matmul,
    Space,
    Step,
    Tile,
    Topk,
)
from torch_spyre.constants import BYTES_IN_STICK
from torch_spyre.hardware import CARD, Hardware
from torch_spyre.opfuncs import OPFUNCS, TILE_OPCODES

_MOVES = {TILE_OPCODES[name] for name in ("load", "store", "round", "spread", "copy", "constant")}
_SPECIAL = {
    TILE_OPCODES[name]
    for row in OPFUNCS.values()
    if row.cost == "special" and isinstance(row.tile, str)
    for name in (row.tile, f"short_{row.tile}")
    if name in TILE_OPCODES
} | {TILE_OPCODES["div"]}


def with_time(step: Step, hardware: Hardware = CARD) -> Step:
    """The step with its modelled time."""
    return replace(step, time_us=step_us(step, hardware))


def step_us(step: Step, hardware: Hardware = CARD) -> float:
    lx = [0] * step.cores
    flows = _flows(step)
    for flow in flows:
        if flow.address.space == Space.LX:
            lx = [a + b for a, b in zip(lx, flow.bytes)]
    return max(
        sum(flow.device_bytes() for flow in flows) / hardware.memory_bytes_per_us,
        max(lx) / (hardware.lx_bytes_per_cycle * hardware.cycles_per_us),
        _compute_us(step, hardware),
    )


def device_bytes(step: Step) -> int:
    """Bytes that the step moves between device memory and the cores."""
    return sum(flow.device_bytes() for flow in _flows(step))


# ---- Bytes ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Flow:
    """What moves between one operand and each core."""

    address: Address
    bytes: list[int]
    parts: Sequence[int] = ()
    """For each core which part of the operand it is, where the offset does not say it."""

    def device_bytes(self) -> int:
        if self.address.space == Space.LX:
            return 0
        parts = self.parts or (0,) * len(self.bytes)
        distinct = {(o, p): n for o, p, n in zip(self.address.offsets, parts, self.bytes)}
        return sum(distinct.values())


def _flows(step: Step) -> list[_Flow]:
    if isinstance(step, Tile):
        return _tile_flows(step)
    if isinstance(step, Matmul):
        return _matmul_flows(step)
    if isinstance(step, Copy):
        return [_copy_flow(side) for side in (step.source_side, step.destination)]
    if isinstance(step, Gather):
        moved = [BYTES_IN_STICK * prod(e) for e in step.extents]
        indices = [BYTES_IN_STICK * _places(e, step.index.strides) for e in step.extents]
        # Every core reads rows of its own choice from the same value, or writes its own ones.
        return [
            _Flow(step.value.address, moved, range(step.cores)),
            _Flow(step.index.address, indices, step.first_index),
            _Flow(step.out.address, moved),
        ]
    return _topk_flows(step)


@lru_cache(maxsize=1 << 14)  # cores do the same
def _places(extents: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Different places that the points lie at."""
    return prod(e for e, s in zip(extents, strides) if s)


def _tile_flows(tile: Tile) -> list[_Flow]:
    flows = []
    for i in tile.code:
        if i.opcode not in (LOAD, STORE):
            continue
        operand = tile.operands[i.a if i.opcode == LOAD else i.destination]
        size = BYTES_IN_STICK * operand.sticks_per_group(tile.lanes)
        counts = [size * _places(extents, operand.strides) for extents in tile.extents]
        flows.append(_Flow(operand.address, counts))
    return flows


def _matmul_flows(step: Matmul) -> list[_Flow]:
    per_x, per_y = (FORMAT_OF_NUMBER[side.format].per_stick for side in (step.x, step.y))
    x, y = [], []
    for *batch, rows, columns, depth in step.extents:
        x.append(BYTES_IN_STICK * _places((*batch, rows, -(-depth // per_x)), step.x.strides))
        y.append(BYTES_IN_STICK * _places((*batch, depth, -(-columns // per_y)), step.y.strides))
    flows = [_Flow(step.x.address, x), _Flow(step.y.address, y)]
    moved = [i for i in step.epilogue if i.opcode in (LOAD, STORE)]
    numbers = [i.a if i.opcode == LOAD else i.destination for i in moved]
    for number in numbers if step.epilogue else [0]:
        operand = step.epilogue_operands[number]
        counts = [
            BYTES_IN_STICK * _places((*batch_rows, step.sticks(columns)), operand.strides)
            for *batch_rows, columns, _ in step.extents
        ]
        flows.append(_Flow(operand.address, counts))
    return flows


def _copy_flow(side: CopySide) -> _Flow:
    size = FORMAT_OF_NUMBER[side.format].bytes
    counts = [size * _places(view[1:], side.view_strides) for view in side.views]
    return _Flow(side.address, counts, [offset for offset, *_ in side.views])


def _topk_flows(step: Topk) -> list[_Flow]:
    flows = []
    for operand, last in ((step.input, step.count), (step.output, step.k)):
        size = BYTES_IN_STICK * operand.sticks_per_group(step.lanes) * last
        flows.append(_Flow(operand.address, [size * prod(e) for e in step.extents]))
    return flows


# ---- Operations ----------------------------------------------------------------------------------


def _compute_us(step: Step, hardware: Hardware) -> float:
    cycle_lanes = hardware.sfp_lanes_per_cycle * hardware.corelets_per_core
    lane_rate = cycle_lanes * hardware.cycles_per_us
    if isinstance(step, Tile):
        body = sum(
            sum(_cycles(i, hardware) for i in p.body) + len(p.reductions) for p in step.phases
        )
        epilogue = sum(_cycles(i, hardware) for p in step.phases for i in p.epilogue)
        cycles = [
            body * prod(extents) + epilogue * prod(extents[: step.kept]) for extents in step.extents
        ]
        return max(cycles) * step.lanes / lane_rate
    if isinstance(step, Matmul):
        # The PT array multiplies while the SFP works on what it has finished.
        per_stick = FORMAT_OF_NUMBER[step.out.format].per_stick
        lanes = [prod(rows) * step.sticks(n) * per_stick for *rows, n, _ in step.extents]
        flops = max(2 * count * e[-1] for count, e in zip(lanes, step.extents))
        slower = FORMAT_OF_NUMBER[step.x.format].bytes / 2
        product = flops * slower / (hardware.matmul_flops_per_us / hardware.cores)
        epilogue = sum(_cycles(i, hardware) for i in step.epilogue)
        return max(product, max(lanes) * epilogue / lane_rate)
    if isinstance(step, Topk):
        return max(prod(e) for e in step.extents) * step.count * step.k * step.lanes / lane_rate
    return 0.0


def _cycles(instruction: Instruction, hardware: Hardware) -> int:
    if instruction.opcode in _MOVES:
        return 0
    return hardware.sfp_special_cycles if instruction.opcode in _SPECIAL else 1
