"""Divisions over cores and scratchpads of a kernel, chosen together.

In: the operations of a kernel as aligned OpSpecs without slices. Out: the operations with those
that the plan adds, divided, and the addresses of what stays in scratchpads. Several divisions of
the whole kernel (`candidates`) go through the pass over scratchpads (`scratchpad/residency`);
the one that then takes the least modelled time is the plan; those that cannot win by their
estimates are not planned. The documented division is among them, with scratchpads as we plan them
and, where it could win so, as the documented system does: no plan is slower than the documented one
by more than times of the model mean (`_BETTER`).

Example: `plan_kernel(operations, specs, arguments, hinted).specs`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from torch_spyre._inductor import config
from torch_spyre._inductor.layouts.to_op_spec import buffers_of
from torch_spyre._inductor.operations.operation import Buffer, Operation
from torch_spyre._inductor.opspec.op_spec import OpSpec
from torch_spyre._inductor.planning import op_cost
from torch_spyre._inductor.planning.division.candidates import Division, best_divisions
from torch_spyre._inductor.planning.division.documented_rules import divide
from torch_spyre._inductor.planning.scratchpad import residency
from torch_spyre._inductor.planning.scratchpad.lifetimes import budget
from torch_spyre._inductor.planning.scratchpad.residency import Residency, Usage
from torch_spyre.hardware import CARD

_HOPELESS = 1.1
"""A division whose estimate is so much above a complete plan is not planned to the end. Estimates
leave out that scratchpads can be full, so they are below the truth, but for moves over the ring
that turn out cheaper: by 3 % at most in the suite of benchmarks/plans.py."""

_BETTER = 0.98
"""The documented plan of scratchpads must take at most this part of the time of ours: times that
differ by less are the same to a model, and ours moves less."""

DOCUMENTED_SCRATCHPADS = {
    "layout_solver": "greedy",
    "allow_all_ops_in_lx_planning": False,
    "lx_boundary_clones": False,
    "lx_ring_moves": False,
}
"""The documented planner of scratchpads at its defaults."""


def plan_kernel(
    operations: Sequence[Operation],
    specs: Sequence[OpSpec],
    arguments: Collection[Buffer],
    hinted: Sequence[bool] = (),
    *,
    thorough: bool = True,
) -> Residency:
    """The plan with the least modelled time. An operation that is `hinted` keeps its slices. Not
    `thorough`: a good plan, in less time."""
    hinted = hinted or [False] * len(specs)
    usage = residency.usage_of(operations, arguments) if config.lx_planning else []
    if config.work_division == "documented":
        return _with_scratchpads(operations, _documented(specs, hinted), usage)
    best: Residency | None = None
    least = 0.0
    found = _divisions(operations, specs, arguments, hinted, thorough)
    trials: list[tuple[Division, float, Mapping[str, Any]]] = [
        (division, division.us / _HOPELESS, {}) for division in found
    ]
    # What the documented planner keeps, ours can keep too: only copies can make ours slower.
    trials += [(d, d.floor, DOCUMENTED_SCRATCHPADS) for d in found if d.is_documented]
    for division, least_possible, rules in trials:
        enough = _BETTER if rules else 1.0
        if best is not None and least_possible >= enough * least:
            continue
        with cast(Any, config).patch(**rules):
            if rules and config.lx_planning:  # they say what may stay, too; this trial is the last
                usage = residency.usage_of(operations, arguments)
            plan = _with_scratchpads(operations, division.specs, usage)
        us = modelled_us(plan)
        if best is None or us < enough * least:
            best, least = plan, us
    assert best is not None
    return best


def _with_scratchpads(
    operations: Sequence[Operation], specs: list[OpSpec], usage: Sequence[Usage]
) -> Residency:
    if not config.lx_planning:
        return Residency(list(operations), specs, {})
    return residency.plan(operations, specs, usage)


def _documented(specs: Sequence[OpSpec], hinted: Sequence[bool]) -> list[OpSpec]:
    return [
        s if h else divide(s, config.cores, CARD.span_bytes, matmul_model=True)
        for s, h in zip(specs, hinted)
    ]


def _divisions(
    operations: Sequence[Operation],
    specs: Sequence[OpSpec],
    arguments: Collection[Buffer],
    hinted: Sequence[bool],
    thorough: bool,
) -> list[Division]:
    buffers = [buffers_of(op) for op in operations]
    return best_divisions(
        specs,
        buffers,
        cores=config.cores,
        max_span=CARD.span_bytes,
        lx_bytes=budget(config.lx_reserved) if config.lx_planning else 0,
        fixed=arguments,
        never=[b for names in buffers for b in names if b.is_constant],
        k_fast=config.k_fast_emission,
        hinted=hinted,
        moves=config.lx_ring_moves and config.lx_boundary_clones,
        thorough=thorough,
    )


def modelled_us(plan: Residency) -> float:
    """Of all operations of a plan, one after the other."""
    known: dict[tuple[int, tuple[bool, ...]], float] = {}  # layers share their specs
    us = []
    for op, spec in zip(plan.operations, plan.specs, strict=True):
        in_lx = tuple([buffer in plan.lx for buffer in buffers_of(op)])
        key = (id(spec), in_lx)
        if key not in known:
            known[key] = op_cost.modelled_us(spec, in_lx)
        us.append(known[key])
    return sum(us)
