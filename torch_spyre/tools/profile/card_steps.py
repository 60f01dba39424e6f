"""Host time of each step of the emulated card, with the source lines it comes from.

In: a compiled function. Out: a `Step` for each step of its programs: what it computes, how often it
ran in a call, the time, and what the card's clock says. The card does the measuring
(`_C._start_step_profile`), `torch_spyre.explain` knows which operation came from where. A step's
name lists its operations by their numbers in the kernel, such as `2_sub+3_exp+4_sum`.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_spyre import _C
from torch_spyre.show.explain import Explanation, Op, explain


@dataclass(frozen=True)
class Step:
    """One step of a program; times are of one call of the whole function."""

    program: int
    name: str
    kind: str
    runs: float
    """How often it runs in a call: more than once if calls share its program."""
    us: float
    modelled_us: float
    opfuncs: tuple[str, ...]
    shape: str = ""
    """Of the operation that decides: `128x256 (512)`, result and what is reduced."""
    flops: int = 0
    """Of the matrix products in one run; 0 for other steps."""
    source: str = ""

    @property
    def gflops(self) -> float:
        """Billions of operations per second, for matrix products."""
        return self.flops * self.runs / self.us / 1e3 if self.us else 0.0


def measure(
    function: Callable[..., Any], compiled: Callable[..., Any], inputs: Sequence[Any]
) -> list[Step]:
    """Steps in the order in which they run."""
    compiled(*inputs)
    torch.spyre.synchronize()  # type: ignore[attr-defined]
    calls = 0
    begin = time.perf_counter()
    _C._start_step_profile()
    try:
        while calls < 3 or time.perf_counter() - begin < 1:
            compiled(*inputs)
            torch.spyre.synchronize()  # type: ignore[attr-defined]
            calls += 1
    finally:
        rows = _C._stop_step_profile()
    return steps_of(rows, calls, explain(function, *inputs))


Row = tuple[str, str, int, float, float]


def steps_of(rows: Iterable[Row], calls: int, told: Explanation) -> list[Step]:
    """The card's rows, per call, with what the explanation knows about their operations."""
    kernels = _kernels(told)
    steps = []
    for number, program in enumerate(_programs(rows)):
        ops = _ops_of(program, kernels)
        for name, kind, count, seconds, modelled_us in program:
            parts = _parts(name)
            own = [ops[index] for index, _ in parts] if ops else []
            runs = count / calls
            steps.append(
                Step(
                    number,
                    name,
                    kind,
                    runs,
                    seconds * 1e6 / calls,
                    modelled_us * runs,
                    tuple(opfunc for _, opfunc in parts),
                    _shape(own),
                    sum(_flops(op) for op in own),
                    own[0].source if own else "",
                )
            )
    return steps


_ALIKE = 0.75  # of the names of a program must be those of its kernel


def _programs(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows come program by program: a number that was there already begins the next one."""
    programs: list[list[Row]] = []
    seen: set[int] = set()
    for row in rows:
        numbers = {index for index, _ in _parts(row[0])}
        if not programs or numbers & seen:
            programs.append([])
            seen = set()
        programs[-1].append(row)
        seen |= numbers
    return programs


def _parts(name: str) -> list[tuple[int, str]]:
    """`2_sub+3_exp` as (2, sub) and (3, exp)."""
    parts = []
    for part in name.split("+"):
        number, _, opfunc = part.partition("_")
        if number.isdigit():
            parts.append((int(number), opfunc))
    return parts


def _kernels(told: Explanation) -> list[list[Op]]:
    """Operations of each kernel call."""
    key = lambda op: (op.graph, op.kernel)  # noqa: E731
    return [list(ops) for _, ops in itertools.groupby(told.ops, key)]


def _ops_of(program: Sequence[Row], kernels: Sequence[list[Op]]) -> list[Op]:
    """The operations of the kernel that a program was made from; none if that is not clear.

    A few names may differ: on its way into a file `sum` can become `sumnonstick`.
    """
    parts = [part for name, *_ in program for part in _parts(name)]
    best: list[Op] = []
    most = _ALIKE * len(parts)
    for ops in kernels:
        if all(index < len(ops) for index, _ in parts):
            alike = sum(ops[index].opfunc == opfunc for index, opfunc in parts)
            if alike > most:
                best, most = ops, alike
    return best


def _shape(ops: Sequence[Op]) -> str:
    from torch_spyre._inductor.inspect.report import shape_text

    if not ops:
        return ""
    biggest = max(ops, key=lambda op: math.prod((*op.shape, *op.reduced)))
    return shape_text(biggest.shape, biggest.reduced)


def _flops(op: Op) -> int:
    return 2 * math.prod((*op.shape, *op.reduced)) if op.opfunc == "batchmatmul" else 0
