"""Each rule of a plan has a violation that names node, rule, found and allowed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sympy
import torch

import torch_spyre._inductor  # noqa: F401
from torch_spyre._C import SpyreTensorLayout
from torch_spyre._inductor.operations.operation import Access, Buffer, Operation, Origin
from torch_spyre._inductor.planning import validate
from torch_spyre._inductor.planning.plan import GraphPlan, Kernel, Planning
from torch_spyre.validation import BrokenRule

P0, P1, R0, OTHER = sympy.symbols("p0 p1 r0 q7", integer=True, nonnegative=True)
SIZE, STRIDE = (64, 128), (128, 1)


def buffer(name: str) -> Buffer:
    layout = SpyreTensorLayout(list(SIZE), list(STRIDE), torch.float16, [0, 1])
    return Buffer(name, SIZE, STRIDE, torch.float16, layout)


def planning() -> Planning:
    """y = exp(x); z = y + y, of which y lives inside of the kernel."""
    x, y, z = buffer("x"), buffer("y"), buffer("z")
    index = 128 * P0 + P1

    def op(opfunc: str, inputs: list[Buffer], output: Buffer) -> Operation:
        origin = Origin(f"node_{output.name}", "aten.test", "model.py:1")
        return Operation(opfunc, "pointwise", {P0: 64, P1: 128}, (),
                         [Access(b, index) for b in inputs], Access(output, index),
                         origin=origin)  # fmt: skip

    kernel = Kernel(operations=[op("exp", [x], y), op("add", [y, y], z)])
    plan = GraphPlan([kernel], {}, {b.name: b for b in (x, y, z)}, {"y"})
    return Planning(None, plan)  # type: ignore[arg-type]


def first(p: Planning) -> Operation:
    return p.plan.kernels[0].operations[0]


def set_index(p: Planning, index: sympy.Expr) -> None:
    first(p).inputs[0] = Access(first(p).inputs[0].buffer, index)


def reduce_p1(p: Planning) -> None:
    first(p).reduced = (P1,)


def swap(p: Planning) -> None:
    p.plan.kernels[0].operations.reverse()


def transpose(p: Planning) -> None:
    """x is read with its sticks along p0, which nothing copies."""
    x = first(p).inputs[0].buffer
    x.layout = SpyreTensorLayout(list(SIZE), list(STRIDE), torch.float16, [1, 0])


VIOLATIONS: dict[str, tuple[Callable[[Planning], object], str]] = {
    "an OpFunc that the card does not have": (
        lambda p: setattr(first(p), "opfunc", "cosh"),
        "node_y, cosh: OpFunc: found cosh, allowed a row of the OpFunc table",
    ),
    "a kind that there is not": (
        lambda p: setattr(first(p), "kind", "fused"),
        "node_y, exp: kind: found fused, allowed pointwise, reduction",
    ),
    "an empty iteration space": (
        lambda p: first(p).ranges.update({P0: 0}),
        "node_y, exp: sizes of the iteration space: found {'p0': 0}, allowed 1 or more",
    ),
    "a reduced symbol of nothing": (
        lambda p: setattr(first(p), "reduced", (R0,)),
        "node_y, exp: reduced symbols: found [r0], allowed [p0, p1]",
    ),
    "an index of a foreign symbol": (
        lambda p: set_index(p, 128 * P0 + OTHER),
        "node_y, exp: symbols of the index of x: found {q7}, allowed [p0, p1]",
    ),
    "a result that keeps what is reduced": (
        reduce_p1,
        "node_y, exp: symbols of a result: found {p1}, allowed kept ones",
    ),
    "a value that is read before it is written": (
        swap,
        "node_z, add: order of operations: found y is read first, allowed after it",
    ),
}

LAYOUT_VIOLATIONS: dict[str, tuple[Callable[[Planning], object], str]] = {
    "a buffer without a layout": (
        lambda p: setattr(first(p).inputs[0].buffer, "layout", None),
        "node_y, exp: layout of a buffer: found none for x, allowed one for every buffer",
    ),
    "a layout of another type": (
        lambda p: setattr(first(p).inputs[0].buffer, "dtype", torch.float32),
        "node_y, exp: format of x: found",
    ),
    "a restickify that is missing": (transpose, "node_y, exp: layouts suit: found ["),
}


def test_a_sound_plan_breaks_no_rule() -> None:
    validate.check_operations(planning())
    validate.check_layouts(planning())


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_violation_after_splitting_is_named(name: str) -> None:
    spoil, message = VIOLATIONS[name]
    spoiled = planning()
    spoil(spoiled)
    with pytest.raises(BrokenRule) as caught:
        validate.check_operations(spoiled)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("name", LAYOUT_VIOLATIONS)
def test_a_violation_after_stickify_is_named(name: str) -> None:
    spoil, message = LAYOUT_VIOLATIONS[name]
    spoiled = planning()
    spoil(spoiled)
    with pytest.raises(BrokenRule) as caught:
        validate.check_layouts(spoiled)
    assert str(caught.value).startswith(message)
