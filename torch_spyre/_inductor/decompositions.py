"""Documented entry point: `register_spyre_decomposition`. It lives in `fx/decompositions`."""

from torch_spyre._inductor.fx.decompositions import register_spyre_decomposition

__all__ = ["register_spyre_decomposition"]
