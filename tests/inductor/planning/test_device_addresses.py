"""Where intermediates lie in device memory: no two that live at the same time share a byte."""

from __future__ import annotations

import random
from typing import Any

from torch_spyre._inductor.planning import device_addresses
from torch_spyre._inductor.planning.device_addresses import Life, assign_addresses

STICK = 128
APART = device_addresses._REUSE_AFTER + 1


def sharing(lives: dict[Any, Life], addresses: dict[Any, int]) -> list[tuple[Any, Any]]:
    """Pairs that live at one time, with the time between them, and share bytes."""
    names = sorted(lives)
    return [
        (a, b)
        for i, a in enumerate(names)
        for b in names[:i]
        if lives[a].first < lives[b].last + APART
        and lives[b].first < lives[a].last + APART
        and addresses[a] < addresses[b] + lives[b].bytes
        and addresses[b] < addresses[a] + lives[a].bytes
    ]


def most_at_once(lives: dict[Any, Life]) -> int:
    times = range(max(life.last for life in lives.values()) + APART)
    return max(sum(x.bytes for x in lives.values() if x.first <= t < x.last + APART) for t in times)


def test_random_buffers_share_what_they_may_and_nothing_else():
    rng = random.Random(5)
    worse = better = 0
    for _ in range(150):
        lives: dict[Any, Life] = {}
        for name in range(rng.randint(1, 14)):
            first = rng.randint(0, 60)
            lives[name] = Life(first, first + rng.randint(0, 25), STICK * rng.randint(1, 12))
        found = assign_addresses(lives)
        assert not sharing(lives, found.addresses)
        assert all(at % STICK == 0 for at in found.addresses.values())
        assert found.bytes == max(found.addresses[n] + lives[n].bytes for n in lives)
        assert most_at_once(lives) <= found.bytes <= device_addresses._in_order(lives).bytes
        better += found.bytes < device_addresses._in_order(lives).bytes
        worse += found.bytes > most_at_once(lives)
    assert better > 15  # the search of scratchpads is of use
    assert worse < 15


def test_a_gap_between_two_long_lives_is_avoided():
    """In the order of time the short one leaves a hole below the long one, and what comes next is
    too large for it."""
    lives: dict[Any, Life] = {
        "short": Life(0, 0, 4 * STICK),
        "long": Life(1, 60, STICK),
        "large": Life(40, 60, 5 * STICK),
    }
    assert device_addresses._in_order(lives).bytes == 10 * STICK
    found = assign_addresses(lives)
    assert found.bytes == 6 * STICK and not sharing(lives, found.addresses)


def test_nothing_needs_no_room():
    assert assign_addresses({}) == device_addresses.Pool({}, 0)
