"""Operations and buffers built by hand, as the stages between splitting and code generation have
them.

Example: y = x.t() * 2 over a (64, 32) tensor is

    x = buffer("x", (64, 32), stick=1)
    y = buffer("y", (32, 64))
    pointwise("mul", [(x, P[0] + 32 * P[1]), x_constant], y, (32, 64))
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch

from torch_spyre._C import ElementArrangement
from torch_spyre._inductor.layouts.stick_layouts import layout_of
from torch_spyre._inductor.operations.operation import (
    Access,
    Buffer,
    Operation,
    Origin,
    contiguous_strides,
)

P = sympy.symbols("p0:6", integer=True, nonnegative=True)
"""Kept symbols, in host order."""
R = sympy.symbols("r0:3", integer=True, nonnegative=True)
"""Reduced ones."""

Read = Buffer | tuple[Buffer, sympy.Expr]


def buffer(
    name: str,
    size: tuple[int, ...],
    stick: int | None = None,
    dtype: torch.dtype = torch.float16,
    stride: tuple[int, ...] | None = None,
    arrangement: ElementArrangement = ElementArrangement.STANDARD,
) -> Buffer:
    """A tensor; `stick` is the dimension of its sticks, -1 one element per stick, None no layout
    yet."""
    stride = contiguous_strides(size) if stride is None else stride
    made = Buffer(name, size, stride, dtype)
    if stick is not None:
        made.layout = layout_of(size, stride, dtype, stick, arrangement)
    return made


def access(what: Read, symbols: Sequence[sympy.Expr]) -> Access:
    """A buffer over the last of the symbols, or one with an index of its own."""
    if isinstance(what, tuple):
        return Access(what[0], sympy.sympify(what[1]))
    rank = len(what.size)
    points = [s if n != 1 else sympy.S.Zero
              for s, n in zip(symbols[len(symbols) - rank :], what.size)]  # fmt: skip
    return Access(what, what.index(points))


def pointwise(
    opfunc: str,
    inputs: Sequence[Read],
    output: Read,
    size: Sequence[int],
    kind: str = "pointwise",
) -> Operation:
    """Over p0, p1, ...; a buffer without an index is walked over by the last of them."""
    symbols = P[: len(size)]
    ranges = {v: n for v, n in zip(symbols, size, strict=True) if n != 1}
    return Operation(opfunc, kind, ranges, (), [access(i, symbols) for i in inputs],
                     access(output, symbols), origin=_origin(output))  # fmt: skip


def reduction(opfunc: str, x: Read, output: Read, kept: Sequence[int], reduced: int) -> Operation:
    """Over p0, ..., and r0, which is the last dimension of x."""
    symbols = P[: len(kept)]
    ranges = {v: n for v, n in zip(symbols, kept, strict=True) if n != 1}
    return Operation(opfunc, "reduction", {**ranges, R[0]: reduced}, (R[0],),
                     [access(x, (*symbols, R[0]))], access(output, symbols),
                     origin=_origin(output))  # fmt: skip


def matmul(x: Read, y: Read, output: Read, m: int, n: int, k: int) -> Operation:
    """output[p0, p1] = sum over r0 of x[p0, r0] * y[r0, p1]."""
    ranges = {P[0]: m, P[1]: n, R[0]: k}
    return Operation("batchmatmul", "matmul", ranges, (R[0],),
                     [access(x, (P[0], R[0])), access(y, (R[0], P[1]))],
                     access(output, P[:2]), {"n": P[1]}, _origin(output))  # fmt: skip


def _origin(output: Read) -> Origin:
    made = output[0] if isinstance(output, tuple) else output
    return Origin(f"node_{made.name}", "aten.test", "model.py:1")
