"""Folders with models, and servers."""

from __future__ import annotations

import os

# Before vLLM is imported: nothing here needs a network, and engines of tests run in this process.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

import gc
from collections.abc import Iterator
from pathlib import Path

import models
import pytest
import torch


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.nn.Module]:
    """A folder with a small decoder, and the decoder on the CPU in float32."""
    folder = tmp_path_factory.mktemp("llama")
    return folder, models.make_llama(folder)


@pytest.fixture
def engine() -> Iterator[None]:
    """Takes an engine of this process down after a test: it holds the card's memory."""
    yield
    from vllm.distributed import cleanup_dist_env_and_memory

    gc.collect()
    cleanup_dist_env_and_memory(shutdown_ray=False)
