"""What the tensors of a kernel are called, and where its operations come from.

In: a planned Kernel. Out: the content of a bundle's `names.json` (docs/formats/superdsc.md), but
for what only the caller knows. The card's sanitizer puts it into its messages, and takes from it
which bytes of the pool and of the scratchpads belong to which intermediate.

Example: `names_of(kernel)["operations"][0]["source"]` is "model.py:12: y = x + 1".
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from torch_spyre._inductor.specs import buffers_of
from torch_spyre.constants import BYTES_IN_STICK

if TYPE_CHECKING:
    from torch_spyre._inductor.plan import Kernel

VERSION = 1


def names_of(kernel: Kernel) -> dict[str, Any]:
    """Arguments, operations with their lines, intermediates with their places."""
    return {
        "version": VERSION,
        "arguments": [b.name for b in (*kernel.arguments, *kernel.constants)],
        "operations": [{"source": op.origin.source} for op in kernel.operations],
        "buffers": _buffers(kernel),
    }


def _buffers(kernel: Kernel) -> list[dict[str, Any]]:
    """Pieces of the pool and of LX: by name, from the operation that writes one first to the last
    that uses it."""
    found: dict[tuple[str, str, int], dict[str, Any]] = {}
    for number, (op, spec) in enumerate(zip(kernel.operations, kernel.specs, strict=True)):
        for buffer, arg in zip(buffers_of(op), spec.args, strict=True):
            for space in ("pool", "lx"):
                if space not in arg.allocation:
                    continue
                offset = arg.allocation[space]
                entry = found.setdefault(
                    (buffer.name, space, offset),
                    {
                        "name": buffer.name, "space": space, "offset": offset,
                        "bytes": BYTES_IN_STICK * prod(arg.device_size[:-1]),
                        "first": number, "begins": not arg.is_input,
                    },
                )  # fmt: skip
                entry["last"] = number
    return list(found.values())
