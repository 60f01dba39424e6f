"""Writes to a part of a tensor: slices, single indices, windows.

In: a tensor, what is written, and where. Out: where the tensor may change, a copy into a view of
it, so that its rest is not moved; where its old value is still needed, a new tensor. Which of
them it is, Inductor's reinplacing pass has decided (`fx/reinplace.py`): what is still a
`slice_scatter` here needs a new tensor.

Example: `slice_scatter(x, source, 1, 3, 4)` of a (8, 16) tensor is `cat([x[:, :3], source, x[:,
4:]], 1)`: each element is written once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor import lowering as inductor
from torch._inductor.virtualized import V

from torch_spyre._inductor.fx.customops import padding_by_dim
from torch_spyre._inductor.lowering.registry import cat, register_spyre_lowering
from torch_spyre._inductor.operations.trace import static_size

aten = torch.ops.aten
spyre = torch.ops.spyre


# ---- In place -----------------------------------------------------------------------------------


@register_spyre_lowering(spyre.overwrite.default)
def overwrite(
    source: ir.TensorBox, target: ir.TensorBox, dims: Sequence[int], offsets: Sequence[int]
) -> ir.TensorBox:
    """A copy into a window of the target."""
    window = target
    for dim, offset in zip(dims, offsets, strict=True):
        window = inductor.slice_(window, dim, offset, offset + source.get_size()[dim])
    return inductor.copy_(window, source)


@register_spyre_lowering(spyre.copy_from_d2d.default)
def copy_from_d2d(source: ir.TensorBox, target: ir.TensorBox) -> ir.TensorBox:
    return inductor.copy_(target, source)


@register_spyre_lowering(spyre.put_rows_.default)
def put_rows_(
    x: ir.TensorBox,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int,
    indices: Sequence[ir.TensorBox | None],
    values: ir.TensorBox,
) -> ir.TensorBox:
    """Rows of a part of a tensor, at places that an index tensor has. What the card cannot write is
    left to the host as a write to that part."""
    part = inductor.as_strided(x, size, stride, offset)
    V.graph.call_function(aten.index_put_.default, (part, list(indices), values), {})
    return x


# ---- A new tensor -------------------------------------------------------------------------------


@register_spyre_lowering(spyre.put_rows.default)
def put_rows(x: ir.TensorBox, *how: Any) -> ir.TensorBox:
    result: ir.TensorBox = inductor.clone(x)
    return put_rows_(result, *how)


@register_spyre_lowering(spyre.padded.default)
def padded(x: ir.TensorBox, pad: Sequence[int], value: float) -> ir.TensorBox:
    """The constant everywhere, then a copy into the middle."""
    size = x.get_size()
    around = padding_by_dim(len(size), pad)
    grown = [n + before + after for n, (before, after) in zip(size, around, strict=True)]
    result = inductor.full(grown, value, dtype=x.get_dtype(), device=x.get_device())
    result.realize()
    middle = result
    for dim, (n, (before, _)) in enumerate(zip(size, around, strict=True)):
        middle = inductor.slice_(middle, dim, before, before + n)
    inductor.copy_(middle, x)
    return result


@register_spyre_lowering(aten.slice_scatter.default)
def slice_scatter(
    x: ir.TensorBox,
    source: ir.TensorBox,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> ir.TensorBox:
    size = [static_size(n) for n in x.get_size()]
    dim %= len(size)
    start, end, step = slice(start, end, step).indices(size[dim])
    if step != 1 and start < end:
        result = inductor.clone(x)
        inductor.copy_(inductor.slice_(result, dim, start, end, step), source)
        return result
    order = _outermost_first(V.graph.current_node.meta["val"])
    back = [order.index(d) for d in range(len(order))]
    turned, piece = (inductor.permute(t, order) for t in (x, source))
    return inductor.permute(_in_pieces(turned, piece, back[dim], start, end), back)


def _in_pieces(
    x: ir.TensorBox, source: ir.TensorBox, dim: int, start: int, end: int
) -> ir.TensorBox:
    if start >= end:
        return inductor.clone(x)
    size = [static_size(n) for n in x.get_size()]
    window = [*size[:dim], end - start, *size[dim + 1 :]]
    pieces = [inductor.expand(inductor.to_dtype(source, x.get_dtype()), window)]
    if start > 0:
        pieces.insert(0, inductor.slice_(x, dim, 0, start))
    if end < size[dim]:
        pieces.append(inductor.slice_(x, dim, end, size[dim]))
    result = inductor.clone(pieces[0]) if len(pieces) == 1 else cat(pieces, dim)
    assert result is not None
    return result


def _outermost_first(result: torch.Tensor) -> list[int]:
    """Dimensions in the order in which a result has to lie: that of the tensor that was changed.
    Whoever views what was changed through a transposed view counts on it."""
    dims = list(range(result.dim()))
    strides = result.stride()
    order = sorted(dims, key=lambda d: -strides[d])
    return order if result.permute(order).is_contiguous() else dims


@register_spyre_lowering(aten.select_scatter.default)
def select_scatter(x: ir.TensorBox, source: ir.TensorBox, dim: int, index: Any) -> ir.TensorBox:
    dim %= len(x.get_size())
    index = static_size(index) % static_size(x.get_size()[dim])
    return slice_scatter(x, inductor.unsqueeze(source, dim), dim, index, index + 1)
