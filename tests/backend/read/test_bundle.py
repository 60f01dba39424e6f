"""Reading bundles: what a good one says."""

from __future__ import annotations

import pytest

import torch_spyre._C as _C
from tests.support.broken_bundles import HANDWRITTEN
from tests.support.make_bundle import LX, POOL, Repeat, T, op, write_bundle
from torch_spyre.backend import read_bundle
from torch_spyre.backend.formats import ARRANGEMENTS, FORMATS
from torch_spyre.backend.read import mlir
from torch_spyre.backend.read.mlir_lines import parse_lines
from torch_spyre.backend.read.sdsc_reader import decode
from torch_spyre.backend.steps import Address, Space

SIZES = {"mb": 128, "out": 256}
ROWS = T(["mb", "out"])
SPARSE = T(["mb", "out"], scale={"out": -2})


def test_the_handwritten_bundle_says_what_it_should():
    bundle = read_bundle(HANDWRITTEN)
    add, total = bundle.operations()
    assert bundle.pool == 0
    assert bundle.parameters[0] == "pool_base_addr" and len(bundle.parameters) == 4
    assert (add.name, total.name) == ("0_add", "1_sum")
    assert add.sdsc.sizes == (("mb", 96), ("out", 320)) and add.sdsc.cores == 4
    assert [a.argument for a in add.addresses] == [1, 2, 0]
    assert add.addresses[0].offsets == tuple(24 * 128 * c for c in range(4))
    assert total.sdsc.tensors[1].scale("out") == -2
    assert total.sdsc.reduced_dims() == ("out",)
    # 96 rows of 5 sticks: one row is 128 bytes from the next, one stick 96 rows.
    axes = add.sdsc.axes(add.sdsc.tensors[0])
    assert {d: (a.entries, a.stride) for d, a in axes.items()} == {
        "mb": (96, 128),
        "out": (5, 96 * 128),
    }


def test_equal_operations_are_equal_values(tmp_path):
    operations = [
        op("exp", SIZES, [ROWS.at(0)], ROWS.at(1)),
        op("exp", SIZES, [ROWS.at(1)], ROWS.at(2)),
    ]
    first, second = read_bundle(write_bundle(tmp_path, operations)).operations()
    assert first.sdsc == second.sdsc and hash(first.sdsc) == hash(second.sdsc)
    assert first.addresses != second.addresses


def test_a_bundle_read_by_lines_is_that_of_the_grammar():
    text = (HANDWRITTEN / "bundle.mlir").read_text()
    by_lines = parse_lines(text)
    assert by_lines is not None
    assert by_lines == mlir._Parser(text, "bundle.mlir").parse()
    other = text.replace(" = ", "  =  ")  # the same program, in another form
    assert parse_lines(other) is None
    assert mlir.parse_bundle_mlir(other) == by_lines


def test_concrete_addresses_name_arguments_by_their_segment(tmp_path):
    operations = [op("add", SIZES, [ROWS.at(0), ROWS.at(1, 4096)], ROWS.at(2), splits={"mb": 2})]
    bundle = read_bundle(write_bundle(tmp_path, operations, symbolic=False))
    addresses = bundle.operations()[0].addresses
    assert addresses[1] == Address(Space.ARGUMENT, 1, (4096, 4096 + 64 * 128))
    assert bundle.pool is None
    assert read_bundle(tmp_path, pool=True).pool == 0


def test_loops_and_affine_maps_become_strides(tmp_path):
    moving = ROWS.at(0, loop_strides=(65536, 256))
    still = ROWS.at(1, loop_strides=(0, 0))
    inner = Repeat(3, [op("exp", SIZES, [moving], still)])
    (outer,) = read_bundle(write_bundle(tmp_path, [Repeat(4, [inner])])).body
    (loop,) = outer.body
    (operation,) = loop.body
    assert (outer.count, loop.count) == (4, 3)
    assert [a.loop_strides for a in operation.addresses] == [(65536, 256), (0, 0)]


def test_a_tensor_in_lx_has_the_axes_of_one_core(tmp_path):
    operations = [op("exp", SIZES, [ROWS.at(0)], ROWS.at(LX, 256), splits={"mb": 4})]
    (operation,) = read_bundle(write_bundle(tmp_path, operations)).operations()
    axes = operation.sdsc.axes(operation.sdsc.tensors[1])
    assert axes["mb"].entries == 32 and axes["out"].stride == 32 * 128
    assert operation.addresses[1] == Address(Space.LX, 0, (256,) * 4)


def test_gaps_make_axes_longer_or_shorter(tmp_path):
    # Rows 32..95 of 128, as a copy.
    source = ROWS.at(0, 32 * 128, gap={"mb": 64})
    operations = [op("identity", {"mb": 64, "out": 256}, [source], ROWS.at(1), splits={"mb": 4})]
    (operation,) = read_bundle(write_bundle(tmp_path, operations)).operations()
    assert operation.sdsc.axes(operation.sdsc.tensors[0])["mb"].entries == 128
    assert operation.addresses[0].offsets == tuple(4096 + 2048 * c for c in range(4))


def test_formats_are_those_of_the_card():
    for name, fmt in FORMATS.items():
        known = getattr(_C.DataFormats, name)
        assert (known.value, known.elems_per_stick()) == (fmt.number, fmt.per_stick), name
    for name, number in ARRANGEMENTS.items():
        assert getattr(_C.ElementArrangement, name).value == number


@pytest.mark.parametrize("value", [0.0, 1.0, -2.5, 0.1, 3e8, 1e-9, float("inf"), float("-inf")])
def test_constants_are_decoded_as_the_card_encodes_them(value: float):
    for name, digits in (("IEEE_FP32", 1e-6), ("SEN169_FP16", 2e-3)):
        bits = _C.encode_constant(value, getattr(_C.DataFormats, name))
        assert decode(name, bits) == pytest.approx(value, rel=digits, abs=1e-30)


def test_a_pool_is_known_by_its_name(tmp_path):
    operations = [
        op("exp", SIZES, [ROWS.at(0)], ROWS.at(POOL)),
        op("exp", SIZES, [ROWS.at(POOL)], ROWS.at(1)),
    ]
    assert read_bundle(write_bundle(tmp_path, operations)).pool == 0
