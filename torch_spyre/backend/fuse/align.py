"""Brings two steps to the same dimensions and the same division among cores.

In: a step and a Tile that reads what it writes. Out: both with dimensions in the same order, so
that operands which are the same sticks at every point are equal; and how the second may follow the
first. Steps that are grids (`grid`) are split and divided again as needed. Others, those in
scratchpads or with groups of cores, must fit as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import Enum

from torch_spyre.backend.fuse.grid import (
    Box,
    Grid,
    grid_of,
    matmul_grid,
    operands_on,
    tile_on,
    unify,
)
from torch_spyre.backend.register_allocation import LOAD, STORE
from torch_spyre.backend.steps import MAX_DIMS, Form, Instruction, Matmul, Operand, Tile


class How(Enum):
    """Where the code of the second step goes."""

    POINTS = "after the body of the first, which reduces nothing"
    EPILOGUE = "into the last epilogue of the first"
    ROWS = "a further phase, or the last one that reduces nothing"


Aligned = tuple[How, Tile, Tile]


def align(first: Tile, second: Tile) -> Iterator[Aligned]:
    """Ways to follow, the best first."""
    if first.lanes != second.lanes:
        return
    if not first.reductions:
        yield from _align(How.POINTS, first, second)
        return
    if first.groups:
        if first.cores == second.cores and not second.reductions:
            yield from _align_as_is(How.EPILOGUE, first, second)
        return
    if first.phases[-1].reductions and not second.reductions:
        yield from _align(How.EPILOGUE, first, second)
    if not second.groups and (not second.reductions or second.reduces_lanes == first.reduces_lanes):
        yield from _align(How.ROWS, first, second)


def _align(how: How, first: Tile, second: Tile) -> Iterator[Aligned]:
    grids = grid_of(first), grid_of(second)
    if grids[0] is not None and grids[1] is not None:
        for a, b in _common(how, first, second):
            aligned = _align_grids(how, first, grids[0], a, second, grids[1], b)
            if aligned is not None:
                yield (how, *aligned)
                return
    elif first.cores == second.cores and how != How.ROWS:
        yield from _align_as_is(how, first, second)


def _numbers(code: tuple[Instruction, ...], opcode: int) -> list[int]:
    return sorted({i.a if opcode == LOAD else i.destination for i in code if i.opcode == opcode})


def _common(how: How, first: Tile, second: Tile) -> list[tuple[int, int]]:
    """Pairs of operands, by number, that begin at the same place of the same argument."""
    bodies = tuple(i for p in first.phases for i in p.body)
    if how == How.EPILOGUE:
        mine = _numbers(tuple(i for p in first.phases for i in p.epilogue), STORE)
    else:
        mine = _numbers(bodies, STORE)
    if how == How.ROWS:
        mine += [n for n in _numbers(bodies, LOAD) if first.operands[n].form == Form.VECTOR]
    theirs = _numbers(tuple(i for p in second.phases for i in p.body), LOAD)
    return [
        (a, b)
        for a in mine
        for b in theirs
        if _place(first.operands[a]) == _place(second.operands[b])
    ]


def _place(operand: Operand) -> tuple[object, ...]:
    address = operand.address
    return address.space, address.argument, address.loop_strides


def _align_grids(
    how: How, first: Tile, a: Grid, a_number: int, second: Tile, b: Grid, b_number: int
) -> tuple[Tile, Tile] | None:
    if a.bases[a_number] != b.bases[b_number]:
        return None
    a_dims, b_dims = list(range(len(a.sizes))), list(range(len(b.sizes)))
    if how == How.EPILOGUE:
        a_dims = [d for d in a_dims if not a.reduced[d]]
        if first.reduces_lanes:
            # There is one group: a result is the same in every lane.
            if b.sizes[b.stick] != 1:
                return None
            b_dims.remove(b.stick)
            b = replace(b, stick=-1)
    unified = unify(a, a_dims, a_number, b, b_dims, b_number)
    if unified is None:
        return None
    a, b, pairs = unified
    if how == How.EPILOGUE:
        rest = [d for d, is_reduced in enumerate(a.reduced) if is_reduced]
        a = a.ordered([x for x, _ in pairs] + rest)
        b = b.ordered([y for _, y in pairs])
        b = _with_reduced(b, a)
    else:
        a = a.ordered([x for x, _ in pairs])
        b = b.ordered([y for _, y in pairs])
        if how == How.POINTS:
            a = replace(a, reduced=b.reduced)
        else:
            same = a.reduced == b.reduced and first.tails[0] == second.tails[0]
            if second.reductions and not same:
                return None
            b = replace(b, reduced=a.reduced)
    boxes = _division(how, second, a, b)
    if boxes is None or len(a.sizes) > MAX_DIMS:
        return None
    return tile_on(first, a, boxes), tile_on(second, b, boxes)


def _with_reduced(b: Grid, a: Grid) -> Grid:
    """The second in an epilogue: it stands still along the reduced dimensions of the first."""
    rest = len(a.sizes) - len(b.sizes)
    return Grid(
        a.sizes,
        a.reduced,
        a.stick,
        tuple((*s, *(0,) * rest) for s in b.strides),
        b.bases,
        None,
    )


def _division(how: How, second: Tile, a: Grid, b: Grid) -> tuple[Box, ...] | None:
    if how != How.POINTS:
        return a.boxes
    if second.reductions:
        return b.boxes
    return max((g.boxes for g in (a, b) if g.boxes is not None), key=len, default=None)


# ---- Results of a product ------------------------------------------------------------------------


def align_results(first: Matmul, second: Tile) -> tuple[Operand, ...] | None:
    """The operands of a pointwise Tile on the batches, rows and sticks of a product; None when it
    cannot be an epilogue."""
    a, b = matmul_grid(first), grid_of(second)
    if a is None or b is None or second.reductions:
        return None
    stores = _numbers(first.epilogue, STORE) if first.epilogue else [0]
    outs = first.epilogue_operands
    if second.lanes != outs[0].per_stick or not all(map(_fits_epilogue, second.operands)):
        return None
    # Its own division does not matter: it takes over that of the product.
    b = replace(b, boxes=None).merged()
    dims = list(range(len(a.sizes)))
    for a_number in stores:
        for b_number in _numbers(second.body, LOAD):
            same = _place(outs[a_number]) == _place(second.operands[b_number])
            if not same or a.bases[a_number] != b.bases[b_number]:
                continue
            unified = unify(a, dims, a_number, b, list(range(len(b.sizes))), b_number)
            if unified is None or len(unified[0].sizes) != len(a.sizes):
                continue
            return _on_product(a, unified[1], unified[2], second)
    return None


def _fits_epilogue(operand: Operand) -> bool:
    return operand.form in (Form.VECTOR, Form.SPLAT) and operand.sub_stride == 0


def _on_product(
    a: Grid, b: Grid, pairs: list[tuple[int, int]], second: Tile
) -> tuple[Operand, ...]:
    partner = dict(pairs)
    strides = tuple(
        tuple(s[partner[d]] if d in partner else 0 for d in range(len(a.sizes))) for s in b.strides
    )
    assert a.boxes is not None
    grid = Grid(a.sizes, a.reduced, a.stick, strides, b.bases, None)
    operands = operands_on(second.operands, grid, a.boxes)
    return tuple(replace(o, limits=()) for o in operands)


# ---- Steps that stay as they are -----------------------------------------------------------------


def _align_as_is(how: How, first: Tile, second: Tile) -> Iterator[Aligned]:
    """With the cores' own shares."""
    find = _kept_as_is if how == How.EPILOGUE else _points_as_is
    for a, b in _common(how, first, second):
        store, load = first.operands[a], second.operands[b]
        if store.address != load.address:
            continue
        aligned = find(first, second, store, load)
        if aligned is not None:
            yield (how, *aligned)
            return


def _points_as_is(
    first: Tile, second: Tile, store: Operand, load: Operand
) -> tuple[Tile, Tile] | None:
    """For each dimension of the second the one of the first."""
    if first.dims != second.dims:
        return None
    order = _partners(second, list(range(second.dims)), load, first, list(range(first.dims)), store)
    if order is None:
        return None
    operands = tuple(replace(o, strides=tuple(o.strides[d] for d in order)) for o in first.operands)
    reordered = replace(
        first,
        operands=operands,
        extents=second.extents,
        starts=second.starts,
        stick_dim=second.stick_dim,
        kept=second.kept,
    )
    return reordered, second


def _kept_as_is(
    first: Tile, second: Tile, store: Operand, load: Operand
) -> tuple[Tile, Tile] | None:
    """The second one walks over the kept dimensions of the first."""
    own = list(range(second.dims))
    if not _same_in_groups(first, second):
        return None
    if first.reduces_lanes:
        if any(e[second.stick_dim] != 1 for e in second.extents):
            return None
        if any(limit >= 0 for o in second.operands for limit in o.limits):
            return None
        own.remove(second.stick_dim)
    if len(own) != first.kept:
        return None
    order = _partners(first, list(range(first.kept)), store, second, own, load)
    if order is None:
        return None
    rest = (0,) * (first.dims - first.kept)
    operands = tuple(
        replace(o, strides=(*(o.strides[d] for d in order), *rest)) for o in second.operands
    )
    aligned = replace(
        second,
        operands=operands,
        extents=first.extents,
        starts=first.starts,
        stick_dim=first.stick_dim,
        kept=first.kept,
    )
    return first, aligned


def _partners(
    a: Tile, a_dims: list[int], a_operand: Operand, b: Tile, b_dims: list[int], b_operand: Operand
) -> list[int] | None:
    """For each of some dimensions of one the only one of the other that can be it."""
    order: list[int] = []
    for dim in a_dims:
        found = [
            d
            for d in b_dims
            if d not in order
            and a_operand.strides[dim] == b_operand.strides[d]
            and all(x[dim] == y[d] for x, y in zip(a.extents, b.extents))
            and (a.stick_dim == dim) == (b.stick_dim == d)
        ]
        if len(found) != 1:
            return None
        order.append(found[0])
    return order


def _same_in_groups(first: Tile, second: Tile) -> bool:
    """Only one core of a group runs an epilogue: what the others would do must be the same."""
    leaders = {group: first.groups.index(group) for group in first.groups}
    return all(
        o.address.offsets[core] == o.address.offsets[leaders[group]]
        for o in second.operands
        for core, group in enumerate(first.groups)
    )
