"""Cost report of a plan: bytes moved and modelled time (`explain`, SPYRE_DUMP_COST=1).

In: a kernel with its OpSpecs. Out: an OpCost for each operation, by the model of device time
(docs/architecture/device_time.md), and the traffic that no plan can avoid: each input once, each
output once.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from torch_spyre._inductor.inspect.report import table
from torch_spyre._inductor.layouts.to_op_spec import buffers_of
from torch_spyre._inductor.opspec.loops import loop_strides
from torch_spyre._inductor.planning.device_addresses import device_bytes
from torch_spyre._inductor.planning.op_cost import Pricer, slices_of
from torch_spyre.card_model.cost_model import launch_us, price

if TYPE_CHECKING:
    from torch_spyre._inductor.planning.plan import Kernel


@dataclass(frozen=True)
class OperandCost:
    """A tensor of an operation."""

    name: str
    place: str
    """`memory` or `lx`."""
    writes: bool
    bytes: int
    """Between it and the cores, in all iterations of loops: of device memory what moves once, of LX
    that of all cores."""
    distinct: int = 0
    """Without what later iterations move again."""
    address: int = -1
    """In each scratchpad; -1 for what is in memory."""
    core_bytes: int = 0
    """That a core has of it there."""


@dataclass(frozen=True)
class OpCost:
    """One operation."""

    splits: dict[str, int]
    """Slices of each dimension that is cut."""
    operands: tuple[OperandCost, ...]
    us: float
    bound: str
    """What takes longest: compute, memory, lx, ring or start."""
    ring_bytes: int
    loops: tuple[int, ...] = ()
    """How often the loops around it run; all other numbers are for all of that."""

    def bytes_in(self, place: str) -> int:
        return sum(o.bytes for o in self.operands if o.place == place)


def costs(kernel: Kernel) -> list[OpCost]:
    """Of the operations of a kernel, in order."""
    result = []
    for op, run in zip(kernel.operations, kernel.runs, strict=True):
        slices = slices_of(run.spec)
        work = Pricer(run.spec).work(slices)
        cost = price(work)
        strides = loop_strides(run.spec, run.loops)
        operands = []
        for buffer, arg, flow, moves in zip(
            buffers_of(op), run.spec.args, work.flows, strides, strict=True
        ):
            once = flow.core_bytes * work.cores if flow.in_lx else flow.total_bytes
            around = run.loops[len(run.loops) - len(moves) :]
            tiles = prod(count for count, step in zip(around, moves, strict=True) if step)
            operands.append(
                OperandCost(
                    buffer.name,
                    "lx" if flow.in_lx else "memory",
                    flow.writes,
                    once * run.count,
                    once * tiles,
                    arg.allocation.get("lx", -1),
                    flow.core_bytes if flow.in_lx else 0,
                )
            )
        splits = {str(symbol): n for symbol, n in slices.items() if n > 1}
        result.append(
            OpCost(splits, tuple(operands), cost.us * run.count, cost.bound,
                   work.ring_bytes * run.count, run.loops)
        )  # fmt: skip
    return result


def compulsory_bytes(kernel: Kernel, found: list[OpCost]) -> int:
    """Compulsory traffic: each argument that is read or written, once."""
    arguments = {*kernel.arguments, *kernel.constants}
    most: dict[tuple[object, bool], int] = {}
    tiles: dict[tuple[object, ...], int] = {}
    written = set()
    for op, cost in zip(kernel.operations, found, strict=True):
        for buffer, operand in zip(buffers_of(op), cost.operands, strict=True):
            if buffer not in arguments or (not operand.writes and buffer in written):
                continue
            key = (buffer, operand.writes)
            own = operand.distinct
            if cost.loops:  # the last tile may have a loop of its own
                part = (*key, op.origin.node, op.opfunc)
                tiles[part] = min(tiles.get(part, 0) + own, device_bytes(buffer))
                own = tiles[part]
            most[key] = max(most.get(key, 0), own)
            if operand.writes:
                written.add(buffer)
    return sum(most.values())


def splits_text(splits: dict[str, int]) -> str:
    """`c0/4 c1/8`, or `-`."""
    return " ".join(f"{name}/{count}" for name, count in splits.items()) or "-"


def loops_text(loops: tuple[int, ...]) -> str:
    """`8x `, `4x2x `: how often an operation runs, by its loops; nothing without them."""
    return "".join(f"{count}x" for count in loops) + (" " if loops else "")


def lines(kernel: Kernel, name: str) -> list[str]:
    """The cost report of a kernel."""
    found = costs(kernel)
    rows = [("", "operation", "splits", "memory bytes", "LX bytes", "us", "bound")]
    for number, (op, cost) in enumerate(zip(kernel.operations, found, strict=True)):
        rows.append((
            str(number), f"{loops_text(cost.loops)}{op.opfunc}", splits_text(cost.splits),
            str(cost.bytes_in("memory")), str(cost.bytes_in("lx")), f"{cost.us:.2f}", cost.bound,
        ))  # fmt: skip
    memory = sum(c.bytes_in("memory") for c in found)
    total = sum(c.us for c in found) + launch_us()
    least = compulsory_bytes(kernel, found)
    return [
        f"cost of {name}: {total:.2f} us modelled, {memory} bytes of device memory "
        f"({least} compulsory)",
        *table(rows, "  "),
    ]


def dump(kernel: Kernel, name: str) -> None:
    """Print the cost report of a kernel on stderr."""
    print("\n".join(lines(kernel, name)), file=sys.stderr)
