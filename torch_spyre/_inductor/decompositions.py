"""Documented entry point: decompositions for spyre. They live in `fx/decompositions`."""

from torch_spyre._inductor.fx.decompositions import (
    register_spyre_decomposition,
    spyre_decompositions,
)

__all__ = ["register_spyre_decomposition", "spyre_decompositions"]
