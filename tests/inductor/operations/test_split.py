"""Expressions cut into operations: one OpFunc each, and the same numbers."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
import torch

from tests.support.interpret import Memory
from tests.support.operations import P, R
from torch_spyre._inductor.errors import NoOpFunc, UnsupportedType
from torch_spyre._inductor.operations.operation import (
    Access,
    Buffer,
    Operation,
    Origin,
    contiguous_strides,
)
from torch_spyre._inductor.operations.opfunc_map import (
    Constant,
    DotOp,
    Load,
    PointwiseOp,
    SpyreOpFuncs,
    Value,
    opfunc,
)
from torch_spyre._inductor.operations.split import Splitter, constant_of, typed_for
from torch_spyre._inductor.operations.trace import Body

p0, p1, *_ = P
r0, r1, _ = R
HALF, FLOAT, INT = torch.float16, torch.float32, torch.int64
OPS: Any = SpyreOpFuncs


class Case:
    """Buffers of a body, and what becomes of it."""

    def __init__(self, **buffers: tuple[int, ...]) -> None:
        self.memory = Memory()
        self.buffers = {}
        for name, size in buffers.items():
            self.buffers[name] = Buffer(name, size, contiguous_strides(size), HALF)
            count = self.buffers[name].elements
            self.memory[self.buffers[name]] = torch.arange(1, count + 1).to(HALF) / 8
        self.constants: dict[tuple[str, Any], Buffer] = {}

    def load(self, name: str, index: sympy.Expr) -> Load:
        return Load(self.buffers[name].dtype, name, sympy.sympify(index))

    def split(
        self,
        value: Value,
        size: tuple[int, ...],
        reduced: tuple[int, ...] = (),
        reduction: str = "",
        dtype: torch.dtype = HALF,
        **rest: Any,
    ) -> list[Operation]:
        """The operations of `out[p...] = value`, reduced over r0, r1, ..."""
        variables = list(P[: len(size)])
        body = Body(variables, list(size), list(R[: len(reduced)]), list(reduced), value,
                    rest.get("indirect", {}), rest.get("rows", {}), reduction)  # fmt: skip
        self.out = Buffer("out", size, contiguous_strides(size), dtype)
        points = [v if n != 1 else sympy.S.Zero for v, n in zip(variables, size)]
        splitter = Splitter(lambda name: (self.buffers[name], rest.get("offset", 0)),
                            self.constants, Origin("n", "a", "s"), "out")  # fmt: skip
        return splitter.split(body, Access(self.out, self.out.index(points)), {})

    def computed(self, operations: list[Operation]) -> torch.Tensor:
        for op in operations:
            self.memory.run(op)
        return self.memory.of(self.out).reshape(self.out.size)

    def tensor(self, name: str) -> torch.Tensor:
        return self.memory[self.buffers[name]].reshape(self.buffers[name].size)


def names(operations: list[Operation]) -> list[str]:
    return [op.opfunc for op in operations]


# ---- Pointwise -----------------------------------------------------------------------------------


def test_each_opfunc_is_an_operation_and_temporaries_lie_between_them() -> None:
    case = Case(x=(4, 8))
    x = case.load("x", 8 * p0 + p1)
    found = case.split(OPS.relu(OPS.add(x, Constant(HALF, 2.0))), (4, 8))
    assert names(found) == ["add", "relufwd"]
    assert found[0].output.buffer is found[1].inputs[0].buffer is not case.out
    assert found[0].output.buffer.size == (4, 8) and found[1].output.buffer is case.out
    assert torch.equal(case.computed(found), torch.relu(case.tensor("x") + 2))


def test_operands_keep_their_order() -> None:
    case = Case(x=(4, 8), y=(4, 8))
    x, y = case.load("x", 8 * p0 + p1), case.load("y", 8 * p0 + (7 - p1))
    found = case.split(OPS.sub(OPS.mul(x, Constant(HALF, 3.0)), y), (4, 8))
    assert torch.equal(case.computed(found), case.tensor("x") * 3 - case.tensor("y").flip(1))


def test_what_is_used_twice_is_computed_once() -> None:
    case = Case(x=(8,))
    e = OPS.exp(case.load("x", p0))
    found = case.split(OPS.mul(e, OPS.add(e, e)), (8,))
    assert names(found) == ["exp", "add", "mul"]


def test_a_temporary_has_the_dimensions_that_it_varies_along() -> None:
    """A row is negated once, not for each of 4 rows of the result."""
    case = Case(x=(4, 8), row=(8,))
    found = case.split(OPS.add(case.load("x", 8 * p0 + p1), OPS.neg(case.load("row", p1))), (4, 8))
    assert found[0].ranges == {p1: 8} and found[0].output.buffer.size == (8,)
    assert found[1].ranges == {p0: 4, p1: 8}
    assert torch.equal(case.computed(found), case.tensor("x") - case.tensor("row"))


def test_dimensions_of_size_1_are_not_walked_over() -> None:
    case = Case(x=(4, 8))
    found = case.split(OPS.neg(case.load("x", 8 * p0)), (4, 1))
    assert found[0].ranges == {p0: 4}
    assert torch.equal(case.computed(found), -case.tensor("x")[:, :1])


def test_a_view_alone_is_a_copy_from_where_the_buffer_lies() -> None:
    case = Case(x=(4, 8))
    (copy,) = case.split(case.load("x", 8 * p1 + p0), (8, 3), offset=8)
    assert (copy.opfunc, copy.kind) == ("identity", "copy")
    assert torch.equal(case.computed([copy]), case.tensor("x")[1:].t())


def test_the_result_is_cast_to_the_type_of_its_buffer() -> None:
    case = Case(x=(8,))
    found = case.split(OPS.exp(case.load("x", p0)), (8,), dtype=FLOAT)
    assert names(found) == ["exp", "dl16tofp32"] and case.computed(found).dtype is FLOAT
    assert typed_for(Constant(HALF, 1.0), FLOAT) == Constant(FLOAT, 1.0)


def test_constants_of_an_opfunc_come_along() -> None:
    case = Case(x=(8,))
    (clip,) = case.split(OPS.clamp(case.load("x", p0), 0.5, 0.75), (8,))
    assert clip.info["constants"] == {"clipMin": 0.5, "clipMax": 0.75}
    assert torch.equal(case.computed([clip]), case.tensor("x").clamp(0.5, 0.75))


def test_equal_numbers_of_one_type_are_one_buffer() -> None:
    known: dict[tuple[str, Any], Buffer] = {}
    one = constant_of(known, HALF, 1.0)
    assert constant_of(known, HALF, 1.0) is one and one.value == 1.0 and one.is_constant
    assert constant_of(known, FLOAT, 1.0) is not one
    assert constant_of(known, HALF, -0.0) is not constant_of(known, HALF, 0.0)
    assert len({b.name for b in known.values()}) == len(known) == 4


# ---- Reductions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reduction", "opfunc_name", "expected"),
    [("sum", "sum", torch.sum), ("max", "max", torch.amax), ("min", "min", torch.amin)],
)
def test_a_reduction_is_the_last_operation(reduction: str, opfunc_name: str, expected: Any) -> None:
    case = Case(x=(4, 8))
    value = OPS.neg(case.load("x", 8 * p0 + r0))
    found = case.split(value, (4,), (8,), reduction)
    assert names(found) == ["neg", opfunc_name] and found[1].reduced == (r0,)
    assert torch.equal(case.computed(found), expected(-case.tensor("x"), 1))


def test_a_sum_of_16_bits_into_32_is_cast_before() -> None:
    case = Case(x=(4, 8))
    found = case.split(case.load("x", 8 * p0 + r0), (4,), (8,), "sum", FLOAT)
    assert names(found) == ["dl16tofp32", "sum"]
    assert torch.equal(case.computed(found), case.tensor("x").float().sum(1))


def test_any_is_the_largest_of_what_is_not_zero() -> None:
    case = Case(x=(4, 8))
    found = case.split(case.load("x", 8 * p0 + r0), (4,), (8,), "any", torch.bool)
    assert names(found) == ["notequal", "max"]


def test_a_reduction_of_one_element_is_a_copy() -> None:
    case = Case(x=(4, 1))
    (found,) = case.split(case.load("x", p0), (4,), (1,), "sum")
    assert (found.kind, found.reduced) == ("copy", ())


@pytest.mark.parametrize(
    ("reduction", "dtype", "error"),
    [("xor_sum", HALF, NoOpFunc), ("sum", INT, UnsupportedType), ("max", INT, UnsupportedType)],
)
def test_what_the_card_cannot_reduce_is_refused(
    reduction: str, dtype: torch.dtype, error: type[Exception]
) -> None:
    case = Case(x=(4, 8))
    case.buffers["x"].dtype = dtype
    with pytest.raises(error, match=reduction):
        case.split(case.load("x", 8 * p0 + r0), (4,), (8,), reduction, dtype)


def test_a_sum_of_products_is_a_matmul_whose_last_variable_is_n() -> None:
    case = Case(x=(4, 8), y=(8, 3))
    dot = DotOp(HALF, (case.load("x", 8 * p0 + r0), case.load("y", 3 * r0 + p1)))
    (found,) = case.split(dot, (4, 3), (8,), "dot")
    assert (found.opfunc, found.kind, found.info["n"]) == ("batchmatmul", "matmul", p1)
    assert [a.buffer.name for a in found.inputs] == ["x", "y"]
    expected = (case.tensor("x").float() @ case.tensor("y").float()).half()
    torch.testing.assert_close(case.computed([found]), expected, rtol=2e-2, atol=0)
    (column,) = case.split(DotOp(HALF, dot.args), (4, 1), (8,), "dot")
    assert column.info["n"] is None


def test_a_product_over_one_element_is_a_multiplication() -> None:
    case = Case(x=(4, 1), y=(1, 3))
    (found,) = case.split(DotOp(HALF, (case.load("x", p0), case.load("y", p1))), (4, 3))
    assert (found.opfunc, found.kind) == ("mul", "pointwise")
    assert torch.equal(case.computed([found]), case.tensor("x") * case.tensor("y"))


def test_a_topk_knows_its_place_and_how_many() -> None:
    case = Case(x=(4, 8))
    x = case.load("x", 8 * p0 + r0)
    (found,) = case.split(x, (4, 3), (8,), "topkvalue:1")
    assert (found.opfunc, found.kind) == ("topkvalue", "topk")
    assert (found.info["k"], found.info["k_symbol"]) == (3, p1)
    with pytest.raises(NoOpFunc, match="one of several dimensions"):
        case.split(case.load("x", r0), (3,), (8,), "topkvalue:0")


# ---- Rows by index -------------------------------------------------------------------------------


def indexed() -> tuple[Case, sympy.Symbol, dict[str, Any]]:
    case = Case(table=(10, 4), index=(3,), out0=(3, 4))
    case.buffers["index"].dtype = INT
    case.memory[case.buffers["index"]] = torch.tensor([7, 0, 9])
    row = sympy.Symbol("indirect0", integer=True, nonnegative=True)
    return case, row, {"indirect": {row: case.load("index", p0)}, "rows": {row: 10}}


def test_a_load_at_an_index_is_a_gather() -> None:
    case, row, indirect = indexed()
    (found,) = case.split(case.load("table", 4 * row + p1), (3, 4), **indirect)
    assert found.kind == "gather" and found.info["rows"] == {row: 10}
    assert torch.equal(case.computed([found]), case.tensor("table")[[7, 0, 9]])


def test_what_is_gathered_inside_of_an_expression_is_gathered_first() -> None:
    case, row, indirect = indexed()
    value = OPS.exp(case.load("table", 4 * row + p1))
    found = case.split(value, (3, 4), **indirect)
    assert [(op.opfunc, op.kind) for op in found] == [("identity", "gather"), ("exp", "pointwise")]
    assert torch.equal(case.computed(found), case.tensor("table")[[7, 0, 9]].exp())


def test_a_store_at_an_index_is_a_scatter() -> None:
    case, row, indirect = indexed()
    value = OPS.neg(case.load("out0", 4 * p0 + p1))
    body = Body([p0, p1], [3, 4], [], [], value, indirect["indirect"], indirect["rows"])
    table = case.buffers["table"]
    before = case.tensor("table").clone()
    splitter = Splitter(lambda name: (case.buffers[name], 0), {}, Origin("n", "a", "s"), "out")
    found = splitter.split(body, Access(table, 4 * row + p1), {})
    assert [op.kind for op in found] == ["pointwise", "scatter"]
    assert list(found[1].gather) == [row] and found[1].info["rows"] == {row: 10}
    for op in found:
        case.memory.run(op)
    before[[7, 0, 9]] = -case.tensor("out0")
    assert torch.equal(case.tensor("table"), before)


def test_an_opfunc_of_a_copy_kind_is_a_copy() -> None:
    case = Case(x=(8,))
    cast = PointwiseOp(torch.bfloat16, "identity", (case.load("x", p0),))
    (found,) = case.split(cast, (8,), dtype=torch.bfloat16)
    assert found.kind == "copy"
    assert names(case.split(opfunc("exp", case.load("x", p0)), (8,))) == ["exp"]
