"""The DeviceInterface of `spyre`, for Dynamo and Inductor.

`torch._dynamo` takes seconds to import, so nothing here imports it: an import hook registers the
interface once the user's program does.
"""

from __future__ import annotations

from typing import Any

from torch_spyre import _C
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.upstream.import_hooks import after_import


def register_when_needed() -> None:
    """Register the interface now if Dynamo is loaded, else when it is."""
    after_import("torch._dynamo.device_interface", _register)


def _register(dynamo: Any) -> None:
    interface = _make_interface(dynamo.DeviceInterface)
    dynamo.register_interface_for_device(DEVICE_NAME, interface)
    for index in range(_C.device_count()):
        dynamo.register_interface_for_device(f"{DEVICE_NAME}:{index}", interface)


def _make_interface(base: Any) -> Any:
    from torch_spyre.device import devices, memory, properties, streams

    class SpyreInterface(base):
        device = devices.device
        Event = streams.Event
        Stream = streams.Stream

        class Worker:
            """Compile workers know the device by its index only."""

            set_device = staticmethod(devices.set_device)
            current_device = staticmethod(devices.current_device)
            get_device_properties = staticmethod(properties.get_device_properties)

        current_device = staticmethod(devices.current_device)
        set_device = staticmethod(devices.set_device)
        device_count = staticmethod(devices.device_count)
        is_available = staticmethod(devices.is_available)
        exchange_device = staticmethod(devices._exchange_device)
        maybe_exchange_device = staticmethod(devices._maybe_exchange_device)
        get_device_properties = staticmethod(properties.get_device_properties)
        synchronize = staticmethod(streams.synchronize)
        current_stream = staticmethod(streams.current_stream)
        set_stream = staticmethod(streams.set_stream)
        memory_allocated = staticmethod(memory.memory_allocated)

        @staticmethod
        def get_raw_stream(index: int) -> int:
            return streams.current_stream(index).id

        @staticmethod
        def get_compute_capability(device: Any = None) -> str:
            return "spyre"

        @staticmethod
        def is_bf16_supported(including_emulation: bool = False) -> bool:
            return True

        @staticmethod
        def is_triton_capable(device: Any = None) -> bool:
            return False

        @staticmethod
        def raise_if_triton_unavailable(device: Any = None) -> None:
            raise RuntimeError("Triton does not run on spyre")

    return SpyreInterface
