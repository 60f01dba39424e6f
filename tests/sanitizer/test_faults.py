"""The sanitizer finds seeded faults: programs with one thing changed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sanitizer.cases import (
    SLICE,
    both_ways,
    compiled_cases,
    half,
    handmade,
    handmade_cases,
    scratchpad_operations,
)
from tests.sanitizer.faults import (
    FAULTS,
    Case,
    Outcome,
    run_checked,
    run_fault,
    seeds,
    write_code,
)
from tests.support.make_bundle import LX, Op, Repeat, T, flatten


@pytest.fixture(scope="module")
def cases(tmp_path_factory) -> list[Case]:
    made = handmade_cases(tmp_path_factory.mktemp("bundles"))
    return both_ways([*compiled_cases(), *made])


def test_nothing_is_found_in_the_programs_as_they_are(cases, tmp_path):
    for number, case in enumerate(cases):
        code = tmp_path / str(number)
        write_code(case, case.items(), code)
        assert run_checked(case, code) == ("", False), case.name


def find(cases: list[Case], count: int, directory: Path) -> list[Outcome]:
    return [
        run_fault(case, kind, seed, items, directory / str(number))
        for number, (case, kind, seed, items) in enumerate(seeds(cases, count))
    ]


def report(outcomes: list[Outcome]) -> str:
    """A table: kinds, how many were found, and by which part of the sanitizer."""
    lines = [f"{'':20} {'faults':>7} {'found':>6} {'memory':>7} {'missed':>7} {'no fault':>9} "
             f"{'refused':>8}"]  # fmt: skip
    for kind in (*FAULTS, "all"):
        own = [o for o in outcomes if kind in (o.fault, "all")]
        lines.append(
            f"{kind:20} {sum(o.counts for o in own):7} {sum(o.found for o in own):6} "
            f"{sum(o.by_memory for o in own):7} {sum(o.counts and not o.found for o in own):7} "
            f"{sum(not o.counts and not o.refused for o in own):9} "
            f"{sum(o.refused for o in own):8}"
        )
    return "\n".join(lines)


def check(outcomes: list[Outcome]) -> None:
    print("\n" + report(outcomes))
    missed = [str(o) for o in outcomes if o.counts and not o.found]
    faults = sum(o.counts for o in outcomes)
    kinds = Counter(o.fault for o in outcomes if o.counts)
    assert set(kinds) == set(FAULTS)
    assert faults >= len(outcomes) * 0.9, report(outcomes)
    assert len(missed) <= faults * 0.01, missed


def test_seeded_faults_are_found(cases, tmp_path):
    check(find(cases, 70, tmp_path))


@pytest.mark.full
def test_five_hundred_seeded_faults_are_found(cases, tmp_path):
    outcomes = find(cases, 520, tmp_path)
    assert sum(o.counts for o in outcomes) >= 500
    check(outcomes)


def planned_over(kept: int, late: int) -> list[Op | Repeat]:
    """The operations of the scratchpad case with one buffer of LX in the place of another."""

    def moved(tensor: T) -> T:
        is_late = tensor.where == LX and tensor.offset == late * SLICE
        return tensor.at(LX, kept * SLICE) if is_late else tensor

    return [
        replace(o, inputs=[moved(t) for t in o.inputs], output=moved(o.output))
        for o in flatten(scratchpad_operations())
    ]


def check_plan(operations: list[Op | Repeat], directory: Path) -> tuple[str, bool]:
    meant = scratchpad_operations()
    case = handmade(directory / "plan", operations, [half(32, 128)], 32, meant)
    write_code(case, case.items(), directory / "code")
    return run_checked(case, directory / "code")


@pytest.mark.parametrize("kept, late", [(0, 1), (0, 2)])
def test_a_plan_that_gives_space_away_too_early_is_found(tmp_path, kept: int, late: int):
    """Bundle, reference and names all follow the wrong plan."""
    message, _ = check_plan(planned_over(kept, late), tmp_path)
    assert "where another one is still needed: buf0" in message, message


def test_writing_in_place_is_no_fault_of_a_plan(tmp_path):
    assert check_plan(planned_over(1, 2), tmp_path) == ("", False)
