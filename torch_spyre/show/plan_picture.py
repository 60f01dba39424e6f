"""Pictures of a plan: `torch_spyre.explain(...).draw()`.

In: the operations of an Explanation. Out: one SVG. A row is an operation, in order; the columns are
the time line (a bar as long as its modelled time, coloured by what bounds it), the cores that
work, and the map of the scratchpads: a rectangle for each buffer, from the operation that puts it
there to the last that uses it, over the addresses that it takes.

Example: `draw(told.ops, "softmax", parts=("lx",))` is the map alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from colorsys import hls_to_rgb
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from torch_spyre.hardware import CARD

if TYPE_CHECKING:
    from torch_spyre.show.explain import Op

COLOURS = {
    "compute": "#3b7dd8",
    "memory": "#d8763b",
    "lx": "#7a52a8",
    "ring": "#2e9e6b",
    "start": "#9a9a9a",
}
PARTS = ("time", "cores", "lx")
_ROW, _TOP, _MARGIN = 18, 58, 12
_LINE, _CELL, _SPLITS, _MAP = 380, 8, 90, 420
_LETTER = 6.2
"""Width of a letter of the usual size, about."""
_AXIS = "#e2e2e2"


def draw(ops: Sequence[Op], title: str, parts: Sequence[str] = PARTS) -> str:
    """The picture as text."""
    unknown = [part for part in parts if part not in PARTS]
    if unknown or not parts:
        raise ValueError(f"no parts of a picture: {unknown or '[]'}; there are {', '.join(PARTS)}")
    rows = [_row_name(number, op) for number, op in enumerate(ops)]
    left = _MARGIN + int(_LETTER * max([12, *(len(row) for row in rows)])) + 16
    columns: dict[str, tuple[int, Callable[[Sequence[Op], int], list[str]]]] = {
        "time": (_LINE, _time_line),
        "cores": (CARD.cores * _CELL + _SPLITS, _cores),
        "lx": (_MAP, _map),
    }
    drawn: list[str] = []
    for number in range(0, len(ops), 2):  # bands, for the eye to stay in a row
        drawn.append(f'<rect x="0" y="{_TOP + _ROW * number}" width="100%" height="{_ROW}" '
                     'fill="#f6f8fb"/>')  # fmt: skip
    for number, row in enumerate(rows):
        drawn.append(_text(_MARGIN, _TOP + _ROW * number + 13, row))
    for part in PARTS:
        if part in parts:
            width, column = columns[part]
            drawn += column(ops, left)
            left += width + 24
    bottom = _TOP + _ROW * len(ops)
    width = max(left, _MARGIN + int(7 * len(title)), _MARGIN + 110 * len(COLOURS))
    height = bottom + 36
    if "time" in parts or "cores" in parts:
        drawn += _legend(bottom + 24)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">'
    )
    back = f'<rect width="{width}" height="{height}" fill="white"/>'
    return "\n".join([head, back, _text(_MARGIN, 18, title, size=13), *drawn, "</svg>"])


def _row_name(number: int, op: Op) -> str:
    loops = "".join(f"{count}x " for count in op.loops)
    reduced = f" ({'x'.join(map(str, op.reduced))})" if op.reduced else ""
    return f"{number}  {loops}{op.opfunc}  {'x'.join(map(str, op.shape))}{reduced}"


def _text(x: float, y: float, text: str, *, size: int = 11, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}"{more}>{escape(text)}</text>'


def _box(x: float, y: float, width: float, height: float, fill: str, told: str = "") -> str:
    place = f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" fill="{fill}"'
    return f"{place}><title>{escape(told)}</title></rect>" if told else f"{place}/>"


def _legend(y: int) -> list[str]:
    parts = [_text(_MARGIN, y, "bound by")]
    for number, (bound, colour) in enumerate(COLOURS.items()):
        x = _MARGIN + 60 + 80 * number
        parts += [_box(x, y - 9, 10, 10, colour), _text(x + 14, y, bound)]
    return parts


def _axis(left: int, width: int, high: int, ticks: Sequence[tuple[float, str]]) -> list[str]:
    """Lines through all rows, and what they stand for. Ticks are parts of the width."""
    parts = []
    for at, label in ticks:
        x = left + width * at
        parts.append(f'<line x1="{x:.1f}" y1="{_TOP - 4}" x2="{x:.1f}" y2="{_TOP + high}" '
                     f'stroke="{_AXIS}"/>')  # fmt: skip
        anchor = "start" if at == 0 else "end" if at > 0.97 else "middle"
        parts.append(_text(x, _TOP - 8, label, size=9, more=f' text-anchor="{anchor}"'))
    return parts


def _steps(total: float, most: int = 6) -> list[float]:
    """Round numbers from 0 to a total, not more than so many."""
    size = 1.0
    while size * most < total:
        size *= 10
    while size > total:
        size /= 10
    for part in (10, 5, 2, 1):
        if total / (size / part) <= most:
            size /= part
            break
    return [size * i for i in range(int(total / size) + 1)]


def _light(number: int) -> str:
    """Colours that differ from one number to the next, light enough for black letters."""
    rgb = hls_to_rgb(number * 47 % 360 / 360, 0.78, 0.55)
    return "#" + "".join(f"{round(255 * part):02x}" for part in rgb)


# ---- Columns -------------------------------------------------------------------------------------


def _time_line(ops: Sequence[Op], left: int) -> list[str]:
    total = sum(op.device_time_us for op in ops) or 1.0
    high = _ROW * len(ops)
    parts = [_text(left, 36, "time line, microseconds")]
    parts += _axis(left, _LINE, high, [(t / total, f"{t:g}") for t in _steps(total)])
    at = 0.0
    for number, op in enumerate(ops):
        y = _TOP + _ROW * number
        x, long = left + _LINE * at / total, max(_LINE * op.device_time_us / total, 1.0)
        at += op.device_time_us
        told = f"{op.opfunc}: {op.device_time_us:.2f} us, bound by {op.bound}"
        parts.append(_box(x, y + 3, long, _ROW - 6, COLOURS[op.bound], told))
        if op.device_time_us < total / 100:
            continue  # the bar says enough
        label = f"{op.device_time_us:.1f}"
        room = left + _LINE - (x + long)
        if room > _LETTER * len(label):
            parts.append(_text(x + long + 3, y + 12, label, size=9))
        else:
            parts.append(_text(x - 3, y + 12, label, size=9, more=' text-anchor="end"'))
    return parts


def _cores(ops: Sequence[Op], left: int) -> list[str]:
    parts = [_text(left, 36, "cores, and how dimensions are cut")]
    wide = CARD.cores * _CELL
    ticks = [(core / CARD.cores, str(core)) for core in range(0, CARD.cores, 8)]
    parts += _axis(left, wide, _ROW * len(ops), ticks)
    for number, op in enumerate(ops):
        y = _TOP + _ROW * number
        told = f"{op.opfunc}: {op.cores} of {CARD.cores} cores"
        for core in range(CARD.cores):
            colour = COLOURS[op.bound] if core < op.cores else "#e6e6e6"
            box = _box(left + core * _CELL, y + 4, _CELL - 1, _ROW - 8, colour, told)
            parts.append(box)
        splits = " ".join(f"{name}/{count}" for name, count in op.splits.items())
        parts.append(_text(left + wide + 6, y + 13, splits))
    return parts


# ---- The map of the scratchpads ------------------------------------------------------------------


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
    """Operations go down as in the other columns, addresses to the right: as far as they are used,
    because most kernels need a small part of the 2 MB."""
    found = residents(ops)
    used = max([0, *(entry.address + entry.size for entry in found)])
    high = _ROW * len(ops)
    whole = f"{CARD.lx_bytes >> 20} MB"
    if not found:
        return [_text(left, 36, f"scratchpad (LX) of a core: nothing of {whole} is used")]
    shown = f"{used / 1024:.1f} KB" if used < 1 << 20 else f"{used / (1 << 20):.2f} MB"
    parts = [_text(left, 36, f"scratchpad (LX) of a core: {shown} of {whole} are used")]
    scale = _MAP / used
    ticks = [(kb * 1024 / used, f"{kb:g} KB") for kb in _steps(used / 1024, most=5)]
    parts += _axis(left, _MAP, high, ticks)
    for number, entry in enumerate(found):
        x, y = left + entry.address * scale, _TOP + _ROW * entry.first + 1
        wide, tall = max(entry.size * scale, 1.0), _ROW * (entry.last - entry.first + 1) - 2
        told = (
            f"{entry.name}: {entry.size} bytes of each core at {entry.address}, "
            f"operations {entry.first} to {entry.last}"
        )
        parts.append(
            f'<rect x="{x:.2f}" y="{y}" width="{wide:.2f}" height="{tall}" rx="2" '
            f'fill="{_light(number)}" stroke="#555555" stroke-width="0.6">'
            f"<title>{escape(told)}</title></rect>"
        )
        if wide > 5.2 * len(entry.name) + 6:
            parts.append(_text(x + 4, y + 12, entry.name, size=9))
    return parts
