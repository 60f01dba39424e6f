"""Device management: enumeration, the current card, lazy start."""

from __future__ import annotations

from typing import Any

import torch

from torch_spyre import _C
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.dtypes import SIXTEEN_BITS
from torch_spyre.on_card import is_spyre

DeviceLike = torch.device | str | int | None


def device_index(device: DeviceLike = None, *, optional: bool = True) -> int:
    """The index that `device` names: None or "spyre" mean the current card."""
    if device is None:
        if optional:
            return current_device()
        raise TypeError(
            "a device is needed: an index, a string such as 'spyre:0' or a torch.device"
        )
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if not is_spyre(device):
            raise ValueError(f"expected a {DEVICE_NAME} device, got '{device}'")
        return current_device() if device.index is None else device.index
    if isinstance(device, int) and not isinstance(device, bool):
        return device
    raise TypeError(f"expected an index, a string or a torch.device, got {type(device).__name__}")


def is_available() -> bool:
    """Whether there is a card. True in a forked child, as the parent had one."""
    return _is_in_bad_fork() or _C.device_count() > 0


def is_initialized() -> bool:
    """Whether the runtime has started in this process."""
    return _C._is_started() and not _is_in_bad_fork()


def _lazy_init() -> None:
    _C.start_runtime()
    # With the card, which takes its time anyway: the first operation need not wait for it.
    import torch_spyre.ops.eager  # noqa: F401


init = _lazy_init


def device_count() -> int:
    """Number of cards. Does not start them."""
    return _C.device_count()


def current_device() -> int:
    """Index of the calling thread's current card."""
    return _C.current_device()


def set_device(device: DeviceLike) -> None:
    """Make a card current for the calling thread.

    The index is checked at once if the runtime runs, else when it starts.
    """
    _C.set_device(device_index(device, optional=False))


def _exchange_device(index: int) -> int:
    return _C._exchange_device(index)


_maybe_exchange_device = _exchange_device


class device:
    """Context manager that makes a card current: `with torch.spyre.device(1): ...`."""

    def __init__(self, device: DeviceLike) -> None:
        self.idx = device_index(device) if device is not None else -1
        self.prev_idx = -1

    def __enter__(self) -> device:
        self.prev_idx = _C._exchange_device(self.idx)
        return self

    def __exit__(self, *exc: Any) -> None:
        _C._exchange_device(self.prev_idx)


class device_of(device):
    """Context manager that makes the card of a tensor current; does nothing for other tensors."""

    def __init__(self, obj: Any) -> None:
        found = getattr(obj, "device", None)
        super().__init__(found if isinstance(found, torch.device) and is_spyre(found) else None)


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that torch.autocast may use here. It asks before anything else, and tensors need
    not exist by then: fake ones have the keys of the card, too."""
    _C._register_late_fallbacks()
    return list(SIXTEEN_BITS)


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """bfloat16 tensors work; the card holds them as DLFloat16, so natively the answer is no."""
    return including_emulation


def _is_in_bad_fork() -> bool:
    return _C._in_bad_fork()


def _is_compiled() -> bool:
    return True
