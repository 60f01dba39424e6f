"""Memory planning of intermediates in device memory: buffers with disjoint live ranges share bytes.

In: for each buffer its bytes and its live range, as numbers of operations. Out: addresses and the
size of the pool: first fit in program order, and where that exceeds the peak of live bytes, the
allocator of scratchpads.

Example: `assign_addresses({x: Life(0, 1, 4096), y: Life(20, 21, 4096)})` puts both at address 0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import NamedTuple

from torch_spyre._inductor import config
from torch_spyre._inductor.layouts.to_op_spec import buffers_of
from torch_spyre._inductor.operations.operation import Buffer
from torch_spyre._inductor.planning.scratchpad.lifetimes import LifetimeBoundBuffer
from torch_spyre._inductor.planning.scratchpad.local_search import search
from torch_spyre._inductor.planning.tiling.loops import Homes, Loop, Node, items_of, stick_bytes
from torch_spyre.constants import BYTES_IN_STICK

# Operations between the last use of a place and its next one. A place that is taken at once would
# keep the back-end from chaining the operations around it.
_REUSE_AFTER = 8
# Of more buffers first fit has the last word: the search would take seconds.
_SEARCHED = 200


class Life(NamedTuple):
    first: int
    last: int
    bytes: int


class Pool(NamedTuple):
    addresses: dict[Buffer, int]
    bytes: int


def assign_addresses(lives: Mapping[Buffer, Life]) -> Pool:
    """An address for each buffer."""
    found = _in_order(lives)
    if not config.memory_plan or len(lives) > _SEARCHED:
        return found
    least = _least(lives)
    # Nothing is below `least`. The search of scratchpads tries with less room than was found.
    for limit in (least, (least + found.bytes) // 2):
        if limit < found.bytes:
            better = _within(lives, limit)
            if better is not None:
                return better
    return found


def _in_order(lives: Mapping[Buffer, Life]) -> Pool:
    """First fit, in the order of time."""
    addresses: dict[Buffer, int] = {}
    live: list[tuple[int, int, Buffer]] = []
    total = 0
    for buffer, (start, _, size) in sorted(lives.items(), key=lambda item: item[1].first):
        if config.memory_plan:
            live = [entry for entry in live if lives[entry[2]].last + _REUSE_AFTER >= start]
        at = 0
        for begin, end, _ in sorted(live, key=lambda e: e[0]):
            if begin - at >= size:
                break
            at = max(at, end)
        addresses[buffer] = at
        live.append((at, at + size, buffer))
        total = max(total, at + size)
    return Pool(addresses, total)


def _least(lives: Mapping[Buffer, Life]) -> int:
    """The most bytes that live at one time."""
    changes = [(life.first, life.bytes) for life in lives.values()]
    changes += [(life.last + _REUSE_AFTER + 1, -life.bytes) for life in lives.values()]
    return max(accumulate(change for _, change in sorted(changes)), default=0)


def _within(lives: Mapping[Buffer, Life], limit: int) -> Pool | None:
    """A layout of all buffers in that many bytes, if the search finds one."""
    wanted = [
        LifetimeBoundBuffer(str(i), life.bytes, (life.first, life.last + _REUSE_AFTER))
        for i, life in enumerate(lives.values())
    ]
    placed = search(wanted, limit, BYTES_IN_STICK, evict=False, move=False, prove=False)
    addresses = {
        buffer: p.address for buffer, p in zip(lives, placed, strict=True) if p.address is not None
    }
    if len(addresses) < len(lives):
        return None
    return Pool(addresses, max(at + lives[buffer].bytes for buffer, at in addresses.items()))


def lives_of(
    nodes: Sequence[Node], homes: Homes, elsewhere: Collection[Buffer]
) -> dict[Buffer, Life]:
    """When the intermediates of a kernel live; `elsewhere` are buffers that are not in the pool.
    What lives outside of a loop lives as long as the loop runs: the next turn needs it, too."""
    spans = _spans(nodes, 0, 0, homes)
    sizes: dict[Buffer, int] = {}
    for item in items_of(nodes):
        for buffer, arg in zip(buffers_of(item.op), item.spec.args, strict=True):
            if homes.depth(buffer):
                sizes[buffer] = max(sizes.get(buffer, 0), stick_bytes(arg))
    return {
        buffer: Life(first, last, sizes.get(buffer) or device_bytes(buffer))
        for buffer, (first, last) in spans.items()
        if buffer not in elsewhere
    }


def _spans(
    nodes: Sequence[Node], time: int, depth: int, homes: Homes
) -> dict[Buffer, tuple[int, int]]:
    found: dict[Buffer, tuple[int, int]] = {}
    for node in nodes:
        if isinstance(node, Loop):
            count = sum(1 for _ in items_of([node]))
            inner = _spans(node.body, time, depth + 1, homes)
            whole = (time, time + count - 1)
            own = {b: span if homes.depth(b) > depth else whole for b, span in inner.items()}
            time += count
        else:
            own = dict.fromkeys(buffers_of(node.op), (time, time))
            time += 1
        for buffer, (first, last) in own.items():
            known = found.get(buffer, (first, last))
            found[buffer] = (min(known[0], first), max(known[1], last))
    return found


def device_bytes(buffer: Buffer) -> int:
    """Bytes of a buffer on the card."""
    assert buffer.layout is not None
    return BYTES_IN_STICK * prod(buffer.layout.device_size[:-1])
