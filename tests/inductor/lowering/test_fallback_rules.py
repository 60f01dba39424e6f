"""What the card cannot do, and the reason that is given: each rule with what is just allowed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import sympy
import torch

from tests.support.operations import P, access, buffer, pointwise
from torch_spyre._inductor.errors import NoOpFunc
from torch_spyre._inductor.inspect import debug_dir
from torch_spyre._inductor.lowering import fallback_rules as rules
from torch_spyre._inductor.operations.operation import Operation

p0, p1, *_ = P
aten = torch.ops.aten


# ---- Before lowering -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target",
    [aten.scatter.src, aten.scatter_add.default, aten.index_add.default, aten.scatter_reduce.two,
     aten.index_reduce.default, aten.masked_scatter.default, aten._masked_scatter
     if hasattr(aten, "_masked_scatter") else aten.scatter_.src],
)  # fmt: skip
def test_stores_of_single_elements_are_not_tried(target: Any) -> None:
    assert rules.never(target) == "the card has no indirect stores of single elements"


@pytest.mark.parametrize(
    "target",
    [aten.add.Tensor, aten.index.Tensor, aten.index_put.default, aten.index_select.default],
)
def test_all_else_is_tried(target: Any) -> None:
    assert rules.never(target) == ""


def node(*values: Any, inputs: tuple[Any, ...] = (), target: Any = aten.add.Tensor) -> Any:
    """A node of an FX graph, with the values of its inputs."""
    graph = torch.fx.Graph()
    made = []
    for i, value in enumerate(inputs):
        made.append(graph.placeholder(f"x{i}"))
        made[-1].meta["val"] = value
    found = graph.call_function(target, tuple(made))
    found.meta["val"] = values[0] if len(values) == 1 else values
    return found


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def test_eight_dimensions_are_the_most_and_those_of_size_1_do_not_count() -> None:
    assert rules.has_many_dimensions(None) == ""
    assert rules.has_many_dimensions(node(meta(*[2] * 8), inputs=(meta(*[2] * 8),))) == ""
    assert rules.has_many_dimensions(node(meta(*[2] * 8, 1, 1))) == ""
    nine = "an operation of the card has 8 dimensions at most, this has 9"
    assert rules.has_many_dimensions(node(meta(*[2] * 9))) == nine
    assert rules.has_many_dimensions(node(meta(4), inputs=(meta(*[2] * 9, 1),))) == nine
    assert rules.has_many_dimensions(node(meta(4), meta(*[2] * 9))) == nine


def test_a_reshape_into_many_dimensions_is_copied_first_unless_it_is_a_view() -> None:
    many, flat = meta(3, *[2] * 9), meta(1536)
    assert not rules.is_copied_first(node(many, inputs=(flat,), target=aten.view.default))
    permuted = meta(96, 16).t()  # 3 does not divide 16: rows would have to be put together
    assert rules.is_copied_first(node(many, inputs=(permuted,), target=aten.reshape.default))
    assert not rules.is_copied_first(node(many, inputs=(permuted,), target=aten.add.Tensor))
    few = meta(3, 512)
    assert not rules.is_copied_first(node(few, inputs=(permuted,), target=aten.reshape.default))
    gaps = meta(3, 1024)[:, :512]  # each row can be taken apart as it lies
    assert not rules.is_copied_first(node(many, inputs=(gaps,), target=aten.reshape.default))


def test_a_size_that_depends_on_values_leaves_the_node_to_the_host() -> None:
    assert rules.size_is_open(None) == "" and rules.size_is_open(node(meta(4))) == ""

    def chosen(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0] * 2

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        graph, _ = torch._dynamo.export(chosen, aten_graph=True)(torch.randn(8))
    product = next(n for n in graph.graph.nodes if n.target is aten.mul.Tensor)
    assert rules.size_is_open(product) == "a size depends on the values of a tensor"
    smaller = next(n for n in graph.graph.nodes if n.target is aten.gt.Scalar)
    assert rules.size_is_open(smaller) == ""


# ---- Rows by index -------------------------------------------------------------------------------

ROW = sympy.Symbol("indirect0", integer=True, nonnegative=True)


def gather(
    index: sympy.Expr, table: tuple[int, ...] = (1000, 256), rows: sympy.Expr = p0, kind: str = ""
) -> Operation:
    """z[p0, p1] = table[index] for 8 rows of 256."""
    t, i, z = buffer("t", table), buffer("i", (8, 256), dtype=torch.int64), buffer("z", (8, 256))
    op = pointwise("identity", [(t, index)], z, (8, 256), kind or "gather")
    if kind == "scatter":
        op.inputs, op.output = [access(z, (p0, p1))], access((t, index), ())
    op.gather, op.info = {ROW: access((i, rows), ())}, {"rows": {ROW: table[0]}}
    return op


def test_whole_rows_of_a_whole_table_are_gathered_and_scattered() -> None:
    rules._check_rows(gather(256 * ROW + p1))
    rules._check_rows(gather(256 * ROW + p1, kind="scatter"))


@pytest.mark.parametrize(
    ("op", "words"),
    [
        (gather(256 * ROW + p1, rows=256 * p0 + p1), "the same row for all that is not indexed"),
        (gather(256 * ROW + p1 + 256), "rows of whole tensors, not of views"),
        (gather(512 * ROW + p1, (1000, 512)), "rows of whole tensors, not of views"),
        (gather(256 * ROW + 2 * p1, (1000, 256)), "rows of whole tensors, not of views"),
        (gather(ROW, (1000,), kind="scatter"), "no indirect stores of single elements"),
    ],
)
def test_other_rows_are_left_to_the_host(op: Operation, words: str) -> None:
    with pytest.raises(NoOpFunc, match=words):
        rules._check_rows(op)


def test_single_elements_are_gathered_from_small_tables_only() -> None:
    """A stick of 128 bytes for each element: 64 MB are 1 << 19 of them."""
    rules._check_rows(gather(ROW, (1 << 19,)))
    with pytest.raises(NoOpFunc, match="a stick for each element is too much"):
        rules._check_rows(gather(ROW, ((1 << 19) + 1,)))


# ---- Reasons -------------------------------------------------------------------------------------


def test_a_reason_is_remembered_for_each_operation_from_the_first_on() -> None:
    operations = [SimpleNamespace(get_operation_name=lambda i=i: f"op{i}") for i in range(3)]
    graph = SimpleNamespace(operations=operations)
    rules.note_fallback(graph, 1, "why")
    assert dict(rules.state.of(graph, rules.FallbackReasons)) == {"op1": "why", "op2": "why"}


def test_the_usual_reasons() -> None:
    assert rules._usual_reason(aten.rand.default) == "random numbers are those of eager PyTorch"
    assert rules._usual_reason(aten.cummax.default) == "there is no lowering of it for the card"


def test_a_host_step_has_its_reason_its_line_and_the_shapes_of_its_inputs() -> None:
    x = torch.randn(64, 128).half().to("spyre")

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cummax(torch.relu(x), 0).values + 1

    torch._dynamo.reset()
    with debug_dir.listen() as record:
        torch.compile(function)(x)
    (plan,) = record.plans
    (step,) = plan.fallbacks
    assert step.op.startswith("aten.cummax") and step.reason and step.shapes == ("64x128",)
    assert step.kernels_before == 1 and len(plan.kernels) == 2
    assert "test_fallback_rules.py" in step.source and "cummax" in step.source
