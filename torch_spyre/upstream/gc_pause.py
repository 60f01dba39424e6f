"""No search for garbage while something is compiled.

The search goes over all objects of the process again and again, a tenth of the time that a compiler
takes, and what a graph is made of is alive until the end. Dynamo tells when it begins and ends:

    with collections_paused():
        ...

Objects that were made meanwhile count as old ones afterwards. One search among all of them, right
when the compiler is done, would cost most of what was saved; that of old objects comes by itself
when there are enough new ones.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Iterator
from typing import Any

import torch

from torch_spyre.constants import DEVICE_NAME


@contextlib.contextmanager
def collections_paused() -> Iterator[None]:
    """Nothing is collected inside; nothing changes where someone else has switched it off."""
    if not gc.isenabled():
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


def pause_while_dynamo_compiles(callback: Any) -> None:
    """Wrap what Dynamo does around each compilation, once a card has started.

    Callbacks that are registered there are lost with each `torch._dynamo.reset`.
    Fails when it can go: test_a_reset_of_dynamo_forgets_what_is_called_back.
    """
    handler = callback.CompilationCallbackHandler
    stock = handler.install_callbacks

    @contextlib.contextmanager
    @functools.wraps(stock)
    def install_callbacks(self: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
        used = torch.get_device_module(DEVICE_NAME).is_initialized()
        paused = collections_paused() if used else contextlib.nullcontext()
        with paused, stock(self, *args, **kwargs):
            yield

    handler.install_callbacks = install_callbacks
