"""Pictures of a plan: `torch_spyre.explain(...).draw()`.

In: the operations of an Explanation. Out: one SVG with the time line (a bar for each operation, as
long as its modelled time, coloured by what bounds it) and the grid of cores (a row for each
operation, a cell for each core that works).
"""

from __future__ import annotations

from collections.abc import Sequence
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
_ROW, _TOP, _NAME, _LINE, _CELL = 18, 40, 220, 480, 9


def draw(ops: Sequence[Op], title: str) -> str:
    """The picture as text."""
    total = sum(op.device_time_us for op in ops) or 1.0
    height = _TOP + _ROW * len(ops) + 40
    cores_at = _NAME + _LINE + 30
    width = cores_at + CARD.cores * _CELL + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="10" y="16" font-size="13">{escape(title)}</text>',
        f'<text x="{_NAME}" y="32">time line</text><text x="{cores_at}" y="32">cores</text>',
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
    y = _TOP + _ROW * len(ops) + 22
    for number, (bound, colour) in enumerate(COLOURS.items()):
        x = _NAME + 90 * number
        parts.append(f'<rect x="{x}" y="{y - 10}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14}" y="{y}">{bound}</text>')
    return "\n".join([*parts, "</svg>"])
