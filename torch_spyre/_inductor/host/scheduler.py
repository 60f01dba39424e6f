"""Inductor's scheduling for `spyre`: no loop fusion; consecutive nodes become one kernel.

The scheduler hands over node by node; the graph is planned by then (`pipeline.py`). A kernel is
written when its last node has come.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.scheduler import BaseSchedulerNode, BaseScheduling, SchedulerNode
from torch._inductor.utils import get_fused_kernel_name, sympy_product
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet

from torch_spyre._inductor import config
from torch_spyre._inductor.host import async_compile
from torch_spyre._inductor.inspect import cost_report, debug_dir
from torch_spyre._inductor.pipeline import plan_of
from torch_spyre._inductor.planning.plan import GraphPlan, Kernel


class LoopsOnDemand(SchedulerNode):
    """A node of the scheduler whose loops are made when somebody looks at them.

    Inductor traces the body of each node, merges its loops and puts them in order, to find out
    which ones it can fuse. Here nothing is fused, and the plan has its own trace: all that is
    needed is which buffers a node reads and writes.
    """

    def _compute_attrs(
        self,
        extra_indexing_constraints: Any = None,
        recompute_sizes_body_func: Any = None,
    ) -> None:
        node = self.node
        assert isinstance(node, ir.ComputedBuffer), node
        self._wanted = (extra_indexing_constraints, recompute_sizes_body_func)
        self._made: tuple[Any, Any] | None = None
        sizes = (tuple(node.get_pointwise_size()), tuple(node.get_reduction_size()))
        self.group = (node.get_device_or_error(), sizes)  # for comparisons, which nobody makes
        self.set_read_writes(node.get_read_writes())

    def _loops(self) -> tuple[Any, Any]:
        if self._made is None:
            assert isinstance(self.node, ir.ComputedBuffer)
            self._made = self.node.simplify_and_reorder(*self._wanted)
        return self._made

    @property
    def _sizes(self) -> Any:
        return self._loops()[0]

    @_sizes.setter
    def _sizes(self, sizes: Any) -> None:
        self._made = (sizes, self._loops()[1])

    @property
    def _body(self) -> Any:
        return self._loops()[1]

    @_body.setter
    def _body(self, body: Any) -> None:
        self._made = (self._loops()[0], body)

    def is_reduction(self) -> bool:
        assert isinstance(self.node, ir.ComputedBuffer)
        return bool(self.node.get_reduction_type())

    def has_side_effects(self) -> bool:
        return False  # assertions on the device are steps of the host


class SpyreScheduling(BaseScheduling):
    """Turns scheduler nodes into calls of SuperDSC kernels."""

    def group_fn(self, sizes: Any) -> Any:
        return tuple(V.graph.sizevars.simplify(sympy_product(s)) for s in sizes)

    def get_backend_features(self, device: torch.device) -> OrderedSet[Any]:
        return OrderedSet()

    def can_fuse_vertical(self, node1: BaseSchedulerNode, node2: BaseSchedulerNode) -> bool:
        return False

    def can_fuse_horizontal(self, node1: BaseSchedulerNode, node2: BaseSchedulerNode) -> bool:
        return False

    def codegen_node(self, node: Any) -> None:
        """Called for each node in order."""
        assert self.scheduler is not None
        plan = plan_of(V.graph)
        for snode in node.get_nodes():
            snode.mark_run()
        kernel = plan.kernel_of[node.get_name()]
        if kernel.nodes[-1] is node:
            self._write(plan, kernel)
            self.scheduler.free_buffers()

    def _write(self, plan: GraphPlan, kernel: Kernel) -> None:
        wrapper = V.graph.wrapper_code
        if not kernel.operations:
            return
        text = kernel.text()
        source = (text, _signature(plan, kernel))
        name = wrapper.src_to_kernel.get(source)
        if name is None:
            fused = get_fused_kernel_name(_naming(kernel.nodes), "original_aten")
            name = f"sdsc_{fused}_{wrapper.next_kernel_suffix()}"
            wrapper.src_to_kernel[source] = name
            wrapper.define_spyre_kernel(name, text, kernel)
        comment = f"{len(kernel.operations)} operations, {kernel.pool_bytes} bytes of pool"
        wrapper.call_spyre_kernel(name, kernel, plan.pool_bytes, comment)
        plan.names[id(kernel)] = name
        if config.dump_cost:
            cost_report.dump(kernel, name)
        bundle = async_compile.bundle_directory(name, text, kernel.pool_bytes > 0)
        debug_dir.record_kernel(name, kernel, text, str(bundle))

    def codegen_sync(self) -> None:
        V.graph.wrapper_code.writeline("torch.spyre.synchronize()")

    def flush(self) -> None:
        return None

    def ready_to_flush(self) -> bool:
        return False


def _naming(nodes: list[BaseSchedulerNode]) -> list[BaseSchedulerNode]:
    """Nodes that have all ATen operations of a kernel, which its name is made of. Inductor puts
    origins together node by node, which takes the square of their number."""
    known: set[Any] = set()
    naming = []
    for node in nodes:
        origins = [o for s in node.get_nodes() if s.node is not None for o in s.node.get_origins()]
        found = {origin.meta.get("original_aten") for origin in origins}
        if not found <= known:
            known |= found
            naming.append(node)
    return naming


def _signature(plan: GraphPlan, kernel: Kernel) -> str:
    specs = [(b.layout, b.size, b.stride, b.placed, b.written) for b in kernel.arguments]
    constants = [(b.value, str(b.dtype)) for b in kernel.constants]
    return repr((specs, constants, kernel.pool_bytes))
