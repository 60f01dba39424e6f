"""An answer, token by token, and what it cost; and the card against the CPU.

`answer` is the greedy search: the token with the largest logit, until the model ends its answer.
Time here is that of the host. Time on the card is modelled: what its clock says between two events
(transfers included). Host steps are operations that the card left to the CPU, in compiled programs
and around them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import torch

from examples.chat.decoder import Decoder
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.device.streams import Event
from torch_spyre.ops.fallbacks import fallback_counts

ENDED, CUT, FULL = "", "cut off at --tokens", "the context is full"
"""How an answer came to its end."""


@dataclass
class Costs:
    """Of one answer."""

    prompt: int = 0
    """Tokens before it that the cache did not have."""
    tokens: int = 0
    """Of the answer, without the one that ends it."""
    first_seconds: float = 0.0
    """From the prompt to its first token."""
    decode_seconds: list[float] = field(default_factory=list)
    """Of each further call of the model."""
    first_card_ms: float = 0.0
    card_ms: float = 0.0
    """Modelled, of all calls but the first."""
    host_steps: Counter[str] = field(default_factory=Counter)
    end: str = ENDED

    @property
    def tokens_per_second(self) -> float:
        seconds = sum(self.decode_seconds)
        return len(self.decode_seconds) / seconds if seconds else 0.0

    @property
    def card_tokens_per_second(self) -> float:
        return len(self.decode_seconds) / self.card_ms * 1e3 if self.card_ms else 0.0


def answer(
    decoder: Decoder, prompt: list[int], stops: Collection[int], limit: int, costs: Costs
) -> Iterator[int]:
    """The tokens of an answer, each as soon as it is there; `costs` grows with them."""
    tokens = list(prompt)
    before = decoder.computed
    while True:
        began = time.perf_counter()
        logits, card_ms = _timed(decoder, tokens, costs.host_steps)
        seconds = time.perf_counter() - began
        if costs.prompt == 0:
            costs.prompt = decoder.computed - before
            costs.first_seconds, costs.first_card_ms = seconds, card_ms
        else:
            costs.decode_seconds.append(seconds)
            costs.card_ms += card_ms
        token = int(logits.argmax())
        if token in stops:
            return
        costs.tokens += 1
        tokens.append(token)
        yield token
        if costs.tokens == limit or len(tokens) > decoder.rows:
            costs.end = CUT if costs.tokens == limit else FULL
            return


def _timed(
    decoder: Decoder, tokens: list[int], host_steps: Counter[str]
) -> tuple[torch.Tensor, float]:
    if decoder.device.type != DEVICE_NAME:
        return decoder.next(tokens), 0.0
    before = Counter(fallback_counts())
    start, end = (Event(enable_timing=True) for _ in range(2))
    start.record()
    logits = decoder.next(tokens)
    end.record()
    end.synchronize()
    host_steps.update(Counter(fallback_counts()) - before)
    return logits, start.elapsed_time(end)


# ---- Against the CPU -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Race:
    """Tokens per second of two decoders that took turns; each the best of `rounds`."""

    card: float
    cpu: float
    rounds: int
    tokens: int
    """Of each round."""
    cpu_compile_seconds: float

    @property
    def ratio(self) -> float:
        """Above one: the card is faster."""
        return self.card / self.cpu


def race(card: Decoder, cpu: Decoder, tokens: list[int], rounds: int = 5, count: int = 8) -> Race:
    """Both compute what follows the tokens, `count` times in each round."""
    began = time.perf_counter()
    cpu.next(tokens)
    cpu.next([*tokens, tokens[-1]])
    first = time.perf_counter() - began
    card.next(tokens)
    found: dict[str, list[float]] = {"card": [], "cpu": []}
    for _ in range(rounds):
        found["card"].append(_seconds(card, tokens, count))
        found["cpu"].append(_seconds(cpu, tokens, count))
    best = {name: count / min(seconds) for name, seconds in found.items()}
    return Race(best["card"], best["cpu"], rounds, count, first)


def _seconds(decoder: Decoder, tokens: list[int], count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        decoder.run([tokens[-1]], len(tokens) - 1)
    return time.perf_counter() - began
