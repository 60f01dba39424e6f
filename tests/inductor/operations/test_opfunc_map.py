"""Methods of SpyreOpFuncs mean what PyTorch's operations of that name do."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
import torch

from tests.support.interpret import value_of
from torch_spyre._inductor.errors import NoOpFunc, UnsupportedType
from torch_spyre._inductor.operations.opfunc_map import (
    Constant,
    Load,
    PointwiseOp,
    SpyreOpFuncs,
    Value,
    as_bool,
    cast,
    opfunc,
    promote,
)

OPS: Any = SpyreOpFuncs
HALF, FLOAT, BFLOAT, BOOL, INT = (torch.float16, torch.float32, torch.bfloat16, torch.bool,
                                  torch.int64)  # fmt: skip

FUNCTIONS = """abs exp floor log neg reciprocal rsqrt sigmoid sqrt tanh ceil trunc round sin cos
erf log1p expm1 isnan square relu isinf logical_not log2 log10"""
UNARY: dict[str, Any] = {name: getattr(torch, name) for name in FUNCTIONS.split()}
UNARY |= {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}
BINARY: dict[str, Any] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "truediv": torch.div,
    "maximum": torch.maximum, "minimum": torch.minimum, "pow": torch.pow, "eq": torch.eq,
    "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge,
    "logical_and": torch.logical_and, "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
}  # fmt: skip


def load(name: str, dtype: torch.dtype = FLOAT) -> Load:
    return Load(dtype, name, sympy.S.Zero)


X = torch.tensor([0.25, 1.0, 2.5, 0.0, 3.0, 1.0, 7.5, 0.0])
Y = torch.tensor([1.0, 1.0, 0.5, 0.0, 2.0, 2.5, 0.0, 4.0])


@pytest.mark.parametrize("name", UNARY)
def test_a_function_of_one_tensor_is_that_of_pytorch(name: str) -> None:
    dtype = HALF if name in ("log2", "log10") else FLOAT
    x = torch.cat([X, torch.tensor([float("inf"), float("nan")])]).to(dtype)
    found = value_of(getattr(OPS, name)(load("x", dtype)), {"x": x})
    expected = UNARY[name](x)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, equal_nan=True, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", BINARY)
def test_a_function_of_two_tensors_is_that_of_pytorch(name: str) -> None:
    found = value_of(getattr(OPS, name)(load("x"), load("y")), {"x": X, "y": Y})
    expected = BINARY[name](X, Y)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, equal_nan=True)


def test_where_takes_the_first_where_the_condition_holds() -> None:
    value = OPS.where(OPS.lt(load("x"), load("y")), load("x"), 9.0)
    assert torch.equal(value_of(value, {"x": X, "y": Y}), torch.where(X < Y, X, 9.0))


def test_clamp_and_softplus_hand_their_constants_on_by_name() -> None:
    clamp = value_of(OPS.clamp(load("x"), 0.5, 2.0), {"x": X})
    assert torch.equal(clamp, X.clamp(0.5, 2.0))
    found = value_of(OPS.softplus(load("x"), 2.0, 3.0), {"x": X})
    torch.testing.assert_close(found, torch.nn.functional.softplus(X, 2.0, 3.0))


def test_bits_of_truth_values_are_logic_and_those_of_integers_are_refused() -> None:
    a, b = X > 1, Y > 1
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        value = getattr(OPS, name)(load("a", BOOL), load("b", BOOL))
        assert torch.equal(value_of(value, {"a": a, "b": b}), getattr(torch, name)(a, b))
        with pytest.raises(NoOpFunc, match=f"no {name} for integers"):
            getattr(OPS, name)(load("a", INT), load("b", INT))
    n = torch.tensor([0, 5, -1, 7])
    assert torch.equal(value_of(OPS.bitwise_not(load("n", INT)), {"n": n}), ~n)
    assert torch.equal(value_of(OPS.bitwise_not(load("a", BOOL)), {"a": a}), ~a)


def test_logarithms_of_other_bases_are_computed_in_float32() -> None:
    value = OPS.log2(load("x", HALF))
    assert isinstance(value, PointwiseOp) and value.opfunc == "fp32todl16"
    with pytest.raises(NoOpFunc):
        OPS.log2(load("x", FLOAT))


def test_a_number_takes_the_type_of_the_tensors_and_does_not_widen_it() -> None:
    value = opfunc("add", load("x", HALF), 2.0)
    assert isinstance(value, PointwiseOp) and value.dtype is HALF
    assert value.args[1] == Constant(HALF, 2.0)
    assert promote((load("x", HALF), Constant(FLOAT, 1.0))) is HALF
    assert promote((load("x", HALF), load("y", BFLOAT))) is FLOAT
    assert promote((Constant(FLOAT, 1.0),)) is FLOAT
    with pytest.raises(UnsupportedType, match=r"0\.5 is no number of"):
        opfunc("add", load("x", INT), 0.5)
    with pytest.raises(UnsupportedType, match="numbers alone"):
        opfunc("add", 1.0, 2.0)


def test_zeros_of_both_signs_are_different_constants() -> None:
    assert Constant(HALF, 0.0) != Constant(HALF, -0.0) and Constant(HALF, 1) == Constant(HALF, 1.0)


@pytest.mark.parametrize(
    ("source", "target", "steps"),
    [
        (HALF, HALF, []),
        (HALF, BFLOAT, ["identity"]),
        (BOOL, HALF, ["identity"]),
        (HALF, FLOAT, ["dl16tofp32"]),
        (BOOL, FLOAT, ["dl16tofp32"]),
        (FLOAT, HALF, ["fp32todl16"]),
        (INT, FLOAT, ["int32tofp"]),
        (INT, torch.int32, []),
        (FLOAT, INT, ["fptoint32"]),
        (FLOAT, BOOL, ["notequal"]),
        (HALF, torch.float8_e4m3fn, ["qfp8ch"]),
        (torch.float8_e4m3fn, HALF, ["fp8todl16"]),
    ],
)
def test_a_cast_is_the_card_s(source: torch.dtype, target: torch.dtype, steps: list[str]) -> None:
    value: Value = cast(load("x", source), target)
    found = []
    while isinstance(value, PointwiseOp):
        found.append(value.opfunc)
        value = value.args[0]
    assert found == steps


def test_a_cast_that_the_card_does_not_have_is_refused() -> None:
    with pytest.raises(UnsupportedType, match=r"no cast from torch\.float32 to torch\.float8"):
        cast(load("x", FLOAT), torch.float8_e4m3fn)
    assert cast(Constant(HALF, 3.0), FLOAT) == Constant(FLOAT, 3.0)
    assert as_bool(load("x", BOOL)) == load("x", BOOL)
