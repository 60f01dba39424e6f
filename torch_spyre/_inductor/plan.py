"""The plan of a graph: which nodes become which kernels, with which layouts and addresses.

In: the scheduler's nodes in their final order. Out: one `Kernel` for each stretch of nodes between
two steps that the host does (fallbacks, other devices), and the layout of every buffer that lives
outside of kernels. Made once per graph, when the first line of its host code is written.

    trace -> split -> stickify -> work division -> scratchpads -> pool
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch
from torch._inductor import ir
from torch._inductor.scheduler import (
    BaseSchedulerNode,
    FusedSchedulerNode,
    NopKernelSchedulerNode,
    Scheduler,
    SchedulerNode,
)
from torch._inductor.virtualized import V

from torch_spyre._inductor import config, hints, input_layouts, native
from torch_spyre._inductor.codegen import text
from torch_spyre._inductor.copies import Restickify
from torch_spyre._inductor.errors import Unsupported, located, place_of_kernel
from torch_spyre._inductor.graph import Access, Buffer, Operation
from torch_spyre._inductor.joint_division import divide_kernel
from torch_spyre._inductor.layouts import default_layout
from torch_spyre._inductor.op_spec import OpSpec
from torch_spyre._inductor.origins import origin_of
from torch_spyre._inductor.propagate_named_dims import propagate
from torch_spyre._inductor.scratchpad import residency
from torch_spyre._inductor.specs import buffers_of, make_spec, symbol_of
from torch_spyre._inductor.splitting import Splitter
from torch_spyre._inductor.stickify import stickify
from torch_spyre._inductor.tracing import static_size, trace
from torch_spyre._inductor.work_division import divide
from torch_spyre.constants import BYTES_IN_STICK, DEVICE_NAME
from torch_spyre.hardware import CARD
from torch_spyre.logs import get_logger

_log = get_logger("spyre.inductor.codegen")


@dataclass
class Kernel:
    """A bundle: the operations of a stretch of nodes."""

    nodes: list[BaseSchedulerNode] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    arguments: list[Buffer] = field(default_factory=list)
    constants: list[Buffer] = field(default_factory=list)
    specs: list[OpSpec] = field(default_factory=list)
    pool_bytes: int = 0
    lx: dict[Buffer, int] = field(default_factory=dict)
    """Addresses in the scratchpads of what stays there."""
    restickifies: list[Restickify] = field(default_factory=list)

    def text(self) -> str:
        """The OpSpecs as Python."""
        return text.dump(self.specs)


@dataclass
class GraphPlan:
    """All kernels of a graph."""

    kernels: list[Kernel]
    kernel_of: dict[str, Kernel]
    """By the name of the scheduler's node."""
    buffers: dict[str, Buffer]
    internal: set[str]
    """Buffers that live inside of one kernel and are never allocated."""
    fallbacks: list[native.HostStep] = field(default_factory=list)
    """Steps that the host does."""
    graph_code: str = ""
    names: dict[int, str] = field(default_factory=dict)
    """Names of kernels in the host code, by their id; known once they are written."""

    @property
    def pool_bytes(self) -> int:
        return max((k.pool_bytes for k in self.kernels), default=0)


def make_plan(scheduler: Scheduler) -> GraphPlan:
    """Plan the whole graph of a scheduler."""
    planner = _Planner(scheduler)
    planner.collect()
    planner.place_buffers()
    for kernel in planner.plan.kernels:
        planner.finish(kernel)
    return planner.plan


def is_spyre(device: torch.device | None) -> bool:
    return device is not None and device.type == DEVICE_NAME


class _Planner:
    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.plan = GraphPlan([], {}, {}, set())
        self.constants: dict[tuple[str, Any], Buffer] = {}
        self._dim_names: dict[Operation, dict[sympy.Symbol, str]] | None = None

    # ---- 1. operations of all nodes ----

    def collect(self) -> None:
        """Operations of every node, cut into kernels where the host does something."""
        current: Kernel | None = None
        for node in self.scheduler.nodes:
            if isinstance(node, NopKernelSchedulerNode):
                continue
            if not is_spyre(node.get_device()) or not _is_loops(node):
                current = None
                if node.is_extern():
                    self._note_fallback(node)
                continue
            if current is None or not config.enable_fusion:
                current = Kernel()
                self.plan.kernels.append(current)
            current.nodes.append(node)
            self.plan.kernel_of[node.get_name()] = current
            for snode in node.get_nodes():
                assert isinstance(snode, SchedulerNode), snode
                current.operations += self._operations(snode)

    def _note_fallback(self, node: BaseSchedulerNode) -> None:
        step = native.host_step(V.graph, node.node, len(self.plan.kernels))
        if step is not None:
            self.plan.fallbacks.append(step)

    @located
    def _operations(self, snode: SchedulerNode) -> list[Operation]:
        node = snode.node
        assert isinstance(node, ir.ComputedBuffer), node
        body = trace(node)
        variables = [v if n != 1 else sympy.S.Zero
                     for v, n in zip(body.variables, body.ranges, strict=True)]  # fmt: skip
        if math.prod(body.ranges) == 0:
            return []
        target, offset = self.locate(_target(node))
        target.written = True
        layout = node.layout
        if isinstance(layout, ir.NonOwningLayout):  # does not know its own offset
            layout = layout.view.get_layout()
        place = variables if body.place is None else body.place
        index = sympy.expand(layout.make_indexer()(place)) + offset
        splitter = Splitter(self.locate, self.constants, origin_of(node), node.get_name())
        return splitter.split(body, Access(target, index), {})

    def locate(self, name: str) -> tuple[Buffer, int]:
        """The buffer in which a name is read, and where: a piece of a cat lies in the whole."""
        node = V.graph.try_get_buffer(name)
        layout = getattr(node, "layout", None)
        if isinstance(layout, ir.NonOwningLayout):
            view = layout.view.get_layout()
            buffer, offset = self.locate(layout.view.get_name())
            return buffer, offset + static_size(view.offset)
        return self.find(name), 0

    def find(self, name: str) -> Buffer:
        """The buffer of a name; names of mutations are those of what is mutated."""
        name = self.scheduler.mutation_real_name.get(name, name)
        if name not in self.plan.buffers:
            self.plan.buffers[name] = _make_buffer(name)
        return self.plan.buffers[name]

    # ---- 2. layouts, and who needs memory of its own ----

    def place_buffers(self) -> None:
        """Layouts for the whole graph, copies where they do not suit."""
        outside = self._used_outside()
        all_operations = [op for kernel in self.plan.kernels for op in kernel.operations]
        for buffer in (*self.plan.buffers.values(), *self.constants.values()):
            given = buffer.is_constant or not buffer.written or buffer.name in V.graph.graph_inputs
            if buffer.layout is None and given:
                buffer.layout = default_layout(buffer)
        outputs = {b for name, b in self.plan.buffers.items() if name in outside}
        starts, count = set(), 0
        for kernel in self.plan.kernels:
            starts.add(count)
            count += len(kernel.operations)
        placed, restickifies = stickify(all_operations, outputs, starts)
        self._deal_out(placed, restickifies)
        written = [b for b in self.plan.buffers.values() if b.written]
        self.plan.internal = {b.name for b in written if b.name not in outside}
        for kernel in self.plan.kernels:  # pieces of an internal buffer are not there either
            for snode in (s for node in kernel.nodes for s in node.get_nodes()):
                assert isinstance(snode.node, ir.ComputedBuffer)
                if _target(snode.node) in self.plan.internal:
                    self.plan.internal.add(snode.node.get_name())

    def _deal_out(self, placed: list[Operation], restickifies: list[Restickify]) -> None:
        """Operations back to their kernels: copies belong to the operation they were made for."""
        kernel_of = {node: k for k in self.plan.kernels for node in _names(k.nodes)}
        for kernel in self.plan.kernels:
            kernel.operations = []
        for op in placed:
            kernel_of[op.origin.node].operations.append(op)
        for entry in restickifies:
            kernel_of[entry.node].restickifies.append(entry)

    def _used_outside(self) -> set[str]:
        """Names of buffers that something other than one kernel reads or hands out."""
        outside = set(V.graph.get_output_names()) | set(V.graph.graph_inputs)
        outside |= set(V.graph.constants)
        real = self.scheduler.mutation_real_name
        homes: dict[str, set[int]] = {}
        for node in self.scheduler.nodes:
            kernel = self.plan.kernel_of.get(node.get_name())
            names = {d.name for d in node.read_writes.reads} | {
                b.get_name() for b in node.get_outputs()
            }
            names |= _targets(node)  # a piece of a cat writes another buffer than its own
            names |= {_whole(n) for n in names}  # and who reads it reads that other buffer
            names = {real.get(n, n) for n in names}
            if isinstance(node, NopKernelSchedulerNode):
                continue
            for name in names:
                homes.setdefault(name, set()).add(-1 if kernel is None else id(kernel))
        outside |= {n for n, users in homes.items() if len(users) > 1 or -1 in users}
        # What a buffer is part of, or lies in, has the same fate.
        for name in self.plan.buffers:
            if real.get(name, name) in outside:
                outside.add(name)
        return {real.get(n, n) for n in outside}

    # ---- 3. addresses ----

    def finish(self, kernel: Kernel) -> None:
        """Divide the work, place intermediates, and number the arguments."""
        pool = _Pool()
        arguments: dict[Buffer, int] = {}
        inside = [b for op in kernel.operations for b in buffers_of(op)]
        for buffer in inside:
            if self._is_argument(buffer):
                arguments.setdefault(buffer, 0)
        tensors = [b for b in arguments if not b.is_constant]
        constants = [b for b in arguments if b.is_constant]
        for i, buffer in enumerate((*tensors, *constants)):
            arguments[buffer] = i
        kernel.specs = [self._spec(op, arguments) for op in kernel.operations]
        divided = self._divide(kernel, arguments)
        if config.lx_planning:
            resident = residency.plan(kernel.operations, divided, arguments)
            kernel.operations, divided, kernel.lx = resident
        outside_of_pool = {**arguments, **kernel.lx}
        addresses = pool.place(kernel.operations, outside_of_pool)
        kernel.arguments, kernel.constants = tensors, constants
        kernel.pool_bytes = pool.bytes
        _check_segments(kernel, list(arguments))
        has_pool = pool.bytes > 0
        kernel.specs = [
            _placed(op, spec, arguments, kernel.lx, addresses, has_pool)
            for op, spec in zip(kernel.operations, divided, strict=True)
        ]

    def _is_argument(self, buffer: Buffer) -> bool:
        if buffer.is_constant or buffer.hoisted is not None:
            return True
        return buffer.name in self.plan.buffers and buffer.name not in self.plan.internal

    @located
    def _spec(self, op: Operation, arguments: dict[Buffer, int]) -> OpSpec:
        """The operation as if all of it were in memory, addresses still missing."""
        spec = op.spec if op.spec is not None else make_spec(op)
        args = [
            replace(arg, allocation={"hbm" if buffer in arguments else "pool": 0})
            for arg, buffer in zip(spec.args, buffers_of(op), strict=True)
        ]
        return replace(spec, args=args)

    def _divide(self, kernel: Kernel, arguments: dict[Buffer, int]) -> list[OpSpec]:
        """The operations of a kernel with their division over cores."""
        specs, hinted = kernel.specs, [False] * len(kernel.specs)
        if not config.ignore_hints and any(op.origin.hints for op in kernel.operations):
            names = [
                {symbol_of(op, v): name for v, name in own.items()}
                for op, own in zip(kernel.operations, self.dim_names(kernel), strict=True)
            ]
            specs, hinted = hints.resolve(
                kernel.operations, specs, names, config.cores, CARD.span_bytes
            )
        if config.work_division == "documented":
            return [
                s if h else divide(s, config.cores, CARD.span_bytes, matmul_model=True)
                for s, h in zip(specs, hinted)
            ]
        return divide_kernel(
            specs,
            [buffers_of(op) for op in kernel.operations],
            cores=config.cores,
            max_span=CARD.span_bytes,
            fixed=arguments,
            k_fast=config.k_fast_emission,
            hinted=hinted,
        )

    def dim_names(self, kernel: Kernel) -> list[dict[sympy.Symbol, str]]:
        """Names of the symbols of each operation of a kernel."""
        if self._dim_names is None:
            operations = [op for k in self.plan.kernels for op in k.operations]
            self._dim_names = dict(zip(operations, propagate(operations), strict=True))
        return [self._dim_names[op] for op in kernel.operations]


def _whole(name: str) -> str:
    """The buffer that a piece of a cat lies in; any other is its own."""
    layout = getattr(V.graph.try_get_buffer(name), "layout", None)
    return _whole(layout.view.get_name()) if isinstance(layout, ir.NonOwningLayout) else name


def _placed(
    op: Operation,
    spec: OpSpec,
    arguments: dict[Buffer, int],
    lx: dict[Buffer, int],
    addresses: dict[Buffer, int],
    has_pool: bool,
) -> OpSpec:
    """The operation with the places of its tensors."""
    args = []
    for arg, buffer in zip(spec.args, buffers_of(op), strict=True):
        if buffer in lx:
            args.append(replace(arg, arg_index=-1, allocation={"lx": lx[buffer]}))
        elif buffer in arguments:
            number = arguments[buffer]
            segment = number + 1 if has_pool else number
            args.append(replace(arg, arg_index=number, allocation={"hbm": segment << 34}))
        else:
            args.append(replace(arg, arg_index=-1, allocation={"pool": addresses[buffer]}))
    return replace(spec, args=args)


_SEGMENTS = 7  # of 16 GiB, below the one of programs


def _check_segments(kernel: Kernel, arguments: list[Buffer]) -> None:
    count = len(arguments) + (1 if kernel.pool_bytes else 0)
    if not config.symbolic_args and count > _SEGMENTS:
        raise Unsupported(
            f"a bundle with concrete addresses has at most {_SEGMENTS} tensors, this one {count}"
            + (", the pool included" if kernel.pool_bytes else ""),
            hint="leave BUNDLE_SYMBOLIC_ARGS at 1, or set SPYRE_INDUCTOR_ENABLE_FUSION=0: then "
            "each node is a bundle of its own",
        ).at(place_of_kernel(kernel.operations, arguments))


# ---- Helpers ------------------------------------------------------------------------------------


def _is_loops(node: BaseSchedulerNode) -> bool:
    return isinstance(node, (SchedulerNode, FusedSchedulerNode)) and not node.is_extern()


def _names(nodes: Iterable[BaseSchedulerNode]) -> list[str]:
    return [s.node.get_name() for n in nodes for s in n.get_nodes() if s.node is not None]


def _target(node: ir.ComputedBuffer) -> str:
    """The name of the buffer that a node writes."""
    layout = node.layout
    if isinstance(layout, ir.MutationLayoutSHOULDREMOVE):
        return layout.get_buffer().get_name()
    if isinstance(layout, ir.NonOwningLayout):
        return layout.view.get_name()
    return node.get_name()


def _targets(node: BaseSchedulerNode) -> set[str]:
    """Names of the buffers that the loops of a scheduler node write."""
    nodes = [s.node for s in node.get_nodes()]
    return {_target(n) for n in nodes if isinstance(n, ir.ComputedBuffer)}


def _make_buffer(name: str) -> Buffer:
    """A buffer for something of Inductor's graph."""
    if name in V.graph.constants:
        tensor = V.graph.constants[name]
        buffer = Buffer(name, tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)
        input_layouts.place_real(buffer, tensor)
        return buffer
    node = V.graph.get_buffer(name)
    layout = node.get_layout() if not isinstance(node, ir.TensorBox) else node.data.get_layout()
    size = tuple(static_size(s) for s in layout.size)
    stride = tuple(static_size(s) for s in layout.stride)
    buffer = Buffer(name, size, stride, layout.dtype)
    if name in V.graph.graph_inputs:
        input_layouts.place_input(buffer)
    return buffer


# Operations between the last use of a place and its next one. A place that is taken at once would
# keep the back-end from chaining the operations around it.
_REUSE_AFTER = 8


class _Pool:
    """Addresses of intermediates: first fit over their lifetimes."""

    def __init__(self) -> None:
        self.bytes = 0

    def place(self, operations: list[Operation], arguments: dict[Buffer, int]) -> dict[Buffer, int]:
        first: dict[Buffer, int] = {}
        last: dict[Buffer, int] = {}
        for i, op in enumerate(operations):
            for buffer in buffers_of(op):
                if buffer not in arguments:
                    first.setdefault(buffer, i)
                    last[buffer] = i
        addresses: dict[Buffer, int] = {}
        live: list[tuple[int, int, Buffer]] = []
        for buffer, start in first.items():
            if config.memory_plan:
                live = [entry for entry in live if last[entry[2]] + _REUSE_AFTER >= start]
            size = device_bytes(buffer)
            at = 0
            for begin, end, _ in sorted(live, key=lambda e: e[0]):
                if begin - at >= size:
                    break
                at = max(at, end)
            addresses[buffer] = at
            live.append((at, at + size, buffer))
            self.bytes = max(self.bytes, at + size)
        return addresses


def device_bytes(buffer: Buffer) -> int:
    """Bytes of a buffer on the card."""
    assert buffer.layout is not None
    return BYTES_IN_STICK * math.prod(buffer.layout.device_size[:-1])
