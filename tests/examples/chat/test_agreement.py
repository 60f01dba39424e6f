"""An answer is compared token by token with what the CPU would say."""

from __future__ import annotations

import math

import pytest
import torch

from examples.chat.agreement import compare, tie
from tests.examples.chat.conftest import make_model, needs_models

pytestmark = needs_models
PROMPT = torch.randint(0, 250, (20,), generator=torch.Generator().manual_seed(5)).tolist()


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module")
def greedy(model):
    """What `generate` of transformers says."""
    ids = torch.tensor([PROMPT])
    said = model.generate(ids, max_new_tokens=8, do_sample=False, eos_token_id=None)
    return said[0, len(PROMPT) :].tolist()


@torch.no_grad()
def test_the_answer_of_the_cpu_is_its_own(model, greedy):
    found = compare(model, PROMPT, greedy)
    assert found.holds and found.tokens == 8 and not found.differences


@torch.no_grad()
def test_another_token_is_found_with_how_much_less_likely_it_is(model, greedy):
    logits = model(torch.tensor([[*PROMPT, *greedy[:3]]])).logits[0, -1]
    worst = int(logits.argmin())
    found = compare(model, PROMPT, [*greedy[:3], worst])
    [difference] = found.differences
    assert (difference.place, difference.said, difference.cpu) == (3, worst, greedy[3])
    assert difference.margin == pytest.approx(float(logits.max() - logits.min()), rel=1e-4)
    assert not found.holds and not found.ties


@torch.no_grad()
def test_a_difference_within_the_rounding_is_a_tie(model, greedy):
    logits = model(torch.tensor([PROMPT])).logits[0, -1]
    bound = tie(logits[None], layers=2)
    second = int(logits.topk(2).indices[1])
    found = compare(model, PROMPT, [second])
    assert found.tie == pytest.approx(bound, rel=1e-5)
    assert found.holds == (float(logits.max() - logits[second]) <= bound)


def test_the_bound_is_that_of_independent_roundings():
    # 12 roundings in each of 30 layers and 4 around them, each of variance 2^-20 / 3; logits of
    # root mean square 2; four deviations of a difference of two.
    logits = torch.tensor([[2.0, -2.0, 2.0]])
    expected = 4 * math.sqrt(2) * math.sqrt(364 / 3) / 1024 * 2
    assert tie(logits, layers=30) == pytest.approx(expected)


def test_an_answer_without_tokens_agrees(model):
    found = compare(model, PROMPT, [])
    assert found.holds and found.tokens == 0
