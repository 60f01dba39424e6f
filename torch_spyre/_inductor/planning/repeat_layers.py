"""Replicates the plan of one layer for all equal ones (`repeated_layers.py` left them out).

In: the operations of a kernel with all decisions made, of a graph of which the first, the second
and the last layer were lowered. Out: the same with the second layer as often as it is needed, each
time with the inputs of another layer:

    before  first  second                   last  behind
    before  first  second second ... second last  behind

Each of them finds what it needs where the second layer found it, if at its end everything lies as
it did at its beginning. The last layer tells: it does the same as the second one, so what it reads
from the second must lie where the second reads its counterpart, from the first. What neither of
them touches stays where it is. All else is refused (`RestartLowering`): loops over operations of
two layers, results that leave the graph from within a layer, buffers that two layers write.

Example: the second layer reads x from the first at byte 0 of the scratchpads and leaves its own at
byte 0, where the last layer reads it: it can be repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch_spyre._inductor.layouts.to_op_spec import buffers_of
from torch_spyre._inductor.lowering.repeated_layers import (
    BEFORE,
    BEHIND,
    FIRST,
    LAST,
    SECOND,
    Repeats,
    RestartLowering,
)
from torch_spyre._inductor.operations.operation import Buffer
from torch_spyre._inductor.planning.tiling.loops import Item, Loop, Node, items_of, renamed

Address = tuple[str, int]
"""Of an intermediate: "lx" or "pool", and the byte."""


class Repetition(NamedTuple):
    """Operations of a kernel that stand for several layers."""

    first: int
    """The first of them that was planned."""
    operations: int
    """Of one layer."""
    times: int
    """How often they were put in behind themselves."""


class Inside(NamedTuple):
    """What is known of the buffers of a kernel."""

    is_argument: Callable[[Buffer], bool]
    address: Callable[[Buffer], Address]
    """Of an intermediate."""
    put: Callable[[Buffer, Address], None]
    """An intermediate somewhere."""
    named: Callable[[str], Buffer]
    """An input of the graph."""


def with_left_out(
    nodes: Sequence[Node], found: Repeats, inside: Inside
) -> tuple[list[Node], Repetition | None]:
    """All operations; as they are if the second layer is not in this kernel."""
    parts = [_part(node, found) for node in nodes]
    if SECOND not in parts:
        return list(nodes), None
    if parts != sorted(parts):
        raise RestartLowering("operations of different layers alternate")
    uses = _Uses(nodes, found)
    handed_on = _check(uses, found, inside)
    copies = _copies_of_own(uses, found.inputs[0], inside)
    begin, end = parts.index(SECOND), len(nodes) - parts[::-1].index(SECOND)
    layer = _Layer(nodes[begin:end], handed_on, inside)
    whole = list(nodes[:end])
    for number, names in enumerate(found.inputs):
        whole += layer.again(names, f"_layer{number + 2}")
    whole += [_with(node, {**layer.latest, **copies}) for node in nodes[end:]]
    before, count = (sum(1 for _ in items_of(part)) for part in (nodes[:begin], nodes[begin:end]))
    return whole, Repetition(before, count, len(found.inputs))


def _part(node: Node, found: Repeats) -> int:
    """Which part of the graph an operation belongs to, or all operations of a loop."""
    parts = {found.place_of(item.op.origin.node)[0] for item in items_of([node])}
    if len(parts) != 1:
        raise RestartLowering("a loop runs over operations of two layers")
    return parts.pop()


# ---- Whether it may be repeated ------------------------------------------------------------------


def _check(uses: _Uses, found: Repeats, inside: Inside) -> dict[Buffer, Buffer]:
    """What the second layer reads from the first, and what it leaves in its place. Raises
    RestartLowering unless everything is then as it was."""
    own = found.inputs[0]
    for item in uses.turns[SECOND]:
        output = item.op.output.buffer
        if inside.is_argument(output):
            if output.name not in own:
                raise RestartLowering(f"a layer writes {output.name}, which is not its own")
        elif uses.written[output] != {SECOND}:
            raise RestartLowering(f"several layers write {output.name}")
    alike = _alike(uses, inside)
    handed_on: dict[Buffer, Buffer] = {}
    for number, item in enumerate(uses.turns[SECOND]):
        for position, buffer in enumerate(buffers_of(item.op)):
            writers = uses.written.get(buffer, set())
            if inside.is_argument(buffer):
                name = (buffer if buffer.hoisted is None else buffer.hoisted.source).name
                if name in found.foreign or found.places.get(name, (BEFORE, 0))[0] != BEFORE:
                    raise RestartLowering(f"{name} is another layer's")
                continue
            if writers == {SECOND}:
                continue
            if uses.is_read_behind(buffer):
                continue  # of no layer: it is where it was
            if number < alike:
                other = buffers_of(uses.turns[LAST][number].op)[position]
            else:
                other = uses.counterpart(buffer)
                if inside.address(other) != inside.address(buffer):
                    raise RestartLowering(f"{other.name} does not lie where {buffer.name} does")
            right = writers == {FIRST} and uses.written.get(other) == {SECOND}
            if not right or not uses.is_read_behind(other):
                raise RestartLowering(f"{other.name} is not the last layer's {buffer.name}")
            if handed_on.setdefault(buffer, other) is not other:
                raise RestartLowering(f"the last layer has two tensors for {buffer.name}")
    return handed_on


def _copies_of_own(uses: _Uses, own: Mapping[str, str], inside: Inside) -> dict[Buffer, Buffer]:
    """Copies that the planner made of what is the second layer's own, if who comes behind all
    layers reads them: another layer's copy would lie there. What they are copies of is still where
    it was."""
    found: dict[Buffer, Buffer] = {}
    for item in uses.turns[SECOND]:
        *inputs, output = buffers_of(item.op)
        if inside.is_argument(output) or not uses.is_read_at_the_end(output):
            continue
        for buffer in inputs:
            source = buffer if buffer.hoisted is None else buffer.hoisted.source
            if source.name in own or SECOND in uses.written.get(buffer, set()):
                if item.op.opfunc != "identity" or source is not buffer:
                    raise RestartLowering(f"{output.name} is read behind all layers")
                found[output] = source
    return found


class _Uses:
    """Who writes and reads the buffers of a kernel, by parts of the graph."""

    def __init__(self, nodes: Sequence[Node], found: Repeats) -> None:
        self.written: dict[Buffer, set[int]] = {}
        self.turns: dict[int, list[Item]] = {FIRST: [], SECOND: [], LAST: []}
        """The operations of each layer in order."""
        self.loops: dict[Item, tuple[int, ...]] = {}
        self._read: dict[Buffer, set[int]] = {}
        self._writers: dict[Buffer, list[_Key]] = {}
        self._second: dict[_Key, Item] = {}
        self._items: dict[_Key, Item] = {}
        self.offsets: dict[Item, int] = {}
        numbers: Counter[tuple[int, int]] = Counter()
        for loops, item in _turns(nodes):
            part, offset = found.place_of(item.op.origin.node)
            *inputs, output = buffers_of(item.op)
            self.written.setdefault(output, set()).add(part)
            for buffer in inputs:
                self._read.setdefault(buffer, set()).add(part)
            if part in self.turns:
                self.turns[part].append(item)
            self.loops[item], self.offsets[item] = loops, offset
            key = (offset, numbers[part, offset])
            numbers[part, offset] += 1
            if part == FIRST:
                self._writers.setdefault(output, []).append(key)
                self._items[key] = item
            elif part == SECOND:
                self._second[key] = item

    def is_read_behind(self, buffer: Buffer) -> bool:
        """Whether a buffer is still there when the second layer is done."""
        return not self._read.get(buffer, set()).isdisjoint({LAST, BEHIND})

    def is_read_at_the_end(self, buffer: Buffer) -> bool:
        """Whether who comes behind the last layer reads a buffer."""
        return BEHIND in self._read.get(buffer, set())

    def counterpart(self, buffer: Buffer) -> Buffer:
        """What the second layer wrote as the first one wrote a buffer: by the same operations, each
        core its part."""
        keys = self._writers.get(buffer, [])
        outputs = set()
        for key in keys:
            item, other = self._items[key], self._second.get(key)
            if other is None or not _do_the_same(item, other) or self.loops[item]:
                raise RestartLowering(f"the second layer does not write {buffer.name} as the first")
            outputs.add(other.op.output.buffer)
        if len(outputs) != 1:
            raise RestartLowering(f"the second layer has nothing like {buffer.name}")
        return outputs.pop()


_Key = tuple[int, int]
"""Of an operation of a layer: the node that it was made for, and which of its operations it is."""


def _turns(nodes: Sequence[Node], loops: tuple[int, ...] = ()) -> Iterator[tuple[Any, Item]]:
    """Operations in order, with how often the loops around them run, and how long these are."""
    for node in nodes:
        if isinstance(node, Loop):
            length = sum(1 for _ in items_of(node.body))
            yield from _turns(node.body, (*loops, length, node.count))
        else:
            yield loops, node


def _do_the_same(a: Item, b: Item) -> bool:
    return a.begins == b.begins and (a.spec is b.spec or a.spec == b.spec)


def _alike(uses: _Uses, inside: Inside) -> int:
    """How many operations the second layer and the last one have in common, from the first on."""
    here, there = uses.turns[SECOND], uses.turns[LAST]
    for number, (item, other) in enumerate(zip(here, there)):
        same = (
            uses.loops[item] == uses.loops[other]
            and uses.offsets[item] == uses.offsets[other]
            and _do_the_same(item, other)
            and all(
                _lie_alike(a, b, inside)
                for a, b in zip(buffers_of(item.op), buffers_of(other.op), strict=True)
            )
        )
        if not same:
            return number
    return min(len(here), len(there))


def _lie_alike(a: Buffer, b: Buffer, inside: Inside) -> bool:
    if inside.is_argument(a) or inside.is_argument(b):
        return inside.is_argument(a) and inside.is_argument(b)
    return inside.address(a) == inside.address(b)


# ---- One more layer ------------------------------------------------------------------------------


class _Layer:
    """The second layer, as often as it is wanted."""

    def __init__(
        self, nodes: Sequence[Node], handed_on: Mapping[Buffer, Buffer], inside: Inside
    ) -> None:
        self._nodes = nodes
        self._handed_on = handed_on
        self._inside = inside
        buffers = dict.fromkeys(b for item in items_of(nodes) for b in buffers_of(item.op))
        self._arguments = [b for b in buffers if inside.is_argument(b)]
        outputs = dict.fromkeys(item.op.output.buffer for item in items_of(nodes))
        self._own = [b for b in outputs if not inside.is_argument(b)]
        self.latest: dict[Buffer, Buffer] = {b: b for b in self._own}
        """What the layer that came last wrote, by what the second one writes."""

    def again(self, names: Mapping[str, str], suffix: str) -> list[Node]:
        """The operations with the inputs of another layer. What they write lies where the second
        layer has it, and has a name of its own."""
        buffers = {b: _counterpart(b, names, self._inside) for b in self._arguments}
        for buffer, left in self._handed_on.items():
            buffers[buffer] = self.latest[left]
        self.latest = {b: replace(b, name=b.name + suffix) for b in self._own}
        for buffer, other in self.latest.items():
            self._inside.put(other, self._inside.address(buffer))
        buffers.update(self.latest)
        return [_with(node, buffers) for node in self._nodes]


def _counterpart(buffer: Buffer, names: Mapping[str, str], inside: Inside) -> Buffer:
    """What another layer reads or writes in the place of an argument."""
    copy = buffer.hoisted
    if copy is not None:
        source = _counterpart(copy.source, names, inside)
        if source is copy.source:
            return buffer
        name = f"{buffer.name}_of_{source.name}"
        return replace(buffer, name=name, hoisted=replace(copy, source=source))
    if buffer.is_constant or buffer.name not in names:
        return buffer
    other = inside.named(names[buffer.name])
    other.written = buffer.written
    if other.layout is None:
        other.layout = buffer.layout
    if replace(other, name="").__dict__ != replace(buffer, name="").__dict__:
        raise RestartLowering(f"{other.name} is not like {buffer.name}")
    return other


def _with(node: Node, buffers: Mapping[Buffer, Buffer]) -> Node:
    if isinstance(node, Loop):
        return replace(node, body=[_with(inner, buffers) for inner in node.body])
    if all(buffers.get(b, b) is b for b in buffers_of(node.op)):
        return node
    return replace(node, op=renamed(node.op, buffers))
