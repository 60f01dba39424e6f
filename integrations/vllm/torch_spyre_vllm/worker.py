"""The process that owns a card: vLLM's worker with another start and another measure of memory."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext

import psutil
import torch
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.utils.torch_utils import set_random_seed
from vllm.v1.worker.gpu_worker import Worker, init_worker_distributed_environment
from vllm.v1.worker.worker_base import CompilationTimes

from torch_spyre_vllm.runner import SpyreModelRunner

logger = init_logger("vllm.torch_spyre")

FULL_SEQUENCES = 16
"""The cache is made for as many sequences of the greatest length, if there is memory."""


class SpyreWorker(Worker):
    """vLLM's worker on a card."""

    model_runner: SpyreModelRunner

    def init_device(self) -> None:
        import torch_spyre

        torch_spyre._autoload()  # with TORCH_DEVICE_BACKEND_AUTOLOAD=0 nobody has
        self.device = torch.device("cpu")
        init_worker_distributed_environment(
            self.vllm_config,
            self.rank,
            self.distributed_init_method,
            self.local_rank,
            current_platform.dist_backend,
        )
        set_random_seed(self.model_config.seed)
        self.model_runner = SpyreModelRunner(
            self.vllm_config, torch.device("spyre", self.local_rank)
        )

    def determine_available_memory(self) -> int:
        """Bytes for the cache. The card's memory is the host's, so a quarter of what is left."""
        given = self.cache_config.kv_cache_memory_bytes
        if given is not None:
            return given
        specs = self.get_kv_cache_spec().values()
        longest = self.model_config.max_model_len
        sequence = sum(-(-longest // s.block_size) * s.page_size_bytes for s in specs)
        sequences = min(self.scheduler_config.max_num_seqs, FULL_SEQUENCES)
        page = sum(s.page_size_bytes for s in specs)  # page 0 belongs to no sequence
        return min(sequence * sequences + page, psutil.virtual_memory().available // 4)

    def compile_or_warm_up_model(self) -> CompilationTimes:
        start = time.perf_counter()
        if not self.model_config.enforce_eager:
            with torch.inference_mode():
                self.model_runner.programs.warm_up()
        taken = time.perf_counter() - start
        logger.info("programs ready after %.1f s", taken)
        set_random_seed(self.model_config.seed)
        return CompilationTimes(language_model=taken, encoder=0.0)

    def sleep(self, level: int = 1) -> None:
        raise NotImplementedError("torch-spyre-vllm has no sleep mode: stop the engine instead")

    def wake_up(self, tags: list[str] | None = None) -> None:
        raise NotImplementedError("torch-spyre-vllm has no sleep mode")

    def _maybe_get_memory_pool_context(self, tag: str) -> AbstractContextManager:
        return nullcontext()
