"""A model with a static cache: tokens in, what may follow them out.

The cache has room for a fixed number of tokens, so there are two shapes and two compiled programs:
`CHUNK` tokens of a prompt at once, and one token of an answer. Tokens that the cache has already
are not computed again, so a conversation costs what is new in it.

    >>> decoder = Decoder(model, rows=1024)                     # on the device of the model
    >>> decoder.next([1, 9690, 198])                            # float32 on the host, a row
    >>> decoder.next([1, 9690, 198, 2683])                      # computes one token

What stands behind the last token of a chunk is padding. It is written into the cache like the rest
and never read: a token sees what stands before it, and each place is written before it is seen.
Where a chunk would reach beyond the cache it begins earlier, with tokens that are known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from examples.chat.errors import PromptError

CHUNK = 64
"""Tokens of a prompt that are computed together: one stick of positions."""
ROWS = 1024
"""Tokens that the cache has room for, unless told otherwise."""

Step = Callable[..., torch.Tensor]
"""`step` below, or what was compiled of it for one number of tokens."""


def step(
    model: Any,
    keys: list[torch.Tensor],
    values: list[torch.Tensor],
    ids: torch.Tensor,
    position: torch.Tensor,
    last: torch.Tensor,
) -> torch.Tensor:
    """Logits of what follows token `last` of `ids` (1, n), which stand at `position` and behind.
    Keys and values of each layer are (1, heads, rows, head_dim); n rows of them are written."""
    from examples.chat.static_cache import cache_at

    positions = position + torch.arange(ids.shape[1], device=ids.device)
    rows = torch.arange(keys[0].shape[2], device=ids.device)
    logits: torch.Tensor = model(
        input_ids=ids,
        position_ids=positions[None],
        attention_mask=(rows <= positions[:, None])[None, None],
        past_key_values=cache_at(positions, keys, values),
        use_cache=True,
        logits_to_keep=last,
    ).logits
    return logits[0, 0]


class Decoder:
    """A model, what it remembers, and what computes the next token."""

    def __init__(self, model: Any, rows: int = ROWS, prefill: Step = step, decode: Step = step):
        check_rows(model, rows)
        self.model = model
        self.rows = rows
        self.prefill, self.decode = prefill, decode
        weights = next(model.parameters())
        self.device = weights.device
        self.computed = 0
        """Tokens that went through the model, padding not counted."""
        self._known: list[int] = []
        """Tokens in the cache, in order."""
        config = model.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = (
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        )
        # Made on the host: one zero is written by one transfer, and by no operation.
        empty = torch.zeros(1, heads, rows, width, dtype=weights.dtype)
        self.keys, self.values = (
            [empty.clone().to(self.device) for _ in range(config.num_hidden_layers)]
            for _ in range(2)
        )

    def next(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits of what may follow the tokens, in float32 on the host."""
        tokens = list(tokens)
        check_length(len(tokens), self.rows)
        at = min(_common(self._known, tokens), len(tokens) - 1)
        self.computed += len(tokens) - at
        # Whoever interrupts this finds what was there before, and what was computed since.
        self._known = self._known[:at]
        while True:
            if len(tokens) - at == 1:
                logits = self.run(tokens[at:], at)
                at += 1
            else:
                begin = min(at, self.rows - CHUNK)
                chunk = tokens[begin : begin + CHUNK]
                logits = self.run(chunk, begin)
                at = begin + len(chunk)
            self._known = tokens[:at]
            if at == len(tokens):
                return logits

    def run(self, tokens: list[int], position: int) -> torch.Tensor:
        """One call of a program: logits of what follows the last of one token, or up to CHUNK."""
        count = 1 if len(tokens) == 1 else CHUNK
        ids = tokens + [0] * (count - len(tokens))
        program = self.decode if count == 1 else self.prefill
        return program(*self.arguments(ids, position, len(tokens) - 1)).cpu().float()

    def arguments(self, ids: list[int], position: int, last: int) -> tuple[Any, ...]:
        """What `step` is called with."""
        numbers = (torch.tensor(n).to(self.device) for n in ([ids], [position], [last]))
        return (self.model, self.keys, self.values, *numbers)


def check_rows(model: Any, rows: int) -> None:
    """Whether a cache can have room for so many tokens."""
    most = getattr(model.config, "max_position_embeddings", rows)
    if not CHUNK <= rows <= most:
        raise PromptError(
            f"a context of {rows} tokens is not possible: it can have {CHUNK}, which are computed "
            f"at once, to {most}, the positions that the model knows. Give another --context."
        )


def check_length(tokens: int, rows: int) -> None:
    """Whether so many tokens fit into the cache."""
    if tokens > rows:
        raise PromptError(
            f"the conversation would have {tokens} tokens, and its context has room for {rows}. "
            "Ask for less, begin a new one, or make room with --context."
        )


def _common(a: list[int], b: list[int]) -> int:
    """How many tokens two lists have in common, from the first on."""
    for i, (x, y) in enumerate(zip(a, b)):
        if x != y:
            return i
    return min(len(a), len(b))
