"""Rules of steps, checked after lower and again after fuse (SPYRE_VALIDATE=1; the tests set it).

In: the steps of a bundle with its loops. Out: nothing, or BrokenRule with the step, the rule, what
was found and what is allowed. RULES is the list for each step by itself; `check_fused` compares
the steps before and after fuse. The rules are those of docs/formats/program.md, and what later
stages take for granted.

Example: `step 1, 0_add: range of cores: found 33, allowed 1 to 32`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch_spyre.backend.steps import (
    Copy,
    Gather,
    Item,
    LoopBegin,
    LoopEnd,
    Matmul,
    Ring,
    Step,
    Tile,
    Topk,
)
from torch_spyre.backend.validate import code, movement, places
from torch_spyre.backend.validate.fused import check_fused
from torch_spyre.backend.validate.places import Found, Scope
from torch_spyre.validation import BrokenRule

__all__ = ["RULES", "Scope", "check_fused", "check_step", "check_steps"]

_ALL: tuple[type, ...] = (Tile, Matmul, Copy, Gather, Topk, Ring)
_RUNS_CODE = (Tile, Matmul)
RULES: tuple[tuple[str, tuple[type, ...], Callable[[Any, Scope], Found]], ...] = (
    ("range of cores", _ALL, places.cores),
    ("an entry for each core", _ALL, places.entry_per_core),
    ("work", _ALL, places.works),
    ("loop strides", _ALL, places.loop_strides),
    ("space of an operand", _ALL, places.spaces),
    ("begin of an operand", _ALL, places.sticks),
    ("extents", (Tile, Matmul, Gather, Topk), places.extents),
    ("strides of an operand", (Tile, Matmul, Gather, Topk), places.dims),
    ("stick dimension", (Tile, Gather, Topk), places.stick_dim),
    ("lanes", (Tile, Topk), code.lanes),
    ("format of an operand", (Tile, Matmul, Topk), code.formats),
    ("number of operands", _RUNS_CODE, code.operand_count),
    ("whole sticks", (Tile, Matmul, Topk), code.whole_sticks),
    ("opcode", _RUNS_CODE, code.opcodes),
    ("operand of an instruction", _RUNS_CODE, code.operand_numbers),
    ("form of an operand", _RUNS_CODE, code.forms),
    ("registers of an opcode", _RUNS_CODE, code.arity),
    ("constants", _RUNS_CODE, code.immediates),
    ("order of reads and writes", _RUNS_CODE, code.defined),
    ("kind of registers", _RUNS_CODE, code.kinds),
    ("number of registers", _RUNS_CODE, code.registers),
    ("phases", (Tile,), code.phases),
    ("operands of epilogues", (Tile,), code.epilogue_strides),
    ("sides of a copy", (Copy,), movement.copied),
    ("view of a copy", (Copy,), movement.views),
    ("rows of a gather", (Gather,), movement.rows),
    ("matrices of a product", (Matmul,), movement.matrices),
    ("topk", (Topk,), movement.chosen),
    ("transfers", (Ring,), movement.transfers),
    ("bytes of an operand", _ALL, places.room),
    ("points of each core", _RUNS_CODE, places.shares),
    ("results of each core", (Tile, Matmul, Topk, Copy), places.own_results),
)
"""In this order: a rule may rely on those before it."""


def check_steps(items: Sequence[Item], arguments: int) -> None:
    """Each step by itself, and the loops around them."""
    counts: list[int] = []
    for number, item in enumerate(items):
        if isinstance(item, LoopBegin):
            counts.append(item.count)
            if item.count < 1:
                raise BrokenRule("count of a loop", f"step {number}", item.count, "1 or more")
        elif isinstance(item, LoopEnd):
            if not counts:
                raise BrokenRule("loops", f"step {number}", "an end", "an end after a begin")
            counts.pop()
        else:
            check_step(item, Scope(tuple(counts), arguments), f"step {number}, {item.name}")
    if counts:
        raise BrokenRule("loops", "program", f"{len(counts)} without an end", "none")


def check_step(step: Step, scope: Scope, place: str) -> None:
    """All rules of its kind."""
    for rule, kinds, check in RULES:
        if isinstance(step, kinds):
            for found, allowed in check(step, scope):
                raise BrokenRule(rule, place, found, allowed)
