"""Layout conversion copies: restickify, and relayout across sticks.

In: operations whose buffers have layouts. Out: operations in which every access can be written as
coordinates. A copy is made once and shared by all users of the same elements in the same form.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import sympy

from torch_spyre._C import ElementArrangement
from torch_spyre._inductor.errors import NoLayout, describe_layout
from torch_spyre._inductor.layouts import to_op_spec
from torch_spyre._inductor.layouts.requirements import (
    Need,
    needs,
    points,
    rows_are_readable,
    walk_of,
)
from torch_spyre._inductor.layouts.stick_layouts import SPARSE, STANDARD, layout_of
from torch_spyre._inductor.operations.error_location import located
from torch_spyre._inductor.operations.index_expressions import Atom, linear_index
from torch_spyre._inductor.operations.operation import (
    Access,
    Buffer,
    HoistedCopy,
    Operation,
    contiguous_strides,
    table_of,
)
from torch_spyre._inductor.opspec.coordinates import Misaligned
from torch_spyre._inductor.opspec.op_spec import OpSpec


@dataclass(frozen=True)
class Restickify:
    """A copy that the compiler added, for `explain` and the debug files."""

    buffer: str
    elements: int
    source_layout: str
    target_layout: str
    reason: str
    operation: str
    node: str
    source: str


@dataclass
class Copies:
    """Inserts copies, with common subexpression elimination."""

    operations: list[Operation] = field(default_factory=list)
    restickifies: list[Restickify] = field(default_factory=list)
    _made: dict[object, Buffer] = field(default_factory=dict)
    _versions: dict[Buffer, int] = field(default_factory=dict)
    _count: int = 0
    _needs: dict[object, list[Need]] = field(default_factory=dict)
    _specs: dict[object, OpSpec] = field(default_factory=dict)
    """By the content of operations: layers that are alike need the same."""

    def forget(self) -> None:
        """Clear the table of shared copies."""
        self._made.clear()

    @located
    def add(self, op: Operation) -> None:
        """Append an operation, with the copies it needs around it."""
        op = self._with_readable_rows(op)
        content = op.content()
        found = self._needs.get(content)
        if found is None:
            found = self._needs[content] = needs(op, {})
        if op.kind == "copy":
            self._append(self._as_copy(op))
            return
        inputs = list(op.inputs)
        after: Operation | None = None
        output = op.output
        for need in found:
            if need.position >= 0:
                inputs[need.position] = self.copy_of(inputs[need.position], op, need)
            elif op.kind == "scatter":
                output, after = self._through_table(op, need)
            else:
                output, after = self._into_temporary(op, need)
        self._append_aligned(replace(op, inputs=inputs, output=output))
        if after is not None:
            self._append(self._as_copy(after))

    def _append_aligned(self, op: Operation) -> None:
        """Append an operation; where its accesses do not fit together, copies make them plain."""
        content = op.content()
        op.spec = self._specs.get(content)
        if op.spec is not None:
            self._append(op)
            return
        after: Operation | None = None
        try:
            op.spec = self._specs[content] = to_op_spec.make_spec(op)
        except Misaligned as problem:
            op, after = self._aligned_by_copies(op, str(problem))
        self._append(op)
        if after is not None:
            self._append(self._as_copy(after))

    def _aligned_by_copies(self, op: Operation, problem: str) -> tuple[Operation, Operation | None]:
        """The operation on plain copies, and the way back if its result needs one as well.

        First views are copied, then tensors that were made for another shape, one after the other.
        """
        why = f"its view does not fit the other operands ({problem})"
        plain = replace(op, inputs=list(op.inputs))
        table = table_of(op) if op.gather else None
        movable = [i for i, a in enumerate(op.inputs) if a is not table and not _is_moments(a)]
        views = [i for i in movable if not _is_plain(op.inputs[i], op)]
        folded = [i for i in movable if i not in views and _is_folded(op.inputs[i], op)]
        for positions in (views, *([i] for i in folded)):
            for position in positions:
                access = op.inputs[position]
                need = Need(position, *_form_of(access, op, why))
                plain.inputs[position] = self.copy_of(access, op, need)
            with contextlib.suppress(Misaligned):
                plain.spec = to_op_spec.make_spec(plain)
                return plain, None
        plain.output, after = self._into_temporary(plain, Need(-1, *_form_of(op.output, op, why)))
        plain.spec = to_op_spec.make_spec(plain)
        return plain, after

    def _append(self, op: Operation) -> None:
        self.operations.append(op)
        buffer = op.output.buffer
        self._versions[buffer] = self._versions.get(buffer, 0) + 1

    def _with_readable_rows(self, op: Operation) -> Operation:
        """A gather or a scatter whose row numbers can be written as coordinates: a slice of a
        table of them that begins inside of a stick is copied to the front of one."""
        moved = {symbol: access for symbol, access in op.gather.items()
                 if not rows_are_readable(access, op)}  # fmt: skip
        if not moved:
            return op
        why = "the row numbers do not begin with a stick"
        copies = {symbol: self._copy_of_view(access, op, Need(0, *_form_of_rows(access, op), why))
                  for symbol, access in moved.items()}  # fmt: skip
        return replace(op, gather={**op.gather, **copies})

    def copy_of(self, access: Access, op: Operation, need: Need) -> Access:
        """The same elements in a buffer of their own, with the stick where it is needed."""
        if op.gather and access is table_of(op):
            return self._copy_of_table(access, op, need)
        return self._copy_of_view(access, op, need)

    def _copy_of_view(self, access: Access, op: Operation, need: Need) -> Access:
        used = access.index.free_symbols | set(need.include)
        symbols = [v for v in op.ranges if v in used]
        size = tuple(op.ranges[v] for v in symbols)
        linear = linear_index(access.index, op.ranges)
        where = symbols.index(need.stick) if need.stick in symbols else SPARSE
        view = tuple(
            (symbols.index(a.symbol), a.coefficient, a.divisor, a.modulus) for a in linear.atoms
        )
        version = self._versions.get(access.buffer, 0)
        key = (access.buffer, version, size, view, linear.offset, where, need.arrangement)
        buffer = self._made.get(key)
        target = None
        if buffer is None:
            buffer = self._temporary(access.buffer, size, where, need.arrangement)
            target = Access(buffer, buffer.index(list(symbols)))
            ranges = {v: op.ranges[v] for v in symbols}
            if access.buffer.static and not access.buffer.written:
                self._hoist(access, target, ranges, op, need)
            else:
                self._emit_copy(access, target, ranges, op, need)
            self._made[key] = buffer
        return target or Access(buffer, buffer.index(list(symbols)))

    def _hoist(
        self,
        source: Access,
        target: Access,
        ranges: dict[sympy.Symbol, int],
        op: Operation,
        need: Need,
    ) -> None:
        """Hoist the copy of a parameter out of the kernel: host code makes it once."""
        why = f"{need.why}; once, because it is a parameter"
        copy = Operation("identity", "copy", dict(ranges), (), [source], target, {}, op.origin,
                         reason=why)  # fmt: skip
        self._note(copy)
        copy = affine(copy)  # the parts of a dimension follow each other, as they do in the copy
        linear = linear_index(copy.inputs[0].index, copy.ranges)
        steps = dict.fromkeys(copy.ranges, 0)
        for atom in linear.atoms:
            steps[atom.symbol] += atom.coefficient
        size, stride = tuple(copy.ranges.values()), tuple(steps.values())
        target.buffer.hoisted = HoistedCopy(source.buffer, size, stride, linear.offset)
        target.buffer.written = False

    def _through_table(self, op: Operation, need: Need) -> tuple[Access, Operation]:
        """A copy of a scatter's table in which its rows are whole sticks, and the way back."""
        inside = self._copy_of_table(op.output, op, need)
        table = op.output.buffer
        source, target, ranges = _whole(inside.buffer, table)
        after = Operation("identity", "copy", ranges, (), [source], target, {}, op.origin,
                          reason=need.why)  # fmt: skip
        self.forget()  # the copy is written to, so it must not be shared
        return inside, after

    def _copy_of_table(self, access: Access, op: Operation, need: Need) -> Access:
        """A table as a whole, with its sticks along a dimension that is not indexed."""
        table = access.buffer
        stick_dim = SPARSE
        for d, (n, s) in enumerate(zip(table.size, table.stride)):
            if need.stick is not None and n > 1 and access.index.coeff(need.stick) == s:
                stick_dim = d
        key = (table, self._versions.get(table, 0), "table", stick_dim)
        buffer = self._made.get(key)
        if buffer is None:
            buffer = self._temporary(table, table.size, stick_dim)
            source, target, ranges = _whole(table, buffer)
            if table.static and not table.written:
                self._hoist(source, target, ranges, op, need)
            else:
                self._emit_copy(source, target, ranges, op, need)
            self._made[key] = buffer
        index = access.index
        replaced = sympy.S.Zero
        offset = int(index.subs(dict.fromkeys(index.free_symbols, 0)))
        dims = [(s, n, d) for d, (n, s) in enumerate(zip(table.size, table.stride)) if n > 1]
        for s, _, d in sorted(dims, reverse=True):
            first, offset = divmod(offset, s)
            replaced += first * buffer.stride[d]
            for symbol in index.free_symbols:
                if index.coeff(symbol) == s:
                    replaced += symbol * buffer.stride[d]
        return Access(buffer, replaced)

    def _temporary(
        self,
        source: Buffer,
        size: tuple[int, ...],
        stick: int,
        arrangement: ElementArrangement = STANDARD,
    ) -> Buffer:
        self._count += 1
        stride = contiguous_strides(size)
        buffer = Buffer(f"{source.name}_r{self._count}", size, stride, source.dtype, written=True)
        if stick == SPARSE or size[stick] == 1:
            arrangement = STANDARD
        buffer.layout = layout_of(size, stride, source.dtype, stick, arrangement)
        return buffer

    def _emit_copy(
        self,
        source: Access,
        target: Access,
        ranges: dict[sympy.Symbol, int],
        op: Operation,
        need: Need,
    ) -> None:
        copy = Operation("identity", "copy", dict(ranges), (), [source], target, {}, op.origin,
                         reason=need.why)  # fmt: skip
        self._append(self._as_copy(copy))

    def _into_temporary(self, op: Operation, need: Need) -> tuple[Access, Operation]:
        symbols = op.kept
        size = tuple(op.ranges[v] for v in symbols)
        where = symbols.index(need.stick) if need.stick in symbols else SPARSE
        buffer = self._temporary(op.output.buffer, size, where, need.arrangement)
        access = Access(buffer, buffer.index(list(symbols)))
        ranges = {v: op.ranges[v] for v in symbols}
        after = Operation("identity", "copy", ranges, (), [access], op.output, {}, op.origin,
                          reason=need.why)  # fmt: skip
        return access, after

    def _as_copy(self, op: Operation) -> Operation:
        """An identity whose sides do not correspond: a restickify, or a relayout across sticks."""
        if not needs(op, {}):
            with contextlib.suppress(Misaligned):  # strided views may still not be expressible
                op.spec = to_op_spec.make_spec(op)
                return op
        op = affine(op)
        source, target = op.inputs[0], op.output
        assert source.buffer.layout is not None and target.buffer.layout is not None
        a, b = (walk_of(x, op, {}) for x in (source, target))
        simple = (
            a is not None and b is not None and a.stick is not None and b.stick is not None
            and a.stick != b.stick and a.stick in b.outer and b.stick in a.outer
            and source.index.free_symbols == target.index.free_symbols
            and source.buffer.layout.element_arrangement == STANDARD
            and target.buffer.layout.element_arrangement == STANDARD
            and _covers(source, op) and _covers(target, op)
            and source.buffer.placed is None and target.buffer.placed is None
        )  # fmt: skip
        self._note(op)
        if simple:
            with contextlib.suppress(Misaligned):
                moved = replace(op, opfunc="ReStickifyOpHBM")
                moved.spec = to_op_spec.make_spec(moved)
                return moved
        return replace(op, opfunc="relayout")

    def _note(self, op: Operation) -> None:
        """Record a copy for reports."""
        source, target = op.inputs[0], op.output
        assert source.buffer.layout is not None and target.buffer.layout is not None
        self.restickifies.append(
            Restickify(
                source.buffer.name,
                points(op.ranges, op.ranges),
                describe_layout(source.buffer.layout),
                describe_layout(target.buffer.layout),
                op.reason or "the program copies it into another layout",
                op.origin.aten or op.origin.node,
                op.origin.node,
                op.origin.source,
            )
        )


def _whole(source: Buffer, target: Buffer) -> tuple[Access, Access, dict[sympy.Symbol, int]]:
    """Two buffers of one shape, element by element."""
    symbols = [sympy.Symbol(f"p{d}", integer=True, nonnegative=True)
               for d in range(len(source.size))]  # fmt: skip
    ranges = {v: n for v, n in zip(symbols, source.size) if n != 1}
    terms: list[sympy.Expr] = [v if n != 1 else sympy.S.Zero for v, n in zip(symbols, source.size)]
    return Access(source, source.index(terms)), Access(target, target.index(terms)), ranges


def _is_plain(access: Access, op: Operation) -> bool:
    """Whether an access is that of a contiguous tensor over its own symbols, or of a scalar."""
    symbols = [v for v in op.ranges if v in access.index.free_symbols]
    size = tuple(op.ranges[v] for v in symbols)
    buffer = Buffer("", size, contiguous_strides(size), access.buffer.dtype)
    return access.buffer.elements == buffer.elements and access.index == buffer.index(list(symbols))


def _is_folded(access: Access, op: Operation) -> bool:
    """Whether the dimensions that the layout was made for are not those of the operation."""
    symbols = [v for v in op.ranges if v in access.index.free_symbols]
    size, _ = access.buffer.placed or (access.buffer.size, access.buffer.stride)
    return [n for n in size if n > 1] != [op.ranges[v] for v in symbols]


def _form_of_rows(access: Access, op: Operation) -> tuple[sympy.Symbol | None, int]:
    """Stick and elements of a copy of row numbers."""
    symbols = [v for v in op.ranges if v in access.index.free_symbols]
    return (symbols[-1] if symbols else None), points(symbols, op.ranges)


def _is_moments(access: Access) -> bool:
    """Whether it is a result of exx2: a copy would hold the mean alone."""
    layout = access.buffer.layout
    return layout is not None and layout.element_arrangement == ElementArrangement.EXX2


def _form_of(
    access: Access, op: Operation, why: str
) -> tuple[sympy.Symbol | None, int, str, ElementArrangement]:
    """Stick, elements, reason and order of a copy in the same form."""
    found = walk_of(access, op, {})
    assert access.buffer.layout is not None
    stick = None if found is None else found.stick
    elements = points(access.index.free_symbols, op.ranges)
    return stick, elements, why, access.buffer.layout.element_arrangement


def _covers(access: Access, op: Operation) -> bool:
    """Whether an access goes over all of a buffer, dimension by dimension."""
    linear = linear_index(access.index, op.ranges)
    moves = _joined([(a.coefficient, a.size) for a in linear.atoms])
    shape = _joined(zip(access.buffer.stride, access.buffer.size))
    return linear.offset == 0 and moves == shape and all(a.plain for a in linear.atoms)


def _joined(dims: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Strides and sizes, innermost first; those that go on where another one ends are one with it,
    so that 6 heads of 64 columns are the 384 columns of the tensor that they are a view of."""
    found: list[tuple[int, int]] = []
    for stride, size in sorted(d for d in dims if d[1] > 1):
        if found and stride == found[-1][0] * found[-1][1]:
            found[-1] = (found[-1][0], found[-1][1] * size)
        else:
            found.append((stride, size))
    return found


def affine(op: Operation) -> Operation:
    """The same copy over symbols of which every index is a plain sum."""
    accesses = [*op.inputs, op.output]
    cuts: dict[sympy.Symbol, set[int]] = {}
    for access in accesses:
        for atom in linear_index(access.index, op.ranges).atoms:
            if not atom.plain:
                cuts.setdefault(atom.symbol, set()).update(_cuts(atom))
    if not cuts:
        return op
    ranges: dict[sympy.Symbol, int] = {}
    pieces: dict[sympy.Symbol, list[tuple[sympy.Symbol, int, int]]] = {}
    for symbol, size in op.ranges.items():
        bounds = sorted({1, size, *(c for c in cuts.get(symbol, ()) if c < size)})
        if any(b % a for a, b in pairwise(bounds)):
            raise NoLayout(f"cannot divide {symbol} of size {size} at {bounds}")
        parts = []
        for i in range(len(bounds) - 2, -1, -1):
            name = (
                symbol if i == 0 else sympy.Symbol(f"{symbol}_{i}", integer=True, nonnegative=True)
            )
            ranges[name] = bounds[i + 1] // bounds[i]
            parts.append((name, bounds[i], bounds[i + 1]))
        pieces[symbol] = parts
    moved = [Access(a.buffer, _substitute(a, op, pieces)) for a in accesses]
    return replace(op, ranges=ranges, inputs=moved[:-1], output=moved[-1])


def _cuts(atom: Atom) -> set[int]:
    return {atom.divisor, *({atom.divisor * atom.modulus} if atom.modulus else set())}


def _substitute(
    access: Access, op: Operation, pieces: dict[sympy.Symbol, list[tuple[sympy.Symbol, int, int]]]
) -> sympy.Expr:
    linear = linear_index(access.index, op.ranges)
    total = sympy.Integer(linear.offset)
    for atom in linear.atoms:
        top = atom.divisor * atom.modulus if atom.modulus else math.inf
        for name, low, high in pieces[atom.symbol]:
            if low >= atom.divisor and high <= top:
                total += atom.coefficient * (low // atom.divisor) * name
    return total
