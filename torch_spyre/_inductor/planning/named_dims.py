"""Propagates names of dimensions through a graph (`propagate_named_dims.py` declares them).

In: operations in order, over buffers of which some are named inputs. Out: for each operation the
names of its symbols. A view is an index expression here, so names go through views by strides: a
symbol that walks over a buffer with the stride and the size of a named dimension has its name, and
gives it to the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy

from torch_spyre._inductor.errors import UnsupportedAccess
from torch_spyre._inductor.operations.index_expressions import linear_index
from torch_spyre._inductor.operations.operation import Access, Buffer, Operation
from torch_spyre._inductor.propagate_named_dims import named_dims


def propagate(operations: Sequence[Operation]) -> list[dict[sympy.Symbol, str]]:
    """For each operation the names of its symbols, as far as they are known."""
    known: dict[Buffer, dict[tuple[int, int], str]] = {}
    result = []
    for op in operations:
        names: dict[sympy.Symbol, str] = {}
        for access in (*op.inputs, *op.gather.values(), op.output):
            for symbol, dim in _walked(access, op):
                dims = _names_in(access.buffer, known)
                name = dims.get(dim) or _joined(dims, *dim)
                if name is not None:
                    names.setdefault(symbol, name)
        own = known.setdefault(op.output.buffer, {})
        if op.origin.named_dims and all(a.buffer.is_constant for a in op.inputs):
            named = named_dims(op.output.buffer.size, op.output.buffer.stride, op.origin.named_dims)
            for symbol, dim in _walked(op.output, op):
                for stride, size, name in named:
                    if (stride, size) == dim:
                        names[symbol] = name
        for symbol, dim in _walked(op.output, op):
            if symbol in names:
                own.setdefault(dim, names[symbol])
        result.append(names)
    return result


def _walked(access: Access, op: Operation) -> list[tuple[sympy.Symbol, tuple[int, int]]]:
    """Symbols that walk over a dimension, with its stride and size."""
    try:
        atoms = linear_index(access.index, op.ranges).atoms
    except UnsupportedAccess:
        return []  # a gathered row: no dimension is walked over
    return [(a.symbol, (a.coefficient, op.ranges[a.symbol])) for a in atoms if a.plain]


def _joined(dims: Mapping[tuple[int, int], str], stride: int, size: int) -> str | None:
    """The name of dimensions that a view has collapsed into one."""
    for (step, own), name in dims.items():
        if step == stride and own > 1 and size % own == 0 and size > own:
            outer = (stride * own, size // own)
            rest = dims.get(outer) or _joined(dims, *outer)
            if rest is not None:
                return f"{rest}*{name}"
    return None


def _names_in(
    buffer: Buffer, known: Mapping[Buffer, dict[tuple[int, int], str]]
) -> dict[tuple[int, int], str]:
    if buffer in known:
        return known[buffer]
    own = {(stride, size): name for stride, size, name in buffer.dim_names}
    if buffer.hoisted is not None:
        # A copy of a parameter: the same dimensions with strides of their own.
        copy = buffer.hoisted
        source = {(s, n): name for s, n, name in copy.source.dim_names}
        for size, before, now in zip(copy.size, copy.stride, buffer.stride, strict=False):
            if (before, size) in source:
                own[now, size] = source[before, size]
    return own
