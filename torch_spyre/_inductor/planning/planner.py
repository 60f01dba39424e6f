"""The plan of a graph: which nodes become which kernels, with which layouts and addresses.

In: the scheduler's nodes in their final order. Out: one `Kernel` for each stretch of nodes between
two steps that the host does (fallbacks, other devices), and the layout of every buffer that lives
outside of kernels. Made once per graph, when the first line of its host code is written.

    trace -> split -> stickify -> loops -> work division and scratchpads -> pool
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
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

from torch_spyre._inductor import config, hints
from torch_spyre._inductor.capture import input_layouts
from torch_spyre._inductor.errors import Unsupported, located, place_of_kernel
from torch_spyre._inductor.layouts.restickify import Restickify
from torch_spyre._inductor.layouts.stick_layouts import default_layout
from torch_spyre._inductor.layouts.stickify import as_wanted, stickify
from torch_spyre._inductor.layouts.to_op_spec import buffers_of, make_spec, symbol_of
from torch_spyre._inductor.lowering import fallback_rules, repeated_layers
from torch_spyre._inductor.operations.operation import Access, Buffer, Operation
from torch_spyre._inductor.operations.origins import origin_of
from torch_spyre._inductor.operations.split import Splitter, constant_of
from torch_spyre._inductor.operations.trace import static_size, trace
from torch_spyre._inductor.opspec import text
from torch_spyre._inductor.opspec.loops import Run, runs_of
from torch_spyre._inductor.opspec.op_spec import LoopSpec, OpSpec
from torch_spyre._inductor.planning.cost import Content
from torch_spyre._inductor.planning.joint import plan_kernel
from torch_spyre._inductor.planning.memory_pool import Pool, lives_of, place
from torch_spyre._inductor.planning.repeat_layers import Inside, Repetition, with_left_out
from torch_spyre._inductor.planning.tiling import automatic
from torch_spyre._inductor.planning.tiling import hinted as hinted_tiling
from torch_spyre._inductor.planning.tiling.loops import (
    Frames,
    Homes,
    Item,
    Loop,
    Node,
    items_of,
    with_runs,
    with_wide_tensors,
)
from torch_spyre._inductor.propagate_named_dims import Named, named_dims, propagate
from torch_spyre.constants import DEVICE_NAME
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
    specs: list[OpSpec | LoopSpec] = field(default_factory=list)
    """The operations with all decisions made. Those in loops are in LoopSpecs."""
    pool_bytes: int = 0
    pool: dict[Buffer, int] = field(default_factory=dict)
    """Addresses in the pool."""
    lx: dict[Buffer, int] = field(default_factory=dict)
    """Addresses in the scratchpads of what stays there."""
    repetition: Repetition | None = None
    """Operations that stand for several layers."""
    restickifies: list[Restickify] = field(default_factory=list)
    stream: int = 0
    """Inductor's number of the stream on which the program wants it; 0: the current one."""

    @property
    def runs(self) -> list[Run]:
        """The OpSpec of each operation, with the loops around it."""
        return runs_of(self.specs)

    @property
    def place(self) -> tuple[torch.device | None, int]:
        """The card and the stream on which it runs."""
        return (self.nodes[0].get_device() if self.nodes else None, self.stream)

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
    fallbacks: list[fallback_rules.HostStep] = field(default_factory=list)
    """Steps that the host does."""
    graph_code: str = ""
    names: dict[int, str] = field(default_factory=dict)
    """Names of kernels in the host code, by their id; known once they are written."""

    real_names: Mapping[str, str] = field(default_factory=dict)
    """Of what is mutated, by the names that Inductor gives to mutations."""

    @property
    def pool_bytes(self) -> int:
        return max((k.pool_bytes for k in self.kernels), default=0)

    def placed(self, name: str) -> Buffer | None:
        """The buffer that begins with what has this name, with its layout; None: not known."""
        name = self.real_names.get(name, name)
        if name not in self.buffers and name in V.graph.graph_inputs:
            return _make_buffer(name)
        return self.buffers.get(name)


def make_plan(scheduler: Scheduler) -> GraphPlan:
    """Plan the whole graph of a scheduler."""
    planner = _Planner(scheduler)
    planner.collect()
    planner.place_buffers()
    for kernel in planner.plan.kernels:
        planner.finish(kernel)
    whole = any(kernel.repetition is not None for kernel in planner.plan.kernels)
    if not whole and repeated_layers.of(V.graph) is not None:
        raise repeated_layers.Differs("no kernel has the second layer")
    return planner.plan


def is_spyre(device: torch.device | None) -> bool:
    return device is not None and device.type == DEVICE_NAME


class _Planner:
    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.plan = GraphPlan([], {}, {}, set(), real_names=scheduler.mutation_real_name)
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
            stream = self.scheduler.node_to_stream.get(node, 0)
            place = (node.get_device(), stream)
            if current is None or not config.enable_fusion or place != current.place:
                current = Kernel(stream=stream)
                self.plan.kernels.append(current)
            current.nodes.append(node)
            self.plan.kernel_of[node.get_name()] = current
            for snode in node.get_nodes():
                assert isinstance(snode, SchedulerNode), snode
                current.operations += self._operations(snode)

    def _note_fallback(self, node: BaseSchedulerNode) -> None:
        step = fallback_rules.host_step(V.graph, node.node, len(self.plan.kernels))
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
        self._note_wanted(outputs)
        all_operations = [as_wanted(op) for op in all_operations]
        placed, restickifies = stickify(all_operations, outputs, starts)
        self._deal_out(placed, restickifies)
        written = [b for b in self.plan.buffers.values() if b.written]
        self.plan.internal = {b.name for b in written if b.name not in outside}
        for kernel in self.plan.kernels:  # pieces of an internal buffer are not there either
            for snode in (s for node in kernel.nodes for s in node.get_nodes()):
                assert isinstance(snode.node, ir.ComputedBuffer)
                if _target(snode.node) in self.plan.internal:
                    self.plan.internal.add(snode.node.get_name())

    def _note_wanted(self, outputs: set[Buffer]) -> None:
        """The layouts that gradients should have."""
        for position, output in enumerate(V.graph.graph_outputs):
            if not isinstance(output, (ir.NoneAsConstantBuffer, ir.ShapeAsConstantBuffer)):
                buffer = self.plan.buffers.get(output.get_name())
                if buffer is not None and buffer in outputs and buffer.layout is None:
                    buffer.wanted = input_layouts.wanted_layout(position, buffer)

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
        outside |= {_whole(n) for n in outside}  # a result may be a piece of a cat
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
        """Put operations into loops, divide the work, place intermediates, number the arguments."""
        nodes = self._nodes(kernel)
        arguments = self._arguments(nodes)
        homes = Homes(nodes, arguments)

        def planned(run: list[Item]) -> list[Item]:
            """A run with its division over cores, what stays in scratchpads, and its loops."""
            operations = [item.op for item in run]
            specs = _in_memory(run, homes, arguments)
            sources = [item.source or item.op for item in run]
            specs, hinted = self._hinted(operations, specs, sources)
            part = plan_kernel(operations, specs, homes.shared(run), hinted)
            kernel.lx.update(part.lx)
            frames = Frames(run, homes)
            return [
                frames.place(op, spec, part.lx) for op, spec in zip(part.operations, part.specs)
            ]

        nodes = with_runs(nodes, planned)
        pool = place(lives_of(nodes, homes, {*arguments, *kernel.lx}))
        kernel.pool_bytes, kernel.pool = pool.bytes, pool.addresses
        found = repeated_layers.of(V.graph)
        if found is not None:
            nodes = self._whole(kernel, nodes, found)
            arguments = self._arguments(nodes)
        kernel.operations = [item.op for item in items_of(nodes)]
        kernel.arguments = [b for b in arguments if not b.is_constant]
        kernel.constants = [b for b in arguments if b.is_constant]
        _check_segments(kernel, list(arguments))
        kernel.specs = _specs(nodes, arguments, kernel.lx, pool)

    def _arguments(self, nodes: Sequence[Node]) -> dict[Buffer, int]:
        """What a kernel is called with, numbered: tensors in the order of their first use, then
        constants."""
        found: dict[Buffer, int] = {}
        for item in items_of(nodes):
            for buffer in buffers_of(item.op):
                if buffer not in found and self._is_argument(buffer):
                    found[buffer] = 0
        tensors = [b for b in found if not b.is_constant]
        constants = [b for b in found if b.is_constant]
        return {buffer: i for i, buffer in enumerate((*tensors, *constants))}

    def _whole(
        self, kernel: Kernel, nodes: list[Node], found: repeated_layers.Repeats
    ) -> list[Node]:
        """The operations with those of layers that were left out, if they are this kernel's."""

        def address(buffer: Buffer) -> tuple[str, int]:
            in_lx = kernel.lx.get(buffer)
            return ("pool", kernel.pool[buffer]) if in_lx is None else ("lx", in_lx)

        def put(buffer: Buffer, at: tuple[str, int]) -> None:
            space, byte = at
            (kernel.lx if space == "lx" else kernel.pool)[buffer] = byte

        inside = Inside(self._is_argument, address, put, self.find)
        nodes, kernel.repetition = with_left_out(nodes, found, inside)
        if kernel.repetition is not None:
            self._check_order(kernel, found)
            again = [
                e
                for e in kernel.restickifies
                if found.place_of(e.node)[0] == repeated_layers.SECOND
            ]
            kernel.restickifies += again * kernel.repetition.times
        return nodes

    def _check_order(self, kernel: Kernel, found: repeated_layers.Repeats) -> None:
        """Inputs of layers that were left out are changed behind the kernel, or at its end: the
        scheduler does not know that these layers read them."""
        inputs = {other for names in found.inputs for other in names.values()}
        position = {node: i for i, node in enumerate(self.scheduler.nodes)}
        real = self.scheduler.mutation_real_name
        for node in self.scheduler.nodes:
            if self.plan.kernel_of.get(node.get_name()) is kernel:
                continue  # in a kernel, operations are in the order of layers
            names = {name for output in node.get_outputs() for name in output.get_mutations()}
            changed = inputs.intersection(real.get(name, name) for name in names)
            if changed and position[node] < position[kernel.nodes[-1]]:
                raise repeated_layers.Differs(
                    f"{sorted(changed)} change before the kernel has read them"
                )

    def _nodes(self, kernel: Kernel) -> list[Node]:
        """The operations of a kernel, in loops: those that the program asks for, or those that the
        compiler finds worthwhile."""
        specs = [self._spec(op) for op in kernel.operations]
        if not config.ignore_hints and any(op.origin.tiles for op in kernel.operations):
            names = [self.dim_names(op) for op in kernel.operations]
            return hinted_tiling.resolve(
                kernel.operations, specs, names, self._constant, self._is_argument
            )
        items = [Item(op, spec) for op, spec in zip(kernel.operations, specs)]
        if config.own_tiling and config.lx_planning and config.work_division == "joint":
            return automatic.loops(items, self._is_argument)
        return [*items]

    def _constant(self, dtype: torch.dtype, value: float) -> Buffer:
        buffer = constant_of(self.constants, dtype, value)
        if buffer.layout is None:
            buffer.layout = default_layout(buffer)
        return buffer

    def _is_argument(self, buffer: Buffer) -> bool:
        if buffer.is_constant or buffer.hoisted is not None:
            return True
        return buffer.name in self.plan.buffers and buffer.name not in self.plan.internal

    @located
    def _spec(self, op: Operation) -> OpSpec:
        return op.spec if op.spec is not None else make_spec(op)

    def _hinted(
        self,
        operations: Sequence[Operation],
        specs: Sequence[OpSpec],
        sources: Sequence[Operation],
    ) -> tuple[list[OpSpec], list[bool]]:
        """Operations with the slices that the program asks for; and whether it does. `sources` are
        those before they were cut into tiles."""
        if config.ignore_hints or not any(op.origin.hints for op in operations):
            return list(specs), [False] * len(specs)
        symbols = [
            {symbol_of(op, v): name for v, name in self.dim_names(source).items()}
            for op, source in zip(operations, sources, strict=True)
        ]
        return hints.resolve(operations, specs, symbols, config.cores, CARD.span_bytes)

    def dim_names(self, op: Operation) -> Mapping[sympy.Symbol, str]:
        """Names of the symbols of an operation; what the compiler added has none."""
        if self._dim_names is None:
            operations = [op for k in self.plan.kernels for op in k.operations]
            self._dim_names = dict(zip(operations, propagate(operations), strict=True))
        return self._dim_names.get(op, {})


def _whole(name: str) -> str:
    """The buffer that a piece of a cat lies in; any other is its own."""
    layout = getattr(V.graph.try_get_buffer(name), "layout", None)
    return _whole(layout.view.get_name()) if isinstance(layout, ir.NonOwningLayout) else name


def _in_memory(run: Sequence[Item], homes: Homes, arguments: Collection[Buffer]) -> list[OpSpec]:
    """Operations as if all of them were in memory, addresses still missing. Those that had one spec
    still have one, and equal ones are one: what is found out about it holds for all layers."""
    known: dict[tuple[int, tuple[bool, ...]], tuple[OpSpec, OpSpec]] = {}
    equal: dict[tuple[Content, tuple[bool, ...]], OpSpec] = {}
    specs = []
    for item in run:
        spec = with_wide_tensors(item, homes, CARD.span_bytes)
        is_argument = tuple([buffer in arguments for buffer in buffers_of(item.op)])
        key = (id(spec), is_argument)
        if key not in known:
            args = [
                replace(arg, allocation={"hbm" if outside else "pool": 0})
                for arg, outside in zip(spec.args, is_argument, strict=True)
            ]
            fresh = replace(spec, args=args)
            other = equal.setdefault((Content(fresh), is_argument), fresh)
            known[key] = spec, other if other == fresh else fresh
        specs.append(known[key][1])
    return specs


def _specs(
    nodes: Sequence[Node], arguments: dict[Buffer, int], lx: dict[Buffer, int], pool: Pool
) -> list[OpSpec | LoopSpec]:
    """All operations with the places of their tensors, in their loops."""
    return [
        LoopSpec(node.count, [*_specs(node.body, arguments, lx, pool)])
        if isinstance(node, Loop)
        else _placed(node, arguments, lx, pool)
        for node in nodes
    ]


def _placed(item: Item, arguments: dict[Buffer, int], lx: dict[Buffer, int], pool: Pool) -> OpSpec:
    """The operation with the places of its tensors."""
    args = []
    for arg, buffer, begin in zip(item.spec.args, buffers_of(item.op), item.begins, strict=True):
        if buffer in lx:
            args.append(replace(arg, arg_index=-1, allocation={"lx": lx[buffer]}))
        elif buffer in arguments:
            number = arguments[buffer]
            segment = number + 1 if pool.bytes else number
            at = (segment << 34) + begin
            args.append(replace(arg, arg_index=number, allocation={"hbm": at}))
        else:
            at = pool.addresses[buffer] + begin
            args.append(replace(arg, arg_index=-1, allocation={"pool": at}))
    return replace(item.spec, args=args)


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


def _names_of_constant(name: str, tensor: torch.Tensor) -> Named:
    """What the program calls the dimensions of a tensor that was computed while compiling."""
    for node in V.graph.graph.find_nodes(op="get_attr", target=name):
        names = hints.named_dims_of(node)
        if names:
            return named_dims(tensor.shape, tensor.stride(), names)
    return ()


def _make_buffer(name: str) -> Buffer:
    """A buffer for something of Inductor's graph."""
    if name in V.graph.constants:
        tensor = V.graph.constants[name]
        buffer = Buffer(name, tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)
        input_layouts.place_real(buffer, tensor)
        buffer.dim_names = _names_of_constant(name, tensor)
        return buffer
    node = V.graph.get_buffer(name)
    layout = node.get_layout() if not isinstance(node, ir.TensorBox) else node.data.get_layout()
    size = tuple(static_size(s) for s in layout.size)
    stride = tuple(static_size(s) for s in layout.stride)
    buffer = Buffer(name, size, stride, layout.dtype)
    if name in V.graph.graph_inputs:
        input_layouts.place_input(buffer)
    return buffer
