"""Provenance of a node of LoopLevelIR: ATen operation and source line of the user's program."""

from __future__ import annotations

import functools
import os
import re
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

import torch_spyre
from torch_spyre._inductor.hints import hints_of, named_dims_of, tiles_of
from torch_spyre._inductor.operations.operation import Origin

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)[^\n]*\n\s*(?P<code>[^\n]*)')
# Frames of PyTorch and of this package say nothing about the user's program.
_NOT_THE_USERS = tuple(
    os.path.dirname(os.path.abspath(str(m.__file__))) + os.sep for m in (torch, torch_spyre)
)


def origin_of(node: Any) -> Origin:
    """Name, ATen operation, source line and shape of an IR node."""
    name = node.get_name() if hasattr(node, "get_name") else ""
    fx = _maker(node)
    if fx is None:
        return Origin(name, "", "")
    value = fx.meta.get("val")
    shape = _shape(value) if isinstance(value, torch.Tensor) else ()
    return Origin(
        name, aten_name(fx), source_of(fx), shape,
        hints_of(fx), tiles_of(fx), named_dims_of(fx),
    )  # fmt: skip


def _shape(value: torch.Tensor) -> tuple[int, ...]:
    """The shape of a result; empty when it depends on the values of a tensor."""
    return () if free_unbacked_symbols(value) else tuple(int(s) for s in value.shape)


def _maker(node: Any) -> torch.fx.Node | None:
    """The node of the FX graph that asked for an IR node.

    Of several it is the last that is no view: what it is made from comes before, and Inductor takes
    a view of the whole for the node itself.
    """
    found = set(getattr(node, "origins", None) or ())
    if getattr(node, "origin_node", None) is not None:
        found.add(node.origin_node)
    makers = [fx for fx in found if not is_view(fx.target)] or found
    return max(makers, key=lambda fx: fx._sort_key, default=None)


@functools.cache
def is_view(target: Any) -> bool:
    """Whether an operation is a view of its input."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if target is torch.ops.aten._unsafe_view.default:
        return True
    returned = [r.alias_info for r in target._schema.returns]
    return bool(returned) and all(a is not None and not a.is_write for a in returned)


def source_of(fx: torch.fx.Node) -> str:
    """The line of the user's program that a node of the FX graph comes from."""
    return source_line(_stack_trace(fx))


def _stack_trace(fx: torch.fx.Node) -> str | None:
    """Of the node; what Inductor's own rewrites made has none, but its neighbours have."""
    if fx.meta.get("stack_trace"):
        return fx.meta["stack_trace"]
    for node in (*fx.users, *fx.all_input_nodes):
        if node.meta.get("stack_trace"):
            return node.meta["stack_trace"]
    return None


def aten_name(fx: torch.fx.Node) -> str:
    """The ATen operation that the program called."""
    original = fx.meta.get("original_aten")
    target = original if original is not None else fx.target
    return str(target)


@functools.lru_cache(maxsize=1 << 12)
def source_line(stack_trace: str | None) -> str:
    """The innermost line of the user's own code: `/home/me/model.py:12: y = x + 1`."""
    if not stack_trace:
        return ""
    frames = list(_FRAME.finditer(stack_trace))
    own = [f for f in frames if not f["file"].startswith(_NOT_THE_USERS)]
    if not frames:
        return ""
    frame = (own or frames)[-1]
    return f"{frame['file']}:{frame['line']}: {frame['code'].strip()}"
