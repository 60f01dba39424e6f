"""How we time: interleaved, best of several rounds.

In: named functions. Out: for each the best time of one call in microseconds. Rounds alternate
between the functions, so that a noisy moment of the machine hits all of them alike; the minimum of
many rounds is what the code costs when nothing disturbs it. Example:
best_of({"a": f, "b": g}, calls=1000)["a"].

`interleaved` is for functions whose times differ by orders of magnitude: each gets as many calls as
fit into its share of the time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


def best_of(
    functions: dict[str, Callable[[], object]], *, calls: int, rounds: int = 15
) -> dict[str, float]:
    """Best time of one call in microseconds, by name."""
    best = dict.fromkeys(functions, float("inf"))
    for function in functions.values():
        function()  # warm up
    for _ in range(rounds):
        for name, function in functions.items():
            best[name] = min(best[name], _time_us(function, calls))
    return best


@dataclass(frozen=True)
class Timing:
    """Times of one function: the best of its rounds, and by how much most rounds were slower."""

    best: float
    spread: float
    """Of the median over the best, as a share: 0.1 when half of the rounds took 10 % longer."""
    rounds: int


_LEAST_ROUNDS = 25
"""Virtual machines share cores with others, who make them slower by a sixth for ten or twenty
seconds, and some functions more than others. All of a row shall see the quiet moments between."""

_REST = 0.012
"""Seconds before it is another function's turn. Threads of OpenMP spin for up to 8 ms after the
last call that they took part in: two processors have no room for them and the next function's."""


def interleaved(
    functions: Mapping[str, Callable[[], object]],
    *,
    seconds: float = 1.0,
    rounds: int = 25,
    block: float = 0.01,
) -> dict[str, Timing]:
    """Time of one call in microseconds, by name.

    In a round a function is called for about `block` seconds, three times at least, so that it
    finds its own data in the caches; the fastest call counts. A function takes part in the rounds
    until it has used its `seconds`, but in 25 if its calls are short beside them. One whose single
    call takes longer than `seconds` is measured once.
    """
    times: dict[str, list[float]] = {}
    calls: dict[str, int] = {}
    limits: dict[str, float] = {}
    for name, function in functions.items():
        function()  # warm up
        time.sleep(_REST)
        once = _time_us(function, 1)
        calls[name] = max(3, round(block * 1e6 / max(once, 1)))
        times[name] = [once] if once > seconds * 1e6 else []
        is_short = once < seconds * 1e6 / 4
        limits[name] = max(seconds, is_short * _LEAST_ROUNDS * calls[name] * once / 1e6)
    used = {name: sum(known) / 1e6 for name, known in times.items()}
    for _ in range(rounds):
        for name, function in functions.items():
            if used[name] > limits[name]:
                continue
            time.sleep(_REST)
            begin = time.perf_counter()
            times[name].append(_best_us(function, calls[name]))
            used[name] += time.perf_counter() - begin
    return {name: _timing(known) for name, known in times.items()}


def _best_us(function: Callable[[], object], calls: int) -> float:
    """The fastest of so many calls; very short ones are timed a few at a time."""
    together = max(1, calls // 200)
    return min(_time_us(function, together) for _ in range(calls // together))


def _timing(times: list[float]) -> Timing:
    best = min(times)
    return Timing(best, statistics.median(times) / best - 1, len(times))


def _time_us(function: Callable[[], object], calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - begin) / calls * 1e6
