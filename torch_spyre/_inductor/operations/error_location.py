"""Error locations: adds the operation, its tensors and the user's source line to exceptions.

In: a function that works on one operation, or one node. Out: the same, whose exceptions carry the
location (`errors.py` has their classes).

    @located
    def cost(op: Operation, ...): ...
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch._inductor.virtualized import V
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from torch_spyre._inductor.errors import (
    CompilerMistake,
    Place,
    Unsupported,
    UnsupportedAccess,
    describe_layout,
)
from torch_spyre._inductor.operations.operation import Buffer, Operation
from torch_spyre._inductor.operations.origins import origin_of
from torch_spyre._inductor.opspec.coordinates import Misaligned


def place_of(operation: Operation) -> Place:
    """Name, tensors and source line of an operation."""
    origin = operation.origin
    asked = origin.aten or origin.node
    name = f"{operation.opfunc} of {asked}" if asked else operation.opfunc
    if operation.reason:
        name += f", added because {operation.reason}"
    tensors = [_describe(f"input {i}", a.buffer) for i, a in enumerate(operation.inputs)]
    tensors += [_describe("index", a.buffer) for a in operation.gather.values()]
    tensors.append(_describe("output", operation.output.buffer))
    return Place(name, tuple(tensors), origin.source)


def place_of_kernel(operations: Sequence[Operation], arguments: Sequence[Buffer]) -> Place:
    """The same of operations that become one bundle, and of the tensors that it is called with."""
    first, last = place_of(operations[0]), place_of(operations[-1])
    name = f"{len(operations)} in one bundle, from {first.op} to {last.op}"
    tensors = [_describe(f"argument {i}", buffer) for i, buffer in enumerate(arguments)]
    return Place(name, tuple(tensors), first.source or last.source)


def _describe(role: str, buffer: Buffer) -> str:
    if buffer.is_constant:
        return f"{role}: the number {buffer.value} ({buffer.dtype})"
    layout = "no layout yet"
    if buffer.layout is not None:
        layout = f"layout {describe_layout(buffer.layout)}"
    shape = f"{list(buffer.size)} strides {list(buffer.stride)}"
    return f"{role}: {buffer.name} {buffer.dtype} {shape}, {layout}"


def place_of_node(node: Any) -> Place:
    """The same of a node of LoopLevelIR that has not become operations yet."""
    origin = origin_of(node)
    names = sorted(node.get_read_names())
    tensors = [
        _describe_node(f"input {i}", n, V.graph.try_get_buffer(n)) for i, n in enumerate(names)
    ]
    tensors.append(_describe_node("output", node.get_name(), node))
    return Place(origin.aten or origin.node, tuple(tensors), origin.source)


def _describe_node(role: str, name: str, node: Any) -> str:
    if node is None:
        return f"{role}: {name}"
    return f"{role}: {name} {node.get_dtype()} {list(node.get_size())}"


_Function = TypeVar("_Function", bound=Callable[..., Any])


def located(function: _Function) -> _Function:
    """Decorator: what goes wrong in the function is told together with what it worked on.

    That is the first Operation, or node of the scheduler, among its arguments.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as problem:  # re-raised, with the operation and its place
            refusal = refuse(problem, lambda: _place_of_arguments(args))
            if refusal is problem:
                raise
            raise refusal from problem

    return wrapper  # type: ignore[return-value]


def refuse(problem: Exception, place: Callable[[], Place]) -> Exception:
    """An exception of the planner as a refusal that says where."""
    if isinstance(problem, Unsupported):
        return problem if problem.source and problem.hint else problem.at(place())
    if isinstance(problem, GuardOnDataDependentSymNode):
        return Unsupported("a size depends on the values of a tensor").at(place())
    if isinstance(problem, Misaligned):
        return UnsupportedAccess(f"coordinates cannot express a view: {problem}").at(place())
    return CompilerMistake(f"{type(problem).__name__}: {problem}").at(place())


def _place_of_arguments(args: Sequence[Any]) -> Place:
    for arg in args:
        if hasattr(arg, "opfunc") and hasattr(arg, "origin"):
            return place_of(arg)
        if hasattr(arg, "node") and hasattr(arg, "get_nodes"):
            return place_of_node(arg.node)
    return Place("")
