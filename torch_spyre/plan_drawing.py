"""Pictures of a plan: `torch_spyre.explain(...).draw()`.

In: the operations of an Explanation. Out: one SVG with the time line (a bar for each operation, as
long as its modelled time, coloured by what bounds it), the grid of cores (a row for each operation,
a cell for each core that works), and the map of the scratchpads: a rectangle for each buffer, from
the operation that puts it there to the last that uses it, over the addresses that it takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from torch_spyre.hardware import CARD

if TYPE_CHECKING:
    from torch_spyre.explanation import Op

COLOURS = {
    "compute": "#3b7dd8",
    "memory": "#d8763b",
    "lx": "#7a52a8",
    "ring": "#2e9e6b",
    "start": "#9a9a9a",
}
_ROW, _TOP, _NAME, _LINE, _CELL, _MAP = 18, 40, 220, 480, 9, 400


def draw(ops: Sequence[Op], title: str) -> str:
    """The picture as text."""
    total = sum(op.device_time_us for op in ops) or 1.0
    height = _TOP + _ROW * len(ops) + 40
    cores_at = _NAME + _LINE + 30
    map_at = cores_at + CARD.cores * _CELL + 30
    width = map_at + _MAP + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="10" y="16" font-size="13">{escape(title)}</text>',
        f'<text x="{_NAME}" y="32">time line</text><text x="{cores_at}" y="32">cores</text>'
        f'<text x="{map_at}" y="32">LX of a core: 0 to {CARD.lx_bytes >> 20} MB</text>',
    ]
    at = 0.0
    for number, op in enumerate(ops):
        y = _TOP + _ROW * number
        x, long = _NAME + _LINE * at / total, _LINE * op.device_time_us / total
        at += op.device_time_us
        splits = " ".join(f"{name}/{count}" for name, count in op.splits.items())
        told = f"{op.opfunc}: {op.device_time_us:.2f} us, bound by {op.bound}, {splits or 'whole'}"
        parts.append(f'<text x="10" y="{y + 12}">{number} {escape(op.opfunc)}</text>')
        parts.append(
            f'<rect x="{x:.2f}" y="{y + 2}" width="{max(long, 1):.2f}" height="{_ROW - 4}" '
            f'fill="{COLOURS[op.bound]}"><title>{escape(told)}</title></rect>'
        )
        for core in range(CARD.cores):
            colour = COLOURS[op.bound] if core < op.cores else "#eeeeee"
            parts.append(
                f'<rect x="{cores_at + core * _CELL}" y="{y + 4}" width="{_CELL - 1}" '
                f'height="{_ROW - 8}" fill="{colour}"/>'
            )
    parts += _map(ops, map_at)
    y = _TOP + _ROW * len(ops) + 22
    for number, (bound, colour) in enumerate(COLOURS.items()):
        x = _NAME + 90 * number
        parts.append(f'<rect x="{x}" y="{y - 10}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14}" y="{y}">{bound}</text>')
    return "\n".join([*parts, "</svg>"])


@dataclass
class Resident:
    """A buffer in the scratchpads."""

    name: str
    address: int
    size: int
    first: int
    last: int
    """Numbers of operations."""


def residents(ops: Sequence[Op]) -> list[Resident]:
    """What is in the scratchpads, in the order in which it comes there."""
    found: dict[tuple[int, int, str, int], Resident] = {}
    for number, op in enumerate(ops):
        for operand in op.operands:
            if operand.place != "lx":
                continue
            key = (op.graph, op.kernel, operand.name, operand.address)
            entry = found.setdefault(
                key, Resident(operand.name, operand.address, operand.core_bytes, number, number)
            )
            entry.last = number
            entry.size = max(entry.size, operand.core_bytes)
    return list(found.values())


def _map(ops: Sequence[Op], left: int) -> list[str]:
    """Operations go down as in the other columns, addresses to the right."""
    scale = _MAP / CARD.lx_bytes
    high = _ROW * len(ops)
    parts = [
        f'<rect x="{left}" y="{_TOP}" width="{_MAP}" height="{high}" fill="#f7f7f7" '
        'stroke="#cccccc"/>'
    ]
    for number, entry in enumerate(residents(ops)):
        x, y = left + entry.address * scale, _TOP + _ROW * entry.first + 2
        wide, tall = max(entry.size * scale, 1.0), _ROW * (entry.last - entry.first + 1) - 4
        told = f"{entry.name}: {entry.size} bytes of each core at {entry.address}"
        parts.append(
            f'<rect x="{x:.2f}" y="{y}" width="{wide:.2f}" height="{tall}" '
            f'fill="hsl({number * 47 % 360},55%,70%)" stroke="#555555" stroke-width="0.5">'
            f"<title>{escape(told)}</title></rect>"
        )
        if wide > 40:
            parts.append(
                f'<text x="{x + 3:.2f}" y="{y + 11}" font-size="9">{escape(entry.name[:24])}</text>'
            )
    return parts
