"""What one compilation knows: one object, made where a graph comes in, reached from everywhere.

    with compiling():                            # in compile_fx, once for each graph of Dynamo
        ...
        current().get(InputLayouts).by_storage   # of the compilation
        of(V.graph, IntRanges)["buf0"]           # of one graph of Inductor's within it

Each stage defines the class of what it keeps; `get` and `of` make it on first use. So this module
imports no stage, and what is known ends with the compilation, or with the graph that it is about.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")


class CompileState:
    """What is known about one compilation, one object for each class of knowledge."""

    def __init__(self) -> None:
        self._known: dict[type, Any] = {}

    def get(self, kind: type[T]) -> T:
        """What a stage keeps; an empty one at first."""
        if kind not in self._known:
            self._known[kind] = kind()
        return self._known[kind]

    def find(self, kind: type[T]) -> T | None:
        """What a stage keeps, if it keeps something."""
        return self._known.get(kind)

    @contextlib.contextmanager
    def holding(self, value: Any) -> Iterator[None]:
        """Know `value` as what is kept of its class, for as long as the block takes."""
        assert is_compiling(), "outside of a compilation there is no state to hold it"
        kind = type(value)
        before = self._known.get(kind)
        self._known[kind] = value
        try:
            yield
        finally:
            self._known.pop(kind)
            if before is not None:
                self._known[kind] = before


_compilation: ContextVar[CompileState | None] = ContextVar("spyre_compilation", default=None)


def current() -> CompileState:
    """The compilation of a graph with spyre tensors that this thread is in."""
    found = _compilation.get()
    return CompileState() if found is None else found  # nothing is known outside of one


def is_compiling() -> bool:
    """Whether this thread is compiling a graph with spyre tensors."""
    return _compilation.get() is not None


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """What runs inside compiles a graph with spyre tensors. Inductor calls itself: within one
    compilation this changes nothing."""
    if is_compiling():
        yield
        return
    before = _compilation.set(CompileState())
    try:
        yield
    finally:
        _compilation.reset(before)


_ATTRIBUTE = "_spyre_state"


def of(graph: Any, kind: type[T]) -> T:
    """What a stage keeps about a graph of Inductor's (GraphLowering).

    Inductor hands nothing but that object from hook to hook and makes several for one compilation
    (backward, subgraphs), so the state is an attribute of it: this is the only place that sets one.
    """
    known: CompileState | None = vars(graph).get(_ATTRIBUTE)
    if known is None:
        known = CompileState()
        setattr(graph, _ATTRIBUTE, known)
    return known.get(kind)


def forget(graph: Any) -> None:
    """Nothing is known about a graph any more: its lowering starts over."""
    vars(graph).pop(_ATTRIBUTE, None)
