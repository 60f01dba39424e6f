"""Everything the compiler refuses, one class for each kind of refusal.

A message says what, where (operation, shapes, layouts, source line) and what to try:

    NoLayout: cannot divide p0 of size 90 at [1, 64, 90]
      operation: identity of aten.clone.default
      input 0: arg0_1 torch.float16 [90, 64] strides [64, 1], layout [90, 64] / [64, 1]
      output: buf0 torch.float16 [5760] strides [1], no layout yet
      at: /home/me/model.py:12: y = x.reshape(-1)
      try: ...

What goes wrong deep inside of the planner does not know about the user's program: functions that
work on one operation, or one node, are `@located` and add it. Lowerings raise Unsupported without a
place: the operation then becomes a fallback, and `what` is the reason that is reported.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch_spyre._inductor.operations.operation import Buffer, Operation

OUTSIDE = (
    "compute it outside of the graph, in a function decorated with @torch.compiler.disable: "
    "there it runs eagerly"
)


class Unsupported(NotImplementedError):
    """Something that this compiler cannot turn into a program for the card."""

    usual_hint = OUTSIDE

    def __init__(
        self,
        what: str,
        *,
        op: str = "",
        tensors: Sequence[str] = (),
        source: str = "",
        hint: str = "",
    ) -> None:
        lines = [what]
        if op:
            lines.append(f"  operation: {op}")
        lines.extend(f"  {tensor}" for tensor in tensors)
        if source:
            lines.append(f"  at: {source}")
        if hint:
            lines.append(f"  try: {hint}")
        super().__init__("\n".join(lines))
        self.what = what
        self.op = op
        self.tensors = tuple(tensors)
        self.source = source
        self.hint = hint

    def at(self, place: Place) -> Unsupported:
        """The same refusal; what it does not say about its place is added."""
        return type(self)(
            self.what,
            op=place.op or self.op,
            tensors=self.tensors or place.tensors,
            source=self.source or place.source,
            hint=self.hint or self.usual_hint,
        )


class NoOpFunc(Unsupported):
    """A node needs an operation that the card does not have."""


class UnsupportedType(Unsupported):
    """A node works on a type that the operation does not have on the card."""

    usual_hint = f"convert the tensors to float16 or float32 before; or {OUTSIDE}"


class TooLarge(UnsupportedType):
    """Integers that the card cannot hold: what is made of them stays on the host as well."""


class UnsupportedAccess(Unsupported):
    """A node reads or writes a tensor in a way that coordinates cannot express."""

    usual_hint = f"call .contiguous() on the input, or .clone() on the view; or {OUTSIDE}"


class NoLayout(Unsupported):
    """No choice of layouts makes an operation possible."""

    usual_hint = f"call .contiguous() on the input, or .clone() on the view; or {OUTSIDE}"


class CompilerMistake(Unsupported):
    """The compiler broke one of its own rules."""

    usual_hint = (
        "this is a mistake of the compiler, please report it with the directory that "
        f"TORCH_COMPILE_DEBUG=1 writes; until it is mended, {OUTSIDE}"
    )


# ---- Where --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """What a refusal is about."""

    op: str
    tensors: tuple[str, ...] = ()
    source: str = ""


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
    from torch._inductor.virtualized import V

    from torch_spyre._inductor.operations.origins import origin_of

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
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    from torch_spyre._inductor.opspec.views import Misaligned

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


def describe_layout(layout: Any) -> str:
    """A layout in a few characters, e.g. `[4, 128, 64] / [64, 256, 1]`."""
    return f"{list(layout.device_size)} / {list(layout.stride_map)}"
