"""Operations that AOTAutograd has traced already are written down again instead of traced again.

AOTAutograd runs the graph that Dynamo found twice: to see what it mutates and what its results
are views of, and to record ATen operations. An attention is two dozen of these, each of which goes
through functionalization, the recorder and fake tensors, in every layer. What comes out depends on
the description of the inputs alone, as long as an operation neither changes an input nor returns a
view of one. So the first time that such an operation is run, its nodes are remembered; the next
time, for inputs of the same description, equal nodes are made for the other inputs:

    linear(x0, w0)  runs      %view = view(%x0, ..), %mm = mm(%view, %t), ..
    linear(x1, w1)  is copied %view = view(%x1, ..), ..

Views, mutations, random numbers and everything that is not understood are run as ever.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch._subclasses.functional_tensor import (
    FunctionalTensor,
    FunctionalTensorMode,
    disable_functional_mode,
)
from torch.fx import Node, Proxy
from torch.fx.experimental.proxy_tensor import (
    ProxyTorchDispatchMode,
    get_proxy_slot,
    track_tensor,
)
from torch.fx.node import map_arg
from torch.fx.traceback import set_current_replay_node
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from torch_spyre._inductor.state import current, is_compiling
from torch_spyre.constants import DEVICE_NAME

_NUMBERS = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.memory_format)


@dataclass(frozen=True)
class _Description:
    """A strided tensor; what it lies in, if it is a view: ("input" or "node", number)."""

    shape: torch.Size
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    base: tuple[str, int] | None = None


@dataclass(frozen=True)
class _Step:
    """A node of the recorded graph. In its arguments inputs and nodes before it are `_Slot`s."""

    target: Any
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    value: _Description
    metadata: Any
    original: Any


@dataclass(frozen=True)
class _Slot:
    """A tensor in the arguments of a step."""

    kind: str
    number: int


@dataclass(frozen=True)
class _Recorded:
    """What an operation is: its nodes (none if no graph is recorded), and which is the result."""

    steps: tuple[_Step, ...]
    result: _Description
    last: int


class TraceMemo:
    """What a compilation has traced. AOTAutograd runs one graph after the other."""

    def __init__(self) -> None:
        self.node: Node | None = None
        """The node of Dynamo's graph that is being run."""
        self.interpreter: Any = None
        self.recorded: dict[Any, _Recorded | None] = {}
        """By this run of the graph; None: what cannot be replayed."""

    def of(self, interpreter: Any) -> dict[Any, _Recorded | None]:
        """What was recorded by a run of a graph."""
        if interpreter is not self.interpreter:
            self.interpreter, self.recorded = interpreter, {}
        return self.recorded


def run_nodes(*stock: Callable[..., Any]) -> list[Callable[..., Any]]:
    """Interpreter.run_node, call_function and call_method."""
    stock_run_node, *stock_calls = stock

    def run_node(self: Any, n: Node) -> Any:
        if is_compiling():
            current().get(TraceMemo).node = n
        return stock_run_node(self, n)

    def calling(kind: str, stock: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, target: Any, args: Any, kwargs: Any) -> Any:
            return run(self, stock, kind, target, args, kwargs)

        return call

    kinds = ("call_function", "call_method")
    return [run_node, *map(calling, kinds, stock_calls)]


def run(
    interpreter: Any,
    stock: Callable[..., Any],
    kind: str,
    target: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Do what `stock` does for a node of Dynamo's graph."""
    memo = current().get(TraceMemo) if is_compiling() else None
    modes = _modes() if memo is not None and not _is_changed_later(memo.node) else None
    if memo is None or modes is None:
        return stock(interpreter, target, args, kwargs)
    inputs: list[Any] = []
    # The recorder looks at each question that a tensor is asked, thousands of them.
    with torch._C.DisableTorchFunction():
        key = _key(kind, target, args, kwargs, inputs)
    if key is None or not inputs:
        return stock(interpreter, target, args, kwargs)
    known = memo.of(interpreter)
    if key not in known:
        recording = _Recording(modes, inputs)
        result = stock(interpreter, target, args, kwargs)
        with torch._C.DisableTorchFunction():
            known[key] = recording.finish(result)
        return result
    recorded = known[key]
    if recorded is None:
        return stock(interpreter, target, args, kwargs)
    with torch._C.DisableTorchFunction():
        _note_function(modes.tracer, target)
        return _replay(recorded, modes, inputs)


def _note_function(tracer: Any, target: Any) -> None:
    """What the recorder would have noted; nodes are told which function they come from."""
    function = getattr(torch.Tensor, target) if isinstance(target, str) else target
    if tracer is not None and hasattr(function, "__name__"):
        tracer.torch_fn_metadata = function
        tracer.torch_fn_counts[function] = tracer.torch_fn_counts.get(function, 0) + 1


# ---- When -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Modes:
    """What AOTAutograd has switched on: fakes, functionalization and maybe a recorder."""

    fake: FakeTensorMode
    functional: FunctionalTensorMode
    tracer: Any


def _modes() -> _Modes | None:
    """None if something else is on too, or if gradients are traced."""
    if torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        return None
    modes = _get_current_dispatch_mode_stack()
    found: dict[type, Any] = {type(mode): mode for mode in modes}
    fake: Any = found.get(FakeTensorMode)
    functional: Any = found.get(FunctionalTensorMode)
    recorder = found.get(ProxyTorchDispatchMode)
    wanted = 3 if recorder is not None else 2
    if fake is None or len(modes) != wanted or type(modes[-1]) is not FunctionalTensorMode:
        return None
    return _Modes(fake, functional, recorder.tracer if recorder is not None else None)


def _is_changed_later(node: Node | None) -> bool:
    """Whether the graph changes what a node returns in place, or it is unknown. A view of memory of
    its own is replayed as a tensor: the same, but changes of it are recorded in another way."""
    value = node.meta.get("example_value") if node is not None else None
    return type(value) is not FakeTensor or value._version != 0


def _key(kind: str, target: Any, args: Any, kwargs: Any, inputs: list[Any]) -> Any:
    """What an operation does depends on this; None where more is at work. Collects its inputs."""
    states = torch.is_autocast_enabled(DEVICE_NAME), torch.is_autocast_enabled("cpu")
    parts: list[Any] = [kind, target, states]
    for value in args:
        part = _part(value, inputs)
        if part is None:
            return None
        parts.append(part)
    for name, value in kwargs.items():
        part = _part(value, inputs)
        if part is None:
            return None
        parts.append((name, part))
    return tuple(parts)


def _part(value: Any, inputs: list[Any]) -> Any:
    if type(value) is FunctionalTensor:
        for number, other in enumerate(inputs):
            if other is value:
                return ("again", number)
        numbers = (*value.shape, *value.stride(), value.storage_offset())
        if any(type(n) is not int for n in numbers) or value.is_conj() or value.is_neg():
            return None
        inputs.append(value)
        return (value.shape, value.stride(), value.storage_offset(), value.dtype, value.device)
    if isinstance(value, (list, tuple)):
        parts = [_part(v, inputs) for v in value]
        return None if any(p is None for p in parts) else (type(value), *parts)
    if isinstance(value, _NUMBERS) and not isinstance(value, torch.SymInt):
        return (type(value), value)
    return None


def _inner(tensor: FunctionalTensor, tracer: Any) -> Any:
    """The fake tensor with the present value."""
    value = torch._from_functional_tensor(tensor.elem)
    if not torch._functionalize_has_data_mutation(tensor.elem):  # type: ignore[attr-defined]
        return value
    # What it is a view of may have been changed; it is computed again then, for the node that it
    # came from, and below the mode as in FunctionalTensorMode.__torch_dispatch__.
    view = _node_of(value, tracer) if tracer is not None else None
    replaying = set_current_replay_node(view) if view is not None else contextlib.nullcontext()
    with disable_functional_mode(), replaying:
        torch._functionalize_sync(tensor.elem)
    return torch._from_functional_tensor(tensor.elem)


# ---- Recording ------------------------------------------------------------------------------


class _Recording:
    """Looks at what an operation does while it is run."""

    def __init__(self, modes: _Modes, inputs: list[Any]) -> None:
        self.modes = modes
        self.inputs = inputs
        self.before = [torch._from_functional_tensor(x.elem) for x in inputs]
        self.last: Any = modes.tracer.graph._root._prev if modes.tracer is not None else None

    def finish(self, result: Any) -> _Recorded | None:
        """What was done; None if it cannot be done again from this description alone."""
        now = [torch._from_functional_tensor(x.elem) for x in self.inputs]
        if any(a is not b for a, b in zip(self.before, now, strict=True)):
            return None  # changed, or a view whose base was changed before
        if type(result) is not FunctionalTensor or any(result is x for x in self.inputs):
            return None
        value = torch._from_functional_tensor(result.elem)
        if not _is_plain(value) or not _fills_its_memory(value):
            return None
        if any(type(x) is not FakeTensor or x.constant is not None for x in now):
            return None
        places = {x.untyped_storage()._cdata: ("input", i) for i, x in enumerate(now)}
        if value.untyped_storage()._cdata in places:
            return None
        if self.modes.tracer is None:
            return _Recorded((), _described(value, None), -1)
        return self._steps(now, value, places)

    def _steps(self, inputs: list[Any], result: Any, places: dict[int, Any]) -> _Recorded | None:
        tracer = self.modes.tracer
        slots: dict[Node, _Slot] = {}
        for number, value in enumerate(inputs):
            node = _node_of(value, tracer)
            if node is None:
                return None
            slots[node] = _Slot("input", number)
        steps: list[_Step] = []
        node = self.last._next
        while node is not tracer.graph._root:
            step = _step(node, slots, places)
            if step is None:
                return None
            slots[node] = _Slot("node", len(steps))
            places.setdefault(node.meta["val"].untyped_storage()._cdata, ("node", len(steps)))
            steps.append(step)
            node = node._next
        last = _node_of(result, tracer)
        if last is None or last not in slots or slots[last].kind != "node":
            return None
        number = slots[last].number
        return _Recorded(tuple(steps), _described(result, ("node", number)), number)


def _node_of(value: Any, tracer: Any) -> Node | None:
    slot = get_proxy_slot(value, tracer, None)
    if slot is None or slot.constant is not None:
        return None
    return slot.proxy.node


def _step(node: Node, slots: dict[Node, _Slot], places: dict[int, Any]) -> _Step | None:
    target: Any = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return None
    if target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags:
        return None
    value: Any = node.meta.get("val")
    if not _is_plain(value) or any(n not in slots for n in node.all_input_nodes):
        return None
    base = places.get(value.untyped_storage()._cdata)
    slot: Any = slots.__getitem__
    args, kwargs = map_arg((node.args, node.kwargs), slot)
    name = node.graph._target_to_str(target.overloadpacket.__name__)
    told = node.meta.get("tensor_meta"), node.meta.get("original_aten")
    return _Step(target, name, args, kwargs, _described(value, base), *told)


def _is_plain(value: Any) -> bool:
    return (
        type(value) is FakeTensor
        and value.layout == torch.strided
        and value.constant is None
        and not value.requires_grad
        and not value.is_conj()
        and not value.is_neg()
        and all(type(n) is int for n in (*value.shape, *value.stride(), value.storage_offset()))
    )


def _fills_its_memory(value: torch.Tensor) -> bool:
    """Whether a view of memory of its own is as good as a tensor."""
    size = value.numel() * value.dtype.itemsize
    return torch._prims_common.is_non_overlapping_and_dense_or_false(value) and (
        value.storage_offset() == 0 and value.untyped_storage().nbytes() == size
    )


def _described(value: torch.Tensor, base: tuple[str, int] | None) -> _Description:
    offset: Any = value.storage_offset()
    return _Description(value.shape, value.stride(), offset, value.dtype, value.device, base)


# ---- Replaying ------------------------------------------------------------------------------


def _replay(recorded: _Recorded, modes: _Modes, inputs: list[Any]) -> Any:
    values = {"input": [_inner(x, modes.tracer) for x in inputs], "node": []}
    with in_kernel_invocation_manager(modes.fake):
        if modes.tracer is None:
            result = _made(recorded.result, modes.fake, values)
        else:
            result = _write(recorded, modes, values)
    # Without gradients there is nothing that FunctionalTensor.to_functional would add, and what the
    # modes would be asked is known.
    with torch._C._DisableTorchDispatch():
        return FunctionalTensor(torch._to_functional_tensor(result), modes.functional)


def _write(recorded: _Recorded, modes: _Modes, values: dict[str, list[Any]]) -> Any:
    """Append the nodes of an operation to the graph that is being recorded."""
    tracer = modes.tracer
    given: list[Any] = [_node_of(value, tracer) for value in values["input"]]
    nodes: dict[str, list[Any]] = {"input": given, "node": []}

    def filled(argument: Any) -> Any:
        return nodes[argument.kind][argument.number] if type(argument) is _Slot else argument

    for step in recorded.steps:
        args, kwargs = torch.fx.node.map_aggregate((step.args, step.kwargs), filled)
        node = tracer.create_node("call_function", step.target, args, kwargs, step.name)
        value = _made(step.value, modes.fake, values)
        if step.original is not None:
            node.meta["original_aten"] = step.original
        node.meta["val"] = value
        node.meta["tensor_meta"] = step.metadata
        nodes["node"].append(node)
        values["node"].append(value)
    result = _made(recorded.result, modes.fake, values)  # what nodes have must stay as it is
    proxy = Proxy(nodes["node"][recorded.last], tracer)
    track_tensor(result, proxy, constant=None, tracer=tracer)
    return result


def _made(wanted: _Description, mode: FakeTensorMode, values: dict[str, list[Any]]) -> FakeTensor:
    meta = torch.empty_strided(wanted.shape, wanted.stride, dtype=wanted.dtype, device="meta")
    if wanted.base is not None:
        kind, number = wanted.base
        storage = values[kind][number].untyped_storage()
        meta.set_(storage, wanted.offset, wanted.shape, wanted.stride)
    return FakeTensor(mode, meta, wanted.device)
