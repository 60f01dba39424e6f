"""Buckets of dynamic shapes: for which sizes programs are made.

Each bucket is several times the one before, so that their number grows with the logarithm of the
largest size: 128, 512, 2048, ... for a size along sticks (from 512 on if it is the only one and
not marked dynamic by the user), 8, 32, 128, ... for others, such as a batch.
`torch._dynamo.mark_dynamic(x, 1, max=300)` says that no more than 300 are needed: 128 and 300. If
that is known, the buckets are at most `config.max_buckets`: with 3 of them up to 4096 they are 128,
2048 and 4096. Where the buckets of others than sticks begin is `config.min_default_granularity`.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy
import torch

from torch_spyre._inductor import config

_GROWTH = 4
_SMALLEST_IN_STICKS = 128
_SMALLEST_FOUND = 512
"""Of an unmarked size: there is a program for the first size already, and maybe one for 1.
The next one covers the usual lengths of sequences, so that there are three of them."""


@dataclass(frozen=True)
class Ladder:
    """The sizes of one open size: growing by a factor, up to a limit if there is one."""

    smallest: int
    limit: int | None
    growth: int = _GROWTH

    def above(self, size: int) -> int:
        """The smallest size of the ladder that is not below `size`."""
        step = self.smallest
        while step < size:
            step *= self.growth
        return step if self.limit is None or step < self.limit else max(self.limit, size)


def ladders(
    graph: torch.fx.Graph, symbols: set[sympy.Symbol], found: bool = False
) -> dict[sympy.Symbol, Ladder]:
    """The ladder of each open size of a graph; `found` if Dynamo found them to change."""
    in_sticks: set[sympy.Symbol] = set()
    limits: dict[sympy.Symbol, int | None] = dict.fromkeys(symbols)
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and value.node.shape_env is not None:
            ranges = value.node.shape_env.var_to_range
            for symbol in symbols & ranges.keys():
                limits[symbol] = _limit(ranges[symbol].upper)
        if isinstance(value, torch.Tensor) and value.dim() > 1 and node.op != "placeholder":
            in_sticks |= sympy.sympify(_last(value)).free_symbols
    # Two such sizes multiply: 512 rows of 512 would be more than anybody has asked for.
    alone = len(in_sticks & symbols) == 1
    first = _SMALLEST_FOUND if found and alone else _SMALLEST_IN_STICKS
    lowest = config.min_default_granularity
    return {s: ladder_up_to(first if s in in_sticks else lowest, limits[s]) for s in symbols}


def ladder_up_to(smallest: int, limit: int | None) -> Ladder:
    """The ladder from a size on that has no more than `config.max_buckets` up to the limit."""
    if limit is None or limit <= smallest:
        return Ladder(smallest, limit)
    most = config.max_buckets
    if most == 1:
        return Ladder(limit, limit)
    growth = _GROWTH
    while smallest * growth ** (most - 1) < limit:
        growth *= _GROWTH
    return Ladder(smallest, limit, growth)


def _last(value: torch.Tensor) -> sympy.Expr:
    size = value.shape[-1]
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def _limit(upper: sympy.Expr) -> int | None:
    return int(upper) if upper.is_Integer and upper < (1 << 30) else None
