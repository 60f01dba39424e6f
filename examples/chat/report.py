"""What is told about an answer.

>>> print(costs_line(costs))
34 + 60 tokens, the first after 0.7 s · 12.7 tokens/s here · on the card 450 tokens/s, modelled
2.22 ms each · no host steps
"""

from __future__ import annotations

from collections.abc import Callable

from examples.chat.agreement import Agreement
from examples.chat.measuring import Costs, Race
from examples.shared.words import counted

_BETWEEN = " · "
_SHOWN = 3
"""Differences that are told one by one."""


def costs_line(costs: Costs) -> str:
    """What an answer cost."""
    parts = [
        f"{costs.prompt} + {counted(costs.tokens, 'token')}, "
        f"the first after {costs.first_seconds:.1f} s"
    ]
    if costs.decode_seconds:
        parts.append(f"{costs.tokens_per_second:.1f} tokens/s here")
    if costs.card_ms:
        each = costs.card_ms / len(costs.decode_seconds)
        parts.append(f"on the card {costs.card_tokens_per_second:.0f} tokens/s, modelled")
        parts[-1] += f" {each:.2f} ms each after {costs.first_card_ms:.1f} ms"
    parts.append(host_steps(costs))
    if costs.end:
        parts.append(costs.end)
    return _BETWEEN.join(parts)


def host_steps(costs: Costs) -> str:
    """What the card left to the host."""
    if not costs.host_steps:
        return "no host steps"
    steps = ", ".join(f"{op} ({n} times)" for op, n in costs.host_steps.most_common())
    return f"on the host: {steps}"


def agreement_lines(found: Agreement, word: Callable[[int], str]) -> list[str]:
    """Whether the CPU says the same; `word` makes text of a token."""
    same = found.tokens - len(found.differences)
    if not found.differences:
        return [f"✓ the CPU's {counted(found.tokens, 'token')} in float32"]
    mark = "✓" if found.holds else "✗"
    told = counted(len(found.ties), "tie") if found.holds else "differences that are no ties"
    lines = [f"{mark} the CPU's tokens in float32 for {same} of {found.tokens}, {told}"]
    order = sorted(found.differences, key=lambda d: d.margin <= found.tie)
    for d in order[:_SHOWN]:
        kind = "tie" if d.margin <= found.tie else "no tie"
        lines.append(
            f"    token {d.place + 1}: {word(d.said)!r}, the CPU would say {word(d.cpu)!r}: "
            f"{kind}, its logits are {d.margin:.3f} apart (up to {found.tie:.3f} the format "
            "explains)"
        )
    if len(order) > _SHOWN:
        lines.append(f"    and {len(order) - _SHOWN} more")
    return lines


def race_lines(race: Race) -> list[str]:
    """The card's speed over that of the CPU."""
    return [
        f"against CPU {race.ratio:.2f} x the tokens/s of torch.compile in float32: "
        f"{race.card:.1f} against {race.cpu:.1f}, best of {race.rounds} rounds of "
        f"{race.tokens} tokens in turn (its programs took {race.cpu_compile_seconds:.1f} s)"
    ]
