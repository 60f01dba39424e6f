"""A progress bar in a terminal, a line of percentages elsewhere.

with Progress("embedding", 40) as progress:
    for batch in batches:
        ...
        progress.advance()
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

from examples.shared import interrupts

_BAR = 28
_MARKS = (25, 50, 75, 100)


class Progress:
    """Counts steps to `total`; `note` stands behind the bar and at the end of the line."""

    def __init__(self, label: str, total: int, stream: TextIO | None = None) -> None:
        self.label = f"{label:<12}"
        self.total = total
        self.done = 0
        self.note = ""
        self._stream = sys.stdout if stream is None else stream
        self._live = self._stream.isatty()
        self._start = time.perf_counter()

    def __enter__(self) -> Progress:
        self._show(0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        tail = f"  {self.note}" if self.note and kind is None and not self._live else ""
        print(tail, file=self._stream, flush=True)

    def advance(self, note: str = "") -> None:
        """One step is done."""
        interrupts.check()
        before, self.done, self.note = self.done, self.done + 1, note
        self._show(before)

    def _show(self, before: int) -> None:
        share = self.done / self.total if self.total else 1.0
        if self._live:
            full = round(share * _BAR)
            bar = "█" * full + "░" * (_BAR - full)
            text = f"\r{self.label}{bar} {self.done}/{self.total}  {self.note}\x1b[K"
        elif self.done == 0:
            text = self.label.rstrip()
        else:
            passed = [m for m in _MARKS if before * 100 < m * self.total <= self.done * 100]
            text = "".join(f" {m}%" for m in passed)
        print(text, end="", file=self._stream, flush=True)
