"""Layout constraints of an operation, and the cost of the copies that satisfy them.

In: an operation and a layout for each of its buffers. Out: the copies that it requires and their
cost, the number of elements moved. Nothing is inserted here; stickify asks for every candidate, and
restickify.py inserts for the final choice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import sympy
import torch

from torch_spyre._C import ElementArrangement, SpyreTensorLayout
from torch_spyre._inductor.layouts.access_walk import Walk, walk
from torch_spyre._inductor.layouts.stick_layouts import STANDARD, WIDENED
from torch_spyre._inductor.operations.error_location import located
from torch_spyre._inductor.operations.operation import (
    Access,
    Buffer,
    Operation,
    row_sticks,
    table_of,
)

MOMENTS_READERS = ("layernormscale", "layernormnorm")
"""OpFuncs that look into an EXX2 stick; to others it is a tensor of means."""


OTHER_ORDER = "its sticks are in the order that a cast left"


@dataclass(frozen=True)
class Need:
    """An access that does not fit, and the symbol that its stick should be (None: sparse)."""

    position: int
    """Index of the input; -1 for the output."""
    stick: sympy.Symbol | None
    elements: int
    why: str
    arrangement: ElementArrangement = STANDARD
    include: tuple[sympy.Symbol, ...] = ()
    """Symbols that the copy must have although the access does not vary along them."""


Assignment = dict[Buffer, SpyreTensorLayout]


def points(symbols: Iterable[sympy.Symbol], ranges: dict[sympy.Symbol, int]) -> int:
    return math.prod(ranges[v] for v in symbols if v in ranges)


def walk_of(access: Access, op: Operation, layouts: Assignment) -> Walk | None:
    layout = layouts.get(access.buffer) or access.buffer.layout
    assert layout is not None, access
    found = walk(access.index, op.ranges, layout)
    if found is not None and layout.element_arrangement == WIDENED:
        return found if _takes_pairs(access.index, found, layout) else None
    return found


def _takes_pairs(index: sympy.Expr, found: Walk, layout: SpyreTensorLayout) -> bool:
    """Whether an access has both sticks of each pair that a cast has made of one: the elements of a
    16-bit stick are spread over both, so that neither alone has a contiguous part of them."""
    eps = layout.elems_per_stick()
    if found.stick is not None:
        begin, left = found.end - found.size, found.size % (2 * eps)
        return found.end >= 0 and begin % (2 * eps) == 0 and (left == 0 or left > eps)
    # Single elements: the first one of a pair is where it would be in any order.
    step = eps * layout.stride_map[-1]
    expression = sympy.expand(index)
    factors = [expression.coeff(v) for v in expression.free_symbols]
    return expression.subs(dict.fromkeys(expression.free_symbols, 0)) == 0 and all(
        f.is_Integer and (f % step != 0 or f % (2 * step) == 0) for f in factors
    )


def rows_are_readable(access: Access, op: Operation) -> bool:
    """Whether a gather or a scatter can read its row numbers where they lie. A single number has to
    be the first of its tensor: without a symbol there is nothing that could say which one it is."""
    found = walk_of(access, op, {})
    return found is not None and (bool(access.index.free_symbols) or access.index == 0)


def _table_walk(op: Operation, layouts: Assignment) -> Walk | None:
    """Of the table of a gather, a scatter or a product; the row index is a loop of its own."""
    access = table_of(op)
    layout = layouts.get(access.buffer) or access.buffer.layout
    assert layout is not None
    ranges = dict(op.ranges)
    for symbol in op.gather:
        ranges[symbol] = op.info["rows"][symbol]
        if ranges[symbol] > 1 and access.index.coeff(symbol) not in layout.stride_map:
            return None  # rows of a view, several steps apart
    return walk(access.index, ranges, layout)


def _writes_whole_sticks(access: Access, found: Walk, layout: SpyreTensorLayout) -> bool:
    """Whether the lanes that a write leaves over in its last stick are padding."""
    if found.stick is None:
        return True
    if found.size % layout.elems_per_stick() == 0:
        return True
    return found.end == _stick_row(access, layout)


def _stick_row(access: Access, layout: SpyreTensorLayout) -> int:
    """Elements along the dimension of the sticks; 0 where there is none."""
    stride = layout.stride_map[-1]
    size, strides = access.buffer.placed or (access.buffer.size, access.buffer.stride)
    return next((n for n, s in zip(size, strides, strict=True) if s == stride and n > 1), 0)


def _ends_too_early(op: Operation, access: Access, found: Walk | None, layouts: Assignment) -> bool:
    """Whether an input of half as wide sticks has, from where its view begins, fewer of them than
    the wide ones of others take: of 97 float32 from 32 on there are 3 sticks, and a cast of these
    65 to 16 bits takes 4. From the begin on, the layout says where they end."""
    if found is None or found.stick is None or found.end <= found.size:
        return False
    layout = _layout_in(access, layouts)
    walks = [(walk_of(a, op, layouts), _layout_in(a, layouts)) for a in (*op.inputs, op.output)]
    unit = max(a.elems_per_stick() for w, a in walks if w is not None and w.stick == found.stick)
    eps = layout.elems_per_stick()
    if unit <= eps:
        return False
    taken = found.end - found.size + -(-found.size // unit) * unit
    return taken > -(-_stick_row(access, layout) // eps) * eps


def needs(op: Operation, layouts: Assignment) -> list[Need]:
    """The copies that an operation needs with the given layouts."""
    found = _stick_needs(op, layouts)
    if op.kind == "copy" and found:
        return found
    found += _order_needs(op, layouts, found)
    out_of_place = any(n.position < 0 for n in found)
    moved = {n.position for n in found}
    result = []
    for need in found:
        wanted = STANDARD
        if need.position >= 0 and need.stick is not None and not out_of_place:
            wanted = _order_wanted(op, layouts, STANDARD)
        # One element per stick: whole sticks are written for single elements.
        spread = need.stick is None and need.elements > 1
        out = _layout_in(op.output, layouts)
        elements = need.elements * (out.elems_per_stick() if spread else 1)
        result.append(replace(need, arrangement=wanted, elements=elements))
    for position, access in enumerate(op.inputs):
        if position in moved or (op.gather and access is table_of(op)):
            continue
        order = _layout_in(access, layouts).element_arrangement
        wanted = STANDARD if out_of_place else _order_wanted(op, layouts, order)
        if order == wanted or WIDENED not in (order, wanted):
            continue
        walked = walk_of(access, op, layouts)
        if walked is not None and walked.stick is not None:
            used = points(access.index.free_symbols, op.ranges)
            result.append(Need(position, walked.stick, used, OTHER_ORDER, wanted))
    return result


def _order_needs(op: Operation, layouts: Assignment, found: list[Need]) -> list[Need]:
    """An output whose sticks are in the order of a cast, for an operation that cannot write it."""
    if _layout_in(op.output, layouts).element_arrangement != WIDENED or op.kind == "scatter":
        return []
    if op.opfunc == "dl16tofp32" or keeps_order(op) or any(n.position < 0 for n in found):
        return []
    out = walk_of(op.output, op, layouts)
    if out is None or out.stick is None:
        return []  # single elements lie where they lie in either order: in the first lane
    return [Need(-1, out.stick, points(op.kept, op.ranges), OTHER_ORDER)]


def _layout_in(access: Access, layouts: Assignment) -> SpyreTensorLayout:
    layout = layouts.get(access.buffer) or access.buffer.layout
    assert layout is not None, access
    return layout


def keeps_order(op: Operation) -> bool:
    """Whether an operation works lane by lane on float32: it may keep any order of the lanes."""
    if op.kind not in ("pointwise", "reduction", "copy"):
        return False
    return all(a.buffer.dtype is torch.float32 for a in (*op.inputs, op.output))


def _order_wanted(
    op: Operation, layouts: Assignment, own: ElementArrangement
) -> ElementArrangement:
    """The order in which an operation wants the sticks of an input that has the order `own`."""
    if op.opfunc == "fp32todl16":
        return own  # this cast undoes the order of the other one
    if keeps_order(op):
        walked = walk_of(op.output, op, layouts)
        if walked is not None and walked.stick is not None:
            return _layout_in(op.output, layouts).element_arrangement
        if op.kind == "reduction":
            return own
    return STANDARD


def _stick_needs(op: Operation, layouts: Assignment) -> list[Need]:
    """Copies that are needed because stick dimensions disagree."""
    out_layout = layouts.get(op.output.buffer) or op.output.buffer.layout
    assert out_layout is not None
    if op.kind == "scatter":
        return _scatter_needs(op, layouts, out_layout)
    out = walk_of(op.output, op, layouts)
    direct = out is not None and _writes_whole_sticks(op.output, out, out_layout)
    kept = points(op.kept, op.ranges)
    if op.kind == "matmul":
        return _matmul_needs(op, layouts, out if direct else None, kept)
    if op.kind == "gather":
        return _gather_needs(op, layouts, out if direct else None, kept)
    wanted = out.stick if direct and out is not None else _natural_stick(op, layouts)
    result = []
    rows = _moments_of(op, layouts)
    if wanted in rows:  # a copy of a single element would lose the variance
        wanted = next((v for v in reversed(op.kept) if v not in rows), None)
        result.append(Need(-1, wanted, kept, "mean and variance of a row stay in one stick"))
    elif not direct:
        result.append(Need(-1, wanted, kept, "it is written into a part of a stick"))
    if op.kind == "reduction" or op.kind == "topk":
        return result + _reduction_needs(op, layouts, wanted)
    for position, access in enumerate(op.inputs):
        found = walk_of(access, op, layouts)
        why = _mismatch(found, wanted)
        if not why and _ends_too_early(op, access, found, layouts):
            why = "its view ends with a part of a wider stick of others"
        if why:
            used = access.index.free_symbols
            stick = wanted if wanted in used else None
            result.append(Need(position, stick, points(used, op.ranges), why))
    return result


def _moments_of(op: Operation, layouts: Assignment) -> set[sympy.Symbol]:
    """The rows whose mean and variance an operation reads, each pair from a stick of its own."""
    rows: set[sympy.Symbol] = set()
    for access in op.inputs if op.opfunc in MOMENTS_READERS else ():
        if _layout_in(access, layouts).element_arrangement == ElementArrangement.EXX2:
            rows |= access.index.free_symbols
    return rows


def _gather_needs(op: Operation, layouts: Assignment, out: Walk | None, kept: int) -> list[Need]:
    legal = row_sticks(op)
    found = _table_walk(op, layouts)
    result = []
    if out is not None and (out.stick is None or out.stick in legal):
        wanted = out.stick
    else:
        natural = found.stick if found is not None and found.stick in legal else None
        wanted = natural or (legal[-1] if legal else None)
        result.append(Need(-1, wanted, kept, "a gather moves whole sticks"))
    if found is None or found.stick != wanted:
        table = op.inputs[0].buffer.elements
        result.append(Need(0, wanted, table, "a gather moves whole sticks"))
    elif _layout_in(op.inputs[0], layouts).element_arrangement == WIDENED:
        result.append(Need(0, wanted, op.inputs[0].buffer.elements, OTHER_ORDER))
    return result


def _scatter_needs(op: Operation, layouts: Assignment, layout: SpyreTensorLayout) -> list[Need]:
    """A table whose sticks are cut by rows is changed in a copy, which is copied back."""
    legal = row_sticks(op)
    table = _table_walk(op, layouts)
    fits = table is not None and table.stick in legal and layout.element_arrangement == STANDARD
    result = []
    if table is not None and fits and _writes_whole_sticks(op.output, table, layout):
        wanted = table.stick
    else:
        wanted = legal[-1]
        elements = 2 * op.output.buffer.elements
        result.append(Need(-1, wanted, elements, "a scatter moves whole sticks"))
    access = op.inputs[0]
    found = walk_of(access, op, layouts)
    used = access.index.free_symbols
    missing = () if wanted in used else (wanted,)
    if found is None or found.stick != wanted or missing:
        elements = points((*used, *missing), op.ranges)
        result.append(Need(0, wanted, elements, "a scatter moves whole sticks", include=missing))
    return result


def _mismatch(found: Walk | None, wanted: sympy.Symbol | None) -> str:
    """Why an input does not fit; empty when it does."""
    if found is None:
        return "its view does not begin or end with whole sticks"
    if found.stick is not None and found.stick != wanted:
        return "its sticks lie along another dimension"
    if found.stick is None and wanted is not None and wanted in found.outer:
        return "it has one element per stick where whole sticks are read"
    if found.stick is not None and found.stick in found.outer:
        return "its sticks lie along another dimension"
    return ""


def _natural_stick(op: Operation, layouts: Assignment) -> sympy.Symbol | None:
    """The stick that costs an operation least when its output does not decide."""
    votes: dict[sympy.Symbol | None, int] = {}
    for access in op.inputs:
        found = walk_of(access, op, layouts)
        if found is None or not (found.stick in op.kept or (found.stick is None and found.outer)):
            continue
        moved = points(access.index.free_symbols, op.ranges)
        votes[found.stick] = votes.get(found.stick, 0) + moved
    if votes:
        return max(votes, key=lambda v: (votes[v], str(v)))
    return op.kept[-1] if op.kept else None


def _reduction_needs(op: Operation, layouts: Assignment, wanted: sympy.Symbol | None) -> list[Need]:
    access = op.inputs[0]
    found = walk_of(access, op, layouts)
    elements = points(op.ranges, op.ranges)
    if op.kind == "topk":
        return _topk_needs(op, found, wanted, elements)
    if wanted is not None:
        if found is not None and found.stick == wanted:
            return []
        missing = () if wanted in access.index.free_symbols else (wanted,)
        return [Need(0, wanted, elements, "the result has its sticks there", include=missing)]
    # A sparse result: the stick is reduced, or there is none.
    if found is not None:
        sparse = found.stick is None and op.opfunc != "exx2"
        if sparse or found.stick in op.reduced:
            return []
    along = op.reduced[-1]
    missing = (along,) if op.opfunc == "exx2" and along not in access.index.free_symbols else ()
    return [Need(0, along, elements, "the reduction goes along the sticks", include=missing)]


def _topk_needs(
    op: Operation, found: Walk | None, wanted: sympy.Symbol | None, elements: int
) -> list[Need]:
    """Whole sticks are compared; an input that is expanded has to be there for each place."""
    used = op.inputs[0].index.free_symbols
    missing = tuple(v for v in op.ranges if v not in used and v != op.info["k_symbol"])
    if found is not None and found.stick == wanted and not missing:
        return []
    why = "topk compares sticks, not lanes" if wanted is None else "the result has its sticks there"
    return [Need(0, wanted, elements, why, include=missing)]


def matmul_symbols(
    op: Operation,
) -> tuple[sympy.Symbol | None, sympy.Symbol | None]:
    """K and N: reduced, and in y and the result but not in x. None: of size 1."""
    k = op.reduced[0] if op.reduced else None
    return k, op.info["n"]


def _matmul_needs(op: Operation, layouts: Assignment, out: Walk | None, kept: int) -> list[Need]:
    k, n = matmul_symbols(op)
    result = []
    x, y = (access.index.free_symbols for access in op.inputs)
    rows = [v for v in op.kept if v not in x and v not in y and v != n]
    wants = ((k, [k, *rows], "matmul wants x with its sticks along K"),
             (n, [k, n], "matmul wants y with its sticks along N"))  # fmt: skip
    for position, (stick, along, why) in enumerate(wants):
        access = op.inputs[position]
        is_table = bool(op.gather) and position == 1
        found = _table_walk(op, layouts) if is_table else walk_of(access, op, layouts)
        missing = tuple(v for v in along if v is not None and v not in access.index.free_symbols)
        bad = found is None or found.stick != stick or (stick is not None and stick in found.outer)
        if bad or missing or (found is not None and found.spread & {k, n}):
            elements = points((*access.index.free_symbols, *missing), op.ranges)
            if is_table:
                elements = access.buffer.elements
            result.append(Need(position, stick, elements, why, include=missing))
        elif is_table and _layout_in(access, layouts).element_arrangement == WIDENED:
            result.append(Need(position, stick, access.buffer.elements, OTHER_ORDER))
    if out is None or out.stick != n or n in out.spread:
        result.append(Need(-1, n, kept, "matmul gives its result with sticks along N"))
    return result


@located
def cost(op: Operation, layouts: Assignment) -> float:
    """Elements that are copied because of the layouts; a copy that moves sticks costs once."""
    found = needs(op, layouts)
    if op.kind == "copy":
        return min(sum(n.elements for n in found), points(op.ranges, op.ranges)) * 0.5
    return sum(n.elements * _weight(op, n) for n in found)


def _weight(op: Operation, need: Need) -> float:
    """A copy of a parameter is hoisted: it costs once, not in every call."""
    source = op.inputs[need.position].buffer if need.position >= 0 else None
    return 0.001 if source is not None and source.static and not source.written else 1.0
