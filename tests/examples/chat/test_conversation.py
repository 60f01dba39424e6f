"""A conversation becomes the tokens that the template says, and what was said keeps its own."""

from __future__ import annotations

import pytest

from examples.chat.conversation import Conversation
from examples.chat.errors import ModelError, PromptError
from tests.examples.chat.conftest import END, make_tokenizer, needs_models

pytestmark = needs_models


def test_a_prompt_is_framed_as_the_template_says(tokenizer):
    turn = Conversation(tokenizer).ask("Hi")
    assert turn.text == "<s>user\nHi</s>\n<s>assistant\n"
    assert turn.tokens == tokenizer(turn.text).input_ids


def test_the_second_prompt_stands_behind_the_tokens_of_the_first_answer(tokenizer):
    talk = Conversation(tokenizer, "You count.")
    first = talk.ask("one")
    # The model may put the same text together from other tokens than the tokenizer would.
    said = tokenizer("tw").input_ids + tokenizer("o").input_ids
    assert talk.answer(first, said) == "two"
    second = talk.ask("three")
    assert second.tokens[: len(first.tokens) + len(said)] == first.tokens + said
    assert second.tokens[len(first.tokens) + len(said)] == END
    assert tokenizer.decode(second.tokens) == (
        "<s>system\nYou count.</s>\n<s>user\none</s>\n<s>assistant\ntwo</s>\n"
        "<s>user\nthree</s>\n<s>assistant\n"
    )


def test_a_template_that_changes_what_was_said_is_followed():
    changing = make_tokenizer("{{ messages | length }}:{{ messages[-1]['content'] }}")
    talk = Conversation(changing)
    talk.answer(talk.ask("one"), changing("two").input_ids)
    again = talk.ask("three")
    assert changing.decode(again.tokens) == "3:three"


def test_a_prompt_without_an_answer_is_no_part_of_the_conversation(tokenizer):
    talk = Conversation(tokenizer)
    talk.ask("forgotten")
    assert "forgotten" not in talk.ask("kept").text


@pytest.mark.parametrize("prompt", ["", "  \n"])
def test_an_empty_prompt_is_refused(tokenizer, prompt):
    with pytest.raises(PromptError, match="the prompt is empty"):
        Conversation(tokenizer).ask(prompt)


def test_a_model_without_a_template_cannot_be_talked_to():
    with pytest.raises(ModelError, match=r"no chat template.* trained on conversations"):
        Conversation(make_tokenizer(None))
