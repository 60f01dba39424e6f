"""Cost of an operation for a given division: the front-end's interface to the cost model.

In: an aligned OpSpec. Out: a Pricer, which gives the Work of the operation for any slices, and so
its Price (card_model/cost_model.py). The back-end prices the same operation from its
SuperDSC; a test checks that both agree.

Example: `Pricer(op).price({c0: 32, c1: 1}).us`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

import sympy

from torch_spyre import opfuncs
from torch_spyre._inductor.opspec.access import Access, kind_of, read_accesses
from torch_spyre._inductor.opspec.op_spec import OpSpec
from torch_spyre._inductor.opspec.relayout import relayout_info
from torch_spyre._inductor.opspec.ring_move import RING_MOVE, work_of_ring
from torch_spyre.card_model.cost_model import (
    Dim,
    Flow,
    Price,
    TensorUse,
    Work,
    flow,
    placed_flow,
    price,
    relayout_work,
    work,
)

Slices = Mapping[sympy.Symbol, int]

_EXTRA_STICK = "lanes of a stick that no dimension walks over"


def slices_of(op: OpSpec) -> dict[sympy.Symbol, int]:
    """The division that an operation has."""
    return {symbol: slices for symbol, (_, slices) in op.iteration_space.items()}


class Content:
    """An operation, equal to others that differ in addresses alone."""

    def __init__(self, op: OpSpec, *, divided: bool = True) -> None:
        """With `divided` false, other slices do not make it another one."""
        self.op = op
        args = tuple([
            (a.is_input, a.device_dtype, tuple(a.device_size), tuple(a.device_coordinates),
             tuple(a.stride_map or ()), a.name, a.element_arrangement)
            for a in op.args
        ])  # fmt: skip
        info = repr(op.op_info) if op.op_info else ""
        space = tuple([(s, n if divided else n[0]) for s, n in op.iteration_space.items()])
        self._key = (op.op, space, args, info)
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Content) and self._key == other._key


def modelled_us(op: OpSpec, in_lx: tuple[bool, ...]) -> float:
    """Modelled time of an operation as divided, with some of its tensors in scratchpads."""
    return _pricer(Content(op, divided=False)).us(slices_of(op), in_lx)


@lru_cache(maxsize=4096)
def _pricer(content: Content) -> Pricer:
    return Pricer(content.op)


class Pricer:
    """Prices one operation for any division of it."""

    def __init__(self, op: OpSpec, accesses: list[Access] | None = None) -> None:
        row = opfuncs.find(op.op)
        assert row is not None, op.op
        self.op = op
        self._row = row
        self._known: dict[tuple[tuple[int, ...], tuple[bool, ...]], float] = {}
        self._kind = kind_of(op)
        if op.op in ("relayout", RING_MOVE):
            return
        accesses = read_accesses(op) if accesses is None else accesses
        self._padded = _padded(op, self._kind, accesses)
        self._extra = max((a.eps for a in accesses if not a.is_index), default=0)
        if any(a.stick is not None for a in accesses if not a.is_index):
            self._extra = 0
        uses = [self._use(a) for a in accesses]
        self._uses = [[_in_memory_or_lx(u, lx) for u in uses] for lx in (False, True)]
        self._own_places = tuple([u.in_lx for u in uses])
        self._flows = {
            id(use): _flows_of(_use_key(use, op.iteration_space, self._padded, self._extra))
            for uses in self._uses
            for use in uses
        }
        self._cut: dict[tuple[int, ...], tuple[dict[Hashable, Dim], Work]] = {}
        gathered = next((i for i, a in enumerate(accesses) if a.index_symbols), None)
        self._gathered = None if self._row.kind == "matmul" else gathered

    def price(self, slices: Slices, in_lx: Sequence[bool] = ()) -> Price:
        """The price for given numbers of slices."""
        return price(self.work(slices, in_lx))

    def us(self, slices: Slices, in_lx: tuple[bool, ...]) -> float:
        """The same in microseconds, worked out once."""
        key = (tuple(slices.values()), in_lx)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self.price(slices, in_lx).us
        return found

    def work(self, slices: Slices, in_lx: Sequence[bool] = ()) -> Work:
        """`in_lx` says for each tensor whether it is in a scratchpad; as the OpSpec has it when it
        is not given."""
        op = self.op
        if op.op == RING_MOVE:
            return work_of_ring(op)
        if op.op == "relayout":
            return self._relayout(slices, prod(slices.values()), in_lx)
        uses = [self._uses[lx][i] for i, lx in enumerate(in_lx or self._own_places)]
        key = tuple(slices.values())
        known = self._cut.get(key)
        if known is None:
            dims: dict[Hashable, Dim] = {
                symbol: Dim(size, self._padded[symbol], slices[symbol])
                for symbol, (size, _) in op.iteration_space.items()
            }
            if self._extra:
                dims[_EXTRA_STICK] = Dim(self._extra, self._extra, 1)
            known = self._cut[key] = (dims, self._work(dims, uses, prod(key)))
            return known[1]
        if self._gathered is not None:
            return self._work(known[0], uses, prod(key))
        # Where tensors are changes what flows, and nothing else.
        name, cores, _, *others = known[1]
        return Work(name, cores, tuple([self._flow(known[0], use) for use in uses]), *others)

    def _work(self, dims: Mapping[Hashable, Dim], uses: Sequence[TensorUse], cores: int) -> Work:
        chosen = self.op.op_info.get("k", 0)
        return work(
            self._row, cores, dims, uses, gathered=self._gathered, chosen=chosen, flow_of=self._flow
        )

    def _flow(self, dims: Mapping[Hashable, Dim], use: TensorUse) -> Flow:
        """Many divisions cut one tensor in the same way, and many operations have such a one."""
        known = self._flows[id(use)]
        key = tuple([dims[name].slices for name in use.strides])
        found = known.get(key)
        if found is None:
            found = known[key] = flow(dims, use)
        return found

    def _use(self, access: Access) -> TensorUse:
        strides: dict[Hashable, int] = {a.symbol: a.step * access.word for a in access.axes}
        stick: Hashable = access.stick
        if self._extra and not access.is_index:
            strides[_EXTRA_STICK] = access.eps * access.word
            stick = _EXTRA_STICK
        entries: dict[Hashable, int] = {a.symbol: a.size for a in access.axes}
        in_lx = "lx" in access.arg.allocation
        writes = not access.arg.is_input
        return TensorUse(writes, in_lx, access.eps, stick, strides, access.word, entries)

    def _relayout(self, slices: Slices, cores: int, in_lx: Sequence[bool]) -> Work:
        op = self.op
        sizes = [size for size, _ in op.iteration_space.values()]
        flows = []
        for number, arg in enumerate(op.args):
            info = relayout_info(op, number)
            flows.append(
                placed_flow(
                    sizes,
                    [slices[symbol] for symbol in op.iteration_space],
                    info["view_stride"],
                    info["device_size"],
                    info["stride_map"],
                    offset=info["offset"],
                    writes=not arg.is_input,
                    in_lx=in_lx[number] if in_lx else "lx" in arg.allocation,
                )
            )
        return relayout_work(cores, flows)


@lru_cache(maxsize=4096)
def _flows_of(key: Hashable) -> dict[tuple[int, ...], Flow]:
    """Flows of tensors that are walked over in one way, by the slices of their dimensions."""
    return {}


def _use_key(
    use: TensorUse,
    space: Mapping[sympy.Symbol, tuple[int, int]],
    padded: Mapping[sympy.Symbol, int],
    extra: int,
) -> Hashable:
    """All that a flow depends on but slices."""
    axes = tuple([
        (stride, name == use.stick, use.entries.get(name), *_sizes(name, space, padded, extra))
        for name, stride in use.strides.items()
    ])  # fmt: skip
    return use.writes, use.in_lx, use.per_stick, axes


def _sizes(
    name: Hashable,
    space: Mapping[sympy.Symbol, tuple[int, int]],
    padded: Mapping[sympy.Symbol, int],
    extra: int,
) -> tuple[int, int]:
    if not isinstance(name, sympy.Symbol):
        return extra, extra
    return space[name][0], padded[name]


def _in_memory_or_lx(use: TensorUse, in_lx: bool) -> TensorUse:
    return use if use.in_lx == in_lx else replace(use, in_lx=in_lx)


def _padded(op: OpSpec, kind: str, accesses: list[Access]) -> dict[sympy.Symbol, int]:
    """Sizes up to whole sticks, as the SuperDSC has them."""
    values = [a for a in accesses if not a.is_index]
    source = values[0] if kind in ("reduction", "topk") else values[-1]
    whole = kind in ("matmul", "cast", "restickify")
    sticks = {a.stick for a in (values if whole else [source]) if a.stick is not None}
    padded = {}
    for symbol, (size, _) in op.iteration_space.items():
        padded[symbol] = size
        if symbol in sticks:
            users = [a for a in values if a.stick == symbol]
            if kind == "matmul":
                users = [a for a in values if symbol in a.symbols]
            eps = max(a.unit for a in users)
            padded[symbol] = -(-size // eps) * eps
    return padded
