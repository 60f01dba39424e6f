"""A failing program made small: fewer results, fewer lines, smaller shapes, the same failure.

In: a program and its failure. Out: the smallest program found that fails in the same place and way.
Every candidate is run, the big steps first; a candidate that makes no sense (a variable without its
line, an index outside) is not taken. The search ends when no step helps, or after `attempts` runs.

    shrink(program, failure, cores=4)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.fuzz.intervals import Interval, OutOfScope
from tests.fuzz.programs import DTYPES, Input, Program, run_intervals
from tests.fuzz.run import Failure, failure_of

Judge = Callable[[Program], Failure | None]


def shrink(
    program: Program,
    failure: Failure,
    cores: int = 32,
    attempts: int = 150,
    judge: Judge | None = None,
) -> Program:
    """The smallest program found that fails like this one; `judge` says how a program fails."""
    judge = judge or (lambda p: failure_of(p, cores))
    tried: set[Program] = set()
    found = True
    while found:
        found = False
        for candidate in _candidates(program):
            if len(tried) >= attempts:
                return program
            if candidate in tried or candidate == program or not candidate.outputs:
                continue
            tried.add(candidate)
            if _fails_like(candidate, failure, judge):
                program, found = candidate, True
                break
    return program


def _fails_like(program: Program, failure: Failure, judge: Judge) -> bool:
    try:
        run_intervals(program)
    except (OutOfScope, NameError, RuntimeError, IndexError, ValueError, AttributeError):
        return False
    return failure.is_like(judge(program))


def _candidates(program: Program) -> Iterator[Program]:
    """Smaller programs, those first that leave most out."""
    made = [_target(line) for line in program.lines]
    for name in program.outputs if len(program.outputs) > 1 else filter(None, made):
        yield _without_dead_lines(replace(program, outputs=(name,)))
    yield _without_dead_lines(program)
    for part in (len(program.lines) // 2, len(program.lines) // 4, 1):
        for start in range(0, len(program.lines), max(part, 1)) if part else ():
            yield _without_lines(program, set(range(start, start + part)))
    yield from _with_inputs_for_lines(program)
    for i, x in enumerate(program.inputs):
        for simpler in _simpler(x):
            yield _with_input(program, i, simpler)
    yield from _with_smaller_sizes(program)


def _names(text: str) -> set[str]:
    return set(re.findall(r"\bv\d+\b", text))


def _target(line: str) -> str:
    made = re.match(r"(v\d+) = ", line)
    return made.group(1) if made else ""


def _without_dead_lines(program: Program) -> Program:
    """Leave out what no result needs; a write counts as needed when its variable is."""
    needed, kept = set(program.outputs), []
    writes = [line for line in program.lines if not _target(line)]
    for line in writes:
        needed |= _names(line)
    for line in reversed(program.lines):
        if not _target(line) or _target(line) in needed:
            needed |= _names(line)
            kept.append(line)
    inputs = tuple(x for x in program.inputs if x.name in needed)
    return Program(inputs, tuple(reversed(kept)), program.outputs)


def _without_lines(program: Program, which: set[int]) -> Program:
    """Leave lines out, and all that needs what they make."""
    gone: set[str] = set()
    lines = []
    for i, line in enumerate(program.lines):
        target = _target(line)
        if i in which or _names(line) & gone:
            if target:
                gone.add(target)
            continue
        lines.append(line)
    outputs = tuple(n for n in program.outputs if n not in gone)
    return _without_dead_lines(Program(program.inputs, tuple(lines), outputs))


def _with_inputs_for_lines(program: Program) -> Iterator[Program]:
    """Make an input of what a line computes, so that what it needs can go."""
    try:
        for i, line in reversed(list(enumerate(program.lines))):
            target = _target(line)
            if not target:
                continue
            ends = Program(program.inputs, program.lines[: i + 1], (target,))
            value = run_intervals(ends).outputs[0]
            assert isinstance(value, Interval)
            names = {dtype: name for name, dtype in DTYPES.items()}
            given = Input(target, tuple(value.shape), names[value.dtype], "whole", i)
            lines = program.lines[:i] + program.lines[i + 1 :]
            yield _without_dead_lines(Program((*program.inputs, given), lines, program.outputs))
    except (OutOfScope, RuntimeError):
        return


def _simpler(x: Input) -> Iterator[Input]:
    if x.view:
        seen = x.seen(Interval.exact(x.stored(), DTYPES[x.dtype]))
        yield replace(x, shape=tuple(seen.shape), view="")
    if x.stick is not None:
        yield replace(x, stick=None)
    if x.dtype == "F32":
        yield replace(x, dtype="F16")
    if x.values in ("quarters", "normal", "positive"):
        yield replace(x, values="whole")


def _with_input(program: Program, which: int, given: Input) -> Program:
    inputs = tuple(given if i == which else x for i, x in enumerate(program.inputs))
    return replace(program, inputs=inputs)


def _with_smaller_sizes(program: Program) -> Iterator[Program]:
    """Replace a size wherever it stands, in inputs and lines; then in one input alone."""
    sizes = sorted({n for x in program.inputs for n in x.shape if n > 1}, reverse=True)
    for size in sizes:
        for smaller in sorted({1, 2, 3, size // 2, 64, 65, size - 1}):
            if not 0 < smaller < size:
                continue
            number = re.compile(rf"(?<![\w.])(?:{size})(?![\w.])")
            lines = tuple(number.sub(str(smaller), line) for line in program.lines)
            inputs = tuple(_with_size(x, size, smaller) for x in program.inputs)
            yield replace(program, inputs=inputs, lines=lines)
    for i, x in enumerate(program.inputs):
        for dim, size in enumerate(x.shape):
            for smaller in sorted({1, 2, size // 2}):
                if 0 < smaller < size:
                    shape = (*x.shape[:dim], smaller, *x.shape[dim + 1 :])
                    yield _with_input(program, i, replace(x, shape=shape))


def _with_size(x: Input, size: int, smaller: int) -> Input:
    shape = tuple(smaller if n == size else n for n in x.shape)
    values = f"index{smaller}" if x.values == f"index{size}" else x.values
    view = re.sub(rf"(?<!\w){size}(?!\w)", str(smaller), x.view)
    return replace(x, shape=shape, values=values, view=view)
