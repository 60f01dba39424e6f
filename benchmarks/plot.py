"""The picture of a table of ratios: one line per row, one mark per peer, on a logarithmic axis.

In: results. Out: the text of an SVG file that needs no fonts, styles or scripts from elsewhere and
stands on an opaque sheet, so that light and dark pages both do. A mark left of the line at 1 means
that the card took less time than the peer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from benchmarks.pages import quantity
from benchmarks.results import Result, geometric_mean

MARGIN, ROW, AXIS = 24, 26, 520
TOP = 124  # title, key, numbers of the axis
SANS = 6.6  # about the advance of a character of the 12-pixel font

# Peers in the order of the table: colours that differ in lightness too, and a shape each.
MARKS = (("#1d4ed8", "circle"), ("#ea580c", "square"), ("#60a5fa", "diamond"), ("#fdba74", "cross"))

STYLE = """
text{font:12px system-ui,'Segoe UI','DejaVu Sans',Helvetica,Arial,sans-serif;fill:#334155}
.h{font-size:16px;font-weight:600;fill:#0f172a}
.n{font:11px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:#64748b}
.b{font-weight:600;fill:#0f172a}
.d{fill:#7c8aa0}
.e{text-anchor:end}
.m{text-anchor:middle}
"""


def ratios(results: Sequence[Result], title: str = "Time on the card over time on the CPU") -> str:
    """Draw every ratio of every row, and the geometric mean of each peer below them."""
    return _Picture(results, title).svg()


class _Picture:
    def __init__(self, results: Sequence[Result], title: str) -> None:
        self.results, self.title = results, title
        self.peers = list(results[0].peers)
        if len(self.peers) > len(MARKS):
            raise ValueError(f"at most {len(MARKS)} peers can be told apart: {self.peers}")
        self.means = {
            peer: geometric_mean(r.ratio(peer) for r in results if peer in r.peers)
            for peer in self.peers
        }
        every = [result.ratio(peer) for result in results for peer in result.peers]
        self.low, self.high = _ends(min(every), max(every))
        names = [*(result.name for result in results), "geometric mean"]
        self.left = MARGIN + SANS * max(map(len, names)) + 12
        self.right = self.left + AXIS
        self.width = round(self.right + 86 + MARGIN)
        self.bottom = TOP + ROW * (len(results) + 1) + 8
        self.out: list[str] = []

    def svg(self) -> str:
        self._text(MARGIN, 38, self.title, "h")
        self._draw_key(62)
        self._draw_axis()
        for i, result in enumerate(self.results):
            values = {peer: result.ratio(peer) for peer in result.peers}
            self._draw_row(TOP + ROW * i, result.name, values, quantity(result.ours, result.unit))
        self._draw_row(self.bottom - ROW, "geometric mean", self.means, "", "b")
        height = round(self.bottom + 34)
        head = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{height}" '
            f'viewBox="0 0 {self.width} {height}" role="img" aria-label="{escape(self.title)}">',
            f"<title>{escape(self.title)}</title>",
            f"<style>{STYLE}</style>",
            f'<rect x=".5" y=".5" width="{self.width - 1}" height="{height - 1}" rx="10" '
            'fill="#fff" stroke="#e2e8f0"/>',
        ]
        return "\n".join([*head, *self.out, "</svg>"]) + "\n"

    def _draw_key(self, y: float) -> None:
        x: float = MARGIN
        for peer, (colour, shape) in zip(self.peers, MARKS):
            self._mark(x + 6, y, colour, shape)
            self._text(x + 18, y + 4, peer)
            x += 18 + SANS * len(peer) + 22

    def _draw_axis(self) -> None:
        one = self._x(1)
        self.out.append(
            f'<path d="M{self.left:g} {TOP - 6}H{one:g}V{self.bottom:g}H{self.left:g}z" '
            'fill="#f0fdf4"/>'
        )
        for value in _ticks(self.low, self.high):
            x = self._x(value)
            colour = "#64748b" if value == 1 else "#e2e8f0"
            self.out.append(f'<path d="M{x:g} {TOP - 6}V{self.bottom:g}" stroke="{colour}"/>')
            self._text(x, TOP - 12, f"{value:g}", "n m")
        self._text(self.right + 86, TOP - 12, "spyre", "n e")
        self._text(one - 8, self.bottom + 18, "← the card is faster", "d e")
        self._text(one + 8, self.bottom + 18, "the CPU is faster →", "d")

    def _draw_row(
        self, y: float, name: str, values: dict[str, float], ours: str, style: str = ""
    ) -> None:
        middle = y + ROW / 2
        self._text(self.left - 12, middle + 4, name, f"{style} e".strip())
        xs = [self._x(value) for value in values.values()]
        self.out.append(
            f'<path d="M{min(xs):g} {middle:g}H{max(xs):g}" stroke="#cbd5e1" stroke-width="2"/>'
        )
        # The first peer is what the promises are about: it is drawn last, above the others.
        for peer, (colour, shape) in reversed(list(zip(self.peers, MARKS))):
            if peer in values:
                tip = f"{name}: {values[peer]:.2f} of {peer}"
                self._mark(self._x(values[peer]), middle, colour, shape, tip)
        self._text(self.right + 86, middle + 4, ours, "n e")

    def _mark(self, x: float, y: float, colour: str, shape: str, tip: str = "") -> None:
        title = f"<title>{escape(tip)}</title>" if tip else ""
        edge = 'stroke="#fff" stroke-width="1"'
        if shape == "circle":
            self.out.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5.5" fill="{colour}" {edge}>{title}</circle>'
            )
            return
        path = {
            "square": "m-4.5 -4.5h9v9h-9z",
            "diamond": "m0 -6l6 6l-6 6l-6 -6z",
            "cross": "m-5 -2v4h3v3h4v-3h3v-4h-3v-3h-4v3z",
        }[shape]
        self.out.append(f'<path d="M{x:.1f} {y:.1f}{path}" fill="{colour}" {edge}>{title}</path>')

    def _x(self, ratio: float) -> float:
        span = math.log(self.high / self.low)
        return self.left + AXIS * math.log(ratio / self.low) / span

    def _text(self, x: float, y: float, text: str, cls: str = "") -> None:
        attr = f' class="{cls}"' if cls else ""
        self.out.append(f'<text x="{x:g}" y="{y:g}"{attr}>{escape(text)}</text>')


def _ends(low: float, high: float) -> tuple[float, float]:
    """Ends of the axis: numbers of the ticks, with 1 and all values between them."""
    low, high = min(low, 0.5), max(high, 2.0)
    steps = [m * 10.0**e for e in range(-6, 7) for m in (1, 2, 5)]
    return max(s for s in steps if s <= low), min(s for s in steps if s >= high)


def _ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, ...; over more than three decades only their beginnings."""
    mantissas = (1, 2, 5) if high / low <= 1000 else (1,)
    steps = [round(m * 10.0**e, 9) for e in range(-6, 7) for m in mantissas]
    return [s for s in steps if low * 0.999 <= s <= high * 1.001]
