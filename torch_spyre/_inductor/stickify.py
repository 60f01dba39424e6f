"""Documented entry point: the choice of layouts. It lives in `layouts/stickify.py`."""

from torch_spyre._inductor.layouts.stickify import choose

__all__ = ["choose"]
