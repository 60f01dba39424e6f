"""Random programs are right everywhere; bounds hold what they promise; failures become small."""

from __future__ import annotations

import random

import pytest
import torch

from tests.fuzz import integers
from tests.fuzz.__main__ import BATCH, cores_of, lx_of
from tests.fuzz.generate import generate
from tests.fuzz.intervals import Interval, OutOfScope, problem_of, to_dlfloat16
from tests.fuzz.programs import Input, Program, run_cpu, run_intervals
from tests.fuzz.ready_test import as_test
from tests.fuzz.run import Failure, failures
from tests.fuzz.shrink import shrink
from tests.support.dlfloat16_reference import round_values
from torch_spyre._inductor import config

PROGRAMS = 300
IN_A_TEST = 30


@pytest.mark.parametrize("first", range(0, PROGRAMS, IN_A_TEST))
def test_random_programs_are_right_eager_and_compiled(first: int) -> None:
    bad = []
    for start in range(first, first + IN_A_TEST, BATCH):
        programs = [generate(seed) for seed in range(start, start + BATCH)]
        with config.patch(lx_planning=lx_of(start)):
            found = failures(programs, cores_of(start))
        bad += [f"seed {start + i}: {f}" for i, f in enumerate(found) if f is not None]
    assert not bad, "\n".join([*bad, "python -m tests.fuzz --first N --programs 1 makes it small"])


def test_the_same_seed_gives_the_same_program() -> None:
    assert generate(5) == generate(5) and generate(5) != generate(6)


def test_programs_have_3_to_25_lines_and_use_everything() -> None:
    programs = [generate(seed) for seed in range(60)]
    assert all(3 <= len(p.lines) <= 25 for p in programs)
    text = "\n".join(line for p in programs for line in p.lines)
    for piece in (
        ".transpose(",
        ".expand(",
        ".to(",
        "torch.sum(",
        " @ ",
        "index_select",
        "_(",
        ":2",
    ):
        assert piece in text, piece
    inputs = [x for p in programs for x in p.inputs]
    assert {x.dtype for x in inputs} == {"F16", "F32", "I64", "BOOL"}
    assert any(x.stick is not None for x in inputs) and any(x.view for x in inputs)
    assert {len(x.shape) for x in inputs} >= {0, 1, 2, 3, 4, 5}


# ---- bounds


def test_rounding_is_that_of_the_format() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20000, generator=generator, dtype=torch.float64)
    x = torch.cat([x * 2.0 ** random.Random(1).randrange(-40, 12), x * 2.0**-32, x * 2.0**-14, x])
    ties = torch.arange(1, 3000, dtype=torch.float64) / 2
    edge = 2.0**-31 * torch.tensor([0.25, 0.5, 0.5009765625, 0.501, 0.75, 1.0, 1.001953125, -1.0])
    for values in (x, ties, -ties, edge.double(), torch.zeros(3, dtype=torch.float64)):
        assert torch.equal(to_dlfloat16(values), round_values(values))


def test_bounds_are_exact_where_nothing_is_rounded() -> None:
    x = Interval.exact(torch.arange(-4.0, 5).reshape(3, 3), torch.float16)
    assert (torch.sum(x * 2 - 1, 0) @ x.t()).is_exact()
    assert not torch.exp(x).is_exact()


def test_bounds_hold_rounded_and_unrounded_results() -> None:
    x = to_dlfloat16(torch.linspace(0.3, 3, 50, dtype=torch.float64))
    bounds = torch.sqrt(Interval.exact(x, torch.float16) * 3)
    for result in (to_dlfloat16(to_dlfloat16(x * 3).sqrt()), (x.half() * 3).sqrt().double(),
                   (x * 3).sqrt()):  # fmt: skip
        assert bool(((result >= bounds.lo) & (result <= bounds.hi)).all())
    assert problem_of((x.half() * 3).sqrt() * 1.01, bounds) != ""


def test_a_comparison_that_rounding_decides_is_open() -> None:
    x = Interval.exact(torch.tensor([0.1, 1.0]), torch.float32)
    third = x / 3
    found = torch.eq(third * 3, x)
    assert (found.lo.tolist(), found.hi.tolist()) == ([0, 0], [1, 1])
    assert torch.lt(x, 2).lo.tolist() == [1, 1]


def test_writes_are_seen_through_views() -> None:
    x = Interval.exact(torch.zeros(2, 3), torch.float16)
    x.t()[1].add_(2)
    x[0] = 5
    assert x.lo.tolist() == [[5, 5, 5], [0, 2, 0]]


@pytest.mark.parametrize("compute", [
    lambda x: x / (x - x), lambda x: torch.exp(x * 100),
    lambda x: torch.argmax(torch.sin(x) - torch.sin(x), 0),
])  # fmt: skip
def test_what_means_nothing_is_out_of_scope(compute) -> None:
    with pytest.raises(OutOfScope):
        x = Interval.exact(torch.tensor([1.0, 2.0]), torch.float16)
        compute(torch.cat([x, torch.cos(x)]))


def test_the_cpu_in_float32_lies_within_the_bounds() -> None:
    for seed in range(300, 330):
        program = generate(seed)
        for got, bounds in zip(
            run_cpu(program).values(), run_intervals(program).values(), strict=True
        ):
            if bounds.dtype is torch.float16:
                bounds = Interval(bounds.lo, bounds.hi, torch.float32)
            assert problem_of(got, bounds) == ""


# ---- failures


def _long_program() -> Program:
    return Program(
        (Input("v0", (5, 70), "F16", "whole", 1), Input("v1", (70,), "F32", "normal", 2),
         Input("v2", (140, 70), "F16", "whole", 3, view="[::2]", stick=0)),
        ("v3 = v0 + v1", "v4 = torch.exp(v3)", "v5 = v2.t()", "v6 = v5 @ v2", "v5.add_(1)",
         "v7 = v5.flip(0)", "v8 = torch.sum(v4, 0)", "v9 = v7 * 2"),
        ("v6", "v8", "v9"),
    )  # fmt: skip


def _blames(word: str, where: str = "compiled"):
    return lambda p: Failure(where, "wrong", "") if any(word in x for x in p.lines) else None


def test_a_failure_shrinks_to_the_line_that_causes_it() -> None:
    judge = _blames("flip")
    small = shrink(_long_program(), judge(_long_program()), judge=judge, attempts=500)
    assert [line.split(" = ")[1].split(".")[1] for line in small.lines] == ["flip(0)"]
    (given,) = small.inputs
    assert max(given.shape) == 1 and not given.view and given.stick is None


def test_another_failure_is_not_taken_for_this_one() -> None:
    program = _long_program()

    def judge(p: Program) -> Failure | None:
        if any("flip" in x for x in p.lines):
            return _blames("flip")(p)
        return _blames("exp", "eager")(p)

    small = shrink(program, judge(program), judge=judge)
    assert any("flip" in line for line in small.lines)


def test_a_failure_becomes_a_module_that_pytest_runs(tmp_path) -> None:
    right = Program((Input("v0", (3, 4), "F16", stick=0),), ("v1 = v0.t() + 1",), ("v1",))
    space: dict = {}
    exec(as_test(right, Failure("compiled", "wrong", 'a "b"'), 4, 7), space)
    space["test_program_of_seed_7"]()  # which is right, and does not fail
    broken = Program(right.inputs, ("v1 = v0.t() + unknown",), ("v1",))
    exec(as_test(broken, Failure("compiled", "wrong", ""), 4, 8), space)
    with pytest.raises(NameError):
        space["test_program_of_seed_8"]()


def test_programs_of_integers_have_the_bits_of_the_cpu() -> None:
    for seed in (136, 137, 1000, 1001, 1002):  # the first two failed once
        program = integers.generate(seed)
        assert integers.first_wrong(program) is None, f"seed {seed}\n{program.source}"


def test_the_programs_of_integers_are_those_of_their_seeds_and_run_on_the_cpu() -> None:
    assert integers.generate(7).lines == integers.generate(7).lines
    results = [x for seed in range(50) for x in integers.generate(seed).run()]
    large = sum(bool((x.long().abs() > 1 << 31).any()) for x in results)
    assert large > 50, "most values would fit 32 bits"
