"""Plan report as text: what `explain` prints, debug files hold and logs show.

In: kernels and operations of a plan. Out: lines. Example of an operation:

    sum            128 (512)  32 cores  SEN169_FP16  _softmax
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from torch_spyre._inductor.errors import describe_layout
from torch_spyre._inductor.layouts.to_op_spec import buffers_of
from torch_spyre._inductor.operations.operation import Operation

if TYPE_CHECKING:
    from torch_spyre._inductor.opspec.op_spec import OpSpec
    from torch_spyre._inductor.planning.plan import GraphPlan, Kernel

_SHAPE = 32
_SOURCE = 88


# ---- Pieces of a line ---------------------------------------------------------------------------


def table(rows: Sequence[Sequence[str]], indent: str = "") -> list[str]:
    """Columns, each as wide as its widest cell."""
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        indent + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def counted(number: int, noun: str) -> str:
    """`1 kernel`, `2 kernels`, `no restickifies`."""
    plural = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{number or 'no'} {noun if number == 1 else plural}"


def shape_text(kept: Iterable[int], reduced: Iterable[int] = ()) -> str:
    """`128x256 (512)`: sizes of the result, and in brackets what is reduced."""
    inner = "x".join(map(str, reduced))
    outer = "x".join(map(str, kept)) or ("" if inner else "scalar")
    return shorten(f"{outer} ({inner})".strip() if inner else outer, _SHAPE)


def shorten(text: str, width: int) -> str:
    """The text, or its beginning and three dots."""
    return text if len(text) <= width else text[: width - 3].rstrip() + "..."


def source_text(source: str) -> str:
    """`/long/path/model.py:12: code` as `model.py:12  code`, not too long."""
    if not source:
        return "(no line of the program)"
    place, _, code = source.partition(": ")
    return shorten(f"{place.rsplit('/', 1)[-1]}  {code}".rstrip(), _SOURCE)


def aten_text(aten: str) -> str:
    """`aten.add.Tensor` as `add`: enough to find it."""
    parts = aten.split(".")
    return ".".join(parts[1:-1]) if len(parts) > 2 and parts[0] == "aten" else aten


def formats_text(formats: Sequence[str]) -> str:
    """One name when all tensors agree, else `inputs > output`."""
    inputs, output = list(dict.fromkeys(formats[:-1])), formats[-1]
    return output if inputs in ([], [output]) else f"{' '.join(inputs)} > {output}"


def cores_of(spec: OpSpec) -> int:
    """How many cores an operation is divided over."""
    if "ring" in spec.op_info:
        return spec.op_info["ring"]["cores"]
    return math.prod(slices for _, slices in spec.iteration_space.values())


def sizes_of(op: Operation) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Kept and reduced sizes of an operation."""
    return tuple(op.ranges[v] for v in op.kept), tuple(op.ranges[v] for v in op.reduced)


def operation_row(op: Operation, spec: OpSpec) -> tuple[str, ...]:
    """OpFunc, shape, cores, formats, where it comes from."""
    why = f"added: {op.reason}" if op.reason else aten_text(op.origin.aten)
    formats = formats_text([arg.device_dtype.name for arg in spec.args])
    cores = counted(cores_of(spec), "core")
    return op.opfunc, shape_text(*sizes_of(op)), cores, formats, why


# ---- Files of a kernel --------------------------------------------------------------------------


def operations(kernel: Kernel) -> list[str]:
    """Each operation: OpFunc, origin and access patterns."""
    lines: list[str] = []
    for i, (op, run) in enumerate(zip(kernel.operations, kernel.runs, strict=True)):
        spec = run.spec
        lines.append(f"{i}: {'  '.join(operation_row(op, spec))}")
        if op.origin.source:
            lines.append(f"     at {op.origin.source}")
        ranges = ", ".join(f"{v} {n}" for v, n in op.ranges.items())
        reduced = f", reduced {', '.join(map(str, op.reduced))}" if op.reduced else ""
        lines.append(f"     over {ranges or 'one point'}{reduced}")
        lines += [f"     in  {access}" for access in op.inputs]
        lines += [f"     idx {symbol} = {access}" for symbol, access in op.gather.items()]
        lines.append(f"     out {op.output}")
    return lines


def layouts(kernel: Kernel) -> list[str]:
    """Each buffer of a kernel: shape, layout, where it lives."""
    rows = [("buffer", "type", "shape", "strides", "device_size / stride_map", "where")]
    where = {b: f"argument {i}" for i, b in enumerate((*kernel.arguments, *kernel.constants))}
    for buffer in dict.fromkeys(b for op in kernel.operations for b in buffers_of(op)):
        place = where.get(buffer) or f"pool +{kernel.pool.get(buffer, 0)}"
        if buffer in kernel.lx:
            place = f"LX +{kernel.lx[buffer]}"
        if buffer.is_constant:
            place += f", the number {buffer.value}"
        layout = describe_layout(buffer.layout) if buffer.layout is not None else "none"
        rows.append((buffer.name, str(buffer.dtype).removeprefix("torch."), str(list(buffer.size)),
                     str(list(buffer.stride)), layout, place))  # fmt: skip
    return table(rows)


def restickifies(kernel: Kernel) -> list[str]:
    """The layout conversion copies, with the reason of each."""
    if not kernel.restickifies:
        return ["none"]
    lines: list[str] = []
    for entry in kernel.restickifies:
        lines += [
            f"{entry.buffer}: {entry.elements} elements for {entry.operation}: {entry.reason}",
            f"     {entry.source_layout} -> {entry.target_layout}",
            f"     at {entry.source or '(no line of the program)'}",
        ]
    return lines


# ---- A graph ------------------------------------------------------------------------------------


def summary(plan: GraphPlan, names: dict[int, str]) -> list[str]:
    """Kernels and host steps of a graph in order. `names` are those of kernels by their id."""
    copies = sum(len(k.restickifies) for k in plan.kernels)
    total = sum(len(k.operations) for k in plan.kernels)
    parts = [counted(len(plan.kernels), "kernel"), counted(total, "operation"),
             counted(copies, "restickify"), counted(len(plan.fallbacks), "fallback")]  # fmt: skip
    lines = [", ".join(parts), f"pool of {plan.pool_bytes} bytes", ""]
    for i in range(len(plan.kernels) + 1):
        for step in plan.fallbacks:
            if step.kernels_before == i:
                lines += [f"host: {step.op} {', '.join(step.shapes)}: {step.reason}"]
                lines += [f"     at {step.source or '(no line of the program)'}"]
        if i < len(plan.kernels):
            kernel = plan.kernels[i]
            lines.append(f"kernel {names.get(id(kernel), i)}")
            rows = [
                operation_row(o, r.spec)
                for o, r in zip(kernel.operations, kernel.runs, strict=True)
            ]
            lines += table(rows, "     ")
            lines += repetition(kernel)
    return lines


def repetition(kernel: Kernel) -> list[str]:
    """Which operations were planned for several layers, if some were."""
    found = kernel.repetition
    if found is None:
        return []
    last = found.first + found.operations - 1
    layers = counted(found.times, "layer")
    return [f"     planned once: {found.first} to {last}, replicated for {layers} after them"]
