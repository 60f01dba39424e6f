"""Scratchpad residency pass: which buffers of a kernel stay in LX.

In: operations in order, divided over cores, and which buffers are arguments. Out: operations (with
copies into scratchpads and out of them, where they pay), their OpSpecs, and the address of each
buffer that stays. The time of the planner is the number of an operation.

A core reads its own scratchpad only, so all users of an LX-resident buffer must divide it in the
same way (`core_views`). Users with another division read it in memory: then it is in both.

    written in LX by its operation, read there          an intermediate
    ... and copied out after that                       a result, or others want it in memory too
    copied in before its first reader                   an input, or something that was evicted
    moved over the ring before its first reader         others divide it differently
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from torch_spyre._inductor import config
from torch_spyre._inductor.layouts.to_op_spec import buffers_of
from torch_spyre._inductor.operations.operation import Access, Buffer, Operation, Origin
from torch_spyre._inductor.opspec.access import InvalidOpSpec, kind_of
from torch_spyre._inductor.opspec.frames import frame_of
from torch_spyre._inductor.opspec.op_spec import OpSpec
from torch_spyre._inductor.opspec.ring_move import RING_MOVE, ring_spec
from torch_spyre._inductor.planning.scratchpad.estimate import arrange
from torch_spyre._inductor.planning.scratchpad.lifetimes import (
    LifetimeBoundBuffer,
    Stay,
    budget,
    check_layout,
)
from torch_spyre._inductor.planning.scratchpad.lx_addresses import plan_layout
from torch_spyre.card_model.core_slices import CoreView
from torch_spyre.opfuncs import OPFUNCS

DOCUMENTED_OPS = ("max", "amax", "sum", "exp", "sub", "mul", "mean", "add", "rsqrt")
"""ATen operations whose results the documented planner keeps."""


class Residency(NamedTuple):
    operations: list[Operation]
    specs: list[OpSpec]
    lx: dict[Buffer, int]
    """Addresses of buffers that are in the scratchpads."""


def plan(
    operations: Sequence[Operation], specs: Sequence[OpSpec], usage: Sequence[Usage]
) -> Residency:
    """Choose what stays, and rewrite the operations. `usage` is that of these operations."""
    groups = _groups(specs, usage)
    limit = budget(config.lx_reserved)
    copies = config.lx_boundary_clones
    buffers = [group.bounds(str(number), copies) for number, group in enumerate(groups)]
    if config.lx_in_place:
        buffers = _with_parents(buffers, groups, operations, specs)
    planned = plan_layout(buffers, config.layout_solver, limit)
    if config.validate:
        check_layout(planned, limit)
    stays = [list(buffer.stays) for buffer in planned]
    _agree(groups, stays)
    writer = _Writer(operations, specs)
    for group, mine in zip(groups, stays):
        writer.add(group, mine)
    return writer.finish()


# ---- 1. What could stay --------------------------------------------------------------------------


class Use(NamedTuple):
    time: int
    number: int
    """Of the tensor in its operation."""


@dataclass
class Group:
    """Uses of a buffer that divide it in the same way."""

    buffer: Buffer
    view: CoreView
    uses: list[Use] = field(default_factory=list)
    written: bool = False
    """The first use writes it."""
    in_memory: bool = False
    """Another user needs it in memory."""
    copy: OpSpec | None = None
    """An operation that copies it with the same division; None if there is none."""
    root: Group | None = None
    """The group that it is made from by a move over the ring."""
    move: OpSpec | None = None
    derived: list[Group] = field(default_factory=list)
    """Those that are made from it."""

    @cached_property
    def times(self) -> tuple[int, ...]:
        """Of its uses and of moves from it, which are before operations; all known when asked."""
        moves = {min(use.time for use in other.uses) for other in self.derived}
        return tuple(sorted({use.time for use in self.uses} | moves))

    def bounds(self, name: str, copies: bool) -> LifetimeBoundBuffer:
        """For the planner; without `copies` it stays for all of its life or not at all."""
        return LifetimeBoundBuffer(
            name,
            self.view.own_bytes,
            self.times,
            first_use_is_read=not self.written and self.root is None,
            kept=self.in_memory,
            traffic=self.view.all_bytes,
            whole_only=self.copy is None
            or not copies
            or self.root is not None
            or bool(self.derived),
        )


class Usage(NamedTuple):
    """Who uses a buffer, whatever the division is."""

    buffer: Buffer
    uses: list[Use]
    """The writer first, if there is one."""
    order: tuple[int, ...]
    """The operations of the uses, numbered from 0."""
    is_written: bool
    may_be_written: bool
    """Its writer may write it to scratchpads."""
    is_argument: bool


def usage_of(operations: Sequence[Operation], arguments: Collection[Buffer]) -> list[Usage]:
    """Of all buffers that could stay: written at most once, and read after that."""
    reads: dict[Buffer, list[Use]] = {}
    writes: dict[Buffer, list[Use]] = {}
    for time, op in enumerate(operations):
        *inputs, output = buffers_of(op)
        for number, buffer in enumerate(inputs):
            reads.setdefault(buffer, []).append(Use(time, number))
        writes.setdefault(output, []).append(Use(time, len(inputs)))
    found = []
    for buffer in {**reads, **writes}:
        writers, readers = writes.get(buffer, []), reads.get(buffer, [])
        if buffer.is_constant or len(writers) > 1 or not readers:
            continue
        if writers and readers[0].time <= writers[0].time:
            continue
        uses = [*writers, *readers]
        numbers = {time: i for i, time in enumerate(dict.fromkeys(use.time for use in uses))}
        order = tuple([numbers[use.time] for use in uses])
        may_be_written = bool(writers) and _may_be_written(operations[writers[0].time])
        is_argument = buffer in arguments
        found.append(Usage(buffer, uses, order, bool(writers), may_be_written, is_argument))
    return found


def _may_be_written(op: Operation) -> bool:
    """Whether the result of an operation may be in scratchpads."""
    if config.lx_residents == "reductions" and not op.reduced:
        return False
    if config.allow_all_ops_in_lx_planning:
        return True
    name = op.origin.aten.split(".")[1] if op.origin.aten.count(".") else op.opfunc
    return not {name, op.opfunc}.isdisjoint(DOCUMENTED_OPS)


def _groups(specs: Sequence[OpSpec], usage: Sequence[Usage]) -> list[Group]:
    by_spec = {id(spec): spec for spec in specs}  # layers share theirs
    views = {n: frame_of(spec, config.k_fast_emission).views for n, spec in by_spec.items()}
    alike: dict[_Alike, tuple[list[Use], list[Group]]] = {}
    groups: list[Group] = []
    for mine in usage:
        of_specs = tuple([(id(specs[time]), number) for time, number in mine.uses])
        key = (of_specs, *mine[2:])
        if key in alike:
            groups += _elsewhere(*alike[key], mine.buffer, mine.uses)
            continue
        families = _families(specs, mine, [views[spec][number] for spec, number in of_specs])
        alike[key] = mine.uses, families
        groups += families
    return groups


_Alike = tuple[Any, ...]
"""What the groups of a buffer depend on: the specs of its users, and in which order they come."""


def _elsewhere(
    uses: Sequence[Use], groups: Sequence[Group], buffer: Buffer, own: Sequence[Use]
) -> list[Group]:
    """The groups of a buffer that is used as another one is: that of another layer."""
    use_of = dict(zip(uses, own))
    found: dict[int, Group] = {}
    for group in groups:
        root = None if group.root is None else found[id(group.root)]
        mine = Group(
            buffer, group.view, [use_of[use] for use in group.uses], group.written,
            group.in_memory, group.copy, root, group.move,
        )  # fmt: skip
        if root is not None:
            root.derived.append(mine)
        found[id(group)] = mine
    return list(found.values())


def _families(specs: Sequence[OpSpec], usage: Usage, seen: list[CoreView | None]) -> list[Group]:
    """The groups of a buffer that is `seen` so by its uses; the targets of moves come after their
    sources."""
    buffer, uses, order, is_written, may_be_written, is_argument = usage
    if is_written and not may_be_written:
        seen[0] = None
    if is_written and seen[0] is not None and seen[0].holders is not None:
        seen[0] = seen[0] if config.lx_ring_moves else None  # one core of several has the sum
    arg = specs[uses[0].time].args[uses[0].number]
    moves = config.lx_ring_moves and config.lx_boundary_clones
    moves = moves and arg.device_dtype.name in OPFUNCS[RING_MOVE].formats
    limit = budget(config.lx_reserved)
    found: list[Group] = []
    for family in arrange(tuple(seen), order, is_written, limit, moves):
        root = Group(buffer, family.root, [uses[n] for n in family.uses], family.written)
        for view, numbers_of in family.derived:
            move = ring_spec(family.root, view, arg.device_dtype)
            if move is None:
                continue
            other = Group(buffer, view, [uses[n] for n in numbers_of], root=root, move=move)
            other.copy = _copy_of(other, specs)
            root.derived.append(other)
        covered = len(root.uses) + sum(len(other.uses) for other in root.derived)
        root.in_memory = is_argument or covered < len(uses)
        if len(root.times) > 1 and _is_allowed(root, specs):
            found += [root, *root.derived]
    return found


def _agree(groups: Sequence[Group], stays: list[list[Stay]]) -> None:
    """Where not all of a family found room: what is not moved is loaded, or read in memory."""
    placed = {id(group): bool(mine) for group, mine in zip(groups, stays)}
    for group, mine in zip(groups, stays):
        if group.root is not None or not group.derived:
            continue
        left = [other for other in group.derived if not placed[id(other)]]
        if placed[id(group)] and left and not group.in_memory:
            group.in_memory = group.copy is not None
            placed[id(group)] = group.in_memory  # it cannot be stored: all of it in memory
            if not group.in_memory:
                mine.clear()
    for group, mine in zip(groups, stays):
        if group.root is None or placed[id(group.root)]:
            continue
        group.root = None
        if group.copy is None or len(group.times) < 2:
            mine.clear()


def _is_allowed(group: Group, specs: Sequence[OpSpec]) -> bool:
    """Whether it may stay, and whether copies can bring it in or out."""
    group.copy = _copy_of(group, specs)
    needs_copy = not group.written or group.in_memory
    return not needs_copy or (group.copy is not None and config.lx_boundary_clones)


def _copy_of(group: Group, specs: Sequence[OpSpec]) -> OpSpec | None:
    found = (_copy_spec(specs[use.time], use.number, group) for use in group.uses)
    return next((copy for copy in found if copy is not None), None)


def _copy_spec(spec: OpSpec, number: int, group: Group) -> OpSpec | None:
    """An identity over what a user walks over, divided as the user divides it."""
    arg = spec.args[number]
    if arg.element_arrangement != "STANDARD" or spec.op == "relayout":
        return None  # a relayout has no coordinates that a copy could have too
    used = {s for c in arg.device_coordinates for s in c.free_symbols}
    space = {s: n for s, n in spec.iteration_space.items() if s in used}
    args = [replace(arg, is_input=True), replace(arg, is_input=False)]
    copy = OpSpec("identity", False, space, args)
    try:
        views = frame_of(copy, config.k_fast_emission).views
    except InvalidOpSpec:
        return None
    return copy if views == (group.view, group.view) else None


def _with_parents(
    buffers: list[LifetimeBoundBuffer],
    groups: Sequence[Group],
    operations: Sequence[Operation],
    specs: Sequence[OpSpec],
) -> list[LifetimeBoundBuffer]:
    """In-place results: elementwise, and the operand is dead afterwards."""
    ends: dict[int, list[int]] = {}
    for number, group in enumerate(groups):
        ends.setdefault(group.times[-1], []).append(number)
    alike: dict[int, frozenset[int] | None] = {}
    result = []
    for buffer, group in zip(buffers, groups):
        parents: list[str] = []
        time = group.times[0]
        if group.written and time in ends:
            spec = specs[time]
            if id(spec) not in alike:
                alike[id(spec)] = _like_the_result(spec)
            like = alike[id(spec)]
            for number in ends[time]:
                parent = groups[number]
                used = [use.number for use in parent.uses if use.time == time]
                same = like is not None and like.issuperset(used)
                if same and parent is not group and parent.view == group.view:
                    parents.append(buffers[number].name)
        result.append(replace(buffer, in_place_parents=tuple(parents)) if parents else buffer)
    return result


def _like_the_result(spec: OpSpec) -> frozenset[int] | None:
    """Tensors of a pointwise operation that lie as its result does; None of another one."""
    if kind_of(spec) != "pointwise":
        return None
    out = spec.args[-1]
    return frozenset(
        number
        for number, arg in enumerate(spec.args)
        if arg.device_coordinates == out.device_coordinates
        and arg.device_size == out.device_size
        and arg.device_dtype == out.device_dtype
    )


# ---- 2. Operations and copies --------------------------------------------------------------------


class _Writer:
    """Puts buffers in scratchpads into the operations that use them."""

    def __init__(self, operations: Sequence[Operation], specs: Sequence[OpSpec]) -> None:
        self.operations = list(operations)
        self.specs = list(specs)
        self.lx: dict[Buffer, int] = {}
        self.before: dict[int, list[tuple[Operation, OpSpec]]] = {}
        self.after: dict[int, list[tuple[Operation, OpSpec]]] = {}
        self.count = 0
        self._roots: dict[int, Buffer] = {}
        """Where groups that others are made from are, by their ids."""

    def add(self, group: Group, stays: Sequence[Stay]) -> None:
        if not stays:
            return
        if group.root is not None:
            self._move(group, stays[0])
            return
        whole = len(stays) == 1 and (stays[0].first, stays[0].last) == (
            group.times[0],
            group.times[-1],
        )
        if whole and group.written and not group.in_memory:
            self.lx[group.buffer] = stays[0].address  # no other group refers to it
            self._roots[id(group)] = group.buffer
            return
        covered = {t for t in group.times for s in stays if s.first <= t <= s.last}
        loads = any(not s.moved and s.first > group.times[0] for s in stays)
        stored = group.in_memory or loads or len(covered) < len(group.times)
        previous: Buffer | None = None
        for stay in stays:
            inside = self._roots[id(group)] = self._resident(group, stay)
            for use in group.uses:
                # A buffer moves before the operation at which its next stay begins.
                ends = stay.last == use.time and any(
                    s.moved and s.first == use.time for s in stays if s is not stay
                )
                if stay.first <= use.time <= stay.last and not ends:
                    self._put(use, inside)
            first = group.times[0]
            if group.written and stay.first == first:
                if stored:
                    self._copy(self.after, first, group, inside, group.buffer, "out of")
            elif stay.moved:
                assert previous is not None
                self._copy(self.before, stay.first, group, previous, inside, "within")
            else:
                self._copy(self.before, stay.first, group, group.buffer, inside, "into")
            previous = inside

    def _move(self, group: Group, stay: Stay) -> None:
        """Over the ring, before its first reader."""
        assert group.root is not None and group.move is not None
        source, target = self._roots[id(group.root)], self._resident(group, stay)
        for use in group.uses:
            self._put(use, target)
        copy = self._copy_operation(group, source, target, RING_MOVE, "between")
        self.before.setdefault(group.times[0], []).append((copy, group.move))

    def _resident(self, group: Group, stay: Stay) -> Buffer:
        self.count += 1
        source = group.buffer
        inside = replace(
            source, name=f"{source.name}_lx{self.count}", written=True, static=False, hoisted=None
        )
        self.lx[inside] = stay.address
        return inside

    def _put(self, use: Use, inside: Buffer) -> None:
        op = self.operations[use.time]
        op = replace(op, inputs=list(op.inputs))
        if use.number == len(op.inputs) + len(op.gather):
            op.output = Access(inside, op.output.index)
        else:
            op.inputs[use.number] = Access(inside, op.inputs[use.number].index)
        self.operations[use.time] = op

    def _copy(
        self,
        where: dict[int, list[tuple[Operation, OpSpec]]],
        time: int,
        group: Group,
        source: Buffer,
        target: Buffer,
        how: str,
    ) -> None:
        assert group.copy is not None
        copy = self._copy_operation(group, source, target, "identity", how, time)
        where.setdefault(time, []).append((copy, group.copy))

    def _copy_operation(
        self,
        group: Group,
        source: Buffer,
        target: Buffer,
        opfunc: str,
        how: str,
        time: int | None = None,
    ) -> Operation:
        use = group.uses[0]
        op = self.operations[use.time]
        accesses = [*op.inputs, *op.gather.values(), op.output]
        index = accesses[use.number].index
        ranges = {v: n for v, n in op.ranges.items() if v in index.free_symbols}
        origin: Origin = self.operations[use.time if time is None else time].origin
        return Operation(
            opfunc, "copy", ranges, (), [Access(source, index)], Access(target, index), {},
            origin, reason=f"{how} scratchpads",
        )  # fmt: skip

    def finish(self) -> Residency:
        operations: list[Operation] = []
        specs: list[OpSpec] = []
        for time, (op, spec) in enumerate(zip(self.operations, self.specs)):
            for copy in self.before.get(time, ()):
                operations.append(copy[0])
                specs.append(copy[1])
            operations.append(op)
            specs.append(spec)
            for copy in self.after.get(time, ()):
                operations.append(copy[0])
                specs.append(copy[1])
        return Residency(operations, specs, self.lx)
