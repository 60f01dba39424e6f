"""What stays in scratchpads by the estimate, and what copies and moves take: worked by hand."""

from __future__ import annotations

import pytest

from torch_spyre._inductor.planning.scratchpad.estimate import (
    arrange,
    copy_us,
    estimate,
    is_loadable,
    move_us,
    uses_in_order,
)
from torch_spyre.card_model.core_slices import CoreView, Share, core_view

CORES = 4
LIMIT = 1 << 20
MEMORY, START, PORT = 204_800, 0.88, 128 * 1500


def rows(entries: int = 1024) -> CoreView:
    """Each core has a stretch of the rows."""
    return core_view(CORES, [Share(entries, entries // CORES, tuple(range(CORES)))])


def backwards(entries: int = 1024) -> CoreView:
    """The same, and the last core has the first rows."""
    return core_view(CORES, [Share(entries, entries // CORES, tuple(reversed(range(CORES))))])


def every_core(entries: int = 1024) -> CoreView:
    """Each core has all of it."""
    return core_view(CORES, [Share(entries, entries, (0,) * CORES)])


def first_core(entries: int = 1024) -> CoreView:
    """A sum: the first core has it."""
    return core_view(CORES, [Share(entries, entries, (0,) * CORES)], holders=(0,))


def bytes_of(entries: int) -> int:
    return entries * 128


def test_a_copy_takes_the_time_of_memory_or_of_the_port_and_a_start() -> None:
    assert copy_us(rows()) == pytest.approx(bytes_of(1024) / MEMORY + START)
    # All on each core: the port takes 4 times its share, in and out.
    assert copy_us(every_core()) == pytest.approx(2 * bytes_of(1024) / PORT + START)


def test_what_is_not_one_part_on_one_core_is_not_loaded() -> None:
    assert is_loadable(rows()) and not is_loadable(every_core()) and not is_loadable(first_core())


def test_a_buffer_with_one_view_stays_for_nothing() -> None:
    view = rows()
    found = estimate((view, view, view), (0, 1, 2), True, False, LIMIT)
    assert found.in_lx == (True, True, True) and found.us == 0


def test_what_comes_from_memory_or_must_be_there_is_copied_once() -> None:
    view = rows()
    for is_written, in_memory in ((True, True), (False, True), (False, False)):
        found = estimate((view, view), (0, 1), is_written, in_memory, LIMIT)
        assert found.in_lx == (True, True) and found.us == pytest.approx(copy_us(view))


def test_a_reader_elsewhere_costs_a_copy_to_memory_for_the_others() -> None:
    view = rows()
    found = estimate((view, view, None), (0, 1, 2), True, False, LIMIT)
    assert found.in_lx == (True, True, False) and found.us == pytest.approx(copy_us(view))


def test_what_does_not_fit_or_is_used_at_one_time_stays_in_memory() -> None:
    view = rows()
    small = view.own_bytes - 1
    assert estimate((view, view), (0, 1), True, False, small).in_lx == (False, False)
    assert estimate((view, view), (3, 3), False, True, LIMIT).in_lx == (False, False)
    assert estimate((None, None), (0, 1), True, False, LIMIT).us == 0


def test_the_view_of_the_writer_comes_first_and_of_readers_the_most_frequent() -> None:
    a, b = rows(), backwards()
    written = arrange((a, b, b), (0, 1, 2), True, LIMIT, False)
    assert [(f.root, f.uses, f.written) for f in written] == [(b, (1, 2), False)]
    readers = arrange((a, b, b), (0, 1, 2), False, LIMIT, False)
    assert [(f.root, f.uses) for f in readers] == [(b, (1, 2))]


def test_a_move_over_the_ring_brings_it_to_who_wants_another_part() -> None:
    a, b = rows(), backwards()
    moved = move_us(a, b)
    assert moved is not None and moved <= copy_us(b)
    found = estimate((a, b), (0, 1), True, False, LIMIT)
    assert found.in_lx == (True, True) and found.us == pytest.approx(moved)
    without = estimate((a, b), (0, 1), True, False, LIMIT, moves=False)
    assert without.in_lx == (False, False)
    tight = estimate((a, b), (0, 1), True, False, a.own_bytes + b.own_bytes - 1)
    assert tight.in_lx == (False, False), "for the time of the move it is there twice"


def test_a_buffer_that_is_written_twice_or_read_before_is_nothing_that_can_stay() -> None:
    assert uses_in_order([0], [1, 2]) and uses_in_order([], [1])
    assert not uses_in_order([0, 3], [4]) and not uses_in_order([2], [1, 3])
    assert not uses_in_order([0], []) and not uses_in_order([1], [1])
