"""Is this on the card? The only module that compares a device's type with spyre's.

Nodes of Inductor are asked by their device, `is_spyre(node.get_device())`; nodes of FX by their
value, `is_on_card(node.meta.get("val"))`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeGuard

import torch

from torch_spyre.constants import DEVICE_NAME


def is_spyre(device: torch.device | None) -> bool:
    """Whether a device is a card."""
    return device is not None and device.type == DEVICE_NAME


def is_on_card(value: Any) -> TypeGuard[torch.Tensor]:
    """Whether a value is a tensor, real or fake, on a card."""
    return isinstance(value, torch.Tensor) and value.device.type == DEVICE_NAME


def any_on_card(values: Iterable[Any]) -> bool:
    """Whether a tensor among values, or in a list or tuple among them, is on a card."""
    return any(any_on_card(v) if isinstance(v, (list, tuple)) else is_on_card(v) for v in values)
