"""ATen to LoopLevelIR, or a fallback to the CPU with its reason.

`register_spyre_lowering` and its helpers are documented as names of this module; they live in
`registry.py`, which is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import Any

_REGISTRY = ("pointwise", "reduction", "register_spyre_lowering", "spyre_ops")


def __getattr__(name: str) -> Any:
    if name in _REGISTRY:
        return getattr(importlib.import_module(f"{__name__}.registry"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
