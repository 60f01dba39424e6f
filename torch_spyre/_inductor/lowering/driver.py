"""Lowers one node of the FX graph: to LoopLevelIR that the card can do, or to a fallback.

In: an ATen operation with spyre tensors among its arguments. Out: the result of Inductor's
lowering, realised in a buffer, since nothing may be inlined into its consumers: one OpFunc per
operation. The result is checked; if the card cannot compute it, the lowering is rolled back and the
operation becomes a fallback with its reason. The ATen operation is not known after this stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.graph import GraphLowering
from torch._inductor.lowering import fallback_handler, lowerings
from torch._inductor.virtualized import V

from torch_spyre._inductor import state
from torch_spyre._inductor.errors import NoOpFunc, Unsupported
from torch_spyre._inductor.lowering import fallback_rules, int_ranges, mixed_devices, registry
from torch_spyre._inductor.operations.origins import is_view
from torch_spyre.logs import get_logger

_log = get_logger("spyre.inductor.lowering")


def lower(
    graph: GraphLowering, stock: Callable[..., Any], target: Any, args: Any, kwargs: Any
) -> Any:
    """Lower an operation; `stock` is what Inductor would do."""
    first = len(graph.buffers)
    args, kwargs = mixed_devices.numbers_moved(target, args, kwargs)
    result = _lower(graph, stock, target, args, kwargs)
    int_ranges.note_host_results(target, args, kwargs, graph.buffers[first:])
    return _laid_out_by_the_host(graph, result)


def _lower(
    graph: GraphLowering, stock: Callable[..., Any], target: Any, args: Any, kwargs: Any
) -> Any:
    node = V.graph.current_node
    left = fallback_rules.never(target)
    if not left and not is_view(target):
        left = (
            fallback_rules.size_is_open(node)
            or fallback_rules.has_many_dimensions(node)
            or mixed_devices.meets_the_host(target, args)
        )
    if left:
        return _fall_back(graph, target, args, kwargs, left)
    if fallback_rules.is_copied_first(node):
        reason = "too many dimensions are given to what does not lie in order"
        clone = torch.ops.aten.clone.default
        in_order = {"memory_format": torch.contiguous_format}
        args = (_fall_back(graph, clone, args[:1], in_order, reason), *args[1:])
    mark = _Mark(graph, (args, kwargs))
    refused = state.of(graph, registry.Refusals).problems
    refused.clear()
    try:
        # An operation that Inductor always decomposes has no stock lowering to be gated.
        result = registry.lower(target, args, kwargs) if registry.is_native(target) else None
        if result is None and registry.is_native(target) and target not in lowerings:
            raise NoOpFunc(f"the card has no {target} for these types")
        if result is None:
            result = stock(target, args, kwargs)
        _realise(result)
        mark.check()
    except Unsupported as problem:
        refusal = problem
    except torch._inductor.exc.LoweringException:
        if not refused:
            raise
        refusal = refused[-1]
    else:
        return result
    mark.undo()
    return _fall_back(graph, target, args, kwargs, refusal.what)


def _fall_back(graph: GraphLowering, target: Any, args: Any, kwargs: Any, reason: str) -> Any:
    _log.debug("%s is left to the host: %s", target, reason)
    first = len(graph.operations)
    result = fallback_handler(target, add_to_fallback_set=False)(*args, **kwargs)
    fallback_rules.note_fallback(graph, first, reason)
    return result


def _laid_out_by_the_host(graph: GraphLowering, result: Any) -> Any:
    """A result of the host that the card may not be able to hold, in the strides that are expected:
    Inductor would have it copied by the card where it is a result of the graph."""
    if not isinstance(result, ir.TensorBox) or not int_ranges.is_too_large(result):
        return result
    if not isinstance(result.data, (ir.StorageBox, ir.ReinterpretView)):
        return result
    wanted = V.graph.current_node.meta["val"].stride()
    if len(wanted) != len(result.get_size()):  # a part of what the node is, and no result of it
        return result
    if any(isinstance(n, torch.SymInt) for n in wanted) or list(wanted) == result.get_stride():
        return result
    order = sorted(range(len(wanted)), key=lambda d: -wanted[d])
    permute = lowerings[torch.ops.aten.permute.default]
    clone = torch.ops.aten.clone.default
    arguments = (permute(result, order),), {"memory_format": torch.contiguous_format}
    first = len(graph.buffers)
    copy = _fall_back(graph, clone, *arguments, "the card cannot hold what is copied")
    int_ranges.note_host_results(clone, *arguments, graph.buffers[first:])
    return permute(copy, [order.index(d) for d in range(len(order))])


class _Mark:
    """A checkpoint of a graph, to check what a lowering added and to roll it back."""

    def __init__(self, graph: GraphLowering, arguments: Any) -> None:
        self.graph = graph
        self.operations = len(graph.operations)
        self.buffers = len(graph.buffers)
        self.stored = [(box, box.data) for box in _storages(arguments)]

    def check(self) -> None:
        """Raise Unsupported if something was added that the card cannot do."""
        for operation in self.graph.operations[self.operations :]:
            fallback_rules.check(operation)

    def undo(self) -> None:
        """Roll back to the checkpoint."""
        graph = self.graph
        for operation in graph.operations[self.operations :]:
            graph.name_to_op.pop(operation.get_operation_name(), None)
        for buffer in graph.buffers[self.buffers :]:
            graph.name_to_buffer.pop(buffer.get_name(), None)
        del graph.operations[self.operations :]
        del graph.buffers[self.buffers :]
        for box, data in self.stored:  # a number that the lowering has made a buffer of
            box.data = data


def _storages(arguments: Any) -> Iterator[ir.StorageBox]:
    for leaf in _boxes(arguments):
        data = leaf.data
        while isinstance(data, ir.BaseView):
            data = data.data
        if isinstance(data, ir.StorageBox):
            yield data


def _boxes(value: Any) -> Iterator[ir.TensorBox]:
    if isinstance(value, ir.TensorBox):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _boxes(part)


def _realise(result: Any) -> None:
    for leaf in _boxes(result):
        number = _number(leaf)
        if number is None:
            leaf.realize()
        else:
            fallback_rules.check_number(number)


def _number(box: ir.TensorBox) -> ir.Pointwise | None:
    """A tensor of one value that no one has stored yet: its users take it as a constant."""
    data = box.data
    while isinstance(data, (ir.BaseView, ir.StorageBox)):
        data = data.data
    # Inductor asks for the same when it notes the users of a buffer; it is found once.
    if isinstance(data, ir.Pointwise) and not data.inner_fn_opcount().read_buffers:
        return data
    return None
