"""Names of dimensions: given to tensors by the program, carried along by the compiler.

    declare_tensor_dim("M", 512)             # once, before the graph is compiled
    name_tensor_dims(x, ["M", "K"])

In: operations in order, over buffers of which some are named inputs. Out: for each operation the
names of its symbols. A view is an index expression here, so names go through views by strides: a
symbol that walks over a buffer with the stride and the size of a named dimension has its name, and
gives it to the result. A list of names may be longer than the rank: dimensions that were flattened
have the names of their parts, joined by `*`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import sympy
import torch
from torch.utils.weak import WeakIdKeyDictionary

from torch_spyre._inductor.errors import UnsupportedAccess
from torch_spyre._inductor.layouts.access_walk import linear_index
from torch_spyre._inductor.operations.operation import Access, Buffer, Operation

_sizes: dict[str, int] = {}
_names: WeakIdKeyDictionary = WeakIdKeyDictionary()


def declare_tensor_dim(name: str, size: int) -> None:
    """Say that there is a dimension of this name and size."""
    if not isinstance(name, str) or not name or "*" in name:
        raise ValueError(f"a name of a dimension is a text without '*', got {name!r}")
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ValueError(f"the size of {name!r} is a whole number from 1 on, got {size!r}")
    _sizes[name] = size


def name_tensor_dims(tensor: torch.Tensor, names: Sequence[str]) -> None:
    """Name the dimensions of a tensor, outermost first. Call it before the graph is compiled."""
    if torch.compiler.is_compiling():
        raise RuntimeError("name_tensor_dims() names inputs: call it outside of compiled code")
    check_declared(names)
    _names[tensor] = tuple(_grouped(tuple(tensor.shape), list(names)))


def check_declared(names: Sequence[str]) -> None:
    """Refuse names that no dimension has."""
    unknown = [name for name in names if name not in _sizes]
    if unknown:
        raise KeyError(
            f"no dimension is named {', '.join(map(repr, unknown))}: declare_tensor_dim(name, size)"
            f" comes first; declared: {', '.join(map(repr, _sizes)) or 'none'}"
        )


def _grouped(shape: tuple[int, ...], names: list[str]) -> list[str]:
    """One name for each dimension; several names whose sizes multiply to it are joined."""
    result = []
    rest = list(names)
    for size in shape:
        group: list[str] = []
        while rest and (not group or prod(_sizes[n] for n in group) < size):
            group.append(rest.pop(0))
        if prod(_sizes[n] for n in group) != size:
            sizes = ", ".join(f"{n} {_sizes[n]}" for n in names)
            raise ValueError(
                f"the names {names} do not fit a tensor of shape {list(shape)}: declared sizes are "
                f"{sizes}"
            )
        result.append("*".join(group))
    if rest:
        raise ValueError(f"the names {rest} are left over for a tensor of shape {list(shape)}")
    return result


Named = tuple[tuple[int, int, str], ...]
"""For each dimension of more than one element: stride, size, name."""


def names_of_tensor(tensor: torch.Tensor) -> Named:
    """The names that a real tensor was given."""
    names = _names.get(tensor)
    if names is None:
        return ()
    dims = zip(tensor.stride(), tensor.shape, names, strict=True)
    return tuple((int(s), int(n), name) for s, n, name in dims if n > 1)


def named_dims(size: Sequence[int], stride: Sequence[int], names: Sequence[str]) -> Named:
    """Names of a tensor that the program makes out of nothing."""
    grouped = _grouped(tuple(size), list(names))
    return tuple(
        (int(s), int(n), name) for s, n, name in zip(stride, size, grouped, strict=True) if n > 1
    )


# ---- Through a graph -----------------------------------------------------------------------------


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
    """The name of dimensions that a view has as one: those that lie behind one another."""
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
