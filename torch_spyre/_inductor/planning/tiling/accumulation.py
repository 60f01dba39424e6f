"""Accumulation of tiled reductions: partial results are combined in the loop.

In: a reduction or a matmul. Out: three operations in its place: one that fills the result with the
identity of the reduction, before the loop; the reduction itself, of one tile, into a buffer of its
own; and one that combines that with what the tiles before have left.

Example: `sum(x, 0)` is `y = 0`, and in the loop `part = sum(tile of x, 0)`, `y = y + part`.

A mean is a sum of elements that were scaled by 1 / all of them, so its parts add up, too. What
`exx2` and topk find in two tiles cannot be combined by one OpFunc.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import NamedTuple

import sympy
import torch

from torch_spyre._inductor.operations.operation import Access, Buffer, Operation


class Combination(NamedTuple):
    identity: float
    opfunc: str


COMBINATIONS = {
    "sum": Combination(0.0, "add"),
    "mean": Combination(0.0, "add"),
    "batchmatmul": Combination(0.0, "add"),
    "batchmatmulfp8": Combination(0.0, "add"),
    "max": Combination(-inf, "maximum"),
    "min": Combination(inf, "minimum"),
    "prod": Combination(1.0, "mul"),
}

Constants = Callable[[torch.dtype, float], Buffer]


class Accumulated(NamedTuple):
    fill: Operation
    partial: Operation
    combine: Operation


def accumulate(op: Operation, name: str, constants: Constants) -> Accumulated:
    """The operations that stand for a reduction over tiles. `name` is that of the dimension."""
    identity, opfunc = COMBINATIONS[op.opfunc]
    result = op.output.buffer
    if result.dtype is torch.bool:  # true is the largest there is
        identity = min(max(identity, 0.0), 1.0)
    part = replace(
        result, name=f"{result.name}_{op.origin.node}_part", written=True, static=False,
        hoisted=None,
    )  # fmt: skip
    kept = {v: op.ranges[v] for v in op.kept}
    partial = Access(part, op.output.index)
    constant = Access(constants(result.dtype, identity), sympy.S.Zero)
    fill = Operation(
        "identity", "copy", kept, (), [constant], op.output, {}, op.origin,
        reason=f"{op.opfunc} over tiles of {name} begins with {identity:g}",
    )  # fmt: skip
    combine = Operation(
        opfunc, "pointwise", kept, (), [op.output, partial], op.output, {}, op.origin,
        reason=f"{op.opfunc} over tiles of {name}",
    )  # fmt: skip
    return Accumulated(fill, replace(op, output=partial, spec=None), combine)
