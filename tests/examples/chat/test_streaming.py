"""Text comes as soon as it is whole, and adds up to what the tokens say together."""

from __future__ import annotations

import pytest

from examples.chat.streaming import Text
from tests.examples.chat.conftest import needs_models

pytestmark = needs_models


@pytest.mark.parametrize("said", ["plain words", "naïve 😀, größer", " leading and trailing ", ""])
def test_the_pieces_are_the_whole_text(tokenizer, said):
    text = Text(tokenizer)
    pieces = [text.add(token) for token in tokenizer(said).input_ids]
    assert "".join(pieces) + text.rest() == said


def test_a_character_of_several_tokens_comes_with_the_last_of_them(tokenizer):
    text = Text(tokenizer)
    tokens = tokenizer("a😀b").input_ids
    assert len(tokens) == 6  # a token is a byte here
    assert [text.add(token) for token in tokens] == ["a", "", "", "", "😀", "b"]


def test_what_never_becomes_whole_is_told_at_the_end(tokenizer):
    text = Text(tokenizer)
    for token in tokenizer("a😀").input_ids[:3]:
        text.add(token)
    assert text.rest() == "\N{REPLACEMENT CHARACTER}"
    assert text.rest() == ""


def test_tokens_that_frame_messages_are_no_text(tokenizer):
    text = Text(tokenizer)
    assert [text.add(token) for token in tokenizer("<s>a").input_ids] == ["", "a"]
