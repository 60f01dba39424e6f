"""Compiles a small transformer block for the card, says what became of it, compares with CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

import torch_spyre

if TYPE_CHECKING:
    from torch_spyre.show.explain import Explanation

WIDTH, HEADS, BATCH, SEQUENCE = 128, 2, 2, 50  # heads of 64 elements: one stick


class Block(nn.Module):
    """Causal attention and a feed-forward network, each with a norm before and a sum after it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.queries_keys_values = nn.Linear(WIDTH, 3 * WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.output(self.attend(self.norm(x)))
        return x + self.feed_forward(x)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        def split(part: torch.Tensor) -> torch.Tensor:
            return part.view(BATCH, SEQUENCE, HEADS, WIDTH // HEADS).transpose(1, 2)

        queries, keys, values = map(split, self.queries_keys_values(x).chunk(3, dim=-1))
        attended = nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return attended.transpose(1, 2).reshape(BATCH, SEQUENCE, WIDTH)


def main() -> tuple[Explanation, float]:
    """Returns what `explain` says and the largest difference from the CPU in float32."""
    torch.manual_seed(0)
    with torch.no_grad():
        block = Block()
        x = torch.randn(BATCH, SEQUENCE, WIDTH)
        expected = block(x)

        block = block.half().to("spyre")  # weights of nn.Linear arrive as matmul wants them
        on_card = x.half().to("spyre")
        explanation = torch_spyre.explain(block, on_card)
        print(explanation)

        compiled = torch.compile(block)  # what a program would do
        result = compiled(on_card)

    difference = (result.cpu().float() - expected).abs().max().item()
    print(f"\nlargest difference from the CPU in float32: {difference:.4f}")
    print(f"largest value: {expected.abs().max().item():.4f}")
    return explanation, difference


if __name__ == "__main__":
    main()
