"""Matrix products as matmul steps.

In: an Sdsc of batchmatmul or batchmatmulfp8; its dimensions are mb (rows), in (K), out (N), and
batches. Out: one Matmul. With an index tensor each row has a y of its own. Masked indices of `in`
and `out` do not take part; cores that divide `in` form groups whose partial sums are added.
"""

from __future__ import annotations

import math

from torch_spyre.backend.errors import BundleError
from torch_spyre.backend.lower.tile import reduction_groups, tensor_address
from torch_spyre.backend.read.rules import gathered_dim
from torch_spyre.backend.read.sdsc import Sdsc, Tensor
from torch_spyre.backend.steps import Choice, Matmul, MatmulSide

ROWS, DEPTH, COLUMNS = "mb", "in", "out"

LARGE = 64
"""Rows that share a y, columns, and terms from which on sums by pairs pay (decision 48)."""


def lower_matmul(sdsc: Sdsc) -> Matmul:
    """One product as one step."""
    x, y = (sdsc.tensors[i] for i in sdsc.inputs)
    out = sdsc.tensors[sdsc.output]
    batch = tuple(d for d in sdsc.dims if d not in (ROWS, DEPTH, COLUMNS) and sdsc.size(d) > 1)
    rows = sdsc.slice_size(ROWS) if ROWS in sdsc.dims else 1
    extents = tuple(
        (
            *(sdsc.slice_size(d) for d in batch),
            rows,
            _columns(sdsc, out, core),
            sdsc.valid_in_slice(core, DEPTH),
        )
        for core in range(sdsc.cores)
    )
    return Matmul(
        name=sdsc.op,
        cores=sdsc.cores,
        batch=len(batch),
        extents=extents,
        x=_side(sdsc, x, (*batch, ROWS, DEPTH)),
        y=_side(sdsc, y, (*batch, DEPTH, COLUMNS)),
        out=_side(sdsc, out, (*batch, ROWS, COLUMNS)),
        groups=reduction_groups(sdsc),
        source=(sdsc.op,),
        starts=_starts(sdsc, out, batch),
        large=sdsc.index is None and _is_large(sdsc, y, batch),
        choice=None if sdsc.index is None else _choice(sdsc, y, batch),
    )


def _choice(sdsc: Sdsc, y: Tensor, batch: tuple[str, ...]) -> Choice:
    """Rows choose their y by the numbers of the index tensor. Their sums do not depend on which
    rows come together: none is made by pairs."""
    assert sdsc.index is not None
    index = sdsc.tensors[sdsc.index]
    if gathered_dim(sdsc) != ROWS:
        raise BundleError(
            f"{sdsc.op}: found {y.name} chosen along {gathered_dim(sdsc) or 'no dimension'}, "
            f"allowed: {ROWS}, the rows"
        )
    matrices, axes = sdsc.axes(y)[ROWS], sdsc.axes(index)
    along = index.is_dense and index.stick == ROWS
    strides = [axes[d].stride if d in axes else 0 for d in (*batch, ROWS)]
    first, back = [], []
    for core in range(sdsc.cores):
        start = sdsc.slice(core, ROWS) * sdsc.slice_size(ROWS) if along else 0
        sticks, rest = divmod(0 if index.is_local else start, index.per_stick)
        first.append(0 if index.is_local else start)
        back.append(-(sticks * axes[ROWS].stride + rest * index.format.bytes) if along else 0)
    return Choice(
        count=matrices.entries,
        stride=matrices.stride,
        strides=(*strides[:-1], 0 if along else strides[-1]),
        along_sticks=along,
        stick_stride=axes[ROWS].stride if along else 0,
        address=tensor_address(sdsc, index, back),
        first=tuple(first),
    )


def _is_large(sdsc: Sdsc, y: Tensor, batch: tuple[str, ...]) -> bool:
    """Of the product as a whole, so that its sums do not depend on how cores divide it."""
    axes = sdsc.axes(y)
    sharing = [d for d in batch if d not in axes or axes[d].stride == 0]
    rows = math.prod(sdsc.size(d) for d in (*sharing, ROWS) if d in sdsc.dims)
    return min(rows, sdsc.valid(COLUMNS), sdsc.valid(DEPTH)) >= LARGE


def _starts(sdsc: Sdsc, out: Tensor, batch: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    columns = sdsc.slice_size(COLUMNS)
    if sdsc.split(COLUMNS) > 1 and columns % out.per_stick:
        return ()
    rows = (*batch, ROWS) if ROWS in sdsc.dims else batch
    return tuple(
        (
            *(sdsc.slice(core, d) * sdsc.slice_size(d) for d in rows),
            *((0,) if ROWS not in sdsc.dims else ()),
            sdsc.slice(core, COLUMNS) * columns // out.per_stick,
        )
        for core in range(sdsc.cores)
    )


def _columns(sdsc: Sdsc, out: Tensor, core: int) -> int:
    """Columns that a core computes: y may be padded further than the result is."""
    valid = sdsc.valid_in_slice(core, COLUMNS)
    if out.gap(COLUMNS) >= 0:
        return valid
    before = 0 if out.is_local else sdsc.slice(core, COLUMNS) * sdsc.slice_size(COLUMNS)
    return max(0, min(valid, sdsc.axes(out)[COLUMNS].entries * out.per_stick - before))


def _side(sdsc: Sdsc, tensor: Tensor, dims: tuple[str, ...]) -> MatmulSide:
    axes = sdsc.axes(tensor)
    strides = tuple(axes[d].stride if d in axes else 0 for d in dims)
    return MatmulSide(tensor.format.number, strides, tensor_address(sdsc, tensor))
