"""The numbers of the card, in one place.

Everything that prices or sizes work reads them here: the C++ card receives them when the package
loads (`as_card_arguments`). Sources: the published descriptions of the Spyre accelerator (32 cores,
2 MB scratchpad each, 128 GB LPDDR5 at 204.8 GB/s, PCIe gen5 x16) and the public cost model.
Example: `CARD.cores` is 32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Hardware:
    """One Spyre card."""

    name: str = "IBM Spyre (emulated)"
    cores: int = 32
    corelets_per_core: int = 2
    lx_bytes: int = 2 << 20
    """Scratchpad of one core."""
    memory_bytes: int = 128 << 30
    memory_bytes_per_us: float = 204_800.0
    """LPDDR5: 204.8 GB/s."""
    span_bytes: int = 256 << 20
    """The most that one core may address of one tensor."""
    host_bytes_per_us: float = 63_000.0
    """PCIe gen5 x16, each direction: 63 GB/s of payload."""
    job_us: float = 5.0
    """Starting a device job. Ours, until measured runs are published."""
    dma_us: float = 2.0
    """Starting a transfer. Ours, as above."""
    cards_per_host: int = 8
    matmul_flops_per_us: float = 98_304_000.0
    """98.304 TFLOP/s in 16 bits, the peak of the public cost model."""
    cycles_per_us: float = 1_500.0
    """Clock. Ours: the peak above over 32 cores x 2 corelets x 8x8 PEs of 8 multiply-adds."""
    sfp_lanes_per_cycle: int = 64
    """Simple operations of one corelet's SFP. Ours: a stick of 16-bit elements."""
    sfp_special_cycles: int = 8
    """Cycles of a transcendental function on the SFP. Ours."""
    lx_bytes_per_cycle: int = 128
    """Scratchpad of one core. Ours: the width of the ring, 128 B per cycle and direction."""


CARD = Hardware()


def as_card_arguments(hardware: Hardware = CARD) -> dict[str, Any]:
    """What the C++ card needs to know, as keyword arguments of `_C._set_hardware`."""
    names = (
        "cores",
        "lx_bytes",
        "memory_bytes",
        "memory_bytes_per_us",
        "host_bytes_per_us",
        "job_us",
        "dma_us",
    )
    return {name: getattr(hardware, name) for name in names}
