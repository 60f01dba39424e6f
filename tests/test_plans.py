"""What `joint` promises of the suite of plans: of quick graphs, and in the full run of all."""

from __future__ import annotations

from math import prod

import pytest

from benchmarks.plans import SUITE, measure

QUICK = ("softmax", "layer norm", "MLP", "attention 128", "encoder block 128")


@pytest.mark.parametrize("name", QUICK)
def test_joint_plans_are_fast_and_move_little_more_than_they_must(name):
    row = measure(name)
    assert 0 < row.us <= row.documented_us + 1e-6
    assert 0 < row.compulsory <= row.bytes <= 1.15 * row.compulsory


@pytest.mark.full
def test_the_whole_suite_keeps_its_promises():
    rows = [measure(name) for name in SUITE]
    for row in rows:
        assert 0 < row.us <= row.documented_us + 1e-6, row
        assert 0 < row.compulsory <= row.bytes <= 1.15 * row.compulsory, row
    assert prod(row.ratio for row in rows) ** (1 / len(rows)) <= 0.7
