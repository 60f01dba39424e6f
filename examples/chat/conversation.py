"""Who said what, as messages and as the tokens that the model reads.

The template of the tokenizer (jinja) makes one text of a conversation. What was said before keeps
the tokens that it had, so that a cache of them stays valid: only the end of the text, from the last
answer on, becomes new tokens. A template that also changes what stands before is followed, and all
is made tokens again.

    >>> talk = Conversation(tokenizer)
    >>> turn = talk.ask("What is gravity?")     # turn.tokens: the whole conversation, for the model
    >>> talk.answer(turn, [504, 6077])          # what it said
    >>> talk.ask("And on the moon?")            # its tokens begin with those so far
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from examples.chat.errors import ModelError, PromptError


@dataclass(frozen=True)
class Turn:
    """A prompt that waits for its answer."""

    prompt: str
    tokens: list[int]
    """Of the conversation up to where the answer begins."""
    text: str
    """What they stand for."""


class Conversation:
    """Messages in turn. A prompt without an answer is no part of it."""

    def __init__(self, tokenizer: Any, system: str | None = None) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise ModelError(
                tokenizer.name_or_path,
                "the tokenizer has no chat template, so this is no model to talk to",
                "Give one that was trained on conversations.",
            )
        self._tokenizer = tokenizer
        self.messages: list[dict[str, str]] = []
        if system is not None:
            self.messages.append({"role": "system", "content": system})
        self.tokens: list[int] = []
        self._text = ""
        """What the tokens stand for: all up to the end of the last answer."""

    def ask(self, prompt: str) -> Turn:
        """The conversation with a prompt behind it."""
        if not prompt.strip():
            raise PromptError("the prompt is empty. Ask for something, in a few words.")
        text = self._rendered([*self.messages, {"role": "user", "content": prompt}])
        if self._text and text.startswith(self._text):
            return Turn(prompt, self.tokens + self._encoded(text[len(self._text) :]), text)
        return Turn(prompt, self._encoded(text), text)

    def answer(self, turn: Turn, tokens: list[int]) -> str:
        """Note what the model said, without the token that ended it."""
        said: str = self._tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        self.messages += [
            {"role": "user", "content": turn.prompt},
            {"role": "assistant", "content": said},
        ]
        self.tokens = turn.tokens + tokens
        self._text = turn.text + said
        return said

    def _rendered(self, messages: list[dict[str, str]]) -> str:
        text: str = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        return text

    def _encoded(self, text: str) -> list[int]:
        tokens: list[int] = self._tokenizer(text, add_special_tokens=False, verbose=False).input_ids
        return tokens
