"""Emulator only: promotes LX-resident values to one shared buffer, where LX is dead at the end.

In: a bundle whose LX contents are dead after it. Out: the same bundle with its tensors in LX kept
as tensors in memory are, in a buffer of their own (Space.SHARED), each for its live range: from the
operation that writes it to the last one that reads it. Steps can then be joined across
cores and values that die are never stored, just as with the pool; the bits are the same. A value
that was copied from memory, or is copied there as soon as it is written, stays there, and the copy
is not made. What operations cost on the card does not change.

That is only right if each core finds in its scratchpad what it left there. So every read must have
the view of the cores (CoreView) that the write had; if one has not, or reads what the bundle
has not written, or stands in a loop, the bundle is left as it is, and runs on the scratchpads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch_spyre.backend.read.bundle import Bundle, Operation
from torch_spyre.backend.read.ring_slices import part_view
from torch_spyre.backend.read.rules import extent_of
from torch_spyre.backend.read.sdsc import Sdsc, Tensor
from torch_spyre.backend.steps import Address, Space
from torch_spyre.card_model.core_slices import CoreView, Share, core_view, trimmed
from torch_spyre.card_model.view_slices import view_of
from torch_spyre.hardware import CARD

SHARED_BYTES = 16 * CARD.lx_bytes * CARD.cores  # Scratchpads::SHARED_FACTOR in csrc/card/card.h
_REUSE_AFTER = 8
"""Operations until bytes are given away. What is taken at once keeps steps apart."""

Use = tuple[int, int]
"""Number of the operation, number of the tensor."""


def share_scratchpads(bundle: Bundle) -> Bundle:
    """The bundle with its LX-resident values in the shared buffer, or as it is."""
    operations = [node for node in bundle.body if isinstance(node, Operation)]
    if len(operations) < len(bundle.body):
        return bundle
    values = _Reader(operations).values()
    if not values or not (_allocate(values, _REUSE_AFTER) or _allocate(values, 0)):
        return bundle
    homes = {use: value for value in values for use in value.uses}
    skipped = {n for v in values for n in (*v.moves, *([v.copied] if v.home else []))}
    sharing = _Sharing()
    body: list[Operation] = []
    waiting: list[Operation] = []
    for number, op in enumerate(operations):
        if number not in skipped:
            shared = sharing.share(op, number, homes)
            body.append(replace(shared, copies=tuple(waiting)) if waiting else shared)
            waiting = []
        elif body and not op.sdsc.tensors[op.sdsc.output].in_lx:
            body[-1] = replace(body[-1], copies=(*body[-1].copies, op))
        else:
            waiting.append(op)
    if waiting:
        body[-1] = replace(body[-1], copies=(*body[-1].copies, *waiting))
    return replace(bundle, body=tuple(body))


# ---- Values --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Region:
    """Bytes of an argument."""

    argument: int
    low: int
    high: int

    def overlaps(self, other: _Region) -> bool:
        return self.argument == other.argument and self.low < other.high and other.low < self.high


@dataclass
class _Value:
    """What one operation writes to scratchpads, wherever it is moved to there."""

    view: CoreView
    uses: list[Use]
    home: _Region | None = None
    """Where the same lies in memory, from its first use to its last."""
    copied: int = -1
    """The operation that copies it from there, or to it."""
    is_stale: bool = False
    """Something else was written to its home."""
    moves: list[int] = field(default_factory=list)
    offset: int = 0
    """In the shared buffer."""


class _Reader:
    """Follows the operations, and what each finds in the scratchpads."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = operations
        self.found: list[_Value] = []
        self.live: dict[int, tuple[_Value, CoreView]] = {}
        """By address: a value, and which part of it each core has there."""
        self._views: dict[Use, CoreView | None] = {}

    def values(self) -> list[_Value] | None:
        """None when some read does not find what was written."""
        for number, op in enumerate(self.operations):
            if not self._read(number, op) or not self._write(number, op):
                return None
        return self.found

    def _read(self, number: int, op: Operation) -> bool:
        for tensor in op.sdsc.tensors:
            if not tensor.in_lx or tensor.number == op.sdsc.output:
                continue
            view = self.view(op, tensor)
            value, known = self.live.get(op.addresses[tensor.number].offsets[0], (None, None))
            if view is None or value is None or known is None:
                return False
            if known != view and trimmed(known) != trimmed(view):
                return False
            value.uses.append((number, tensor.number))
            if value.is_stale:
                value.home = None
        return True

    def _write(self, number: int, op: Operation) -> bool:
        sdsc = op.sdsc
        out = sdsc.tensors[sdsc.output]
        address = op.addresses[out.number]
        is_copy = self._is_copy(op)
        if not out.in_lx:
            region = _region(sdsc, out, address)
            if is_copy and sdsc.tensors[sdsc.inputs[0]].in_lx:
                self._note_store(number, op, region)
            for value in self.found:
                if value.home is None or value.copied == number:
                    continue
                if value.home.overlaps(region):
                    value.is_stale = True
                    if value.uses[-1][0] == number:  # it would read what it writes
                        value.home = None
            return True
        view = self.view(op, out)
        if view is None:
            return False
        source = sdsc.tensors[sdsc.inputs[0]]
        if source.in_lx and (is_copy or sdsc.op == "ringmove"):  # a move
            value, _ = self.live[op.addresses[source.number].offsets[0]]
            value.uses.append((number, out.number))
            value.moves.append(number)
        else:
            value = _Value(view, [(number, out.number)])
            if is_copy:
                value.home = _region(sdsc, source, op.addresses[source.number])
                value.copied = number
            self.found.append(value)
        start, size = address.offsets[0], view.own_bytes
        self.live = {
            at: (other, known)
            for at, (other, known) in self.live.items()
            if start + size <= at or at + known.own_bytes <= start
        }
        self.live[start] = (value, view)
        return True

    def _note_store(self, number: int, op: Operation, region: _Region) -> None:
        """A copy to memory right after the operation that wrote it: that one can write there."""
        source = op.sdsc.inputs[0]
        value, _ = self.live[op.addresses[source].offsets[0]]
        before = self.operations[number - 1]
        if value.home is None and [n for n, _ in value.uses] == [number - 1, number]:
            inputs = [
                _region(before.sdsc, t, before.addresses[t.number])
                for t in before.sdsc.tensors
                if not t.in_lx and t.number != before.sdsc.output
            ]
            inputs += [
                v.home
                for v in self.found
                if v.home is not None and any(n == number - 1 for n, _ in v.uses)
            ]
            if not any(region.overlaps(other) for other in inputs):
                value.home, value.copied = region, number

    def _is_copy(self, op: Operation) -> bool:
        """The same elements at the same places, but for where the tensor begins."""
        sdsc = op.sdsc
        if sdsc.op != "identity" or len(sdsc.inputs) != 1:
            return False
        source, out = sdsc.tensors[sdsc.inputs[0]], sdsc.tensors[sdsc.output]
        view = self.view(op, source)
        same = source.format == out.format and source.arrangement == out.arrangement
        same = same and _walk(sdsc, source) == _walk(sdsc, out)  # a transposition has equal views
        return same and view is not None and view == self.view(op, out)

    def view(self, op: Operation, tensor: Tensor) -> CoreView | None:
        """Which part each core has; None when it is not simply a share of all of it."""
        if tensor.in_lx and len(set(op.addresses[tensor.number].offsets)) != 1:
            return None
        key = (id(op.sdsc), tensor.number)
        if key not in self._views:
            self._views[key] = _core_view(op.sdsc, tensor)
        return self._views[key]


def _core_view(sdsc: Sdsc, tensor: Tensor) -> CoreView | None:
    if tensor.parts is not None:
        return part_view(sdsc, tensor)
    if tensor.placement is not None:
        if tensor.arrangement != "STANDARD":
            return None
        return view_of(sdsc.walk(tensor), [n for _, n in sdsc.splits], sdsc.slices)
    plain = (
        all(gap < 0 and sdsc.split(dim) == 1 for dim, gap in tensor.gaps)
        and tensor.indirection == "no_indirection"
        and tensor.number != sdsc.index
        and not (sdsc.opfunc.kind == "topk" and tensor.number == sdsc.output)
    )
    if not plain:
        return None
    shares = []
    for dim, axis in sdsc.axes(tensor).items():
        split = sdsc.split(dim)
        entries = axis.entries * split if tensor.is_local else axis.entries
        if entries % split:
            return None
        slots = tuple(sdsc.slice(core, dim) for core in range(sdsc.cores))
        shares.append(Share(entries, entries // split, slots))
    holders = None
    summed = [d for d in sdsc.reduced_dims() if sdsc.split(d) > 1]
    if tensor.number == sdsc.output and summed:  # the first core of those that share it has it
        cores = range(sdsc.cores)
        holders = tuple([c for c in cores if all(sdsc.slice(c, d) == 0 for d in summed)])
    return core_view(sdsc.cores, shares, holders)


def _walk(sdsc: Sdsc, tensor: Tensor) -> tuple[object, ...]:
    """The dimensions along which sticks lie, innermost first."""
    dims = [d for d in sdsc.axes(tensor) if sdsc.size(d) > 1]
    return (tensor.stick, tensor.is_dense, *dims)


def _region(sdsc: Sdsc, tensor: Tensor, address: Address) -> _Region:
    low, high = min(address.offsets), max(address.offsets)
    return _Region(address.argument, low, high + extent_of(sdsc, tensor))


# ---- Allocation ----------------------------------------------------------------------------------


def _allocate(values: list[_Value], reuse_after: int) -> bool:
    """First fit over the live ranges of values; False when the buffer is too small."""
    live: list[tuple[int, int, int]] = []
    for value in values:
        if value.home is not None:
            continue
        start, last = value.uses[0][0], value.uses[-1][0]
        live = [entry for entry in live if entry[2] + reuse_after >= start]
        size, at = value.view.all_bytes, 0
        for begin, end, _ in sorted(live):
            if begin - at >= size:
                break
            at = max(at, end)
        if at + size > SHARED_BYTES:
            return False
        value.offset = at
        live.append((at, at + size, last))
    return True


# ---- Operations ----------------------------------------------------------------------------------


class _Sharing:
    """Rewrites operations. Those of one file stay equal, so that they are lowered once."""

    def __init__(self) -> None:
        self._rewritten: dict[int, tuple[Sdsc, Sdsc]] = {}

    def share(self, op: Operation, number: int, homes: dict[Use, _Value]) -> Operation:
        if not any(t.in_lx for t in op.sdsc.tensors):
            return op
        sdsc = self._sdsc(op.sdsc)
        addresses = tuple(
            _address(sdsc, tensor, address, homes[number, tensor.number])
            if tensor.in_lx
            else address
            for tensor, address in zip(sdsc.tensors, op.addresses)
        )
        return replace(op, sdsc=sdsc, addresses=addresses)

    def _sdsc(self, sdsc: Sdsc) -> Sdsc:
        known = self._rewritten.get(id(sdsc))
        if known is None:
            tensors = tuple(replace(t, shared=t.in_lx) for t in sdsc.tensors)
            shared = replace(sdsc, tensors=tensors, _memo={}, _offsets={})
            known = self._rewritten[id(sdsc)] = (sdsc, shared)  # kept, so that its id stays its own
        return known[1]


def _address(sdsc: Sdsc, tensor: Tensor, address: Address, value: _Value) -> Address:
    slices = sdsc.slice_offsets(tensor)
    if value.home is None:
        place = Address(Space.SHARED, 0, slices, address.loop_strides)
        begin = value.offset
    else:
        place = Address(Space.ARGUMENT, value.home.argument, slices, address.loop_strides)
        begin = value.home.low
    return replace(place, offsets=tuple(begin + offset for offset in slices))
