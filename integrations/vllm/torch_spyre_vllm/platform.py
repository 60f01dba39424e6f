"""What vLLM asks about the machine: how it is configured, and which classes do the work.

vLLM's own tensors (token numbers, tables of pages, logits) stay on the CPU, so the platform is the
CPU's with another worker and another attention; the model and its cache are on the card, where the
runner puts them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from vllm.logger import init_logger
from vllm.platforms.cpu import CpuPlatform
from vllm.platforms.interface import PlatformEnum

from torch_spyre_vllm.parts import PAGE

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

logger = init_logger("vllm.torch_spyre")


class SpyrePlatform(CpuPlatform):
    """vLLM's CPU with the card beside it."""

    _enum = PlatformEnum.OOT
    device_name = "spyre"
    simple_compile_backend = "eager"  # vLLM's own helpers run on the host, once in a while

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        """The first is what checkpoints in other formats become. The card computes bfloat16 in
        its own 16-bit format, so float16 has the same speed and two more bits."""
        return [torch.float16, torch.float32]

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return "spyre"

    @classmethod
    def import_kernels(cls) -> None:
        """There are none: vLLM is built without."""

    @classmethod
    def import_ir_kernels(cls) -> None:
        """vLLM's operations are its PyTorch definitions, which are compiled with the model."""

    @classmethod
    def opaque_attention_op(cls) -> bool:
        return False  # attention is traced into the model's program

    @classmethod
    def support_hybrid_kv_cache(cls) -> bool:
        return False  # one table of pages for all layers; windows are masks

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return (
            "vllm.distributed.device_communicators.base_device_communicator.DeviceCommunicatorBase"
        )

    @classmethod
    def get_attn_backend_cls(
        cls, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None
    ) -> str:
        if attn_selector_config.use_mla or attn_selector_config.use_sparse:
            raise NotImplementedError(
                "torch-spyre-vllm has no latent (MLA) or sparse attention: "
                "choose a model with grouped-query attention"
            )
        return "torch_spyre_vllm.attention.SpyreAttentionBackend"

    @classmethod
    def apply_config_platform_defaults(cls, vllm_config: VllmConfig) -> None:
        """The runner compiles the model itself, as a whole; vLLM compiles nothing."""
        from vllm.config import CompilationMode

        vllm_config.compilation_config.mode = CompilationMode.NONE

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        if vllm_config.model_config is not None:
            _check_model(vllm_config.model_config)
            vllm_config.model_config.disable_cascade_attn = True
        for name, wanted in _not_there(vllm_config).items():
            if wanted:
                raise ValueError(f"torch-spyre-vllm has no {name}: leave it out")
        if not vllm_config.cache_config.user_specified_block_size:
            vllm_config.cache_config.block_size = PAGE
        vllm_config.scheduler_config.async_scheduling = False
        vllm_config.compilation_config.cudagraph_capture_sizes = []
        parallel = vllm_config.parallel_config
        if parallel.worker_cls == "auto":
            parallel.worker_cls = "torch_spyre_vllm.worker.SpyreWorker"
        parallel.disable_custom_all_reduce = True
        # A process that has used the card cannot be forked into one that does.
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"


def _check_model(model: ModelConfig) -> None:
    if model.is_multimodal_model or model.is_encoder_decoder:
        raise ValueError(
            f"torch-spyre-vllm runs models of text alone; {model.model} has "
            + ("an encoder and a decoder" if model.is_encoder_decoder else "other inputs, too")
        )
    if model.is_hybrid or model.is_attention_free:
        raise ValueError(
            f"{model.model} has state-space layers, for which torch-spyre-vllm has no cache: "
            "compile the model of transformers instead (docs/models.md)"
        )
    if model.quantization is not None:
        raise ValueError(
            f"torch-spyre-vllm runs models in 16 or 32 bits, and {model.model} is quantised "
            f"({model.quantization}): use a checkpoint in float16 or bfloat16"
        )
    if model.enable_prompt_embeds:
        raise ValueError("torch-spyre-vllm takes token numbers, no embeddings, as prompts")


def _not_there(config: VllmConfig) -> dict[str, bool]:
    parallel = config.parallel_config
    return {
        "tensor parallelism": parallel.tensor_parallel_size > 1,
        "pipeline parallelism": parallel.pipeline_parallel_size > 1,
        "data parallelism": parallel.data_parallel_size > 1,
        "speculative decoding": config.speculative_config is not None,
        "LoRA": config.lora_config is not None,
        "transfer of the cache to other engines": config.kv_transfer_config is not None,
        "cache of 8-bit numbers": "fp8" in str(config.cache_config.cache_dtype),
    }
