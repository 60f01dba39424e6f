"""Copies between layouts: what is copied, how, how often, and what the operation reads then."""

from __future__ import annotations

import itertools

import pytest
import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from tests.support.interpret import elements
from tests.support.operations import P, R, access, buffer, matmul, pointwise
from torch_spyre._inductor.errors import NoLayout
from torch_spyre._inductor.layouts.requirements import needs
from torch_spyre._inductor.layouts.restickify import Copies, _covers, affine
from torch_spyre._inductor.layouts.stick_layouts import layout_of
from torch_spyre._inductor.layouts.to_op_spec import make_spec
from torch_spyre._inductor.operations.operation import Access, Buffer, Operation

p0, p1, p2, *_ = P


def added(*operations: Operation) -> Copies:
    copies = Copies()
    for op in operations:
        copies.add(op)
    return copies


def reads(op: Operation, number: int = 0) -> dict[tuple[int, ...], int]:
    """The storage element that an operation reads at each point of its own dimensions."""
    return elements(op.inputs[number].index, op.ranges)


def comes_from(copies: Copies, op: Operation, number: int = 0) -> dict[tuple[int, ...], int]:
    """The same through the copy that it reads: elements of the tensor that was copied."""
    (copy,) = [c for c in copies.operations if c.output.buffer is op.inputs[number].buffer]
    source = reads(copy)
    written = {element: p for p, element in elements(copy.output.index, copy.ranges).items()}
    return {p: source[written[element]] for p, element in reads(op, number).items()}


# ---- One copy ------------------------------------------------------------------------------------


def test_what_fits_is_not_copied() -> None:
    x, y, z = (buffer(n, (128, 192), 1) for n in "xyz")
    copies = added(pointwise("add", [x, y], z, (128, 192)))
    assert [op.opfunc for op in copies.operations] == ["add"] and not copies.restickifies


def test_a_whole_tensor_with_its_sticks_elsewhere_is_restickified() -> None:
    x, y, z = (buffer(n, (128, 192), s) for n, s in zip("xyz", (0, 1, 1)))
    copies = added(pointwise("add", [x, y], z, (128, 192)))
    copy, add = copies.operations
    assert copy.opfunc == "ReStickifyOpHBM" and copy.ranges == {p0: 128, p1: 192}
    made = add.inputs[0].buffer
    assert made.layout == layout_of((128, 192), (192, 1), torch.float16, 1)
    assert add.inputs[1].buffer is y and add.output.buffer is z
    (entry,) = copies.restickifies
    assert (entry.buffer, entry.elements, entry.reason) == (
        "x", 128 * 192, "its sticks lie along another dimension",
    )  # fmt: skip


def test_a_view_that_no_stick_fits_is_copied_by_a_relayout() -> None:
    """Columns 3 to 11 of 200: they begin inside of a stick."""
    x, z = buffer("x", (4, 200), 1), buffer("z", (4, 8), 1)
    op = pointwise("exp", [(x, 200 * p0 + p1 + 3)], z, (4, 8))
    copies = added(op)
    copy, exp = copies.operations
    assert copy.opfunc == "relayout"
    assert comes_from(copies, exp) == reads(op)


def test_a_copy_of_a_view_has_the_elements_of_the_view() -> None:
    x, z = buffer("x", (5, 6, 7), 2), buffer("z", (7, 5, 3), 0)
    op = pointwise("exp", [(x, p0 + 42 * p1 + 14 * p2)], z, (7, 5, 3))  # every second row
    z.layout = layout_of((7, 5, 3), (15, 3, 1), torch.float16, 1)
    copies = added(op)
    assert comes_from(copies, copies.operations[-1]) == reads(op)
    assert copies.operations[-1].inputs[0].buffer.size == (7, 5, 3)


def test_a_tensor_with_one_dimension_too_few_is_copied_without_it() -> None:
    """Read along the stick of the output, a row is needed once, not for each of 128 rows."""
    row, z = buffer("r", (192,), -1), buffer("z", (128, 192), 1)
    copies = added(pointwise("exp", [(row, p1)], z, (128, 192)))
    assert copies.operations[0].ranges == {p1: 192}
    assert copies.operations[1].inputs[0].buffer.size == (192,)


@pytest.mark.parametrize("stride", [(128, 1), (256, 1)])
def test_a_view_that_only_takes_dimensions_apart_is_restickified_as_the_tensor_is(
    stride: tuple[int, int],
) -> None:
    """64 rows as 4 times 16; also of a tensor with gaps between its rows."""
    x, z = buffer("x", (64, 128), 0, stride=stride), buffer("z", (4, 16, 128), 2)
    view = stride[0] * (16 * p0 + p1) + p2
    (copy,) = added(pointwise("identity", [(x, view)], z, (4, 16, 128), "copy")).operations
    assert needs(copy, {}) and copy.opfunc in ("ReStickifyOpHBM", "relayout")
    flat = buffer("z", (64, 128), 1)
    (other,) = added(
        pointwise("identity", [(x, stride[0] * p0 + p1)], flat, (64, 128), "copy")
    ).operations
    assert other.opfunc == "ReStickifyOpHBM"
    source, target = Access(x, view), Access(z, z.index([p0, p1, p2]))
    assert _covers(source, copy) and _covers(target, copy)
    assert not _covers(Access(x, view + stride[0]), copy)
    assert not _covers(Access(x, stride[0] * (16 * p0 + 2 * p1) + p2), copy)


def test_a_result_in_the_wrong_place_is_written_to_a_temporary_and_moved() -> None:
    m, n, k = 64, 128, 192
    x, y, z = buffer("x", (m, k), 1), buffer("y", (k, n), 1), buffer("z", (m, n), 0)
    product, copy = added(matmul(x, y, z, m, n, k)).operations
    assert product.output.buffer is copy.inputs[0].buffer is not z
    assert product.output.buffer.layout == layout_of((m, n), (n, 1), torch.float16, 1)
    assert (copy.opfunc, copy.output.buffer) == ("ReStickifyOpHBM", z)


# ---- How often -----------------------------------------------------------------------------------


def two_readers() -> tuple[Buffer, list[Operation]]:
    n = 128
    x, c = buffer("x", (n, n), 0), buffer("c", (n, n), 1)
    results = [buffer(f"z{i}", (n, n), 1) for i in range(2)]
    return x, [pointwise("add", [x, c], z, (n, n)) for z in results]


def names(copies: Copies) -> list[str]:
    return [op.opfunc for op in copies.operations]


def test_a_copy_is_shared_until_told_otherwise() -> None:
    _, (first, second) = two_readers()
    assert names(added(first, second)) == ["ReStickifyOpHBM", "add", "add"]
    copies = added(first)
    copies.forget()
    copies.add(second)
    assert names(copies) == ["ReStickifyOpHBM", "add"] * 2


def test_a_copy_is_made_again_after_its_source_was_written() -> None:
    x, (first, second) = two_readers()
    n = 128
    write = pointwise("exp", [buffer("w", (n, n), 0)], x, (n, n))
    found = added(first, write, second)
    assert names(found) == ["ReStickifyOpHBM", "add", "exp", "ReStickifyOpHBM", "add"]
    assert found.operations[1].inputs[0].buffer is not found.operations[-1].inputs[0].buffer


def test_copies_of_other_parts_are_not_shared() -> None:
    x, z = buffer("x", (256, 128), 0), buffer("z", (128, 128), 1)
    parts = [pointwise("exp", [(x, 128 * p0 + p1 + o)], z, (128, 128)) for o in (0, 128 * 128)]
    copies = added(*parts)
    assert len(copies.operations) == 4
    for part, made in zip(parts, (copies.operations[1], copies.operations[3])):
        assert comes_from(copies, made) == reads(part)


def test_a_parameter_is_copied_outside_of_the_kernel() -> None:
    x, (first, second) = two_readers()
    x.static = True
    copies = added(first, second)
    assert names(copies) == ["add", "add"]
    made = copies.operations[0].inputs[0].buffer
    assert made.hoisted is not None and made.hoisted.source is x and not made.written
    assert (made.hoisted.size, made.hoisted.stride, made.hoisted.offset) == (
        (128, 128),
        (128, 1),
        0,
    )
    assert "once, because it is a parameter" in copies.restickifies[0].reason


def test_a_parameter_that_the_graph_writes_is_copied_inside() -> None:
    x, (first, _) = two_readers()
    x.static = x.written = True
    assert names(added(first)) == ["ReStickifyOpHBM", "add"]


# ---- Rows by index -------------------------------------------------------------------------------


def test_a_table_is_copied_whole_for_a_gather() -> None:
    row = sympy.Symbol("indirect0", integer=True, nonnegative=True)
    table, index, z = (buffer("t", (1000, 256), 0), buffer("i", (8,), 0, torch.int64),
                       buffer("z", (8, 256), 1))  # fmt: skip
    op = pointwise("identity", [(table, 256 * row + p1)], z, (8, 256), "gather")
    op.gather, op.info = {row: access((index, p0), (p0, p1))}, {"rows": {row: 1000}}
    copy, moved = added(op).operations
    assert (copy.opfunc, copy.output.buffer.size) == ("ReStickifyOpHBM", (1000, 256))
    assert moved.inputs[0].index == 256 * row + p1 and moved.kind == "gather"


def test_a_scatter_into_other_sticks_copies_its_table_there_and_back() -> None:
    row = sympy.Symbol("indirect0", integer=True, nonnegative=True)
    table, index, x = (buffer("t", (512, 256), 0), buffer("i", (8,), 0, torch.int64),
                       buffer("x", (8, 256), 1))  # fmt: skip
    op = pointwise("identity", [x], (table, 256 * row + p1), (8, 256), "scatter")
    op.gather, op.info = {row: access((index, p0), (p0, p1))}, {"rows": {row: 512}}
    there, moved, back = added(op).operations
    assert there.inputs[0].buffer is table and back.output.buffer is table
    assert there.output.buffer is moved.output.buffer is back.inputs[0].buffer
    assert moved.kind == "scatter"


# ---- Plain sums ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "index",
    [
        5 * FloorDiv(p0, 4) + p1,
        ModularIndexing(p0, 1, 4) + 4 * p1,
        3 * ModularIndexing(p0, 4, 3) + 20 * FloorDiv(p0, 12) + p1,
        7 * ModularIndexing(p0, 2, 2) + 100 * p1 + 11,
    ],
)
def test_digits_become_symbols_that_give_the_same_elements_in_the_same_order(
    index: sympy.Expr,
) -> None:
    x, z = buffer("x", (10_000,), 0), buffer("z", (24, 5), 1)
    op = pointwise("identity", [(x, index)], z, (24, 5), "copy")
    plain = affine(op)
    assert all(not e.has(FloorDiv, ModularIndexing) for e in (a.index for a in plain.inputs))
    assert list(reads(plain).values()) == list(reads(op).values())
    written = [list(elements(o.output.index, o.ranges).values()) for o in (op, plain)]
    assert written[0] == written[1]


def test_digits_that_do_not_divide_each_other_are_refused() -> None:
    x, z = buffer("x", (100,), 0), buffer("z", (24,), 0)
    op = pointwise("identity", [(x, FloorDiv(p0, 4) + 10 * FloorDiv(p0, 6))], z, (24,), "copy")
    with pytest.raises(NoLayout, match=r"cannot divide p0 of size 24 at \[1, 4, 6, 24\]"):
        affine(op)


# ---- After it, everything fits ------------------------------------------------------------------


@pytest.mark.parametrize("sticks", list(itertools.product((0, 1, -1), repeat=3)))
def test_whatever_the_layouts_are_nothing_is_needed_afterwards(
    sticks: tuple[int, int, int],
) -> None:
    x, y, z = (buffer(n, (128, 192), s) for n, s in zip("xyz", sticks))
    for op in (
        pointwise("add", [x, y], z, (128, 192)),
        pointwise("add", [(x, 192 * p0 + p1 + 5), (y, sympy.S.Zero + p1)], z, (100, 64)),
        Operation("sum", "reduction", {p1: 192, R[0]: 128}, (R[0],),
                  [Access(x, 192 * R[0] + p1)], Access(buffer("s", (192,), 0), p1)),
    ):  # fmt: skip
        for made in added(op).operations:
            spec = make_spec(made) if made.spec is None else made.spec
            assert len(spec.args) == len(made.inputs) + 1
            if made.opfunc not in ("relayout", "ReStickifyOpHBM"):
                assert needs(made, {}) == [], (sticks, made)
