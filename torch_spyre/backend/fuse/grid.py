"""The points of a step as one grid, whatever the cores' shares of it are.

In: a Tile, or the results of a Matmul. Out: a Grid: sizes of the dimensions, for each operand where
point 0 lies and its strides, and for each core its box of points. Two steps that have an operand in
common can be brought to the same dimensions (`unify`), even when one of them counts rows and the
other one batches and rows; then either can take over the division of the other.

Not every step is a grid: scratchpads belong to cores, groups of cores share results, limits cut
sticks off. `grid_of` gives None for these.

Example: rows [1024] with stride 128 and [8, 128] with strides [16384, 128] are the same points;
unified both are [8, 128].
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch_spyre.backend.steps import Address, Matmul, Operand, Space, Tile

Box = tuple[tuple[int, int], ...]
"""For each dimension: the first point and how many."""


@dataclass(frozen=True)
class Grid:
    sizes: tuple[int, ...]
    reduced: tuple[bool, ...]
    stick: int
    """Number of the dimension that counts groups along the sticks."""
    strides: tuple[tuple[int, ...], ...]
    """For each operand, then for each dimension."""
    bases: tuple[int, ...]
    """For each operand the offset of point 0."""
    boxes: tuple[Box, ...] | None
    """For each core; None when its share is no box any more."""

    def split(self, dim: int, inner: int) -> Grid:
        """One dimension as two, the inner one of this size."""

        def twice(values: tuple[int, ...], outer: int, rest: int) -> tuple[int, ...]:
            return (*values[:dim], outer, rest, *values[dim + 1 :])

        boxes = self.boxes
        if boxes is not None:
            pieces = [_split_range(*box[dim], inner) for box in boxes]
            split = [
                (*box[:dim], *piece, *box[dim + 1 :]) for box, piece in zip(boxes, pieces) if piece
            ]
            boxes = tuple(split) if all(pieces) else None
        return Grid(
            twice(self.sizes, self.sizes[dim] // inner, inner),
            (*self.reduced[:dim], self.reduced[dim], *self.reduced[dim:]),
            self.stick + (self.stick > dim),
            tuple(twice(s, s[dim] * inner, s[dim]) for s in self.strides),
            self.bases,
            boxes,
        )

    def merged(self) -> Grid:
        """With as few dimensions as possible; the one of the sticks stays for itself."""
        grid = self
        dim = 0
        while dim + 1 < len(grid.sizes):
            joined = grid._merge(dim)
            if joined is None:
                dim += 1
            else:
                grid = joined
        return grid

    def _merge(self, dim: int) -> Grid | None:
        """A dimension and the next one as one, where that loses nothing."""
        inner = self.sizes[dim + 1]
        if self.stick in (dim, dim + 1) or self.reduced[dim] != self.reduced[dim + 1]:
            return None
        if any(s[dim] != s[dim + 1] * inner for s in self.strides):
            return None
        boxes: list[Box] = []
        for box in self.boxes or ():
            (first, count), (inner_first, inner_count) = box[dim], box[dim + 1]
            if count > 1 and inner_count != inner:
                return None
            joined = (first * inner + inner_first, count * inner_count)
            boxes.append((*box[:dim], joined, *box[dim + 2 :]))

        def once(values: tuple[int, ...], value: int) -> tuple[int, ...]:
            return (*values[:dim], value, *values[dim + 2 :])

        return Grid(
            once(self.sizes, self.sizes[dim] * inner),
            self.reduced[:dim] + self.reduced[dim + 1 :],
            self.stick - (self.stick > dim),
            tuple(once(s, s[dim + 1]) for s in self.strides),
            self.bases,
            tuple(boxes) if self.boxes is not None else None,
        )

    def ordered(self, order: list[int]) -> Grid:
        """With some of the dimensions, in another order."""
        boxes = self.boxes
        if boxes is not None:
            boxes = tuple(tuple(box[d] for d in order) for box in boxes)
        return Grid(
            tuple(self.sizes[d] for d in order),
            tuple(self.reduced[d] for d in order),
            order.index(self.stick) if self.stick in order else -1,
            tuple(tuple(s[d] for d in order) for s in self.strides),
            self.bases,
            boxes,
        )


def _split_range(first: int, count: int, inner: int) -> Box | None:
    """A range of points as a box in two dimensions."""
    if first % inner + count <= inner:
        return ((first // inner, 1), (first % inner, count))
    if first % inner == 0 and count % inner == 0:
        return ((first // inner, count // inner), (0, inner))
    return None


# ---- From steps and back -------------------------------------------------------------------------


def grid_of(tile: Tile) -> Grid | None:
    """The grid of a tile program, or None."""
    limited = any(limit >= 0 for o in tile.operands for limit in o.limits)
    if tile.groups or limited:
        return None
    reduced = tuple(d >= tile.kept for d in range(tile.dims))
    return _grid(tile.operands, tile.extents, tile.starts, reduced, tile.stick_dim)


def matmul_grid(step: Matmul) -> Grid | None:
    """The grid of the results of a product: batches, rows, sticks of columns."""
    if step.groups:
        return None
    extents = tuple((*rows, step.sticks(columns)) for *rows, columns, _ in step.extents)
    dims = step.batch + 2
    return _grid(step.epilogue_operands, extents, step.starts, (False,) * dims, dims - 1)


def _grid(
    operands: tuple[Operand, ...],
    extents: tuple[tuple[int, ...], ...],
    starts: tuple[tuple[int, ...], ...],
    reduced: tuple[bool, ...],
    stick: int,
) -> Grid | None:
    if not starts or any(o.address.space == Space.LX for o in operands):
        return None
    bases = []
    for o in operands:
        found = {
            offset - sum(a * b for a, b in zip(start, o.strides))
            for offset, start in zip(o.address.offsets, starts)
        }
        if len(found) != 1:
            return None
        bases.append(found.pop())
    boxes = tuple(tuple(zip(s, e)) for s, e in zip(starts, extents))
    sizes = tuple(
        max(first + count for first, count in (box[d] for box in boxes))
        for d in range(len(reduced))
    )
    return Grid(sizes, reduced, stick, tuple(o.strides for o in operands), tuple(bases), boxes)


def tile_on(tile: Tile, grid: Grid, boxes: tuple[Box, ...]) -> Tile:
    """The tile program with the dimensions of a grid, which is its own one in another form, and
    the division of another step. Kept dimensions come first."""
    order = [d for d, r in enumerate(grid.reduced) if not r]
    kept = len(order)
    order += [d for d, r in enumerate(grid.reduced) if r]
    if order != list(range(len(order))):
        grid = grid.ordered(order)
        boxes = tuple(tuple(box[d] for d in order) for box in boxes)
    return replace(
        tile,
        cores=len(boxes),
        kept=kept,
        stick_dim=grid.stick,
        extents=tuple(tuple(count for _, count in box) for box in boxes),
        starts=tuple(tuple(first for first, _ in box) for box in boxes),
        tails=(tile.tails[0],) * len(boxes),
        operands=operands_on(tile.operands, grid, boxes),
    )


def operands_on(
    operands: tuple[Operand, ...], grid: Grid, boxes: tuple[Box, ...]
) -> tuple[Operand, ...]:
    """The operands of a step on the dimensions of a grid, for these boxes."""
    result = []
    for o, base, strides in zip(operands, grid.bases, grid.strides):
        offsets = tuple(
            base + sum(first * stride for (first, _), stride in zip(box, strides)) for box in boxes
        )
        address = Address(o.address.space, o.address.argument, offsets, o.address.loop_strides)
        limits = (-1,) * len(boxes) if o.limits else ()
        result.append(replace(o, strides=strides, limits=limits, address=address))
    return tuple(result)


# ---- Two grids -----------------------------------------------------------------------------------


def unify(
    a: Grid, a_dims: list[int], a_operand: int, b: Grid, b_dims: list[int], b_operand: int
) -> tuple[Grid, Grid, list[tuple[int, int]]] | None:
    """Both with dimensions split so that those named have partners of the same size, as the
    strides of an operand show that both have; and the pairs, outermost first. None when they do
    not fit."""
    # Innermost first, by the strides of the common operand.
    left = sorted(a_dims, key=lambda d: a.strides[a_operand][d])
    right = sorted(b_dims, key=lambda d: b.strides[b_operand][d])
    pairs: list[tuple[int, int]] = []
    i = j = 0
    while i < len(left) or j < len(right):
        if i < len(left) and a.sizes[left[i]] == 1 and a.stick != left[i]:
            i += 1
            continue
        if j < len(right) and b.sizes[right[j]] == 1 and b.stick != right[j]:
            j += 1
            continue
        if i == len(left) or j == len(right):
            return None
        x, y = left[i], right[j]
        if (a.stick == x) != (b.stick == y):
            return None
        if a.strides[a_operand][x] != b.strides[b_operand][y]:
            # One point has no stride.
            if not (a.sizes[x] == b.sizes[y] == 1):
                return None
        elif a.strides[a_operand][x] == 0 and a.sizes[x] > 1:
            return None
        size, other = a.sizes[x], b.sizes[y]
        if size > other and size % other == 0 and a.stick != x:
            a = a.split(x, other)
            left = [d + (d > x) for d in left]
            pairs = [(p + (p > x), q) for p, q in pairs]
            left.insert(i, x + 1)  # the inner one now; the outer one comes next
            continue
        if other > size and other % size == 0 and b.stick != y:
            b = b.split(y, size)
            right = [d + (d > y) for d in right]
            pairs = [(p, q + (q > y)) for p, q in pairs]
            right.insert(j, y + 1)
            continue
        if size != other:
            return None
        pairs.append((x, y))
        i += 1
        j += 1
    pairs.reverse()
    return a, b, pairs
