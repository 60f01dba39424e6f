"""Pauses Python's garbage collector while a graph with spyre tensors is compiled.

The cyclic collector goes over all objects of the process again and again, a tenth of the time that
a compiler takes, and what a graph is made of is alive until the end:

    with collections_paused():
        ...

Objects that were made meanwhile join the oldest generation. A collection right when the compiler is
done would cost most of what was saved; one of the oldest generation comes by itself.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

from torch_spyre.upstream.install import is_on


@contextlib.contextmanager
def collections_paused() -> Iterator[None]:
    """Nothing is collected inside; nothing changes where someone else has switched it off."""
    if not gc.isenabled() or not is_on("collections-paused"):
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():  # else someone has frozen objects, which must stay so
            gc.freeze()
            gc.unfreeze()  # into the oldest generation
        gc.enable()
