"""Memory statistics of a card, under the names that CUDA users know."""

from __future__ import annotations

from typing import Any

import torch

from torch_spyre import _C
from torch_spyre.device.devices import DeviceLike, device_index


def memory_allocated(device: DeviceLike = None) -> int:
    """Bytes in use by tensors (blocks are multiples of 128 bytes)."""
    return torch.accelerator.memory_allocated(device_index(device))


def max_memory_allocated(device: DeviceLike = None) -> int:
    """The most `memory_allocated` has been since the start or `reset_peak_memory_stats`."""
    return torch.accelerator.max_memory_allocated(device_index(device))


def memory_reserved(device: DeviceLike = None) -> int:
    """Bytes taken from the card: in use, or cached for reuse."""
    return torch.accelerator.memory_reserved(device_index(device))


def max_memory_reserved(device: DeviceLike = None) -> int:
    """The most `memory_reserved` has been."""
    return torch.accelerator.max_memory_reserved(device_index(device))


def memory_stats(device: DeviceLike = None) -> dict[str, Any]:
    """All statistics of the allocator."""
    return dict(torch.accelerator.memory_stats(device_index(device)))


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """A readable table of the allocator's statistics."""
    del abbreviated  # the table is short already
    return _C._memory_summary(device_index(device))


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Free and total bytes of the card's memory."""
    free, total = torch.accelerator.get_memory_info(device_index(device))
    return free, total


def empty_cache() -> None:
    """Give cached, unused memory back to the host."""
    torch.accelerator.empty_cache()


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Start new peaks."""
    torch.accelerator.reset_peak_memory_stats(device_index(device))


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Start new totals."""
    torch.accelerator.reset_accumulated_memory_stats(device_index(device))
