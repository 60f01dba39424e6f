"""Device properties."""

from __future__ import annotations

from dataclasses import dataclass

from torch_spyre import _C
from torch_spyre.device.devices import DeviceLike, device_index
from torch_spyre.hardware import CARD


@dataclass(frozen=True)
class SpyreDeviceProperties:
    """Properties of one card. The first three are the documented ones."""

    type: str
    index: int
    multi_processor_count: int
    name: str
    total_memory: int
    lx_bytes_per_core: int
    usable_cores: int
    """Cores that work is divided over (SENCORES)."""


def get_device_properties(device: DeviceLike = None) -> SpyreDeviceProperties:
    """Properties of a card; does not start it."""
    index = device_index(device)
    settings = _C._settings()
    count = settings["device_count"]
    if not 0 <= index < count:
        raise AssertionError(f"Device index {index} out of range [0, {count})")
    return SpyreDeviceProperties(
        type="dd2",
        index=index,
        multi_processor_count=CARD.cores,
        name=CARD.name,
        total_memory=settings["memory_bytes"],
        lx_bytes_per_core=CARD.lx_bytes,
        usable_cores=settings["cores"],
    )


def get_device_name(device: DeviceLike = None) -> str:
    """The card's name."""
    return get_device_properties(device).name


def get_device_capability(device: DeviceLike = None) -> str:
    """The documented compute capability: the empty string."""
    get_device_properties(device)
    return ""
