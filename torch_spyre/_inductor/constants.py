"""Documented entry point: numbers and names of the compiler. The numbers live in
`torch_spyre/dtypes.py`, the names in `torch_spyre/opfuncs.py`.

    clamped = torch.clamp(x / scale, -constants.FP8_E4M3FN_MAX, constants.FP8_E4M3FN_MAX)
"""

from torch_spyre.dtypes import FLOAT8_MAX

FP8_E4M3FN_MAX = FLOAT8_MAX
FP8_E4M3_MAX = FLOAT8_MAX
IDENTITY_OP = "identity"
"""The OpFunc that copies: views, slices, casts within a format."""

__all__ = ["FP8_E4M3FN_MAX", "FP8_E4M3_MAX", "IDENTITY_OP"]
