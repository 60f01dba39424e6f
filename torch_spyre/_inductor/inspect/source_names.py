"""Debug info of a kernel: names of its tensors and source lines of its operations.

In: a planned Kernel. Out: the content of a bundle's `names.json` (docs/formats/superdsc.md), except
what only the caller knows. The card's sanitizer quotes it in messages, and maps bytes of the pool
and of the scratchpads to intermediates by it.

Example: `names_of(kernel)["operations"][0]["source"]` is "model.py:12: y = x + 1".
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from torch_spyre._inductor import config
from torch_spyre._inductor.layouts.to_op_spec import buffers_of
from torch_spyre._inductor.operations.operation import Operation
from torch_spyre._inductor.opspec.loops import Turn, turns_of
from torch_spyre.constants import BYTES_IN_STICK

if TYPE_CHECKING:
    from torch_spyre._inductor.planning.plan import Kernel

VERSION = 1


def names_of(kernel: Kernel) -> dict[str, Any]:
    """Arguments, operations with their lines, intermediates with their places."""
    return {
        "version": VERSION,
        "arguments": [b.name for b in (*kernel.arguments, *kernel.constants)],
        "operations": [{"source": op.origin.source} for op in operations_of(kernel)],
        "buffers": _buffers(kernel),
    }


def turns(kernel: Kernel) -> list[Turn]:
    """The operations of the kernel's bundle in order."""
    return turns_of(kernel.specs, config.unroll_loops or not config.symbolic_args)


def operations_of(kernel: Kernel) -> list[Operation]:
    """The same, as operations of the plan."""
    return [kernel.operations[turn.number] for turn in turns(kernel)]


def _buffers(kernel: Kernel) -> list[dict[str, Any]]:
    """Pieces of the pool and of LX: by name, from the operation that writes one first to the last
    that uses it. What lives inside of a loop is another one in every iteration."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    runs = kernel.runs
    for number, turn in enumerate(turns(kernel)):
        op, spec = kernel.operations[turn.number], runs[turn.number].spec
        for buffer, arg in zip(buffers_of(op), spec.args, strict=True):
            space = next(iter(arg.allocation))
            if space == "hbm":
                continue
            offset = kernel.pool[buffer] if space == "pool" else arg.allocation[space]
            inside = len(turn.counters) if arg.per_tile_fixed else arg.fixed_loops
            entry = found.setdefault(
                (buffer.name, space, offset, turn.counters[:inside]),
                {
                    "name": buffer.name, "space": space, "offset": offset,
                    "bytes": BYTES_IN_STICK * prod(arg.device_size[:-1]),
                    "first": number, "begins": not arg.is_input,
                },
            )  # fmt: skip
            entry["last"] = number
    return list(found.values())
