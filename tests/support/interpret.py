"""What values and operations of the front-end mean, element by element, by the OpFunc table's
references. Slow and plain: to compare with."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch

from torch_spyre._inductor.operations.operation import Access, Buffer, Operation
from torch_spyre._inductor.operations.opfunc_map import Constant, Load, PointwiseOp, Value
from torch_spyre.opfuncs import OPFUNCS

Symbols = Mapping[sympy.Symbol, int]


def elements(index: sympy.Expr, ranges: Symbols) -> dict[tuple[int, ...], int]:
    """The storage element at each point of a space."""
    modules = [{"FloorDiv": lambda a, b: a // b, "ModularIndexing": lambda a, b, m: a // b % m}]
    code = sympy.lambdify(list(ranges), index, modules)
    return {p: int(code(*p)) for p in itertools.product(*(range(n) for n in ranges.values()))}


def value_of(value: Value, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """An expression in which every load is that of a whole tensor."""
    if isinstance(value, Load):
        return tensors[value.name]
    if isinstance(value, Constant):
        return torch.tensor(value.value, dtype=value.dtype)
    assert isinstance(value, PointwiseOp)
    args = [value_of(a, tensors) for a in value.args]
    constants = dict(dict(value.info).get("constants", ()))
    return applied(value.opfunc, args, constants, value.dtype)


def applied(
    opfunc: str, args: Sequence[torch.Tensor], constants: Mapping[str, Any], dtype: torch.dtype
) -> torch.Tensor:
    """An OpFunc on tensors."""
    if opfunc in ("identity", "dl16tofp32", "fp32todl16", "int32tofp", "fptoint32"):
        return args[0].to(dtype)
    reference = OPFUNCS[opfunc].reference
    assert reference is not None, opfunc
    return reference(torch, *args, **constants).to(dtype)


class Memory(dict[Buffer, torch.Tensor]):
    """The storage of each buffer, flat; what is not written yet is nan, or 0 in integers."""

    def of(self, buffer: Buffer) -> torch.Tensor:
        if buffer.is_constant:
            return torch.tensor([buffer.value], dtype=buffer.dtype)
        if buffer not in self:
            size = 1 + sum((n - 1) * s for n, s in zip(buffer.size, buffer.stride, strict=True))
            nothing = float("nan") if buffer.dtype.is_floating_point else 0
            self[buffer] = torch.full((size,), nothing, dtype=buffer.dtype)
        return self[buffer]

    def run(self, op: Operation) -> None:
        """One pointwise operation, copy, gather, reduction or product."""
        shape = tuple(op.ranges.values())
        rows = {s: self._read(a, op, {}) for s, a in op.gather.items()}
        inputs = [self._read(a, op, rows) for a in op.inputs]
        target = self.of(op.output.buffer)
        if op.reduced:
            kept = len(op.kept)
            assert list(op.ranges)[:kept] == op.kept
            dims = tuple(range(kept, len(shape)))
            whole = inputs[0] * inputs[1] if op.kind == "matmul" else inputs[0]
            reduce = {"max": torch.amax, "min": torch.amin, "mean": torch.mean}
            made = reduce.get(op.opfunc, torch.sum)(whole.reshape(shape), dims)
            space = {v: op.ranges[v] for v in op.kept}
        else:
            constants = op.info.get("constants", {})
            made = applied(op.opfunc, inputs, constants, op.output.buffer.dtype)
            space = dict(op.ranges)
        made = made.expand(tuple(space.values())).reshape(-1)
        if op.kind == "scatter":
            places = self._places(op.output, op, rows)
        else:
            places = torch.tensor(list(elements(op.output.index, space).values()))
        target[places] = made.to(target.dtype)

    def _read(
        self, access: Access, op: Operation, rows: Mapping[sympy.Symbol, torch.Tensor]
    ) -> torch.Tensor:
        shape = tuple(op.ranges.values())
        return self.of(access.buffer)[self._places(access, op, rows)].reshape(shape)

    def _places(
        self, access: Access, op: Operation, rows: Mapping[sympy.Symbol, torch.Tensor]
    ) -> torch.Tensor:
        used = {s: r for s, r in rows.items() if s in access.index.free_symbols}
        plain = access.index.subs(dict.fromkeys(used, 0))
        places = torch.tensor(list(elements(plain, op.ranges).values()))
        for symbol, row in used.items():
            places = places + int(access.index.coeff(symbol)) * row.reshape(-1).long()
        return places
