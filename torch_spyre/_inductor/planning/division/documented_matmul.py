"""The documented cost model for the division of one matmul.

In: sizes of batch, rows, columns and depth, and the number of cores. Out: the division that the
model prefers, and its cost of each. It is part of the mode `documented` of
`documented_rules`; plans of the mode `joint` are priced by card_model/cost_model.py instead.

Example: `best_split(1, 512, 4096, 4096, 32, 64, 64)` is (1, 4, 8, 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log2, sqrt

from torch_spyre.hardware import CARD

MACS_PER_US = CARD.matmul_flops_per_us / 2 / CARD.cores
"""Of one core."""
_FULL_PASSES, _PASS_ROWS = CARD.pt_full_passes, CARD.pt_rows

Split = tuple[int, int, int, int]
"""Slices of batch, rows, columns and depth."""


def matmul_cost(sizes: Split, split: Split) -> float:
    """Microseconds of a product of B x (M, K) and (K, N); sizes are (B, M, N, K)."""
    batch, rows, columns, depth = sizes
    b, m, n, k = split
    passes = max(1, rows // m / _PASS_ROWS)
    efficiency = min(1.0, sqrt(passes / _FULL_PASSES))
    compute = batch * rows * columns * depth / (b * m * n * k) / (MACS_PER_US * efficiency)
    elements = batch * (rows * depth + depth * columns + rows * columns)
    memory = 2 * elements / CARD.memory_bytes_per_us * max(1, max(m, n) / CARD.read_sharers)
    partial = (k - 1) * batch * rows * columns * CARD.partial_sum_us
    few = 0.0 if passes >= _FULL_PASSES else 50 * log2(_FULL_PASSES / passes)
    return (compute + memory + partial + few) * b**1.4


def splits(sizes: Split, cores: int, per_n: int = 64, per_k: int = 64) -> Iterator[Split]:
    """All divisions over at most so many cores, in the documented order; columns and depth are
    divided in whole sticks."""
    batch, rows, columns, depth = sizes
    for b in divisors(batch, cores):
        for m in divisors(rows, cores // b):
            for n in divisors(-(-columns // per_n), cores // (b * m)):
                for k in divisors(-(-depth // per_k), cores // (b * m * n)):
                    yield b, m, n, k


def best_split(
    batch: int, rows: int, columns: int, depth: int, cores: int, per_n: int = 64, per_k: int = 64
) -> Split:
    """The first of the cheapest."""
    sizes = (batch, rows, columns, depth)
    return min(splits(sizes, cores, per_n, per_k), key=lambda split: matmul_cost(sizes, split))


def divisors(number: int, most: int) -> list[int]:
    """Of a number, up to a largest one."""
    return [n for n in range(1, min(number, most) + 1) if number % n == 0]
