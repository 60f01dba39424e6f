"""Scratchpads promoted to one shared buffer: conditions, and the copies between cores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.support.make_bundle import LX, Op, T, op, write_bundle
from torch_spyre.backend import read_bundle, steps_of
from torch_spyre.backend.fuse.shared_lx import share_scratchpads
from torch_spyre.backend.read.bundle import Bundle
from torch_spyre.backend.steps import Space, addresses

SIZES = {"mb": 128, "out": 256}
ROWS = T(("mb", "out"))
BY_ROW, BY_STICK = {"mb": 4}, {"out": 4}


def _bundle(folder: Path, operations: list[Op]) -> Bundle:
    return read_bundle(write_bundle(folder, operations))


def _spaces(bundle: Bundle) -> list[list[Space]]:
    return [[a.space for a in o.addresses] for o in bundle.operations()]


def test_a_value_that_is_written_and_read_by_the_same_cores_is_shared(tmp_path):
    bundle = _bundle(tmp_path, [
        op("exp", SIZES, [ROWS.at(0)], ROWS.at(LX, 4096), splits=BY_ROW),
        op("neg", SIZES, [ROWS.at(LX, 4096)], ROWS.at(1), splits=BY_ROW),
    ])  # fmt: skip
    shared = share_scratchpads(bundle)
    assert _spaces(shared) == [
        [Space.ARGUMENT, Space.SHARED],
        [Space.SHARED, Space.ARGUMENT],
    ]
    # The slices of the cores, contiguous as in memory.
    assert shared.operations()[0].addresses[1].offsets == (0, 4096, 8192, 12288)
    (step,) = steps_of(bundle, private_lx=True)
    assert {a.space for a in addresses(step)} == {Space.ARGUMENT}  # the value is never stored
    assert [work.lx_bytes > 0 for work in step.works] == [True, True]


def test_scratchpads_that_outlive_the_bundle_are_not_touched(tmp_path):
    bundle = _bundle(tmp_path, [op("exp", SIZES, [ROWS.at(0)], ROWS.at(LX), splits=BY_ROW)])
    (step,) = steps_of(bundle)
    assert Space.LX in {a.space for a in addresses(step)}


def test_cores_that_would_not_find_what_they_need_stay_with_their_scratchpads(tmp_path):
    other_division = _bundle(tmp_path, [
        op("exp", SIZES, [ROWS.at(0)], ROWS.at(LX), splits=BY_ROW),
        op("neg", SIZES, [ROWS.at(LX)], ROWS.at(1), splits=BY_STICK),
    ])  # fmt: skip
    assert share_scratchpads(other_division) is other_division


def test_what_the_bundle_has_not_written_is_read_from_scratchpads(tmp_path):
    bundle = _bundle(tmp_path, [op("neg", SIZES, [ROWS.at(LX)], ROWS.at(1), splits=BY_ROW)])
    assert share_scratchpads(bundle) is bundle


def test_a_value_that_was_overwritten_in_part_is_read_from_scratchpads(tmp_path):
    bundle = _bundle(tmp_path, [
        op("exp", SIZES, [ROWS.at(0)], ROWS.at(LX), splits=BY_ROW),
        op("abs", SIZES, [ROWS.at(0)], ROWS.at(LX, 4096), splits=BY_ROW),
        op("neg", SIZES, [ROWS.at(LX)], ROWS.at(1), splits=BY_ROW),
    ])  # fmt: skip
    assert share_scratchpads(bundle) is bundle


def test_a_copy_of_an_input_is_not_made_but_counts(tmp_path):
    bundle = _bundle(tmp_path, [
        op("identity", SIZES, [ROWS.at(0)], ROWS.at(LX), splits=BY_ROW),
        op("neg", SIZES, [ROWS.at(LX)], ROWS.at(1), splits=BY_ROW),
    ])  # fmt: skip
    shared = share_scratchpads(bundle)
    (neg,) = shared.operations()
    assert [c.name for c in neg.copies] == ["0_identity"]
    assert neg.addresses[0] == replace(neg.addresses[0], space=Space.ARGUMENT, argument=0)
    (step,) = steps_of(bundle, private_lx=True)
    assert len(step.works) == 2 and step.source == ("0_identity", "1_neg")


def test_a_copy_of_an_input_is_made_when_the_input_changes_before_it_is_read(tmp_path):
    bundle = _bundle(tmp_path, [
        op("identity", SIZES, [ROWS.at(0)], ROWS.at(LX), splits=BY_ROW),
        op("exp", SIZES, [ROWS.at(1)], ROWS.at(0), splits=BY_ROW),
        op("neg", SIZES, [ROWS.at(LX)], ROWS.at(2), splits=BY_ROW),
    ])  # fmt: skip
    shared = share_scratchpads(bundle)
    assert len(shared.operations()) == 3
    assert _spaces(shared)[2] == [Space.SHARED, Space.ARGUMENT]


def test_a_result_that_is_copied_out_at_once_is_written_there(tmp_path):
    bundle = _bundle(tmp_path, [
        op("exp", SIZES, [ROWS.at(0)], ROWS.at(LX), splits=BY_ROW),
        op("identity", SIZES, [ROWS.at(LX)], ROWS.at(1), splits=BY_ROW),
        op("neg", SIZES, [ROWS.at(LX)], ROWS.at(2), splits=BY_ROW),
    ])  # fmt: skip
    exp, neg = share_scratchpads(bundle).operations()
    assert [c.name for c in exp.copies] == ["1_identity"]
    assert exp.addresses[1] == neg.addresses[0]
    assert (exp.addresses[1].space, exp.addresses[1].argument) == (Space.ARGUMENT, 1)


def test_a_transposition_is_no_copy(tmp_path):
    sizes = {"mb": 8, "x": 8, "out": 64}
    a, b = T(("mb", "x", "out")), T(("x", "mb", "out"))
    bundle = _bundle(tmp_path, [
        op("exp", sizes, [a.at(0)], a.at(LX)),
        op("identity", sizes, [a.at(LX)], b.at(1)),
        op("neg", sizes, [a.at(LX)], a.at(2)),
    ])  # fmt: skip
    assert len(share_scratchpads(bundle).operations()) == 3
