"""Memoises the output metadata of decompositions (meta kernels for attention and linear layers).

Dynamo runs each operation on fake tensors to propagate shapes. An attention decomposes into a dozen
operations, in every layer and every process, since this precedes any cache lookup. The result
depends on the metadata of the inputs alone, so it is memoised by that.

For the two slowest, a linear layer and an attention, shape rules give the common cases directly;
other cases, and errors, run the decomposition:

    linear   (8, 128, 384), (1536, 384), (1536)   is   (8, 128, 1536), contiguous

Under AOTAutograd tracing or autograd the decomposition itself runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from torch_spyre.dtypes import FLOATS

_MANY = 1024
_Description = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device]


def memoise_metadata(
    function: Callable[..., Any],
    version: Callable[[], Any],
    rule: Callable[..., torch.Size | None] | None = None,
) -> Callable[..., Any]:
    """`function`, memoised by the metadata of its inputs under fake tensors.

    A new `version` invalidates the memo. `rule` gives the shape of a contiguous result of the
    dtype of the first argument; None: run the function."""
    known: dict[Any, _Description] = {}

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        key = _key(args, kwargs)
        if key is None:
            return function(*args, **kwargs)
        key = (version(), key)
        found = known.get(key)
        if found is not None:
            size, stride, dtype, device = found
            return torch.empty_strided(size, stride, dtype=dtype, device=device)
        shape = rule(*args, **kwargs) if rule is not None else None
        if shape is not None:
            return torch.empty(shape, dtype=args[0].dtype, device=args[0].device)
        result = function(*args, **kwargs)
        if _is_new(result, args, kwargs):
            if len(known) >= _MANY:
                known.clear()
            known[key] = _describe(result)
        return result

    return run


def _key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The memo key; None where more than metadata is needed."""
    modes = _get_current_dispatch_mode_stack()
    if len(modes) != 1 or type(modes[0]) is not FakeTensorMode:
        return None
    parts: list[Any] = [modes[0].shape_env is None]
    for name, value in (*enumerate(args), *sorted(kwargs.items())):
        if isinstance(value, torch.Tensor):
            if type(value) is not FakeTensor or (value.requires_grad and torch.is_grad_enabled()):
                return None
            numbers = (*value.shape, *value.stride(), value.storage_offset())
            if value.layout != torch.strided or any(type(n) is not int for n in numbers):
                return None
            value = _describe(value)
        elif isinstance(value, (list, tuple)):
            value = tuple(value)
            if any(type(n) is not int for n in value):
                return None
        elif not isinstance(value, (int, float, bool, str, torch.dtype, type(None))):
            return None
        parts.append((name, type(value), value))
    return tuple(parts)


def _describe(tensor: torch.Tensor) -> _Description:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _is_new(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a result is a tensor that aliases none of its inputs."""
    if type(result) is not FakeTensor or result.storage_offset() != 0 or result.requires_grad:
        return False
    tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)]
    return all(result.untyped_storage()._cdata != t.untyped_storage()._cdata for t in tensors)


# ---- Rules --------------------------------------------------------------------------------------


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Size | None:
    """The shape of a linear layer."""
    tensors = (x, weight) if bias is None else (x, weight, bias)
    if x.dim() < 2 or weight.dim() != 2 or x.shape[-1] != weight.shape[1] or not _alike(tensors):
        return None
    if bias is not None and bias.shape != weight.shape[:1]:
        return None
    return torch.Size((*x.shape[:-1], weight.shape[0]))


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    *_: Any,
    enable_gqa: bool = False,
    **__: Any,
) -> torch.Size | None:
    """The shape of an attention of heads."""
    if not query.dim() == key.dim() == value.dim() == 4 or not _alike((query, key, value)):
        return None
    batches, heads, queries, depth = query.shape
    keys = key.shape[-2]
    groups = key.shape[1] if enable_gqa else heads
    if groups == 0 or heads % groups or value.shape[:3] != (batches, groups, keys):
        return None
    if key.shape != (batches, groups, keys, depth):
        return None
    if attn_mask is not None and (
        attn_mask.dtype not in (torch.bool, query.dtype)
        or attn_mask.device != query.device
        or not _widens(attn_mask.shape, (batches, heads, queries, keys))
    ):
        return None
    return torch.Size((batches, heads, queries, value.shape[-1]))


def _alike(tensors: tuple[torch.Tensor, ...]) -> bool:
    """Whether tensors have one type of the card's and one device, and numbers."""
    first = tensors[0]
    return first.dtype in FLOATS and all(
        t.dtype == first.dtype and t.device == first.device and t.numel() > 0 for t in tensors
    )


def _widens(shape: torch.Size, wanted: tuple[int, ...]) -> bool:
    if len(shape) > len(wanted):
        return False
    return all(n in (1, w) for n, w in zip(reversed(shape), reversed(wanted)))


RULES: dict[torch._ops.OpOverload, Callable[..., torch.Size | None]] = {
    torch.ops.aten.linear.default: linear,
    torch.ops.aten.scaled_dot_product_attention.default: attention,
}
