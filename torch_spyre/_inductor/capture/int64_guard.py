"""Guard on the magnitude of int64 inputs: recompiles when one exceeds the range compiled for.

A graph is specialised on the range class of its int64 inputs (lowering/int_ranges.py): bool, exact
in float32, int32, or wider. Each call checks the class; a wider one recompiles the graph, at most
three times for each input. A narrower one does not.

    positions of 4,096 tokens            specialised on numbers below 2**24
    the same with hashes as positions    recompiled; arithmetic with them falls back to the CPU
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_spyre import _C
from torch_spyre.logs import get_logger
from torch_spyre.on_card import is_on_card

_log = get_logger("spyre.inductor")

Classes = dict[int, int]
"""By the place of an input."""


def classes_of(inputs: Sequence[Any], at_least: Classes | None = None) -> Classes:
    """How large the numbers of int64 inputs are."""
    found: Classes = {}
    for i, value in enumerate(inputs):
        if is_integer_input(value):
            found[i] = max(_C._integer_class(value), (at_least or {}).get(i, 0))
    return found


def is_integer_input(value: Any) -> bool:
    """Whether a graph is specialised on the range of an input."""
    if not isinstance(value, torch.Tensor) or value.dtype is not torch.int64:
        return False
    if isinstance(value, torch._subclasses.FakeTensor):
        return False
    return is_on_card(value) or (value.device.type == "cpu" and type(value) is torch.Tensor)


class IntegerGuard:
    """A compiled graph, recompiled when an input exceeds the range it was specialised on.

    `held` are tensors that the graph keeps; they count as inputs after the others."""

    def __init__(
        self,
        run: Callable[..., Any],
        classes: Classes,
        again: Callable[[Any, Classes], Any],
        held: Sequence[torch.Tensor] = (),
    ) -> None:
        self._run = run
        self._classes = classes
        self._again = again
        self._held = held
        self._lock = threading.RLock()

    def __call__(self, *args: Any) -> Any:
        tensors = (*args, *self._held) if self._held else args
        for i, expected in self._classes.items():
            if _C._integer_class(tensors[i]) > expected:
                self._grow(args)
                break
        return self._run(*args)

    def _grow(self, args: Sequence[Any]) -> None:
        with self._lock:
            classes = classes_of([*args, *self._held], self._classes)
            if classes == self._classes:
                return  # another thread was here
            _log.info("an int64 input has larger numbers than before: compiled again")
            self._run = self._again(args, classes)
            self._classes = classes

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_run":
            raise AttributeError(name)
        return getattr(self._run, name)
