"""How we time: interleaved, best of several rounds.

In: named functions. Out: for each the best time of one call in microseconds. Rounds alternate
between the functions, so that a noisy moment of the machine hits all of them alike; the minimum of
many rounds is what the code costs when nothing disturbs it. Example:
best_of({"a": f, "b": g}, calls=1000)["a"].
"""

from __future__ import annotations

import time
from collections.abc import Callable


def best_of(
    functions: dict[str, Callable[[], object]], *, calls: int, rounds: int = 15
) -> dict[str, float]:
    """Best time of one call in microseconds, by name."""
    best = dict.fromkeys(functions, float("inf"))
    for function in functions.values():
        function()  # warm up
    for _ in range(rounds):
        for name, function in functions.items():
            begin = time.perf_counter()
            for _ in range(calls):
                function()
            best[name] = min(best[name], (time.perf_counter() - begin) / calls * 1e6)
    return best
