"""SuperDSC: the JSON of one operation.

In: an OpSpec, aligned and divided over cores. Out: the content of one sdsc_<i>.json, as
docs/formats/superdsc.md describes it. Addresses are numbers (segments of 16 GiB), or symbols of a
SymbolTable that bundle.mlir binds.

Example: `generate(add, 0)["0_add"]["numCoresUsed_"]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from torch_spyre import opfuncs
from torch_spyre._C import DataFormats, encode_constant
from torch_spyre._inductor.codegen.addresses import addresses
from torch_spyre._inductor.codegen.json_text import SharedDict, SharedList
from torch_spyre._inductor.codegen.symbols import LX, POOL, Address, SymbolTable
from torch_spyre._inductor.opspec.access import InvalidOpSpec
from torch_spyre._inductor.opspec.frames import Frame, frame_of
from torch_spyre._inductor.opspec.op_dims import OpDim, OpPlan, OpTensor, gaps_of, layout_classes
from torch_spyre._inductor.opspec.op_spec import OpSpec
from torch_spyre._inductor.opspec.relayout import relayout_fields
from torch_spyre._inductor.opspec.ring_move import ring_parts
from torch_spyre.constants import SEGMENT_BYTES

MASK_VALUE = "samv-maskvalue"

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
    plan, slices = frame.plan, _core_to_slices(frame)
    texts = _address_texts(op, addresses(frame, op), index, symbols, has_pool)
    constants, mask_id = _constants(plan, len(slices))
    classes = layout_classes(plan)
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
            for tensor, address in zip(plan.tensors, texts)
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


@lru_cache(maxsize=4096)
def _core_to_slices(frame: Frame) -> SharedDict:
    return SharedDict(frame.slices)


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
            segment = (0 if base == POOL else base + has_pool) * SEGMENT_BYTES
            result.append([str(segment + place.offset) for place in cores])
    return result


# ---- Fields of a tensor --------------------------------------------------------------------------


def _component(tensor: OpTensor) -> str:
    return "lx" if tensor.access.space == "lx" else "hbm"


def _node_name(tensor: OpTensor) -> str:
    return f"allocate-Tensor{tensor.number}_{_component(tensor)}"


def _node(
    plan: OpPlan,
    tensor: OpTensor,
    classes: dict[str, OpTensor],
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
    gaps = gaps_of(plan, tensor)
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


def _max_dim_sizes(plan: OpPlan, tensor: OpTensor, dims: list[OpDim]) -> list[int]:
    """1 for a gathered axis that has more entries than there are indices; else no limit."""
    gathered = {a.symbol: a.size for a in tensor.access.axes if a.gathered}
    return [1 if gathered.get(p.symbol, 0) > p.size else -1 for p in dims]


def _indirection(plan: OpPlan, tensor: OpTensor) -> Json:
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
    """Extent and stride of a core along a dimension. `eps` is 0 for all but the stick."""
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


def _format(plan: OpPlan, tensor: OpTensor) -> str:
    """The name of the format: copies of integers move them as if they were floats."""
    if tensor.access.is_index:
        return DataFormats.SENUINT32.name
    found = tensor.access.arg.device_dtype
    if plan.op.op == "identity" and found == DataFormats.IEEE_INT32:
        return DataFormats.IEEE_FP32.name
    return found.name


def _labeled(plan: OpPlan, tensor: OpTensor, classes: dict[str, OpTensor]) -> Json:
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


# ---- Constants and the operation itself ----------------------------------------------------------


def _constants(plan: OpPlan, cores: int) -> tuple[Json, int]:
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


def _compute(plan: OpPlan) -> Json:
    def names(tensors: Sequence[OpTensor]) -> list[str]:
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
