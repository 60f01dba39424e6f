"""Whether greedy tokens are those of the CPU in float32, ties aside.

The CPU is asked at every token, given the card's tokens before it: a difference early in a text
does not excuse what follows. A token that is not the CPU's own has to be tied with it. The card's
format has one bit less than float16, so its logits are off by twice what the CPU's are in float16,
and the difference of two logits by twice that.
"""

from __future__ import annotations

import copy

import torch


def check(model: torch.nn.Module, prompt: list[int], tokens: list[int]) -> int:
    """Raises AssertionError where a token is not a choice of the CPU's; says how many are ties."""
    exact, rounded = (_logits(m, prompt, tokens) for m in (model, copy.deepcopy(model).half()))
    tie = 4 * float((exact - rounded).abs().max())
    assert tie < 0.1 * float(exact.std()), "a bound that would allow any token"
    chosen = exact.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    behind = exact.amax(-1) - chosen
    wrong = torch.nonzero(behind > tie).flatten().tolist()
    assert not wrong, (
        f"token {wrong[0]}: {behind[wrong[0]]:.4f} behind the CPU's, a tie is {tie:.4f}"
    )
    return int((behind > 0).sum())


def _logits(model: torch.nn.Module, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        found = model(torch.tensor([[*prompt, *tokens]])).logits
    return found[0, len(prompt) - 1 : -1].float()
