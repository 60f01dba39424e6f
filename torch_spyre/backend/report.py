"""What a bundle is and what became of it, as text for people.

In: a Bundle and its steps. Out: lines for the command `python -m torch_spyre.backend`; and
`disassemble`, which prints any program.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import replace

from torch_spyre.backend.formats import FORMAT_OF_NUMBER
from torch_spyre.backend.lower.work import device_bytes
from torch_spyre.backend.read.bundle import Bundle, Operation, OperationLoop
from torch_spyre.backend.read.sdsc import Sdsc, Tensor
from torch_spyre.backend.steps import (
    Address,
    Copy,
    Gather,
    Instruction,
    Item,
    LoopBegin,
    LoopEnd,
    Matmul,
    Operand,
    Ring,
    Space,
    Step,
    Tile,
    Topk,
    addresses,
    with_addresses,
)
from torch_spyre.opfuncs import TILE_OPCODES

_OPCODE_NAMES = {number: name for name, number in TILE_OPCODES.items()}
_FLOAT_IMMEDIATES = {"clip": 2, "softplus": 2, "constant": 1, "add_imm": 1, "mul_imm": 1}
_WIDTH = 100


# ---- Operations ----------------------------------------------------------------------------------


def describe_bundle(bundle: Bundle) -> list[str]:
    """The operations in order, with everything that was decided about them."""
    operations = bundle.operations()
    noun = "operation" if len(operations) == 1 else "operations"
    kind = "symbolic" if bundle.parameters else "concrete"
    pool = ", argument 0 is the pool" if bundle.pool is not None else ""
    files = len({operation.file for operation in operations})
    shared = f" in {files} sdsc files" if files < len(operations) else ""
    lines = [f"bundle {bundle.directory}: {len(operations)} {noun}{shared}, {kind} addresses{pool}"]
    for node in bundle.body:
        lines += _describe_node(node, bundle, "")
    return lines


def _describe_node(node: Operation | OperationLoop, bundle: Bundle, indent: str) -> list[str]:
    if isinstance(node, OperationLoop):
        lines = [f"{indent}repeat {node.count} times"]
        for inner in node.body:
            lines += _describe_node(inner, bundle, indent + "  ")
        return lines
    return [f"{indent}{line}" for line in _describe_operation(node, bundle)]


def _describe_operation(operation: Operation, bundle: Bundle) -> list[str]:
    sdsc = operation.sdsc
    dims = ", ".join(f"{d} {n}" for d, n in sdsc.sizes)
    splits = " x ".join(f"{d} {n}" for d, n in sdsc.splits if n > 1)
    cores = f"{sdsc.cores} cores" if sdsc.cores > 1 else "1 core"
    lines = [f"{operation.name:<24} {dims:<34} {cores}{': ' + splits if splits else ''}"]
    for tensor, address in zip(sdsc.tensors, operation.addresses):
        role = "out" if tensor.number == sdsc.output else "in"
        if tensor.number == sdsc.index:
            role = "idx"
        lines.append(
            f"    {role:<4}{tensor.name:<10}{_format_text(tensor):<18}"
            f"{_axes_text(sdsc, tensor):<34}{_place_text(address, bundle.pool)}"
        )
    for dim, first, count in sdsc.masks:
        lines.append(f"    mask {dim} {first} to {first + count - 1}")
    for constant in sdsc.constants:
        lines.append(f"    constant {constant.name} = {constant.value:g} ({constant.format})")
    return lines


def _format_text(tensor: Tensor) -> str:
    arrangement = "" if tensor.arrangement == "STANDARD" else f"/{tensor.arrangement}"
    return tensor.format.name + arrangement


def _axes_text(sdsc: Sdsc, tensor: Tensor) -> str:
    """Device axes, outermost first, as in `out/64 4, mb 128, [64]`."""
    if tensor.placement is not None:
        return str(list(tensor.placement.device_size))
    parts = []
    for dim, axis in reversed(sdsc.axes(tensor).items()):
        name = f"{dim}/{tensor.per_stick}" if dim == tensor.stick else dim
        parts.append(f"{name} {axis.entries}")
    parts.append(f"[{tensor.per_stick}]" if tensor.is_dense else f"[{tensor.per_stick} the same]")
    return ", ".join(parts)


def _place_text(address: Address, pool: int | None = None) -> str:
    where = f"arg {address.argument}"
    if address.space == Space.LX:
        where = "LX"
    elif address.space == Space.SHARED:
        where = "LX of all cores"
    elif address.space == Space.DEVICE:
        where = "device"
    elif address.argument == pool:
        where = "pool"
    low, high = min(address.offsets), max(address.offsets)
    text = f"{where} +{low}" if low == high else f"{where} +{low} to +{high}"
    moving = [s for s in address.loop_strides if s]
    return text + (f", {' '.join(f'+{s}' for s in moving)} per loop" if moving else "")


# ---- Steps ---------------------------------------------------------------------------------------


def describe_steps(items: Sequence[Item]) -> list[str]:
    """The steps of a program, with their modelled time."""
    steps = [item for item in items if not isinstance(item, (LoopBegin, LoopEnd))]
    total = _total_us(items)
    noun = "step" if len(steps) == 1 else "steps"
    different = distinct_steps(items)
    shared = f", {different} different" if different < len(steps) else ""
    lines = [f"program: {len(steps)} {noun}{shared}, {total:.2f} us modelled"]
    indent = 1
    for item in items:
        if isinstance(item, LoopEnd):
            indent -= 1
            continue
        pad = "  " * indent
        if isinstance(item, LoopBegin):
            lines.append(f"{pad}repeat {item.count} times")
            indent += 1
            continue
        kind = type(item).__name__.lower()
        lines.append(
            f"{pad}{kind:<7}{item.time_us:>10.2f} us {device_bytes(item):>12} bytes  "
            f"{_step_name(item)}"
        )
    return lines


def distinct_steps(items: Iterable[Item]) -> int:
    """How many steps there are when those that differ only in where their tensors begin are one:
    the layers of a model repeat them."""
    seen = set()
    for item in items:
        if isinstance(item, (LoopBegin, LoopEnd)):
            continue
        relative = tuple(
            replace(a, argument=0, offsets=tuple([o - a.offsets[0] for o in a.offsets]))
            for a in addresses(item)
        )
        bare = replace(with_addresses(item, relative), name="", source=(), time_us=0.0, works=())
        seen.add(bare)
    return len(seen)


def _step_name(step: Step) -> str:
    return " + ".join(step.source) if step.source else step.name


def _total_us(items: Iterable[Item]) -> float:
    total, factors = 0.0, [1]
    for item in items:
        if isinstance(item, LoopBegin):
            factors.append(factors[-1] * item.count)
        elif isinstance(item, LoopEnd):
            factors.pop()
        else:
            total += factors[-1] * item.time_us
    return total


# ---- Programs ------------------------------------------------------------------------------------


def disassemble(items: Sequence[Item]) -> str:
    """A program as text: every step with its operands and instructions."""
    lines: list[str] = []
    indent = 0
    for number, item in enumerate(items):
        if isinstance(item, LoopEnd):
            indent -= 1
            lines.append("  " * indent + "end")
            continue
        pad = "  " * indent
        if isinstance(item, LoopBegin):
            lines.append(f"{pad}loop {item.count}")
            indent += 1
            continue
        kind = type(item).__name__.lower()
        cores = f"{item.cores} cores" if item.cores > 1 else "1 core"
        lines.append(f"{pad}{number}: {kind} {item.name}  {cores}  {item.time_us:.3f} us")
        lines += [f"{pad}    {line}" for line in _disassemble_step(item)]
    return "\n".join(lines)


def _disassemble_step(step: Step) -> list[str]:
    if isinstance(step, Tile):
        return _disassemble_tile(step)
    if isinstance(step, Matmul):
        lines = [f"extents {_per_core(step.extents)} (batch..., rows, columns, K)"]
        for name, side in (("x", step.x), ("y", step.y), ("out", step.out)):
            lines.append(
                f"{name:<4}{_format_name(side.format)} strides {list(side.strides)} "
                f"{_place_text(side.address)}"
            )
        if step.choice is not None:
            lines.append(
                f"y   one of {step.choice.count} for each row, {step.choice.stride} bytes apart; "
                f"numbers strides {list(step.choice.strides)} {_place_text(step.choice.address)}"
            )
        lines += _groups_text(step.groups)
        for number, operand in enumerate(step.operands, start=1):
            lines.append(f"@{number} {_operand_text(operand)}")
        return lines + [_instruction_text(i) for i in step.epilogue]
    if isinstance(step, Copy):
        lines = []
        for name, copy_side in (("from", step.source_side), ("to", step.destination)):
            lines.append(
                f"{name:<5}{_format_name(copy_side.format)} device {list(copy_side.device_size)} "
                f"map {list(copy_side.stride_map)} {_place_text(copy_side.address)}"
            )
            lines.append(
                f"     view strides {list(copy_side.view_strides)}, offset and sizes "
                f"{_per_core(copy_side.views)}"
            )
        return lines
    if isinstance(step, Ring):
        lines = [f"box {[list(axis) for axis in step.axes]} (extent, strides from and to)"]
        for name, address in (("from", step.source_address), ("to", step.target_address)):
            lines.append(f"{name:<5}{_place_text(address)}")
        lines += [
            f"core {t.source} +{t.source_offset} -> core {t.target} +{t.target_offset}"
            for t in step.transfers
        ]
        return lines
    if isinstance(step, Gather):
        return [
            f"extents {_per_core(step.extents)}, {step.rows} rows {step.row_stride} bytes apart"
            f"{', scattered' if step.scatters else ''}",
            f"value strides {list(step.value.strides)} {_place_text(step.value.address)}",
            f"index strides {list(step.index.strides)} stick dim {step.stick_dim} "
            f"{_place_text(step.index.address)}",
            f"out   strides {list(step.out.strides)} {_place_text(step.out.address)}",
        ]
    assert isinstance(step, Topk)
    what = "indices" if step.indices else "values"
    return [
        f"{what} of the {step.k} {'largest' if step.largest else 'smallest'} of {step.count}, "
        f"extents {_per_core(step.extents)}",
        f"in  {_operand_text(step.input)}",
        f"out {_operand_text(step.output)}",
    ]


def _disassemble_tile(tile: Tile) -> list[str]:
    kept, reduced = tile.kept, tile.dims - tile.kept
    dims = f"{kept} kept" + (f", {reduced} reduced" if reduced else "")
    lines = [
        f"{tile.lanes} lanes, {dims}, stick dim {tile.stick_dim}, extents {_per_core(tile.extents)}"
    ]
    if any(tail != (1 << tile.lanes) - 1 for tail in tile.tails):
        lines.append(f"tails {_per_core([(tail.bit_count(),) for tail in tile.tails])} lanes")
    for number, operand in enumerate(tile.operands):
        lines.append(f"@{number} {_operand_text(operand)}")
    lines += _groups_text(tile.groups)
    for number, phase in enumerate(tile.phases):
        if number:
            lines.append(f"phase {number}")
        lines += [_instruction_text(i) for i in phase.body]
        for r in phase.reductions:
            lanes = " and lanes" if tile.reduces_lanes else ""
            lines.append(
                f"r{r.destination} = reduce {r.op.name.lower()} r{r.source} "
                f"over {reduced} dims{lanes}"
            )
        lines += [_instruction_text(i) for i in phase.epilogue]
    return lines


def _groups_text(groups: tuple[int, ...]) -> list[str]:
    return [f"groups {list(groups)}"] if groups else []


def _per_core(rows: Sequence[Sequence[int]]) -> str:
    if all(tuple(row) == tuple(rows[0]) for row in rows):
        return str(list(rows[0]))
    text = " ".join(str(list(row)) for row in rows)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."


def _operand_text(o: Operand) -> str:
    form = "" if o.form == 0 else f" {o.form.name.lower()}"
    sub = f" sub {o.sub_stride}" if o.sub_stride else ""
    limits = ""
    if any(limit >= 0 for limit in o.limits):
        limits = f" limits {_per_core([(limit,) for limit in o.limits])}"
    place = _place_text(o.address)
    return f"{_format_name(o.format)}{form} strides {list(o.strides)}{sub}{limits} {place}"


def _instruction_text(i: Instruction) -> str:
    name = _OPCODE_NAMES.get(i.opcode, f"opcode {i.opcode}")
    if name == "load":
        return f"r{i.destination} = load @{i.a}"
    if name == "store":
        second = f", r{i.b}" if i.b >= 0 else ""
        return f"store @{i.destination}, r{i.a}{second}"
    if name == "round":
        return f"r{i.destination} = round r{i.a} to {_format_name(i.b)}"
    parts = [f"r{r}" for r in (i.a, i.b, i.c) if r >= 0]
    immediates = (i.immediate0, i.immediate1)[: _FLOAT_IMMEDIATES.get(name, 0)]
    for word in immediates:
        parts.append(f"{struct.unpack('<f', struct.pack('<I', word & 0xFFFFFFFF))[0]:g}")
    return f"r{i.destination} = {name} {', '.join(parts)}"


def _format_name(number: int) -> str:
    found = FORMAT_OF_NUMBER.get(number)
    return found.name if found else f"format {number}"
