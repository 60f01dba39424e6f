"""Device strides of an access over a tiled tensor, in integers.

In: an index over iteration symbols (elements of the storage) and a layout. Out: for each device
axis the symbols that move along it, or None when the access cannot be written as coordinates (a
row of 80 elements read as if it were sticks of 64, say). Called for every candidate of a layout, so
it works on plain numbers; the coordinates of an OpSpec are made later (opspec/coordinates.py).

Example: x[200*p0 + p1] in device_size [4, 500, 64], stride_map [64, 200, 1] moves p0 along axis 1
and p1 along axis 0 and in the stick.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

import sympy

from torch_spyre._C import SpyreTensorLayout
from torch_spyre._inductor.operations.index_expressions import Atom, linear_index


@dataclass(frozen=True)
class Walk:
    """A valid access: symbols that move in the stick, and along other axes."""

    stick: sympy.Symbol | None
    """The symbol that counts the elements of a stick; None: always the first element."""
    outer: frozenset[sympy.Symbol]
    """Symbols that move along other axes."""
    size: int = 0
    """With a stick: how many elements of it the access has along the stick's dimension."""
    end: int = 0
    """With a stick: one past the last element along that dimension; -1: in several places."""
    spread: frozenset[sympy.Symbol] = frozenset()
    """Symbols that move along more than one axis; that of whole sticks counts, the stick not."""


@dataclass(frozen=True)
class Axes:
    """The axes of a layout that hold data, by rising stride."""

    strides: tuple[int, ...]
    sizes: tuple[int, ...]
    stick: int
    """Index of the stick axis, or -1: one element per stick."""
    eps: int


@lru_cache(maxsize=4096)
def axes_of(layout: SpyreTensorLayout) -> Axes:
    """The axes of a layout in the order of their strides."""
    size, stride = list(layout.device_size), list(layout.stride_map)
    pairs = sorted((s, n) for s, n in zip(stride, size, strict=True) if s > 0 and n > 1)
    strides = tuple(s for s, _ in pairs)
    stick = strides.index(stride[-1]) if stride[-1] > 0 else -1
    return Axes(strides, tuple(n for _, n in pairs), stick, layout.elems_per_stick())


def walk(
    index: sympy.Expr, ranges: dict[sympy.Symbol, int], layout: SpyreTensorLayout
) -> Walk | None:
    """How the access moves over the layout; None when coordinates cannot express it."""
    return _walk(index, tuple(ranges.items()), layout)


@lru_cache(maxsize=16384)
def _walk(
    index: sympy.Expr, ranges: tuple[tuple[sympy.Symbol, int], ...], layout: SpyreTensorLayout
) -> Walk | None:
    linear = linear_index(index, dict(ranges))
    axes = axes_of(layout)
    levels = len(axes.strides)
    if levels == 0:
        return None if linear.atoms or linear.offset else Walk(None, frozenset())
    # Digits of the storage element in the mixed radix of the strides. The digits of a sum are the
    # sums of the digits only if nothing carries: `reach` is the most that the levels up to one
    # hold.
    constant = [0] * levels
    rest = linear.offset
    for level in range(levels - 1, -1, -1):
        constant[level], rest = divmod(rest, axes.strides[level])
    if rest or linear.offset < 0:
        return None
    digits = list(constant)
    reach = [sum(d * s for d, s in zip(constant[: i + 1], axes.strides)) for i in range(levels)]
    movers: list[list[Atom]] = [[] for _ in range(levels)]
    for atom in linear.atoms:
        if not _distribute(atom, axes, digits, reach, movers):
            return None
    for level in range(levels):
        if level + 1 < levels and reach[level] >= axes.strides[level + 1]:
            return None
        if digits[level] >= axes.sizes[level]:
            return None
    return _classify(axes, movers, constant)


def _distribute(
    atom: Atom, axes: Axes, digits: list[int], reach: list[int], movers: list[list[Atom]]
) -> bool:
    """Distribute an atom over the levels that it moves through."""
    strides, step = axes.strides, atom.coefficient
    if step < strides[0]:
        return False
    start = max(i for i, s in enumerate(strides) if s <= step)
    if step % strides[start]:
        return False
    most = step * (atom.size - 1)
    for level in range(start, len(strides)):
        movers[level].append(atom)
        if level + 1 == len(strides) or most < strides[level + 1]:
            digits[level] += most // strides[level]
            for above in range(level, len(strides)):
                reach[above] += most
            return True
        following = strides[level + 1]
        if following % step:
            return False
        if start == axes.stick and following % (strides[axes.stick] * axes.eps):
            return False  # rows that end inside a stick cannot be read as one row
        digits[level] += (following - step) // strides[level]
        reach[level] += following - step
    return True


def _classify(axes: Axes, movers: list[list[Atom]], constant: list[int]) -> Walk | None:
    if axes.stick < 0:
        return Walk(None, frozenset(a.symbol for atoms in movers for a in atoms))
    in_stick = movers[axes.stick]
    outer = {a.symbol for i, atoms in enumerate(movers) if i != axes.stick for a in atoms}
    if constant[axes.stick] or len(in_stick) > 1:
        return None
    if not in_stick:
        return None  # one lane of a stick that holds several elements
    atom = in_stick[0]
    if atom.coefficient != axes.strides[axes.stick] or not atom.plain:
        return None
    others = frozenset(outer - {atom.symbol})
    end = atom.size
    above = axes.stick + 1
    if above < len(axes.strides) and axes.strides[above] == atom.coefficient * axes.eps:
        end += constant[above] * axes.eps
        if any(a is not atom for a in movers[above]):
            end = -1
    counts = Counter(a.symbol for i, atoms in enumerate(movers) if i != axes.stick for a in atoms)
    spread = frozenset(symbol for symbol, count in counts.items() if count > 1)
    return Walk(atom.symbol, others, atom.size, end, spread)
