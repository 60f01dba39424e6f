"""Transformer blocks: one graph, one bundle, no fallback, an error that DLFloat16 explains."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import torch_spyre
from torch_spyre.show.explain import Explanation

F = nn.functional


class RMSNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(size) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-5)


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


class DecoderBlock(nn.Module):
    """RMSNorm, rotary embedding by views, grouped-query causal attention, SwiGLU."""

    def __init__(self, size: int, heads: int, kv_heads: int, head_dim: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.norm1, self.norm2 = RMSNorm(size), RMSNorm(size)
        self.q = nn.Linear(size, heads * head_dim, bias=False)
        self.k = nn.Linear(size, kv_heads * head_dim, bias=False)
        self.v = nn.Linear(size, kv_heads * head_dim, bias=False)
        self.o = nn.Linear(heads * head_dim, size, bias=False)
        self.gate = nn.Linear(size, hidden, bias=False)
        self.up = nn.Linear(size, hidden, bias=False)
        self.down = nn.Linear(hidden, size, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        y = self.norm1(x)
        q = self.q(y).view(b, t, self.heads, self.head_dim).transpose(1, 2)
        k = self.k(y).view(b, t, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v(y).view(b, t, self.kv_heads, self.head_dim).transpose(1, 2)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, self.heads * self.head_dim))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class EncoderBlock(nn.Module):
    """LayerNorm, masked attention, GELU."""

    def __init__(self, size: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.qkv, self.o = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.up, self.down = nn.Linear(size, hidden), nn.Linear(hidden, size)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = (
            z.view(b, t, self.heads, d // self.heads).transpose(1, 2)
            for z in self.qkv(x).chunk(3, -1)
        )
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.norm1(x + self.o(a.transpose(1, 2).reshape(b, t, d)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


def rotary(length: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    frequencies = 1 / (10000 ** (torch.arange(0, head_dim, 2).float() / head_dim))
    angles = torch.outer(torch.arange(length).float(), frequencies)
    angles = torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()


def allowed_rms(roundings: int) -> float:
    """Independent roundings to 9 fraction bits, each at most half a unit, uniformly spread."""
    return 2.0**-10 * math.sqrt(roundings / 3)


@torch.no_grad()
def check(block: nn.Module, *inputs: torch.Tensor) -> Explanation:
    expected = block(*inputs)
    half = copy.deepcopy(block).half().to("spyre")
    on_card = [t.half().to("spyre") if t.is_floating_point() else t.to("spyre") for t in inputs]
    told = torch_spyre.explain(half, *on_card)
    assert len(told.graphs) == 1 and not told.graph_breaks
    assert not told.fallbacks
    assert len(told.artifacts) == 1, "the whole graph is one bundle"
    actual = told.result.cpu().float()
    error = (actual - expected).pow(2).mean().sqrt() / expected.pow(2).mean().sqrt()
    # Each row of the result went through about this many roundings that do not average out.
    assert error < allowed_rms(12), f"relative error {error:.2e}"
    return told


@pytest.mark.parametrize("head_dim", [64, 80])
@pytest.mark.parametrize("length", [1, 7, 200])
def test_a_decoder_block_is_one_bundle(length: int, head_dim: int) -> None:
    torch.manual_seed(length)
    block = DecoderBlock(256, 4, 2, head_dim, 512).eval()
    cos, sin = rotary(length, head_dim)
    told = check(block, torch.randn(2, length, 256), cos, sin)
    assert any(op.opfunc == "batchmatmul" for op in told.ops)


@pytest.mark.parametrize("size", [256, 320])
@pytest.mark.parametrize("length", [1, 7, 200])
def test_an_encoder_block_is_one_bundle(length: int, size: int) -> None:
    torch.manual_seed(length)
    mask = torch.ones(2, 1, 1, length, dtype=torch.bool)
    mask[1, :, :, (length + 1) // 2 :] = False
    told = check(EncoderBlock(size, 4, 512).eval(), torch.randn(2, length, size), mask)
    assert any(op.opfunc == "layernormnorm" for op in told.ops)
