"""The page that `draw_layout` draws: heading, key, facts, sticks, from top to bottom, as SVG.

In: `Sticks`, which knows what lies where. Out: the text of an SVG file that needs no fonts, styles
or scripts from elsewhere and stands on an opaque sheet, so that light and dark pages both do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any

from torch_spyre.constants import BYTES_IN_STICK
from torch_spyre.show.layout_picture import Cell, Coordinates, Sticks

MARGIN = 24
STICK_WIDTH = 448
BAR, ROW, GAP_ROW, HEADING = 13, 17, 18, 20
MONO = 6.63  # advance of the 11-pixel monospaced font
KEY_WIDTH, KEY_HEIGHT, KEY_CELL, KEY_GAP = 288, 132, 16, 6
FACTS_X = MARGIN + KEY_WIDTH + 44
FACT_COLUMNS = (0, 100, 146, 206)

STYLE = """
text{font:11px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:#334155}
.h{font:600 16px system-ui,'Segoe UI','DejaVu Sans',Helvetica,Arial,sans-serif;fill:#0f172a}
.s{font:12px system-ui,'Segoe UI','DejaVu Sans',Helvetica,Arial,sans-serif;fill:#475569}
.b{font-weight:600;fill:#0f172a}
.d{fill:#7c8aa0}
.e{text-anchor:end}
.m{text-anchor:middle}
"""


class Page:
    """Lays the parts of the picture out from top to bottom."""

    def __init__(self, sticks: Sticks, max_sticks: int, title: str) -> None:
        self.sticks = sticks
        self.subject = sticks.subject
        self.title = title
        self.visible = _visible(self.subject.device_size[:-1], max_sticks)
        self.cells = {
            index: sticks.stick(index) for index in _indices(self.visible) if sticks.count
        }
        self.colours = _Colours(cell.at for stick in self.cells.values() for cell in stick)
        self.out: list[str] = []

        self.facts = self._facts()
        self.walks = [sticks.walks(axis) for axis in range(len(self.subject.device_size))]
        self.bar_x = MARGIN + 12 + _text_width(["device", *map(_list, self.cells)]) + 12
        self.right = self.bar_x + STICK_WIDTH
        notes = ["host elements", *map(self._note, self.cells.values())]
        self.width = round(
            MARGIN
            + max(
                self.right + 14 + _text_width(notes) + 12,
                FACTS_X + FACT_COLUMNS[-1] + _text_width(self.walks),
                FACTS_X + FACT_COLUMNS[1] + _text_width([value for _, value in self.facts]),
            )
        )

    def svg(self) -> str:
        self._text(MARGIN, 38, self.title, "h")
        self._text(MARGIN, 57, self._summary(), "s")
        y = max(self._draw_key(88), self._draw_facts(88))
        y = self._draw_signs(y + 24)
        y = self._draw_sticks(y + 12)
        return self._document(round(y + MARGIN))

    def _document(self, height: int) -> str:
        frame = f'<rect x=".5" y=".5" width="{self.width - 1}" height="{height - 1}" rx="10" '
        head = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{height}" '
            f'viewBox="0 0 {self.width} {height}" role="img" aria-label="{escape(self.title)}">',
            f"<title>{escape(self.title)}</title>",
            f"<desc>{escape(self._summary())}</desc>",
            f"<style>{STYLE}</style>",
            '<defs><pattern id="padding" width="5" height="5" patternUnits="userSpaceOnUse" '
            'patternTransform="rotate(45)"><rect width="5" height="5" fill="#f8fafc"/>'
            '<rect width="1.3" height="5" fill="#b6c2d1"/></pattern></defs>',
            # An opaque sheet: readable on a light page and on a dark one.
            f'{frame}fill="#ffffff" stroke="#d7dee8"/>',
        ]
        return "\n".join([*head, *self.out, "</svg>", ""])

    # The words

    def _summary(self) -> str:
        subject, count = self.subject, self.sticks.count
        size = _bytes(count * BYTES_IN_STICK)
        share = self.sticks.padding_share
        padding = f"{100 * share:.3g} % padding" if share else "no padding"
        plural = "stick" if count == 1 else "sticks"
        return (
            f"{count:,} {plural} of {subject.device_size[-1]} {subject.format_name} elements"
            f"  ·  {size}  ·  {padding}"
        )

    def _facts(self) -> list[tuple[str, str]]:
        subject = self.subject
        facts = [
            ("host size", _list(subject.size)),
            ("host strides", _list(subject.strides)),
            ("device_size", _list(subject.device_size)),
            ("stride_map", _list(subject.stride_map)),
        ]
        if subject.offset:
            facts.insert(2, ("storage offset", str(subject.offset)))
        if subject.arrangement != "STANDARD":
            facts.append(("arrangement", f"{subject.arrangement} (drawn in standard order)"))
        return facts

    def _draw_facts(self, y: float) -> float:
        """The layout in numbers and words, right of the key."""
        for name, value in self.facts:
            self._text(FACTS_X, y, name, "d")
            self._text(FACTS_X + FACT_COLUMNS[1], y, value, "b")
            y += 17
        y += 10
        columns = [FACTS_X + column for column in FACT_COLUMNS]
        for x, label in zip(columns, ("device axis", "size", "stride", "walks")):
            self._text(x, y, label, "d")
        self._line(FACTS_X, self.width - MARGIN, y + 6)
        y += 21
        last = len(self.walks) - 1
        for axis, words in enumerate(self.walks):
            self._text(columns[0], y, f"{axis}" + (" (stick)" if axis == last else ""))
            self._text(columns[1], y, f"{self.subject.device_size[axis]}", "b")
            self._text(columns[2], y, f"{self.subject.stride_map[axis]}", "b")
            self._text(columns[3], y, words)
            y += 16
        return y - 10

    def _note(self, stick: Sequence[Cell]) -> str:
        """The host elements of a stick, shortly: `(3, 0…63)`."""
        at = [cell.at for cell in stick if cell.at is not None]
        if not at:
            return "padding" if all(cell.offset is None for cell in stick) else "outside the view"
        first, last = at[0], at[-1]
        moving = [d for d, (a, b) in enumerate(zip(first, last)) if a != b]
        if not moving:
            return _place(first)
        if len(moving) == 1:
            d = moving[0]
            if [place[d] for place in at] == list(range(first[d], last[d] + 1)):
                return _place([*first[:d], f"{first[d]}…{last[d]}", *first[d + 1 :]])
        return f"{_place(first)} … {_place(last)}"

    # The key: the host tensor in the same colours

    def _draw_key(self, top: float) -> float:
        rows, columns = self.colours.rows, self.colours.columns
        self._text(MARGIN, top, "this view" if self.subject.is_view else "host tensor", "d")
        if not rows:
            self._text(MARGIN, top + 24, "no elements")
            return top + 24
        labels = [", ".join(map(str, row)) for row in rows]
        x0 = MARGIN + _text_width(labels) + (6 if labels[0] else 0)
        y0 = top + 28
        across = _key_axis(columns, MARGIN + KEY_WIDTH - x0)
        down = _key_axis(rows, KEY_HEIGHT)
        self.out.append('<g shape-rendering="crispEdges">')
        for i, y, height in down:
            for j, x, width in across:
                fill = self.colours.fill(rows[i], columns[j])
                self._rect(x0 + x, y0 + y, width, height, fill)
        self.out.append("</g>")
        right, bottom = (axis[-1][1] + axis[-1][2] for axis in (across, down))

        at = {labels[i]: y0 + y + height / 2 + 4 for i, y, height in down}
        at[labels[-1]] = y0 + bottom - min(down[-1][2] / 2, 6) + 4
        for label in _apart(at, 13):
            self._text(x0 - 6, at[label], label, "d e")
        if len(columns) == 1:
            self._text(x0 + right / 2, y0 - 6, f"{columns[0]}", "d m")
        else:
            self._text(x0, y0 - 6, f"{columns[0]}", "d")
            self._text(x0 + right, y0 - 6, f"{columns[-1]}", "d e")
        return y0 + bottom

    def _draw_signs(self, y: float) -> float:
        """What colour, hatching and grey mean."""
        x = float(MARGIN)
        hues = [self.colours.hue(i / 4) for i in range(4)]
        for i, hue in enumerate(hues):
            self._rect(x + 6 * i, y, 6, BAR, _oklch(0.76, 0.115, hue))
        rank = len(self.subject.size)
        meaning = (
            "host element",
            "host element (colour: index)",
            "host element (hue: row, lightness: column)",
            "host element (hue: leading dims, lightness: last dim)",
        )[min(rank, 3)]
        x = self._sign_text(x + 30, y, meaning)
        for show, fill, text in (
            (self.sticks.padding_share > 0, "url(#padding)", "padding"),
            (self._has_outside(), OUTSIDE, "element outside this view"),
        ):
            if show:
                self._rect(x, y, 24, BAR, fill, "#cbd5e1")
                x = self._sign_text(x + 30, y, text)
        return y + BAR

    def _sign_text(self, x: float, y: float, text: str) -> float:
        self._text(x, y + 10.5, text, "s")
        return x + 6.4 * len(text) + 22

    def _has_outside(self) -> bool:
        return any(
            cell.at is None and cell.offset is not None
            for stick in self.cells.values()
            for cell in stick
        )

    # The sticks, in the order of their addresses

    def _draw_sticks(self, y: float) -> float:
        if not self.cells:
            self._text(MARGIN, y + 20, "no sticks: the tensor is empty")
            return y + 24
        self._text(MARGIN + 12, y + 18, "device", "d")
        self._text(self.right + 14, y + 18, "host elements", "d")
        elems = self.subject.device_size[-1]
        width = STICK_WIDTH / elems
        for i in sorted({0, elems // 4, elems // 2, 3 * elems // 4, elems - 1}):
            self._text(self.bar_x + (i + 0.5) * width, y + 18, f"{i}", "d m")
        return self._draw_blocks((), y + 26)

    def _draw_blocks(self, prefix: tuple[int, ...], y: float) -> float:
        """Everything below the outer axes that `prefix` fixes."""
        axis = len(prefix)
        if axis >= len(self.visible) - 1:
            return self._draw_block(prefix, y)
        for shown, hidden in _with_gaps(self.visible[axis], self.subject.device_size[axis]):
            if shown is not None:
                y = self._draw_blocks((*prefix, shown), y)
            else:
                rest = len(self.visible) - axis
                first, last = (_slice((*prefix, i), rest) for i in hidden)
                y = self._draw_gap(y, f"{first} … {last}" if first != last else first)
        return y

    def _draw_block(self, prefix: tuple[int, ...], y: float) -> float:
        """The sticks along the last axis outside the stick, in a frame."""
        top = y
        y += 6 + (HEADING if prefix else 0)
        count = self.subject.device_size[-2] if self.visible else 1
        body: list[tuple[float, tuple[int, ...]]] = []
        gaps: list[tuple[float, str]] = []
        for shown, hidden in _with_gaps(self.visible[-1] if self.visible else [0], count):
            if shown is not None:
                body.append((y, (*prefix, shown) if self.visible else ()))
                y += ROW
            else:
                n = hidden[1] - hidden[0] + 1
                gaps.append((y, f"⋮  {n:,} {'stick' if n == 1 else 'sticks'} not drawn"))
                y += GAP_ROW
        height = y + 4 - top
        self.out.append(
            f'<rect x="{MARGIN}" y="{top:g}" width="{self.width - 2 * MARGIN}" '
            f'height="{height:g}" rx="6" fill="#f5f7fa" stroke="#e2e8f0"/>'
        )
        if prefix:
            self._text(MARGIN + 12, top + 17, _slice(prefix, 2), "b")
        for gap_y, text in gaps:
            self._text(self.bar_x, gap_y + 12, text, "d")
        for stick_y, index in body:
            self._draw_stick(index, stick_y)
        return top + height + 6

    def _draw_gap(self, y: float, text: str) -> float:
        self._text(self.bar_x, y + 11, f"⋮  {text} not drawn", "d")
        return y + GAP_ROW + 4

    def _draw_stick(self, index: tuple[int, ...], y: float) -> None:
        stick = self.cells[index]
        width = STICK_WIDTH / len(stick)
        self._text(MARGIN + 12, y + 10.5, _list(index))
        self.out.append(f'<g transform="translate({self.bar_x:g} {y:g})">')
        for kind, first, last in _runs(stick):
            if kind == "element":
                for i in range(first, last + 1):
                    self._draw_cell(stick[i], (*index, i), i * width, width)
            else:
                fill = "url(#padding)" if kind == "padding" else OUTSIDE
                span = (last - first + 1) * width
                self.out.append(
                    f'<path d="M{first * width:g} 0h{span:g}v{BAR}h-{span:g}z" fill="{fill}"/>'
                )
        self.out.append(
            f'<rect width="{STICK_WIDTH}" height="{BAR}" rx="1.5" fill="none" stroke="#94a3b8" '
            'stroke-width=".8"/></g>'
        )
        self._text(self.right + 14, y + 10.5, self._note(stick))

    def _draw_cell(self, cell: Cell, index: tuple[int, ...], x: float, width: float) -> None:
        assert cell.at is not None
        # A hair of white between cells, as long as cells are wide enough to spare it.
        w = width - 0.7 if width >= 3 else width
        fill = self.colours.fill(*_row_and_column(cell.at))
        tip = f"device {_list(index)} = host {_place(cell.at)}"
        self.out.append(
            f'<path d="M{x:g} 0h{w:g}v{BAR}h-{w:g}z" fill="{fill}"><title>{tip}</title></path>'
        )

    # Small pieces

    def _text(self, x: float, y: float, text: str, cls: str = "") -> None:
        attr = f' class="{cls}"' if cls else ""
        self.out.append(f'<text x="{x:g}" y="{y:g}"{attr}>{escape(text)}</text>')

    def _rect(
        self, x: float, y: float, width: float, height: float, fill: str, stroke: str = ""
    ) -> None:
        line = f' stroke="{stroke}"' if stroke else ""
        self.out.append(
            f'<rect x="{x:.6g}" y="{y:.6g}" width="{width:.6g}" height="{height:.6g}" '
            f'fill="{fill}"{line}/>'
        )

    def _line(self, x0: float, x1: float, y: float) -> None:
        self.out.append(f'<path d="M{x0:g} {y:g}H{x1:g}" stroke="#e2e8f0"/>')


# --- Colours --------------------------------------------------------------------------------------

OUTSIDE = "#e2e5ea"
Row = tuple[int, ...]


def _row_and_column(at: Coordinates) -> tuple[Row, int]:
    """All but the last coordinate, and the last: what hue and lightness follow."""
    return (at[:-1], at[-1]) if at else ((), 0)


class _Colours:
    """Colours of the elements that are drawn: ranks, not values, so that neighbours differ."""

    def __init__(self, elements: Iterator[Coordinates | None]) -> None:
        drawn = {_row_and_column(at) for at in elements if at is not None}
        self.rows = sorted({row for row, _ in drawn})
        self.columns = sorted({column for _, column in drawn})
        self._row = {row: i / len(self.rows) for i, row in enumerate(self.rows)}
        self._column = {c: i / max(len(self.columns) - 1, 1) for i, c in enumerate(self.columns)}

    def fill(self, row: Row, column: int) -> str:
        part = self._column[column]
        if len(self.rows) == 1:  # a vector: let the hue tell its elements apart
            return _oklch(0.86 - 0.26 * part, 0.115, self.hue(0.75 * part))
        return _oklch(0.88 - 0.28 * part, 0.115, self.hue(self._row[row]))

    @staticmethod
    def hue(part: float) -> float:
        return (255 + 360 * part) % 360


def _oklch(lightness: float, chroma: float, hue: float) -> str:
    """An OKLCH colour as #rrggbb: equal steps look equal, whatever the hue."""
    a = chroma * math.cos(math.radians(hue))
    b = chroma * math.sin(math.radians(hue))
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )

    def channel(value: float) -> int:
        value = min(max(value, 0.0), 1.0)
        gamma = 12.92 * value if value <= 0.0031308 else 1.055 * value ** (1 / 2.4) - 0.055
        return round(255 * gamma)

    return "#" + "".join(f"{channel(value):02x}" for value in linear)


# --- Leaving things out ---------------------------------------------------------------------------


def _visible(size: Sequence[int], limit: int) -> list[list[int]]:
    """Per axis the indices to draw: the first ones and the last, at most `limit` combinations."""
    count = list(size)
    while math.prod(count) > limit:
        longest = count.index(max(count))
        count[longest] -= 1
    return [
        list(range(n)) if c == n else [*range(max(c - 1, 1)), *([n - 1] if c > 1 else [])]
        for n, c in zip(size, count)
    ]


def _indices(visible: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    if not visible:
        yield ()
        return
    for i in visible[0]:
        for rest in _indices(visible[1:]):
            yield (i, *rest)


def _with_gaps(
    shown: Sequence[int], size: int
) -> Iterator[tuple[int, tuple[int, int]] | tuple[None, tuple[int, int]]]:
    """The shown indices, and (None, (first, last)) where some are omitted."""
    expected = 0
    for i in shown:
        if i > expected:
            yield None, (expected, i - 1)
        yield i, (i, i)
        expected = i + 1
    if expected < size:
        yield None, (expected, size - 1)


def _runs(stick: Sequence[Cell]) -> Iterator[tuple[str, int, int]]:
    """Stretches of one kind: (kind, first, last)."""
    kinds = [
        "padding" if cell.offset is None else "outside" if cell.at is None else "element"
        for cell in stick
    ]
    first = 0
    for i, kind in enumerate(kinds):
        if i + 1 == len(kinds) or kinds[i + 1] != kind:
            yield kind, first, i
            first = i + 1


def _key_axis(values: Sequence[Any], room: float) -> list[tuple[int, float, float]]:
    """An axis of the key: (which value, start, size) of each cell, with a gap where values jump."""
    starts = [i for i, b in enumerate(values) if i == 0 or not _follows(values[i - 1], b)]
    if len(starts) > 8:
        starts = [0]
    unit = min(KEY_CELL, (room - KEY_GAP * (len(starts) - 1)) / len(values))
    cells = []
    start = 0.0
    for first, end in zip(starts, [*starts[1:], len(values)]):
        length = (end - first) * unit
        n = min(end - first, max(1, round(length / 4)))  # cells of four pixels or more
        for i in range(n):
            cells.append((first + i * (end - first) // n, start + i * length / n, length / n))
        start += length + KEY_GAP
    return cells


def _apart(at: dict[str, float], room: float) -> list[str]:
    """The labels that can be shown without touching each other; always the first and the last."""
    labels = list(at)
    kept = labels[:1]
    for label in labels[1:-1]:
        if at[label] - at[kept[-1]] >= room and at[labels[-1]] - at[label] >= room:
            kept.append(label)
    if len(labels) > 1:
        kept.append(labels[-1])
    return kept


def _follows(a: Any, b: Any) -> bool:
    """Whether b comes right after a (a row label: in its last coordinate)."""
    if isinstance(a, tuple):
        return not a or (a[:-1] == b[:-1] and a[-1] + 1 == b[-1])
    return bool(a + 1 == b)


# --- Texts ----------------------------------------------------------------------------------------


def _text_width(texts: Iterable[str]) -> float:
    return MONO * max(map(len, texts), default=0)


def _slice(prefix: Sequence[int], colons: int) -> str:
    return "[" + ", ".join([*map(str, prefix), *[":"] * colons]) + "]"


def _list(values: Sequence[Any]) -> str:
    return "[" + ", ".join(map(str, values)) + "]"


def _place(coordinates: Sequence[Any]) -> str:
    return "(" + ", ".join(map(str, coordinates)) + ")"


def _bytes(n: int) -> str:
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if n >= 1024**power:
            return f"{n / 1024**power:.4g} {unit}"
    return f"{n} bytes"
