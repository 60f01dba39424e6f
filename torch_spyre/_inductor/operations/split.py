"""Splits the expression tree of a node into operations of one OpFunc each.

Values between them become temporaries; constants become 0-D buffers.

Example: the body `ops.relu(ops.load("x", 32*p0 + p1) + 2.0)` becomes

    add      x[32*p0 + p1], const[0] -> t0[32*p0 + p1]
    relufwd  t0[32*p0 + p1]          -> buf0[32*p0 + p1]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

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
    Value,
    as_bool,
    cast,
)
from torch_spyre._inductor.operations.trace import Body
from torch_spyre.dtypes import FLOATS, INTEGERS
from torch_spyre.opfuncs import OPFUNCS

_REDUCTIONS = {"sum": "sum", "max": "max", "min": "min", "prod": "prod", "mean": "mean",
               "exx2": "exx2", "any": "max"}  # fmt: skip


@dataclass
class Splitter:
    """Makes operations from a body. `find` gives the buffer of a name and where in it that is."""

    find: Callable[[str], tuple[Buffer, int]]
    constants: dict[tuple[str, Any], Buffer]
    origin: Origin
    prefix: str
    operations: list[Operation] = field(default_factory=list)
    _known: dict[Value, Access] = field(default_factory=dict)

    def split(self, body: Body, output: Access, info: dict[str, Any]) -> list[Operation]:
        """The operations that compute `body` into `output`."""
        kept = dict(zip(body.variables, body.ranges, strict=True))
        reduced = dict(zip(body.reduced, body.reduced_ranges, strict=True))
        self.ranges = {v: n for v, n in {**kept, **reduced}.items() if n != 1}
        self.kept = {v: n for v, n in kept.items() if n != 1}
        self.indirect = body.indirect
        self.rows = body.rows
        self.out_dtype = output.buffer.dtype
        if body.reduction:
            self._reduce(body, output, info)
        else:
            self._store(typed_for(body.value, self.out_dtype), output, info)
        return self.operations

    def _store(self, value: Value, output: Access, info: dict[str, Any]) -> None:
        places = self._indirect_in(output.index)
        if places:
            self._add("identity", "scatter", self.kept, (), [self._emit(value)], output, info,
                      places)  # fmt: skip
            return
        if isinstance(value, PointwiseOp):
            self._apply(value, output, self.kept, info)
            return
        if isinstance(value, DotOp):  # a matmul over K = 1
            self._apply(PointwiseOp(value.dtype, "mul", value.args), output, self.kept, info)
            return
        access, gather = self._read(value)
        self._add("identity", "gather" if gather else "copy", self.kept, (), [access], output, info,
                  gather)  # fmt: skip

    def _reduce(self, body: Body, output: Access, info: dict[str, Any]) -> None:
        reduced = tuple(v for v in body.reduced if v in self.ranges)
        if isinstance(body.value, DotOp):
            x, (y, gather) = self._emit(body.value.args[0]), self._second(body)
            inputs = [x, y]
            n = body.variables[-1] if body.ranges[-1] != 1 else None
            info = {**info, "n": n}
            name = "batchmatmul"
            if body.value.args[0].dtype is torch.float8_e4m3fn:
                name = "batchmatmulfp8"
            self._add(name, "matmul", self.ranges, reduced, inputs, output, info, gather)
            return
        if ":" in body.reduction:  # with the dimension that the k places are along
            self._topk(body, output, info)
            return
        if body.reduction not in _REDUCTIONS:
            raise NoOpFunc(f"the card has no reduction '{body.reduction}'")
        name = _REDUCTIONS[body.reduction]
        value = body.value
        if value.dtype in INTEGERS and name not in ("max", "min"):
            raise UnsupportedType(f"the card has no {name} over {value.dtype}")
        if value.dtype in INTEGERS:
            raise UnsupportedType(f"the card has no {name} over {value.dtype}")
        if body.reduction == "any":
            value = as_bool(value)
        if name == "exx2" and isinstance(value, PointwiseOp) and value.opfunc == "exx2":
            value = value.args[0]
        target = self.out_dtype
        # The result has the type of the input; another one is a cast after it.
        if target is not value.dtype and not (name == "max" and target is torch.bool):
            if target in FLOATS and value.dtype in (*FLOATS, torch.bool):
                value = cast(value, target)
            else:
                raise UnsupportedType(f"the card has no {name} from {value.dtype} to {target}")
        access = self._emit(value)
        if not reduced:  # all reduced dimensions have size 1
            self._add("identity", "copy", self.kept, (), [access], output, info)
            return
        self._add(name, "reduction", self.ranges, reduced, [access], output, info)

    def _second(self, body: Body) -> tuple[Access, dict[sympy.Symbol, Access]]:
        """The second operand of a product, and by what rows choose among several of them."""
        assert isinstance(body.value, DotOp)
        x, y = body.value.args
        chosen = isinstance(y, Load) and len(y.index.free_symbols & self.indirect.keys()) == 1
        if not chosen or x.dtype is torch.float8_e4m3fn or body.ranges[-1] == 1:
            return self._emit(y), {}
        access, gather = self._read(y)
        (rows,) = gather.values()
        own = access.index.free_symbols - gather.keys()
        if rows.index.free_symbols & own or not own.intersection(body.reduced):
            return self._emit(y), {}
        return access, gather

    def _topk(self, body: Body, output: Access, info: dict[str, Any]) -> None:
        name, dim = body.reduction.split(":")
        if body.value.dtype not in (*FLOATS, *INTEGERS):
            raise UnsupportedType(f"the card has no {name} over {body.value.dtype}")
        place = body.variables[int(dim)]
        if not any(v != place for v in self.kept):
            raise NoOpFunc(f"the card has {name} along one of several dimensions only")
        info = {**info, "k": body.ranges[int(dim)], "k_symbol": place}
        ranges = dict(self.ranges)
        reduced = tuple(v for v in body.reduced if v in ranges)
        if not reduced:
            raise NoOpFunc(f"the card has no {name} of a single element")
        self._add(name, "topk", ranges, reduced, [self._emit(body.value)], output, info)

    def _emit(self, value: Value) -> Access:
        """An access that holds the value at the current point."""
        if value in self._known:
            return self._known[value]
        if isinstance(value, (Load, Constant)):
            access, gather = self._read(value)
            if gather:
                access = self._temporary(value.dtype, self._symbols([access], gather))
                source, _ = self._read(value)
                ranges = self._ranges_of(access)
                self._add("identity", "gather", ranges, (), [source], access, {}, gather)
        else:
            assert isinstance(value, (PointwiseOp, DotOp))
            if isinstance(value, DotOp):
                value = PointwiseOp(value.dtype, "mul", value.args)
            access = self._apply(value, None, None, {})
        self._known[value] = access
        return access

    def _apply(
        self,
        value: PointwiseOp,
        output: Access | None,
        ranges: dict[sympy.Symbol, int] | None,
        info: dict[str, Any],
    ) -> Access:
        inputs = [self._emit(a) for a in value.args]
        if output is None:
            output = self._temporary(value.dtype, self._symbols(inputs, {}))
            ranges = self._ranges_of(output)
        assert ranges is not None
        row = OPFUNCS.get(value.opfunc)
        kind = "copy" if row is not None and row.kind == "copy" else "pointwise"
        constants = dict(value.info).get("constants")
        if constants:
            info = {**info, "constants": dict(constants)}
        self._add(value.opfunc, kind, ranges, (), inputs, output, info)
        return output

    def _read(self, value: Value) -> tuple[Access, dict[sympy.Symbol, Access]]:
        if isinstance(value, Constant):
            return Access(self._constant(value), sympy.S.Zero), {}
        assert isinstance(value, Load)
        buffer, offset = self.find(value.name)
        return Access(buffer, value.index + offset), self._indirect_in(value.index)

    def _indirect_in(self, index: sympy.Expr) -> dict[sympy.Symbol, Access]:
        """The symbols of an index that are read from tensors, and where."""
        symbols = sorted((s for s in index.free_symbols if s in self.indirect), key=str)
        return {symbol: self._emit(self.indirect[symbol]) for symbol in symbols}

    def _constant(self, value: Constant) -> Buffer:
        return constant_of(self.constants, value.dtype, value.value)

    def _symbols(
        self, inputs: list[Access], gather: dict[sympy.Symbol, Access]
    ) -> list[sympy.Symbol]:
        used: set[sympy.Symbol] = set()
        for access in (*inputs, *gather.values()):
            used |= access.index.free_symbols
        return [v for v in self.ranges if v in used]

    def _temporary(self, dtype: torch.dtype, symbols: list[sympy.Symbol]) -> Access:
        size = tuple(self.ranges[v] for v in symbols)
        name = f"{self.prefix}_t{len(self.operations)}"
        buffer = Buffer(name, size, contiguous_strides(size), dtype, written=True)
        return Access(buffer, buffer.index(list(symbols)))

    def _ranges_of(self, access: Access) -> dict[sympy.Symbol, int]:
        used = access.index.free_symbols
        return {v: n for v, n in self.ranges.items() if v in used}

    def _add(
        self,
        opfunc_name: str,
        kind: str,
        ranges: dict[sympy.Symbol, int],
        reduced: tuple[sympy.Symbol, ...],
        inputs: list[Access],
        output: Access,
        info: dict[str, Any],
        gather: dict[sympy.Symbol, Access] | None = None,
    ) -> None:
        if gather:
            info = {**info, "rows": {v: self.rows[v] for v in gather}}
        self.operations.append(
            Operation(opfunc_name, kind, dict(ranges), reduced, inputs, output, dict(info),
                      self.origin, gather or {})
        )  # fmt: skip


def constant_of(
    constants: dict[tuple[str, Any], Buffer], dtype: torch.dtype, number: Any
) -> Buffer:
    """The buffer of a number, one for each value and type."""
    key = (str(dtype), repr(number))
    if key not in constants:
        name = f"constant{len(constants)}"
        constants[key] = Buffer(name, (), (), dtype, is_constant=True, value=number)
    return constants[key]


def typed_for(value: Value, dtype: torch.dtype) -> Value:
    """Cast the stored value to the dtype of its buffer."""
    if value.dtype == dtype:
        return value
    return cast(value, dtype)
