"""Kernel partitioning: maximal runs of nodes between two steps of the host.

In: the scheduler's nodes in their final order. Out: a Planning whose kernels have the operations of
their nodes, one OpFunc each.
"""

from __future__ import annotations

import math

import sympy
from torch._inductor import ir
from torch._inductor.scheduler import (
    BaseSchedulerNode,
    NopKernelSchedulerNode,
    Scheduler,
    SchedulerNode,
)
from torch._inductor.virtualized import V

from torch_spyre._inductor import config
from torch_spyre._inductor.lowering import fallback_rules
from torch_spyre._inductor.operations.error_location import located
from torch_spyre._inductor.operations.operation import Access, Buffer, Operation
from torch_spyre._inductor.operations.origins import origin_of
from torch_spyre._inductor.operations.split import Splitter
from torch_spyre._inductor.operations.trace import static_size, trace
from torch_spyre._inductor.planning.graph_buffers import is_loops, target_of
from torch_spyre._inductor.planning.plan import GraphPlan, Kernel, Planning
from torch_spyre.on_card import is_spyre


def begin(scheduler: Scheduler) -> Planning:
    """An empty plan."""
    plan = GraphPlan([], {}, {}, set(), real_names=scheduler.mutation_real_name)
    return Planning(scheduler, plan)


def split(planning: Planning) -> None:
    """Operations of every node, cut into kernels where the host does something."""
    plan, scheduler = planning.plan, planning.scheduler
    current: Kernel | None = None
    for node in scheduler.nodes:
        if isinstance(node, NopKernelSchedulerNode):
            continue
        if not is_spyre(node.get_device()) or not is_loops(node):
            current = None
            if node.is_extern():
                _note_fallback(plan, node)
            continue
        stream = scheduler.node_to_stream.get(node, 0)
        place = (node.get_device(), stream)
        if current is None or not config.enable_fusion or place != current.place:
            current = Kernel(stream=stream)
            plan.kernels.append(current)
        current.nodes.append(node)
        plan.kernel_of[node.get_name()] = current
        for snode in node.get_nodes():
            assert isinstance(snode, SchedulerNode), snode
            current.operations += _operations(snode, planning)


def _note_fallback(plan: GraphPlan, node: BaseSchedulerNode) -> None:
    step = fallback_rules.host_step(V.graph, node.node, len(plan.kernels))
    if step is not None:
        plan.fallbacks.append(step)


@located
def _operations(snode: SchedulerNode, planning: Planning) -> list[Operation]:
    node = snode.node
    assert isinstance(node, ir.ComputedBuffer), node
    body = trace(node)
    variables = [v if n != 1 else sympy.S.Zero
                 for v, n in zip(body.variables, body.ranges, strict=True)]  # fmt: skip
    if math.prod(body.ranges) == 0:
        return []

    def locate(name: str) -> tuple[Buffer, int]:
        return _locate(name, planning)

    target, offset = locate(target_of(node))
    target.written = True
    layout = node.layout
    if isinstance(layout, ir.NonOwningLayout):  # does not know its own offset
        layout = layout.view.get_layout()
    place = variables if body.place is None else body.place
    index = sympy.expand(layout.make_indexer()(place)) + offset
    splitter = Splitter(locate, planning.constants, origin_of(node), node.get_name())
    return splitter.split(body, Access(target, index), {})


def _locate(name: str, planning: Planning) -> tuple[Buffer, int]:
    """The buffer in which a name is read, and where: a piece of a cat lies in the whole."""
    node = V.graph.try_get_buffer(name)
    layout = getattr(node, "layout", None)
    if isinstance(layout, ir.NonOwningLayout):
        view = layout.view.get_layout()
        buffer, offset = _locate(layout.view.get_name(), planning)
        return buffer, offset + static_size(view.offset)
    return planning.find(name), 0
