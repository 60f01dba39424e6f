"""Builds the module object `torch.spyre`.

It is made by hand rather than being a file: lookups of `__file__` and `_C` raise AttributeError, so
that code which probes device modules with hasattr() starts nothing, and every public name of
`torch_spyre._C` is forwarded (`torch.spyre.SpyreTensorLayout`, `torch.spyre.set_downcast_warning`).

`import torch` waits for this module, so the others are imported when one of their names is asked
for first.
"""

from __future__ import annotations

import importlib
import types
from typing import Any

from torch_spyre import _C
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.device import devices

_OF_IMPL = (
    "is_available",
    "is_initialized",
    "device_count",
    "current_device",
    "set_device",
    "device",
    "device_of",
    "init",
    "get_amp_supported_dtype",
    "is_bf16_supported",
    "_is_in_bad_fork",
    "_is_compiled",
    "_lazy_init",
    "_exchange_device",
    "_maybe_exchange_device",
)

_NAMES: dict[str, tuple[str, ...]] = {
    "device.properties": (
        "SpyreDeviceProperties",
        "get_device_properties",
        "get_device_name",
        "get_device_capability",
    ),
    "device.random": (
        "default_generators",
        "manual_seed",
        "manual_seed_all",
        "seed",
        "seed_all",
        "get_rng_state",
        "set_rng_state",
        "initial_seed",
    ),
    "device.memory": (
        "empty_cache",
        "max_memory_allocated",
        "max_memory_reserved",
        "mem_get_info",
        "memory_allocated",
        "memory_reserved",
        "memory_stats",
        "memory_summary",
        "reset_accumulated_memory_stats",
        "reset_peak_memory_stats",
    ),
    "device.streams": (
        "Event",
        "Stream",
        "current_stream",
        "default_stream",
        "set_stream",
        "stream",
        "synchronize",
    ),
    "device.counters": (
        "counters",
        "reset_counters",
    ),
    "device.sanitizer": ("SanitizerError", "is_sanitizing", "sanitizer"),
    "ops.eager": (
        "eager_counts",
        "reset_eager_counts",
        "get_eager",
        "set_eager",
    ),
    "ops.fallbacks": (
        "FallbackWarning",
        "fallback_counts",
        "reset_fallback_counts",
        "get_fallback_warning",
        "set_fallback_warning",
    ),
}

_WHERE = {name: source for source, names in _NAMES.items() for name in names}

# Inductor looks for these on a device module; the compiler registers itself otherwise.
_PLACEHOLDERS = ("Scheduling", "GraphLowering", "Lowering", "Codegen", "Compile")


class _SpyreModule(types.ModuleType):
    @property
    def _initialized(self) -> bool:
        """torch.utils.checkpoint saves a generator's state only if this says so."""
        return devices.is_initialized()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_C":
            raise AttributeError(f"module 'torch.spyre' has no attribute '{name}'")
        if (
            name == "memory"
        ):  # torch.accelerator.memory does not exist yet while torch is being imported
            import torch

            return torch.accelerator.memory
        if name in _WHERE:
            found = getattr(importlib.import_module(f"torch_spyre.{_WHERE[name]}"), name)
            setattr(self, name, found)
            return found
        try:
            return getattr(_C, name)
        except AttributeError:
            raise AttributeError(f"module 'torch.spyre' has no attribute '{name}'") from None

    def __dir__(self) -> list[str]:
        public = [name for name in dir(_C) if not name.startswith("_")]
        return sorted({*super().__dir__(), *_WHERE, *public, "memory"})


def build() -> types.ModuleType:
    """The module to register as `torch.spyre`."""
    module = _SpyreModule(
        f"torch.{DEVICE_NAME}", "The Spyre accelerator: devices, memory, streams, random numbers."
    )
    for name in _OF_IMPL:
        setattr(module, name, getattr(devices, name))
    for name in _PLACEHOLDERS:
        setattr(module, name, None)
    module._impl = devices  # type: ignore[attr-defined]
    return module
