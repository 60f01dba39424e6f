"""Scratchpad allocation: which live ranges stay in LX, and at which addresses.

In: buffers with the times of their uses. Out: the same with their stays, chosen to minimise traffic
between device memory and cores. Pure Python; `residency` is the pass over a kernel.

    plan_layout([LifetimeBoundBuffer("a", 1024, (0, 1)), ...])[0].address

Solvers: `search` (the default: eviction, loads and moves), `exact` (for few buffers), and the
documented `greedy`, `firstfit` and `bestfit`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch_spyre._inductor.planning.scratchpad.branch_and_bound import TooLarge, exact
from torch_spyre._inductor.planning.scratchpad.greedy import bestfit, firstfit, greedy
from torch_spyre._inductor.planning.scratchpad.lifetimes import (
    LayoutError,
    LifetimeBoundBuffer,
    Stay,
    budget,
    check_layout,
    memory_bytes,
)
from torch_spyre._inductor.planning.scratchpad.local_search import search
from torch_spyre.constants import BYTES_IN_STICK

__all__ = [
    "SOLVERS",
    "LayoutError",
    "LifetimeBoundBuffer",
    "Stay",
    "TooLarge",
    "budget",
    "check_layout",
    "memory_bytes",
    "plan_layout",
]

Solver = Callable[[Sequence[LifetimeBoundBuffer], int, int], list[LifetimeBoundBuffer]]

SOLVERS: dict[str, Solver] = {
    "search": search,
    "exact": exact,
    "greedy": greedy,
    "firstfit": firstfit,
    "bestfit": bestfit,
}


def plan_layout(
    buffers: Sequence[LifetimeBoundBuffer],
    solver: str = "search",
    limit: int | None = None,
    alignment: int = BYTES_IN_STICK,
) -> list[LifetimeBoundBuffer]:
    """The buffers, with `stays` for those that are in the scratchpad for some of their life, and
    with an `address` for those that are there for all of it."""
    if solver not in SOLVERS:
        raise ValueError(f"found layout solver '{solver}', allowed: {', '.join(SOLVERS)}")
    names = [b.name for b in buffers]
    if len(set(names)) < len(names):
        raise ValueError(f"found buffers {names}, allowed: different names")
    return SOLVERS[solver](buffers, budget() if limit is None else limit, alignment)
