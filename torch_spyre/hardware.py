"""The numbers of the card, in one place.

Everything that prices or sizes work reads them here: the C++ card receives them when the package
loads (`as_card_arguments`). Sources: the published descriptions of the Spyre accelerator (32 cores,
2 MB scratchpad each, 128 GB LPDDR5 at 204.8 GB/s, PCIe gen5 x16) and the public cost model.
Example: `CARD.cores` is 32.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Hardware(NamedTuple):
    """One Spyre card. A tuple, as `import torch` waits for it: a data class of this many fields
    takes a millisecond to make."""

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
    job_us: float = 2.0
    """Starting a device job. Fitted to the medians of softmax:
    docs/architecture/device_time.md."""
    dma_us: float = 2.0
    """Starting a transfer from or to the host. Ours, until measured runs are published."""
    cards_per_host: int = 8
    burst_bytes: int = 4096
    """Off-chip transfers: bursts of at most 32 words of 128 bytes. Published."""
    burst_gap_bytes: int = 64
    """Lost between two bursts, as bytes at full speed. Ours: half a word."""
    transfer_start_us: float = 0.88
    """Before the first word of an operand comes from, or goes to, device memory. Fitted to the
    medians of softmax, which fall by this for each operand that moves to a scratchpad."""
    read_sharers: int = 8
    """Cores that one read of device memory serves at full speed. Public cost model, which prices
    memory by max(1, max(m, n) / 8)."""
    matmul_flops_per_us: float = 98_304_000.0
    """98.304 TFLOP/s in 16 bits, the peak of the public cost model."""
    pt_rows: int = 8
    """Rows of a PE array: how many rows of a product pass it at once."""
    pt_full_passes: int = 8
    """Passes with the same weights at which the array reaches its peak. Public cost model:
    efficiency min(1, sqrt(passes / 8))."""
    partial_sum_us: float = 1.4e-4
    """Handing an element's partial sum to the next core and adding it. Public cost model."""
    cycles_per_us: float = 1_500.0
    """Clock. Ours: the peak above over 32 cores x 2 corelets x 8x8 PEs of 8 multiply-adds."""
    sfp_lanes_per_cycle: int = 8
    """Elements of a simple operation on one corelet's SFP. Ours: the edge of its PE array."""
    sfp_special_cycles: int = 12
    """Cycles of a transcendental function or a division on the SFP. Fitted: softmax of 4096x2048
    takes 320 us in upstream's model."""
    ring_bytes_per_cycle: int = 128
    """Of one link of the ring, in each direction. Published."""
    lx_bytes_per_cycle: int = 128
    """Scratchpad of one core. Ours: the width of the ring, 128 B per cycle and direction."""


CARD = Hardware()


def as_card_arguments(hardware: Hardware = CARD) -> dict[str, Any]:
    """What the C++ card needs to know, as keyword arguments of `_C._set_hardware`."""
    names = (
        "cores",
        "lx_bytes",
        "memory_bytes",
        "span_bytes",
        "memory_bytes_per_us",
        "host_bytes_per_us",
        "job_us",
        "dma_us",
    )
    return {name: getattr(hardware, name) for name in names}
