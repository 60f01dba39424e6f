"""The published patterns of scratchpad use: buffers to plan, and the traffic of everything else.

`rest` is what the operations move besides the buffers (sources of loads, results), worked out from
the published descriptions; `good`, `greedy` and `fit` are the published totals.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_spyre._inductor.planning.scratchpad.lifetimes import LifetimeBoundBuffer as Buffer


@dataclass(frozen=True)
class Pattern:
    name: str
    buffers: list[Buffer]
    rest: int
    good: int
    greedy: int
    fit: int
    """firstfit and bestfit."""


def _buffer(name: str, size: int, *uses: int, parents=(), writes=()) -> Buffer:
    return Buffer(name, size, tuple(sorted(uses)), in_place_parents=parents, writes=writes)


def _simple_fragmentation() -> Pattern:
    u = 559232
    buffers = [
        _buffer("A_LX", u, 0, 1, 2),
        _buffer("B", u, 1, 2, 3, 4),
        _buffer("C", 2 * u, 3, 4),
    ]
    return Pattern("simple_fragmentation", buffers, 3 * u, 1677696, 3914624, 1677696)


def _staircase() -> Pattern:
    k, buffers = 47872, []
    for i in range(1, 8):
        buffers.append(_buffer(f"A{i}", i * k, 3 * i - 3, 3 * i - 2, 3 * i - 1))
        buffers.append(_buffer(f"B{i}", i * k, 3 * i - 2, 3 * i - 1, 21))
    return Pattern("staircase", buffers, 36 * k, 1723392, 5457408, 1723392)


def _downward_staircase() -> Pattern:
    k = 98688
    buffers = [_buffer("Z", k, 0, 1, 17)]
    for i in range(1, 6):
        buffers.append(_buffer(f"A{i}", (6 - i) * k, 3 * i - 1, 3 * i, 3 * i + 1))
        buffers.append(_buffer(f"B{i}", (6 - i) * k, 3 * i, 3 * i + 1, 17))
    return Pattern("downward_staircase", buffers, 23 * k, 2269824, 2861952, 2269824)


def _simple_eviction() -> Pattern:
    size = 1677721
    # load A, use it twice, load B, use it twice, load A again, use it twice; each use writes C.
    buffers = [
        _buffer("A", size, 0, 1, 2, 6, 7, 8, writes=(6,)),
        _buffer("B", size, 3, 4, 5),
    ]
    return Pattern("simple_eviction", buffers, 9 * size, 15099489, 20132652, 25165815)


def _eviction_reallocation() -> Pattern:
    u = 559232
    first = (3, 4, 5, 6)
    buffers = [
        _buffer("A0", u, 0, *first, 7, *range(9, 13), writes=(7,)),
        _buffer("A1", u, 1, *first, 13, *range(15, 19), writes=(13,)),
        _buffer("A2", u, 2, *first, 19, *range(21, 25), writes=(19,)),
        _buffer(
            "B", 2 * u, *range(8, 13), *range(14, 19), *range(20, 25), writes=(14, 20)
        ),
    ]  # fmt: skip
    return Pattern("eviction_reallocation", buffers, 25 * u, 13980800, 30757760, 25165440)


def _gqattention() -> Pattern:
    buffers = [
        _buffer("Q", 417792, 0, 2),
        _buffer("K", 52224, 1, 2),
        _buffer("Q_K", 835584, 2, 3, 4),
        _buffer("m", 6528, 3, 4),
        _buffer("numerators", 835584, 4, 5, 6, parents=("Q_K",)),
        _buffer("denominators", 6528, 5, 6),
        _buffer("scores", 835584, 6, 7, 9, parents=("numerators",)),
        _buffer("V", 52224, 8, 9),
        _buffer("output", 417792, 9, 10),
    ]
    # Q, K and V are read, the scores and the output written.
    rest = 417792 + 52224 + 835584 + 52224 + 417792
    return Pattern("gqattention", buffers, rest, 1775616, 1775616, 1775616)


def _moe_mlp() -> Pattern:
    """Published are the sizes (batch 4, sequence 96, hidden 512, 5 experts, 2 of them for each
    token, 256 inside, tokens of each expert), 38 operations and the total. The operations are our
    reading: load, route, choose; for each expert gather, two products, silu, multiply, product,
    add. That moves 10,240 bytes less than published."""
    tokens, hidden, inside, experts = (200, 150, 350, 25, 43), 512, 256, 5
    rows, word = 4 * 96, 2
    times = [3 + 7 * e for e in range(experts)]
    buffers = [
        _buffer("x", rows * hidden * word, 0, 1, *times),
        _buffer("logits", rows * 64 * word, 1, 2),
        _buffer("choice", rows * 64 * word, 2, *times, *(t + 6 for t in times)),
        _buffer("sum", rows * hidden * word, *(t + 6 for t in times)),
    ]
    for e, (count, t) in enumerate(zip(tokens, times)):
        wide, narrow = count * hidden * word, count * inside * word
        buffers += [
            _buffer(f"rows{e}", wide, t, t + 1, t + 2),
            _buffer(f"gate{e}", narrow, t + 1, t + 3),
            _buffer(f"up{e}", narrow, t + 2, t + 4),
            _buffer(f"silu{e}", narrow, t + 3, t + 4, parents=(f"gate{e}",)),
            _buffer(f"mul{e}", narrow, t + 4, t + 5, parents=(f"silu{e}", f"up{e}")),
            _buffer(f"down{e}", wide, t + 5, t + 6),
        ]
    weights = experts * 3 * hidden * inside * word + hidden * experts * word
    rest = 2 * rows * hidden * word + weights
    return Pattern("moe_mlp", buffers, rest, 4733952, 4733952, 4733952)


PATTERNS = [
    _simple_fragmentation(),
    _staircase(),
    _downward_staircase(),
    _simple_eviction(),
    _eviction_reallocation(),
    _gqattention(),
    _moe_mlp(),
]
