"""vLLM's classes around attention: which there is, what a batch looks like, a layer's call.

The attention itself is in `paged`. vLLM calls `SpyreAttention.forward` inside of the model, which
is traced: what stands there becomes a part of the model's program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
)

from torch_spyre_vllm import paged
from torch_spyre_vllm.parts import PAGE


@dataclass
class Batch(AttentionMetadata):
    """Where the sequences of a batch lie, on the host: what is cut into parts."""

    starts: torch.Tensor
    """The first token of each sequence, and the end of the last."""
    lengths: torch.Tensor
    """Tokens of each sequence after this batch."""
    pages: torch.Tensor
    """Page numbers: (sequences, most pages)."""
    slots: torch.Tensor
    """Row of the cache of each token."""


class BatchBuilder(AttentionMetadataBuilder[Batch]):
    """Takes what parts are made of from vLLM's description of a batch."""

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> Batch:
        common = common_attn_metadata
        return Batch(
            common.query_start_loc_cpu,
            common.seq_lens,
            common.block_table_tensor,
            common.slot_mapping,
        )


class SpyreAttentionBackend(AttentionBackend):
    """Tells vLLM which classes belong together, and what they can do."""

    supported_dtypes: ClassVar = [torch.float16, torch.float32]
    supported_kv_cache_dtypes: ClassVar = ["auto", "float16"]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"  # vLLM's name for what is not its own

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[Any]:
        return [PAGE]

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type in (AttentionType.DECODER, AttentionType.ENCODER_ONLY)

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @staticmethod
    def get_impl_cls() -> type[SpyreAttention]:
        return SpyreAttention

    @staticmethod
    def get_builder_cls() -> type[BatchBuilder]:
        return BatchBuilder

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        cache_dtype_str: str = "auto",
    ) -> tuple[int, ...]:
        """Of keys, and of values: they are two tensors."""
        return num_blocks, block_size, num_kv_heads, head_size


class SpyreAttention(AttentionImpl[paged.Part]):
    """Attention of one layer."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        if alibi_slopes is not None or sinks is not None:
            what = "sinks" if sinks is not None else "positions by slopes (ALiBi)"
            raise NotImplementedError(f"torch-spyre-vllm has no attention with {what}")
        self.kv_cache_dtype = kv_cache_dtype
        self.shares_cache = kv_sharing_target_layer_name is not None
        self.heads = paged.Heads(
            num_heads,
            num_kv_heads or num_heads,
            head_size,
            scale,
            logits_soft_cap,
            paged.Kind(attn_type == AttentionType.ENCODER_ONLY, sliding_window),
        )

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: Any,
        attn_metadata: paged.Part,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        part = attn_metadata
        if not self.heads.kind.encoder:
            if not self.shares_cache:
                paged.store(part, kv_cache, key, value)
            key, value = paged.gather(part, kv_cache)
        return output.copy_(paged.attend(self.heads, part, query, key, value))
