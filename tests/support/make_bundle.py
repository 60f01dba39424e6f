"""Writes bundles for the tests: SuperDSC files from dimensions, splits and orders.

Independent of the front-end's code generation: everything is computed here from the page
docs/formats/superdsc.md. Example, the sum of two (128, 256) tensors over 4 cores:

    rows = T(["mb", "out"])
    write_bundle(path, [op("add", {"mb": 128, "out": 256}, [rows.at(0), rows.at(1)], rows.at(2),
                           splits={"mb": 4})])
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

FP16, FP32, FP8, INT32 = "SEN169_FP16", "IEEE_FP32", "SEN143_FP8", "IEEE_INT32"
UINT32 = "SENUINT32"
BYTES = {FP16: 2, FP32: 4, FP8: 1, INT32: 4, UINT32: 4}
SEGMENT = 1 << 34
POOL = "pool"
LX = "lx"

Json = Any


@dataclass(frozen=True)
class T:
    """A tensor of an operation."""

    order: Sequence[str]
    """Its dimensions, the axis nearest to the stick first."""
    fmt: str = FP16
    stick: str = "out"
    scale: dict[str, int] = field(default_factory=dict)
    """-1 and -2; all others are 1."""
    gap: dict[str, int] = field(default_factory=dict)
    where: int | str = 0
    """Number of the kernel argument (the pool not counted), POOL or LX."""
    offset: int = 0
    label: str = "OUTPUT"
    arrangement: str = "STANDARD"
    indirection: str = "no_indirection"
    placement: dict[str, Json] | None = None
    view: dict[str, Json] | None = None
    loop_strides: Sequence[int] = ()
    host: Sequence[str] = ()
    """Dimensions of its host tensor; default: in the order of the operation's sizes."""

    def at(self, where: int | str, offset: int = 0, **changes: Json) -> T:
        return replace(self, where=where, offset=offset, **changes)

    @property
    def per_stick(self) -> int:
        return 128 // BYTES[self.fmt]

    def scale_of(self, dim: str) -> int:
        return self.scale.get(dim, 1)


@dataclass(frozen=True)
class Op:
    name: str
    sizes: dict[str, int]
    inputs: Sequence[T]
    output: T
    splits: dict[str, int]
    masks: dict[str, tuple[int, int]]
    constants: dict[str, float | tuple[str, int]]
    index: T | None = None
    slices: Sequence[dict[str, int]] | None = None

    @property
    def tensors(self) -> list[T]:
        index = [] if self.index is None else [self.index]
        return [*index, *self.inputs, self.output]

    @property
    def cores(self) -> int:
        return prod(self.splits.values())


def op(
    name: str,
    sizes: dict[str, int],
    inputs: Sequence[T],
    output: T,
    *,
    splits: dict[str, int] | None = None,
    masks: dict[str, tuple[int, int]] | None = None,
    constants: dict[str, float | tuple[str, int]] | None = None,
    index: T | None = None,
) -> Op:
    """An operation; sizes are padded ones, masks say what of them is padding."""
    all_splits = {d: (splits or {}).get(d, 1) for d in sizes}
    return Op(name, sizes, inputs, output, all_splits, masks or {}, constants or {}, index)


def core_slices(operation: Op) -> list[dict[str, int]]:
    """First dimension fastest."""
    slices = []
    for core in range(operation.cores):
        own, rest = {}, core
        for dim, split in operation.splits.items():
            rest, own[dim] = divmod(rest, split)
        slices.append(own)
    return slices


def axis_entries(operation: Op, tensor: T) -> dict[str, int]:
    """Entries of each device axis, nearest to the stick first; the stick's counts sticks."""
    entries = {}
    for dim in tensor.order:
        if tensor.scale_of(dim) != 1:
            continue
        size = operation.sizes[dim]
        if tensor.where == LX:
            size //= operation.splits[dim]
        size += tensor.gap.get(dim, 0)
        entries[dim] = size // tensor.per_stick if dim == tensor.stick else size
    return entries


def start_offsets(operation: Op, tensor: T) -> list[int]:
    """For each core the byte at which its slice begins."""
    entries = axis_entries(operation, tensor)
    gathered = None
    if tensor.indirection == "value_tensor" and operation.index is not None:
        index_dims = [d for d in operation.index.order if operation.index.scale_of(d) == 1]
        gathered = next(d for d in index_dims if tensor.scale_of(d) == 1)
    starts = []
    for own in core_slices(operation):
        offset, stride = tensor.offset, 128
        for dim, count in entries.items():
            if tensor.where == LX or tensor.placement is not None:
                break
            first = own[dim] * (operation.sizes[dim] // operation.splits[dim])
            if dim == gathered:
                pass
            elif dim == tensor.stick:
                sticks, rest = divmod(first, tensor.per_stick)
                offset += sticks * stride + rest * BYTES[tensor.fmt]
            else:
                offset += first * stride
            stride *= count
        starts.append(offset)
    return starts


def to_sdsc(operation: Op, number: int, starts: list[list[str]], symbolic: bool) -> Json:
    """The content of one sdsc file. `starts` are the texts of the start addresses."""
    op_name, cores = operation.name, operation.cores
    slices = {str(c): own for c, own in enumerate(core_slices(operation))}
    per_core = {d: n // operation.splits[d] for d, n in operation.sizes.items()}
    stage = {"name_": "core", **{f"{d}_": n for d, n in per_core.items()}}
    labels: dict[str, Json] = {}
    for tensor in operation.tensors:
        labels.setdefault(
            tensor.label,
            {
                "layoutDimOrder_": list(tensor.order),
                "stickDimOrder_": [tensor.stick],
                "stickSize_": [tensor.per_stick],
            },
        )
    tensors = operation.tensors
    first_input = 0 if operation.index is None else 1
    inputs = [f"Tensor{i}-idx{i}" for i in range(first_input, len(tensors) - 1)]
    last = len(tensors) - 1
    is_reduction = op_name.removesuffix("nonstick") in ("sum", "max", "min", "mean", "exx2", "prod")
    if is_reduction:
        inputs.append(f"Tensor{last}-idx{last}")
    compute = {
        "exUnit": "pt" if "matmul" in op_name else "sfp",
        "opFuncName": op_name,
        "attributes_": {"dataFormat_": tensors[first_input].fmt, "fidelity_": "regular"},
        "location": "Inner",
        "inputLabeledDs": inputs,
        "outputLabeledDs": [f"Tensor{last}-idx{last}"],
    }
    if operation.index is not None:
        compute["indirectAccessIndexLabeledDs"] = ["Tensor0-idx0"]
    constants = to_constants(operation)
    masks = {d: [[first, count]] for d, (first, count) in operation.masks.items()}
    names = [c["name_"] for c in constants.values()] if isinstance(constants, dict) else []
    mask_id = names.index("samv-maskvalue") if "samv-maskvalue" in names else -1
    time = {"factor_": 1, "label_": "time"}
    return {
        f"{number}_{op_name}": {
            "sdscFoldProps_": [time],
            "sdscFolds_": {
                "dim_prop_func": [{"Affine": {"alpha_": 1, "beta_": 0}}],
                "dim_prop_attr": [time],
                "data_": {"[0]": "0"},
            },
            "coreFoldProp_": {"factor_": cores, "label_": "core"},
            "coreletFoldProp_": {"factor_": 1, "label_": "corelet"},
            "numCoresUsed_": cores,
            "coreIdToDsc_": {str(c): 0 for c in range(cores)},
            "numWkSlicesPerDim_": dict(operation.splits),
            "coreIdToWkSlice_": slices,
            "coreIdToDscSchedule": {str(c): [[-1, 0, 0, 0]] for c in range(cores)},
            "dscs_": [
                {
                    op_name: {
                        "numCoresUsed_": cores,
                        "numCoreletsUsed_": 1,
                        "coreIdsUsed_": list(range(cores)),
                        "N_": {"name_": "n", **{f"{d}_": n for d, n in operation.sizes.items()}},
                        "coordinateMasking_": masks,
                        "maskingConstId_": mask_id,
                        "dataStageParam_": {"0": {"ss_": stage, "el_": stage}},
                        "primaryDsInfo_": labels,
                        "scheduleTree_": [
                            to_node(operation, i, t, labels, starts[i], symbolic)
                            for i, t in enumerate(tensors)
                        ],
                        "labeledDs_": [to_labeled(i, t, labels) for i, t in enumerate(tensors)],
                        "constantInfo_": constants,
                        "computeOp_": [compute],
                    }
                }
            ],
        }
    }


def to_constants(operation: Op) -> Json:
    constants = {}
    for i, (name, value) in enumerate(operation.constants.items()):
        fmt, bits = FP32, 0
        if isinstance(value, tuple):
            fmt, bits = value
        else:
            (bits,) = struct.unpack("<I", struct.pack("<f", value))
        constants[str(i)] = {
            "dataFormat_": fmt,
            "name_": name,
            "data_": {
                "dim_prop_func": [{"Const": {}}, {"Const": {}}, {"Map": {}}],
                "dim_prop_attr": to_fold_attributes(operation.cores),
                "data_": {"[0, 0, 0]": [bits]},
            },
        }
    return constants or "{}"


def to_fold_attributes(cores: int) -> Json:
    return [
        {"factor_": cores, "label_": "core"},
        {"factor_": 1, "label_": "corelet"},
        {"factor_": 1, "label_": "time"},
    ]


def to_node(
    operation: Op, number: int, tensor: T, labels: Json, starts: list[str], symbolic: bool
) -> Json:
    order = labels[tensor.label]["layoutDimOrder_"]
    in_lx = tensor.where == LX
    node: Json = {
        "nodeType_": "allocate",
        "name_": f"allocate-Tensor{number}_{'lx' if in_lx else 'hbm'}",
        "prev_": "",
        "ldsIdx_": number,
        "component_": "lx" if in_lx else "hbm",
    }
    if symbolic and not in_lx:
        node["isStartAddrSymbolic_"] = 1
    node |= {
        "layoutDimOrder_": list(tensor.order),
        "maxDimSizes_": [-1] * len(order),
        "indirectAllocType_": tensor.indirection,
        "startAddressCoreCorelet_": {
            "dim_prop_func": [{"Map": {}}, {"Const": {}}, {"Const": {}}],
            "dim_prop_attr": to_fold_attributes(operation.cores),
            "data_": {f"[{c}, 0, 0]": start for c, start in enumerate(starts)},
        },
    }
    if tensor.indirection == "index_tensor":
        node |= {
            "relatedIndirectAccessAlloc_": f"allocate-Tensor{number + 1}_hbm",
            "indexTensorType_": "index",
        }
    if tensor.indirection == "value_tensor":
        node["relatedIndirectAccessAlloc_"] = f"allocate-Tensor{number - 1}_hbm"
    if tensor.gap:
        keys = [str(c) for c in range(operation.cores)] if in_lx else ["-1"]
        node["backGapCore_"] = {d: {k: str(g) for k in keys} for d, g in tensor.gap.items()}
    if tensor.placement is not None:
        node["placement_"] = tensor.placement
        node["view_"] = tensor.view
    node["coordinates_"] = {
        "coordInfo": {d: to_coordinate(operation, tensor, d) for d in order},
        "coreIdToWkSlice_": {},
    }
    return node


def to_coordinate(operation: Op, tensor: T, dim: str) -> Json:
    """How indices of a dimension are spread over cores and over the elements of a core."""
    own = tensor.scale_of(dim) == 1
    split = operation.splits[dim] if own else 1
    size = operation.sizes[dim] // split if own else 1
    eps = tensor.per_stick
    if dim != tensor.stick:
        alphas, factors = [size, 0, 0, 1], [split, 1, 1, size]
    elif own:
        alphas, factors = [size, 0, 0, eps, 1], [split, 1, 1, size // eps, eps]
    else:
        alphas, factors = [eps, 0, 0, eps, 0], [1, 1, 1, 1, eps]
    names = ["core_fold", "corelet_fold", "row_fold", "elem_arr_1", "elem_arr_0"]
    if len(alphas) == 4:
        names.remove("elem_arr_1")
    return {
        "spatial": 3,
        "temporal": 0,
        "elemArr": len(alphas) - 3,
        "padding": "nopad",
        "folds": {
            "dim_prop_func": [{"Affine": {"alpha_": a, "beta_": 0}} for a in alphas],
            "dim_prop_attr": [{"factor_": f, "label_": n} for f, n in zip(factors, names)],
        },
    }


def to_labeled(number: int, tensor: T, labels: Json) -> Json:
    order = labels[tensor.label]["layoutDimOrder_"]
    memory = {"lx": {"isPresent": 1}}
    if tensor.where != LX:
        memory = {"hbm": {"isPresent": 1}, **memory}
    labeled = {
        "ldsIdx_": number,
        "dsName_": f"Tensor{number}",
        "dsType_": tensor.label,
        "scale_": [tensor.scale_of(d) for d in order],
        "wordLength": BYTES[tensor.fmt],
        "dataFormat_": tensor.fmt,
        "memOrg_": memory,
    }
    if tensor.arrangement != "STANDARD":
        labeled["elementArrangement_"] = tensor.arrangement
    return labeled


# ---- Bundles -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Repeat:
    """A loop around operations."""

    count: int
    body: Sequence[Op | Repeat]


class _Writer:
    """Writes bundle.mlir with symbolic addresses."""

    def __init__(self, directory: Path, arguments: int, pool: bool) -> None:
        self.directory = directory
        self.symbols = 0
        self.files = 0
        self.temporaries = 0
        self.loops = 0
        self.maps: dict[tuple[int, ...], str] = {}
        self.names = (["pool"] if pool else []) + [f"arg_{i}" for i in range(arguments)]
        self.head: list[str] = []

    def value(self, text: str) -> str:
        self.temporaries += 1
        return f"%v{self.temporaries} = {text}"

    def write(self, nodes: Sequence[Op | Repeat], counters: list[str], indent: str) -> list[str]:
        lines: list[str] = []
        for node in nodes:
            if isinstance(node, Repeat):
                self.loops += 1
                counter = f"%i_{self.loops}"
                bound = f"%loop_bound_{self.loops}"
                self.head.append(f"\t\t{bound} = arith.constant {node.count} : index")
                lines.append(f"{indent}scf.for {counter} = %c0 to {bound} step %c1 {{")
                lines += self.write(node.body, [*counters, counter], indent + "\t")
                lines.append(f"{indent}}}")
            else:
                lines += self.execute(node, counters, indent)
        return lines

    def execute(self, operation: Op, counters: list[str], indent: str) -> list[str]:
        lines, operands, ids, starts = [], [], [], []
        for tensor in operation.tensors:
            offsets = start_offsets(operation, tensor)
            if tensor.where == LX:
                starts.append([str(o) for o in offsets])
                continue
            base = "%pool" if tensor.where == POOL else f"%arg_{tensor.where}"
            known: dict[int, int] = {}
            for offset in offsets:
                if offset in known:
                    continue
                name = base
                if offset:
                    lines.append(f"{indent}{self.value(f'arith.constant {offset} : index')}")
                    constant = f"%v{self.temporaries}"
                    lines.append(f"{indent}{self.value(f'arith.addi {base}, {constant} : index')}")
                    name = f"%v{self.temporaries}"
                if counters:
                    strides = tuple(tensor.loop_strides) or (0,) * len(counters)
                    affine = self.maps.setdefault(strides, f"#map_{len(self.maps)}")
                    apply = f"affine.apply {affine}({', '.join(counters)})[{name}]"
                    lines.append(f"{indent}{self.value(apply)}")
                    name = f"%v{self.temporaries}"
                self.symbols -= 1
                known[offset] = self.symbols
                operands.append(name)
                ids.append(str(self.symbols))
            starts.append([str(known[o]) for o in offsets])
        file = f"sdsc_{self.files}.json"
        content = to_sdsc(operation, self.files, starts, symbolic=True)
        (self.directory / file).write_text(json.dumps(content, indent=2))
        self.files += 1
        lines.append(
            f"{indent}sdscbundle.sdsc_execute ({', '.join(operands)}) "
            f'{{sdsc_filename="{file}", "symbol_ids"=[{", ".join(ids)}]}}'
        )
        return lines


def flatten(nodes: Sequence[Op | Repeat]) -> list[Op]:
    result: list[Op] = []
    for node in nodes:
        result += flatten(node.body) if isinstance(node, Repeat) else [node]
    return result


def write_bundle(directory: Path, nodes: Sequence[Op | Repeat], symbolic: bool = True) -> Path:
    """Write bundle.mlir and the sdsc files."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = [t for o in flatten(nodes) for t in o.tensors]
    arguments = 1 + max((t.where for t in tensors if isinstance(t.where, int)), default=-1)
    pool = any(t.where == POOL for t in tensors)
    if symbolic:
        text = _symbolic_text(directory, nodes, arguments, pool)
    else:
        text = _concrete_text(directory, flatten(nodes), pool)
    (directory / "bundle.mlir").write_text(text)
    return directory


def _symbolic_text(
    directory: Path, nodes: Sequence[Op | Repeat], arguments: int, pool: bool
) -> str:
    writer = _Writer(directory, arguments, pool)
    body = writer.write(nodes, [], "\t\t")
    kind = "!sdscbundle.input_arg<index>"
    parameters = ", ".join(f"%{n}_base_addr: {kind}" for n in writer.names)
    extracts = [
        f"\t\t%{n} = sdscbundle.input_arg_extract value from %{n}_base_addr : {kind} -> index"
        for n in writer.names
    ]
    maps = []
    for strides, name in writer.maps.items():
        dims = [f"d{i}" for i in range(len(strides))]
        terms = " + ".join(["s0", *(f"{s}*{d}" for s, d in zip(strides, dims))])
        maps.append(f"{name} = affine_map<({', '.join(dims)})[s0] -> ({terms})>")
    head = writer.head
    if head:
        head = [
            "\t\t%c0 = arith.constant 0 : index",
            "\t\t%c1 = arith.constant 1 : index",
            *head,
        ]
    lines = ["module {", f"\tfunc.func @sdsc_bundle({parameters}) {{", *extracts, *head, *body]
    return "\n".join([*maps, *lines, "\t\treturn", "\t}", "}", ""])


def _concrete_text(directory: Path, operations: list[Op], pool: bool) -> str:
    lines = ["module {", "\tfunc.func @sdsc_bundle() {"]
    for number, operation in enumerate(operations):
        starts = []
        for tensor in operation.tensors:
            segment = 0
            if isinstance(tensor.where, int):
                segment = tensor.where + (1 if pool else 0)
            base = 0 if tensor.where == LX else segment * SEGMENT
            starts.append([str(base + o) for o in start_offsets(operation, tensor)])
        file = f"sdsc_{number}.json"
        content = to_sdsc(operation, number, starts, symbolic=False)
        (directory / file).write_text(json.dumps(content, indent=2))
        lines.append(f'\t\tsdscbundle.sdsc_execute () {{sdsc_filename="{file}"}}')
    return "\n".join([*lines, "\t\treturn", "\t}", "}", ""])
