"""Answers are greedy, end where they should, and what they cost is counted."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from examples.chat import measuring
from examples.chat.decoder import CHUNK, Decoder
from examples.chat.measuring import CUT, ENDED, FULL, Costs, answer, race
from tests.examples.chat.conftest import ROWS, make_model, needs_models

pytestmark = needs_models
PROMPT = torch.randint(0, 250, (20,), generator=torch.Generator().manual_seed(5)).tolist()


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module")
def greedy(model):
    """What `generate` of transformers says."""
    said = model.generate(
        torch.tensor([PROMPT]), max_new_tokens=10, do_sample=False, eos_token_id=None
    )
    return said[0, len(PROMPT) :].tolist()


def test_tokens_are_those_of_the_greedy_search(model, greedy):
    costs = Costs()
    assert list(answer(Decoder(model, ROWS), PROMPT, set(), 10, costs)) == greedy
    assert (costs.prompt, costs.tokens, costs.end) == (20, 10, CUT)
    assert len(costs.decode_seconds) == 9 and costs.first_seconds > 0
    assert costs.tokens_per_second == pytest.approx(9 / sum(costs.decode_seconds))


def test_a_token_that_ends_an_answer_is_no_part_of_it(model, greedy):
    first = greedy.index(greedy[4])
    costs = Costs()
    assert list(answer(Decoder(model, ROWS), PROMPT, {greedy[4]}, 10, costs)) == greedy[:first]
    assert (costs.tokens, costs.end) == (first, ENDED)


def test_an_answer_ends_with_the_context(model):
    costs = Costs()
    said = list(answer(Decoder(model, CHUNK), PROMPT, set(), 1000, costs))
    # Each token that the cache has room for, and the one that follows the last of them.
    assert len(said) == CHUNK - len(PROMPT) + 1 and costs.end == FULL


def test_of_a_second_prompt_only_what_is_new_is_counted(model, greedy):
    decoder, costs = Decoder(model, ROWS), Costs()
    list(answer(decoder, PROMPT, set(), 3, Costs()))
    list(answer(decoder, [*PROMPT, *greedy[:3], 1, 2, 3], set(), 2, costs))
    assert costs.prompt == 4  # the last token of the answer was not read before


def test_what_the_card_leaves_to_the_host_is_counted(monkeypatch):
    class OnCard:
        """A decoder on the card, one step of which is the host's."""

        rows, computed = 64, 0
        device = torch.device("spyre")

        def next(self, tokens):
            OnCard.computed += 1
            steps["aten::sort"] += 1
            return torch.eye(8)[len(tokens) % 8]

    steps: Counter[str] = Counter({"aten::sort": 5})
    monkeypatch.setattr(measuring, "fallback_counts", lambda: dict(steps))
    costs = Costs()
    assert list(answer(OnCard(), [1, 2], set(), 3, costs)) == [2, 3, 4]
    assert costs.host_steps == {"aten::sort": 3}


def test_a_race_has_both_compute_the_same_number_of_tokens(model):
    decoders = [Decoder(model, ROWS), Decoder(model, ROWS)]
    found = race(*decoders, PROMPT, rounds=2, count=3)
    assert found.rounds == 2 and found.tokens == 3
    assert found.card > 0 and found.cpu > 0
    assert found.ratio == pytest.approx(found.card / found.cpu)
    expected = model(torch.tensor([[*PROMPT, 7]])).logits[0, -1]
    for decoder in decoders:  # they can go on with their conversations
        torch.testing.assert_close(decoder.next([*PROMPT, 7]), expected, atol=1e-4, rtol=1e-4)
