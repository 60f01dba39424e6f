"""The choice of layouts, against all assignments of candidates on graphs of few buffers."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from tests.support.operations import P, R, buffer, matmul, pointwise, reduction
from torch_spyre._C import ElementArrangement, SpyreTensorLayout
from torch_spyre._inductor import config
from torch_spyre._inductor.layouts import stickify
from torch_spyre._inductor.layouts.requirements import cost, needs
from torch_spyre._inductor.layouts.stick_layouts import SPARSE, WIDENED, layout_of
from torch_spyre._inductor.operations.operation import Buffer, Operation

p0, p1, *_ = P


def along(b: Buffer, stick: int) -> SpyreTensorLayout:
    return layout_of(b.size, b.stride, b.dtype, stick)


# ---- Candidates ----------------------------------------------------------------------------------


def sticks_of(op: Operation) -> list[int]:
    """The stick dimension of each candidate, in order; SPARSE where there is none."""
    b = op.output.buffer
    names = {along(b, d): d for d in (*range(len(b.size)), SPARSE)}
    return [names[layout] for layout in stickify.candidates(op)]


def test_every_dimension_can_have_the_sticks_the_last_one_first() -> None:
    x = buffer("x", (4, 8, 128), 2)
    op = pointwise("exp", [x], buffer("y", (4, 8, 128)), (4, 8, 128))
    assert sticks_of(op) == [2, 1, 0, SPARSE]


def test_dimensions_of_size_1_have_no_sticks() -> None:
    x = buffer("x", (4, 1, 128), 2)
    assert sticks_of(pointwise("exp", [x], buffer("y", (4, 1, 128)), (4, 1, 128))) == [2, 0, SPARSE]
    one = pointwise("exp", [buffer("x", (1, 1), 1)], buffer("y", (1, 1)), (1, 1))
    assert sticks_of(one)[0] == 1
    assert stickify.candidates(
        pointwise("exp", [buffer("s", (), SPARSE)], buffer("y", ()), ())
    ) == [layout_of((), (), torch.float16, SPARSE)]


def test_mean_and_variance_have_a_form_of_their_own() -> None:
    op = reduction("exx2", buffer("x", (8, 128), 1), buffer("m", (8,)), (8,), 128)
    (only,) = stickify.candidates(op)
    assert only == layout_of((8,), (1,), torch.float16, SPARSE, ElementArrangement.EXX2)


def test_a_topk_never_has_its_places_in_the_stick() -> None:
    x, y = buffer("x", (8, 128), 1), buffer("y", (8, 4))
    op = reduction("topkvalue", x, y, (8, 4), 128)
    op.kind, op.info = "topk", {"k": 4, "k_symbol": p1}
    assert sticks_of(op) == [0]


def test_a_cast_widens_in_pairs_and_what_follows_it_may_keep_them() -> None:
    x, wide = buffer("x", (8, 128), 1), buffer("w", (8, 128), dtype=torch.float32)
    cast = pointwise("dl16tofp32", [x], wide, (8, 128))
    chain = pointwise("exp", [wide], buffer("e", (8, 128), dtype=torch.float32), (8, 128))

    def orders(op: Operation) -> set[ElementArrangement]:
        return {layout.element_arrangement for layout in stickify.candidates(op, widened=True)}

    assert orders(cast) == {WIDENED, ElementArrangement.STANDARD}  # one element per stick: standard
    lanes = [c for c in stickify.candidates(cast, widened=True) if c.stride_map[-1] == 1]
    assert [c.element_arrangement for c in lanes] == [WIDENED], "the cast has no other way"
    assert orders(chain) == {WIDENED, ElementArrangement.STANDARD}


# ---- The choice ----------------------------------------------------------------------------------


def total(operations: list[Operation], layouts: dict[Buffer, SpyreTensorLayout]) -> float:
    return sum(cost(op, layouts) for op in operations)


def best_of_all(operations: list[Operation], outputs: set[Buffer]) -> float:
    """The cheapest of all assignments, with what candidates cost that are not the plain ones."""
    options = {
        op.output.buffer: stickify._priced(op, stickify.candidates(op), op.output.buffer in outputs)
        for op in operations
        if op.output.buffer.layout is None
    }
    least = float("inf")
    for chosen in itertools.product(*options.values()):
        layouts = dict(zip(options, (layout for layout, _ in chosen), strict=True))
        preference = sum(price for _, price in chosen)
        least = min(least, total(operations, layouts) + preference)
    return least


def price_of(operations: list[Operation], outputs: set[Buffer], unknown: list[Buffer]) -> float:
    """Of the layouts that buffers have now."""
    preference = 0.0
    for op in operations:
        b = op.output.buffer
        if b in unknown:
            priced = dict(stickify._priced(op, stickify.candidates(op), b in outputs))
            preference += priced[b.layout]
    return total(operations, {}) + preference


def random_graph(seed: int) -> tuple[list[Operation], set[Buffer]]:
    """Three inputs with random sticks, and four operations on what there is."""
    random_ = random.Random(seed)
    n = 64
    known = [buffer(f"x{i}", (n, n), random_.choice([0, 1])) for i in range(3)]
    operations: list[Operation] = []
    for i in range(4):
        y = buffer(f"y{i}", (n, n))
        a, b = random_.choice(known), random_.choice(known)
        kind = random_.choice(["add", "transposed", "product", "rows", "columns"])
        if kind == "add":
            operations.append(pointwise("add", [a, b], y, (n, n)))
        elif kind == "transposed":
            operations.append(pointwise("add", [(a, p0 + n * p1), b], y, (n, n)))
        elif kind == "product":
            operations.append(matmul(a, b, y, n, n, n))
        else:
            row = buffer(f"s{i}", (n,))
            index = n * p0 + R[0] if kind == "rows" else n * R[0] + p0
            operations.append(reduction("sum", (a, index), row, (n,), n))
            operations.append(pointwise("sub", [b, (row, p0)], y, (n, n)))
        known.append(y)
    used = {access.buffer for op in operations for access in op.inputs}
    outputs = {op.output.buffer for op in operations} - used
    return operations, outputs


@pytest.mark.parametrize("seed", range(30))
def test_a_small_graph_gets_the_cheapest_of_all_assignments(seed: int) -> None:
    operations, outputs = random_graph(seed)
    unknown = [op.output.buffer for op in operations]
    least = best_of_all(operations, outputs)
    stickify.choose(operations, outputs)
    assert all(b.layout is not None for b in unknown)
    assert price_of(operations, outputs, unknown) == pytest.approx(least)


def chain_of_transposed_uses() -> tuple[list[Operation], set[Buffer]]:
    """y is used once as it is and twice with its sticks along the rows: what its producer would
    rather not give is best for all."""
    n = 128
    x, y = buffer("x", (n, n), 1), buffer("y", (n, n))
    others = [buffer(f"c{i}", (n, n), 0) for i in range(2)]
    results = [buffer(f"z{i}", (n, n), 0) for i in range(2)]
    operations = [pointwise("exp", [x], y, (n, n))]
    operations += [pointwise("add", [y, c], z, (n, n)) for c, z in zip(others, results)]
    return operations, set(results)


def test_a_later_use_can_decide_about_an_earlier_layout() -> None:
    operations, outputs = chain_of_transposed_uses()
    y = operations[0].output.buffer
    stickify.choose(operations, outputs)
    assert y.layout == along(y, 0) and total(operations, {}) == 128 * 128


def test_without_the_search_each_operation_decides_for_itself() -> None:
    operations, outputs = chain_of_transposed_uses()
    y = operations[0].output.buffer
    with config.patch(global_stick_optimizer=False):
        stickify.choose(operations, outputs)
    assert y.layout == along(y, 1) and total(operations, {}) == 2 * 128 * 128


def test_of_equal_choices_the_plain_one_is_taken() -> None:
    """Nothing but numbers: every layout costs nothing."""
    z = buffer("z", (64, 64))
    stickify.choose([pointwise("identity", [buffer("one", (), SPARSE)], z, (64, 64))], {z})
    assert z.layout == along(z, 1)


def test_a_result_takes_the_layout_in_which_it_will_be_used() -> None:
    z = buffer("z", (64, 64))
    z.wanted = along(z, 0)
    stickify.choose([pointwise("identity", [buffer("one", (), SPARSE)], z, (64, 64))], {z})
    assert z.layout == z.wanted


def test_the_layout_of_what_is_written_twice_is_chosen_once() -> None:
    x, y, z = buffer("x", (64, 64), 0), buffer("y", (64, 64)), buffer("z", (64, 64), 0)
    first = pointwise("exp", [x], y, (64, 64))
    again = pointwise("add", [y, x], y, (64, 64))
    stickify.choose([first, again, pointwise("abs", [y], z, (64, 64))], {z})
    assert y.layout == along(y, 0)


# ---- Products that are transposed ---------------------------------------------------------------


@pytest.mark.parametrize("stick", [0, 1])
def test_a_product_whose_result_is_wanted_by_columns_swaps_its_operands(stick: int) -> None:
    m, n, k = 64, 128, 192
    x, y, z = buffer("x", (m, k), 1), buffer("y", (k, n), 1), buffer("z", (m, n))
    z.wanted = along(z, stick)
    product = matmul(x, y, z, m, n, k)
    found = stickify.as_wanted(product)
    if stick == 1:
        assert found is product
        return
    assert [a.buffer for a in found.inputs] == [y, x] and found.info["n"] == p0
    assert list(found.ranges) == [p1, p0, product.reduced[0]] and found.ranges[p0] == m
    x.layout, y.layout, z.layout = along(x, 0), along(y, 0), along(z, 0)
    assert needs(found, {}) == [], "sticks along K in what is now x, along N in y and the result"


# ---- The whole stage -----------------------------------------------------------------------------


def test_one_copy_serves_all_who_want_it_in_a_kernel_and_none_in_the_next() -> None:
    n = 128
    x = buffer("x", (n, n), 0)
    others = [buffer(f"c{i}", (n, n), 1) for i in range(3)]
    results = [buffer(f"z{i}", (n, n), 1) for i in range(3)]
    operations = [pointwise("add", [x, c], z, (n, n)) for c, z in zip(others, results)]
    found, copies = stickify.stickify(operations, set(results), {0, 2})
    assert [op.opfunc for op in found] == [
        "ReStickifyOpHBM",
        "add",
        "add",
        "ReStickifyOpHBM",
        "add",
    ]
    assert [(c.buffer, c.elements) for c in copies] == [("x", n * n)] * 2
    assert found[1].inputs[0].buffer is found[2].inputs[0].buffer
    assert all(op.spec is not None for op in found)
