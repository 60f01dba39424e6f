"""Tokens to text, while they come.

A token is a piece of a word, and may be a piece of a character: what is not whole yet is held back
until the rest of it is there.

    >>> text = Text(tokenizer)
    >>> [text.add(token) for token in tokenizer("naïve 😀").input_ids]
    ['na', 'ï', 've', ' ', '', '', '', '😀']
"""

from __future__ import annotations

from typing import Any

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


class Text:
    """The text of an answer, piece by piece."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._told = 0
        """Tokens of which the text is out."""
        self._before = 0
        """Where the tokens begin that are decoded together with those behind them: spaces depend
        on what stands before them."""

    def add(self, token: int) -> str:
        """What of the text is whole now and was not before."""
        self._tokens.append(token)
        text = self._new()
        if text.endswith(_INCOMPLETE):
            return ""
        return self._tell(text)

    def rest(self) -> str:
        """What is left at the end, whole or not."""
        return self._tell(self._new())

    def _new(self) -> str:
        window = self._tokens[self._before :]
        known = self._decode(window[: self._told - self._before])
        return self._decode(window)[len(known) :]

    def _tell(self, text: str) -> str:
        self._before, self._told = self._told, len(self._tokens)
        return text

    def _decode(self, tokens: list[int]) -> str:
        text: str = self._tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text
