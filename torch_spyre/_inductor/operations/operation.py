"""The front-end's own graph: operations of the card over buffers, before layouts and addresses.

In: LoopLevelIR nodes in the order in which they will run. Out (when layouts are chosen): OpSpecs.
One `Operation` is one OpFunc; views are index expressions, never operations.

Example: `y = x.t() * 2` with x of shape (64, 32) is

    mul  {p0: 32, p1: 64}  x[p0 + 32*p1], 2.0[0] -> y[64*p0 + p1]
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from torch_spyre._C import SpyreTensorLayout
from torch_spyre._inductor.opspec.op_spec import OpSpec


@dataclass(frozen=True)
class HoistedCopy:
    """A view of a parameter that is copied into another layout outside of kernels."""

    source: Buffer
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(eq=False)
class Buffer:
    """Memory of one tensor. Sizes and strides are those of the host, in elements of the storage."""

    name: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    layout: SpyreTensorLayout | None = None
    """Chosen by stickify; given for inputs, constants and results of fallbacks."""
    is_constant: bool = False
    """A number that the program needs, as a 0-D tensor."""
    value: float | int | bool | None = None
    placed: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """Sizes and strides that the layout was made for, when they are not those of the buffer."""
    written: bool = False
    """Some operation of this graph writes it."""
    static: bool = False
    """A parameter: it seldom changes between two calls."""
    wanted: SpyreTensorLayout | None = None
    """Of a result: the layout in which it will be used."""
    dim_names: tuple[tuple[int, int, str], ...] = ()
    """Of a graph input: stride, size and name of each dimension that the program has named."""
    hoisted: HoistedCopy | None = None
    """It is a copy of a parameter, made when the parameter changes and not in every call."""

    def index(self, variables: list[sympy.Expr]) -> sympy.Expr:
        """The storage element at the given host coordinates."""
        return sympy.Add(*(v * s for v, s in zip(variables, self.stride, strict=True)))

    @property
    def elements(self) -> int:
        return int(sympy.prod(self.size)) if self.size else 1

    def __repr__(self) -> str:
        return f"{self.name}{list(self.size)}"


@dataclass(frozen=True)
class Access:
    """A buffer and the storage element that is touched at a point of the iteration space."""

    buffer: Buffer
    index: sympy.Expr

    def __repr__(self) -> str:
        return f"{self.buffer.name}[{self.index}]"


@dataclass(frozen=True)
class Origin:
    """Provenance of an operation, for reports."""

    node: str
    """The node of LoopLevelIR, e.g. `buf3`."""
    aten: str
    """What the program asked for, e.g. `aten.softmax.int`."""
    source: str
    """Line of the user's program."""
    shape: tuple[int, ...] = ()
    hints: tuple[tuple[str, Any], ...] = ()
    """Slices by name of the dimension, from `spyre_hint`."""
    tiles: tuple[tuple[str, int], ...] = ()
    """Loops around it, outermost first: name of the dimension, number of tiles."""
    named_dims: tuple[str, ...] = ()
    """Names of the dimensions of what it makes out of nothing."""


@dataclass(eq=False)
class Operation:
    """One OpFunc over an iteration space: kept symbols, in host order, then reduced ones."""

    opfunc: str
    kind: str
    """pointwise, reduction, matmul, copy, gather, scatter or topk."""
    ranges: dict[sympy.Symbol, int]
    reduced: tuple[sympy.Symbol, ...]
    inputs: list[Access]
    output: Access
    info: dict[str, Any] = field(default_factory=dict)
    origin: Origin = Origin("", "", "")
    gather: dict[sympy.Symbol, Access] = field(default_factory=dict)
    """Symbols that are read from a tensor: in the index of what `table_of` gives."""
    reason: str = ""
    """Why the compiler added this operation; empty for what the program asked for."""

    spec: OpSpec | None = None
    """The operation in aligned form, without addresses, once layouts are chosen."""

    @property
    def kept(self) -> list[sympy.Symbol]:
        return [v for v in self.ranges if v not in self.reduced]

    def content(self) -> tuple[Any, ...]:
        """Equal for operations that are the same but for where their tensors lie and what they are
        called: those of repeated layers."""
        accesses = [(None, access) for access in (*self.inputs, self.output)]
        tensors = tuple([
            (symbol, a.index, a.buffer.size, a.buffer.stride, a.buffer.dtype, a.buffer.placed,
             a.buffer.layout, a.buffer.static, a.buffer.written)
            for symbol, a in (*accesses, *self.gather.items())
        ])  # fmt: skip
        info = repr(self.info) if self.info else ""
        return (self.opfunc, self.kind, tuple(self.ranges.items()), self.reduced, info, tensors)

    def __repr__(self) -> str:
        return f"{self.opfunc} {self.ranges} {self.inputs} -> {self.output}"


def contiguous_strides(size: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides."""
    strides = [1] * len(size)
    for d in range(len(size) - 2, -1, -1):
        strides[d] = strides[d + 1] * size[d + 1]
    return tuple(strides)


def table_of(op: Operation) -> Access:
    """What a gather reads rows of, a scatter writes rows of, or a product chooses matrices of."""
    if op.kind == "matmul":
        return op.inputs[1]
    return op.output if op.kind == "scatter" else op.inputs[0]


def row_sticks(op: Operation) -> list[sympy.Symbol]:
    """Symbols that can be the stick of a gather or a scatter: all lanes have the same row."""
    rows: set[sympy.Symbol] = set()
    for access in op.gather.values():
        rows |= access.index.free_symbols
    return [v for v in op.kept if v in table_of(op).index.free_symbols and v not in rows]
