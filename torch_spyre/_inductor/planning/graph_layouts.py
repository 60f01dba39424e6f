"""Layout assignment of a whole graph, and which buffers are internal to a kernel.

In: a Planning with operations. Out: the same, every buffer with a layout, with the restickify
operations where users disagree, and `plan.internal`: buffers with a live range in one kernel.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch._inductor import ir
from torch._inductor.scheduler import BaseSchedulerNode, NopKernelSchedulerNode
from torch._inductor.virtualized import V

from torch_spyre._inductor.capture import input_layouts
from torch_spyre._inductor.layouts.restickify import Restickify
from torch_spyre._inductor.layouts.stick_layouts import default_layout
from torch_spyre._inductor.layouts.stickify import as_wanted, stickify
from torch_spyre._inductor.operations.operation import Buffer, Operation
from torch_spyre._inductor.planning.graph_buffers import target_of, targets_of, whole_of
from torch_spyre._inductor.planning.plan import GraphPlan, Planning


def assign_layouts(planning: Planning) -> None:
    """Layouts for the whole graph, copies where they do not suit."""
    plan = planning.plan
    outside = _used_outside(planning)
    for buffer in (*plan.buffers.values(), *planning.constants.values()):
        given = buffer.is_constant or not buffer.written or _comes_from_outside(buffer.name)
        if buffer.layout is None and given:
            buffer.layout = default_layout(buffer)
    outputs = {b for name, b in plan.buffers.items() if name in outside}
    starts, count = set(), 0
    for kernel in plan.kernels:
        starts.add(count)
        count += len(kernel.operations)
    _note_wanted(plan, outputs)
    operations = [as_wanted(op) for kernel in plan.kernels for op in kernel.operations]
    placed, restickifies = stickify(operations, outputs, starts)
    _deal_out(plan, placed, restickifies)
    written = [b for b in plan.buffers.values() if b.written]
    plan.internal = {b.name for b in written if b.name not in outside}
    for kernel in plan.kernels:  # pieces of an internal buffer are not there either
        for snode in (s for node in kernel.nodes for s in node.get_nodes()):
            assert isinstance(snode.node, ir.ComputedBuffer)
            if target_of(snode.node) in plan.internal:
                plan.internal.add(snode.node.get_name())


def _comes_from_outside(name: str) -> bool:
    """Whether a buffer is an input, or the result of a step of the host: it may be written to, but
    how it lies is not ours to choose."""
    return name in V.graph.graph_inputs or isinstance(V.graph.try_get_buffer(name), ir.ExternKernel)


def _note_wanted(plan: GraphPlan, outputs: set[Buffer]) -> None:
    """The layouts that gradients should have."""
    for position, output in enumerate(V.graph.graph_outputs):
        if not isinstance(output, (ir.NoneAsConstantBuffer, ir.ShapeAsConstantBuffer)):
            buffer = plan.buffers.get(output.get_name())
            if buffer is not None and buffer in outputs and buffer.layout is None:
                buffer.wanted = input_layouts.wanted_layout(position, buffer)


def _deal_out(plan: GraphPlan, placed: list[Operation], restickifies: list[Restickify]) -> None:
    """Operations back to their kernels: copies belong to the operation they were made for."""
    kernel_of = {node: k for k in plan.kernels for node in _names(k.nodes)}
    for kernel in plan.kernels:
        kernel.operations = []
    for op in placed:
        kernel_of[op.origin.node].operations.append(op)
    for entry in restickifies:
        kernel_of[entry.node].restickifies.append(entry)


def _used_outside(planning: Planning) -> set[str]:
    """Names of buffers that are read outside of one kernel, or returned."""
    outside = set(V.graph.get_output_names()) | set(V.graph.graph_inputs)
    outside |= {whole_of(n) for n in outside}  # a result may be a piece of a cat
    outside |= set(V.graph.constants)
    real = planning.scheduler.mutation_real_name
    homes: dict[str, set[int]] = {}
    for node in planning.scheduler.nodes:
        kernel = planning.plan.kernel_of.get(node.get_name())
        names = {d.name for d in node.read_writes.reads} | {
            b.get_name() for b in node.get_outputs()
        }
        names |= targets_of(node)  # a piece of a cat writes another buffer than its own
        names |= {whole_of(n) for n in names}  # and who reads it reads that other buffer
        names = {real.get(n, n) for n in names}
        if isinstance(node, NopKernelSchedulerNode):
            continue
        for name in names:
            homes.setdefault(name, set()).add(-1 if kernel is None else id(kernel))
    outside |= {n for n, users in homes.items() if len(users) > 1 or -1 in users}
    # What a buffer is part of, or lies in, has the same fate.
    for name in planning.plan.buffers:
        if real.get(name, name) in outside:
            outside.add(name)
    return {real.get(n, n) for n in outside}


def _names(nodes: Iterable[BaseSchedulerNode]) -> list[str]:
    return [s.node.get_name() for n in nodes for s in n.get_nodes() if s.node is not None]
