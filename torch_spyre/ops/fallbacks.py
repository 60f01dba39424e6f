"""Reporting of operations that ran on the host.

The C++ boxed path counts them and calls `warn_fallback` once per operation. Silence the warnings
with `torch.spyre.set_fallback_warning(False)`,
SPYRE_FALLBACK_WARN=0, or a filter for `FallbackWarning`.
"""

from __future__ import annotations

import warnings

from torch_spyre import _C
from torch_spyre.logs import get_logger

_log = get_logger("spyre.execution")


class FallbackWarning(UserWarning):
    """An operation on spyre tensors was computed on the host."""


def warn_fallback(op: str, device: str) -> None:
    """Warn that an operation falls back. The runtime calls it once per operation."""
    _log.info("%s is falling back to %s", op, device)
    warnings.warn(f"{op} is falling back to {device}", FallbackWarning, stacklevel=2)


def fallback_counts() -> dict[str, int]:
    """How often each operation ran on the host since the last reset, most frequent first."""
    counts = _C.fallback_counts()
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def reset_fallback_counts() -> None:
    """Forget the counts. Operations that were warned about are not warned about again."""
    _C.reset_fallback_counts()


def get_fallback_warning() -> bool:
    """Whether fallbacks warn."""
    return _C.get_fallback_warning()


def set_fallback_warning(enabled: bool) -> None:
    """Switch the warnings on or off."""
    _C.set_fallback_warning(enabled)
