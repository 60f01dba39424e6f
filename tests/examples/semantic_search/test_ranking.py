"""Rankings are the same when no passage overtakes one that the CPU tells apart from it."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from examples.semantic_search.ranking import TIE, best, compare, scores


def test_scores_are_cosines_of_unit_vectors():
    passages = torch.nn.functional.normalize(torch.randn(5, 16), dim=-1)
    question = torch.nn.functional.normalize(torch.randn(16), dim=-1)
    expected = torch.nn.functional.cosine_similarity(passages, question[None])
    torch.testing.assert_close(scores(question, passages), expected)


def test_the_best_come_first_and_equal_ones_in_the_order_of_the_text():
    assert best(torch.tensor([0.1, 0.9, 0.5, 0.9]), 3) == [1, 3, 2]
    assert best(torch.tensor([0.1]), 3) == [0]


def test_a_swap_of_passages_that_lie_apart_breaks_the_promise():
    cpu = torch.tensor([0.9, 0.8, 0.1])
    found = compare(torch.tensor([0.7, 0.8, 0.1]), cpu, 2)
    assert found.swapped == pytest.approx(0.1)
    assert not found.holds and not found.same_top and not found.same_best


def test_a_swap_far_down_counts_too():
    cpu = torch.tensor([0.9, 0.8, 0.3, 0.2])
    found = compare(torch.tensor([0.9, 0.8, 0.2, 0.3]), cpu, 2)
    assert found.same_top and found.same_best and not found.holds


def test_a_swap_of_ties_is_reported_and_allowed():
    cpu = torch.tensor([0.5, 0.5 - TIE / 2, 0.1])
    found = compare(torch.tensor([0.498, 0.499, 0.1]), cpu, 3)
    assert found.holds and not found.same_top and not found.same_best
    assert found.swapped == pytest.approx(TIE / 2, rel=1e-4)


def test_the_last_rounding_explains_what_counts_as_tied():
    # Unit vectors rounded to nine fraction bits: no difference of two scores moves by more.
    generator = torch.Generator().manual_seed(0)

    def rounded(x: torch.Tensor) -> torch.Tensor:
        mantissa, exponent = torch.frexp(x.double())
        return torch.ldexp(torch.round(mantissa * 2**10) / 2**10, exponent)

    vectors = torch.nn.functional.normalize(torch.randn(200, 384, generator=generator), dim=-1)
    question, passages = vectors[0].double(), vectors[1:].double()
    moved = rounded(passages) @ rounded(question) - passages @ question
    assert 0 < float(moved.max() - moved.min()) <= TIE


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8))
def test_the_largest_swap_is_that_of_all_pairs(pairs):
    card, cpu = (torch.tensor(values, dtype=torch.float32) for values in zip(*pairs))
    order = best(card, len(pairs))
    expected = max(
        [float(cpu[b] - cpu[a]) for a, b in itertools.combinations(order, 2)] + [0.0], default=0.0
    )
    assert compare(card, cpu, 3).swapped == max(expected, 0.0)
