"""Reorders scheduler nodes, so that kernels are few and an optimizer updates weight by weight.

In: scheduler nodes in order. Out: the same nodes in another one. A transfer of an input is a step
of the host and cuts what is around it into two kernels; in front it cuts nothing. The static cache
of a decoder, for instance, brings its counter with the first call. And an optimizer updates one
weight after the other, not one operation after the other for all weights.
"""

from __future__ import annotations

from torch._inductor import ir
from torch._inductor.scheduler import BaseSchedulerNode
from torch._inductor.virtualized import V

from torch_spyre._inductor.fx.passes import optimizer_float32
from torch_spyre.on_card import is_spyre


def transfers_first(nodes: list[BaseSchedulerNode]) -> list[BaseSchedulerNode]:
    """Hoist transfers that depend on inputs alone; a stable sort otherwise."""
    return sorted(nodes, key=lambda node: not _is_transfer_of_input(node))


def _is_transfer_of_input(node: BaseSchedulerNode) -> bool:
    inputs = V.graph.graph_inputs
    return isinstance(node.node, ir.DeviceCopy) and all(
        dependency.name in inputs for dependency in node.unmet_dependencies
    )


def one_by_one(nodes: list[BaseSchedulerNode]) -> list[BaseSchedulerNode]:
    """Update one weight after the other, not one operation after the other for all weights.

    What a weight needs is then together, and becomes one step of the card's program."""
    if optimizer_float32.MARK not in V.graph.module.meta:
        return nodes
    on_card = {n.get_name() for n in nodes if is_spyre(n.get_device())}
    before = [n for n in nodes if not is_spyre(n.get_device()) and on_card.isdisjoint(n.ancestors)]
    after = [
        n for n in nodes if not is_spyre(n.get_device()) and not on_card.isdisjoint(n.ancestors)
    ]
    done = {n.get_name() for n in before}
    waiting = [n for n in nodes if is_spyre(n.get_device())]
    late = {n.get_name() for n in after}
    if any(not late.isdisjoint(n.ancestors) for n in waiting):
        return nodes
    needed = {name for n in waiting for name in n.ancestors}
    ordered = before
    while waiting:
        last = next(n for n in waiting if n.get_name() not in needed)
        names = {*last.ancestors, last.get_name()}
        done |= names
        # Other results of what was computed for it.
        chosen = [
            n
            for n in waiting
            if n.get_name() in names or (n.get_name() not in needed and n.ancestors <= done)
        ]
        done |= {n.get_name() for n in chosen}
        ordered += chosen
        waiting = [n for n in waiting if n.get_name() not in done]
    return ordered + after
