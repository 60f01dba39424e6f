"""How tensors of an aligned operation are walked over, against each element's byte; and frames."""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import prod

import pytest
import sympy
import torch

from tests.support.operations import P, access, buffer, matmul, pointwise, reduction
from torch_spyre._C import ElementArrangement
from torch_spyre._inductor.layouts.to_op_spec import make_spec
from torch_spyre._inductor.operations.operation import Operation
from torch_spyre._inductor.opspec.access import (
    Axis,
    InvalidOpSpec,
    kind_of,
    read_accesses,
    space_of,
)
from torch_spyre._inductor.opspec.core_views import Views
from torch_spyre._inductor.opspec.frames import frame_of
from torch_spyre._inductor.opspec.op_spec import OpSpec, TensorArg

p0, p1, p2, *_ = P
c0, c1, c2 = sympy.symbols("c0:3", integer=True, nonnegative=True)


def spec_of(op: Operation, slices: dict[sympy.Symbol, int] | None = None) -> OpSpec:
    made = make_spec(op)
    args = [replace(a, allocation={"hbm": n << 34}, arg_index=n) for n, a in enumerate(made.args)]
    cut = slices or {}
    space = {s: (n, cut.get(s, 1)) for s, (n, _) in made.iteration_space.items()}
    return replace(made, args=args, iteration_space=space)


def places(arg: TensorArg, spec: OpSpec) -> dict[tuple[int, ...], int]:
    """The byte of the tensor at each point, from its coordinates."""
    word = 128 // arg.device_size[-1]
    steps = [word * prod(arg.device_size[j + 1 :]) for j in range(len(arg.device_size))]
    total = sum(c * s for c, s in zip(arg.device_coordinates, steps, strict=True))
    code = sympy.lambdify(list(spec.iteration_space), total, "math")
    points = itertools.product(*(range(n) for n, _ in spec.iteration_space.values()))
    return {p: int(code(*p)) for p in points}


def examples() -> dict[str, Operation]:
    x, z = buffer("x", (12, 200), 1), buffer("z", (12, 200), 1)
    cube = buffer("c", (3, 4, 100), 2)
    return {
        "rows": pointwise("exp", [x], z, (12, 200)),
        "part": pointwise("exp", [(x, 200 * p0 + p1 + 200 * 5 + 64)], buffer("y", (4, 100), 1),
                          (4, 100)),
        "cube": pointwise("exp", [cube], buffer("d", (3, 4, 100), 2), (3, 4, 100)),
        "product": matmul(buffer("a", (4, 128), 1), buffer("b", (128, 64), 1),
                          buffer("o", (4, 64), 1), 4, 64, 128),
        "sum": reduction("sum", x, buffer("s", (12,), -1), (12,), 200),
        "float32": pointwise("exp", [buffer("x", (3, 70), 1, torch.float32)],
                             buffer("z", (3, 70), 1, torch.float32), (3, 70)),
    }  # fmt: skip


@pytest.mark.parametrize("name", examples())
def test_the_axes_of_an_access_give_the_byte_of_every_element(name: str) -> None:
    spec = spec_of(examples()[name])
    symbols = list(spec.iteration_space)
    for found in read_accesses(spec):
        expected = places(found.arg, spec)
        for point, byte in expected.items():
            at = dict(zip(symbols, point, strict=True))
            total = 0 if found.stick is None else at[found.stick] % found.eps
            for axis in found.axes:
                entry = at[axis.symbol] // found.eps if axis.sticks else at[axis.symbol]
                total += (entry + axis.first) * axis.step
            assert total * found.word == byte


def test_the_example_of_the_documentation() -> None:
    x, z = buffer("x", (128, 256), 1), buffer("z", (128, 256), 1)
    found = read_accesses(spec_of(pointwise("exp", [x], z, (128, 256))))[0]
    assert found.axes == (Axis(c0, 128, 64, 0, False), Axis(c1, 4, 8192, 0, True))
    assert (found.stick, found.eps, found.word, found.unit) == (c1, 64, 2, 64)


def test_lanes_of_a_cast_come_in_pairs_of_sticks() -> None:
    x = buffer("x", (8, 128), 1)
    wide = buffer("w", (8, 128), 1, torch.float32, arrangement=ElementArrangement.DL16_TO_FP32)
    half, pair = read_accesses(spec_of(pointwise("dl16tofp32", [x], wide, (8, 128))))
    assert (half.unit, pair.unit, pair.eps) == (64, 64, 32)


def test_a_gathered_axis_walks_with_the_symbol_of_its_index() -> None:
    row = sympy.Symbol("indirect0", integer=True, nonnegative=True)
    table, index, z = (buffer("t", (1000, 256), 1), buffer("i", (8,), 0, torch.int64),
                       buffer("z", (8, 256), 1))  # fmt: skip
    op = pointwise("identity", [(table, 256 * row + p1)], z, (8, 256), "gather")
    op.gather, op.info = {row: access((index, p0), ())}, {"rows": {row: 1000}}
    table_, index_, _ = read_accesses(spec_of(op))
    assert [(a.symbol, a.gathered) for a in table_.axes] == [(c0, True), (c1, False)]
    assert table_.index_symbols == (c0,) and index_.is_index and not table_.is_index


def test_forms_that_are_not_aligned_are_refused_with_the_axis() -> None:
    x, z = buffer("x", (128, 256), 1), buffer("z", (128, 256), 1)
    spec = spec_of(pointwise("exp", [x], z, (128, 256)))
    for axis, coordinate in ((1, c0 + c1), (1, 2 * c0), (1, 5), (2, sympy.Mod(c1, 64) + 1)):
        coordinates = list(spec.args[0].device_coordinates)
        coordinates[axis] = sympy.sympify(coordinate)
        broken = replace(spec.args[0], device_coordinates=coordinates)
        with pytest.raises(InvalidOpSpec, match="operation exp, tensor 0"):
            read_accesses(replace(spec, args=[broken, spec.args[1]]))
    with pytest.raises(InvalidOpSpec, match="name of an OpFunc"):
        kind_of(replace(spec, op="cosh"))
    assert [space_of(replace(spec.args[0], allocation={s: 0})) for s in ("lx", "pool", "hbm")] == [
        "lx", "pool", "hbm"
    ]  # fmt: skip


# ---- Cores ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "slices"),
    [
        ("rows", {c0: 4, c1: 2}), ("rows", {c0: 12}), ("rows", {c1: 4}), ("cube", {c0: 3, c1: 2}),
        ("product", {c0: 2, c2: 2}), ("sum", {c0: 6}), ("part", {c0: 2, c1: 2}),
    ],
)  # fmt: skip
def test_each_core_begins_at_its_own_part_and_all_parts_are_different(
    name: str, slices: dict[sympy.Symbol, int]
) -> None:
    """The first element of each core's share, byte by byte; shares of sticks are whole ones."""
    spec = spec_of(examples()[name], slices)
    frame = frame_of(spec)
    symbols = list(spec.iteration_space)
    for arg, offsets, tensor in zip(spec.args, frame.offsets, frame.plan.tensors):
        expected = places(arg, spec)
        assert len(offsets) == prod(slices.values())
        for mine, offset in zip(frame.slices.values(), offsets, strict=True):
            first = []
            for symbol in symbols:
                dim = frame.plan.by_symbol[symbol]
                first.append(mine[dim.label] * (dim.padded // dim.slices))
            assert expected[tuple(first)] == offset, (tensor.number, mine)
    whole = {tuple(mine.values()) for mine in frame.slices.values()}
    assert len(whole) == prod(slices.values())


def test_a_product_with_slices_of_k_has_neighbours_add_up() -> None:
    product = spec_of(examples()["product"], {c0: 2, c2: 2})
    near, far = (list(frame_of(product, k_fast=k).slices.values()) for k in (True, False))
    *_, k = near[0]
    assert [m[k] for m in near] == [0, 1, 0, 1] and [m[k] for m in far] == [0, 0, 1, 1]


def test_only_the_first_core_of_a_sum_has_the_result() -> None:
    views = Views(spec_of(examples()["product"])).of({c0: 2, c1: 1, c2: 2})
    assert all(view is not None for view in views)
    assert [view and view.holders for view in views] == [None, None, (0, 2)]


def test_a_part_of_a_tensor_is_no_plain_share_of_it() -> None:
    views = Views(spec_of(examples()["part"])).of({c0: 2, c1: 1})
    assert views[0] is None and views[1] is not None
    assert views[1].own_bytes * 2 == views[1].all_bytes


@pytest.mark.parametrize("slices", [{c0: 2}, {c1: 2}, {c0: 2, c1: 2}])
def test_in_scratchpads_a_part_begins_after_what_a_core_has_of_the_axes_inside(
    slices: dict[sympy.Symbol, int],
) -> None:
    """The second of two (6, 256) matrices, on a core with half of the rows, of the columns, or of
    both: after 6 * 4 sticks on all cores together."""
    x, z = buffer("x", (6, 2, 256), 2), buffer("z", (6, 256), 1)
    spec = spec_of(pointwise("exp", [(x, 512 * p0 + p1 + 256)], z, (6, 256)), slices)
    expected = 6 * 4 * 128 // prod(slices.values())
    args = [replace(spec.args[0], allocation={"lx": 0}, arg_index=-1), spec.args[1]]
    frame = frame_of(replace(spec, args=args))
    assert set(frame.offsets[0]) == {expected} and len(frame.offsets[0]) == prod(slices.values())
