"""Which sticks each core of a relayout has, against counting elements one by one."""

from __future__ import annotations

import random
from itertools import product
from math import prod

import pytest

from torch_spyre.card_model.core_slices import CoreView, Share, core_view
from torch_spyre.card_model.view_slices import Walk, local_offset, local_storage, view_of


def heads(columns=32, *, writes=False):
    """(8, 12, 128, columns) as heads of (1024, 12 * columns), row-major."""
    width = 12 * columns
    return Walk(
        (8, 12, 128, columns), (128 * width, columns, width, 1), 0,
        (width // 64, 1024, 64), (64, width, 1), 1024 * width, writes,
    )  # fmt: skip


def slices_of(splits):
    """The first dimension varies fastest, as everywhere."""
    return [tuple(reversed(mine)) for mine in product(*map(range, reversed(splits)))]


def test_batches_and_pairs_of_heads_are_rows_and_sticks_of_a_product():
    splits = (4, 6, 1, 1)
    rows = tuple(core % 4 for core in range(24))
    sticks = tuple(core // 4 for core in range(24))
    product_of_24 = core_view(24, [Share(1024, 256, rows), Share(6, 1, sticks)])
    assert view_of(heads(), splits, slices_of(splits)) == product_of_24
    assert view_of(heads(writes=True), splits, slices_of(splits)) == product_of_24


def test_two_heads_of_one_stick_on_two_cores_can_read_it_but_not_write_it():
    splits = (1, 12, 1, 1)
    view = view_of(heads(), splits, slices_of(splits))
    assert view is not None
    assert view == core_view(
        12, [Share(1024, 1024, (0,) * 12), Share(6, 1, tuple(core // 2 for core in range(12)))]
    )
    assert local_offset(heads(), splits, (0, 5, 0, 0)) == 32  # the second head of a stick
    assert view_of(heads(writes=True), splits, slices_of(splits)) is None


def test_three_heads_on_a_core_are_no_plain_share():
    assert view_of(heads(), (1, 4, 1, 1), slices_of((1, 4, 1, 1))) is None
    assert local_storage(heads(), (1, 4, 1, 1)) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"offset": 384},  # begins in the second row
        {"sizes": (7, 12, 128, 32)},  # no batch
        {"strides": (49152, 32, 384, 0)},
    ],
)
def test_a_part_of_a_tensor_is_never_written_in_scratchpads(changed):
    walk = heads(writes=True)._replace(**changed)
    assert view_of(walk, (1, 1, 2, 1), slices_of((1, 1, 2, 1))) is None


def test_padding_of_the_last_stick_does_not_hinder():
    """100 columns in 2 sticks, rows on 5 cores."""
    walk = Walk((10, 100), (100, 1), 0, (2, 10, 64), (64, 100, 1), 1000, True)
    view = view_of(walk, (5, 1), slices_of((5, 1)))
    assert view is not None and view.own_bytes == 2 * 2 * 128
    own = local_storage(walk, (5, 1))
    assert own is not None
    assert (own.device_size, own.stride_map) == ((2, 2, 64), (64, 100, 1))
    assert (own.size, own.stride) == ((2, 100), (100, 1))
    assert view_of(walk, (1, 2), slices_of((1, 2))) is None  # 50 columns are not whole sticks


# ---- Element by element --------------------------------------------------------------------------


def locate(element, device_size, stride_map):
    """(stick, lane) of an element: the device axes are a mixed radix of its offset."""
    index = [0] * len(device_size)
    for j in sorted(range(len(device_size)), key=lambda j: -stride_map[j]):
        if device_size[j] > 1 and stride_map[j] > 0:
            index[j], element = divmod(element, stride_map[j])
            assert index[j] < device_size[j]
    assert element == 0
    stick = 0
    for i, n in zip(index[:-1], device_size[:-1]):
        stick = stick * n + i
    return stick, index[-1]


def elements_of(walk, splits, mine):
    """Storage offsets of a core's points, in order."""
    own = [n // s for n, s in zip(walk.sizes, splits)]
    points = product(*(range(k * n, (k + 1) * n) for k, n in zip(mine, own)))
    return [walk.offset + sum(i * s for i, s in zip(p, walk.strides)) for p in points]


def sticks_by_view(view: CoreView, core: int) -> set[int]:
    """Numbers of the sticks that a view gives to a core, innermost axis first."""
    found, size = {0}, 1
    for share in view.shares:
        first = share.slots[core] * share.own
        found = {n + size * i for n in found for i in range(first, first + share.own)}
        size *= share.entries
    return found


def random_walk(rng):
    """A tensor of some shape in some order of device axes, walked over as a view of it."""
    eps = 4  # lanes of a stick: small, so that few elements cross many borders
    shape = [rng.choice([1, 2, 3, 4, 6, 8]) for _ in range(rng.randint(1, 3))]
    shape.append(rng.choice([2, 4, 6, 8, 12]))
    strides = [prod(shape[i + 1 :]) for i in range(len(shape))]
    stick = rng.randrange(len(shape))
    axes = [(n, s) for d, (n, s) in enumerate(zip(shape, strides)) if d != stick]
    axes.append((-(-shape[stick] // eps), eps * strides[stick]))
    rng.shuffle(axes)
    dims = []
    for n, s in zip(shape, strides):  # the view: some dimensions in two parts
        cuts = [c for c in range(2, n) if n % c == 0]
        cut = rng.choice([n, *cuts])
        dims += [(n // cut, cut * s), (cut, s)] if cut < n else [(n, s)]
    rng.shuffle(dims)
    walk = Walk(
        tuple(n for n, _ in dims), tuple(s for _, s in dims), 0,
        (*(n for n, _ in axes), eps), (*(s for _, s in axes), strides[stick]),
        prod(shape), rng.random() < 0.5,
    )  # fmt: skip
    return walk, tuple(rng.choice([c for c in range(1, n + 1) if n % c == 0]) for n in walk.sizes)


def test_shares_are_the_sticks_that_elements_lie_in():
    rng = random.Random(5)
    plain = cut = 0
    for _ in range(2000):
        walk, splits = random_walk(rng)
        cores = slices_of(splits)
        if len(cores) > 32:
            continue
        view, own = view_of(walk, splits, cores), local_storage(walk, splits)
        assert (view is None) == (own is None)
        places = [
            [locate(e, walk.device_size, walk.stride_map) for e in elements_of(walk, splits, mine)]
            for mine in cores
        ]
        if view is None:
            continue
        plain += 1
        cut += len(cores) > 1
        assert view.all_bytes == 128 * prod(walk.device_size[:-1])
        for core, mine in enumerate(cores):
            sticks = sorted({stick for stick, _ in places[core]})
            assert set(sticks) == sticks_by_view(view, core), (walk, splits)
            assert 128 * prod(own.device_size[:-1]) == view.own_bytes
            # The same points in the share: the same lanes, of sticks in the same order.
            start = local_offset(walk, splits, mine)
            local = walk._replace(
                sizes=tuple(n // s for n, s in zip(walk.sizes, splits)), offset=start
            )
            inside = elements_of(local, (1,) * len(splits), (0,) * len(splits))
            assert [locate(e, own.device_size, own.stride_map) for e in inside] == [
                (sticks.index(stick), lane) for stick, lane in places[core]
            ], (walk, splits, mine)
        if walk.writes:
            written = [stick for core in places for stick in {s for s, _ in core}]
            assert len(written) == len(set(written)), (walk, splits)
    assert plain > 300 and cut > 150
