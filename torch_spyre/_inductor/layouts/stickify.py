"""Layout assignment: the stick dimension of each buffer, and copies where users disagree.

In: operations over buffers, some of which have layouts (inputs, results of fallbacks). Out: a
layout for every buffer, and a list of operations in which every access can be written as
coordinates: restickify and relayout operations are inserted where a user needs another layout.

1. candidates   for each buffer without a layout: the sticks that its producer could give it
2. choose       the assignment over the whole graph that moves the fewest elements (beam search)
3. insert       copies for the accesses that still do not fit, shared between their users

The cost of an operation is the number of elements that must be copied before (or after) it can run.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from torch_spyre._C import ElementArrangement, SpyreTensorLayout
from torch_spyre._inductor import config
from torch_spyre._inductor.layouts.requirements import Assignment, cost, keeps_order
from torch_spyre._inductor.layouts.restickify import Copies, Restickify
from torch_spyre._inductor.layouts.stick_layouts import SPARSE, WIDENED, layout_of
from torch_spyre._inductor.operations.error_location import located
from torch_spyre._inductor.operations.operation import Buffer, Operation
from torch_spyre.logs import get_logger

_log = get_logger("spyre.inductor.stickify")


def stickify(
    operations: list[Operation], outputs: set[Buffer], starts: set[int]
) -> tuple[list[Operation], list[Restickify]]:
    """Choose layouts for all buffers and insert the copies that remain.

    `starts` are the indices at which kernels begin: copies are not shared across them.
    """
    choose(operations, outputs)
    copies = Copies()
    for i, op in enumerate(operations):
        if i in starts:
            copies.forget()
        copies.add(op)
    for entry in copies.restickifies:
        _log.info(
            "restickify %s (%d elements) for %s: %s; %s -> %s", entry.buffer, entry.elements,
            entry.operation, entry.reason, entry.source_layout, entry.target_layout,
        )  # fmt: skip
    return copies.operations, copies.restickifies


def as_wanted(op: Operation) -> Operation:
    """A product whose result should have its sticks along M is computed as the transposed one.

    The gradient of a weight: its layout is that of y in the forward product, which a plain product
    of the gradient and the input does not give."""
    wanted = op.output.buffer.wanted
    if wanted is None or op.kind != "matmul" or len(op.kept) != 2 or op.gather:
        return op
    m, n = op.kept
    if op.info["n"] != n or op.output.index.coeff(m) != wanted.stride_map[-1]:
        return op
    x, y = op.inputs
    ranges = {n: op.ranges[n], m: op.ranges[m], **{v: op.ranges[v] for v in op.reduced}}
    return replace(op, ranges=ranges, inputs=[y, x], info={**op.info, "n": m})


# ---- Choosing -----------------------------------------------------------------------------------


@located
def candidates(op: Operation, widened: bool = False) -> list[SpyreTensorLayout]:
    """Layouts that the output of an operation could have, the plain one first.

    `widened`: its lanes may be in the order that the cast from 16 bits leaves.
    """
    buffer = op.output.buffer
    if op.opfunc == "exx2":
        return [
            layout_of(buffer.size, buffer.stride, buffer.dtype, SPARSE, ElementArrangement.EXX2)
        ]
    dims = [d for d in range(len(buffer.size) - 1, -1, -1) if buffer.size[d] > 1]
    if op.kind == "topk":  # lanes are compared with their own kind: the stick is another dimension
        place = op.info["k_symbol"]
        lanes = [v for v in op.kept if v != place]
        dims = [d for d in dims if any(op.output.index.coeff(v) == buffer.stride[d] for v in lanes)]
        return [layout_of(buffer.size, buffer.stride, buffer.dtype, d) for d in dims]
    made = [layout_of(buffer.size, buffer.stride, buffer.dtype, d) for d in dims]
    if widened:
        ordered = [layout_of(buffer.size, buffer.stride, buffer.dtype, d, WIDENED) for d in dims]
        made = ordered if op.opfunc == "dl16tofp32" else ordered + made
    made.append(layout_of(buffer.size, buffer.stride, buffer.dtype, SPARSE))
    if not dims and buffer.size:
        made.insert(0, layout_of(buffer.size, buffer.stride, buffer.dtype, len(buffer.size) - 1))
    if not buffer.size:
        made = made[-1:]
    return made


@dataclass
class _State:
    cost: float
    live: Assignment
    chain: tuple[_State | None, Buffer | None, SpyreTensorLayout | None] = (None, None, None)


def choose(operations: list[Operation], outputs: set[Buffer]) -> None:
    """Give every buffer a layout: the assignment that moves the fewest elements."""
    last_use: dict[Buffer, int] = {}
    for i, op in enumerate(operations):
        for access in (*op.inputs, op.output, *op.gather.values()):
            last_use[access.buffer] = i
    widened = _widened_buffers(operations)
    width = config.stick_beam_width if config.global_stick_optimizer else 1
    states = [_State(0.0, {})]
    known_prices: dict[tuple[Any, ...], dict[tuple[SpyreTensorLayout | None, ...], float]] = {}
    for i, op in enumerate(operations):
        options: list[tuple[SpyreTensorLayout | None, float]] = [(None, 0.0)]
        buffer = op.output.buffer
        if buffer.layout is None and buffer not in states[0].live:
            options = _priced(op, candidates(op, buffer in widened), buffer in outputs)
        accesses = (*op.inputs, op.output)
        used = [b for b in {a.buffer for a in accesses} if options[0][0] is None or b is not buffer]
        ended = {b for b in (*used, buffer) if last_use[b] == i and b not in outputs}
        prices: dict[tuple[int, ...], float] = {}
        shared = known_prices.setdefault(op.content(), {})
        following: dict[tuple[int, ...], tuple[float, _State, SpyreTensorLayout | None]] = {}
        for state in states:
            around = tuple([id(state.live.get(b)) for b in used])
            rest = tuple([id(layout) for b, layout in state.live.items() if b not in ended])
            for option, preference in options:
                # Candidates of a buffer differ, so that they can be told apart as objects: most
                # states agree in the few buffers of this operation, whose price is found once.
                mine = (*around, id(option))
                price = prices.get(mine)
                if price is None:
                    live = state.live if option is None else {**state.live, buffer: option}
                    layouts = tuple([live.get(a.buffer) for a in accesses])
                    price = shared.get(layouts)
                    if price is None:
                        price = shared[layouts] = cost(op, live)
                    prices[mine] = price
                price += state.cost + preference
                key = rest if option is None or buffer in ended else (*rest, id(option))
                known = following.get(key)
                if known is None or price < known[0]:
                    following[key] = (price, state, option)
        best = sorted(following.values(), key=lambda found: found[0])[:width]
        states = [_next(state, price, buffer, option, ended) for price, state, option in best]
    _commit(states[0])


def _next(
    state: _State,
    price: float,
    buffer: Buffer,
    option: SpyreTensorLayout | None,
    ended: Collection[Buffer],
) -> _State:
    """The state after an operation whose output has a layout; None when it had one before."""
    live = {b: layout for b, layout in state.live.items() if b not in ended}
    if option is None:
        return _State(price, live, state.chain)
    if buffer not in ended:
        live[buffer] = option
    return _State(price, live, (state, buffer, option))


def _widened_buffers(operations: list[Operation]) -> set[Buffer]:
    """Buffers that a cast from 16 bits reaches through operations that work lane by lane."""
    reached: set[Buffer] = set()
    for op in operations:
        from_cast = op.opfunc == "dl16tofp32"
        if from_cast or (keeps_order(op) and any(a.buffer in reached for a in op.inputs)):
            reached.add(op.output.buffer)
    return reached


def _priced(
    op: Operation, layouts: list[SpyreTensorLayout], is_output: bool
) -> list[tuple[SpyreTensorLayout | None, float]]:
    """Each layout once, with what decides between equal costs: plain layouts, small ones, and
    plain ones above all for outputs: users that want another layout would have to copy."""
    elements = op.output.buffer.elements
    wanted = op.output.buffer.wanted
    weight = 0.25 if is_output else 1e-3
    priced: list[tuple[SpyreTensorLayout | None, float]] = []
    for rank, layout in enumerate(layouts):
        if layout not in layouts[:rank]:
            waste = math.prod(layout.device_size) - elements
            later = elements if wanted is not None and layout != wanted else 0
            priced.append((layout, waste * 0.02 + rank * weight + later))
    return priced


def _commit(state: _State | None) -> None:
    while state is not None:
        previous, buffer, layout = state.chain
        if buffer is not None and buffer.layout is None:
            buffer.layout = layout
        state = previous
