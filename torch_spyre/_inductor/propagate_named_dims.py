"""Named dimensions: declared by the program, propagated by the compiler.

    declare_tensor_dim("M", 512)             # once, before the graph is compiled
    name_tensor_dims(x, ["M", "K"])

Documented entry point. A list of names may be longer than the rank: dimensions that were flattened
have the names of their parts, joined by `*`. `planning/named_dims.py` carries them through graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch.utils.weak import WeakIdKeyDictionary

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
