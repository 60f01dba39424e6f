"""Rules of where a step runs: its cores, its points, and the memory of its operands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from math import isfinite
from typing import NamedTuple

from torch_spyre.backend.fuse.memory_regions import accesses
from torch_spyre.backend.fuse.shared_lx import SHARED_BYTES
from torch_spyre.backend.register_allocation import STORE
from torch_spyre.backend.steps import (
    MAX_DIMS,
    Copy,
    Gather,
    Matmul,
    Operand,
    Space,
    Step,
    Tile,
    Topk,
    addresses,
)
from torch_spyre.constants import BYTES_IN_STICK, SEGMENT_BYTES
from torch_spyre.hardware import CARD

_ROOM = {
    Space.ARGUMENT: SEGMENT_BYTES,
    Space.LX: CARD.lx_bytes,
    Space.SHARED: SHARED_BYTES,
}


_Points = tuple[tuple[int, ...], ...]
"""For each core, for each dimension."""


class Scope(NamedTuple):
    """What is around a step."""

    counts: tuple[int, ...]
    """How often the loops around it run, outermost first."""
    arguments: int
    """Of the launch."""


Found = Iterator[tuple[object, object]]
"""What was found, and what is allowed instead."""


def operands_of(step: Tile | Matmul | Topk) -> tuple[Operand, ...]:
    """What instructions can name; of topk both."""
    if isinstance(step, Topk):
        return (step.input, step.output)
    return step.epilogue_operands if isinstance(step, Matmul) else step.operands


def cores(step: Step, scope: Scope) -> Found:
    if not 1 <= step.cores <= CARD.cores:
        yield step.cores, f"1 to {CARD.cores}"


def entry_per_core(step: Step, scope: Scope) -> Found:
    lists: list[Sequence[object]] = [a.offsets for a in addresses(step)]
    if isinstance(step, (Tile, Matmul, Gather, Topk)):
        lists.append(step.extents)
    if isinstance(step, Tile):
        lists.append(step.tails)
    if isinstance(step, (Tile, Matmul)):
        lists += [part for part in (step.starts, step.groups) if part]
    if isinstance(step, (Tile, Topk)):
        lists += [o.limits for o in operands_of(step)]
    if isinstance(step, Copy):
        lists += [step.source_side.views, step.destination.views]
    if isinstance(step, Gather):
        lists.append(step.first_index)
    if isinstance(step, Matmul) and step.choice is not None:
        lists.append(step.choice.first)
    wrong = [len(part) for part in lists if len(part) != step.cores]
    if wrong:
        yield f"{wrong[0]} entries", f"{step.cores}, one for each core"


def works(step: Step, scope: Scope) -> Found:
    if not step.works or not step.source:
        yield "none", "one for each operation that the step stands for"
    for work in step.works:
        numbers = [n for n in work if isinstance(n, int)]
        if min(numbers) < 0 or not 1 <= work.cores <= CARD.cores:
            yield f"{work.name} with {numbers}", f"0 or more, on 1 to {CARD.cores} cores"
    if not (isfinite(step.time_us) and step.time_us >= 0):
        yield f"{step.time_us} us", "0 or more"


def loop_strides(step: Step, scope: Scope) -> Found:
    for address in addresses(step):
        if len(address.loop_strides) != len(scope.counts):
            yield len(address.loop_strides), f"{len(scope.counts)}, one for each loop around it"


def spaces(step: Step, scope: Scope) -> Found:
    for address in addresses(step):
        last = scope.arguments if address.space == Space.ARGUMENT else 1
        if address.space not in _ROOM:
            yield address.space.name, "ARGUMENT, LX or SHARED"
        elif not 0 <= address.argument < last:
            yield f"{address.space.name} {address.argument}", f"0 to {last - 1}"


def room(step: Step, scope: Scope) -> Found:
    """Hulls are never too small: where limits cut sticks off the last byte may lie beyond."""
    for access in accesses(step, scope.counts):
        region, room = access.region, _ROOM[access.region.space]
        high = region.high
        if isinstance(step, Tile) and max(step.operands[access.operand].limits) >= 0:
            high = region.low + BYTES_IN_STICK
        if region.low < 0 or high > room:
            yield f"{region.space.name} {region.low} to {high}", f"0 to {room}"


def sticks(step: Step, scope: Scope) -> Found:
    """Indices alone may begin inside of a stick."""
    for number, address in enumerate(addresses(step)):
        if isinstance(step, Gather) and number == 1:
            continue
        if isinstance(step, Matmul) and step.choice is not None and address is step.choice.address:
            continue
        wrong = [o for o in (*address.offsets, *address.loop_strides) if o % BYTES_IN_STICK]
        if wrong:
            yield wrong[0], f"multiples of {BYTES_IN_STICK}"


# ---- Points and cores ----------------------------------------------------------------------------


def extents(step: Tile | Matmul | Gather | Topk, scope: Scope) -> Found:
    dims = {len(points) for points in step.extents}
    if len(dims) != 1 or max(dims) > MAX_DIMS:
        yield f"{sorted(dims)} dimensions", f"the same number for all cores, up to {MAX_DIMS}"
    if min((n for points in step.extents for n in points), default=0) < 0:
        yield min(n for points in step.extents for n in points), "0 or more"


def dims(step: Tile | Matmul | Gather | Topk, scope: Scope) -> Found:
    """Strides are for the dimensions that there are."""
    if isinstance(step, Matmul):
        dims = step.batch + 2
        strides = [step.x.strides, step.y.strides, *(o.strides for o in operands_of(step))]
    elif isinstance(step, Gather):
        dims = len(step.extents[0])
        strides = [side.strides for side in (step.value, step.index, step.out)]
    else:
        dims = len(step.extents[0]) + isinstance(step, Topk)
        strides = [o.strides for o in operands_of(step)]
    wrong = [len(s) for s in strides if len(s) != dims]
    if wrong:
        yield f"{wrong[0]} strides", f"{dims}, one for each dimension"


def stick_dim(step: Tile | Gather | Topk, scope: Scope) -> Found:
    dims = len(step.extents[0])
    if not -1 <= step.stick_dim < dims:
        yield step.stick_dim, f"-1 to {dims - 1}"


def shares(step: Tile | Matmul, scope: Scope) -> Found:
    """Cores have points of their own; those of a group share the kept ones of a product."""
    if not step.starts:
        return
    points = step.extents
    if isinstance(step, Matmul):
        points = tuple((*rest, step.sticks(columns)) for *rest, columns, _ in step.extents)
    found = _in_common(step.starts, points, step.groups)
    if found:
        yield f"cores {found[0]} and {found[1]} at {step.starts[found[1]]}", "points of one core"


@lru_cache(maxsize=1 << 12)  # layers do the same
def _in_common(
    starts: _Points, extents: _Points, groups: tuple[int, ...]
) -> tuple[int, int] | None:
    """Two cores that have a point in common."""
    boxes = [[(s, s + n) for s, n in zip(*box)] for box in zip(starts, extents)]
    for a, b in combinations(range(len(boxes)), 2):
        together = bool(groups) and groups[a] == groups[b]
        if not together and all(x[0] < y[1] and y[0] < x[1] for x, y in zip(boxes[a], boxes[b])):
            return a, b
    return None


def own_results(step: Tile | Matmul | Topk | Copy, scope: Scope) -> Found:
    """No two cores write to one place: of a group the first one does."""
    groups = getattr(step, "groups", ())
    writers = [groups.index(g) for g in dict.fromkeys(groups)] or range(step.cores)
    for begins in _first_stores(step):
        places = {begins[core] for core in writers}
        if len(places) != len(writers):
            yield f"{len(writers)} cores at {len(places)} places", "a place for each core"


def _first_stores(step: Tile | Matmul | Topk | Copy) -> list[Sequence[object]]:
    """For each operand in memory that is written, and each core, where that begins."""
    if isinstance(step, Copy):
        side = step.destination
        if side.address.space == Space.LX:
            return []
        return [list(zip(side.address.offsets, (view[0] for view in side.views)))]
    if isinstance(step, Topk):
        stored = {1}
    else:
        code = step.epilogue if isinstance(step, Matmul) else step.code
        stored = {i.destination for i in code if i.opcode == STORE} if code else {0}
    written = [operands_of(step)[number].address for number in stored]
    return [address.offsets for address in written if address.space != Space.LX]
