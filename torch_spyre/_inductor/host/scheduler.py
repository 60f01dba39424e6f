"""Inductor's scheduling for `spyre`: no loop fusion; consecutive nodes become one kernel.

The scheduler hands over node by node; the graph is planned by then (`pipeline.py`). A kernel is
written when its last node has come.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor.scheduler import BaseSchedulerNode, BaseScheduling
from torch._inductor.utils import get_fused_kernel_name, sympy_product
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet

from torch_spyre._inductor import config
from torch_spyre._inductor.host import async_compile
from torch_spyre._inductor.inspect import cost_report, debug_dir
from torch_spyre._inductor.pipeline import plan_of
from torch_spyre._inductor.planning.plan import GraphPlan, Kernel


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
