"""The passes of the front-end, in the order in which they run, and why.

Each stage is a list; what stands in it is what runs, from first to last. Users add their own:

    @add_pass("early")
    def my_rewrite(graph: torch.fx.Graph) -> None: ...

| stage | list | what it gets, when |
|---|---|---|
| early | CustomPrePasses | FX graph; autograd and decompositions done, Inductor's rewrites not |
| late | CustomPostPasses | FX graph; after Inductor's rewrites, before lowering |
| pre_scheduling | CustomPreSchedulingPasses | operations of LoopLevelIR; before the scheduler |
| pre_fusion | CustomPreFusionPasses | scheduler nodes, in an order that respects dependencies |
| post_fusion | CustomPostFusionPasses | scheduler nodes, after Inductor's fusion |

After the last stage `plan.make_plan` does, for the whole graph: trace, split into one OpFunc per
operation, stickify, divide the work, place intermediates.

A pass changes what it gets in place; one on a list may return another list instead. What passes
there are, and their code, is part of the key of Inductor's caches (`identity`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor.custom_graph_pass import (
    CustomGraphModulePass,
    CustomGraphPass,
    CustomSchedulerPass,
    get_custom_graph_passes,
)
from torch._inductor.graph import GraphLowering

from torch_spyre._inductor.capture import input_layouts
from torch_spyre._inductor.capture.fingerprints import (
    fingerprint,
    is_foreign,
    settings,
    source_hash,
)
from torch_spyre._inductor.fx import decompositions
from torch_spyre._inductor.fx.passes import cleanup, optimizer_float32
from torch_spyre._inductor.host.scheduler_passes import transfers_first
from torch_spyre._inductor.lowering import registry
from torch_spyre._inductor.operations.opfunc_map import SpyreOpFuncs
from torch_spyre.upstream import fake_tensor_updates

Pass = Callable[[Any], Any]

# ---- What runs ----------------------------------------------------------------------------------

# Nothing of ours has to see the graph before Inductor's own rewrites.
CustomPrePasses: list[Pass] = []

CustomPostPasses: list[Pass] = [
    cleanup.fold_constants,  # what depends on nothing is computed now: masks, position tables
    cleanup.unflatten_matmul,  # batches that were collapsed for bmm come back: no copies for it
    cleanup.scale_before_views,  # next to the product a factor is part of its epilogue
    optimizer_float32.compute_in_float32,  # weights of 16 bits, as on the CPU
    cleanup.count_last,  # counters of layers are computed behind them all
]

# LoopLevelIR: every node is realised by then (see patches.py), so there is nothing to prepare.
CustomPreSchedulingPasses: list[Pass] = []

# Inductor's loop fusion is off for spyre: kernels are stretches of nodes, made in the plan.
CustomPreFusionPasses: list[Pass] = []
CustomPostFusionPasses: list[Pass] = [
    optimizer_float32.one_by_one,  # what belongs to one weight becomes one step of a program
    transfers_first,  # a copy from the host between two nodes would make two kernels of one
]

STAGES: dict[str, list[Pass]] = {
    "early": CustomPrePasses,
    "late": CustomPostPasses,
    "pre_scheduling": CustomPreSchedulingPasses,
    "pre_fusion": CustomPreFusionPasses,
    "post_fusion": CustomPostFusionPasses,
}


def add_pass(stage: str) -> Callable[[Pass], Pass]:
    """Add the decorated function at the end of a stage."""
    return lambda function: _add(stage, function)


def remove_pass(stage: str, function: Pass) -> None:
    """Take a function out of a stage."""
    _stage(stage).remove(function)


def _add(stage: str, function: Pass) -> Pass:
    _stage(stage).append(function)
    return function


def _stage(name: str) -> list[Pass]:
    if name not in STAGES:
        raise ValueError(f"unknown stage '{name}'; stages are {', '.join(STAGES)}")
    return STAGES[name]


# ---- What it is, for caches ---------------------------------------------------------------------


def identity() -> tuple[Any, ...]:
    """The compiler, the passes and whatever users added, for the keys of caches."""
    return (
        source_hash(),
        tuple((stage, *map(_name, passes)) for stage, passes in STAGES.items()),
        tuple(sorted((kind, name, fingerprint(f)) for kind, name, f in _additions())),
        input_layouts.current_key(),
        settings(),
    )


_OWN_STAGES = {stage: tuple(passes) for stage, passes in STAGES.items()}


def extensions() -> tuple[Any, ...]:
    """Whatever users changed about the compiler; empty in a process that only uses it."""
    changed = tuple(
        (stage, *map(_name, passes))
        for stage, passes in STAGES.items()
        if tuple(passes) != _OWN_STAGES[stage]
    )
    added = sorted((kind, name, fingerprint(f)) for kind, name, f in _additions())
    return (*changed, *added)


def look_at_scheduler_nodes() -> bool:
    """Whether a user's pass works on the nodes of Inductor's scheduler."""
    added = any(tuple(STAGES[s]) != _OWN_STAGES[s] for s in ("pre_fusion", "post_fusion"))
    given = (inductor_config._pre_fusion_custom_pass, inductor_config._post_fusion_custom_pass)
    return added or any(getattr(p, "after", p) is not None for p in given)


def look_at_lowered_nodes() -> bool:
    """Whether a user's pass works on what the nodes of a graph were lowered to."""
    added = tuple(STAGES["pre_scheduling"]) != _OWN_STAGES["pre_scheduling"]
    return added or look_at_scheduler_nodes()


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


class Traced(CustomGraphPass):
    """The graph as tracing left it."""

    def __call__(self, graph: torch.fx.Graph) -> None:
        fake_tensor_updates.note_traced(graph)

    def uuid(self) -> Any:
        return "Traced"  # it changes nothing


class EarlyPasses(CustomGraphPass):
    """Before Inductor's own passes on the FX graph."""

    def __call__(self, graph: torch.fx.Graph) -> None:
        for run in CustomPrePasses:
            run(graph)
        if CustomPrePasses:
            graph.lint()

    def uuid(self) -> Any:
        return identity()


class LatePasses(CustomGraphModulePass):
    """Inductor's hook for a device, after its own passes on the FX graph."""

    def __call__(self, gm: torch.fx.GraphModule) -> None:
        for run in CustomPostPasses:
            run(gm.graph)
        gm.graph.lint()

    def uuid(self) -> Any:
        return identity()


_prepared: weakref.WeakSet[GraphLowering] = weakref.WeakSet()


def run_pre_scheduling(graph: GraphLowering) -> None:
    """Passes on the operations of a graph. Called when its host code begins, which can be twice."""
    if graph in _prepared:
        return
    _prepared.add(graph)
    for run in CustomPreSchedulingPasses:
        changed = run(graph.operations)
        if changed is not None:
            graph.operations[:] = changed


class _SchedulerPasses(CustomSchedulerPass):
    """Passes on scheduler nodes, and after them the one that a user gave to Inductor."""

    passes: list[Pass]

    def __init__(self, after: Pass | None = None) -> None:
        self.after = after

    def __call__(self, nodes: list[Any]) -> list[Any]:
        for run in self.passes:
            nodes = _or(run(nodes), nodes)
        return nodes if self.after is None else self.after(nodes)

    def uuid(self) -> Any:
        return (identity(), None if self.after is None else fingerprint(self.after))


def _or(changed: list[Any] | None, nodes: list[Any]) -> list[Any]:
    return nodes if changed is None else changed


class PreFusionPasses(_SchedulerPasses):
    """Before Inductor's fusion."""

    passes = CustomPreFusionPasses


class PostFusionPasses(_SchedulerPasses):
    """After Inductor's fusion."""

    passes = CustomPostFusionPasses


def inductor_options(given: dict[str, Any]) -> dict[str, Any]:
    """The options through which Inductor calls us; passes that a user gave run after ours."""

    def other(name: str) -> Any:
        return given.get(name, getattr(inductor_config, name))

    options: dict[str, Any] = {}
    for name, first in (
        ("joint_custom_pre_pass", Traced()),
        ("post_grad_custom_pre_pass", EarlyPasses()),
    ):
        theirs: Sequence[Any] = get_custom_graph_passes(other(name))
        options[name] = [first, *_without_ours(theirs)]
    for name, passes in (
        ("_pre_fusion_custom_pass", PreFusionPasses),
        ("_post_fusion_custom_pass", PostFusionPasses),
    ):
        value = other(name)
        options[name] = passes(value.after if isinstance(value, _SchedulerPasses) else value)
    return options


def _without_ours(passes: Sequence[Any]) -> list[Any]:
    """Options of a graph that is compiled while another one is being compiled have ours already."""
    return [p for p in passes if not isinstance(p, (Traced, EarlyPasses))]
