"""The dimensions of an operation as its SuperDSC names them.

In: an OpSpec, aligned. Out: an OpPlan: a label, a padded size and a number of slices for each
dimension, and which dimensions each tensor has fields for.

Example: a sum over the columns of a (64, 128) tensor has the dimensions mb and out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from torch_spyre import opfuncs
from torch_spyre._inductor.opspec.access import Access, InvalidOpSpec, kind_of, read_accesses
from torch_spyre._inductor.opspec.op_spec import OpSpec
from torch_spyre._inductor.opspec.relayout import relayout_accesses

_LABELS = ("mb", "x", "y", "i", "j", "ki", "kj")
_MATMUL_LABELS = ("ki", "kj", "y", "x", "mb", "out", "in")
_CLASSES = ("OUTPUT", "KERNEL", "INPUT", "KERNEL_IDX")
_MATMUL_CLASSES = ("INPUT", "KERNEL", "OUTPUT", "KERNEL_IDX")


@dataclass
class OpDim:
    """A dimension of the operation."""

    symbol: sympy.Symbol
    label: str
    size: int
    slices: int
    padded: int


@dataclass
class OpTensor:
    """A tensor of the operation."""

    number: int
    access: Access
    order: list[sympy.Symbol]
    """All dimensions it has fields for: its axes, the one nearest to the stick first, then those
    that it does not vary along."""
    scale: dict[sympy.Symbol, int]
    stick: sympy.Symbol
    type: str = ""
    """Layout class, e.g. OUTPUT."""


@dataclass
class OpPlan:
    """An operation in the words of its SuperDSC."""

    op: OpSpec
    kind: str
    name: str
    dims: list[OpDim]
    tensors: list[OpTensor]
    masked: list[OpDim]

    def __post_init__(self) -> None:
        self.by_symbol = {p.symbol: p for p in self.dims}
        self.indices = [t for t in self.tensors if t.access.is_index]

    def label(self, symbol: sympy.Symbol) -> str:
        return self.by_symbol[symbol].label

    def labels(self, symbols: Sequence[sympy.Symbol]) -> list[str]:
        return [self.by_symbol[s].label for s in symbols]


_EXTRA_STICK = sympy.Symbol("_stick")


def make_op_plan(op: OpSpec) -> OpPlan:
    """The plan of an operation; InvalidOpSpec for one that the JSON has no words for."""
    kind = kind_of(op)
    if op.op == "relayout":
        accesses = relayout_accesses(op)
        symbols = list(accesses[0].symbols)
        labels = _dim_labels(op, kind, len(symbols))
        dims = []
        for symbol, label in zip(symbols, labels):
            size, slices = op.iteration_space.get(symbol, (1, 1))
            dims.append(OpDim(symbol, label, size, slices, size))
        tensors = [
            OpTensor(i, access, symbols, dict.fromkeys(symbols, 1), symbols[-1])
            for i, access in enumerate(accesses)
        ]
        return OpPlan(op, kind, op.op, dims, tensors, [])

    accesses = read_accesses(op)
    values = [a for a in accesses if not a.is_index]
    source = values[0] if kind in ("reduction", "topk") else values[-1]
    dims = _padded_dims(op, kind, accesses, source)
    stick = dims[-1].symbol if dims[-1].symbol is _EXTRA_STICK else source.stick
    tensors = [_tensor(op, kind, i, a, source, stick, dims) for i, a in enumerate(accesses)]

    name, output = op.op, accesses[-1]
    reduces_stick = source.stick is not None and source.stick not in output.symbols
    if kind == "reduction" and not reduces_stick:
        name += opfuncs.NONSTICK
    masked: list[sympy.Symbol] = []
    if kind == "restickify":
        masked = [p.symbol for p in dims]
    elif kind == "matmul":
        masked = [dims[-1].symbol, source.stick]
    elif kind == "reduction" and reduces_stick:
        masked = [source.stick]
    return OpPlan(
        op, kind, name, dims, tensors, [p for p in dims if p.symbol in masked and p.padded > p.size]
    )


def _dim_labels(op: OpSpec, kind: str, count: int) -> list[str]:
    limit = len(_MATMUL_LABELS) if kind == "matmul" else len(_LABELS) + 1
    if count > limit:
        raise InvalidOpSpec("number of dimensions", f"operation {op.op}", count, f"1 to {limit}")
    if kind == "matmul":
        return list(_MATMUL_LABELS[-count:])
    return [*_LABELS[: count - 1], "out"] if count else []


def _padded_dims(op: OpSpec, kind: str, accesses: list[Access], source: Access) -> list[OpDim]:
    labels = _dim_labels(op, kind, len(op.iteration_space))
    dims = [
        OpDim(symbol, label, size, slices, size)
        for label, (symbol, (size, slices)) in zip(labels, op.iteration_space.items())
    ]
    values = [a for a in accesses if not a.is_index]
    whole = kind in ("matmul", "cast", "restickify")
    sticks = {a.stick for a in (values if whole else [source]) if a.stick is not None}
    for dim in dims:
        if dim.symbol in sticks:
            eps = max(a.unit for a in values if a.stick == dim.symbol)
            if kind == "matmul":
                eps = max(a.unit for a in values if dim.symbol in a.symbols)
            dim.padded = -(-dim.size // eps) * eps
    if not any(a.stick is not None for a in values):
        eps = max(a.eps for a in values)
        if len(dims) >= len(_LABELS):
            raise InvalidOpSpec("number of dimensions", f"operation {op.op}", len(dims), 6)
        dims.append(OpDim(_EXTRA_STICK, _LABELS[len(dims)], eps, 1, eps))
    return dims


def _tensor(
    op: OpSpec,
    kind: str,
    number: int,
    access: Access,
    source: Access,
    op_stick: sympy.Symbol | None,
    dims: list[OpDim],
) -> OpTensor:
    order = list(access.symbols)
    stick = access.stick
    if op_stick is _EXTRA_STICK and not access.is_index:
        order.append(op_stick)
        stick = op_stick
    scale = dict.fromkeys(order, 1)
    if kind not in ("matmul", "topk") or access.is_index:
        known = {*source.symbols, *order}
        others = [p.symbol for p in dims if p.symbol not in known]
        for symbol in (*source.symbols, *others):
            if symbol not in scale:
                order.append(symbol)
                no_stick = symbol == op_stick and stick is None
                scale[symbol] = -2 if no_stick else -1
    if op.op == "layernormscale" and number == 0 and op_stick is not None:
        scale[op_stick] = -2
        order.sort(key=lambda symbol: scale[symbol] < 0)
    stick = stick if stick is not None else op_stick
    if stick is None or stick not in scale:
        place = f"operation {op.op}, tensor {number}"
        raise InvalidOpSpec(
            "a stick", place, access.arg.device_coordinates, "a symbol in the stick"
        )
    return OpTensor(number, access, order, scale, stick)


def layout_classes(plan: OpPlan) -> dict[str, OpTensor]:
    """Layout classes in the order of first use, each with the tensor that it describes."""
    names = _MATMUL_CLASSES if plan.kind == "matmul" else _CLASSES
    found: dict[tuple[Any, ...], str] = {}
    classes: dict[str, OpTensor] = {}
    for tensor in plan.tensors:
        key: tuple[Any, ...] = (tensor.stick, frozenset(tensor.order), tensor.access.eps)
        if plan.indices and plan.kind == "matmul" and tensor.access.is_index:
            tensor.type = "KERNEL_IDX"
            classes[tensor.type] = tensor
            continue
        if plan.indices and plan.kind != "matmul":
            key = (tensor.access.is_index,)
            tensor.type = "KERNEL_IDX" if tensor.access.is_index else "OUTPUT"
        elif key in found:
            tensor.type = found[key]
        elif len(found) == len(names):
            raise InvalidOpSpec("layout classes", f"operation {plan.op.op}", "more", len(names))
        else:
            tensor.type = names[len(found)]
        found.setdefault(key, tensor.type)
        classes.setdefault(tensor.type, tensor)
    return classes


def gaps_of(plan: OpPlan, tensor: OpTensor) -> dict[str, int]:
    """Entries of an axis beyond the iteration; negative where the padded iteration has more."""
    if plan.op.op == "relayout":
        return {}
    gaps = {}
    eps = tensor.access.eps
    for axis in tensor.access.axes:
        dim = plan.by_symbol[axis.symbol]
        gap = axis.size * (eps if axis.sticks else 1) - dim.padded
        if gap:
            gaps[dim.label] = gap
    if tensor.stick is _EXTRA_STICK and plan.by_symbol[_EXTRA_STICK].padded != eps:
        extra = plan.by_symbol[_EXTRA_STICK]
        gaps[extra.label] = eps - extra.padded
    return gaps
