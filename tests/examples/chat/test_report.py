"""What is told about an answer has the numbers that were measured."""

from __future__ import annotations

from collections import Counter

from examples.chat.agreement import Agreement, Difference
from examples.chat.measuring import CUT, Costs, Race
from examples.chat.report import agreement_lines, costs_line, race_lines


def test_costs_are_in_one_line():
    costs = Costs(34, 3, 0.31, [0.02, 0.03], 3.9, 4.4, Counter(), CUT)
    assert costs_line(costs) == (
        "34 + 3 tokens, the first after 0.3 s · 40.0 tokens/s here · on the card 455 tokens/s, "
        "modelled 2.20 ms each after 3.9 ms · no host steps · cut off at --tokens"
    )


def test_an_answer_of_one_token_has_no_speed():
    line = costs_line(Costs(5, 1, 0.2, [], 1.0))
    assert line == "5 + 1 token, the first after 0.2 s · no host steps"


def test_host_steps_are_named():
    line = costs_line(Costs(5, 1, 0.2, host_steps=Counter({"aten::sort": 2})))
    assert "on the host: aten::sort (2 times)" in line


def test_agreement_is_one_line():
    assert agreement_lines(Agreement(60, 0.4, []), str) == ["✓ the CPU's 60 tokens in float32"]


def test_ties_are_told_with_both_tokens():
    found = Agreement(39, 0.43, [Difference(35, 7, 8, 0.001)])
    first, second = agreement_lines(found, lambda token: f"w{token}")
    assert first == "✓ the CPU's tokens in float32 for 38 of 39, 1 tie"
    assert second.strip() == (
        "token 36: 'w7', the CPU would say 'w8': tie, its logits are 0.001 apart (up to 0.430 the "
        "format explains)"
    )


def test_what_is_no_tie_comes_first_and_has_a_cross():
    ties = [Difference(i, 1, 2, 0.1) for i in range(4)]
    lines = agreement_lines(Agreement(9, 0.4, [*ties, Difference(8, 3, 4, 2.0)]), str)
    assert lines[0].startswith("✗") and "for 4 of 9" in lines[0]
    assert "token 9" in lines[1] and "no tie" in lines[1]
    assert lines[-1].strip() == "and 2 more"


def test_a_race_says_how_many_times_as_fast():
    [line] = race_lines(Race(40.0, 20.0, 5, 8, 61.0))
    assert line.startswith("against CPU 2.00 x") and "40.0 against 20.0" in line
