"""Dynamo: what it asks and prepares for logs alone, and a scalar that it misses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_Function = Callable[..., Any]


def narrow(functions: set[Any], methods: set[str]) -> tuple[set[Any], set[str]]:
    """`x.narrow(dim, start, length)` with a `start` in device memory, in one graph.

    With `capture_scalar_outputs` the start becomes a symbol that Dynamo then misses in the result,
    whose offset is a symbol of its own. PyTorch lists the functions of which it must not expect
    that; of a start on the CPU it knows the number, so narrow is not among them.
    """
    return functions | {torch.narrow}, methods | {"narrow"}
