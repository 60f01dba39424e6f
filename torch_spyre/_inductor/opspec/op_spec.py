"""OpSpec: one operation of the card, with all decisions made and nothing yet encoded.

In: what the front-end decided (OpFunc, iteration space, layouts, splits, addresses). Out: data that
`codegen` turns into SuperDSC files. The text form is a Python list of these constructors and is
what the generated wrapper hands to `async_compile.sdsc`.

Example, `add` of two (128, 256) float16 tensors over 4 cores:

    OpSpec(op='add', is_reduction=False, iteration_space={c0: (128, 4), c1: (256, 1)},
           args=[TensorArg(True, 0, DataFormats.SEN169_FP16, [4, 128, 64],
                           [floor(c1/64), c0, Mod(c1, 64)], {'hbm': 0}), ...], op_info={})
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import sympy

from torch_spyre._C import DataFormats

NO_SYMBOL = sympy.Symbol("_")
"""In `tiled_symbols`: nothing of the operation changes with this loop."""


class IndirectAccess(sympy.Function):
    """A coordinate that is read from the tensor of that name at the current point."""

    @classmethod
    def eval(cls, *args: Any) -> None:
        return None


@dataclass
class TensorArg:
    """A tensor of an operation, as it lies on the card."""

    is_input: bool
    arg_index: int
    """Position in the kernel call, the pool not counted; -1 for the pool and for LX."""
    device_dtype: DataFormats
    device_size: list[int]
    device_coordinates: list[sympy.Expr]
    """One expression over the iteration symbols for each device axis; the last is in the stick."""
    allocation: dict[str, int]
    """Exactly one of {"hbm": byte}, {"pool": byte}, {"lx": byte}."""
    stride_map: list[int] | None = None
    per_tile_fixed: bool = False
    """The address does not move between the iterations of loops."""
    name: str | None = None
    """Set for index tensors of a gather."""
    element_arrangement: str = "STANDARD"
    fixed_loops: int = 0
    """Of the loops around it so many, from the outermost on, do not move the address: it lives
    inside of them."""


@dataclass
class OpSpec:
    """One OpFunc over an iteration space; inputs first, exactly one output last."""

    op: str
    is_reduction: bool
    iteration_space: dict[sympy.Symbol, tuple[int, int]]
    """Symbol -> (size, number of slices); output dimensions in host order, then reduced ones."""
    args: list[TensorArg]
    op_info: dict[str, Any] = field(default_factory=dict)
    tiled_symbols: list[sympy.Symbol] = field(default_factory=list)
    """Symbols that the loops around this operation advance, one for each, outermost loop first;
    shorter lists are for the innermost ones. NO_SYMBOL: that loop advances nothing here."""


@dataclass
class LoopSpec:
    """A counted loop over a body."""

    count: int
    body: list[OpSpec | LoopSpec | UnimplementedOp]
    tiled_symbols: list[sympy.Symbol] = field(default_factory=list)


@dataclass
class UnimplementedOp:
    """An operation that the card does not have: the kernel raises when it is called."""

    op: str
