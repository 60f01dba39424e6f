"""Loops around operations: each iteration computes one tile of a dimension.

In: operations in order with aligned OpSpecs, and for each loop around them (outermost first) the
symbol of each operation that is cut into tiles. Out: a tree of `Item`s and `Loop`s, in which the
OpSpecs have the size of a tile, so that a loop body is planned like a kernel of its own. Afterwards
(`OuterSizes`) tensors that outlive the loop get their whole size back, and addresses that move from
tile to tile.

An operation stays in a loop as long as its inputs were written by the same iteration, in the same
tile. One that needs all tiles (the reader of a sum over them), or that has no such dimension, is
hoisted before or sunk after the loop.

Example: (128, 256) float16 in four tiles of rows is [4, 128, 64] on the card, a tile [4, 32, 64]
inside of the loop; from one to the next it is 32 rows, 4096 bytes, and its sticks stay 128 rows
apart.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import lcm, prod
from typing import NamedTuple, TypeAlias

import sympy

from torch_spyre._inductor.layouts.to_op_spec import buffers_of, symbol_of
from torch_spyre._inductor.operations.operation import Access as BufferAccess
from torch_spyre._inductor.operations.operation import Buffer, Operation
from torch_spyre._inductor.opspec.access import Access, read_accesses
from torch_spyre._inductor.opspec.op_spec import NO_SYMBOL, OpSpec, TensorArg
from torch_spyre.constants import BYTES_IN_STICK
from torch_spyre.opfuncs import find

Symbol: TypeAlias = sympy.Symbol


class Around(NamedTuple):
    """A loop around an operation, as the operation sees it."""

    symbol: Symbol | None
    """What it is cut along; None: the same in every iteration."""
    start: int
    """Element at which the first tile begins."""


@dataclass(frozen=True, eq=False)
class Item:
    """An operation, as large as it is inside of the loops around it."""

    op: Operation
    spec: OpSpec
    symbols: tuple[Symbol | None, ...] = ()
    """For each loop that is still to be made what it cuts, outermost first."""
    inside: frozenset[int] = frozenset()
    """Of these, counted from the last, the ones that it stays in although they cut nothing of it:
    it adds up what others leave there."""
    source: Operation | None = None
    """The operation before it was cut."""
    around: tuple[Around, ...] = ()
    shapes: tuple[tuple[tuple[int, ...], ...], ...] = ()
    """Sizes of its tensors outside of all loops, inside of the first, and so on."""
    begins: tuple[int, ...] = ()
    """Once it is placed: bytes from the start of each tensor to the first tile."""


@dataclass(frozen=True)
class Loop:
    """Runs its body so often."""

    count: int
    body: list[Node]


Node = Item | Loop


# ---- How a tile lies in a tensor -----------------------------------------------------------------


def accesses_of(spec: OpSpec) -> list[Access]:
    """Access patterns of the tensors; unknown for copies between arbitrary layouts."""
    return [] if spec.op == "relayout" else read_accesses(spec)


def can_tile(spec: OpSpec) -> bool:
    """Whether an operation works on a part of a dimension as it does on all of it. Copies between
    any two layouts have no coordinates to cut, and topk finds its places in whole rows."""
    row = find(spec.op)
    return spec.op != "relayout" and (row is None or row.kind != "topk")


def unit_of(spec: OpSpec, symbol: Symbol) -> int:
    """Tiles of a dimension are multiples of so many elements: they end where sticks do."""
    return lcm(*(a.unit for a in accesses_of(spec) if a.stick == symbol))


def block_of(access: Access, spec: OpSpec, symbol: Symbol | None) -> int | None:
    """Bytes of all tiles, contiguous; None if a tile is no plain part of the tensor: it has no such
    dimension, or this is a slice of it."""
    for axis in access.axes:
        if axis.symbol == symbol and symbol is not None:
            size = spec.iteration_space[symbol][0]
            entries = -(-size // access.eps) if axis.sticks else size
            if axis.gathered or axis.first or entries != axis.size:
                return None
            return axis.size * axis.step * access.word
    return None


def shrink(item: Item, tile: int, start: int) -> Item:
    """The operation for one tile of so many elements of its first symbol."""
    symbol, *rest = item.symbols
    shapes = item.shapes or (tuple(tuple(a.device_size) for a in item.spec.args),)
    inner = replace(
        item, symbols=tuple(rest), source=item.source or item.op,
        around=(*item.around, Around(symbol, start)), shapes=(*shapes, shapes[-1]),
    )  # fmt: skip
    if symbol is None:
        return inner
    spec = item.spec
    slices = spec.iteration_space[symbol][1]
    args = []
    for access in accesses_of(spec):
        arg = access.arg
        if block_of(access, spec, symbol) is not None:
            sizes = list(arg.device_size)
            for j, coordinate in enumerate(arg.device_coordinates[:-1]):
                if symbol in coordinate.free_symbols:
                    sizes[j] = -(-tile // access.eps) if symbol == access.stick else tile
            arg = replace(arg, device_size=sizes)
        args.append(arg)
    space = {**spec.iteration_space, symbol: (tile, slices)}
    return replace(
        inner,
        op=replace(item.op, ranges=_ranges(item.op, spec, symbol, tile)),
        spec=replace(spec, iteration_space=space, args=args),
        shapes=(*shapes, tuple(tuple(a.device_size) for a in args)),
    )


def _ranges(op: Operation, spec: OpSpec, symbol: Symbol, tile: int) -> dict[Symbol, int]:
    """Those of the operation, for people: the aligned form may have a dimension in two parts."""
    own = {v: symbol_of(op, v) for v in op.ranges}
    for variable, first in own.items():
        if first == symbol:
            return {**op.ranges, variable: tile}
    size = spec.iteration_space[symbol][0]
    parted = [v for v, s in own.items() if spec.iteration_space.get(s, (0, 0))[0] < op.ranges[v]]
    if len(parted) != 1:
        return op.ranges
    return {**op.ranges, parted[0]: op.ranges[parted[0]] * tile // size}


# ---- Which operations a loop can have ------------------------------------------------------------


class Uses:
    """Who uses the buffers of a kernel."""

    def __init__(self, items: Iterable[Item], is_argument: Callable[[Buffer], bool]) -> None:
        self._is_argument = is_argument
        self._count: dict[Buffer, int] = {}
        for item in items:
            for buffer in buffers_of(item.op):
                self._count[buffer] = self._count.get(buffer, 0) + 1

    def only_in(self, items: Sequence[Item]) -> list[Buffer]:
        """Buffers that only these operations use."""
        own: dict[Buffer, int] = {}
        for item in items:
            for buffer in buffers_of(item.op):
                own[buffer] = own.get(buffer, 0) + 1
        return [b for b, n in own.items() if n == self._count[b] and not self._is_argument(b)]


class Cut(NamedTuple):
    """Into how many tiles a dimension is cut. They are equal but for the last one, which may be
    smaller; all others are multiples of `whole`."""

    tiles: int
    whole: int = 1


def build(items: Sequence[Item], cuts: Sequence[Cut], uses: Uses) -> list[Node]:
    """The operations in loops that cut their symbols into tiles, outermost first."""
    if not cuts:
        return list(items)
    nodes: list[Node] = []
    rest = list(items)
    while rest:
        before, inside, rest = _part(rest, len(cuts))
        nodes += build([replace(i, symbols=i.symbols[1:]) for i in before], cuts[1:], uses)
        if inside:
            nodes += _loops(inside, cuts, uses)
    return nodes


def _loops(inside: Sequence[Item], cuts: Sequence[Cut], uses: Uses) -> list[Node]:
    """The loop over operations that fit into one, and the last tile if that is a smaller one."""
    sizes = {i: i.spec.iteration_space[i.symbols[0]][0] for i in inside if i.symbols[0] is not None}
    length = max(sizes.values())
    # A dimension that the card has as several is cut along the outer one.
    scale = {item: length // size for item, size in sizes.items()}
    unit = lcm(*(unit_of(i.spec, i.symbols[0]) * scale[i] for i in sizes if i.symbols[0]))
    units = -(-length // unit)
    each = -(-units // cuts[0].tiles)
    tile = min(length, -(-each // cuts[0].whole) * cuts[0].whole * unit)
    full, rest = divmod(length, tile)

    def body(items: Iterable[Item], own: int, start: int) -> list[Node]:
        cut = [
            shrink(i, own // scale.get(i, 1), start // scale.get(i, 1)) if i in scale
            else shrink(i, 0, 0)
            for i in items
        ]  # fmt: skip
        return build(cut, cuts[1:], uses)

    nodes: list[Node] = [Loop(full, body(inside, tile, 0))]
    if rest:
        fresh = {b: replace(b, name=f"{b.name}_rest") for b in uses.only_in(inside)}
        others = []
        for item in inside:
            other = replace(item, op=renamed(item.op, fresh), source=item.source or item.op)
            others.append(other)
            if item in scale:
                scale[other] = scale[item]
        last = Uses(others, lambda b: b not in fresh.values())
        outer, uses = uses, last
        nodes.append(Loop(1, body(others, rest, full * tile)))
        uses = outer
    return nodes


def renamed(op: Operation, names: Mapping[Buffer, Buffer]) -> Operation:
    """The operation with other buffers in place of some."""

    def of(access: BufferAccess) -> BufferAccess:
        return BufferAccess(names.get(access.buffer, access.buffer), access.index)

    return replace(
        op,
        inputs=[of(a) for a in op.inputs],
        output=of(op.output),
        gather={s: of(a) for s, a in op.gather.items()},
    )


def _part(items: Sequence[Item], level: int) -> tuple[list[Item], list[Item], list[Item]]:
    """Operations before a loop, in it, and after it."""
    before, inside, after = _Stretch(), _Stretch(), _Stretch()
    blocks: dict[Buffer, set[int | None]] = {}
    for item in items:
        adds_up = level in item.inside
        fits = adds_up or item.symbols[0] is not None
        found = _blocks(item)
        output = item.op.output.buffer
        for buffer, own in found.items():
            written = buffer is output or buffer in inside.written
            together = own | blocks.get(buffer, set())
            if written and not adds_up and len(together) + (None in together) > 1:
                # No other operation reads what is written there without walking along.
                fits &= buffer is output and buffer not in blocks and own == {None}
        if fits and not after.holds_up(item):
            inside.add(item)
            for buffer, own in found.items():
                blocks.setdefault(buffer, set()).update(own)
        elif item.symbols[0] is None and not (inside.holds_up(item) or after.holds_up(item)):
            before.add(item)
        else:
            after.add(item)
    return before.items, inside.items, after.items


def _blocks(item: Item) -> dict[Buffer, set[int | None]]:
    symbol, spec = item.symbols[0], item.spec
    found: dict[Buffer, set[int | None]] = {}
    if spec.op == "relayout":
        return {buffer: {None} for buffer in buffers_of(item.op)}
    for buffer, access in zip(buffers_of(item.op), accesses_of(spec), strict=True):
        found.setdefault(buffer, set()).add(block_of(access, spec, symbol))
    return found


@dataclass
class _Stretch:
    items: list[Item] = field(default_factory=list)
    read: set[Buffer] = field(default_factory=set)
    written: set[Buffer] = field(default_factory=set)

    def add(self, item: Item) -> None:
        self.items.append(item)
        *inputs, output = buffers_of(item.op)
        self.read.update(inputs)
        self.written.add(output)

    def holds_up(self, item: Item) -> bool:
        """It cannot come before these."""
        *inputs, output = buffers_of(item.op)
        return not self.written.isdisjoint(inputs) or output in self.read or output in self.written


# ---- Trees ---------------------------------------------------------------------------------------


def items_of(nodes: Iterable[Node]) -> Iterator[Item]:
    """All operations in order, those of a loop once."""
    for node in nodes:
        if isinstance(node, Loop):
            yield from items_of(node.body)
        else:
            yield node


def with_runs(nodes: Sequence[Node], planned: Callable[[list[Item]], list[Item]]) -> list[Node]:
    """The tree with each run replaced: operations between which no loop begins or ends."""
    result: list[Node] = []
    run: list[Item] = []
    for node in nodes:
        if isinstance(node, Item):
            run.append(node)
            continue
        if run:
            result += planned(run)
            run = []
        result.append(replace(node, body=with_runs(node.body, planned)))
    if run:
        result += planned(run)
    return result


_DEEPEST = 1 << 30


class Homes:
    """Where buffers live: in how many of the loops around those who use them."""

    def __init__(self, nodes: Sequence[Node], arguments: Collection[Buffer]) -> None:
        self._paths: dict[Buffer, tuple[int, ...]] = {}
        self._runs: dict[Buffer, set[int]] = {}
        self._arguments = arguments
        self._count = 0
        self._walk(nodes, ())

    def _walk(self, nodes: Sequence[Node], path: tuple[int, ...]) -> None:
        run = self._count = self._count + 1
        for node in nodes:
            if isinstance(node, Loop):
                self._count += 1
                self._walk(node.body, (*path, self._count))
                run = self._count = self._count + 1
                continue
            for buffer in buffers_of(node.op):
                self._runs.setdefault(buffer, set()).add(run)
                known = self._paths.get(buffer, path)
                same = 0
                while same < min(len(known), len(path)) and known[same] == path[same]:
                    same += 1
                self._paths[buffer] = path[:same]

    def depth(self, buffer: Buffer) -> int:
        """The number of loops around it. Outside of all: arguments, what several loops use."""
        if buffer in self._arguments:
            return 0
        path = self._paths.get(buffer)
        return _DEEPEST if path is None else len(path)  # what a run made for itself

    def shared(self, run: Sequence[Item]) -> set[Buffer]:
        """Buffers of a run that others use, too."""
        own = {b for item in run for b in buffers_of(item.op)}
        return {b for b in own if b in self._arguments or len(self._runs[b]) > 1}


# ---- Places --------------------------------------------------------------------------------------


WHOLE = "whole"
"""In `op_info` while a run is planned: sizes that tensors have where they live."""


def with_wide_tensors(item: Item, homes: Homes, span: int) -> OpSpec:
    """The OpSpec for planning. A tile is small, but its parts lie as far apart as those of the
    tensor that it is cut from: where that is more than a core can address, it says how large the
    tensors are."""
    if not item.around:
        return item.spec
    outer = [min(homes.depth(b), len(item.around)) for b in buffers_of(item.op)]
    whole = tuple(tuple(item.shapes[home][n]) for n, home in enumerate(outer))
    if all(BYTES_IN_STICK * prod(size[:-1]) <= span for size in whole):
        return item.spec
    return replace(item.spec, op_info={**item.spec.op_info, WHOLE: whole})


def in_memory(spec: OpSpec) -> OpSpec:
    """The OpSpec with its tensors somewhere in device memory, to look at before they are placed."""
    return replace(spec, args=[replace(arg, allocation={"pool": 0}) for arg in spec.args])


_Key = tuple[Buffer, tuple[int, ...], tuple[sympy.Expr, ...]]


class OuterSizes:
    """Restores the untiled size of tensors that outlive a loop, and their address strides."""

    def __init__(self, run: Sequence[Item], homes: Homes) -> None:
        self._homes = homes
        self._loops = len(run[0].around)
        self._known: dict[_Key, tuple[list[tuple[int, ...]], tuple[Around, ...]]] = {}
        for item in run if self._loops else ():
            for number, buffer in enumerate(buffers_of(item.op)):
                key = _key(buffer, item.spec.args[number])
                used = {s for c in key[-1] for s in c.free_symbols}
                own = tuple(
                    level if level.symbol in used else Around(None, 0) for level in item.around
                )
                found = ([shape[number] for shape in item.shapes], own)
                assert self._known.setdefault(key, found) == found, (buffer, found)

    def restored(self, op: Operation, spec: OpSpec, in_lx: Collection[Buffer]) -> Item:
        """An operation of the run, or a copy added to it, as an Item of the loop."""
        if WHOLE in spec.op_info:
            spec = replace(spec, op_info={k: v for k, v in spec.op_info.items() if k != WHOLE})
        if not self._loops:
            return Item(op, spec, begins=(0,) * len(spec.args))
        args: list[TensorArg] = []
        levels: list[tuple[Around, ...]] = []
        symbols: list[Symbol] = [NO_SYMBOL] * self._loops
        for arg, buffer in zip(spec.args, buffers_of(op), strict=True):
            home = self._homes.depth(buffer)
            if buffer in in_lx or home >= self._loops:
                args.append(replace(arg, per_tile_fixed=True))
                levels.append(())
                continue
            shapes, around = self._known[_key(buffer, arg)]
            args.append(replace(arg, device_size=list(shapes[home]), fixed_loops=home))
            levels.append(around[home:])
            for level in range(home, self._loops):
                symbol, start = around[level]
                if symbol is not None and symbol in spec.iteration_space and not start:
                    symbols[level] = symbol  # the last tile, which starts later, runs once
        moving = any(s != NO_SYMBOL for s in symbols)
        placed = replace(spec, args=args, tiled_symbols=symbols if moving else [])
        if not any(level.start for around in levels for level in around):
            return Item(op, placed, begins=(0,) * len(args))
        begins = tuple(
            sum(_start_bytes(access, level) for level in around)
            for access, around in zip(accesses_of(placed), levels, strict=True)
        )
        return Item(op, placed, begins=begins)


def _key(buffer: Buffer, arg: TensorArg) -> _Key:
    return buffer, tuple(arg.device_size), tuple(arg.device_coordinates)


def _start_bytes(access: Access, level: Around) -> int:
    for axis in access.axes:
        if axis.symbol == level.symbol and not axis.gathered:
            entries = level.start // access.eps if axis.sticks else level.start
            return entries * axis.step * access.word
    return 0


def stick_bytes(arg: TensorArg) -> int:
    """Bytes of a tensor of this size."""
    return BYTES_IN_STICK * prod(arg.device_size[:-1])
