"""A compilation that is about one eager operation, no graph of the program.

The graph says so itself, in its `meta`; the driver takes it from there into the state of the
compilation, where reports leave such a graph alone and host code leaves the operation's entry:

    operation = wanted(module, {})          # host/single_op.py
    compile_fx(module, inputs)
    operation.entry                         # how to run it without the compiler
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule

from torch_spyre._inductor.state import current

_META = "spyre_eager_operation"


@dataclass
class EagerOperation:
    """What is known of an eager operation, and what host code leaves of it."""

    classes: dict[int, int]
    """Of the int64 inputs, how large their numbers may be: no guard is around the program."""
    entry: dict[str, Any] | None = None


def wanted(module: GraphModule, classes: dict[int, int]) -> EagerOperation:
    """Make the graph one of an eager operation."""
    module.meta[_META] = operation = EagerOperation(classes)
    return operation


def operation_of(module: Any) -> EagerOperation | None:
    """The eager operation that a graph is about, if it is about one."""
    return module.meta.get(_META) if isinstance(module, GraphModule) else None


@contextlib.contextmanager
def holding(module: Any) -> Iterator[None]:
    """Know in this compilation whether its graph is one."""
    operation = operation_of(module)
    if operation is None:
        yield
        return
    with current().holding(operation):
        yield


def compiled() -> EagerOperation | None:
    """The eager operation that this compilation is about, if it is about one."""
    return current().find(EagerOperation)
