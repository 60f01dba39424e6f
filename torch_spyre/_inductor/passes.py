"""Passes that users add to the compiler, at named positions of its pipeline.

    @add_pass("early")
    def my_rewrite(graph: torch.fx.Graph) -> None: ...

| position | what a pass gets, when |
|---|---|
| pre_grad | FX graph of torch functions, as Dynamo found it; before autograd and decompositions |
| early | FX graph; autograd and decompositions done, Inductor's rewrites not |
| late | FX graph; after Inductor's rewrites and ours, before lowering |
| pre_scheduling | operations of LoopLevelIR; before the scheduler |
| pre_fusion | scheduler nodes, in an order that respects dependencies |
| post_fusion | scheduler nodes, after Inductor's fusion and our passes |

A pass changes what it gets in place; one on a list may return another list instead. `pipeline.py`
says what else runs, and when. Passes and their code are part of the key of Inductor's caches.

The documented names of the positions are classes: `CustomPrePasses.passes` is the list of `early`,
and an object of it runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch._inductor import config as inductor_config

Pass = Callable[[Any], Any]

ADDED: dict[str, list[Pass]] = {
    "pre_grad": [],
    "early": [],
    "late": [],
    "pre_scheduling": [],
    "pre_fusion": [],
    "post_fusion": [],
}


def add_pass(position: str) -> Callable[[Pass], Pass]:
    """Add the decorated function at a position, after those that are there."""
    return lambda function: _add(position, function)


def remove_pass(position: str, function: Pass) -> None:
    """Unregister a pass."""
    _at(position).remove(function)


def look_at_scheduler_nodes() -> bool:
    """Whether a user's pass works on the nodes of Inductor's scheduler."""
    given = (inductor_config._pre_fusion_custom_pass, inductor_config._post_fusion_custom_pass)
    return (
        bool(ADDED["pre_fusion"])
        or bool(ADDED["post_fusion"])
        or any(getattr(p, "after", p) is not None for p in given)
    )


def look_at_lowered_nodes() -> bool:
    """Whether a user's pass works on what the nodes of a graph were lowered to."""
    return bool(ADDED["pre_scheduling"]) or look_at_scheduler_nodes()


def _add(position: str, function: Pass) -> Pass:
    _at(position).append(function)
    return function


def _at(position: str) -> list[Pass]:
    if position not in ADDED:
        raise ValueError(f"unknown stage '{position}'; stages are {', '.join(ADDED)}")
    return ADDED[position]


# ---- Documented names of the positions -----------------------------------------------------------


class _Passes:
    """The passes of a position: what is in the list, an object runs in order."""

    passes: ClassVar[list[Pass]]

    def __call__(self, program: Any) -> Any:
        for function in self.passes:
            changed = function(program)
            program = program if changed is None else changed
        return program


class CustomPreGradPasses(_Passes):
    """On the FX graph of torch functions, before autograd."""

    passes = ADDED["pre_grad"]


class CustomPrePasses(_Passes):
    """On the FX graph, before Inductor's rewrites."""

    passes = ADDED["early"]


class CustomPostPasses(_Passes):
    """On the FX graph, after Inductor's rewrites."""

    passes = ADDED["late"]


class CustomPreSchedulingPasses(_Passes):
    """On the operations of LoopLevelIR."""

    passes = ADDED["pre_scheduling"]


class CustomPreFusionPasses(_Passes):
    """On scheduler nodes, before Inductor's fusion."""

    passes = ADDED["pre_fusion"]


class CustomPostFusionPasses(_Passes):
    """On scheduler nodes, after it."""

    passes = ADDED["post_fusion"]


CustomPrePass = CustomPrePasses
CustomPostPass = CustomPostPasses
