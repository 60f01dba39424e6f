"""PyTorch's own functions on tensors and modules, for tensors that lie on a card."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._device
from torch import nn

from torch_spyre import _C, logs
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.device.devices import device as use_card
from torch_spyre.on_card import is_on_card, is_spyre

_Function = Callable[..., Any]


def device_tensor_layout(_: None) -> _Function:
    """Tensor.device_tensor_layout()."""
    return _device_tensor_layout


def _device_tensor_layout(self: torch.Tensor) -> _C.SpyreTensorLayout | None:
    """How the tensor lies on the card; None on other devices and for carried tensors."""
    from torch._subclasses.fake_tensor import FakeTensor

    if not is_on_card(self) or isinstance(self, FakeTensor):
        return None
    return _C.get_spyre_tensor_layout(self)


def to_with_layout(
    tensor: torch.Tensor,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    layout: _C.SpyreTensorLayout,
) -> torch.Tensor:
    """`tensor.to(*args, **kwargs)` into a given layout."""
    copy = kwargs.get("copy", False)
    others = {k: v for k, v in kwargs.items() if k != "copy"}
    target, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **others)
    if target is None:
        target = tensor.device if is_on_card(tensor) else torch.device(DEVICE_NAME)
    if not is_spyre(target):
        raise ValueError(f"device_layout needs a {DEVICE_NAME} device, got '{target}'")
    dtype = dtype or tensor.dtype
    if is_on_card(tensor) and not copy and dtype == tensor.dtype:
        same_card = target.index is None or target.index == tensor.device.index
        if same_card and _device_tensor_layout(tensor) == layout:
            return tensor
    source = tensor if _owns_each_element(tensor) else tensor.contiguous()
    with use_card(target):
        result = _C.spyre_empty_with_layout(
            list(source.size()), list(source.stride()), dtype, layout
        )
    return result.copy_(source, non_blocking=non_blocking)


def _owns_each_element(tensor: torch.Tensor) -> bool:
    dims = zip(tensor.size(), tensor.stride(), strict=True)
    return all(stride > 0 or size <= 1 for size, stride in dims)


def tensor_to(stock: _Function, allowed: list[_Function]) -> tuple[_Function, list[_Function]]:
    """`to(device_layout=...)`. Parameters of lazy modules know by identity what may be done with
    them."""

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if "device_layout" not in kwargs:
            return stock(self, *args, **kwargs)
        layout = kwargs.pop("device_layout")
        if layout is None:
            return stock(self, *args, **kwargs)
        return to_with_layout(self, args, kwargs, layout)

    return to, [*allowed, to]


def empty(stock: _Function, constructors: _Function) -> tuple[_Function, _Function]:
    """`torch.empty(device_layout=...)`. `with torch.device(...)` recognises factory functions by
    identity and sees the one below ours; so does torch.jit.script."""

    def empty(*size: Any, **kwargs: Any) -> torch.Tensor:
        if "device_layout" not in kwargs:
            return stock(*size, **kwargs)
        layout = kwargs.pop("device_layout")
        if layout is None:
            return stock(*size, **kwargs)
        shape = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
        device = torch.device(kwargs.pop("device", None) or DEVICE_NAME)
        if not is_spyre(device):
            raise ValueError(f"device_layout needs a {DEVICE_NAME} device, got '{device}'")
        requires_grad = kwargs.pop("requires_grad", False)
        names = ("dtype", "pin_memory", "memory_format")
        unknown = set(kwargs) - set(names)
        if unknown:
            raise TypeError(
                f"torch.empty with device_layout does not take {', '.join(sorted(unknown))}"
            )
        result = _C.empty_with_layout(list(shape), layout, device=device, **kwargs)
        return result.requires_grad_(requires_grad)

    torch.jit._builtins._register_builtin(empty, "aten::empty")
    return empty, functools.lru_cache(1)(lambda: {*constructors(), stock})


def print_from_host(stock: _Function) -> _Function:
    """Only a fixed list of device types is copied to the host to be printed."""

    def contents(self: torch.Tensor, indent: int) -> str:
        return stock(self.cpu() if is_on_card(self) else self, indent)

    return contents


def module_to(stock: _Function) -> _Function:
    """A layout for each parameter (device/module_to.py)."""

    def to(self: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        if not is_spyre(device) or memory_format is not None:
            return stock(self, *args, **kwargs)
        from torch_spyre.device.module_to import load_model_to_spyre

        return load_model_to_spyre(self, dtype, device=device, non_blocking=non_blocking)

    return to


def module_spyre(_: None) -> _Function:
    """`module.spyre()`, as `module.cuda()`."""

    def spyre(self: nn.Module, device: int | torch.device | None = None) -> nn.Module:
        """Move all parameters and buffers to the card, like `module.to("spyre")`."""
        if isinstance(device, int):
            return self.to(torch.device(DEVICE_NAME, device))
        return self.to(torch.device(device or DEVICE_NAME))

    return spyre


_NO_DLPACK = (
    "a spyre tensor cannot be exported with DLPack: its memory is tiled and lies on the card. "
    "Copy it to the host first: tensor.cpu()"
)


def dlpack(*stock: _Function) -> list[_Function]:
    """Device memory is tiled and not addressable, so there is nothing to hand out."""
    return [_refusing(function) for function in stock]


def _refusing(stock: _Function) -> _Function:
    def export(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if is_on_card(tensor):
            raise BufferError(_NO_DLPACK)
        return stock(tensor, *args, **kwargs)

    return export


def log_settings(stock: _Function) -> _Function:
    """TORCH_LOGS with our components and what PyTorch does not know about them (logs.py)."""
    from torch._logging._internal import LogState

    def parse(settings: str) -> Any:
        others, levels = logs.take_settings(settings)
        state = stock(others) if others else LogState()
        for component, level in levels.items():
            state.enable_log(component, level)
        return state

    return parse
