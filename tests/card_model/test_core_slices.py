"""Which part of a tensor each core has."""

from __future__ import annotations

from torch_spyre.card_model.core_slices import Share, core_view


def test_rows_and_batches_of_rows_are_the_same_view():
    rows = core_view(4, [Share(1024, 256, (0, 1, 2, 3))])
    batches = core_view(4, [Share(128, 128, (0,) * 4), Share(8, 2, (0, 1, 2, 3))])
    assert rows == batches
    assert rows.own_bytes == 256 * 128 and rows.all_bytes == 1024 * 128


def test_halves_of_a_batch_are_quarters_of_all_rows():
    halves = core_view(4, [Share(128, 64, (0, 1, 0, 1)), Share(2, 1, (0, 0, 1, 1))])
    assert halves == core_view(4, [Share(256, 64, (0, 1, 2, 3))])


def test_axes_of_one_entry_do_not_count():
    assert core_view(2, [Share(1, 1, (0, 0)), Share(8, 4, (0, 1))]) == core_view(
        2, [Share(8, 4, (0, 1))]
    )


def test_other_cores_other_shares_and_interleaved_rows_are_other_views():
    rows = core_view(4, [Share(1024, 256, (0, 1, 2, 3))])
    assert rows != core_view(4, [Share(1024, 256, (0, 2, 1, 3))])
    assert rows != core_view(2, [Share(1024, 512, (0, 1))])
    # Each core has a piece of every batch.
    pieces = core_view(4, [Share(128, 32, (0, 1, 2, 3)), Share(8, 8, (0,) * 4)])
    assert rows != pieces and rows.own_bytes == pieces.own_bytes
