"""Programs on the card, eager and compiled, judged by their bounds.

In: programs, a number of cores. Out: for each what is wrong with it, or nothing. Many programs are
compiled as one graph, because a graph costs more than a program; if that graph fails or is wrong,
its programs are compiled one by one, to find whose fault it is.

    failures([generate(1), generate(2)], cores=4)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tests.fuzz.intervals import problem_of
from tests.fuzz.programs import Program, Run, quiet, run_cpu, run_intervals
from torch_spyre._inductor import config


@dataclass(frozen=True)
class Failure:
    """What went wrong: where (cpu, eager, compiled, together) and how (wrong, or an exception)."""

    where: str
    kind: str
    text: str

    def is_like(self, other: Failure | None) -> bool:
        return other is not None and (self.where, self.kind) == (other.where, other.kind)

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


def check(program: Program, cores: int = 32, lx: bool = False) -> None:
    """Raise AssertionError if a program is wrong anywhere. `lx`: scratchpads are planned."""
    with config.patch(lx_planning=lx):
        found = failure_of(program, cores)
    assert found is None, f"{found}\n{program.source()}"


def failure_of(program: Program, cores: int = 32) -> Failure | None:
    """What is wrong with a program, on the CPU first: that would be a fault of the bounds."""
    return failures([program], cores)[0]


def failures(programs: Sequence[Program], cores: int = 32) -> list[Failure | None]:
    """What is wrong with each program; compiled together, and alone if something is wrong then."""
    quiet()
    bounds = [run_intervals(p) for p in programs]
    found = [
        _judge("cpu", lambda p=p: run_cpu(p), b, p) or _judge("eager", lambda p=p: _eager(p), b, p)
        for p, b in zip(programs, bounds, strict=True)
    ]
    good = [i for i, f in enumerate(found) if f is None]
    together = _judge_together([programs[i] for i in good], [bounds[i] for i in good], cores)
    if together is None or len(good) == 1:
        return [together if i in good else f for i, f in enumerate(found)]
    for i in good:
        found[i] = _judge_together([programs[i]], [bounds[i]], cores)
    if all(f is None for f in found) and good:
        found[good[0]] = Failure("together", together.kind, together.text)
    return found


def _eager(program: Program) -> Run:
    stored = [x.on_card() for x in program.inputs]
    seen = [x.seen(s) for x, s in zip(program.inputs, stored, strict=True)]
    return Run(list(program.function()(*seen)), stored)


def _compiled(programs: Sequence[Program], cores: int) -> list[Run]:
    functions = [p.function() for p in programs]
    counts = [len(p.inputs) for p in programs]

    def graph(*tensors: torch.Tensor) -> list[tuple[Any, ...]]:
        results, start = [], 0
        for function, count in zip(functions, counts, strict=True):
            results.append(function(*tensors[start : start + count]))
            start += count
        return results

    stored = [[x.on_card() for x in p.inputs] for p in programs]
    seen = [x.seen(s) for p, own in zip(programs, stored, strict=True)
            for x, s in zip(p.inputs, own, strict=True)]  # fmt: skip
    torch._dynamo.reset()
    with config.patch(cores=cores):
        results = torch.compile(graph, dynamic=False)(*seen)
    return [Run(list(r), s) for r, s in zip(results, stored, strict=True)]


def _judge_together(
    programs: Sequence[Program], bounds: Sequence[Run], cores: int
) -> Failure | None:
    if not programs:
        return None
    try:
        runs = _compiled(programs, cores)
        for program, run, limits in zip(programs, runs, bounds, strict=True):
            found = _compare("compiled", run, limits, program)
            if found:
                return found
    except Exception as error:
        return _raised("compiled", error)
    return None


def _judge(where: str, run: Callable[[], Run], bounds: Run, program: Program) -> Failure | None:
    try:
        return _compare(where, run(), bounds, program)
    except Exception as error:
        return _raised(where, error)


def _raised(where: str, error: Exception) -> Failure:
    """An exception as a failure; its kind is the innermost class with the start of its message."""
    text = str(error).strip().splitlines()
    line = next((x for x in text if x.strip()), "")
    kind = f"{type(error).__name__}: {re.sub('[0-9]+', '#', line)[:60]}"
    return Failure(where, kind, f"{type(error).__name__}: {line[:500]}")


def _compare(where: str, run: Run, bounds: Run, program: Program) -> Failure | None:
    names = [*program.outputs, *(x.name for x in program.inputs)]
    for name, got, limits in zip(names, run.values(), bounds.values(), strict=True):
        host = got.detach().cpu()
        if where == "cpu" and limits.dtype is torch.float16 and host.dtype is torch.float32:
            host = host.double().to(torch.float32)
            limits = type(limits)(limits.lo, limits.hi, torch.float32)
        said = problem_of(host, limits)
        if said:
            return Failure(where, "wrong", f"{name}: {said}")
    return None
