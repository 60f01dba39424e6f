"""The tokens of an answer against those of the CPU in float32.

The CPU reads the whole answer in one call, in eager mode, without cache, padding or compiler: what
it would say after each token of it. If its choice is the card's everywhere, then so is the text
that it would have made by itself, token by token.

Where the two differ, one of two tokens that are about as likely was chosen: a tie. Logits of the
card are off by what rounding to DLFloat16 explains: each rounding to nine fraction bits by at most
half a unit (2^-10), uniformly spread, which is a variance of 2^-20 / 3; a layer has about
`ROUNDINGS` of a row that do not average out, and four stand around the layers. The difference of
two logits may be `DEVIATIONS` standard deviations off.

    >>> found = compare(model, prompt, answer)
    >>> found.holds, found.differences
    (True, [Difference(place=17, said=260, cpu=253, margin=0.02)])
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

ROUNDINGS = 12
_AROUND = 4
DEVIATIONS = 4


@dataclass(frozen=True)
class Difference:
    """A place where the CPU would have gone on in another way."""

    place: int
    """Which token of the answer."""
    said: int
    cpu: int
    margin: float
    """How much larger the CPU's logit of its own choice is."""


@dataclass(frozen=True)
class Agreement:
    """An answer, as the CPU sees it."""

    tokens: int
    tie: float
    """The largest margin that the format explains."""
    differences: list[Difference]

    @property
    def ties(self) -> list[Difference]:
        return [d for d in self.differences if d.margin <= self.tie]

    @property
    def holds(self) -> bool:
        return len(self.ties) == len(self.differences)


def compare(model: Any, prompt: Sequence[int], answer: Sequence[int]) -> Agreement:
    """The CPU's choices after the prompt and after each token of the answer but the last."""
    if not answer:
        return Agreement(0, 0.0, [])
    ids = torch.tensor([[*prompt, *answer[:-1]]])
    logits = model(input_ids=ids, use_cache=False, logits_to_keep=len(answer)).logits[0].float()
    said = torch.tensor(list(answer))
    best = logits.max(-1)
    margins = best.values - logits.gather(1, said[:, None])[:, 0]
    differences = [
        Difference(i, answer[i], int(best.indices[i]), float(margins[i]))
        for i in (best.indices != said).nonzero()[:, 0].tolist()
    ]
    return Agreement(len(answer), tie(logits, model.config.num_hidden_layers), differences)


def tie(logits: torch.Tensor, layers: int) -> float:
    """How far two logits may be from each other and change places."""
    error = 2.0**-10 * math.sqrt((ROUNDINGS * layers + _AROUND) / 3)
    return DEVIATIONS * math.sqrt(2) * error * float(logits.pow(2).mean().sqrt())
