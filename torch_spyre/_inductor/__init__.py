"""The Inductor backend of `spyre`: what the cookbook (docs/compiler/operation_cookbook.md) uses.

Loaded when the first graph with spyre tensors is compiled. compile.py is the driver, pipeline.py
lists what happens to a graph, in order.
"""

from __future__ import annotations

from torch_spyre._inductor import config
from torch_spyre._inductor.compile import compile_fx, register
from torch_spyre._inductor.fx import customops
from torch_spyre._inductor.fx.decompositions import register_spyre_decomposition
from torch_spyre._inductor.hints import spyre_hint
from torch_spyre._inductor.lowering.registry import (
    pointwise,
    reduction,
    register_spyre_lowering,
    spyre_ops,
)
from torch_spyre._inductor.operations.opfunc_map import SpyreOpFuncs, constant, opfunc
from torch_spyre._inductor.passes import add_pass, remove_pass

__all__ = [
    "SpyreOpFuncs",
    "add_pass",
    "compile_fx",
    "config",
    "constant",
    "customops",
    "opfunc",
    "pointwise",
    "reduction",
    "register",
    "register_spyre_decomposition",
    "register_spyre_lowering",
    "remove_pass",
    "spyre_hint",
    "spyre_ops",
]
