"""What a decomposition gives, for those who ask for nothing but shapes.

Dynamo runs each operation on fake tensors to see what comes out. An attention is a dozen operations
then, in every layer, and in every process, because that is before any cache is looked into. All of
it depends on the description of the inputs alone, and so it is worked out once for each.

Whoever records operations (AOTAutograd) or differentiates them gets the decomposition itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

_MANY = 1024
_Description = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device]


def worked_out_once(function: Callable[..., Any], version: Callable[[], Any]) -> Callable[..., Any]:
    """`function`, run once for equal inputs where only the description of its result is wanted.

    `version` tells when what was worked out is not valid any more: it is other then."""
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
        result = function(*args, **kwargs)
        if _is_new(result, args, kwargs):
            if len(known) >= _MANY:
                known.clear()
            known[key] = _describe(result)
        return result

    return run


def _key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the result depends on; None where more than its description is wanted."""
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
    """Whether a result is a tensor that shares no memory with what it was made of."""
    if type(result) is not FakeTensor or result.storage_offset() != 0 or result.requires_grad:
        return False
    tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)]
    return all(result.untyped_storage()._cdata != t.untyped_storage()._cdata for t in tensors)
