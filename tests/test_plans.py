"""The suite of plans: what `joint` promises, on the graphs that are quick to compile."""

from __future__ import annotations

import pytest

from benchmarks.plans import measure


@pytest.mark.parametrize("name", ["softmax", "layer norm", "MLP", "attention 128"])
def test_joint_plans_are_never_slower_than_documented_ones(name):
    row = measure(name)
    assert 0 < row.us <= row.documented_us + 1e-6
    assert row.bytes >= row.compulsory > 0
