"""Single operations for eager PyTorch: a graph of one operation, compiled like any other.

In: an operation and what it is called with. Out: an entry, a dictionary that says how to run it
without the compiler (torch_spyre/ops/eager.py loads it):

    {"inputs": [{}, {"number": "float16"}],      # what the caller has
     "made": [[[64, 128], [128, 1], "float16", None]],   # tensors that a call makes
     "tables": [],                               # and what the compiler has computed: forms, values
     "kernels": [{"bundle": ..., "pool": False, "arguments": [["input", 0], ["made", 0]], ...}],
     "results": [[0, [64, 128], [128, 1], 0]]}   # which of them, and the view of it

or {"host": why} for what the card does not do, and None when PyTorch refuses the arguments.
"""

from __future__ import annotations

import operator
import os
import tempfile
import traceback
import warnings
from typing import Any

import torch
from torch._dynamo.convert_frame import compile_lock
from torch._functorch import config as functorch_config
from torch._guards import TracingContext, tracing
from torch._inductor.scheduler import NopKernelSchedulerNode
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from torch_spyre import _C
from torch_spyre._inductor.capture import eager_operation
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.logs import get_logger
from torch_spyre.ops.fallbacks import FallbackWarning

_log = get_logger("spyre.execution")

Entry = dict[str, Any]


def compile_operation(
    operation: str, arguments: list[Any], inputs: list[Any], classes: list[int], device: int
) -> Entry | None:
    """The entry of an operation. `classes`: of the integers among the inputs, how large they may
    be (csrc/hooks/integers.h)."""
    op = _overload(operation, inputs)
    arguments = arguments[: len(op._schema.arguments)]
    tensors = [_example(value, inputs, device) for value in inputs]
    try:
        resizes = _resizes(op, arguments, tensors)
    except Exception as problem:
        _log.info("%s is refused: %s", operation, problem)
        return None
    if resizes:
        return {"host": "the host resizes what an operation writes"}
    from torch_spyre._inductor.host.async_compile import compile_text

    try:
        entry = _compile(op, arguments, tensors, {i: c for i, c in enumerate(classes) if c})
        if "host" in entry:
            return entry
        for kernel in entry["kernels"]:
            # Written already, unless somebody has deleted it meanwhile.
            compile_text(kernel.pop("name"), kernel.pop("text"), kernel["pool"])
    except OSError as problem:  # the disk: in another process it may go better
        _log.warning("%s could not be compiled, the host computes it: %s", operation, problem)
        return {"host": f"compiling failed: {problem}", "keep": False}
    except Exception as problem:
        # The boxed path is right for every operation. It counts the call, and the user hears why.
        report = _write_report(operation, arguments, tensors)
        warnings.warn(
            f"{operation} could not be compiled for the card, which is a fault of the compiler "
            f"({type(problem).__name__}); the host computes it. Please report {report}",
            FallbackWarning,
            stacklevel=2,
        )
        return {"host": f"compiling failed, see {report}", "keep": False}
    for i, value in enumerate(inputs):
        if isinstance(value, torch.Tensor):
            _compare_layout(entry["inputs"][i], tensors[i])
        else:
            entry["inputs"][i] = {"number": _name(tensors[i].dtype)}
    return entry


def _write_report(operation: str, arguments: list[Any], tensors: list[torch.Tensor]) -> str:
    """What there is to say about the exception that is being handled; the path of the file."""
    handle, path = tempfile.mkstemp(prefix="spyre-fault-", suffix=".txt")
    forms = [(t.dtype, tuple(t.shape), t.stride(), _C._get_placement(t)) for t in tensors]
    with os.fdopen(handle, "w") as file:
        file.write(f"{operation} {arguments}\n{forms}\n{traceback.format_exc()}")
    return path


def note_plan(plan: Any) -> None:
    """The plan of a graph is complete. Called for every graph."""
    operation = eager_operation.compiled()
    if operation is not None:
        operation.entry = _entry(plan)


def _overload(operation: str, inputs: list[Any]) -> torch._ops.OpOverload:
    name, _, overload = operation.removeprefix("aten::").partition(".")
    if not all(isinstance(value, torch.Tensor) for value in inputs):
        overload = overload.replace("Scalar", "Tensor")  # eq.Scalar: the number is a tensor now
        if isinstance(inputs[0], torch.Tensor):  # a number divides: it is here as its inverse
            name = name.replace("div", "mul")
    # The compiler knows the form that users call; it has one argument less.
    name = name.replace("_index_put_impl", "index_put")
    op: torch._ops.OpOverload = getattr(getattr(torch.ops.aten, name), overload or "default")
    return op


def _resizes(op: torch._ops.OpOverload, arguments: list[Any], tensors: list[torch.Tensor]) -> bool:
    """Whether the operation gives its `out=` another shape. Raises what PyTorch says about
    arguments that do not fit."""
    metas = [
        torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in tensors
    ]
    args, kwargs = _bind(op, arguments, metas)
    out = kwargs.pop("out", None)
    if out is None:
        op(*args, **kwargs)
        return False
    # The form without `out=`: calling this one would warn about resizing.
    names = [a.name for a in op._schema.arguments if a.name != "out"]
    packet = op.overloadpacket
    for form in (getattr(packet, o) for o in packet.overloads()):
        if [a.name for a in form._schema.arguments] == names and _same_types(form, op):
            return bool(form(*args, **kwargs).shape != out.shape)
    return True


def _same_types(one: torch._ops.OpOverload, other: torch._ops.OpOverload) -> bool:
    pairs = zip(one._schema.arguments, other._schema.arguments, strict=False)
    return all(str(a.type) == str(b.type) for a, b in pairs)


def _example(value: Any, inputs: list[Any], device: int) -> torch.Tensor:
    """The tensor that a graph gets for an input."""
    if isinstance(value, torch.Tensor):
        # Not a parameter: eager operations have no copies that stay. And not an inference tensor,
        # which could not be traced as written: one program serves in all modes.
        alias = torch.empty(0, dtype=value.dtype, device=value.device)
        with torch.no_grad():
            alias.set_(value.untyped_storage(), value.storage_offset(), value.shape, value.stride())
        return alias
    dtype = torch.result_type(next(t for t in inputs if isinstance(t, torch.Tensor)), value)
    return torch.tensor(value, dtype=dtype).to(torch.device(DEVICE_NAME, device))


def _bind(
    op: torch._ops.OpOverload, arguments: list[Any], inputs: list[Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Arguments with inputs in their places, as the schema wants them."""
    values = [_filled(a, inputs) for a in arguments]
    schema = op._schema.arguments
    args = [v for v, a in zip(values, schema, strict=True) if not a.kwarg_only]
    kwargs = {a.name: v for v, a in zip(values, schema, strict=True) if a.kwarg_only}
    return args, kwargs


def _filled(value: Any, inputs: list[Any]) -> Any:
    if isinstance(value, tuple):
        return inputs[value[0]]
    if isinstance(value, list):
        return [_filled(v, inputs) for v in value]
    return value


# ---- The graph ----------------------------------------------------------------------------------


def _compile(
    op: torch._ops.OpOverload,
    arguments: list[Any],
    tensors: list[torch.Tensor],
    classes: dict[int, int],
) -> Entry:
    from torch._inductor.compile_fx import compile_fx

    graph = torch.fx.Graph()
    placeholders = [graph.placeholder(f"input{i}") for i in range(len(tensors))]
    args, kwargs = _bind(op, arguments, placeholders)
    result: Any = graph.call_function(op, tuple(args), kwargs)
    count = len(op._schema.returns)
    if count > 1:
        result = [graph.call_function(operator.getitem, (result, i)) for i in range(count)]
    writes = any(a.alias_info is not None and a.alias_info.is_write for a in op._schema.arguments)
    graph.output(() if writes else tuple(result) if count > 1 else (result,))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    mode = FakeTensorMode(shape_env=ShapeEnv())
    patches = {"fx_graph_cache": False, "fx_graph_remote_cache": False}
    operation = eager_operation.wanted(module, classes)
    with (
        compile_lock,
        torch.no_grad(),
        tracing(TracingContext(mode)),
        functorch_config.patch(enable_autograd_cache=False),
    ):
        for node, tensor in zip(placeholders, tensors, strict=True):
            node.meta["example_value"] = mode.from_tensor(tensor, static_shapes=True)
        compile_fx(module, tensors, config_patches=patches)
    return operation.entry or {"host": "the graph has nothing for the card"}


# ---- The entry ----------------------------------------------------------------------------------


def _entry(plan: Any) -> Entry:
    """What a plan comes to, as data."""
    if plan.fallbacks:
        step = plan.fallbacks[0]
        return {"host": f"{step.op}: {step.reason}"}
    graph = V.graph
    for node in graph.scheduler.nodes:
        known = node.get_name() in plan.kernel_of or isinstance(node, NopKernelSchedulerNode)
        if not known:
            return {"host": f"{node.get_name()} is a step of the host code"}
    inputs = {name: i for i, name in enumerate(graph.graph_input_names)}
    given: list[dict[str, Any]] = [{} for _ in inputs]
    made: list[Any] = []
    tables: list[Any] = []
    places: dict[str, list[Any]] = {}
    kernels = []
    for kernel in plan.kernels:
        if not kernel.operations:
            continue
        arguments = []
        if kernel.pool_bytes:
            arguments.append(["made", len(made)])
            made.append([[kernel.pool_bytes // 2], [1], "float16", None])
        for buffer in kernel.arguments:
            size, stride = buffer.placed or (buffer.size, buffer.stride)
            form = [list(size), list(stride), _name(buffer.dtype), _layout(buffer.layout)]
            values = _values(buffer, graph.constants)
            if values is not None:
                places[buffer.name] = ["table", len(tables)]
                tables.append({"form": form, "values": values})
            elif buffer.name in inputs:
                places[buffer.name] = ["input", inputs[buffer.name]]
                given[inputs[buffer.name]] = {"relaid": form, "written": buffer.written}
            elif buffer.name not in places:
                places[buffer.name] = ["made", len(made)]
                made.append(form)
            arguments.append(places[buffer.name])
        kernels.append(
            {
                "name": plan.names[id(kernel)],
                "text": kernel.text(),
                "bundle": _bundle(plan, kernel),  # its name and key in the store
                "pool": kernel.pool_bytes > 0,
                "arguments": arguments,
                "constants": [[b.value, _name(b.dtype)] for b in kernel.constants],
            }
        )
    results = []
    for node in graph.graph_outputs:
        name = graph.scheduler.mutation_real_name.get(node.get_name(), node.get_name())
        if places.get(name, [""])[0] != "made":
            return {"host": f"the result {name} is not made by a kernel"}
        layout = node.get_layout()
        view = [[int(s) for s in layout.size], [int(s) for s in layout.stride], int(layout.offset)]
        results.append([places[name][1], *view])
    if not kernels:
        return {"host": "there is nothing to compute"}
    return {
        "inputs": given,
        "made": made,
        "tables": tables,
        "kernels": kernels,
        "results": results,
    }


def _values(buffer: Any, constants: dict[str, torch.Tensor]) -> torch.Tensor | None:
    """On the host, what the compiler has computed: the mask of tril, and hoisted copies of it."""
    copy = buffer.hoisted
    constant = constants.get(buffer.name if copy is None else copy.source.name)
    if constant is None:
        return None
    host = constant.cpu()
    return host if copy is None else host.as_strided(copy.size, copy.stride, copy.offset).clone()


def _bundle(plan: Any, kernel: Any) -> tuple[str, str]:
    from torch_spyre._inductor.host.async_compile import bundle_entry

    return bundle_entry(plan.names[id(kernel)], kernel.text(), kernel.pool_bytes > 0)


def _compare_layout(given: dict[str, Any], tensor: torch.Tensor) -> None:
    """An input is copied in each call if it does not lie as the kernels expect it."""
    if "relaid" not in given:
        return
    layout = given["relaid"][3]
    placement = _C._get_placement(tensor)
    same = placement is not None and _layout(placement[0]) == layout
    if same and tensor.storage_offset() == 0:
        del given["relaid"]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _layout(layout: Any) -> list[Any] | None:
    if layout is None:
        return None
    return [
        list(layout.device_size),
        list(layout.stride_map),
        layout.device_dtype.name,
        layout.element_arrangement.name,
    ]
