"""Moves over the ring from the front-end's views through a bundle to the back-end's step."""

from __future__ import annotations

import pytest

from torch_spyre._C import DataFormats
from torch_spyre._inductor.codegen.bundle import generate_bundle
from torch_spyre._inductor.opspec.ring_move import ring_spec
from torch_spyre.backend import BundleError, program_bytes, steps_of
from torch_spyre.backend.emit.program import read_program
from torch_spyre.backend.read.bundle import read_bundle
from torch_spyre.backend.steps import Ring
from torch_spyre.card_model.core_slices import CoreView, Share, core_view
from torch_spyre.card_model.ring import route

ROWS = core_view(4, [Share(8, 2, (0, 1, 2, 3)), Share(4, 4, (0,) * 4)])
COLUMNS = core_view(4, [Share(8, 8, (0,) * 4), Share(4, 1, (3, 2, 1, 0))])
EVERYWHERE = core_view(4, [Share(8, 8, (0,) * 4), Share(4, 4, (0,) * 4)])


@pytest.mark.parametrize(
    "source, target",
    [(ROWS, COLUMNS), (COLUMNS, ROWS), (ROWS, EVERYWHERE)],
    ids=["to columns", "to rows", "to all"],
)
def test_a_move_keeps_its_transfers_through_bundle_and_program(
    tmp_path, source: CoreView, target: CoreView
):
    spec = ring_spec(source, target, DataFormats.SEN169_FP16)
    way = route(source, target)
    assert spec is not None and way is not None
    generate_bundle([spec], tmp_path, has_pool=False)
    (step,) = steps_of(read_bundle(tmp_path), fuse=False)
    assert isinstance(step, Ring)

    def moved(axes, transfers) -> set[tuple[int, int, int, int]]:
        offsets = [(0, 0)]
        for axis in axes:
            offsets = [
                (a + i * axis.source_stride, b + i * axis.target_stride)
                for a, b in offsets
                for i in range(axis.extent)
            ]
        return {
            (t.source, t.source_offset + a, t.target, t.target_offset + b)
            for t in transfers
            for a, b in offsets
        }

    assert moved(step.axes, step.transfers) == moved(way.axes, way.transfers)
    (read,) = read_program(program_bytes([step]))
    assert isinstance(read, Ring)
    assert moved(read.axes, read.transfers) == moved(way.axes, way.transfers)


def test_a_move_of_what_is_in_memory_is_refused(tmp_path):
    spec = ring_spec(ROWS, COLUMNS, DataFormats.SEN169_FP16)
    assert spec is not None
    spec.args[0].allocation = {"hbm": 0}
    spec.args[0].arg_index = 0
    generate_bundle([spec], tmp_path, has_pool=False)
    with pytest.raises(BundleError, match="found hbm, allowed: lx in ringmove"):
        read_bundle(tmp_path)
