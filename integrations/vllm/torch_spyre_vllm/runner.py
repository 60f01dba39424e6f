"""One step of the engine: vLLM keeps the books on the host, the model runs on the card.

vLLM's runner for CPUs does what is not the model: which sequences are in the batch, their pages,
sampling, pooling. Here the model goes to the card, the cache is made there, and the call of the
model becomes calls of programs.
"""

from __future__ import annotations

from typing import Any

import torch
import vllm.v1.worker.block_table
from vllm.config import VllmConfig
from vllm.forward_context import get_forward_context
from vllm.logger import init_logger
from vllm.v1.attention.backend import AttentionType
from vllm.v1.kv_cache_interface import AttentionSpec, KVCacheConfig
from vllm.v1.worker.cpu_model_runner import CPUModelRunner

from torch_spyre_vllm.attention import Batch
from torch_spyre_vllm.parts import Cutter, Sizes
from torch_spyre_vllm.programs import Programs
from torch_spyre_vllm.slots import SlotMapping
from torch_spyre_vllm.weights import load, move_to_card

logger = init_logger("vllm.torch_spyre")

MOST_ROWS = 1 << 24
"""The compiler distinguishes integers by size; larger ones would need other programs."""


class SpyreModelRunner(CPUModelRunner):
    """vLLM's runner, with the model on a card."""

    def __init__(self, vllm_config: VllmConfig, card: torch.device) -> None:
        super().__init__(vllm_config, torch.device("cpu"))
        self.card = card

    def _postprocess_triton(self) -> None:
        vllm.v1.worker.block_table._compute_slot_mapping_kernel = SlotMapping()

    def load_model(self, load_dummy_weights: bool = False) -> None:
        assert not load_dummy_weights, "vLLM does this only for experts that move between ranks"
        self.model = load(self.vllm_config)
        move_to_card(self.model, self.card)
        layers = self.compilation_config.static_forward_context.values()
        encoder = any(layer.attn_type == AttentionType.ENCODER_ONLY for layer in layers)
        sizes = Sizes.choose(
            self.max_model_len,
            self.max_num_reqs,
            encoder=encoder,
            wanted=(self.vllm_config.additional_config or {}).get("spyre", {}),
        )
        logger.info("sizes of programs: %s", sizes)
        self.programs = Programs(
            self.model,
            self.vllm_config,
            Cutter(sizes, encoder),
            self.card,
            compiled=not self.model_config.enforce_eager,
        )
        if not self.is_pooling_model:
            self.model.compute_logits = self.programs.logits

    def initialize_kv_cache_tensors(
        self, kv_cache_config: KVCacheConfig, kernel_block_sizes: list[int]
    ) -> dict[str, Any]:
        """A tensor of keys and one of values for each layer, on the card. They begin with zeros
        and not with whatever is there: what is masked is multiplied by zero."""
        layers = self.compilation_config.static_forward_context
        caches: dict[str, Any] = {}
        for group in self._kv_cache_spec_attn_group_iterator():
            spec = group.kv_cache_spec
            names = [name for name in group.layer_names if name not in self.runner_only_attn_layers]
            if not names:
                continue
            assert isinstance(spec, AttentionSpec)
            shape = group.backend.get_kv_cache_shape(
                kv_cache_config.num_blocks, spec.block_size, spec.num_kv_heads, spec.head_size
            )
            rows = torch.zeros(shape, dtype=spec.dtype).flatten(0, 1)
            if len(rows) >= MOST_ROWS:
                raise ValueError(
                    f"a cache of {len(rows)} tokens; programs are compiled for fewer than "
                    f"{MOST_ROWS}: set kv_cache_memory_bytes to less"
                )
            for name in names:
                caches[name] = (rows.to(self.card), rows.to(self.card))
        for name, target in self.shared_kv_cache_layers.items():
            caches[name] = caches[target]
        for name, cache in caches.items():
            layers[name].kv_cache = cache
            self.kv_caches.append(cache)
        return caches

    def _model_forward(
        self,
        input_ids: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        **model_kwargs: Any,
    ) -> torch.Tensor:
        assert input_ids is not None and positions is not None, "the platform refuses other inputs"
        batches = get_forward_context().attn_metadata
        assert isinstance(batches, dict)
        batch = next(iter(batches.values()))  # the same for all layers
        assert isinstance(batch, Batch)
        return self.programs.run(input_ids, positions, batch, model_kwargs)
