"""Logits are those of the stock model without a cache, however the tokens got into it."""

from __future__ import annotations

import pytest
import torch

from examples.chat.decoder import CHUNK, Decoder
from examples.chat.errors import PromptError
from tests.examples.chat.conftest import ROWS, make_model, needs_models

pytestmark = needs_models
TOKENS = torch.randint(0, 250, (ROWS,), generator=torch.Generator().manual_seed(3)).tolist()


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def model():
    return make_model()


def check(model, decoder, tokens):
    """What follows the tokens, against one call of the model without any cache."""
    expected = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
    torch.testing.assert_close(decoder.next(tokens), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("length", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 5, ROWS])
def test_a_prompt_of_any_length_has_the_logits_of_the_whole(model, length):
    check(model, Decoder(model, ROWS), TOKENS[:length])


def test_only_new_tokens_are_computed(model):
    decoder = Decoder(model, ROWS)
    check(model, decoder, TOKENS[:70])
    assert decoder.computed == 70
    check(model, decoder, TOKENS[:71])
    check(model, decoder, TOKENS[:100])
    assert decoder.computed == 100


def test_the_same_tokens_again_cost_one(model):
    decoder = Decoder(model, ROWS)
    check(model, decoder, TOKENS[:20])
    check(model, decoder, TOKENS[:20])
    assert decoder.computed == 21


def test_another_conversation_keeps_what_both_begin_with(model):
    decoder = Decoder(model, ROWS)
    check(model, decoder, TOKENS[:50])
    check(model, decoder, TOKENS[:10] + TOKENS[100:130])
    assert decoder.computed == 50 + 30
    check(model, decoder, TOKENS[:50])


def test_the_last_chunk_of_a_cache_begins_with_tokens_that_are_known(model):
    decoder = Decoder(model, CHUNK + 10)
    check(model, decoder, TOKENS[:CHUNK])
    check(model, decoder, TOKENS[: CHUNK + 10])  # ten more, for which a chunk has no room
    assert decoder.computed == CHUNK + 10


def test_who_is_interrupted_can_go_on(model):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    decoder = Decoder(model, ROWS)
    check(model, decoder, TOKENS[:CHUNK])
    decode, decoder.decode = decoder.decode, interrupted
    with pytest.raises(KeyboardInterrupt):
        decoder.next(TOKENS[: 2 * CHUNK + 1])
    decoder.decode = decode
    check(model, decoder, TOKENS[: 2 * CHUNK + 1])
    assert decoder.computed == CHUNK + (CHUNK + 1) + 1, "the chunk was there already"


def test_more_tokens_than_the_cache_has_room_for_are_refused(model):
    with pytest.raises(PromptError, match=r"would have 65 tokens, and its context has .* 64"):
        Decoder(model, CHUNK).next(TOKENS[: CHUNK + 1])


@pytest.mark.parametrize("rows", [1, CHUNK - 1, ROWS + 1])
def test_a_context_that_is_too_small_or_too_large_is_refused(model, rows):
    with pytest.raises(PromptError, match=rf"of {rows} tokens .* {CHUNK}, .* to {ROWS}"):
        Decoder(model, rows)


def test_heads_without_groups_and_models_of_another_kind():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"vocab_size": 258, "n_positions": 128, "n_embd": 64, "n_layer": 1, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=1)).eval()
    check(model, Decoder(model, 128), TOKENS[:70])
