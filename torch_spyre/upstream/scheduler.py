"""Inductor's scheduler: a device cannot say that it never fuses.

The scheduler asks the device last, when it has made and compared the loops of two nodes and all
that each depends on, for an answer that is always no.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._inductor import ir
from torch._inductor.scheduler import Scheduler, SchedulerNode

from torch_spyre.on_card import is_spyre

_Function = Callable[..., Any]


def never_fused(stock_unfusable: _Function, stock_create: _Function) -> tuple[_Function, _Function]:
    """Loops that are never fused need not be compared, nor made (LoopsOnDemand)."""

    def unfusable_node(self: Scheduler, node: Any) -> bool:
        return is_spyre(node.get_device()) or stock_unfusable(self, node)

    def create_scheduler_node(self: Scheduler, node: Any) -> Any:
        if isinstance(node, ir.ComputedBuffer) and is_spyre(node.get_device()):
            sizes = (*node.get_size(), *node.get_reduction_size())
            return stock_create(self, node) if 0 in sizes else LoopsOnDemand(self, node)
        return stock_create(self, node)

    return unfusable_node, create_scheduler_node


class LoopsOnDemand(SchedulerNode):
    """A node of the scheduler whose loops are made on demand.

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
        self.group = (node.get_device_or_error(), sizes)  # for comparisons, which are never made
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
