"""Every stage of the front-end, from FX graph to bundle, in the order in which they run.

What stands in `PIPELINE` is what runs. A stage takes a program in one of its forms and hands it on:

    pre-grad fx   torch.fx.Graph of torch functions, before autograd
    early fx      torch.fx.Graph, before Inductor's own rewrites
    fx            torch.fx.Graph, after them
    loops         the operations of Inductor's LoopLevelIR
    early nodes   the nodes of Inductor's scheduler, before its fusion
    nodes         the same, after it
    plan          a Planning: kernels, operations, layouts, OpSpecs

A stage without a function is a position for the passes of users (`passes.py`). `validate` is run
after a stage under SPYRE_VALIDATE=1, which the tests set. SPYRE_PRINT_AFTER=stickify,bind prints
the program after these stages; TORCH_COMPILE_DEBUG=1 writes it after every stage. To add a stage is
to add a line.

Between `fx` and `loops` Inductor lowers the graph node by node (`lowering/`); what comes after
`bind` is done for each kernel when its host code is loaded: OpSpec text to a SuperDSC bundle
(`codegen/`), and that to a device program (`torch_spyre/backend`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch._inductor.graph import GraphLowering
from torch.utils._ordered_set import OrderedSet

from torch_spyre._inductor import config, state
from torch_spyre._inductor.fx.passes import (
    cleanup,
    optimizer_float32,
    partial_writes,
    round_once,
)
from torch_spyre._inductor.inspect import debug_dir, stage_dump
from torch_spyre._inductor.passes import ADDED, Pass
from torch_spyre._inductor.planning import graph_layouts, kernels, node_order, planner, validate
from torch_spyre._inductor.planning.plan import GraphPlan


class Stage(NamedTuple):
    """One step of the way."""

    name: str
    takes: str
    function: Pass | None
    """None: a position for users' passes, whose name is that of the stage."""
    why: str
    validate: Callable[[Any], None] | None = None

    def functions(self) -> list[Pass]:
        return ADDED[self.name] if self.function is None else [self.function]


PIPELINE = (
    Stage("pre_grad", "pre-grad fx", None,
          "users' passes; empty without them, as modules and torch functions are still whole here"),

    Stage("early", "early fx", None,
          "users' passes; nothing of ours has to see the graph before Inductor's rewrites"),

    Stage("fold_constants", "fx", cleanup.fold_constants,
          "what depends on nothing is computed now: masks, position tables"),
    Stage("unflatten_matmul", "fx", cleanup.unflatten_matmul,
          "batches that were collapsed for bmm come back: no copies for it"),
    Stage("scale_before_views", "fx", cleanup.scale_before_views,
          "next to the product a factor is part of its epilogue"),
    Stage("optimizer_float32", "fx", optimizer_float32.compute_in_float32,
          "weights of 16 bits are updated in float32, as on the CPU"),
    Stage("add_before_rounding", "fx", round_once.add_before_rounding,
          "what is float32 until it is added is rounded once, after the sum"),
    Stage("count_last", "fx", cleanup.count_last,
          "counters of layers are computed after all layers"),
    Stage("prepare_writes", "fx", partial_writes.prepare_writes,
          "a slice that is assigned can be written in place: nobody reads the old value later"),
    Stage("late", "fx", None, "users' passes"),

    Stage("pre_scheduling", "loops", None,
          "users' passes; every node is realised by then, so there is nothing to prepare"),

    Stage("pre_fusion", "early nodes", None, "users' passes"),
    Stage("one_weight_at_a_time", "nodes", node_order.one_by_one,
          "what belongs to one weight becomes one step of a program"),
    Stage("transfers_first", "nodes", node_order.transfers_first,
          "a copy from the host between two nodes would make two kernels of one"),
    Stage("post_fusion", "nodes", None, "users' passes"),

    Stage("split", "plan", kernels.split,
          "stretches of nodes become kernels, each node operations of one OpFunc",
          validate.check_operations),
    Stage("stickify", "plan", graph_layouts.assign_layouts,
          "a layout for every buffer of the graph, restickify where two do not agree",
          validate.check_layouts),
    Stage("tile", "plan", planner.tile,
          "loops around operations whose tensors do not fit into scratchpads"),
    Stage("divide", "plan", planner.divide,
          "which core computes what and what stays in its scratchpad: chosen together"),
    Stage("place_pool", "plan", planner.place_pool,
          "addresses of the other intermediates in device memory"),
    Stage("replicate_layers", "plan", planner.replicate_layers,
          "the plan of one layer for all that are equal to it"),
    Stage("bind", "plan", planner.bind,
          "OpSpecs: arguments numbered, every tensor at its place",
          validate.check_op_specs),
)  # fmt: skip


def run(takes: str, program: Any) -> Any:
    """Run the stages that take a program in this form."""
    for stage in PIPELINE:
        if stage.takes != takes:
            continue
        for function in stage.functions():
            changed = function(program)
            program = program if changed is None else changed
        if config.validate and stage.validate is not None:
            stage.validate(program)
        if stage.functions():
            stage_dump.after(stage.name, takes, program)
    return program


# ---- The plan of a graph -------------------------------------------------------------------------


class Planned:
    """What the pipeline has made of a graph of Inductor's."""

    def __init__(self) -> None:
        self.is_prepared = False
        self.plan: GraphPlan | None = None


def prepare(graph: GraphLowering) -> None:
    """Before Inductor makes the scheduler of a graph. With a C++ wrapper it makes two."""
    planned = state.of(graph, Planned)
    if not planned.is_prepared:
        planned.is_prepared = True
        graph.operations[:] = run("loops", graph.operations)


def plan(graph: GraphLowering) -> None:
    """When the nodes of a graph have their final order: plan it whole."""
    found: GraphPlan = run("plan", kernels.begin(graph.scheduler)).plan
    state.of(graph, Planned).plan = found
    graph.removed_buffers |= OrderedSet(sorted(found.internal))
    debug_dir.record_plan(found)


def plan_of(graph: GraphLowering) -> GraphPlan:
    """The plan of a graph whose host code is being written."""
    found = state.of(graph, Planned).plan
    assert found is not None, "the graph was not planned: upstream/graph_lowering.py"
    return found
