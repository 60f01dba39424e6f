"""Transfers of graph inputs to the card come before everything else.

In: scheduler nodes in order. Out: the same nodes, with copies of inputs from one device to another
in front. A transfer is a step of the host and cuts what is around it into two kernels; in front it
cuts nothing. The static cache of a decoder, for instance, brings its counter with the first call.
"""

from __future__ import annotations

from torch._inductor import ir
from torch._inductor.scheduler import BaseSchedulerNode
from torch._inductor.virtualized import V


def transfers_first(nodes: list[BaseSchedulerNode]) -> list[BaseSchedulerNode]:
    """Move the transfers that need nothing but inputs to the front; all else keeps its order."""
    return sorted(nodes, key=lambda node: not _is_transfer_of_input(node))


def _is_transfer_of_input(node: BaseSchedulerNode) -> bool:
    inputs = V.graph.graph_inputs
    return isinstance(node.node, ir.DeviceCopy) and all(
        dependency.name in inputs for dependency in node.unmet_dependencies
    )
