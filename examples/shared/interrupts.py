"""Ctrl-C that is not lost.

Python raises KeyboardInterrupt wherever it happens to be. Inside of a library that catches
everything, as some do while they import optional parts, it ends there. `check`, called between the
parts of a run, raises it again.

    with noticed():
        load()      # may swallow it
        check()
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_seen = threading.Event()


@contextlib.contextmanager
def noticed() -> Iterator[None]:
    """Until its end interrupts are remembered. Python has them in its first thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        _seen.clear()


def check() -> None:
    """Raise KeyboardInterrupt if there was one."""
    if _seen.is_set():
        raise KeyboardInterrupt


def _interrupt(number: int, frame: FrameType | None) -> None:
    _seen.set()
    raise KeyboardInterrupt
