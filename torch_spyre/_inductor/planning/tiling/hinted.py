"""`spyre_hint(num_tiles_per_dim=...)`: the loops that a program asks for.

In: the operations of a kernel, the names of their dimensions, and what hints say. Out: a tree of
operations and loops (`tiling`). Operations that follow one another with the same hints are a group;
of nested hints the outer one is the outer loop. A hint that cannot hold is refused, with the reason
and with what would be allowed.

Example: `with spyre_hint(num_tiles_per_dim={"M": 4}): y = torch.relu(x @ w)` is one loop that runs
four times over a matmul and a relufwd of a quarter of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby

import sympy

from torch_spyre._inductor.errors import Unsupported
from torch_spyre._inductor.layouts.to_op_spec import make_spec, outer_symbol_of
from torch_spyre._inductor.operations.operation import Buffer, Operation
from torch_spyre._inductor.opspec.op_spec import OpSpec
from torch_spyre._inductor.planning.tiling.accumulation import COMBINATIONS, Constants, accumulate
from torch_spyre._inductor.planning.tiling.loops import (
    Cut,
    Item,
    Node,
    Uses,
    build,
    can_tile,
    unit_of,
)
from torch_spyre.logs import get_logger

_log = get_logger("spyre.inductor.passes")

Names = Mapping[sympy.Symbol, str]
Levels = tuple[tuple[str, int], ...]


def resolve(
    operations: Sequence[Operation],
    specs: Sequence[OpSpec],
    names: Sequence[Names],
    constants: Constants,
    is_argument: Callable[[Buffer], bool],
) -> list[Node]:
    """The operations in the loops that hints ask for."""
    _check_names(operations, names)
    groups: list[tuple[Levels, list[Item]]] = []
    entries = zip(operations, specs, names, strict=True)
    for levels, group in groupby(entries, key=lambda entry: _levels(entry[0])):
        items: list[Item] = []
        for op, spec, own in group:
            items += _items(op, spec, own, levels, constants)
        groups.append((levels, items))
    uses = Uses((item for _, items in groups for item in items), is_argument)
    nodes: list[Node] = []
    for levels, items in groups:
        nodes += build(items, [Cut(count) for _, count in levels], uses)
    return nodes


def _levels(op: Operation) -> Levels:
    """Loops around an operation. One tile is no loop."""
    return tuple((name, count) for name, count in op.origin.tiles if count != 1)


def _check_names(operations: Sequence[Operation], names: Sequence[Names]) -> None:
    """Every name of a hint must be one of some operation with that hint."""
    present: dict[Levels, set[str]] = {}
    example: dict[Levels, Operation] = {}
    for op, own in zip(operations, names, strict=True):
        present.setdefault(op.origin.tiles, set()).update(own.values())
        example.setdefault(op.origin.tiles, op)
    for levels, known in present.items():
        for name, count in levels:
            if name not in known:
                allowed = ", ".join(map(repr, sorted(known)))
                raise _refusal(
                    example[levels], name, count, f"no dimension is named {name!r}",
                    f"the names {allowed}" if known else "none: name the dimensions of inputs with "
                    "declare_tensor_dim and name_tensor_dims",
                )  # fmt: skip


def _items(
    op: Operation, spec: OpSpec, names: Names, levels: Levels, constants: Constants
) -> list[Item]:
    """An operation with what each loop cuts of it; several, if it is a reduction over tiles."""
    cut: list[sympy.Symbol | None] = []
    reduced = []
    for number, (name, count) in enumerate(levels):
        variable = next((v for v in op.ranges if names.get(v) == name), None)
        if variable is not None and not can_tile(spec):
            if op.kind == "topk":
                _log.warning("topk is not cut into tiles of %r: it wants whole rows", name)
            variable = None
        cut.append(variable)
        if variable is None:
            continue
        _check_count(op, spec, variable, name, count, cut[:-1].count(variable))
        if variable in op.reduced:
            reduced.append((number, name, count))
    if len({name for _, name, _ in reduced}) > 1:
        _, name, count = reduced[-1]
        both = " and ".join(repr(name) for _, name, _ in reduced)
        raise _refusal(
            op, name, count, f"{both} are reduced, and both are cut",
            "tiles of one reduced dimension",
        )  # fmt: skip
    if not reduced:
        return [Item(op, spec, _symbols(op, cut))]
    _, name, count = reduced[0]
    if op.opfunc not in COMBINATIONS:
        raise _refusal(
            op, name, count, f"{op.opfunc} of tiles cannot be combined",
            f"tiles of dimensions that are kept, or reductions {', '.join(COMBINATIONS)}",
        )  # fmt: skip
    fill, partial, combine = accumulate(op, name, constants)
    inside = frozenset(len(levels) - number for number, _, _ in reduced)
    return [
        _item(fill, cut),
        Item(partial, spec, _symbols(op, cut)),
        _item(combine, cut, inside),
    ]


def _item(
    op: Operation, cut: Sequence[sympy.Symbol | None], inside: frozenset[int] = frozenset()
) -> Item:
    kept = [v if v in op.ranges else None for v in cut]
    return Item(op, make_spec(op), _symbols(op, kept), inside)


def _symbols(
    op: Operation, variables: Iterable[sympy.Symbol | None]
) -> tuple[sympy.Symbol | None, ...]:
    return tuple(None if v is None else outer_symbol_of(op, v) for v in variables)


def _check_count(
    op: Operation, spec: OpSpec, variable: sympy.Symbol, name: str, count: int, cuts_before: int
) -> None:
    """Tiles must be equal, and end where sticks do."""
    symbol = outer_symbol_of(op, variable)
    size, unit = spec.iteration_space[symbol][0], unit_of(spec, symbol)
    legal = [n for n in range(1, size + 1) if size % n == 0 and (n == 1 or size // n % unit == 0)]
    if cuts_before or count in legal:
        return  # tiles of tiles are checked when they are made
    why = f"{count} tiles do not divide {name!r}, which has {op.ranges[variable]} elements here"
    if op.ranges[variable] % count == 0:
        why = f"{count} tiles of {name!r} would end inside of sticks of {unit} elements"
        if unit == 1:
            why = f"{count} tiles of {name!r} would cut its parts, of which there are {size}"
    raise _refusal(op, name, count, why, f"for {name!r}: {', '.join(map(str, legal))}")


def _refusal(op: Operation, name: str, count: int, what: str, allowed: str) -> Unsupported:
    hint = f"num_tiles_per_dim={{{name!r}: {count}}}"
    return Unsupported(
        f"the hint {hint} cannot hold for {op.opfunc}: {what}; allowed: {allowed}",
        op=op.origin.aten,
        source=op.origin.source,
        hint="change the hint, or set SPYRE_INDUCTOR_IGNORE_HINTS=1",
    )
