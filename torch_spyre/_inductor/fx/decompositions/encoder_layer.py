"""Decompositions of PyTorch's fused layers: nn.TransformerEncoderLayer and nn.MultiheadAttention.

In eval mode these modules call one fused operation for the whole layer, which has no kernel on the
card. It is decomposed into products, softmax and norms.

Masks are those of the modules: a mask of type 1 is (batch, keys), of type 2 (batch, heads, queries,
keys), of type 0 (queries, keys); True, or a number that is added, hides a key.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional as F

from torch_spyre._inductor.fx.decompositions import register_spyre_decomposition
from torch_spyre.dtypes import FLOATS

aten = torch.ops.aten


@register_spyre_decomposition(aten._transformer_encoder_layer_fwd.default)
def encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> Any:
    if src.dtype not in FLOATS or src.dim() != 3 or src.numel() == 0:
        return NotImplemented

    def attend(x: torch.Tensor) -> torch.Tensor:
        qkv = (x, x, x)
        result, _ = _attention(
            qkv, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, mask_type
        )
        return result

    def feed(x: torch.Tensor) -> torch.Tensor:
        inner = F.linear(x, ffn_weight_1, ffn_bias_1)
        inner = F.gelu(inner) if use_gelu else torch.relu(inner)
        return F.linear(inner, ffn_weight_2, ffn_bias_2)

    def norm_1(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        src = src + attend(norm_1(src))
        return src + feed(norm_2(src))
    src = norm_1(src + attend(src))
    return norm_2(src + feed(src))


@register_spyre_decomposition(aten._native_multi_head_attention.default)
def multi_head_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Any:
    if query.dtype not in FLOATS or query.dim() != 3 or query.numel() == 0:
        return NotImplemented
    result, weights = _attention(
        (query, key, value), num_head, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, mask_type
    )
    if not need_weights:
        return result, query.new_empty((0,))
    return result, torch.mean(weights, 1) if average_attn_weights else weights


def _attention(
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None,
    mask_type: int | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What all heads give together, and the weight that each gives to each key."""
    batch, length, width = inputs[0].shape
    weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
    parts = [
        F.linear(x, w, b).reshape(batch, x.shape[1], heads, width // heads).transpose(1, 2)
        for x, w, b in zip(inputs, weights, biases, strict=True)
    ]
    query, key, value = parts
    scores = torch.matmul(query / math.sqrt(width // heads), key.transpose(-2, -1))
    if mask is None:
        shares = torch.softmax(scores, -1)
    else:
        shares = aten._safe_softmax(scores + _added(mask, mask_type, scores), -1)
    result = torch.matmul(shares, value).transpose(1, 2).reshape(batch, length, width)
    return F.linear(result, proj_weight, proj_bias), shares


def _added(mask: torch.Tensor, mask_type: int | None, scores: torch.Tensor) -> torch.Tensor:
    """The mask as numbers that are added to scores: (batch, heads, queries, keys)."""
    if mask_type == 1:
        mask = mask.reshape(mask.shape[0], 1, 1, mask.shape[-1])
    if mask.dtype is not torch.bool:
        return mask.to(scores.dtype)
    zero = torch.zeros((), dtype=scores.dtype, device=scores.device)
    hidden = torch.full((), -math.inf, dtype=scores.dtype, device=scores.device)
    return torch.where(mask, hidden, zero)
