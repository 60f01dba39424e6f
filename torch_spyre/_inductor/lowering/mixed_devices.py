"""Operations with tensors of the CPU and of the card: promotes CPU scalars, or falls back.

In: the arguments of an ATen operation, while it is lowered. Out: the arguments with 0-D CPU tensors
copied to the card (`numbers_moved`), or the reason for a fallback (`meets_the_host`).

    args, kwargs = numbers_moved(target, args, kwargs)
    reason = meets_the_host(target, args)  # "" when the card can do it
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor import lowering as inductor
from torch._inductor.virtualized import V
from torch.utils import _pytree as pytree

from torch_spyre.constants import DEVICE_NAME
from torch_spyre.dtypes import SIXTEEN_BITS
from torch_spyre.on_card import is_spyre

aten = torch.ops.aten

_COPIES = (torch.ops.prims.device_put.default, aten._to_copy.default, aten.copy.default,
           aten.copy_.default, aten._foreach_copy.default,
           aten._foreach_copy_.default)  # fmt: skip
_CARD = torch.device(DEVICE_NAME)


def numbers_moved(target: torch._ops.OpOverload, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Arguments of a lowering; a tensor of the CPU that is one number and comes first is copied.

    PyTorch lets such tensors meet those of any device. Inductor computes where the first argument
    is, and code of the CPU could not read the others. In lists they meet one by one:
    `_foreach_mul([n], [x])`.
    """
    number = next((i for i, a in enumerate(args) if _holds_tensors(a)), None)
    if number is None or target in _COPIES:  # what is copied to stays where it is
        return args, kwargs
    first = args[number]
    if isinstance(first, ir.TensorBox) and first.get_size():  # no number, as most
        return args, kwargs
    others = (*args[number + 1 :], *kwargs.values())
    alone = _spyre_device(others)
    if isinstance(first, (list, tuple)):
        lists = itertools.zip_longest(*(a for a in others if isinstance(a, (list, tuple))))
        devices = [alone or _spyre_device(those) for _, those in zip(first, lists)]
        devices += [alone] * (len(first) - len(devices))
        first = type(first)(map(_moved, first, devices))
    else:
        first = _moved(first, alone)
    return (*args[:number], first, *args[number + 1 :]), kwargs


def _holds_tensors(arg: Any) -> bool:
    values = arg if isinstance(arg, (list, tuple)) else [arg]
    return any(isinstance(value, ir.TensorBox) for value in values)


def _moved(arg: Any, device: torch.device | None) -> Any:
    if device is None or not isinstance(arg, ir.TensorBox) or arg.get_size():
        return arg
    if (arg.get_device() or device).type != "cpu" or arg.get_dtype().is_complex:
        return arg
    if _computes_floats() and arg.get_dtype() not in SIXTEEN_BITS:
        arg = inductor.to_dtype(arg, torch.float32)  # what the card computes with
    return inductor.lowerings[torch.ops.prims.device_put.default](arg, device)


def meets_the_host(target: torch._ops.OpOverload, args: Any) -> str:
    """Why an operation is the host's: it reads a tensor of the CPU, and is no copy to the card."""
    if target in _COPIES or not any(isinstance(a, ir.TensorBox) for a in args):
        return ""
    leaves = args
    if any(isinstance(a, (list, tuple, dict)) for a in args):
        leaves = pytree.tree_leaves(args, is_leaf=lambda a: isinstance(a, ir.TensorBox))
    tensors = [a for a in leaves if isinstance(a, ir.TensorBox)]
    large = [t for t in tensors if t.get_size()]
    if _spyre_device(tensors) and any((t.get_device() or _CARD).type == "cpu" for t in large):
        return "a tensor of the CPU is read together with one of the card"
    return ""


def _spyre_device(values: Any) -> torch.device | None:
    """Where a tensor among the values is, if it is on a card."""
    for value in values:
        device = value.get_device() if isinstance(value, ir.TensorBox) else None
        if is_spyre(device):
            return device
    return None


def _computes_floats() -> bool:
    """Whether all results of the node that is being lowered are floating point."""
    values = pytree.tree_leaves(V.graph.current_node.meta.get("val"))
    return all(isinstance(v, torch.Tensor) and v.is_floating_point() for v in values)
