"""Coordinates of views, and their alignment, against a placement worked out element by element."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass

import pytest
import sympy
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from sympy import Integer, Mod, Symbol, floor
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

import torch_spyre
from torch_spyre._C import DataFormats, SpyreTensorLayout
from torch_spyre._inductor.opspec.alignment import align
from torch_spyre._inductor.opspec.coordinates import (
    Misaligned,
    Stick,
    compute_coordinates,
    stick_expression,
)
from torch_spyre._inductor.opspec.op_spec import IndirectAccess, OpSpec, TensorArg

c0, c1, c2, z0, z1 = sympy.symbols("c0 c1 c2 z0 z1")
FP16 = DataFormats.SEN169_FP16
INT32 = DataFormats.IEEE_INT32


def coordinates(size, ranges, index, dtype=torch.float16):
    layout = SpyreTensorLayout(size, dtype)
    return compute_coordinates(layout.device_size, layout.stride_map, ranges, index)


def arg(device_size, coords, stride_map=None, is_input=True, dtype=FP16, name=None):
    exprs = [sympy.sympify(c) for c in coords]
    return TensorArg(is_input, 0, dtype, device_size, exprs, {"hbm": 0}, stride_map, name=name)


def sizes(op):
    return {str(symbol): size for symbol, (size, _) in op.iteration_space.items()}


# ---- Coordinates ---------------------------------------------------------------------------------


def test_rows_of_a_matrix_lie_beside_the_stick():
    assert coordinates([128, 256], {c0: 128, c1: 256}, 256 * c0 + c1) == [
        floor(c1 / 64),
        c0,
        Mod(c1, 64),
    ]


def test_float32_has_sticks_of_32():
    found = coordinates([128, 256], {c0: 128, c1: 256}, 256 * c0 + c1, torch.float32)
    assert found == [floor(c1 / 32), c0, Mod(c1, 32)]


def test_a_flattened_dimension_gives_its_digits_to_two_axes():
    found = coordinates([50, 10, 200], {c0: 500, c1: 200}, 200 * c0 + c1)
    assert found == [Mod(c0, 10), floor(c1 / 64), floor(c0 / 10), Mod(c1, 64)]


def test_a_slice_of_rows_is_a_constant():
    found = coordinates([128, 256], {c0: 64, c1: 256}, 256 * c0 + c1 + 32 * 256)
    assert found == [floor(c1 / 64), c0 + 32, Mod(c1, 64)]


def test_a_slice_of_whole_sticks_moves_the_axis_of_sticks():
    found = coordinates([128, 256], {c0: 128, c1: 100}, 256 * c0 + c1 + 64)
    assert found == [floor(c1 / 64) + 1, c0, Mod(c1, 64)]


def test_an_offset_inside_of_the_stick_stays_visible():
    found = coordinates([128, 256], {c0: 128, c1: 200}, 256 * c0 + c1 + 32)
    assert stick_expression(found) == Stick(c1, 32)


def test_size_1_axes_and_broadcast_axes_get_0():
    assert coordinates([4, 1], {c0: 4, c1: 8}, c0) == [0, c0, 0]
    found = compute_coordinates([1, 512, 64], [64, 0, 1], {c0: 512, c1: 60}, c1)
    assert found == [0, 0, c1]


def test_inductor_functions_are_understood():
    index = 200 * ModularIndexing(c0, 10, 50) + 10000 * ModularIndexing(c0, 1, 10) + c1
    found = coordinates([10, 50, 200], {c0: 500, c1: 200}, index)
    assert found == [floor(c0 / 10), floor(c1 / 64), Mod(c0, 10), Mod(c1, 64)]
    found = coordinates([50, 200], {c0: 500, c1: 200}, 200 * FloorDiv(c0, 10) + c1)
    assert found == [floor(c1 / 64), floor(c0 / 10), Mod(c1, 64)]


def test_a_repeated_dimension_keeps_its_modulus():
    found = coordinates([10, 200], {c0: 50, c1: 200}, 200 * Mod(c0, 10) + c1)
    assert found == [floor(c1 / 64), Mod(c0, 10), Mod(c1, 64)]


def test_padded_rows_read_as_one_have_two_moduli():
    found = coordinates([512, 240], {c0: 512 * 240}, c0)
    assert found == [floor(Mod(c0, 240) / 64), floor(c0 / 240), Mod(Mod(c0, 240), 64)]


def test_a_gathered_row_is_its_index():
    row = IndirectAccess(Symbol("idx"))
    found = coordinates([1000, 256], {c0: 7, c1: 256}, 256 * row + c1)
    assert found == [floor(c1 / 64), row, Mod(c1, 64)]


@pytest.mark.parametrize(
    "index, reason",
    [
        (200 * c0 + c1 + 3 * 200, "carry"),  # x.flatten(0, 1)[3:]
        (-200 * c0 + c1 + 200 * 499, "backwards"),
        (300 * c0 + c1, "a step of 300 against a stride of 200"),
        (200 * c0 * c1, "not linear"),
        (200 * Symbol("other") + c1, "not a symbol"),
        (200 * IndirectAccess(Symbol("i")) * 3 + c1, "no axis's stride"),
    ],
)
def test_what_coordinates_cannot_say_is_refused_with_a_reason(index, reason):
    with pytest.raises(Misaligned, match=reason):
        coordinates([50, 10, 200], {c0: 490, c1: 200}, index)


def test_legal_sticks():
    assert stick_expression([c0, Mod(c1, 64)]) == Stick(c1, 0)
    assert stick_expression([c0, c1 + 5]) == Stick(c1, 5)
    assert stick_expression([c0, Integer(0)]) == Stick(None, 0)
    for illegal in (2 * c1, c0 + c1, floor(c1 / 2), Mod(c0, 8) + Mod(c1, 8)):
        with pytest.raises(Misaligned):
            stick_expression([c0, illegal])


# ---- Alignment -----------------------------------------------------------------------------------


def flatten_add():
    ranges = {c0: 500, c1: 200}
    layouts = [SpyreTensorLayout(s, torch.float16) for s in ([50, 10, 200], [500, 200])]
    x, y = (
        arg(
            list(layout.device_size),
            compute_coordinates(layout.device_size, layout.stride_map, ranges, 200 * c0 + c1),
            list(layout.stride_map),
        )
        for layout in layouts
    )
    out = arg(y.device_size, y.device_coordinates, y.stride_map, is_input=False)
    return OpSpec("add", False, {c0: (500, 20), c1: (200, 1)}, [x, y, out])


def test_a_flattened_operand_splits_the_symbol_of_all():
    op = align(flatten_add())
    assert sizes(op) == {"z0": 50, "c0": 10, "c1": 200}
    x, y, _ = op.args
    assert x.device_coordinates == [c0, floor(c1 / 64), z0, Mod(c1, 64)]
    assert y.device_size == [4, 50, 10, 64]
    assert y.device_coordinates == [floor(c1 / 64), z0, c0, Mod(c1, 64)]
    assert y.stride_map == [64, 2000, 200, 1]


def test_slices_go_to_the_outermost_part_first():
    op = align(flatten_add())
    assert op.iteration_space[z0] == (50, 10)
    assert op.iteration_space[c0] == (10, 2)


def test_aligning_twice_changes_nothing():
    op = align(flatten_add())
    assert align(op) == op


def test_steps_over_rows_become_an_axis_of_the_rows_between():
    coords = coordinates([126, 64], {c0: 42, c1: 64}, 64 * 3 * c0 + c1)
    x = arg([1, 126, 64], coords)
    out = arg([1, 42, 64], [0, c0, c1], is_input=False)
    op = align(OpSpec("neg", False, {c0: (42, 1), c1: (64, 1)}, [x, out]))
    assert op.args[0].device_size == [1, 42, 3, 64]
    assert op.args[0].device_coordinates == [floor(c1 / 64), c0, z0, c1]
    assert sizes(op) == {"z0": 1, "c0": 42, "c1": 64}


def test_a_constant_in_a_long_axis_becomes_a_symbol_of_range_1_in_all_tensors():
    coords = coordinates([8, 4, 64], {c0: 4, c1: 64}, 64 * c0 + c1 + 5 * 256)
    op = align(
        OpSpec(
            "neg",
            False,
            {c0: (4, 1), c1: (64, 1)},
            [arg([4, 1, 8, 64], coords), arg([1, 4, 64], [0, c0, c1], is_input=False)],
        )
    )
    assert sizes(op) == {"z0": 1, "c0": 4, "c1": 64}
    assert op.args[0].device_coordinates == [c0, floor(c1 / 64), z0 + 5, c1]
    assert z0 in op.args[1].device_coordinates


def test_contiguous_axes_of_one_symbol_are_fused():
    x = arg([5, 10, 64], [floor(c0 / 10), Mod(c0, 10), c1])
    out = arg([50, 64], [c0, c1], is_input=False)
    op = align(OpSpec("neg", False, {c0: (50, 1), c1: (64, 1)}, [x, out]))
    assert sizes(op) == {"c0": 50, "c1": 64}
    assert op.args[0].device_size == op.args[1].device_size == [1, 50, 64]


def test_ranks_are_equal_and_the_stick_has_an_axis():
    x = arg([4, 128, 64], [floor(c1 / 64), c0, Mod(c1, 64)])
    out = arg([4, 64], [floor(c1 / 64), Mod(c1, 64)], is_input=False)
    op = align(OpSpec("sum", True, {c0: (128, 1), c1: (256, 1)}, [x, out]))
    assert op.args[1].device_size == [1, 4, 64]
    assert op.args[1].device_coordinates == [0, floor(c1 / 64), Mod(c1, 64)]


def test_a_stick_that_repeats_is_no_stick_split():
    x = arg([1, 64], [0, Mod(c1, 64)], [64, 1])
    out = arg([4, 64], [floor(c1 / 64), Mod(c1, 64)], is_input=False)
    op = align(OpSpec("neg", False, {c1: (256, 1)}, [x, out]))
    assert sizes(op) == {"z0": 4, "c1": 64}
    assert op.args[1].device_coordinates == [floor(c1 / 64), z0, c1]


def test_a_copy_between_sticks_is_a_restickify():
    x = arg([4, 128, 64], [floor(c1 / 64), c0, Mod(c1, 64)])
    out = arg([2, 256, 64], [floor(c0 / 64), c1, Mod(c0, 64)], is_input=False)
    op = align(OpSpec("identity", False, {c0: (128, 1), c1: (256, 1)}, [x, out]))
    assert op.op == "ReStickifyOpHBM"
    assert sizes(op) == {"c0": 128, "c1": 256}


@pytest.mark.parametrize("columns, opfunc", [(64, "ReStickifyOpHBM"), (32, "relayout")])
def test_heads_of_whole_sticks_are_restickified_where_they_are(columns, opfunc):
    """A view of a result as heads: only those that cut sticks need the extension."""

    def f(x):
        heads = torch.relu(x).view(100, -1, columns).transpose(0, 1)
        return heads @ heads.transpose(1, 2)

    x = torch.randn(100, 128, generator=torch.Generator().manual_seed(0)).half()
    torch._dynamo.reset()
    told = torch_spyre.explain(f, x.to("spyre"))
    copies = {op.opfunc for op in told.ops} & {"ReStickifyOpHBM", "relayout"}
    assert copies == {opfunc}
    with torch.spyre.sanitizer():
        result = torch.compile(f)(x.to("spyre")).cpu()
    torch.testing.assert_close(result.float(), f(x.float()), rtol=1e-2, atol=1e-2)


def test_matmul_gets_the_dimensions_it_lacks_and_their_order():
    k = c2
    x = arg([2, 64], [floor(k / 64), Mod(k, 64)])
    y = arg([8, 128, 64], [floor(c1 / 64), k, Mod(c1, 64)])
    out = arg([8, 64], [floor(c1 / 64), Mod(c1, 64)], is_input=False)
    op = align(OpSpec("batchmatmul", True, {c1: (512, 1), k: (128, 1)}, [x, y, out]))
    assert sizes(op) == {"z0": 1, "c1": 512, "c2": 128}
    assert [z0 in a.device_coordinates for a in op.args] == [True, False, True]

    x = arg([2, 30, 64], [floor(k / 64), c0, Mod(k, 64)])
    y = arg([1, 128, 64], [0, k, 0], [-1, 1, -1])
    out = arg([1, 30, 64], [0, c0, 0], [-1, 1, -1], is_input=False)
    op = align(OpSpec("batchmatmul", True, {c0: (30, 1), k: (128, 1)}, [x, y, out]))
    assert sizes(op) == {"c0": 30, "z0": 1, "c2": 128}
    assert op.args[1].device_coordinates == [floor(z0 / 64), k, z0]


def test_casts_of_vectors_get_a_second_dimension():
    x = arg([2, 64], [floor(c0 / 64), Mod(c0, 64)])
    out = arg([4, 32], [floor(c0 / 32), Mod(c0, 32)], is_input=False, dtype=DataFormats.IEEE_FP32)
    op = align(OpSpec("dl16tofp32", False, {c0: (128, 1)}, [x, out]))
    assert sizes(op) == {"z0": 1, "c0": 128}
    assert align(op) == op


def test_loops_advance_the_outermost_part_of_their_symbol():
    op = flatten_add()
    op.tiled_symbols = [c0]
    assert align(op).tiled_symbols == [z0]


@pytest.mark.parametrize(
    "x, out, space, reason",
    [
        # half a stick of offset
        ([floor(c1 / 64), c0, Mod(c1, 64) + 32], None, {c0: 128, c1: 128}, "lane 32"),
        # a transposed operand
        ([floor(c0 / 64), c1, Mod(c0, 64)], None, {c0: 128, c1: 256}, "different sticks"),
        # a diagonal
        ([Integer(0), c0, c0], None, {c0: 64}, "an axis and over the stick"),
        # columns in steps of 2
        ([Integer(0), c0, 2 * c1], None, {c0: 128, c1: 32}, "steps"),
        # too long
        ([floor(c1 / 64), c0 + 100, Mod(c1, 64)], None, {c0: 128, c1: 256}, "end of an axis"),
    ],
)
def test_what_cannot_be_aligned_is_refused_with_a_reason(x, out, space, reason):
    layout = [max(4, -(-max(space.values()) // 64)), 256 if x[1] == c1 else 128, 64]
    target = [floor(c1 / 64), c0, Mod(c1, 64)] if c1 in space else [floor(c0 / 64), Mod(c0, 64)]
    output = arg(layout[-len(target) :], target, is_input=False)
    op = OpSpec("neg", False, {s: (n, 1) for s, n in space.items()}, [arg(layout, x), output])
    with pytest.raises(Misaligned, match=reason):
        align(op)


def test_one_lane_of_a_full_stick_is_no_value_for_all_lanes():
    x = arg([4, 128, 64], [0, c0, 0], [64, 256, 1])
    out = arg([1, 128, 64], [0, c0, 0], [-1, 1, -1], is_input=False)
    with pytest.raises(Misaligned, match="one lane"):
        align(OpSpec("neg", False, {c0: (128, 1)}, [x, out]))


def test_an_index_of_one_element_gets_a_symbol():
    row = IndirectAccess(Symbol("idx"))
    index = arg([1, 32], [0, 0], [-1, -1], dtype=INT32, name="idx")
    x = arg([4, 100, 64], [floor(c1 / 64), row, Mod(c1, 64)])
    out = arg([4, 64], [floor(c1 / 64), Mod(c1, 64)], is_input=False)
    op = align(OpSpec("identity", False, {c1: (256, 1)}, [index, x, out]))
    assert sizes(op) == {"z0": 1, "c1": 256}
    assert op.args[0].device_coordinates[-1] == z0


# ---- Any view, element by element ----------------------------------------------------------------


@dataclass
class Placed:
    """A tensor with its layout, and where each of its elements lies by definition."""

    layout: SpyreTensorLayout
    address: dict[int, int]
    """Element of the storage to element of the device memory."""


def place(size, order):
    strides = [math.prod(size[d + 1 :]) for d in range(len(size))]
    layout = SpyreTensorLayout(size, strides, torch.float16, order)
    stick = order[-1]
    axes = [order[0], order[0]] if len(order) == 1 else [*order[1:], order[0], order[-1]]
    address = {}
    for point in itertools.product(*map(range, size)):
        flat = 0
        for j, dim in enumerate(axes):
            i = point[dim]
            if j == len(axes) - 1:
                i %= 64
            elif dim == stick:
                i //= 64
            flat = flat * layout.device_size[j] + i
        address[sum(i * s for i, s in zip(point, strides))] = flat
    return Placed(layout, address)


@st.composite
def views(draw):
    """A storage, a chain of views of it, and the index that Inductor would make of them."""
    rank = draw(st.integers(1, 3))
    size = [draw(st.sampled_from([1, 2, 3, 4, 6])) for _ in range(rank)]
    long = draw(st.integers(0, rank - 1))
    size[long] = draw(st.sampled_from([5, 64, 100, 128, 192]))
    order = draw(st.permutations(range(rank)))
    if draw(st.booleans()):
        order = [d for d in range(rank) if d != long] + [long]
    storage = torch.arange(math.prod(size)).reshape(size)
    view, parts = storage, [[(n, s)] for n, s in zip(storage.shape, storage.stride())]
    offset = 0
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(["slice", "permute", "flatten", "expand"]))
        if kind == "slice":
            d = draw(st.integers(0, view.dim() - 1))
            if len(parts[d]) == 1 and view.shape[d] > 1:
                (n, s) = parts[d][0]
                start = draw(st.sampled_from([0, 1, n // 2 // 64 * 64]))
                step = draw(st.sampled_from([1, 1, 2]))
                view = view.narrow(d, start, n - start)[
                    (slice(None),) * d + (slice(None, None, step),)
                ]
                parts[d] = [(view.shape[d], s * step)]
                offset += start * s
        elif kind == "permute":
            perm = draw(st.permutations(range(view.dim())))
            view, parts = view.permute(perm), [parts[d] for d in perm]
        elif kind == "flatten" and view.dim() > 1:
            d = draw(st.integers(0, view.dim() - 2))
            view = view.flatten(d, d + 1)
            parts[d : d + 2] = [parts[d] + parts[d + 1]]
        elif kind == "expand":
            n = draw(st.sampled_from([2, 3]))
            view, parts = view.unsqueeze(0).expand(n, *view.shape), [[(n, 0)], *parts]
    assume(view.numel() <= 4096)
    return size, list(order), view, parts, offset


def index_of(parts, offset, symbols):
    """The index over one symbol per dimension, each made of digits."""
    index = Integer(offset)
    for symbol, digits in zip(symbols, parts):
        above = 1
        total = math.prod(n for n, _ in digits)
        for n, stride in reversed(digits):
            if n * above == total:
                digit = FloorDiv(symbol, above) if above > 1 else symbol
            else:
                digit = ModularIndexing(symbol, above, n)
            index = index + stride * digit
            above *= n
    return index


def walk(op):
    """For each point the element that each tensor's coordinates give."""
    symbols = list(op.iteration_space)
    functions = [
        sympy.lambdify(symbols, a.device_coordinates, [{"Mod": lambda a, b: a % b}, "math"])
        for a in op.args
    ]
    found: Counter[tuple[int, ...]] = Counter()
    for point in itertools.product(*(range(n) for n, _ in op.iteration_space.values())):
        addresses = []
        for a, function in zip(op.args, functions):
            flat = 0
            for size, i in zip(a.device_size, function(*point)):
                assert 0 <= i < size
                flat = flat * size + i
            addresses.append(flat)
        found[tuple(addresses)] += 1
    return found


def aligned_copy(case):
    """A view copied into a new tensor in default layout: the operation, and what it must move."""
    size, order, view, parts, offset = case
    source = place(size, order)
    shape = list(view.shape)
    target = place(shape, list(range(len(shape))))
    symbols = sympy.symbols(f"c:{len(shape)}")
    space = {s: n for s, n in zip(symbols, shape) if n > 1}
    present = {s: 0 for s, n in zip(symbols, shape) if n == 1}
    args = []
    for placed, index in (
        (source, index_of(parts, offset, symbols)),
        (target, sum(s * n for s, n in zip(symbols, torch.empty(shape).stride()))),
    ):
        layout = placed.layout
        index = sympy.sympify(index).subs(present)
        coords = compute_coordinates(layout.device_size, layout.stride_map, space, index)
        args.append(arg(list(layout.device_size), coords, list(layout.stride_map)))
    args[-1].is_input = False
    expected: Counter[tuple[int, ...]] = Counter()
    for number, element in enumerate(view.reshape(-1).tolist()):
        expected[source.address[element], target.address[number]] += 1
    return OpSpec("identity", False, {s: (n, 1) for s, n in space.items()}, args), expected


def test_aligned_coordinates_find_every_element_of_any_view():
    outcomes: Counter[str] = Counter()

    @settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
    @given(views())
    def check(case):
        try:
            op, expected = aligned_copy(case)
            op = align(op)
        except Misaligned:
            outcomes["refused"] += 1
            return
        outcomes["aligned"] += 1
        assert walk(op) == expected
        assert align(op) == op
        for a in op.args:
            symbols = [coordinate.free_symbols for coordinate in a.device_coordinates[:-1]]
            assert all(len(s) <= 1 for s in symbols)

    check()
    assert outcomes["aligned"] >= outcomes["refused"] / 2, "most views need no copy"


def test_more_dimensions_than_there_are_labels_are_refused():
    symbols = sympy.symbols("c:9")
    x = arg([2] * 8 + [64], symbols)
    out = arg([2] * 8 + [64], symbols, is_input=False)
    with pytest.raises(Misaligned, match="more than 8 dimensions"):
        align(OpSpec("neg", False, dict.fromkeys(symbols, (2, 1)), [x, out]))


@pytest.mark.parametrize("length", [33, 64, 96, 97, 128])
def test_parts_of_what_was_cast_to_float32_are_its_elements_in_order(length: int) -> None:
    """A cast spreads the elements of a 16-bit stick over a pair of sticks: half of them are not in
    one of the two."""

    def parts(x: torch.Tensor) -> list[torch.Tensor]:
        y = x.float() * 2
        pieces = [y[:32], y[32:], y[: length - 1], y[1:], y[32] + y[:3], y[::32] + 1]
        return [*(p.half() for p in pieces), torch.cat([y[:32] + 1, y[32:]]).half(), x.cumsum(0)]

    torch._dynamo.reset()
    x = torch.arange(length).half() % 7
    # No two cores write one of the pair, and no cast reads sticks after the last one.
    with torch.spyre.sanitizer():
        results = torch.compile(parts)(x.to("spyre"))
    for result, expected in zip(results, parts(x), strict=True):
        assert torch.equal(result.cpu(), expected)
