"""Padding rules of indexing: indices in the padding are valid, and add or write nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from torch_spyre._inductor.dynamic.padded_dims import Dims, NotPaddable, broadcast, has_open
from torch_spyre._inductor.dynamic.rule_registry import argument, closed, no_numbers, rule, value_of
from torch_spyre._inductor.dynamic.specialize import Fixer, is_symbolic, number

aten, prims = torch.ops.aten, torch.ops.prims


def _safe_index(fixer: Fixer, index: Any, rows: int) -> Node:
    """Indices that are valid in the padding, too."""
    new, dims = fixer.env[index], fixer.dims[index]
    if index.op == "placeholder":
        return new  # padded with zeros
    if _depends_on_nothing(index):
        return fixer.emit(aten.clamp.default, new, -rows, rows - 1)  # while compiling
    return fixer.masked(new, dims, range(len(dims)), 0)


def _depends_on_nothing(node: Any) -> bool:
    todo, seen = [node], set()
    while todo:
        found = todo.pop()
        if found in seen or is_symbolic(value_of(found)):
            continue
        seen.add(found)
        if found.op == "placeholder":
            return False
        todo += found.all_input_nodes
    return True


@rule(aten.embedding.default)
def _embedding(fixer: Fixer, node: Any) -> None:
    if closed(fixer, node):
        return
    table, index = node.args[:2]
    rows = fixer.dims[table]
    if has_open(rows):
        raise NotPaddable("a table of open size")
    new = _safe_index(fixer, index, number(rows[0].size, fixer.sizes))
    fixer.put(node, fixer.emit(node.target, fixer.env[table], new))
    fixer.dims[node] = (*fixer.dims[index], rows[1])


@rule(aten.index.Tensor)
def _index(fixer: Fixer, node: Any) -> None:
    if closed(fixer, node):
        return
    source, indices = node.args
    dims = fixer.dims[source]
    used = [i for i, n in enumerate(indices) if n is not None]
    if any(value_of(indices[i]).dtype in (torch.bool, torch.uint8) for i in used):
        raise NotPaddable("a choice by a mask")
    if any(dims[i].is_open for i in used) or used != list(range(used[0], used[-1] + 1)):
        raise NotPaddable("indices into open sizes")
    new: list[Any] = [None] * len(indices)
    for i in used:
        new[i] = _safe_index(fixer, indices[i], number(dims[i].size, fixer.sizes))
    chosen = broadcast([fixer.dims[indices[i]] for i in used])
    fixer.put(node, fixer.emit(node.target, fixer.env[source], new))
    fixer.dims[node] = (*dims[: used[0]], *chosen, *dims[used[-1] + 1 :])


@rule(aten.gather.default)
def _gather(fixer: Fixer, node: Any) -> None:
    if closed(fixer, node):
        return
    source, along, index = node.args[:3]
    dims, own = fixer.dims[source], fixer.dims[index]
    if not dims or dims[along].is_open:
        raise NotPaddable("a choice along an open size")
    _same_rows(dims, own, along % len(dims))
    new = _safe_index(fixer, index, number(dims[along].size, fixer.sizes))
    fixer.put(node, fixer.emit(node.target, fixer.env[source], along, new))
    fixer.dims[node] = own


def _same_rows(dims: Dims, own: Dims, along: int) -> None:
    for i, (a, b) in enumerate(zip(dims, own, strict=True)):
        if i != along and (a.is_open or b.is_open) and a.parts != b.parts:
            raise NotPaddable("indices whose sizes are made of other parts")


@rule(aten.scatter.value, aten.scatter.src, aten.scatter_add.default)
def _scatter(fixer: Fixer, node: Any) -> None:
    if closed(fixer, node):
        return
    no_numbers(fixer, node)
    table, along, index, what = node.args[:4]
    dims, own = fixer.dims[table], fixer.dims[index]
    along %= len(dims)
    if dims[along].is_open or own[along].is_open:
        raise NotPaddable("a scatter along an open size")
    _same_rows(dims, own, along)
    rows = number(dims[along].size, fixer.sizes)
    source = fixer.env[what] if isinstance(what, Node) else what
    if isinstance(what, Node):
        _same_rows(own, fixer.dims[what], along)
    new = fixer.emit(node.target, fixer.env[table], along, _safe_index(fixer, index, rows), source)
    fixer.put(node, new)
    # Rows of the table count where those of the indices do.
    fixer.dims[node] = tuple(b if b.is_open else a for a, b in zip(dims, own, strict=True))


@rule(aten.index_put.default, aten._unsafe_index_put.default)
def _index_put(fixer: Fixer, node: Any) -> None:
    if closed(fixer, node):
        return
    table, indices, values = node.args[:3]
    dims = fixer.dims[table]
    if has_open(dims) or not argument(node, 3, "accumulate", False):
        raise NotPaddable("places that are chosen by open indices and written")
    new = [
        None if n is None else _safe_index(fixer, n, number(dims[i].size, fixer.sizes))
        for i, n in enumerate(indices)
    ]
    own = fixer.dims[values]
    chosen = broadcast([fixer.dims[n] for n in indices if n is not None])
    if indices[0] is None or [d.parts for d in own[: len(chosen)]] != [d.parts for d in chosen]:
        raise NotPaddable("values and indices of other parts")
    added = fixer.masked(fixer.env[values], own, range(len(own)), 0)
    fixer.put(node, fixer.emit(node.target, fixer.env[table], new, added, True))
    fixer.dims[node] = dims


@rule(aten.embedding_dense_backward.default)
def _embedding_backward(fixer: Fixer, node: Any) -> None:
    if closed(fixer, node):
        return
    grad, index, rows = node.args[:3]
    own = fixer.dims[grad]
    if [d.parts for d in own[:-1]] != [d.parts for d in fixer.dims[index]]:
        raise NotPaddable("gradients and indices of other parts")
    added = fixer.masked(fixer.env[grad], own, range(len(own)), 0)
    new = _safe_index(fixer, index, rows)
    fixer.put(node, fixer.emit(node.target, added, new, *node.args[2:]))
    fixer.dims[node] = fixer.static_dims(node)
