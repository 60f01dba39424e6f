"""`config.chunk_large_tensors`: loops around operations that are too large for any division.

In: the tree of operations of a kernel. Out: the same, in which a pointwise operation or a copy of
which some core would have to address more of a tensor than it can (256 MB, whatever the division
over cores) is a loop over chunks of it. Reductions and products stay as they are.

Example: `x + 1` for 16 GB on 32 cores is 512 MB a core; in two chunks it is 256 MB.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from math import prod

import sympy

from torch_spyre._inductor import config
from torch_spyre._inductor.layouts.to_op_spec import buffers_of
from torch_spyre._inductor.operations.operation import Buffer
from torch_spyre._inductor.opspec.op_spec import OpSpec
from torch_spyre._inductor.planning.division.documented_rules import legal_slices, widest_span
from torch_spyre._inductor.planning.tiling.loops import (
    Cut,
    Homes,
    Item,
    Node,
    Uses,
    build,
    can_tile,
    in_memory,
    items_of,
    unit_of,
    with_wide_tensors,
)
from torch_spyre.hardware import CARD

Cuts = dict[sympy.Symbol, int]


def chunked(nodes: Sequence[Node], is_argument: Callable[[Buffer], bool]) -> list[Node]:
    """The tree with loops around what is too large. What is in a loop already stays as it is."""
    uses = Uses(items_of(nodes), is_argument)
    result: list[Node] = []
    for node in nodes:
        result += _chunks(node, uses) if isinstance(node, Item) else [node]
    return result


def _chunks(item: Item, uses: Uses) -> list[Node]:
    """The fewest chunks that cores can address; the operation itself if it needs none, or if there
    are none of that size."""
    if item.op.kind not in ("pointwise", "copy") or not can_tile(item.spec) or _fits(item.spec):
        return [item]

    def loops(cuts: Cuts) -> list[Node]:
        tiled = replace(item, symbols=tuple(cuts))
        return build([tiled], [Cut(count) for count in cuts.values()], uses)

    def fits(cuts: Cuts) -> bool:
        nodes = loops(cuts)
        homes = Homes(nodes, buffers_of(item.op))
        return all(_fits(with_wide_tensors(i, homes, CARD.span_bytes)) for i in items_of(nodes))

    space = item.spec.iteration_space
    units = {s: -(-size // unit_of(item.spec, s)) for s, (size, _) in space.items()}
    sizes = {symbol: size for symbol, size in units.items() if size > 1}
    # Of one dimension; or of two, of which the first is cut all the way.
    found = _fewest({}, sizes, fits)
    found = found or [c for s, n in sizes.items() for c in _fewest({s: n}, sizes, fits)]
    return loops(min(found, key=lambda cuts: prod(cuts.values()))) if found else [item]


def _fewest(outer: Cuts, sizes: Cuts, fits: Callable[[Cuts], bool]) -> list[Cuts]:
    """For each dimension that can be cut inside of the outer one, the fewest chunks that fit. More
    chunks are smaller ones, so that the number can be bisected."""
    found = []
    for symbol, size in sizes.items():
        if symbol in outer:
            continue
        choices = [{**outer, symbol: count} for count in range(2, size + 1)]
        if fits(choices[-1]):
            found.append(choices[bisect_left(choices, True, key=fits)])
    return found


def _fits(spec: OpSpec) -> bool:
    """Whether some division leaves each core what it can address."""
    several = max(config.cores, 2)  # one core is not asked for spans, as it has no other choice
    whole = dict.fromkeys(spec.iteration_space, 1)
    spec = in_memory(spec)
    if widest_span(spec, whole, several) <= CARD.span_bytes:
        return True
    legal = legal_slices(spec, config.cores)
    return any(
        widest_span(spec, dict(zip(legal, counts)), several) <= CARD.span_bytes
        for counts in product(*legal.values())
        if prod(counts) <= config.cores
    )
