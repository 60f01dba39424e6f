"""Moves between scratchpads: every stick arrives where the other view wants it."""

from __future__ import annotations

import random
from itertools import product
from math import prod

import pytest

from torch_spyre.card_model.core_slices import CoreView, Share, core_view, trimmed
from torch_spyre.card_model.ring import common_digits, route, view_of
from torch_spyre.constants import BYTES_IN_STICK


def holds(view: CoreView) -> dict[int, dict[int, int]]:
    """For each core which stick is at which place of its scratchpad, straight from the shares."""
    result: dict[int, dict[int, int]] = {core: {} for core in view.holding_cores}
    for entries in product(*(range(s.entries) for s in view.shares)):
        number = at = 0
        size = own = 1
        for entry, share in zip(entries, view.shares):
            number += entry * size
            at += entry % share.own * own
            size, own = size * share.entries, own * share.own
        for core in result:
            slots = [e // s.own for e, s in zip(entries, view.shares)]
            if slots == [s.slots[core] for s in view.shares]:
                result[core][at] = number
    return result


def moved(source: CoreView, target: CoreView) -> dict[int, dict[int, int]]:
    way = route(source, target)
    assert way is not None
    before = holds(source)
    result: dict[int, dict[int, int]] = {core: {} for core in target.holding_cores}
    for t in way.transfers:
        for index in product(*(range(a.extent) for a in way.axes)):
            here = t.source_offset + sum(i * a.source_stride for i, a in zip(index, way.axes))
            there = t.target_offset + sum(i * a.target_stride for i, a in zip(index, way.axes))
            result[t.target][there // BYTES_IN_STICK] = before[t.source][here // BYTES_IN_STICK]
    return result


def random_view(rng: random.Random, sizes: list[int], cores: int) -> CoreView:
    """Some axes over some of the cores, in any numbering; cores that are left have copies."""
    shares, apart = [], 1
    for size in sizes:
        cuts = [n for n in range(1, size + 1) if size % n == 0 and cores % (apart * n) == 0]
        cut = rng.choice(cuts)
        shares.append(Share(size, size // cut, tuple(c // apart % cut for c in range(cores))))
        apart *= cut
    return core_view(cores, shares)


@pytest.mark.parametrize("seed", range(40))
def test_every_stick_arrives(seed):
    rng = random.Random(seed)
    sizes = [rng.choice([1, 2, 4, 6, 8]) for _ in range(3)]
    source = random_view(rng, sizes, rng.choice([2, 4, 8]))
    target = random_view(rng, sizes, rng.choice([2, 4, 8]))
    if route(source, target) is None:
        pytest.skip("one cut in 2 and one in 3 of the same axis have no digits in common")
    assert moved(source, target) == holds(target)


def test_cuts_that_do_not_divide_each_other_have_no_move():
    thirds = core_view(3, [Share(6, 2, (0, 1, 2))])
    halves = core_view(2, [Share(6, 3, (0, 1))])
    assert common_digits(thirds, halves) is None and route(thirds, halves) is None


def test_what_one_core_has_goes_to_all_and_passes_each_link_once():
    one = core_view(4, [Share(8, 8, (0,) * 4)], holders=(0,))
    every = core_view(4, [Share(8, 8, (0,) * 4)])
    way = route(one, every)
    assert moved(one, every) == holds(every)
    assert way.ring_bytes == 3 * 8 * BYTES_IN_STICK  # over the links 0-1, 1-2 and 2-3
    assert way.link_bytes == 8 * BYTES_IN_STICK


def test_parts_that_are_exchanged_by_neighbours_take_one_hop_each():
    ahead = core_view(2, [Share(4, 2, (0, 1))])
    back = core_view(2, [Share(4, 2, (1, 0))])
    way = route(ahead, back)
    assert moved(ahead, back) == holds(back)
    assert (way.ring_bytes, way.link_bytes) == (4 * BYTES_IN_STICK, 2 * BYTES_IN_STICK)


def test_digits_of_a_view_make_that_view_again():
    rng = random.Random(7)
    for _ in range(50):
        sizes = [rng.choice([1, 2, 3, 4, 8]) for _ in range(3)]
        a, b = random_view(rng, sizes, 8), random_view(rng, sizes, 8)
        digits = common_digits(a, b)
        if digits is None:
            continue
        assert prod(d.size for d in digits) * BYTES_IN_STICK == a.all_bytes
        assert view_of(8, [(d.size, d.source) for d in digits]) == a
        assert view_of(8, [(d.size, d.target) for d in digits]) == b


def test_views_of_the_same_parts_on_the_same_cores_are_equal_when_trimmed():
    slots = (0, 1, 0, 1, 0, 1, 0, 1)
    summed = core_view(8, [Share(4, 2, slots)], holders=(0, 1))  # the others added up with them
    assert trimmed(summed) == core_view(2, [Share(4, 2, (0, 1))])
    spread = core_view(8, [Share(4, 2, (0, 0, 0, 0, 1, 1, 1, 1))], holders=(0, 4))
    assert trimmed(spread) == core_view(5, [Share(4, 2, (0, 0, 0, 0, 1))], holders=(0, 4))
    assert trimmed(spread) != trimmed(summed)
    assert holds(trimmed(spread)) == holds(spread) and holds(trimmed(summed)) == holds(summed)
