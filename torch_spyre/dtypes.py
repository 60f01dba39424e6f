"""Facts about dtypes: which have a form on the card, and what is exact in it.

The formats of the card are named in opfuncs.py; `_C.get_device_dtype` maps a dtype to its own.
"""

from __future__ import annotations

import torch

from torch_spyre import _C

SIXTEEN_BITS = (torch.float16, torch.bfloat16)
"""Held and computed as DLFloat16."""
FLOATS = (*SIXTEEN_BITS, torch.float32)
INTEGERS = (torch.int64, torch.int32)
"""Held and computed in 32 bits."""
NATIVE_TYPES = (*FLOATS, torch.bool, *INTEGERS, torch.float8_e4m3fn)
"""What a kernel may load, compute and store; bool is 0 or 1 in DLFloat16."""

FLOAT16_MAX = 65504
FLOAT8_MAX = 448.0
INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1
FLOAT32_EXACT = 1 << 24
"""float32 holds every integer below this exactly."""
DLFLOAT16_LEAST = 2.0**-30
"""The smallest power of two that DLFloat16 holds; float16 of the host ends at 2**-24."""
DLFLOAT16_TINY = 2.0**-31 * (1 + 1 / 512)
"""The smallest number of DLFloat16 above zero."""
DLFLOAT16_MAX = 2.0**32 * (1 + 509 / 512)
"""The largest one below infinity."""


def has_device_format(dtype: torch.dtype) -> bool:
    """Whether tensors of a dtype can be on the card."""
    try:
        _C.get_device_dtype(dtype)
    except RuntimeError:
        return False
    return True
