"""Direct mapping: an ATen operation with the name of a method of SpyreOpFuncs.

Where Inductor would decompose such an operation, or has no lowering for it, the method wins: the
operation is not decomposed while the graph is traced and is lowered to `ops.<name>`. The methods
are read for every graph, so that a new one takes effect at once.

Example: with `SpyreOpFuncs.mish` defined, `aten.mish` is no longer x * tanh(softplus(x)).
"""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import decomposition as inductor_decompositions
from torch._inductor import ir
from torch._inductor import lowering as inductor_lowerings
from torch._inductor.ops_handler import OpsHandler
from torch._inductor.virtualized import V

from torch_spyre._inductor.capture.fingerprints import is_foreign
from torch_spyre._inductor.fx.decompositions import keep_whole, owner_of_decomposition, release
from torch_spyre._inductor.lowering.registry import (
    is_native,
    lowerings,
    pointwise,
    register_spyre_lowering,
    restore_lowering,
    spyre_ops,
)
from torch_spyre._inductor.operations.opfunc_map import SpyreOpFuncs

_mapped: dict[str, torch._ops.OpOverload | None] = {}
"""By the name of the method: the operation that was mapped, if there is one."""
_replaced: dict[torch._ops.OpOverload, Any] = {}
"""For operations whose lowering was made here: the one that was there before."""


def register() -> None:
    """Map methods that were added since the last time; unmap those that are gone."""
    for op, lowering in list(lowerings().items()):
        # Who writes a lowering wants to see the operation.
        if is_foreign(lowering):
            keep_whole(op, over_package=True)
    names = {name for name in dir(SpyreOpFuncs) if not name.startswith("_")}
    for name in sorted(_mapped.keys() - names):
        _unmap(_mapped.pop(name))
    for name in sorted(names - _mapped.keys()):
        _mapped[name] = _map(name)


def _map(name: str) -> torch._ops.OpOverload | None:
    op = _operation(name)
    if op is None:
        return None
    foreign = is_foreign(getattr(SpyreOpFuncs, name))
    if not foreign and owner_of_decomposition(op) is not None:
        return None
    if is_native(op) and not foreign:
        keep_whole(op)
    elif not _emits(op, name):
        keep_whole(op, over_package=foreign)
        _replaced[op] = lowerings().get(op)
        register_spyre_lowering(op)(_lowering(op, name))
    elif foreign or op in inductor_decompositions.decompositions:
        keep_whole(op, over_package=foreign)
    return op


def _unmap(op: torch._ops.OpOverload | None) -> None:
    if op is not None:
        release(op)
        if op in _replaced:
            restore_lowering(op, _replaced.pop(op))


def _operation(name: str) -> torch._ops.OpOverload | None:
    """The pointwise ATen operation of that name: its overload `default`, or else `Tensor`."""
    packet = getattr(torch.ops.aten, name, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return None
    for overload in ("default", "Tensor"):
        if overload in packet.overloads():
            op = getattr(packet, overload)
            return op if torch.Tag.pointwise in op.tags else None
    return None


def _emits(op: torch._ops.OpOverload, name: str) -> bool:
    """Whether the lowering that there is already makes `ops.<name>` of the operation."""
    if is_native(op):
        return lowerings()[op].__name__ == name
    return op in inductor_lowerings.lowerings and hasattr(OpsHandler, name)


def _lowering(op: torch._ops.OpOverload, name: str) -> Any:
    defaults = [a.default_value for a in op._schema.arguments if not a.kwarg_only]

    def lower(*args: Any, **kwargs: Any) -> Any:
        args = (*args, *defaults[len(args) :])
        tensors = [a for a in args if isinstance(a, ir.TensorBox)]

        def body(*values: Any) -> Any:
            remaining = iter(values)
            return getattr(spyre_ops, name)(
                *(next(remaining) if isinstance(a, ir.TensorBox) else a for a in args), **kwargs
            )

        return pointwise(body, *tensors, dtype=_result_type(op))

    lower.__name__ = name
    return lower


def _result_type(op: torch._ops.OpOverload) -> torch.dtype | None:
    """The type that tracing gave the result; None outside of a node for the operation."""
    node = V.graph.current_node
    return node.meta["val"].dtype if node is not None and node.target is op else None
