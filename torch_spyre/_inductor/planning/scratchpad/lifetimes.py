"""Live ranges of scratchpad allocation: buffers with uses, and their stays in LX.

Time is the number of an operation. A buffer is used at some times; while it stays in the scratchpad
its uses cost no device memory traffic. A stay holds bytes of the scratchpad from its first time to
its last, both included. A buffer that stays from its first use to its last has an `address`; one
that is evicted and loaded again, or moved, has several stays.

Example: A is used by operations 0, 1 and 5, and stays at address 0 all the time:

    LifetimeBoundBuffer("A", 1024, (0, 1, 5), address=0, stays=(Stay(0, 5, 0),))
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from torch_spyre.constants import BYTES_IN_STICK
from torch_spyre.hardware import CARD

RESERVED_FRACTION = 0.2
"""Of a scratchpad, for the back-end: DXP_LX_FRAC_AVAIL, which is named for the opposite."""


def budget(reserved: float = RESERVED_FRACTION) -> int:
    """Bytes of each scratchpad that a plan may use."""
    return int(CARD.lx_bytes * (1 - reserved))


@dataclass(frozen=True)
class Stay:
    """Bytes of the scratchpad for some time."""

    first: int
    last: int
    address: int
    moved: bool = False
    """Its content comes from the stay before, not from an operation or from memory."""


@dataclass(frozen=True)
class LifetimeBoundBuffer:
    """Something that may stay in the scratchpad."""

    name: str
    size: int
    uses: tuple[int, ...]
    """Times, in order."""
    first_use_is_read: bool = False
    """It lies in device memory from the start: an input."""
    address: int | None = None
    """Where it stays from its first use to its last; None if it does not."""
    in_place_parents: tuple[str, ...] = ()
    """Buffers whose last use is the first one of this, at the same places: it may take theirs."""
    writes: tuple[int, ...] = ()
    """Later uses that overwrite all of it: its previous content is dead."""
    kept: bool = False
    """Its content must be in device memory at the end: an output."""
    traffic: int | None = None
    """Bytes that a use moves between memory and all cores; None for as many as its size."""
    whole_only: bool = False
    """It cannot be copied: it stays for all of its life, or not at all."""
    stays: tuple[Stay, ...] = ()

    @property
    def bytes_per_use(self) -> int:
        return self.size if self.traffic is None else self.traffic

    def __post_init__(self) -> None:
        object.__setattr__(self, "uses", tuple(self.uses))
        object.__setattr__(self, "in_place_parents", tuple(self.in_place_parents))
        if not self.uses or list(self.uses) != sorted(set(self.uses)):
            raise ValueError(f"{self.name}: found uses {self.uses}, allowed: one or more, in order")
        if self.size <= 0:
            raise ValueError(f"{self.name}: found {self.size} bytes, allowed: 1 or more")
        if not set(self.writes) <= set(self.uses[1:]):
            raise ValueError(f"{self.name}: found writes {self.writes}, allowed: some of its uses")

    @property
    def start(self) -> int:
        return self.uses[0]

    @property
    def end(self) -> int:
        """The first time at which it is not needed any more."""
        return self.uses[-1] + 1

    def lives(self) -> list[tuple[int, ...]]:
        """Uses from one write to the next: what one life leaves the next one does not need."""
        lives: list[list[int]] = [[]]
        for use in self.uses:
            if use in self.writes:
                lives.append([])
            lives[-1].append(use)
        return [tuple(life) for life in lives]


def memory_bytes(buffers: Iterable[LifetimeBoundBuffer]) -> int:
    """Bytes between device memory and cores: uses outside of stays, loads and stores."""
    return sum(_memory_bytes(buffer) for buffer in buffers)


def _memory_bytes(buffer: LifetimeBoundBuffer) -> int:
    moved = 0
    lives = buffer.lives()
    for number, life in enumerate(lives):
        is_input = buffer.first_use_is_read and number == 0
        kept = buffer.kept and number == len(lives) - 1
        stays = [s for s in buffer.stays if s.first <= life[-1] and life[0] <= s.last]
        inside = {use for s in stays for use in life if s.first <= use <= s.last}
        moved += len(life) - len(inside)
        loads = [s for s in stays if not s.moved and (is_input or s.first > life[0])]
        moved += len(loads)
        if not is_input and life[0] in inside:  # written there: others need it in memory
            moved += bool(kept or loads or len(inside) < len(life))
    return moved * buffer.bytes_per_use


def whole(buffer: LifetimeBoundBuffer, address: int) -> LifetimeBoundBuffer:
    """The buffer in the scratchpad for all of its life."""
    stay = Stay(buffer.uses[0], buffer.uses[-1], address)
    return replace(buffer, address=address, stays=(stay,))


class LayoutError(ValueError):
    """A layout that breaks a rule."""


def check_layout(
    buffers: Sequence[LifetimeBoundBuffer], limit: int, alignment: int = BYTES_IN_STICK
) -> None:
    """Raise a LayoutError where two buffers share bytes at the same time, or leave the room."""
    placed = [(buffer, stay) for buffer in buffers for stay in buffer.stays]
    for buffer, stay in placed:
        if stay.address % alignment or not 0 <= stay.address <= limit - buffer.size:
            raise LayoutError(
                f"{buffer.name}: found {buffer.size} bytes at {stay.address}, "
                f"allowed: multiples of {alignment} below {limit}"
            )
    for i, (a, s) in enumerate(placed):
        for b, t in placed[:i]:
            apart = s.address + a.size <= t.address or t.address + b.size <= s.address
            if apart or s.last < t.first or t.last < s.first or takes_over(b, t, a, s):
                continue
            raise LayoutError(
                f"{a.name} at {s.address} and {b.name} at {t.address}: found both from "
                f"{max(s.first, t.first)} to {min(s.last, t.last)}, allowed: one"
            )


def takes_over(b: LifetimeBoundBuffer, t: Stay, a: LifetimeBoundBuffer, s: Stay) -> bool:
    """One takes the place of the other in the operation that reads one and writes the other."""
    for (parent, before), (child, after) in (((b, t), (a, s)), ((a, s), (b, t))):
        if (
            parent.name in child.in_place_parents
            and before.address == after.address
            and before.last == after.first == child.start == parent.uses[-1]
        ):
            return True
    return False
