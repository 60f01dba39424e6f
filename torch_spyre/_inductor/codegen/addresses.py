"""Address of each tensor of an operation on each core.

In: an OpSpec with its allocations and its Frame. Out: an Address for each tensor and core, which
`symbols.py` numbers.

Example: `addresses(frame_of(add), add)[0][1]` is where the second core finds its part of the first
tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from torch_spyre._inductor.codegen.symbols import LX, POOL, Address
from torch_spyre._inductor.opspec.access import space_of
from torch_spyre._inductor.opspec.frames import Frame
from torch_spyre._inductor.opspec.op_spec import OpSpec
from torch_spyre.constants import SEGMENT_BYTES


def addresses(frame: Frame, op: OpSpec) -> list[list[Address]]:
    """Of the tensors of an operation of this frame, for each core."""
    return _addresses(op, frame.offsets, frame.advances)


def different_addresses(frame: Frame, op: OpSpec) -> list[list[Address]]:
    """The same without those that a core before has, too."""
    return _addresses(op, _different(frame), frame.advances)


@lru_cache(maxsize=4096)
def _different(frame: Frame) -> tuple[tuple[int, ...], ...]:
    return tuple([tuple(dict.fromkeys(offsets)) for offsets in frame.offsets])


def _addresses(
    op: OpSpec, offsets: Sequence[tuple[int, ...]], advances: Sequence[tuple[int, ...]]
) -> list[list[Address]]:
    result = []
    for arg, mine, advance in zip(op.args, offsets, advances):
        space = space_of(arg)
        start = arg.allocation[space]
        base = {"lx": LX, "pool": POOL}.get(space, arg.arg_index)
        if base != LX:
            start %= SEGMENT_BYTES
        result.append([Address(base, start + offset, advance) for offset in mine])
    return result
