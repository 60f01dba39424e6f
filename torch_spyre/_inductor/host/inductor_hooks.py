"""Inductor's hooks: our passes as `CustomGraphPass`, and the compiler's identity in its cache keys.

Out: passes that run the stages of `pipeline.py`; the `uuid` of each identifies compiler, users'
passes and input layouts, so that a cached graph was compiled under the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor.custom_graph_pass import (
    CustomGraphModulePass,
    CustomGraphPass,
    CustomSchedulerPass,
    get_custom_graph_passes,
)

from torch_spyre._inductor import pipeline
from torch_spyre._inductor.capture import input_layouts
from torch_spyre._inductor.capture.fingerprints import (
    fingerprint,
    is_foreign,
    settings,
    source_hash,
)
from torch_spyre._inductor.fx import decompositions
from torch_spyre._inductor.lowering import registry
from torch_spyre._inductor.operations.opfunc_map import SpyreOpFuncs
from torch_spyre._inductor.passes import ADDED, Pass
from torch_spyre._inductor.pipeline import PIPELINE

# ---- What it is, for caches ---------------------------------------------------------------------


def identity() -> tuple[Any, ...]:
    """Identity of the compiler, its passes and users' extensions, for cache keys."""
    return (
        source_hash(),
        tuple((stage.name, *map(_name, stage.functions())) for stage in PIPELINE),
        tuple(sorted((kind, name, fingerprint(f)) for kind, name, f in _additions())),
        input_layouts.current_key(),
        settings(),
    )


def extensions() -> tuple[Any, ...]:
    """Whatever users changed about the compiler; empty in a process that only uses it."""
    changed = tuple((stage, *map(_name, passes)) for stage, passes in ADDED.items() if passes)
    added = sorted((kind, name, fingerprint(f)) for kind, name, f in _additions())
    return (*changed, *added)


def _name(function: Pass) -> str:
    own = f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}"
    return f"{own} {fingerprint(function)}" if is_foreign(function) else own


def _additions() -> list[tuple[str, str, Any]]:
    methods = {name: getattr(SpyreOpFuncs, name) for name in dir(SpyreOpFuncs) if name[0] != "_"}
    return [
        *(("method", name, f) for name, f in methods.items() if is_foreign(f)),
        *(("lowering", name, f) for name, f in registry.added_lowerings().items()),
        *(("decomposition", name, f) for name, f in decompositions.added_decompositions().items()),
    ]


# ---- Where Inductor calls us --------------------------------------------------------------------


class PreGradPasses(CustomGraphPass):
    """Before autograd, on the graph that Dynamo found."""

    def __call__(self, graph: torch.fx.Graph) -> None:
        pipeline.run("pre-grad fx", graph)

    def uuid(self) -> Any:
        return identity()


class EarlyPasses(CustomGraphPass):
    """Before Inductor's own passes on the FX graph."""

    def __call__(self, graph: torch.fx.Graph) -> None:
        pipeline.run("early fx", graph)

    def uuid(self) -> Any:
        return identity()


class LatePasses(CustomGraphModulePass):
    """Inductor's hook for a device, after its own passes on the FX graph."""

    def __call__(self, gm: torch.fx.GraphModule) -> None:
        pipeline.run("fx", gm.graph)
        gm.graph.lint()

    def uuid(self) -> Any:
        return identity()


class _SchedulerPasses(CustomSchedulerPass):
    """Passes on scheduler nodes, and after them the one that a user gave to Inductor."""

    takes: str

    def __init__(self, after: Pass | None = None) -> None:
        self.after = after

    def __call__(self, nodes: list[Any]) -> list[Any]:
        nodes = pipeline.run(self.takes, nodes)
        return nodes if self.after is None else self.after(nodes)

    def uuid(self) -> Any:
        return (identity(), None if self.after is None else fingerprint(self.after))


class PreFusionPasses(_SchedulerPasses):
    """Before Inductor's fusion."""

    takes = "early nodes"


class PostFusionPasses(_SchedulerPasses):
    """After Inductor's fusion."""

    takes = "nodes"


def inductor_options(given: dict[str, Any], traced: CustomGraphPass) -> dict[str, Any]:
    """The options through which Inductor calls us; passes that a user gave run after ours.

    A graph that is compiled while another one is being compiled has ours among them already.
    `traced` gets the graph as tracing left it."""

    def other(name: str) -> Any:
        return given.get(name, getattr(inductor_config, name))

    options: dict[str, Any] = {}
    ours: list[tuple[str, CustomGraphPass]] = [
        ("joint_custom_pre_pass", traced),
        ("post_grad_custom_pre_pass", EarlyPasses()),
    ]
    if ADDED["pre_grad"]:
        ours.append(("pre_grad_custom_pass", PreGradPasses()))
    for name, first in ours:
        theirs: Sequence[Any] = get_custom_graph_passes(other(name))
        options[name] = [first, *(p for p in theirs if not isinstance(p, type(first)))]
    for name, passes in (
        ("_pre_fusion_custom_pass", PreFusionPasses),
        ("_post_fusion_custom_pass", PostFusionPasses),
    ):
        value = other(name)
        options[name] = passes(value.after if isinstance(value, _SchedulerPasses) else value)
    return options
