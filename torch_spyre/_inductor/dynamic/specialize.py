"""Specialises a graph with dynamic shapes on static ones.

In: an FX graph of ATen operations and a number for each open size. Out: a `FixedGraph`, which
Inductor compiles like any other. With `padded`, the numbers are larger than the sizes of calls:
the padding rule of each operation keeps padding invisible, and the graph gets more inputs, which
are computed for each call:

    mask(n)     true for the first n places of N
    value(e)    the number that an expression of sizes has in the call
    places(e,k) the numbers e, e+1, .. e+k-1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.node import map_arg

from torch_spyre._inductor.dynamic.padded_dims import (
    Dims,
    NotPaddable,
    dim,
    expr_of,
    has_open,
    is_one_part,
    whole,
)

aten = torch.ops.aten

Sizes = dict[sympy.Symbol, int]


@dataclass(frozen=True)
class Extra:
    """An input that the graph of a call does not have: kind, expression, places, device."""

    kind: str
    expr: sympy.Expr
    count: int
    device: torch.device
    dtype: torch.dtype = torch.bool

    def make(self, sizes: Sizes) -> torch.Tensor:
        """Its value for the sizes of a call."""
        number = self.expr.subs(sizes)
        if self.kind == "mask":
            value = torch.arange(self.count) < int(number)
        elif self.kind == "places":
            value = torch.arange(self.count) + int(number)
        else:
            value = torch.tensor(float(number) if self.dtype.is_floating_point else int(number))
        return value.to(self.dtype).to(self.device)


@dataclass
class FixedGraph:
    """A graph without open sizes."""

    module: GraphModule
    fakes: list[Any]
    """Of its inputs: those of the graph that are tensors, then the extra ones."""
    extras: list[Extra]
    inputs: dict[int, Dims] = field(default_factory=dict)
    """Of the inputs that are padded: what their dimensions are made of."""
    outputs: dict[int, Dims] = field(default_factory=dict)
    written: set[int] = field(default_factory=set)
    """Inputs that the graph changes."""
    kept: list[int] = field(default_factory=list)
    """Inputs of the graph that are tensors."""
    named: dict[str, Dims] = field(default_factory=dict)
    """Of its results, by the name of the node: a backward graph gets them under the same name."""


def number(expr: Any, sizes: Sizes) -> int:
    """An expression of sizes as a number."""
    return int(sympy.sympify(expr).subs(sizes))


def is_symbolic(value: Any) -> bool:
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def numbers_of(value: Any) -> list[Any]:
    """The sizes, strides and offsets of tensors, or a number itself."""
    if isinstance(value, torch.Tensor):
        return [*value.shape, *value.stride(), value.storage_offset()]
    if isinstance(value, (list, tuple)):
        return [n for v in value for n in numbers_of(v)]
    return [value]


class Fixer:
    """Copies a graph node by node and computes the description of every value."""

    def __init__(
        self,
        source: GraphModule,
        sizes: Sizes,
        *,
        padded: bool,
        known: dict[str, Dims],
        settled: Sizes | None = None,
        real: Sequence[Any] | None = None,
    ) -> None:
        self.source, self.sizes, self.padded, self.known = source, sizes, padded, known
        self.settled = settled or {}
        """Open sizes that count as numbers here."""
        self.mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
        self.graph = Graph()
        self.real = real
        self.env: dict[Node, Any] = {}
        """What stands for a node of the source: a node, a number, or None."""
        self.dims: dict[Node, Any] = {}
        """Dimensions of a node of the source; a tuple of them for several results."""
        self.result = FixedGraph(GraphModule(source, self.graph), [], [])
        self._extras: dict[Extra, Node] = {}
        self._last_input: Node | None = None
        self.current: Node | None = None
        self._masked: dict[Any, Node] = {}

    def run(self, rule: Callable[[Fixer, Node], None]) -> FixedGraph:
        """The graph with numbers; `rule` rewrites an operation whose inputs are padded."""
        place = 0
        for node in self.source.graph.nodes:
            self.current = node
            if node.op == "placeholder":
                self._input(node, place)
                place += 1
            elif node.op == "output":
                self._output(node)
            elif node.op == "get_attr":
                self._attribute(node)
            elif is_symbolic(node.meta.get("val")):
                self.env[node] = self.at(node.meta["val"])
            elif not node.users and not _is_impure(node):
                continue
            elif self.padded:
                rule(self, node)
            else:
                self.copy(node)
        self.graph.lint()
        self.result.module.recompile()
        self.result.extras = list(self._extras)
        self.result.fakes += [n.meta["val"] for n in self._extras.values()]
        return self.result

    # ---- inputs and results ----

    def _input(self, node: Node, place: int) -> None:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            self.env[node] = self.at(value)
            return
        new = self.graph.placeholder(node.name)
        new.meta.update({k: v for k, v in node.meta.items() if k != "val"})
        numbers = (*value.shape, *value.stride(), value.storage_offset())
        open_input = any(self.expr(n).free_symbols for n in numbers)
        if self.padded:
            self.dims[node] = self._dims_of_input(node, value)
        fake: torch.Tensor
        if self.real is not None:
            fake = self.mode.from_tensor(self.real[place], static_shapes=True)
        else:
            with self.mode:
                shape = [self.at(n) for n in value.shape]
                stride = [self.at(n) for n in value.stride()]
                if self.padded and open_input:
                    fake = torch.empty(shape, dtype=value.dtype, device=value.device)
                else:
                    fake = torch.empty_strided(
                        shape, stride, dtype=value.dtype, device=value.device
                    )
        new.meta["val"] = fake
        if self.padded and open_input:
            self.result.inputs[place] = self.dims[node]
        self.result.kept.append(place)
        self.result.fakes.append(fake)
        self.env[node] = self._last_input = new

    def _dims_of_input(self, node: Node, value: torch.Tensor) -> Dims:
        if node.name in self.known:
            return tuple(
                dim([p.subs(self.settled) for p in d.parts]) for d in self.known[node.name]
            )
        sizes = [self.expr(s) for s in value.shape]
        if not all(map(is_one_part, sizes)):
            raise NotPaddable(f"an input of sizes {sizes}, whose parts are not known")
        return self.whole(value)

    def _attribute(self, node: Node) -> None:
        new = self.graph.node_copy(node)
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):  # a graph of its own: a branch, a loop
            raise NotPaddable("a graph within the graph")
        with torch._subclasses.fake_tensor.unset_fake_temporarily():
            real = getattr(self.source, str(node.target))
        setattr(self.result.module, str(node.target), real)
        new.meta["val"] = self.mode.from_tensor(real, static_shapes=True)
        self.dims[node] = self.whole(value)
        self.env[node] = new

    def _output(self, node: Node) -> None:
        results = node.args[0]
        assert isinstance(results, (list, tuple))
        mapped = []
        for i, result in enumerate(results):
            if isinstance(result, Node):
                dims = self.dims.get(result)
                if self.padded and dims is not None and not is_symbolic(result.meta.get("val")):
                    self.result.named[result.name] = dims
                    if has_open(dims) or self._is_open(result.meta["val"]):
                        self.result.outputs[i] = dims
                result = self.env[result]
            mapped.append(result if isinstance(result, Node) else None)
        new = self.graph.output(mapped)
        new.meta.update(node.meta)

    # ---- for rules ----

    def at(self, value: Any) -> Any:
        """A size, or any number of the graph, with the numbers of this one."""
        if isinstance(value, (torch.SymInt, torch.SymBool, torch.SymFloat)):
            found = sympy.sympify(value.node.expr).subs(self.sizes)
            if isinstance(value, torch.SymBool):
                return bool(found)
            return int(found) if isinstance(value, torch.SymInt) else float(found)
        return value

    def expr(self, value: Any) -> sympy.Expr:
        """A size as an expression of open sizes."""
        return expr_of(value).subs(self.settled)

    def whole(self, value: torch.Tensor, uniform: bool = False) -> Dims:
        """Dimensions of one part each."""
        return whole([self.expr(s) for s in value.shape], uniform)

    def sizes_of(self, node: Node) -> list[sympy.Expr]:
        return [self.expr(s) for s in node.meta["val"].shape]

    def static_dims(self, node: Node) -> Any:
        """Dimensions of a value that no open size affects."""
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            return self.whole(value)
        if isinstance(value, (list, tuple)):
            return tuple(self.whole(v) if isinstance(v, torch.Tensor) else None for v in value)
        return None

    def is_open_number(self, node: Node) -> bool:
        """Whether a node is a number that differs from call to call."""
        value = node.meta.get("val")
        return is_symbolic(value) and bool(self.expr(value).free_symbols)

    def settle(self, value: Any) -> Any:
        """An argument; a number instead of a node that always has it."""
        settled = isinstance(value, Node) and not self.is_open_number(value)
        return self.env[value] if settled else value

    def _is_open(self, value: torch.Tensor) -> bool:
        numbers = (*value.shape, *value.stride(), value.storage_offset())
        return any(self.expr(n).free_symbols for n in numbers)

    def copy(self, node: Node) -> Node:
        """The same operation on what stands for its arguments."""
        args: Any = map_arg(node.args, lambda n: self.env[n])
        kwargs: Any = map_arg(node.kwargs, lambda n: self.env[n])
        return self.put(node, self.emit(node.target, *args, **kwargs))

    def put(self, node: Node, new: Node) -> Node:
        self.env[node] = new
        return new

    def emit(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """A new node of the graph."""
        new = self.graph.call_function(target, args, kwargs)
        source = self.current
        if source is not None:
            new.meta.update({k: v for k, v in source.meta.items() if k not in _OWN})
        values = map_arg((args, kwargs), lambda n: n.meta["val"])
        with self.mode, enable_python_dispatcher():
            new.meta["val"] = target(*values[0], **values[1])
        return new

    def extra(self, kind: str, expr: Any, count: int, device: torch.device, dtype: Any) -> Node:
        """An input with something of the sizes of a call."""
        wanted = Extra(kind, sympy.sympify(expr), count, device, dtype)
        if wanted not in self._extras:
            shape = [] if kind == "value" else [count]
            with self.mode:
                fake = torch.empty(shape, dtype=dtype, device=device)
            with (
                self.graph.inserting_after(self._last_input)
                if self._last_input is not None
                else self.graph.inserting_before(next(iter(self.graph.nodes)))
            ):
                new = self.graph.placeholder(f"spyre_{kind}{len(self._extras)}")
            new.meta["val"] = fake
            self._extras[wanted] = self._last_input = new
        return self._extras[wanted]

    def masked(self, new: Node, dims: Dims, over: Sequence[int], fill: Any) -> Node:
        """A value with `fill` in the padding of some dimensions."""
        over = tuple(d for d in over if dims[d].is_open)
        if not over:
            return new
        key = (new, dims, over, fill)
        if key not in self._masked:
            self._masked[key] = self._mask(new, dims, over, fill)
        return self._masked[key]

    def _mask(self, new: Node, dims: Dims, over: tuple[int, ...], fill: Any) -> Node:
        value = new.meta["val"]
        apart: list[sympy.Expr] = []
        """Sizes with the parts of the masked dimensions apart."""
        places: list[int] = []
        for d, own in enumerate(dims):
            for part in own.parts if d in over else (own.size,):
                if d in over and part.free_symbols:
                    places.append(len(apart))
                apart.append(part)
        shape = [number(p, self.sizes) for p in apart]
        is_apart = len(shape) != value.dim()
        result = self.emit(aten.reshape.default, new, shape) if is_apart else new
        zero = self.emit(aten.full.default, [], fill, dtype=value.dtype, device=value.device)
        for place in places:
            mask = self.extra("mask", apart[place], shape[place], value.device, torch.bool)
            ones = [shape[place] if p == place else 1 for p in range(len(shape))]
            result = self.emit(
                aten.where.self, self.emit(aten.view.default, mask, ones), result, zero
            )
        return self.emit(aten.reshape.default, result, list(value.shape)) if is_apart else result


_OWN = ("val", "tensor_meta", "unbacked_bindings")


def _is_impure(node: Node) -> bool:
    return node.is_impure() or (
        isinstance(node.target, torch._ops.OpOverload) and (node.target._schema.is_mutable)
    )
