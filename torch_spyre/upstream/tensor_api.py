"""Changes to PyTorch's own Python functions; the only place where we make any.

Each entry says which upstream hook is missing (torch 2.13) and does nothing for other devices.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch._tensor_str
import torch.utils._device
from torch import nn

from torch_spyre import _C, logs
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.device.devices import device as use_card


def apply() -> None:
    """Install all of them."""
    _add_device_tensor_layout()
    _add_layout_to_tensor_to()
    _add_layout_to_empty()
    _print_from_host()
    _transfer_linear_weights()
    _refuse_dlpack()
    _read_log_settings()


def _replace(owner: Any, name: str, function: Any) -> None:
    setattr(owner, name, function)


def is_spyre(tensor: torch.Tensor) -> bool:
    return tensor.device.type == DEVICE_NAME


# -- Tensor.device_tensor_layout(): no hook for device-specific tensor methods ---------------------


def _device_tensor_layout(self: torch.Tensor) -> _C.SpyreTensorLayout | None:
    """How the tensor lies on the card; None on other devices and for carried tensors."""
    from torch._subclasses.fake_tensor import FakeTensor

    if not is_spyre(self) or isinstance(self, FakeTensor):
        return None
    return _C.get_spyre_tensor_layout(self)


def _add_device_tensor_layout() -> None:
    _replace(torch.Tensor, "device_tensor_layout", _device_tensor_layout)


# -- to(device_layout=...), torch.empty(device_layout=...): no hook for extra keyword arguments --


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
        target = tensor.device if is_spyre(tensor) else torch.device(DEVICE_NAME)
    if target.type != DEVICE_NAME:
        raise ValueError(f"device_layout needs a {DEVICE_NAME} device, got '{target}'")
    dtype = dtype or tensor.dtype
    if is_spyre(tensor) and not copy and dtype == tensor.dtype:
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


def _add_layout_to_tensor_to() -> None:
    original = torch.Tensor.to

    @functools.wraps(original)
    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if "device_layout" not in kwargs:
            return original(self, *args, **kwargs)
        layout = kwargs.pop("device_layout")
        if layout is None:
            return original(self, *args, **kwargs)
        return to_with_layout(self, args, kwargs, layout)

    _replace(torch.Tensor, "to", to)

    # Parameters of lazy modules know by identity what may be done with them.
    nn.UninitializedParameter._allowed_methods.append(to)  # type: ignore[attr-defined]


def _add_layout_to_empty() -> None:
    original = torch.empty

    @functools.wraps(original)
    def empty(*size: Any, **kwargs: Any) -> torch.Tensor:
        if "device_layout" not in kwargs:
            return original(*size, **kwargs)
        layout = kwargs.pop("device_layout")
        if layout is None:
            return original(*size, **kwargs)
        shape = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
        device = torch.device(kwargs.pop("device", None) or DEVICE_NAME)
        if device.type != DEVICE_NAME:
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

    _replace(torch, "empty", empty)

    torch.jit._builtins._register_builtin(empty, "aten::empty")  # torch.jit.script goes by identity

    # `with torch.device(...)` recognises factory functions by identity and sees the one below ours.
    constructors = torch.utils._device._device_constructors
    both = functools.lru_cache(1)(lambda: {*constructors(), original})
    _replace(torch.utils._device, "_device_constructors", both)


# -- printing: only a fixed list of device types is copied to the host first -----------------------


def _print_from_host() -> None:
    original = torch._tensor_str._tensor_str

    @functools.wraps(original)
    def contents(self: torch.Tensor, indent: int) -> str:
        return original(self.cpu() if is_spyre(self) else self, indent)

    _replace(torch._tensor_str, "_tensor_str", contents)


# -- nn.Module.to: no hook to choose a layout per parameter ----------------------------------------


def _transfer_linear_weights() -> None:
    original = nn.Module.to

    @functools.wraps(original)
    def to(self: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        if device is None or device.type != DEVICE_NAME or memory_format is not None:
            return original(self, *args, **kwargs)
        from torch_spyre.device.module_to import load_model_to_spyre

        return load_model_to_spyre(self, dtype, device=device, non_blocking=non_blocking)

    _replace(nn.Module, "to", to)

    def spyre(self: nn.Module, device: int | torch.device | None = None) -> nn.Module:
        """Move all parameters and buffers to the card, like `module.to("spyre")`."""
        if isinstance(device, int):
            return self.to(torch.device(DEVICE_NAME, device))
        return self.to(torch.device(device or DEVICE_NAME))

    _replace(nn.Module, "spyre", spyre)


# -- DLPack: device memory is tiled and not addressable, so there is nothing to hand out -----------

_NO_DLPACK = (
    "a spyre tensor cannot be exported with DLPack: its memory is tiled and lies on the card. "
    "Copy it to the host first: tensor.cpu()"
)


def _refuse_dlpack() -> None:
    original = torch.Tensor.__dlpack__
    original_device = torch.Tensor.__dlpack_device__
    original_capsule = torch._C._to_dlpack

    @functools.wraps(original)
    def dlpack(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if is_spyre(self):
            raise BufferError(_NO_DLPACK)
        return original(self, *args, **kwargs)

    @functools.wraps(original_device)
    def dlpack_device(self: torch.Tensor) -> Any:
        if is_spyre(self):
            raise BufferError(_NO_DLPACK)
        return original_device(self)

    @functools.wraps(original_capsule)
    def to_dlpack(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if is_spyre(tensor):
            raise BufferError(_NO_DLPACK)
        return original_capsule(tensor, *args, **kwargs)

    _replace(torch.Tensor, "__dlpack__", dlpack)
    _replace(torch.Tensor, "__dlpack_device__", dlpack_device)
    _replace(torch, "to_dlpack", to_dlpack)
    _replace(torch.utils.dlpack, "to_dlpack", to_dlpack)


# -- TORCH_LOGS: no hook for levels by name, and an entry it does not know ends `import torch` -----


def _read_log_settings() -> None:
    from torch._logging import _internal

    stock = _internal._parse_log_settings

    @functools.wraps(stock)
    def parse(settings: str) -> Any:
        others, levels = logs.take_settings(settings)
        state = stock(others) if others else _internal.LogState()
        for component, level in levels.items():
            state.enable_log(component, level)
        return state

    _replace(_internal, "_parse_log_settings", parse)
