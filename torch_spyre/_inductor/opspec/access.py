"""Access patterns of an aligned operation: extent and stride of each symbol in each tensor.

In: an OpSpec in aligned form. Out: one `Access` for each tensor: which symbol walks over which
axis, in which steps, and what lies along the stick. InvalidOpSpec when the form is not aligned.

Example: [floor(c1/64), c0, Mod(c1, 64)] in [4, 128, 64] has the axes c1 (4 whole sticks, in steps
of 8192 elements) and c0 (128, in steps of 64), and the stick c1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import sympy

from torch_spyre import opfuncs
from torch_spyre._inductor.opspec.alignment import RESTICKIFY
from torch_spyre._inductor.opspec.coordinates import Misaligned, Ranges, parse
from torch_spyre._inductor.opspec.op_spec import OpSpec, TensorArg
from torch_spyre.constants import BYTES_IN_STICK
from torch_spyre.validation import BrokenRule


class InvalidOpSpec(BrokenRule):
    """An OpSpec that breaks a rule."""


class Axis(NamedTuple):
    """A device axis that a symbol walks over."""

    symbol: sympy.Symbol
    size: int
    step: int
    """Elements from one entry to the next."""
    first: int
    """Entry where the symbol is 0."""
    sticks: bool
    """The symbol is this tensor's stick, and the axis counts whole sticks of it."""
    gathered: bool = False
    """Entries come from an index tensor; the symbol is the one that walks over that."""


@dataclass(frozen=True)
class Access:
    """The access pattern of a tensor of an operation."""

    arg: TensorArg
    axes: tuple[Axis, ...]
    """Nearest to the stick first."""
    stick: sympy.Symbol | None
    eps: int
    is_index: bool
    index_symbols: tuple[sympy.Symbol, ...] = ()
    """Of a gathered tensor: all symbols that its index tensors depend on."""

    @property
    def word(self) -> int:
        """Bytes of an element."""
        return BYTES_IN_STICK // self.eps

    @property
    def unit(self) -> int:
        """Elements that cannot be told apart along the stick: of a stick, or of a pair of them."""
        return 2 * self.eps if self.arg.element_arrangement == "DL16_TO_FP32" else self.eps

    @property
    def symbols(self) -> tuple[sympy.Symbol, ...]:
        return tuple(axis.symbol for axis in self.axes)

    @property
    def space(self) -> str:
        """Where it is: hbm, pool or lx."""
        return space_of(self.arg)


def space_of(arg: TensorArg) -> str:
    """Where a tensor is: hbm, pool or lx."""
    return next(space for space in ("pool", "lx", "hbm") if space in arg.allocation)


def read_accesses(op: OpSpec) -> list[Access]:
    """One for each tensor, in order."""
    ranges = tuple((symbol, size) for symbol, (size, _) in op.iteration_space.items())
    names = {arg.name: number for number, arg in enumerate(op.args) if arg.name is not None}
    accesses: list[Access | None] = [None] * len(op.args)
    for number in names.values():
        accesses[number] = _read(op, number, ranges, {})
    indices = {name: a for name, n in names.items() if (a := accesses[n]) is not None}
    return [
        access if access is not None else _read(op, number, ranges, indices)
        for number, access in enumerate(accesses)
    ]


def kind_of(op: OpSpec) -> str:
    """The `kind` column of the OpFunc table."""
    row = opfuncs.find(op.op)
    if row is None:
        raise InvalidOpSpec("name of an OpFunc", f"operation {op.op}", op.op, "see opfuncs.OPFUNCS")
    return "restickify" if op.op == RESTICKIFY else row.kind


def _read(op: OpSpec, number: int, ranges: Ranges, indices: dict[str, Access]) -> Access:
    arg = op.args[number]
    place = f"operation {op.op}, tensor {number}"
    eps = arg.device_size[-1]
    try:
        *outer, last = [parse(c, ranges) for c in arg.device_coordinates]
    except Misaligned as error:
        raise InvalidOpSpec("coordinates", place, error.coordinate, error.reason) from None
    stick = None
    if last.terms:
        stick = last.terms[0].var
        term = last.terms[0]
        if len(last.terms) > 1 or (term.num, term.den, term.base) != (1, 1, 0):
            raise _not_aligned(arg, place, -1)
    if last.const or (stick is not None and not stick.is_Symbol):
        raise _not_aligned(arg, place, -1)
    axes: list[Axis] = []
    index_symbols: list[sympy.Symbol] = []
    step = eps
    gathered: list[int] = []
    for j in range(len(outer) - 1, -1, -1):
        size, coordinate = arg.device_size[j], outer[j]
        if coordinate.terms:
            term = coordinate.terms[0]
            symbol, sticks = term.var, term.den != 1
            legal = len(coordinate.terms) == 1 and (term.num, term.mod, term.base) == (1, 0, 0)
            if not legal or (sticks and (symbol != stick or term.den != eps)):
                raise _not_aligned(arg, place, j)
            if not symbol.is_Symbol:
                index = indices.get(symbol.args[0].name)
                if index is None:
                    raise InvalidOpSpec("index tensor", place, symbol, list(indices))
                index_symbols += [s for s in index.symbols if s not in index_symbols]
                gathered.append(len(axes))
            axes.append(Axis(symbol, size, step, coordinate.const, sticks))
        elif coordinate.const or size > 1:
            raise _not_aligned(arg, place, j)
        step *= size
    for at in gathered:
        own = {axis.symbol for axis in axes}
        order = [s for s in op.iteration_space if s in index_symbols and s not in own]
        if not order:
            raise InvalidOpSpec("a free symbol for the gathered axis", place, own, index_symbols)
        axes[at] = axes[at]._replace(symbol=order[-1], gathered=True)
    if stick is not None and stick not in [axis.symbol for axis in axes]:
        raise InvalidOpSpec("an axis of whole sticks", place, arg.device_coordinates, stick)
    return Access(arg, tuple(axes), stick, eps, arg.name is not None, tuple(index_symbols))


def _not_aligned(arg: TensorArg, place: str, axis: int) -> InvalidOpSpec:
    return InvalidOpSpec(
        "aligned coordinates",
        f"{place}, axis {axis}",
        arg.device_coordinates[axis],
        "one symbol and a constant; v or Mod(v, eps) in the stick",
    )
