"""Routes over the ring: transfers between scratchpads, and their cost.

In: two views of one tensor (`core_views`), one that its sticks are in and one that they are wanted
in. Out: a Route: digits of the stick's number that both views cut at, the transfers between cores,
and the bytes on the ring's links. The front-end prices and writes moves by it, the back-end makes
steps of it.

The number of a stick has digits in a mixed radix, innermost first. A view gives each digit either
to the cores (which core has the stick) or keeps it (where in the scratchpad the stick is). For a
move the digits must be such that they do so in both views; two cuts of which neither divides the
other have none.

Example: 8 sticks over 4 cores, first two by two (core = stick / 2), then every fourth
(core = stick mod 4): the digits are 2, 2 and 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise, product
from typing import NamedTuple

from torch_spyre.card_model.core_slices import CoreView, Share, core_view
from torch_spyre.constants import BYTES_IN_STICK
from torch_spyre.hardware import CARD

MOST_DIGITS = 6
"""That a file of a move has labels for, beside that of the stick."""


class Digit(NamedTuple):
    """Of the number of a stick."""

    size: int
    source: tuple[int, ...] | None
    """For each core the value of its sticks; None where a core has all values."""
    target: tuple[int, ...] | None


class Transfer(NamedTuple):
    """A box of sticks from one scratchpad to another."""

    source: int
    target: int
    """Cores."""
    source_offset: int
    target_offset: int
    """Bytes from where the tensor begins in their scratchpads."""


class BoxAxis(NamedTuple):
    """Of the box that every transfer moves."""

    extent: int
    source_stride: int
    target_stride: int


@dataclass(frozen=True)
class Route:
    digits: tuple[Digit, ...]
    """Innermost first."""
    transfers: tuple[Transfer, ...]
    axes: tuple[BoxAxis, ...]
    """Outermost first."""
    ring_bytes: int
    """Over all links."""
    link_bytes: int
    """Over the busiest one, in its busier direction."""


@lru_cache(maxsize=1 << 12)
def route(source: CoreView, target: CoreView) -> Route | None:
    """How a tensor gets from one view to another; None where no digits suit both."""
    digits = common_digits(source, target)
    if digits is None or len(digits) > MOST_DIGITS:
        return None
    return _route(digits, source, target)


# ---- Digits --------------------------------------------------------------------------------------


def common_digits(source: CoreView, target: CoreView) -> tuple[Digit, ...] | None:
    """The digits that both views cut at."""
    if source.all_bytes != target.all_bytes:
        return None
    bounds = sorted({*_bounds(source), *_bounds(target)})
    if any(high % low for low, high in pairwise(bounds)):
        return None
    found = [
        Digit(high // low, _slots(source, low, high), _slots(target, low, high))
        for low, high in pairwise(bounds)
    ]
    joined: list[Digit] = []
    for digit in found:  # what both keep is one digit
        last = joined[-1] if joined else None
        if last and last[1:] == digit[1:] == (None, None):
            joined[-1] = Digit(last.size * digit.size, None, None)
        else:
            joined.append(digit)
    return tuple(joined)


def _bounds(view: CoreView) -> list[int]:
    """Where digits begin and end, as products of all radices before."""
    bounds, size = [1], 1
    for share in view.shares:
        bounds += [size * share.own, size * share.entries]
        size *= share.entries
    return bounds


def _slots(view: CoreView, low: int, high: int) -> tuple[int, ...] | None:
    """The part of the cores' slots that the digit between two bounds is."""
    size = 1
    for share in view.shares:
        begin, end = size * share.own, size * share.entries
        if begin <= low and high <= end:
            return tuple([slot // (low // begin) % (high // low) for slot in share.slots])
        size = end
    return None


def view_of(cores: int, digits: Sequence[tuple[int, Sequence[int] | None]]) -> CoreView:
    """The view of digits: the size of each, and the cores' values of it."""
    return core_view(
        cores,
        [
            Share(size, size, (0,) * cores) if slots is None else Share(size, 1, tuple(slots))
            for size, slots in digits
        ],
    )


# ---- Transfers -----------------------------------------------------------------------------------


def _route(digits: tuple[Digit, ...], source: CoreView, target: CoreView) -> Route:
    source_strides = _strides(digits, [d.source is None for d in digits])
    target_strides = _strides(digits, [d.target is None for d in digits])
    box = [n for n, d in enumerate(digits) if d.source is None and d.target is None]
    gathered = [n for n, d in enumerate(digits) if d.source is not None and d.target is None]
    holders: dict[tuple[int, ...], list[int]] = {}
    given = [n for n, d in enumerate(digits) if d.source is not None]
    for core in source.holding_cores:
        key = tuple([_value(digits[n].source, core) for n in given])
        holders.setdefault(key, []).append(core)
    # For every core the same: what it gathers, and where a given digit comes from.
    points = [
        (values, sum(value * target_strides[n] for n, value in zip(gathered, values)))
        for values in product(*(range(digits[n].size) for n in gathered))
    ]
    places = [(gathered.index(n) if n in gathered else -1, n) for n in given]
    transfers = []
    for core in target.holding_cores:
        own = {n: digit.target[core] for n, digit in enumerate(digits) if digit.target is not None}
        here = sum(value * source_strides[n] for n, value in own.items())
        for values, there in points:
            having = holders[tuple([values[at] if at >= 0 else own[n] for at, n in places])]
            near = having[0]
            if len(having) > 1:
                near = min(having, key=lambda other: (_distance(other, core), other))
            transfers.append(Transfer(near, core, here, there))
    axes = tuple(
        BoxAxis(digits[n].size, source_strides[n], target_strides[n]) for n in reversed(box)
    )
    size = BYTES_IN_STICK
    for n in box:
        size *= digits[n].size
    return Route(digits, tuple(transfers), axes, *_traffic(transfers, size))


def _strides(digits: Sequence[Digit], kept: Sequence[bool]) -> list[int]:
    strides, stride = [], BYTES_IN_STICK
    for digit, is_kept in zip(digits, kept):
        strides.append(stride if is_kept else 0)
        stride *= digit.size if is_kept else 1
    return strides


def _value(slots: tuple[int, ...] | None, core: int) -> int:
    assert slots is not None
    return slots[core]


def _distance(a: int, b: int) -> int:
    """Hops on the ring, the shorter way round."""
    return min((a - b) % CARD.cores, (b - a) % CARD.cores)


def _traffic(transfers: Sequence[Transfer], size: int) -> tuple[int, int]:
    """Bytes over all links, and over the busiest. What several cores get of one core passes a link
    once: each takes its copy as it goes by."""
    farthest: dict[tuple[int, int], list[int]] = {}
    for t in transfers:
        if t.source == t.target:
            continue
        ahead = (t.target - t.source) % CARD.cores
        reach = farthest.setdefault((t.source, t.source_offset), [0, 0])
        if ahead <= CARD.cores // 2:
            reach[0] = max(reach[0], ahead)
        else:
            reach[1] = max(reach[1], CARD.cores - ahead)
    # A difference array over the links: a reach adds at its first link and ends after its last.
    # Twice around, because it may begin near the end.
    changes = [[0] * (2 * CARD.cores + 1) for _ in range(2)]
    total = 0
    for (source, _), (ahead, back) in farthest.items():
        total += (ahead + back) * size
        changes[0][source] += size
        changes[0][source + ahead] -= size
        changes[1][source - back + CARD.cores + 1] += size
        changes[1][source + CARD.cores + 1] -= size
    links = [
        [first + second for first, second in zip(once[: CARD.cores], once[CARD.cores :])]
        for once in (list(accumulate(change)) for change in changes)
    ]
    return total, max(max(links[0]), max(links[1]))
