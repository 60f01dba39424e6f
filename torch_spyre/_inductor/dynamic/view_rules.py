"""Padding rules of views and slices: where the padding goes, where the end of a dimension is."""

from __future__ import annotations

import operator
from typing import Any

import sympy
import torch
from torch.fx import Node

from torch_spyre._inductor.dynamic.padded_dims import Dim, NotPaddable, broadcast, dim, view
from torch_spyre._inductor.dynamic.rule_registry import (
    argument,
    closed,
    no_numbers,
    rule,
    shape_at,
    value_of,
)
from torch_spyre._inductor.dynamic.specialize import Fixer, number

aten, prims = torch.ops.aten, torch.ops.prims


@rule(aten.view.default, aten._unsafe_view.default, aten.reshape.default)
def _view(fixer: Fixer, node: Any) -> None:
    source = node.args[0]
    dims = view(fixer.dims[source], fixer.sizes_of(node))
    fixer.put(node, fixer.emit(aten.reshape.default, fixer.env[source], shape_at(fixer, node)))
    fixer.dims[node] = dims


@rule(aten.expand.default)
def _expand(fixer: Fixer, node: Any) -> None:
    source = node.args[0]
    before, sizes = fixer.dims[source], fixer.sizes_of(node)
    added = len(sizes) - len(before)
    dims = [
        before[i - added] if i >= added and before[i - added].parts else dim([s], uniform=True)
        for i, s in enumerate(sizes)
    ]
    fixer.put(node, fixer.emit(node.target, fixer.env[source], shape_at(fixer, node)))
    fixer.dims[node] = tuple(dims)


@rule(aten.permute.default, aten.transpose.int, aten.t.default)
def _permute(fixer: Fixer, node: Any) -> None:
    fixer.copy(node)
    dims = list(fixer.dims[node.args[0]])
    if node.target is aten.permute.default:
        dims = [dims[d] for d in node.args[1]]
    elif len(dims) > 1:
        a, b = node.args[1:] if node.target is aten.transpose.int else (0, 1)
        dims[a], dims[b] = dims[b], dims[a]
    fixer.dims[node] = tuple(dims)


@rule(aten.unsqueeze.default)
def _unsqueeze(fixer: Fixer, node: Any) -> None:
    fixer.copy(node)
    dims = list(fixer.dims[node.args[0]])
    dims.insert(node.args[1] % (len(dims) + 1), Dim(()))
    fixer.dims[node] = tuple(dims)


@rule(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def _squeeze(fixer: Fixer, node: Any) -> None:
    fixer.copy(node)
    dims = fixer.dims[node.args[0]]
    chosen = node.args[1] if len(node.args) > 1 else range(len(dims))
    chosen = [chosen] if isinstance(chosen, int) else list(chosen)
    gone = {d % len(dims) for d in chosen} if dims else set()
    fixer.dims[node] = tuple(d for i, d in enumerate(dims) if i not in gone or d.parts)


@rule(aten.slice.Tensor)
def _slice(fixer: Fixer, node: Any) -> None:
    source, along = node.args[0], argument(node, 1, "dim", 0)
    dims = list(fixer.dims[source])
    along %= len(dims)
    step = argument(node, 4, "step", 1)
    start = argument(node, 2, "start", 0)
    start = 0 if start is None else fixer.settle(start)
    numbers = [a for a in node.args[1:] if isinstance(a, Node) and fixer.is_open_number(a)]
    if not dims[along].is_open and not numbers:
        fixer.copy(node)
        dims[along] = dim([fixer.sizes_of(node)[along]])
        fixer.dims[node] = tuple(dims)
        return
    if step != 1 or not dims[along].is_prefix or len(dims[along].parts) > 1:
        raise NotPaddable("a slice of a dimension whose parts or steps are not simple")
    size = fixer.sizes_of(node)[along]
    length, available = number(size, fixer.sizes), number(dims[along].size, fixer.sizes)
    if isinstance(start, int) and start >= 0:
        if start + length > available:
            raise NotPaddable(f"{length} places from {start} on are more than {available}")
        new = fixer.emit(node.target, fixer.env[source], along, start, start + length)
    elif size.is_Integer:
        new = _from(fixer, source, along, _start(fixer, start, dims[along].size), length)
    else:
        raise NotPaddable("a slice that begins and ends at open places")
    fixer.put(node, new)
    dims[along] = dim([size])
    fixer.dims[node] = tuple(dims)


def _start(fixer: Fixer, start: Any, size: sympy.Expr) -> sympy.Expr:
    if isinstance(start, Node):
        found = fixer.expr(value_of(start))
        if found.could_extract_minus_sign():
            found = found + size
        return found
    return size + start


def _from(fixer: Fixer, source: Any, along: int, start: sympy.Expr, length: int) -> Node:
    """Some places from one on that is known when the graph is called."""
    new = fixer.env[source]
    value = new.meta["val"]
    places = fixer.extra("places", start, length, value.device, torch.int64)
    return fixer.emit(aten.index.Tensor, new, [*[None] * along, places])


@rule(aten.select.int)
def _select(fixer: Fixer, node: Any) -> None:
    source, along, index = node.args
    index = fixer.settle(index)
    dims = list(fixer.dims[source])
    along %= len(dims)
    own = dims.pop(along)
    if not isinstance(index, Node) and (not own.is_open or (index >= 0 and own.is_prefix)):
        fixer.copy(node)
    elif len(own.parts) > 1:
        raise NotPaddable("an element of a dimension of several parts")
    else:
        found = _from(fixer, source, along, _start(fixer, index, own.size), 1)
        fixer.put(node, fixer.emit(aten.squeeze.dim, found, along))
    fixer.dims[node] = tuple(dims)


@rule(aten.split_with_sizes.default, aten.split.Tensor, aten.unbind.int)
def _split(fixer: Fixer, node: Any) -> None:
    if closed(fixer, node):
        return
    no_numbers(fixer, node)
    is_unbind = node.target is aten.unbind.int
    along = argument(node, 1 if is_unbind else 2, "dim", 0)
    dims = fixer.dims[node.args[0]]
    along %= len(dims)
    if dims[along].is_open:
        raise NotPaddable("a dimension of open size that is cut")
    fixer.copy(node)
    before, after = dims[:along], dims[along + 1 :]
    if is_unbind:
        fixer.dims[node] = tuple((*before, *after) for _ in value_of(node))
    else:
        fixer.dims[node] = tuple(
            (*before, dim([fixer.expr(v.shape[along])]), *after) for v in value_of(node)
        )


@rule(operator.getitem)
def _getitem(fixer: Fixer, node: Any) -> None:
    source, place = node.args
    new = fixer.env[source]
    found = fixer.graph.call_function(node.target, (new, place))
    found.meta.update({k: v for k, v in node.meta.items() if k != "val"})
    found.meta["val"] = new.meta["val"][place]
    fixer.put(node, found)
    fixer.dims[node] = fixer.dims[source][place]


@rule(aten.cat.default)
def _cat(fixer: Fixer, node: Any) -> None:
    if closed(fixer, node):
        return
    pieces = node.args[0]
    along = argument(node, 1, "dim", 0) % value_of(node).dim()
    dims = [fixer.dims[p] for p in pieces]
    others = broadcast([(*d[:along], Dim(()), *d[along + 1 :]) for d in dims])
    fixed = [not d[along].is_open for d in dims]
    if not all(len(d[along].parts) <= 1 for d in dims) or not all(fixed[1:-1]):
        raise NotPaddable("pieces of open sizes that are put together")
    new = fixer.emit(node.target, [fixer.env[p] for p in pieces], along)
    if not fixed[0] and len(pieces) > 1:
        # What follows the first piece begins where that ends in this call.
        if not all(fixed[1:]):
            raise NotPaddable("several pieces of open sizes that are put together")
        rest = [fixer.env[p] for p in pieces[1:]]
        after = rest[0] if len(rest) == 1 else fixer.emit(node.target, rest, along)
        value = after.meta["val"]
        places = fixer.extra(
            "places", dims[0][along].size, value.shape[along], value.device, torch.int64
        )
        new = _written(fixer, new, along, places, after)
    fixer.put(node, new)
    fixer.dims[node] = (*others[:along], dim([fixer.sizes_of(node)[along]]), *others[along + 1 :])


def _written(fixer: Fixer, table: Node, along: int, places: Node, what: Node) -> Node:
    """A tensor with other values at some places of a dimension."""
    return fixer.emit(aten.index_put.default, table, [*[None] * along, places], what)


@rule(aten.slice_scatter.default)
def _slice_scatter(fixer: Fixer, node: Any) -> None:
    if closed(fixer, node):
        return
    table, source = node.args[0], node.args[1]
    along = argument(node, 2, "dim", 0) % value_of(node).dim()
    dims, own = fixer.dims[table], fixer.dims[source]
    if dims[along].is_open or own[along].is_open or argument(node, 5, "step", 1) != 1:
        raise NotPaddable("a slice of open size that is written")
    broadcast([(*d[:along], Dim(()), *d[along + 1 :]) for d in (dims, own)])
    start = fixer.settle(argument(node, 3, "start", 0) or 0)
    length = number(own[along].size, fixer.sizes)
    if isinstance(start, Node):
        value = fixer.env[table].meta["val"]
        places = fixer.extra(
            "places", _start(fixer, start, dims[along].size), length, value.device, torch.int64
        )
        new = _written(fixer, fixer.env[table], along, places, fixer.env[source])
    else:
        end = start + length if start >= 0 or start + length < 0 else None
        window = (along, start, end)
        new = fixer.emit(aten.slice_scatter.default, fixer.env[table], fixer.env[source], *window)
    fixer.put(node, new)
    fixer.dims[node] = dims
