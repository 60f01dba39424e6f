"""Slices of a `relayout`: which sticks of a storage each core reads or writes through a view.

In: the sizes and slices of the operation's dimensions, the strides of the view, and the layout of
the storage (device_size, stride_map). Out: for each device axis the digits of its number, each
walked over by one dimension; from these the CoreView of the tensor, which other operations can
have too, and the layout of one core's share, which the back-end copies from or to. The front-end
and the back-end ask the same questions here.

Example: (8, 12, 128, 32) as heads of a (1024, 384) tensor, device_size [6, 1024, 64]. The axis of
1024 rows has the digits 8 (batch) and 128 (row of a batch), the axis of 6 sticks one: head // 2.
Cut in 4 over the batches and in 6 over the heads, a core has 256 rows of one stick: exactly what it
has of a product that cuts rows in 4 and columns in 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

from torch_spyre.card_model.core_slices import CoreView, Share, core_view


class Walk(NamedTuple):
    """A view of a storage, walked over by the dimensions of an operation."""

    sizes: tuple[int, ...]
    """Of the dimensions."""
    strides: tuple[int, ...]
    """Elements of the storage from one index to the next, by dimension."""
    offset: int
    device_size: tuple[int, ...]
    stride_map: tuple[int, ...]
    elements: int
    """Of the shape that the storage was made for."""
    writes: bool


class Digit(NamedTuple):
    """num * ((i % mod) // den) for the index i of a dimension: part of a coordinate."""

    dim: int
    num: int
    den: int
    mod: int
    """The size of the dimension where there is no modulus."""
    stride: int
    """Elements of the storage from one value to the next."""

    @property
    def values(self) -> int:
        return -(-self.mod // self.den)


class Digits(NamedTuple):
    """The coordinates of a walk: all sticks of the storage, each by one way."""

    axes: tuple[tuple[Digit, ...], ...]
    """Of each device axis but the stick, innermost axis first, innermost digit first."""
    lanes: tuple[Digit, ...]
    first_lane: int


class Part(NamedTuple):
    """What one core has of a digit."""

    own: int
    slots: tuple[int, ...]
    """For each slice of the dimension the number of its share."""


def view_of(walk: Walk, splits: Sequence[int], slices: Sequence[Sequence[int]]) -> CoreView | None:
    """Which part of the storage each core has; None where that is not a plain share of all of it.
    `splits` are the slices of each dimension, `slices` those of each dimension that each core does.
    """
    shares = _shares(walk, tuple(splits))
    if shares is None:
        return None
    axes = [
        Share(digit.values, part.own, tuple([part.slots[mine[digit.dim]] for mine in slices]))
        for axis in shares
        for digit, part in axis
    ]
    return core_view(len(slices), axes)


class LocalStorage(NamedTuple):
    """One core's share as a storage of its own, in which the view has the same strides."""

    device_size: tuple[int, ...]
    stride_map: tuple[int, ...]
    size: tuple[int, ...]
    stride: tuple[int, ...]


def local_storage(walk: Walk, splits: Sequence[int]) -> LocalStorage | None:
    """None where `view_of` is None."""
    shares = _shares(walk, tuple(splits))
    if shares is None:
        return None
    axes: list[tuple[int, int]] = []
    for axis in shares:
        mine: list[tuple[int, int]] = []
        for digit, part in axis:
            if part.own == 1:
                continue
            if mine and mine[-1][0] * mine[-1][1] == digit.stride:
                mine[-1] = (mine[-1][0] * part.own, mine[-1][1])
            else:
                mine.append((part.own, digit.stride))
        axes += mine
    stick, along = walk.device_size[-1], walk.stride_map[-1]
    levels = sorted([(s, n) for n, s in axes] + ([(along, stick)] if along > 0 else []))
    shape = _shape(levels)
    return LocalStorage(
        (*[n for n, _ in reversed(axes)], stick),
        (*[s for _, s in reversed(axes)], along),
        tuple([n for n, _ in shape]),
        tuple([s for _, s in shape]),
    )


def local_offset(walk: Walk, splits: Sequence[int], mine: Sequence[int]) -> int:
    """Where the view of a core begins in its share: slices may begin inside of a stick."""
    digits = _digits(walk)
    assert digits is not None
    lane = digits.first_lane
    for d in digits.lanes:
        lane += d.num * (mine[d.dim] * (walk.sizes[d.dim] // splits[d.dim]) % d.mod // d.den)
    return lane * max(walk.stride_map[-1], 0)


def _shape(levels: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sizes and strides of a shape that has a place in a layout with such axes (strides and sizes,
    in order): each dimension ends where the next one begins."""
    joined: list[tuple[int, int]] = []
    for stride, size in levels:
        if joined and joined[-1][0] * joined[-1][1] == stride:
            joined[-1] = (joined[-1][0], joined[-1][1] * size)
        else:
            joined.append((stride, size))
    ends = [stride for stride, _ in joined[1:]]
    shape = [(min(n, -(-end // s)), s) for (s, n), end in zip(joined, ends)]
    return [*shape, *((n, s) for s, n in joined[-1:])][::-1]


# ---- Digits --------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _shares(
    walk: Walk, splits: tuple[int, ...]
) -> tuple[tuple[tuple[Digit, Part], ...], ...] | None:
    digits = _digits(walk)
    if digits is None:
        return None
    result = []
    for axis in digits.axes:
        mine = []
        for digit in axis:
            part = _part(digit, walk.sizes[digit.dim], splits[digit.dim])
            if part is None:
                return None
            mine.append((digit, part))
        result.append(tuple(mine))
    if walk.writes:  # sticks are written by one core, from their first lane to their last
        for lane in digits.lanes:
            own = walk.sizes[lane.dim] // splits[lane.dim]
            if splits[lane.dim] > 1 and own % lane.mod:
                return None
    return None if _looks_idle(result, walk) else tuple(result)


def _looks_idle(shares: Sequence[Sequence[tuple[Digit, Part]]], walk: Walk) -> bool:
    """Whether a core's share, as a storage, would be taken for one whose rows end inside of a
    stick:
    an axis steps over a whole stick, another one begins before that. The card gives the first no
    meaning then (`stick_axis` in card/address_map.cpp)."""
    lane = walk.stride_map[-1]
    steps = [digit.stride for axis in shares for digit, part in axis if part.own > 1]
    whole = lane * walk.device_size[-1]
    return lane > 0 and whole in steps and any(lane < step < whole for step in steps)


def _part(digit: Digit, size: int, split: int) -> Part | None:
    own, mod, den = size // split, digit.mod, digit.den
    if split == 1 or own % mod == 0:
        return Part(digit.values, (0,) * split)
    if mod % own:
        return None
    if own % den == 0 and mod % den == 0:
        mine = own // den
    elif den % own == 0:
        mine = 1
    else:
        return None
    return Part(mine, tuple([k * own % mod // den // mine for k in range(split)]))


@lru_cache(maxsize=4096)
def _digits(walk: Walk) -> Digits | None:
    """The storage offset taken apart, the axis of the largest stride first; None where a sum would
    carry from one axis into another, or where the view is not all of the storage."""
    if walk.writes and (prod(walk.sizes) != walk.elements or walk.offset):
        return None
    rest = []
    for dim, (size, stride) in enumerate(zip(walk.sizes, walk.strides)):
        if stride < 0 or (walk.writes and stride == 0 and size > 1):
            return None
        if size > 1 and stride > 0:
            rest.append(Digit(dim, stride, 1, size, stride))
    last = len(walk.device_size) - 1
    numbers = [j for j, n in enumerate(walk.device_size) if n > 1 and walk.stride_map[j] > 0]
    offset, first_lane = walk.offset, 0
    found: dict[int, list[Digit]] = {}
    for j in sorted(numbers, key=lambda j: -walk.stride_map[j]):
        divided = _divide(rest, walk.stride_map[j], walk.sizes)
        if divided is None:
            return None
        found[j], rest = divided
        high, offset = divmod(offset, walk.stride_map[j])
        if sum(d.num * (d.values - 1) for d in rest) + offset >= walk.stride_map[j]:
            return None
        if j == last:
            first_lane = high
        elif high:
            return None
    if rest or offset:
        return None
    axes = []
    for j in range(last - 1, -1, -1):
        mine, whole = sorted(found.get(j, ()), key=lambda d: d.num), 1
        for digit in mine:
            if digit.num != whole:
                return None
            whole *= digit.values
        if whole != walk.device_size[j]:
            return None
        axes.append(tuple(mine))
    return Digits(tuple(axes), tuple(found.get(last, ())), first_lane)


def _divide(
    terms: Sequence[Digit], divisor: int, sizes: Sequence[int]
) -> tuple[list[Digit], list[Digit]] | None:
    """Quotient and remainder of terms that nothing has divided yet, term by term."""
    quotient, remainder = [], []
    for term in terms:
        if term.num % divisor == 0:
            quotient.append(term._replace(num=term.num // divisor))
        elif term.num * (term.mod - 1) < divisor:
            remainder.append(term)
        else:
            den = divisor // term.num
            is_whole = term.mod == sizes[term.dim]
            if divisor % term.num or not (is_whole or term.mod % den == 0):
                return None
            quotient.append(term._replace(num=1, den=den, stride=divisor))
            remainder.append(term._replace(mod=den))
    return quotient, remainder
