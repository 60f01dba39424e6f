"""Is this on the card?"""

from __future__ import annotations

import torch

from torch_spyre.constants import DEVICE_NAME


def is_spyre(device: torch.device | None) -> bool:
    """Whether a device is a card."""
    return device is not None and device.type == DEVICE_NAME
