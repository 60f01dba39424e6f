"""Processes in which a side is measured alone."""

from __future__ import annotations

import os


def environment(device: str) -> dict[str, str]:
    """For a process of the card or of the CPU. A process of the CPU is PyTorch as it is without
    this package, which would otherwise be loaded with torch and speed up its compiler."""
    own = {} if device == "spyre" else {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    return {**os.environ, **own}
