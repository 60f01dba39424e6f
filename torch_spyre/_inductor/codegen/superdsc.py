"""SuperDSC: the JSON of one operation.

In: an OpSpec, aligned and divided over cores. Out: the content of one sdsc_<i>.json, as
docs/formats/superdsc.md describes it. Addresses are numbers (segments of 16 GiB), or symbols of a
SymbolTable that bundle.mlir binds.

Example: `generate(add, 0)["0_add"]["numCoresUsed_"]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import sympy

from torch_spyre import opfuncs
from torch_spyre._C import DataFormats, encode_constant
from torch_spyre._inductor.codegen.access import (
    Access,
    InvalidOpSpec,
    kind_of,
    read_accesses,
    space_of,
)
from torch_spyre._inductor.codegen.json_text import SharedDict, SharedList
from torch_spyre._inductor.codegen.loops import loop_strides
from torch_spyre._inductor.codegen.relayout import (
    relayout_accesses,
    relayout_fields,
    relayout_walk,
)
from torch_spyre._inductor.codegen.ring_moves import RING_MOVE, ring_parts
from torch_spyre._inductor.codegen.symbols import LX, POOL, Address, SymbolTable
from torch_spyre._inductor.op_spec import OpSpec
from torch_spyre.core_views import CoreView, Share, core_view
from torch_spyre.placed_views import view_of

SEGMENT_BITS = 34
MASK_VALUE = "samv-maskvalue"

_LABELS = ("mb", "x", "y", "i", "j", "ki", "kj")
_MATMUL_LABELS = ("ki", "kj", "y", "x", "mb", "out", "in")
_CLASSES = ("OUTPUT", "KERNEL", "INPUT", "KERNEL_IDX")
_MATMUL_CLASSES = ("INPUT", "KERNEL", "OUTPUT", "KERNEL_IDX")
_IDENTITIES = {"max": float("-inf"), "min": float("inf"), "prod": 1.0}

Json = dict[str, Any]

_ADDRESS_FOLDS = SharedList([{"Map": {}}, {"Const": {}}, {"Const": {}}])
_TIME_FOLDS = SharedDict(
    dim_prop_func=[{"Affine": {"alpha_": 1, "beta_": 0}}],
    dim_prop_attr=[{"factor_": 1, "label_": "time"}],
    data_={"[0]": "0"},
)


def generate(
    op: OpSpec,
    index: int,
    symbols: SymbolTable | None = None,
    *,
    has_pool: bool = False,
    k_fast: bool = True,
    loop_counts: Sequence[int] = (),
) -> Json:
    """The JSON of one operation. `index` is the number of its file; `loop_counts` are those of the
    loops around it, outermost first (with symbols only)."""
    frame = frame_of(op, k_fast, loop_counts)
    plan, slices = frame.plan, frame.slices
    addresses = _address_texts(op, frame.places(op), index, symbols, has_pool)
    constants, mask_id = _constants(plan, len(slices))
    classes = _classes(plan)
    per_core = {f"{p.label}_": p.padded // p.slices for p in plan.dims}
    dsc: Json = {
        "numCoresUsed_": len(slices),
        "numCoreletsUsed_": 1,
        "coreIdsUsed_": list(range(len(slices))),
        "N_": {"name_": "n", **{f"{p.label}_": p.padded for p in plan.dims}},
        "coordinateMasking_": {p.label: [[p.size, p.padded - p.size]] for p in plan.masked},
        "maskingConstId_": mask_id,
        "dataStageParam_": {
            "0": {"ss_": {"name_": "core", **per_core}, "el_": {"name_": "core", **per_core}}
        },
        "primaryDsInfo_": {
            name: {
                "layoutDimOrder_": plan.labels(tensor.order),
                "stickDimOrder_": [plan.label(tensor.stick)],
                "stickSize_": [tensor.access.eps],
            }
            for name, tensor in classes.items()
        },
        "scheduleTree_": [
            _node(plan, tensor, classes, address, symbols is not None)
            for tensor, address in zip(plan.tensors, addresses)
        ],
        "labeledDs_": [_labeled(plan, tensor, classes) for tensor in plan.tensors],
        "constantInfo_": constants or "{}",
        "computeOp_": [_compute(plan)],
    }
    return {
        f"{index}_{plan.name}": {
            "sdscFoldProps_": [{"factor_": 1, "label_": "time"}],
            "sdscFolds_": _TIME_FOLDS,
            "coreFoldProp_": {"factor_": len(slices), "label_": "core"},
            "coreletFoldProp_": {"factor_": 1, "label_": "corelet"},
            "numCoresUsed_": len(slices),
            "coreIdToDsc_": _core_to_dsc(len(slices)),
            "numWkSlicesPerDim_": {p.label: p.slices for p in plan.dims},
            "coreIdToWkSlice_": slices,
            "coreIdToDscSchedule": _core_to_schedule(len(slices)),
            "dscs_": [{plan.name: dsc}],
        }
    }


# ---- 0. What operations that differ only in addresses have in common -----------------------------


@dataclass(frozen=True)
class Frame:
    """An operation without its addresses: what each tensor's cores add to where it begins."""

    plan: _Plan
    slices: SharedDict
    offsets: tuple[tuple[int, ...], ...]
    """For each tensor the bytes from its start to the start of each core's slice."""
    advances: tuple[tuple[int, ...], ...]
    """For each tensor the bytes that an iteration of each loop adds."""

    def places(self, op: OpSpec) -> list[list[Address]]:
        """Where the tensors of an operation of this frame are, for each core."""
        return _places(op, self.offsets, self.advances)

    def different_places(self, op: OpSpec) -> list[list[Address]]:
        """The same without those that a core before has, too."""
        return _places(op, self._different, self.advances)

    @cached_property
    def _different(self) -> tuple[tuple[int, ...], ...]:
        return tuple([tuple(dict.fromkeys(offsets)) for offsets in self.offsets])

    @cached_property
    def views(self) -> tuple[CoreView | None, ...]:
        """For each tensor which part each core has, or None where that is not a plain share of all
        of it: a view, an index, a gathered or padded axis."""
        return _views(self.plan, self.slices)


def _places(
    op: OpSpec, offsets: Sequence[tuple[int, ...]], advances: Sequence[tuple[int, ...]]
) -> list[list[Address]]:
    result = []
    for arg, mine, advance in zip(op.args, offsets, advances):
        space = space_of(arg)
        start = arg.allocation[space]
        base = {"lx": LX, "pool": POOL}.get(space, arg.arg_index)
        if base != LX:
            start &= (1 << SEGMENT_BITS) - 1
        result.append([Address(base, start + offset, advance) for offset in mine])
    return result


class Views:
    """Views of the tensors of an operation, for any division of it."""

    def __init__(self, op: OpSpec, k_fast: bool = True) -> None:
        self._plan = _plan(op)
        self._k_fast = k_fast

    def of(self, counts: Mapping[sympy.Symbol, int]) -> tuple[CoreView | None, ...]:
        """As `Frame.views`, with so many slices of each dimension."""
        dims = [replace(dim, slices=counts.get(dim.symbol, 1)) for dim in self._plan.dims]
        plan = replace(self._plan, dims=dims)
        return _views(plan, _slices(plan, self._k_fast))


def _views(plan: _Plan, slices: SharedDict) -> tuple[CoreView | None, ...]:
    if plan.op.op == "relayout":
        return tuple([_placed_view(plan, tensor.number, slices) for tensor in plan.tensors])
    if plan.op.op == RING_MOVE:
        return (None,) * len(plan.tensors)
    slots = {p.label: tuple([mine[p.label] for mine in slices.values()]) for p in plan.dims}
    chosen = plan.tensors[-1] if plan.kind == "topk" else None  # a core has more places than k
    return tuple([
        None if tensor is chosen or tensor.access.is_index
        else _core_view(plan, tensor, slices, slots)
        for tensor in plan.tensors
    ])  # fmt: skip


def _placed_view(plan: _Plan, number: int, slices: SharedDict) -> CoreView | None:
    walk = relayout_walk(plan.op, number)
    if walk is None or not walk.sizes:
        return None
    mine = [tuple([own[p.label] for p in plan.dims]) for own in slices.values()]
    return view_of(walk, [p.slices for p in plan.dims], mine)


def _core_view(
    plan: _Plan, tensor: _Tensor, slices: SharedDict, slots: Mapping[str, tuple[int, ...]]
) -> CoreView | None:
    gaps = _gaps(plan, tensor)
    shares = []
    for axis in tensor.access.axes:
        dim = plan.by_symbol[axis.symbol]
        gap = gaps.get(dim.label, 0)
        if gap > 0 or (gap and dim.slices > 1):
            return None  # with fewer places than the iteration a core has all of them, or a part
        if axis.first or axis.gathered or axis.size % dim.slices:
            return None
        shares.append(Share(axis.size, axis.size // dim.slices, slots[dim.label]))
    holders = None
    kept = tensor.access.symbols
    summed = [p.label for p in plan.dims if p.slices > 1 and p.symbol not in kept]
    if summed and tensor is plan.tensors[-1]:  # the first core of those that share it has it
        own = enumerate(slices.values())
        holders = tuple([core for core, mine in own if not any(mine[d] for d in summed)])
    return core_view(len(slices), shares, holders)


def content_key(op: OpSpec, k_fast: bool, loop_counts: Sequence[int]) -> tuple[Any, ...]:
    """Equal for operations that differ in the addresses of tensors only."""
    args = tuple(
        (
            arg.is_input,
            arg.device_dtype,
            tuple(arg.device_size),
            tuple(arg.device_coordinates),
            "lx" in arg.allocation,
            None if arg.stride_map is None else tuple(arg.stride_map),
            arg.per_tile_fixed,
            arg.fixed_loops,
            arg.name,
            arg.element_arrangement,
        )
        for arg in op.args
    )
    space = tuple(op.iteration_space.items())
    info = repr(op.op_info) if op.op_info else ""
    tiled = (tuple(op.tiled_symbols), tuple(loop_counts)) if op.tiled_symbols else ()
    return (op.op, op.is_reduction, space, args, info, tiled, k_fast)


_frames: dict[tuple[Any, ...], Frame] = {}
_MOST_FRAMES = 4096


def frame_of(op: OpSpec, k_fast: bool = True, loop_counts: Sequence[int] = ()) -> Frame:
    """The frame of an operation; made once for equal content."""
    key = content_key(op, k_fast, loop_counts)
    frame = _frames.get(key)
    if frame is None:
        plan = _plan(op)
        slices = _slices(plan, k_fast)
        advances = tuple(loop_strides(op, loop_counts))
        offsets = tuple(
            tuple(_offsets(plan, tensor, slices, advance))
            for tensor, advance in zip(plan.tensors, advances)
        )
        frame = Frame(plan, slices, offsets, advances)
        if len(_frames) >= _MOST_FRAMES:
            _frames.clear()
        _frames[key] = frame
    return frame


# ---- 1. The plan: labels, padded sizes, and each tensor's dimensions -----------------------------


@dataclass
class _Dim:
    """A dimension of the operation."""

    symbol: sympy.Symbol
    label: str
    size: int
    slices: int
    padded: int


@dataclass
class _Tensor:
    number: int
    access: Access
    order: list[sympy.Symbol]
    """All dimensions it has fields for: its axes, the one nearest to the stick first, then those
    that it does not vary along."""
    scale: dict[sympy.Symbol, int]
    stick: sympy.Symbol
    type: str = ""
    """Layout class, e.g. OUTPUT."""


@dataclass
class _Plan:
    op: OpSpec
    kind: str
    name: str
    dims: list[_Dim]
    tensors: list[_Tensor]
    masked: list[_Dim]

    def __post_init__(self) -> None:
        self.by_symbol = {p.symbol: p for p in self.dims}
        self.indices = [t for t in self.tensors if t.access.is_index]

    def label(self, symbol: sympy.Symbol) -> str:
        return self.by_symbol[symbol].label

    def labels(self, symbols: Sequence[sympy.Symbol]) -> list[str]:
        return [self.by_symbol[s].label for s in symbols]


_EXTRA_STICK = sympy.Symbol("_stick")


def _plan(op: OpSpec) -> _Plan:
    kind = kind_of(op)
    if op.op == "relayout":
        accesses = relayout_accesses(op)
        symbols = list(accesses[0].symbols)
        labels = _dim_labels(op, kind, len(symbols))
        dims = []
        for symbol, label in zip(symbols, labels):
            size, slices = op.iteration_space.get(symbol, (1, 1))
            dims.append(_Dim(symbol, label, size, slices, size))
        tensors = [
            _Tensor(i, access, symbols, dict.fromkeys(symbols, 1), symbols[-1])
            for i, access in enumerate(accesses)
        ]
        return _Plan(op, kind, op.op, dims, tensors, [])

    accesses = read_accesses(op)
    values = [a for a in accesses if not a.is_index]
    source = values[0] if kind in ("reduction", "topk") else values[-1]
    dims = _padded_dims(op, kind, accesses, source)
    stick = dims[-1].symbol if dims[-1].symbol is _EXTRA_STICK else source.stick
    tensors = [_tensor(op, kind, i, a, source, stick, dims) for i, a in enumerate(accesses)]

    name, output = op.op, accesses[-1]
    reduces_stick = source.stick is not None and source.stick not in output.symbols
    if kind == "reduction" and not reduces_stick:
        name += opfuncs.NONSTICK
    masked: list[sympy.Symbol] = []
    if kind == "restickify":
        masked = [p.symbol for p in dims]
    elif kind == "matmul":
        masked = [dims[-1].symbol, source.stick]
    elif kind == "reduction" and reduces_stick:
        masked = [source.stick]
    return _Plan(
        op, kind, name, dims, tensors, [p for p in dims if p.symbol in masked and p.padded > p.size]
    )


def _dim_labels(op: OpSpec, kind: str, count: int) -> list[str]:
    limit = len(_MATMUL_LABELS) if kind == "matmul" else len(_LABELS) + 1
    if count > limit:
        raise InvalidOpSpec("number of dimensions", f"operation {op.op}", count, f"1 to {limit}")
    if kind == "matmul":
        return list(_MATMUL_LABELS[-count:])
    return [*_LABELS[: count - 1], "out"] if count else []


def _padded_dims(op: OpSpec, kind: str, accesses: list[Access], source: Access) -> list[_Dim]:
    labels = _dim_labels(op, kind, len(op.iteration_space))
    dims = [
        _Dim(symbol, label, size, slices, size)
        for label, (symbol, (size, slices)) in zip(labels, op.iteration_space.items())
    ]
    values = [a for a in accesses if not a.is_index]
    whole = kind in ("matmul", "cast", "restickify")
    sticks = {a.stick for a in (values if whole else [source]) if a.stick is not None}
    for dim in dims:
        if dim.symbol in sticks:
            eps = max(a.unit for a in values if a.stick == dim.symbol)
            if kind == "matmul":
                eps = max(a.unit for a in values if dim.symbol in a.symbols)
            dim.padded = -(-dim.size // eps) * eps
    if not any(a.stick is not None for a in values):
        eps = max(a.eps for a in values)
        if len(dims) >= len(_LABELS):
            raise InvalidOpSpec("number of dimensions", f"operation {op.op}", len(dims), 6)
        dims.append(_Dim(_EXTRA_STICK, _LABELS[len(dims)], eps, 1, eps))
    return dims


def _tensor(
    op: OpSpec,
    kind: str,
    number: int,
    access: Access,
    source: Access,
    op_stick: sympy.Symbol | None,
    dims: list[_Dim],
) -> _Tensor:
    order = list(access.symbols)
    stick = access.stick
    if op_stick is _EXTRA_STICK and not access.is_index:
        order.append(op_stick)
        stick = op_stick
    scale = dict.fromkeys(order, 1)
    if kind not in ("matmul", "topk"):
        known = {*source.symbols, *order}
        others = [p.symbol for p in dims if p.symbol not in known]
        for symbol in (*source.symbols, *others):
            if symbol not in scale:
                order.append(symbol)
                no_stick = symbol == op_stick and stick is None
                scale[symbol] = -2 if no_stick else -1
    if op.op == "layernormscale" and number == 0 and op_stick is not None:
        scale[op_stick] = -2
        order.sort(key=lambda symbol: scale[symbol] < 0)
    stick = stick if stick is not None else op_stick
    if stick is None or stick not in scale:
        place = f"operation {op.op}, tensor {number}"
        raise InvalidOpSpec(
            "a stick", place, access.arg.device_coordinates, "a symbol in the stick"
        )
    return _Tensor(number, access, order, scale, stick)


def _classes(plan: _Plan) -> dict[str, _Tensor]:
    """Layout classes in the order of first use, each with the tensor that it describes."""
    names = _MATMUL_CLASSES if plan.kind == "matmul" else _CLASSES
    found: dict[tuple[Any, ...], str] = {}
    classes: dict[str, _Tensor] = {}
    for tensor in plan.tensors:
        key: tuple[Any, ...] = (tensor.stick, frozenset(tensor.order), tensor.access.eps)
        if plan.indices:
            key = (tensor.access.is_index,)
            tensor.type = "KERNEL_IDX" if tensor.access.is_index else "OUTPUT"
        elif key in found:
            tensor.type = found[key]
        elif len(found) == len(names):
            raise InvalidOpSpec("layout classes", f"operation {plan.op.op}", "more", len(names))
        else:
            tensor.type = names[len(found)]
        found.setdefault(key, tensor.type)
        classes.setdefault(tensor.type, tensor)
    return classes


# ---- 2. Which core does what, and where its data begins ------------------------------------------


def _slices(plan: _Plan, k_fast: bool) -> SharedDict:
    """For each core its slice of every dimension: the first dimension varies fastest, or the
    reduced one of a matmul, so that partial sums travel between neighbours."""
    if plan.op.op == RING_MOVE:  # its tensors have slices of their own
        whole = {p.label: 0 for p in plan.dims}
        return SharedDict({str(c): whole for c in range(plan.op.op_info["ring"]["cores"])})
    counts = tuple((p.label, p.slices) for p in plan.dims)
    reduced_first = plan.kind == "matmul" and len(counts) >= 3 and counts[-1][1] > 1
    return _core_to_slices(counts, k_fast and reduced_first)


@lru_cache(maxsize=1024)
def _core_to_slices(counts: tuple[tuple[str, int], ...], last_first: bool) -> SharedDict:
    order = [counts[-1], *counts[:-1]] if last_first else counts
    result = SharedDict()
    for core in range(prod(count for _, count in counts)):
        rest, mine = core, {}
        for label, count in order:
            rest, mine[label] = divmod(rest, count)
        result[str(core)] = {label: mine[label] for label, _ in counts}
    return result


@lru_cache(maxsize=64)
def _core_to_dsc(cores: int) -> SharedDict:
    return SharedDict({str(core): 0 for core in range(cores)})


@lru_cache(maxsize=64)
def _core_to_schedule(cores: int) -> SharedDict:
    return SharedDict({str(core): [[-1, 0, 0, 0]] for core in range(cores)})


def _address_texts(
    op: OpSpec,
    places: list[list[Address]],
    index: int,
    symbols: SymbolTable | None,
    has_pool: bool,
) -> list[list[str]]:
    """Addresses as they stand in the file: numbers, or symbols."""
    result = []
    for cores in places:
        if cores[0].base == LX:
            result.append([str(place.offset) for place in cores])
        elif symbols is not None:
            result.append([str(symbols.id(index, place)) for place in cores])
        elif any(cores[0].strides):
            advance = cores[0].strides
            raise InvalidOpSpec("loops", f"operation {op.op}", advance, "symbolic addresses")
        else:
            base = cores[0].base
            segment = (0 if base == POOL else base + has_pool) << SEGMENT_BITS
            result.append([str(segment + place.offset) for place in cores])
    return result


def _offsets(
    plan: _Plan, tensor: _Tensor, slices: SharedDict, advance: tuple[int, ...]
) -> list[int]:
    """Bytes from the start of the tensor to the start of each core's slice."""
    if tensor.access.space == "lx":
        if any(advance):
            place = f"operation {plan.op.op}, tensor {tensor.number}"
            raise InvalidOpSpec("tensors in LX stay in a loop", place, advance, "unrolled loops")
        return [_first_byte_in_lx(plan, tensor)] * len(slices)
    if plan.op.op == "relayout":
        return [0] * len(slices)
    word, eps = tensor.access.word, tensor.access.eps
    first = 0
    moving = []
    for axis in tensor.access.axes:
        first += axis.first * axis.step * word
        dim = plan.by_symbol[axis.symbol]
        if dim.slices > 1 and not axis.gathered:
            share = dim.padded // dim.slices
            if axis.sticks:
                if share % eps:
                    place = f"operation {plan.op.op}, tensor {tensor.number}"
                    raise InvalidOpSpec("slices of whole sticks", place, share, f"n * {eps}")
                share //= eps
            moving.append((dim.label, share * axis.step * word))
    if not moving:
        return [first] * len(slices)
    offsets = [first] * len(slices)
    for label, step in moving:
        offsets = [o + mine[label] * step for o, mine in zip(offsets, slices.values())]
    return offsets


def _first_byte_in_lx(plan: _Plan, tensor: _Tensor) -> int:
    """A core keeps only its own slice in LX, so that axes are shorter there."""
    step, first = tensor.access.eps, 0
    for axis in tensor.access.axes:
        first += axis.first * step
        step *= axis.size // plan.by_symbol[axis.symbol].slices
    return first * tensor.access.word


# ---- 3. Fields of a tensor -----------------------------------------------------------------------


def _component(tensor: _Tensor) -> str:
    return "lx" if tensor.access.space == "lx" else "hbm"


def _node_name(tensor: _Tensor) -> str:
    return f"allocate-Tensor{tensor.number}_{_component(tensor)}"


def _node(
    plan: _Plan,
    tensor: _Tensor,
    classes: dict[str, _Tensor],
    addresses: list[str],
    symbolic: bool,
) -> Json:
    component = _component(tensor)
    dims = [plan.by_symbol[s] for s in classes[tensor.type].order]
    node: Json = {
        "nodeType_": "allocate",
        "name_": _node_name(tensor),
        "prev_": "",
        "ldsIdx_": tensor.number,
        "component_": component,
    }
    if symbolic and component == "hbm":
        node["isStartAddrSymbolic_"] = 1
    node["layoutDimOrder_"] = plan.labels(tensor.order)
    node["maxDimSizes_"] = _max_dim_sizes(plan, tensor, dims)
    node.update(_indirection(plan, tensor))
    node["startAddressCoreCorelet_"] = {
        "dim_prop_func": _ADDRESS_FOLDS,
        "dim_prop_attr": _fold_attributes(len(addresses)),
        "data_": dict(zip(_core_keys(len(addresses)), addresses)),
    }
    gaps = _gaps(plan, tensor)
    if gaps:
        keys = ["-1"] if component == "hbm" else [str(core) for core in range(len(addresses))]
        node["backGapCore_"] = {label: dict.fromkeys(keys, str(gap)) for label, gap in gaps.items()}
    splits, own = ring_parts(plan.op, tensor.number, [p.label for p in plan.dims])
    node["coordinates_"] = {
        "coordInfo": {
            dim.label: _coordinate_info(
                dim.padded // splits.get(dim.label, dim.slices),
                splits.get(dim.label, dim.slices),
                tensor.scale.get(dim.symbol, -1),
                tensor.access.eps if dim.symbol == tensor.stick else 0,
            )
            for dim in dims
        },
        "coreIdToWkSlice_": own,
    }
    if plan.op.op == "relayout":
        node.update(relayout_fields(plan.op, tensor.number, len(plan.dims)))
    return node


def _gaps(plan: _Plan, tensor: _Tensor) -> dict[str, int]:
    """Entries of an axis beyond the iteration; negative where the padded iteration has more."""
    if plan.op.op == "relayout":
        return {}
    gaps = {}
    eps = tensor.access.eps
    for axis in tensor.access.axes:
        dim = plan.by_symbol[axis.symbol]
        gap = axis.size * (eps if axis.sticks else 1) - dim.padded
        if gap:
            gaps[dim.label] = gap
    if tensor.stick is _EXTRA_STICK and plan.by_symbol[_EXTRA_STICK].padded != eps:
        extra = plan.by_symbol[_EXTRA_STICK]
        gaps[extra.label] = eps - extra.padded
    return gaps


def _max_dim_sizes(plan: _Plan, tensor: _Tensor, dims: list[_Dim]) -> list[int]:
    """1 for a gathered axis that has more entries than there are indices; else no limit."""
    gathered = {a.symbol: a.size for a in tensor.access.axes if a.gathered}
    return [1 if gathered.get(p.symbol, 0) > p.size else -1 for p in dims]


def _indirection(plan: _Plan, tensor: _Tensor) -> Json:
    if not plan.indices:
        return {"indirectAllocType_": "no_indirection"}
    if tensor.access.is_index:
        readers = [t for t in plan.tensors if any(a.gathered for a in t.access.axes)]
        return {
            "indirectAllocType_": "index_tensor",
            "relatedIndirectAccessAlloc_": _node_name(readers[0]),
            "indexTensorType_": "index",
        }
    if any(axis.gathered for axis in tensor.access.axes):
        return {
            "indirectAllocType_": "value_tensor",
            "relatedIndirectAccessAlloc_": _node_name(plan.indices[0]),
        }
    return {"indirectAllocType_": "no_indirection"}


@lru_cache(maxsize=64)
def _core_keys(cores: int) -> list[str]:
    return [f"[{core}, 0, 0]" for core in range(cores)]


@lru_cache(maxsize=64)
def _fold_attributes(cores: int) -> SharedList:
    return SharedList(
        [
            {"factor_": cores, "label_": "core"},
            {"factor_": 1, "label_": "corelet"},
            {"factor_": 1, "label_": "time"},
        ]
    )


@lru_cache(maxsize=4096)
def _coordinate_info(share: int, slices: int, scale: int, eps: int) -> SharedDict:
    """How a core walks over a dimension. `eps` is 0 for all but the stick."""
    if scale != 1:
        share, slices = (eps or 1), 1
    alphas = [share, 0, 0]
    factors = [(slices, "core_fold"), (1, "corelet_fold"), (1, "row_fold")]
    if eps:
        alphas += [eps, 0 if scale == -2 else 1]
        factors += [(-(-share // eps), "elem_arr_1"), (eps, "elem_arr_0")]
    else:
        alphas += [1]
        factors += [(share, "elem_arr_0")]
    folds = {
        "dim_prop_func": [{"Affine": {"alpha_": alpha, "beta_": 0}} for alpha in alphas],
        "dim_prop_attr": [{"factor_": f, "label_": label} for f, label in factors],
    }
    kind = {"spatial": 3, "temporal": 0, "elemArr": 2 if eps else 1, "padding": "nopad"}
    return SharedDict({**kind, "folds": folds})


def _format(plan: _Plan, tensor: _Tensor) -> str:
    """The name of the format: copies of integers move them as if they were floats."""
    if tensor.access.is_index:
        return DataFormats.SENUINT32.name
    found = tensor.access.arg.device_dtype
    if plan.op.op == "identity" and found == DataFormats.IEEE_INT32:
        return DataFormats.IEEE_FP32.name
    return found.name


def _labeled(plan: _Plan, tensor: _Tensor, classes: dict[str, _Tensor]) -> Json:
    present = {"isPresent": 1}
    if _component(tensor) == "lx":
        places: Json = {"lx": present}
    elif tensor.access.is_index:
        places = {"hbm": present}
    else:
        places = {"hbm": present, "lx": present}
    entry: Json = {
        "ldsIdx_": tensor.number,
        "dsName_": f"Tensor{tensor.number}",
        "dsType_": tensor.type,
        "scale_": [tensor.scale.get(s, -1) for s in classes[tensor.type].order],
        "wordLength": tensor.access.word,
        "dataFormat_": _format(plan, tensor),
        "memOrg_": places,
    }
    if tensor.access.arg.element_arrangement != "STANDARD":
        entry["elementArrangement_"] = tensor.access.arg.element_arrangement
    return entry


# ---- 4. Constants and the operation itself -------------------------------------------------------


def _constants(plan: _Plan, cores: int) -> tuple[Json, int]:
    """Values of the operation, then the value that padding counts as; and the latter's number."""
    values = [
        (name, DataFormats.IEEE_FP32, float(value))
        for name, value in plan.op.op_info.get("constants", {}).items()
    ]
    mask_id = -1
    if plan.masked and plan.kind == "reduction":
        mask_id = len(values)
        first = plan.tensors[0].access.arg.device_dtype
        values.append((MASK_VALUE, first, _IDENTITIES.get(plan.op.op, 0.0)))
    constants: Json = {}
    for number, (name, form, value) in enumerate(values):
        constants[str(number)] = {
            "dataFormat_": form.name,
            "name_": name,
            "data_": {
                "dim_prop_func": [{"Const": {}}, {"Const": {}}, {"Map": {}}],
                "dim_prop_attr": _fold_attributes(cores),
                "data_": {"[0, 0, 0]": [encode_constant(value, form)]},
            },
        }
    return constants, mask_id


def _compute(plan: _Plan) -> Json:
    def names(tensors: Sequence[_Tensor]) -> list[str]:
        return [f"Tensor{t.number}-idx{t.number}" for t in tensors]

    values = [t for t in plan.tensors if not t.access.is_index]
    # Reductions also read their output: it holds the partial result.
    inputs = values if plan.kind == "reduction" else values[:-1]
    row = opfuncs.find(plan.name)
    compute: Json = {
        "exUnit": row.unit if row is not None else "sfp",
        "opFuncName": plan.name,
        "attributes_": {"dataFormat_": _format(plan, values[0]), "fidelity_": "regular"},
        "location": "Inner",
        "inputLabeledDs": names(inputs),
        "outputLabeledDs": names(values[-1:]),
    }
    if plan.indices:
        compute["indirectAccessIndexLabeledDs"] = names(plan.indices)
    return compute
