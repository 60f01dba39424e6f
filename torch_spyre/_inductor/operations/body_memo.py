"""Memoises traces of loop bodies, and invalidates them when a layout changes.

The body of a node of LoopLevelIR is traced to check it, to choose its layout, for its dependencies
and for the plan. The trace is the same each time, unless Inductor has changed the layout of the
node or of a buffer that it reads in between:

    buf1 reads buf0[p0, p1]    checked with buf0 as (4, 64), strides (64, 1)
                               planned with strides (64, 1): a hit; with (1, 4): traced again
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch._inductor import ir
from torch._inductor.virtualized import V

from torch_spyre._inductor import state

_Known = tuple[Any, tuple[Any, ...], Any]


class BodyMemo(dict[str, _Known]):
    """The memo table: by name of a node; names are unique in a graph."""


def run_once(
    node: ir.ComputedBuffer,
    run: Callable[[ir.ComputedBuffer], Any],
    read_by: Callable[[Any], Iterable[str]],
) -> Any:
    """`run(node)`; what it gave before, if the layouts are those of then. `read_by` tells the names
    of what a result reads."""
    if node.name is None:  # not part of the graph
        return run(node)
    known = state.of(V.graph, BodyMemo)
    found = known.get(node.get_name())
    if found is not None and found[0] is node.data:
        layouts = found[1]
        if all(_layout(name) == layout for name, layout in layouts):
            return found[2]
    result = run(node)
    names = {node.get_name(), *read_by(result)}
    now = tuple([(name, _layout(name)) for name in sorted(names)])
    if all(layout is not None for _, layout in now):
        known[node.get_name()] = (node.data, now, result)
    return result


def _layout(name: str) -> tuple[Any, ...] | None:
    """How a buffer lies; None for one that lies in another, and is found by way of that."""
    buffer = V.graph.try_get_buffer(name)
    if buffer is None:
        return () if name in V.graph.constants else None
    if isinstance(buffer, ir.TensorBox):
        buffer = buffer.data
    layout = buffer.get_layout()
    if type(layout) not in (ir.FixedLayout, ir.FlexibleLayout):
        return None
    return layout.dtype, layout.offset, tuple(layout.size), tuple(layout.stride)
