"""Lowers an operation with layouts to an aligned OpSpec; addresses are assigned later.

In: an Operation whose buffers have layouts. Out: an OpSpec over the symbols c0, c1, ... (kept ones
in host order, then reduced ones) with one coordinate for each device axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import sympy

from torch_spyre._C import ElementArrangement
from torch_spyre._inductor.operations.index_expressions import linear_index
from torch_spyre._inductor.operations.operation import Access, Buffer, Operation
from torch_spyre._inductor.opspec.alignment import align
from torch_spyre._inductor.opspec.coordinates import compute_coordinates
from torch_spyre._inductor.opspec.op_spec import IndirectAccess, OpSpec, TensorArg


def buffers_of(op: Operation) -> list[Buffer]:
    """The buffers of an OpSpec's args, in their order."""
    return [a.buffer for a in (*op.inputs, *op.gather.values(), op.output)]


def make_spec(op: Operation, tiled: Sequence[sympy.Symbol] = ()) -> OpSpec:
    """The OpSpec of an operation. Raises Misaligned where coordinates cannot express it. Of each
    `tiled` variable the outermost part is in `tiled_symbols`."""
    names = {v: _symbol(i) for i, v in enumerate((*op.kept, *op.reduced))}
    space = {names[v]: (op.ranges[v], 1) for v in (*op.kept, *op.reduced)}
    ranges = {v: n for v, (n, _) in space.items()}
    args = []
    for access in op.inputs:
        args.append(_arg(True, access, names, ranges, op))
    for symbol, access in op.gather.items():
        args.append(_arg(True, access, names, ranges, op, name=_index_name(symbol)))
    args.append(_arg(False, op.output, names, ranges, op))
    info = op_info(op, names)
    spec = OpSpec(op.opfunc, bool(op.reduced), space, args, info, [names[v] for v in tiled])
    return spec if op.opfunc == "relayout" else align(spec)


def symbol_of(op: Operation, variable: sympy.Symbol) -> sympy.Symbol:
    """The symbol of an OpSpec that stands for one of its operation."""
    return _symbol((*op.kept, *op.reduced).index(variable))


def outer_symbol_of(op: Operation, variable: sympy.Symbol) -> sympy.Symbol:
    """The same, of a variable that the aligned form may have in several parts: the outermost."""
    return make_spec(op, [variable]).tiled_symbols[0]


def _symbol(index: int) -> sympy.Symbol:
    return sympy.Symbol(f"c{index}", integer=True, nonnegative=True)


def _index_name(symbol: sympy.Symbol) -> str:
    return str(symbol)


def _arg(
    is_input: bool,
    access: Access,
    names: dict[sympy.Symbol, sympy.Symbol],
    ranges: dict[sympy.Symbol, int],
    op: Operation,
    name: str | None = None,
) -> TensorArg:
    layout = access.buffer.layout
    assert layout is not None
    index = access.index.xreplace(names)
    for symbol in op.gather:
        index = index.subs(symbol, IndirectAccess(sympy.Symbol(_index_name(symbol))))
    device_size, stride_map = list(layout.device_size), list(layout.stride_map)
    if op.opfunc == "relayout":
        coordinates: list[sympy.Expr] = [sympy.S.Zero] * len(device_size)
    else:
        coordinates = compute_coordinates(device_size, stride_map, ranges, index)
    arrangement = layout.element_arrangement
    return TensorArg(
        is_input,
        -1,
        layout.device_dtype,
        device_size,
        coordinates,
        {},
        stride_map,
        name=name,
        element_arrangement="STANDARD"
        if arrangement == ElementArrangement.STANDARD
        else arrangement.name,
    )


def op_info(op: Operation, names: dict[sympy.Symbol, sympy.Symbol]) -> dict[str, Any]:
    """The attributes of an OpFunc."""
    info: dict[str, Any] = {}
    if "constants" in op.info:
        info["constants"] = dict(op.info["constants"])
    reduced = math.prod(op.ranges[v] for v in op.reduced)
    if op.opfunc == "mean":
        info["constants"] = {"scaling_factor": 1.0 / reduced}
    elif op.opfunc == "exx2":
        info["constants"] = {"exx2scale": 1.0 / reduced, "useZeroMean": 0.0}
    elif op.kind == "topk":
        info["k"] = op.info["k"]
    elif op.opfunc == "relayout":
        info["relayout"] = {
            "input": _placed_view(op.inputs[0], op),
            "output": _placed_view(op.output, op),
        }
    return info


def _placed_view(access: Access, op: Operation) -> dict[str, Any]:
    """A view of a placed storage, as the relayout of the card wants it."""
    buffer = access.buffer
    assert buffer.layout is not None
    linear = linear_index(access.index, op.ranges)
    strides = dict.fromkeys(op.kept, 0)
    for atom in linear.atoms:
        assert atom.plain, access
        strides[atom.symbol] += atom.coefficient
    size, stride = buffer.placed or (buffer.size, buffer.stride)
    return {
        "device_size": list(buffer.layout.device_size),
        "stride_map": list(buffer.layout.stride_map),
        "size": list(size),
        "stride": list(stride),
        "view_stride": list(strides.values()),
        "offset": linear.offset,
    }
