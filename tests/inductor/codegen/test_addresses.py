"""Addresses of each core: the argument, and bytes from its start; and the numbers they get."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sympy

from tests.support.operations import buffer, pointwise
from torch_spyre._inductor.codegen.addresses import addresses, different_addresses
from torch_spyre._inductor.codegen.symbols import LX, POOL, Address, SymbolTable
from torch_spyre._inductor.layouts.to_op_spec import make_spec
from torch_spyre._inductor.opspec.frames import frame_of
from torch_spyre._inductor.opspec.op_spec import OpSpec

c0, c1 = sympy.symbols("c0 c1", integer=True, nonnegative=True)
GIB_16 = 1 << 34


def add(*allocations: dict[str, int], rows: int = 1, tiled: bool = False) -> OpSpec:
    """x + y over (128, 256), cut into so many slices of rows; tiled: 32 rows at a time."""
    x, y, z = (buffer(name, (128, 256), 1) for name in "xyz")
    spec = make_spec(pointwise("add", [x, y], z, (128, 256)))
    args = [
        replace(arg, allocation=a, arg_index=n if "hbm" in a else -1)
        for n, (arg, a) in enumerate(zip(spec.args, allocations, strict=True))
    ]
    space = {c0: (32 if tiled else 128, rows), c1: (256, 1)}
    return replace(spec, args=args, iteration_space=space, tiled_symbols=[c0] if tiled else [])


@pytest.mark.parametrize("segment", [0, 1, 2, 3, 6])
def test_the_segment_of_an_argument_is_its_number_and_no_part_of_the_offset(segment: int) -> None:
    at = {"hbm": segment * GIB_16 + 4096}
    spec = add(at, at, at)
    assert addresses(frame_of(spec), spec) == [[Address(n, 4096)] for n in range(3)]


def test_each_core_begins_with_its_own_rows() -> None:
    spec = add({"hbm": 0}, {"pool": 65536}, {"hbm": 2 * GIB_16}, rows=4)
    found = addresses(frame_of(spec), spec)
    rows = [32 * 128 * core for core in range(4)]
    assert [[a.offset for a in one] for one in found] == [rows, [65536 + r for r in rows], rows]
    assert [one[0].base for one in found] == [0, POOL, 2]


def test_a_scratchpad_has_one_address_for_all_cores_however_large_it_is() -> None:
    spec = add({"lx": 1 << 20}, {"hbm": GIB_16}, {"hbm": 2 * GIB_16}, rows=4)
    frame = frame_of(spec)
    assert addresses(frame, spec)[0] == [Address(LX, 1 << 20)] * 4
    assert different_addresses(frame, spec)[0] == [Address(LX, 1 << 20)]
    assert len(different_addresses(frame, spec)[1]) == 4


def test_a_tile_says_how_far_it_moves() -> None:
    spec = add({"hbm": 0}, {"hbm": GIB_16}, {"hbm": 2 * GIB_16}, tiled=True)
    frame = frame_of(spec, loop_counts=[4])
    assert addresses(frame, spec)[1] == [Address(1, 0, (32 * 128,))]


def test_a_file_names_an_address_once_and_two_files_share_no_number() -> None:
    table = SymbolTable()
    a, b = Address(0, 0), Address(0, 128)
    assert [table.id(0, x) for x in (a, b, a)] == [-1, -2, -1]
    assert [table.id(1, x) for x in (a, b, a)] == [-3, -4, -3]
    assert table.files == {0: {a: -1, b: -2}, 1: {a: -3, b: -4}}
