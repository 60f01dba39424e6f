"""Cost model: bytes moved and device time of an operation (a roofline model).

In: an operation with its division over cores, as dimensions and tensors (`work`). Out: a Work,
which says what moves and what is computed, and from it a Price in microseconds with what bounds it.
The back-end writes both into programs, the front-end chooses plans by them.
docs/architecture/device_time.md derives the model and shows how far published numbers are from it.

An operation means one OpFunc of a bundle as it is written: each tensor that it names is read from
or written to where it lies, device memory or scratchpad, whether or not the emulator keeps it in a
register.

Example: `add` of two (4096, 4096) float16 tensors over 32 cores moves 100 MB, which takes 491.5 us,
and starts three transfers, which take 2.6 us.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from math import prod, sqrt
from typing import NamedTuple

from torch_spyre.constants import BYTES_IN_STICK
from torch_spyre.hardware import CARD, Hardware
from torch_spyre.opfuncs import TILE_OPCODES, OpFunc

PARTIAL_SUM_BYTES = 4
"""Partial sums travel as float32."""


# ---- What moves ----------------------------------------------------------------------------------


class Axis(NamedTuple):
    """A dimension along which an operand has different places."""

    places: int
    """That one core visits, at most."""
    slices: int
    total: int
    """That all cores together visit."""
    stride: int
    """Bytes from one to the next; 0 when they are anywhere."""


@dataclass(frozen=True)
class Flow:
    """What moves between an operand and the cores, in one run of an operation."""

    writes: bool
    in_lx: bool
    unit: int
    """Bytes at each place: whole words of 128."""
    axes: tuple[Axis, ...]

    # What prices are made of, thousands of times for a kernel, is worked out at once.
    core_bytes: int = field(init=False, repr=False, compare=False)
    """Of the busiest core."""
    total_bytes: int = field(init=False, repr=False, compare=False)
    """Of all places, each once."""

    def __post_init__(self) -> None:
        core_bytes = total_bytes = self.unit
        for places, _, total, _ in self.axes:
            core_bytes *= places
            total_bytes *= total
        known = self.__dict__
        known["core_bytes"], known["total_bytes"] = core_bytes, total_bytes
        known["_hash"] = hash((self.writes, self.in_lx, self.unit, self.axes))

    def __hash__(self) -> int:
        return self.__dict__["_hash"]

    @property
    def memory_bytes(self) -> int:
        """Between device memory and the chip: what several cores read moves once."""
        return 0 if self.in_lx else self.total_bytes

    def sharers(self, cores: int) -> int:
        """Cores that get the same."""
        return max(1, cores // prod([a.slices for a in self.axes]))

    @cached_property
    def bursts(self) -> int:
        """Transfers of up to 4096 contiguous bytes."""
        run, pieces, together = self.unit, 1, True
        for axis in sorted(self.axes, key=lambda a: a.stride):
            if together and axis.stride == run:
                run *= axis.places
                pieces *= -(-axis.total // axis.places)
                together = axis.slices == 1
            else:
                pieces *= axis.total
                together = False
        return pieces * -(-run // CARD.burst_bytes)


class Work(NamedTuple):
    """One operation as the card does it."""

    name: str
    cores: int
    flows: tuple[Flow, ...]
    lane_cycles: int = 0
    """Of the SFP: elements of the busiest core times cycles for each."""
    macs: int = 0
    """Multiply-adds of the busiest core, of 16-bit numbers."""
    rows: int = 0
    """That the busiest core multiplies with each weight."""
    hops: int = 0
    """From core to core until a partial sum is complete."""
    partial: int = 0
    """Elements whose partial sums travel, of all cores together."""
    moved: int = 0
    """Bytes that a move between scratchpads sends over links of the ring, all together."""
    link: int = 0
    """Of them over the busiest link."""

    @property
    def read_bytes(self) -> int:
        return sum(f.memory_bytes for f in self.flows if not f.writes)

    @property
    def write_bytes(self) -> int:
        return sum(f.memory_bytes for f in self.flows if f.writes)

    @property
    def lx_bytes(self) -> int:
        """Between cores and their scratchpads, for operands that live there."""
        return sum(f.core_bytes * self.cores for f in self.flows if f.in_lx)

    @property
    def ring_bytes(self) -> int:
        return self.hops * self.partial * PARTIAL_SUM_BYTES + self.moved


# ---- What it costs -------------------------------------------------------------------------------


class Price(NamedTuple):
    """Microseconds. Memory, scratchpad and units work at the same time; the rest comes after."""

    memory_us: float
    lx_us: float
    pt_us: float
    sfp_us: float
    ring_us: float
    start_us: float
    link_us: float = 0.0
    """Of a move over the ring, while scratchpads are read and written."""

    @property
    def us(self) -> float:
        overlapped = max(self.memory_us, self.lx_us, self.pt_us, self.sfp_us, self.link_us)
        return overlapped + self.ring_us + self.start_us

    @property
    def bound(self) -> str:
        """What would have to be faster: compute, memory, lx, ring or start."""
        parts = {
            "compute": max(self.pt_us, self.sfp_us),
            "memory": self.memory_us,
            "lx": self.lx_us,
            "ring": self.ring_us + self.link_us,
            "start": self.start_us,
        }
        return max(parts, key=lambda part: parts[part])


@lru_cache(maxsize=1 << 15)
def price(work: Work, hardware: Hardware = CARD) -> Price:
    """What an operation takes."""
    memory = 0.0
    transfers = 0
    through_lx = 0
    for flow in work.flows:
        through_lx += flow.core_bytes  # what comes from device memory enters a core that way, too
        if flow.in_lx:
            continue
        transfers += 1
        # A read serves so many cores at once; short bursts leave gaps.
        again = 1.0 if flow.writes else max(1.0, flow.sharers(work.cores) / hardware.read_sharers)
        gaps = flow.bursts - flow.total_bytes / hardware.burst_bytes
        memory += again * (flow.total_bytes + max(0.0, gaps) * hardware.burst_gap_bytes)
    port = hardware.lx_bytes_per_cycle * hardware.cycles_per_us
    lanes = hardware.sfp_lanes_per_cycle * hardware.corelets_per_core * hardware.cycles_per_us
    macs = hardware.matmul_flops_per_us / 2 / hardware.cores
    return Price(
        memory_us=memory / hardware.memory_bytes_per_us,
        lx_us=through_lx / port,
        pt_us=work.macs / (macs * pt_efficiency(work.rows, hardware)) if work.macs else 0.0,
        sfp_us=work.lane_cycles / lanes,
        ring_us=work.hops * work.partial * hardware.partial_sum_us,
        start_us=hardware.transfer_start_us * transfers,
        link_us=work.link / (hardware.ring_bytes_per_cycle * hardware.cycles_per_us),
    )


def pt_efficiency(rows: int, hardware: Hardware = CARD) -> float:
    """Part of its peak that the PT array reaches when so many rows use a weight."""
    passes = max(1.0, rows / hardware.pt_rows)
    return min(1.0, sqrt(passes / hardware.pt_full_passes))


def launch_us(hardware: Hardware = CARD) -> float:
    """Of starting a program."""
    return hardware.job_us


# ---- From an operation to its work ---------------------------------------------------------------


class Dim(NamedTuple):
    """A dimension of an operation."""

    size: int
    """Elements that are not padding."""
    padded: int
    slices: int

    @property
    def share(self) -> int:
        return self.padded // self.slices


@dataclass(frozen=True)
class TensorUse:
    """A tensor of an operation: over which dimensions it is walked."""

    writes: bool
    in_lx: bool
    per_stick: int
    stick: Hashable
    """The dimension along its sticks; None when a stick holds one value."""
    strides: Mapping[Hashable, int]
    """Bytes, by dimension; along the stick from stick to stick."""
    bytes: int = 2
    """Of an element."""
    entries: Mapping[Hashable, int] = field(default_factory=dict)
    """Places that there are along a dimension, where that can be fewer than are walked over."""


def work(
    row: OpFunc,
    cores: int,
    dims: Mapping[Hashable, Dim],
    tensors: Sequence[TensorUse],
    *,
    gathered: int | None = None,
    chosen: int = 0,
    flow_of: Callable[[Mapping[Hashable, Dim], TensorUse], Flow] | None = None,
) -> Work:
    """The work of an operation: inputs first, the output last.

    `gathered` is the number of a tensor whose rows an index chooses; `chosen` the k of a topk.
    `flow_of` is `flow` for who remembers flows."""
    flows = [(flow_of or flow)(dims, t) for t in tensors]
    out = tensors[-1]
    if gathered is not None:
        # One stick for each point, wherever its row lies.
        other = flows[-1] if gathered != len(tensors) - 1 else flows[0]
        axes = tuple(a._replace(stride=0) for a in other.axes)
        flows[gathered] = Flow(tensors[gathered].writes, tensors[gathered].in_lx, other.unit, axes)
        return Work(row.name, cores, tuple(flows))
    reduced = [d for d in dims if d not in out.strides]
    if row.kind == "topk":
        points = prod([d.share for name, d in dims.items() if name in tensors[0].strides])
        return Work(row.name, cores, tuple(flows), lane_cycles=points * max(1, chosen))
    points = prod([d.share for d in dims.values()])
    splits = prod([dims[d].slices for d in reduced])
    partial = prod([d.padded for name, d in dims.items() if name not in reduced])
    ring = {"hops": splits - 1, "partial": partial} if splits > 1 else {}
    if row.kind == "matmul":
        x, y = tensors[:2]
        rows = prod([dims[d].share for d in dims if d in x.strides and d not in y.strides])
        macs = points * max(1, x.bytes) // 2
        return Work(row.name, cores, tuple(flows), macs=macs, rows=rows, **ring)
    return Work(row.name, cores, tuple(flows), lane_cycles=points * cycles(row), **ring)


def flow(dims: Mapping[Hashable, Dim], tensor: TensorUse) -> Flow:
    """What moves of a tensor."""
    axes = []
    for name, stride in tensor.strides.items():
        size, padded, slices = dims[name]
        per = tensor.per_stick if name == tensor.stick else 1
        places = -(-(padded // slices) // per)
        total = -(-size // per)
        if tensor.in_lx:
            stride = 0  # there are no bursts
        else:
            total = min(total, tensor.entries.get(name, padded))
        if places * slices > 1:
            axes.append(Axis(min(places, total), slices, total, stride))
    return Flow(tensor.writes, tensor.in_lx, BYTES_IN_STICK, tuple(axes))


def relayout_work(cores: int, flows: Sequence[Flow]) -> Work:
    return Work("relayout", cores, tuple(flows))


def ring_work(cores: int, source_bytes: int, target_bytes: int, moved: int, link: int) -> Work:
    """Of a move between scratchpads: bytes of one core before and after, and those on the ring."""
    flows = tuple(
        Flow(writes, True, BYTES_IN_STICK, (Axis(size // BYTES_IN_STICK, 1, 1, 0),))
        for writes, size in ((False, source_bytes), (True, target_bytes))
    )
    return Work("ringmove", cores, flows, moved=moved, link=link)


def placed_flow(
    sizes: Sequence[int],
    slices: Sequence[int],
    view_stride: Sequence[int],
    device_size: Sequence[int],
    stride_map: Sequence[int],
    *,
    offset: int = 0,
    writes: bool,
    in_lx: bool = False,
) -> Flow:
    """What moves of a view of a storage with a layout: the sticks that its elements lie in."""
    axes = []
    lanes, along = device_size[-1], False
    first, end = _lanes_of(offset, stride_map)
    for size, cut, stride in zip(sizes, slices, view_stride, strict=True):
        if stride == 0 or size == 1:
            continue
        total, share = size, -(-size // cut)
        if 0 < stride_map[-1] <= stride < end and stride % stride_map[-1] == 0 and not along:
            step, along = stride // stride_map[-1], True
            total = min(size, (first + step * (size - 1)) // lanes + 1)
            share = total if cut == 1 else min(total, -(-size * step // cut // lanes))
        axes.append(Axis(share, cut, total, 0))
    cores = prod(a.slices for a in axes)
    sticks = prod(device_size[:-1])
    if prod(a.total for a in axes) > sticks:  # several elements of a stick, one by one
        axes = [Axis(-(-sticks // cores), cores, sticks, 0)]
    return Flow(writes, in_lx, BYTES_IN_STICK, tuple(axes))


def _lanes_of(offset: int, stride_map: Sequence[int]) -> tuple[int, int]:
    """The lane of a storage offset, and the stride from which on one step leads to another stick.

    Example: with the stride map [64, 200, 1], of rows of 200, offset 470 is in lane 6 of a stick.
    """
    lane = stride_map[-1]
    above = [stride for stride in stride_map[:-1] if stride > lane]
    for stride in sorted(above, reverse=True):
        offset %= stride
    return offset // max(lane, 1), min(above, default=1 << 62)


# ---- Cycles of an OpFunc -------------------------------------------------------------------------

_SPECIAL_OPCODES = {
    "exp", "log", "sqrt", "rsqrt", "reciprocal", "sigmoid", "tanh", "silu", "gelu", "gelu_tanh",
    "sin", "cos", "erf", "log1p", "expm1", "pow", "softplus", "div",
}  # fmt: skip
_FREE_OPCODES = {"load", "store", "round", "spread", "copy", "constant", "constant_bits"}
assert set(TILE_OPCODES) >= _SPECIAL_OPCODES | _FREE_OPCODES


@cache
def cycles(row: OpFunc, special: int = CARD.sfp_special_cycles) -> int:
    """Cycles of the SFP for each element."""
    if row.cost == "data" or row.kind == "copy":
        return 0
    if row.kind == "reduction":
        return 2 if row.name == "exx2" else 1
    if isinstance(row.tile, str):
        return special if row.cost == "special" or row.tile in _SPECIAL_OPCODES else 1
    names = [opcode for opcode, *_ in row.tile]
    return sum(
        special if name in _SPECIAL_OPCODES else 1 for name in names if name not in _FREE_OPCODES
    )
