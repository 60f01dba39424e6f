"""OpSpecs of operations: the documented coordinates and constants, tensors in order."""

from __future__ import annotations

import pytest
import sympy
import torch
from sympy import Mod, floor

from tests.support.operations import P, R, access, buffer, matmul, pointwise, reduction
from torch_spyre._C import DataFormats, ElementArrangement
from torch_spyre._inductor.layouts.to_op_spec import (
    buffers_of,
    make_spec,
    outer_symbol_of,
    symbol_of,
)
from torch_spyre._inductor.operations.operation import Operation
from torch_spyre._inductor.opspec.coordinates import Misaligned
from torch_spyre._inductor.opspec.op_spec import IndirectAccess
from torch_spyre._inductor.opspec.validate import validate_op_spec

p0, p1, p2, *_ = P
C = sympy.symbols("c0:4", integer=True, nonnegative=True)
c0, c1, c2, _ = C


def test_kept_symbols_come_first_in_host_order_then_reduced_ones() -> None:
    x, z = buffer("x", (8, 4, 128), 2), buffer("z", (8, 4), -1)
    op = reduction("sum", x, z, (8, 4), 128)
    spec = make_spec(op)
    assert spec.iteration_space == {c0: (8, 1), c1: (4, 1), c2: (128, 1)} and spec.is_reduction
    assert [symbol_of(op, v) for v in (p0, p1, R[0])] == [c0, c1, c2]


def test_a_matrix_has_the_documented_coordinates() -> None:
    x, z = buffer("x", (128, 256), 1), buffer("z", (128, 256), 1)
    spec = make_spec(pointwise("exp", [x], z, (128, 256)))
    for arg in spec.args:
        assert arg.device_coordinates == [floor(c1 / 64), c0, Mod(c1, 64)]
        assert arg.device_size == [4, 128, 64] and arg.device_dtype == DataFormats.SEN169_FP16
    assert [a.is_input for a in spec.args] == [True, False]


def test_a_transposed_view_has_the_coordinates_of_the_other_symbol() -> None:
    x, z = buffer("x", (128, 32), 0), buffer("z", (32, 128), 1)
    spec = make_spec(pointwise("exp", [(x, p0 + 32 * p1)], z, (32, 128)))
    assert spec.args[0].device_coordinates == [floor(c1 / 64), c0, Mod(c1, 64)]
    assert spec.args[0].device_size == [2, 32, 64]


def test_the_tensors_of_a_gather_are_table_index_result() -> None:
    row = sympy.Symbol("indirect0", integer=True, nonnegative=True)
    table, index, z = (buffer("t", (1000, 256), 1), buffer("i", (8,), 0, torch.int64),
                       buffer("z", (8, 256), 1))  # fmt: skip
    op = pointwise("identity", [(table, 256 * row + p1)], z, (8, 256), "gather")
    op.gather, op.info = {row: access((index, p0), (p0, p1))}, {"rows": {row: 1000}}
    spec = make_spec(op)
    assert buffers_of(op) == [table, index, z]
    assert [(a.is_input, a.name) for a in spec.args] == [
        (True, None), (True, "indirect0"), (False, None)
    ]  # fmt: skip
    assert spec.args[0].device_coordinates[1] == IndirectAccess(sympy.Symbol("indirect0"))
    assert spec.args[1].device_dtype == DataFormats.IEEE_INT32


@pytest.mark.parametrize(
    ("opfunc", "constants"),
    [
        ("sum", None),
        ("mean", {"scaling_factor": 1 / 128}),
        ("exx2", {"exx2scale": 1 / 128, "useZeroMean": 0.0}),
    ],
)
def test_a_reduction_knows_of_how_many_elements(
    opfunc: str, constants: dict[str, float] | None
) -> None:
    spec = make_spec(reduction(opfunc, buffer("x", (8, 128), 1), buffer("z", (8,), -1), (8,), 128))
    assert spec.op_info.get("constants") == constants


def test_constants_of_an_opfunc_and_the_k_of_a_topk_are_kept() -> None:
    x, z = buffer("x", (8, 128), 1), buffer("z", (8, 128), 1)
    clip = pointwise("clip", [x], z, (8, 128))
    clip.info = {"constants": {"clipMin": 0.0, "clipMax": 6.0}}
    assert make_spec(clip).op_info == {"constants": {"clipMin": 0.0, "clipMax": 6.0}}
    topk = reduction("topkvalue", (buffer("x", (8, 128), 0), 128 * p0 + R[0]),
                     buffer("y", (8, 4), 0), (8, 4), 128)  # fmt: skip
    topk.kind, topk.info = "topk", {"k": 4, "k_symbol": p1}
    assert make_spec(topk).op_info["k"] == 4


def test_a_relayout_gets_views_of_storages_in_place_of_coordinates() -> None:
    """Columns 3 to 11 of (4, 200), written in rows of 8."""
    x, z = buffer("x", (4, 200), 1), buffer("z", (4, 8), 1)
    op = pointwise("relayout", [(x, 200 * p0 + p1 + 3)], z, (4, 8), "copy")
    info = make_spec(op).op_info["relayout"]
    assert info["input"] == {
        "device_size": [4, 4, 64], "stride_map": [64, 200, 1], "size": [4, 200],
        "stride": [200, 1], "view_stride": [200, 1], "offset": 3,
    }  # fmt: skip
    assert info["output"]["view_stride"] == [8, 1] and info["output"]["offset"] == 0


def test_a_tensor_that_was_made_for_another_shape_is_relaid_from_that_one() -> None:
    x, z = buffer("x", (4, 64), 1), buffer("z", (4, 64), 1)
    x.placed = (256,), (1,)
    info = make_spec(pointwise("relayout", [x], z, (4, 64), "copy")).op_info["relayout"]
    assert (info["input"]["size"], info["input"]["stride"]) == ([256], [1])


def test_the_order_of_lanes_is_named() -> None:
    moments = buffer("m", (8,), -1, arrangement=ElementArrangement.EXX2)
    spec = make_spec(reduction("exx2", buffer("x", (8, 128), 1), moments, (8,), 128))
    assert [a.element_arrangement for a in spec.args] == ["STANDARD", "EXX2"]


def test_of_a_dimension_that_lies_in_two_parts_the_outer_one_is_tiled() -> None:
    """32 rows of a (4, 8, 128) tensor: its symbol becomes one of 8 and one of 4."""
    x, z = buffer("x", (4, 8, 128), 2), buffer("z", (32, 128), 1)
    op = pointwise("exp", [(x, 128 * p0 + p1)], z, (32, 128))
    sizes = {s: n for s, (n, _) in make_spec(op).iteration_space.items()}
    assert sorted(sizes.values()) == [4, 8, 128]
    assert sizes[outer_symbol_of(op, p0)] == 4 and sizes[outer_symbol_of(op, p1)] == 128


def test_what_coordinates_cannot_express_is_misaligned() -> None:
    x, z = buffer("x", (10, 200), 1), buffer("z", (2000,), 0)
    with pytest.raises(Misaligned):
        make_spec(Operation("exp", "pointwise", {p0: 2000}, (), [access((x, p0), (p0,))],
                            access(z, (p0,))))  # fmt: skip


def test_the_spec_of_a_product_breaks_no_rule() -> None:
    x, y, z = buffer("x", (64, 192), 1), buffer("y", (192, 128), 1), buffer("z", (64, 128), 1)
    spec = make_spec(matmul(x, y, z, 64, 128, 192))
    for number, arg in enumerate(spec.args):
        arg.allocation, arg.arg_index = {"hbm": number << 34}, number
    validate_op_spec(spec)
