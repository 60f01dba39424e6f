"""Performance counters of the card: modelled time and bytes moved.

    torch.spyre.reset_counters()
    compiled(x)
    torch.spyre.counters()["hbm_read_bytes"]

Work that is still queued is waited for. docs/architecture/device_time.md says what counts.
"""

from __future__ import annotations

from typing import Any

from torch_spyre import _C
from torch_spyre.device.devices import DeviceLike, device_index


def counters(device: DeviceLike = None) -> dict[str, Any]:
    """Since the start or `reset_counters`: `device_time_us` (modelled, launches included),
    `hbm_read_bytes`, `hbm_write_bytes`, `lx_bytes`, `ring_bytes` and `launches`."""
    return _C._counters(device_index(device))


def reset_counters(device: DeviceLike = None) -> None:
    """Start again at zero."""
    _C._reset_counters(device_index(device))
