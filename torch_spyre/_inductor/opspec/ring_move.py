"""Moves of a tensor between scratchpads over the ring (`ringmove`).

In: the views that a tensor has and should have (`core_views`). Out: an OpSpec. Its dimensions are
the digits of `ring.Route`; `op_info["ring"]` has for each of its two tensors the slices of each
core that has a part, because no division of the operation says both.

Example: `op_info["ring"] == {"cores": 2, "input": {"splits": [2], "cores": {"0": [0], "1": [1]}},
"output": {"splits": [1], "cores": {"0": [0], "1": [0]}}}` gives both cores all of it.
"""

from __future__ import annotations

from typing import Any

import sympy

from torch_spyre._C import DataFormats
from torch_spyre._inductor.opspec.op_spec import OpSpec, TensorArg
from torch_spyre.card_model.core_slices import CoreView
from torch_spyre.card_model.cost_model import Work, ring_work
from torch_spyre.card_model.ring import route
from torch_spyre.opfuncs import OPFUNCS

RING_MOVE = "ringmove"


def ring_spec(source: CoreView, target: CoreView, form: DataFormats) -> OpSpec | None:
    """The move as an OpSpec; None where there is none."""
    way = route(source, target)
    if way is None or form.name not in OPFUNCS[RING_MOVE].formats:
        return None
    digits = way.digits[::-1]  # outermost first
    symbols = [sympy.Symbol(f"c{i}", integer=True, nonnegative=True) for i in range(len(digits))]
    sizes = [digit.size for digit in digits]
    size = [*(sizes or [1]), form.elems_per_stick()]
    coordinates = [*(symbols or [sympy.S.Zero]), sympy.S.Zero]
    args = [
        TensorArg(is_input, -1, form, list(size), list(coordinates), {"lx": 0})
        for is_input in (True, False)
    ]
    info: dict[str, Any] = {"cores": max(source.cores, target.cores)}
    for name, view in (("input", source), ("output", target)):
        slots = [d.source if name == "input" else d.target for d in digits]
        info[name] = {
            "splits": [1 if s is None else n for s, n in zip(slots, sizes)],
            "cores": {
                str(core): [0 if s is None else s[core] for s in slots]
                for core in view.holding_cores
            },
        }
    info["bytes"] = [source.own_bytes, target.own_bytes, way.ring_bytes, way.link_bytes]
    space = {symbol: (n, 1) for symbol, n in zip(symbols, sizes)}
    return OpSpec(RING_MOVE, False, space, args, {"ring": info})


def ring_parts(
    op: OpSpec, number: int, labels: list[str]
) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """Slices of each dimension, and those of each core, for one tensor of a move. Nothing for
    other operations."""
    if op.op != RING_MOVE:
        return {}, {}
    part = op.op_info["ring"]["input" if number == 0 else "output"]
    extra = len(labels) - len(part["splits"])  # the stick
    splits = dict(zip(labels, [*part["splits"], *[1] * extra]))
    own = {c: dict(zip(labels, [*s, *[0] * extra])) for c, s in part["cores"].items()}
    return splits, own


def work_of_ring(op: OpSpec) -> Work:
    """What a move costs."""
    info = op.op_info["ring"]
    return ring_work(info["cores"], *info["bytes"])
