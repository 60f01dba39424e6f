"""Dispatcher of a graph with dynamic shapes: bucket lookup, padding, cropping.

`DynamicGraph` stands for a graph of AOTAutograd. Called with sizes for which it has no program, it
specialises the graph on the next buckets (`buckets.py`) and compiles it like any other. Inputs are
copied into tensors of these sizes, zero-padded, and results are cropped to the sizes of the call:

    37 tokens   (4, 37, 64) -> (4, 128, 64)   program for 128   (4, 128, 64) -> (4, 37, 64)

Where padding would be visible (`NotPaddable`), the program is specialised on the exact sizes. It is
an LRU cache of up to `config.max_dynamic_programs` programs for each graph.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._guards import TracingContext, tracing
from torch._inductor.output_code import OutputCode
from torch.fx import GraphModule, Node

from torch_spyre._inductor import config, state
from torch_spyre._inductor.capture import input_layouts
from torch_spyre._inductor.capture.int64_guard import Classes, classes_of
from torch_spyre._inductor.counters import counters
from torch_spyre._inductor.dynamic import padding_rules
from torch_spyre._inductor.dynamic.buckets import ladders
from torch_spyre._inductor.dynamic.padded_dims import Dims, NotPaddable, expr_of
from torch_spyre._inductor.dynamic.specialize import (
    FixedGraph,
    Fixer,
    Sizes,
    is_symbolic,
    number,
    numbers_of,
)
from torch_spyre.logs import get_logger

_log = get_logger("spyre.inductor")


@dataclass
class _Program:
    """A graph for some sizes, compiled."""

    fixed: FixedGraph
    sizes: Sizes
    run: Callable[[list[Any]], Any]
    extras: OrderedDict[tuple[int, ...], list[torch.Tensor]]


@dataclass(eq=False)
class DynamicGraph(OutputCode):
    """A graph with open sizes, and its programs."""

    def __init__(
        self,
        module: GraphModule,
        compile_fixed: Callable[[FixedGraph], Any],
        known: dict[str, Dims],
        patient: bool,
        found: bool,
    ) -> None:
        self.module = module
        self._compile_fixed = compile_fixed
        self.known = known
        self.patient = patient
        self.inputs = module.graph.find_nodes(op="placeholder")
        (output,) = module.graph.find_nodes(op="output")
        self.outputs: Sequence[Any] = output.args[0]
        self.symbols, self._bindings = _bindings(self.inputs)
        self._shapes, self._values = symbols_of(module)
        self._ladders = ladders(module.graph, set(self.symbols), found)
        self._first: dict[sympy.Symbol, int] = {}
        self._changed: set[sympy.Symbol] = set()
        self._programs: OrderedDict[Any, _Program] = OrderedDict()
        self._integers: Classes = {}
        self._lock = threading.RLock()
        self._boxed_call = True
        self.named = self._names()

    def _names(self) -> dict[str, Dims]:
        """What the results are made of, for a backward graph."""
        sizes = {s: self._ladders[s].above(2) for s in self.symbols}
        try:
            return (
                Fixer(self.module, sizes, padded=True, known=self.known)
                .run(padding_rules.apply)
                .named
            )
        except NotPaddable as reason:
            _log.info("sizes stay those of calls: %s", reason)
            return {}

    # ---- a call ----

    def __call__(self, inputs: Sequence[Any]) -> Any:
        args = list(inputs)
        if isinstance(inputs, list):
            inputs.clear()
        sizes = {s: _read(args, place) for s, place in zip(self.symbols, self._bindings)}
        with torch.no_grad():
            program = self._program(sizes, args)
            return self._run(program, sizes, args)

    def _run(self, program: _Program, sizes: Sizes, args: list[Any]) -> Any:
        fixed = program.fixed
        tensors = self._padded(fixed, program.sizes, sizes, args)
        given = list(tensors)
        results = program.run([*tensors, *self._extras(program, sizes)])
        for place in fixed.written & fixed.inputs.keys():
            padded = given[fixed.kept.index(place)]
            if padded is not args[place]:
                _crop(padded, args[place], fixed.inputs[place], program.sizes, sizes)
        found = []
        for i, (node, result) in enumerate(zip(self.outputs, results, strict=True)):
            if not isinstance(node, Node):
                found.append(node)
            elif is_symbolic(node.meta.get("val")):
                found.append(_number(node.meta["val"], sizes))
            elif node.op == "placeholder":
                found.append(args[self.inputs.index(node)])
            elif i in fixed.outputs:
                empty = _empty(node.meta["val"], sizes)
                found.append(_crop(result, empty, fixed.outputs[i], program.sizes, sizes))
            else:
                found.append(result)
        return found

    def _padded(self, fixed: FixedGraph, padded: Sizes, sizes: Sizes, args: list[Any]) -> list[Any]:
        return [
            _pad(args[i], fixed.inputs[i], padded, sizes) if i in fixed.inputs else args[i]
            for i in fixed.kept
        ]

    def _extras(self, program: _Program, sizes: Sizes) -> list[torch.Tensor]:
        key = tuple(sizes.values())
        found = program.extras.get(key)
        if found is None:
            found = [extra.make(sizes) for extra in program.fixed.extras]
            if len(program.extras) >= _MANY:
                program.extras.popitem(last=False)
            program.extras[key] = found
        return found

    # ---- programs ----

    def _program(self, sizes: Sizes, args: list[Any]) -> _Program:
        with self._lock:
            padded, settled = self._choose(sizes)
            exact = tuple(sizes[s] for s in self.symbols if s in self._shapes | self._values)
            self._integers = classes_of(args, self._integers)
            integers = tuple(self._integers.items())
            keys = ("padded", *padded.values(), *settled, integers), ("exact", *exact, integers)
            for key in keys:
                if key in self._programs:
                    self._programs.move_to_end(key)
                    return self._programs[key]
            program, is_padded = self._make(padded, settled, sizes, args)
            self._programs[keys[0 if is_padded else 1]] = program
            if len(self._programs) > config.max_dynamic_programs:
                self._programs.popitem(last=False)
            return program

    def _choose(self, sizes: Sizes) -> tuple[Sizes, dict[sympy.Symbol, int]]:
        """The sizes of the program for a call, and which of them are taken as they are."""
        for symbol, size in sizes.items():
            if symbol not in self._shapes:
                continue
            if self._first.setdefault(symbol, size) != size:
                self._changed.add(symbol)
        still = self._shapes - self._changed if self.patient else set()
        settled = {s: n for s, n in sizes.items() if s in still}
        padded = {
            s: settled.get(s) or (self._ladders[s].above(n) if s in self._shapes else _ANY)
            for s, n in sizes.items()
        }
        return padded, settled

    def _make(
        self, padded: Sizes, settled: Sizes, sizes: Sizes, args: list[Any]
    ) -> tuple[_Program, bool]:
        if len(settled) < len(self._shapes | self._values):
            try:
                return self._compile(args, sizes, padded, settled, is_padded=True), True
            except NotPaddable as reason:
                _log.info("compiled for %s alone: %s", sizes, reason)
        return self._compile(args, sizes, sizes, {}, is_padded=False), False

    def _compile(
        self, args: list[Any], sizes: Sizes, numbers: Sizes, settled: Sizes, is_padded: bool
    ) -> _Program:
        known = self.known

        def fixer(real: Sequence[Any] | None) -> Fixer:
            return Fixer(
                self.module, numbers, padded=is_padded, known=known, settled=settled, real=real
            )

        real = args
        if is_padded:
            fixed = fixer(None).run(padding_rules.apply)
            tensors = iter(self._padded(fixed, numbers, sizes, args))
            real = [next(tensors) if i in fixed.kept else a for i, a in enumerate(args)]
        made = fixer(real)
        fixed = made.run(padding_rules.apply)
        places = enumerate(fixed.kept)
        integers = {i: self._integers[place] for i, place in places if place in self._integers}
        with (
            tracing(TracingContext(made.mode)),
            state.compiling(),  # what is recorded is known to this compilation
            input_layouts.recording([real[i] for i in fixed.kept], integers=integers),
        ):
            run = self._compile_fixed(fixed)
        counters["padded_programs" if is_padded else "exact_programs"] += 1
        return _Program(fixed, numbers, run, OrderedDict())

    # ---- what Inductor asks of compiled graphs ----

    def post_compile(self, *args: Any, **kwargs: Any) -> None:
        return None

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        return None


_ANY = 2
"""Stands for a number that no size depends on; programs get its value as an input."""

_MANY = 512  # sizes whose masks are remembered


def symbols_of(module: GraphModule) -> tuple[set[sympy.Symbol], set[sympy.Symbol]]:
    """Open sizes that shapes of a graph depend on, and those that only arguments do."""
    shapes, values = set[sympy.Symbol](), set[sympy.Symbol]()
    for node in module.graph.nodes:
        value = node.meta.get("val")
        if is_symbolic(value):
            users = (u for u in node.users if u.op != "output")
            if any(not is_symbolic(u.meta.get("val")) for u in users):
                values |= expr_of(value).free_symbols
        else:
            for number in numbers_of(value):
                shapes |= expr_of(number).free_symbols if is_symbolic(number) else set()
    return shapes, values - shapes


def _bindings(inputs: Sequence[Node]) -> tuple[list[sympy.Symbol], list[tuple[int, int]]]:
    """Where open sizes are read: input, and dimension (-1: the input is the number)."""
    places: dict[sympy.Symbol, tuple[int, int]] = {}
    for i, node in enumerate(inputs):
        value = node.meta.get("val")
        sizes = value.shape if isinstance(value, torch.Tensor) else ()
        for d, size in [(-1, value), *enumerate(sizes)]:
            if is_symbolic(size) and expr_of(size).is_Symbol:
                places.setdefault(expr_of(size), (i, d))
    return list(places), list(places.values())


def _read(args: list[Any], place: tuple[int, int]) -> int:
    value, d = args[place[0]], place[1]
    return int(value if d < 0 else value.shape[d])


def _number(value: Any, sizes: Sizes) -> Any:
    found = expr_of(value).subs(sizes)
    if isinstance(value, torch.SymBool):
        return bool(found)
    return int(found) if isinstance(value, torch.SymInt) else float(found)


# ---- Padding ------------------------------------------------------------------------------------


def _pad(tensor: torch.Tensor, dims: Dims, padded: Sizes, sizes: Sizes) -> torch.Tensor:
    """A tensor in one of the sizes of a program, with zeros in the padding."""
    shape = tuple(number(d.size, padded) for d in dims)
    if shape == tuple(tensor.shape) and tensor.is_contiguous() and not tensor.storage_offset():
        return tensor
    result = torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
    result.copy_(_zeros(shape, tensor.dtype, tensor.device))
    inner, parts = _counting(result, dims, padded, sizes)
    inner.copy_(tensor.detach().reshape(parts))
    return result


def _crop(
    tensor: torch.Tensor, into: torch.Tensor, dims: Dims, padded: Sizes, sizes: Sizes
) -> torch.Tensor:
    """Copy the valid elements of a padded tensor."""
    inner, _ = _counting(tensor, dims, padded, sizes)
    into.detach().copy_(inner.reshape(into.shape))
    return into


def _counting(
    tensor: torch.Tensor, dims: Dims, padded: Sizes, sizes: Sizes
) -> tuple[torch.Tensor, list[int]]:
    """The valid elements of a padded tensor, its dimensions split into their parts."""
    parts = [p for d in dims for p in d.parts or (sympy.Integer(1),)]
    tensor = tensor.view([number(p, padded) for p in parts])
    counts = [number(p, sizes) for p in parts]
    for d, n in enumerate(counts):
        tensor = tensor.narrow(d, 0, n)
    return tensor, counts


_templates: OrderedDict[Any, torch.Tensor] = OrderedDict()


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    key = (shape, dtype, device)
    found = _templates.get(key)
    if found is None:
        found = torch.zeros(shape, dtype=dtype).to(device)
        _templates[key] = found
        if len(_templates) > _TEMPLATES:
            _templates.popitem(last=False)
    return found


_TEMPLATES = 16  # tensors of zeros that are remembered


def _empty(value: torch.Tensor, sizes: Sizes) -> torch.Tensor:
    """Memory for a result in the sizes of a call."""
    size = [_number(n, sizes) if is_symbolic(n) else n for n in value.shape]
    stride = [_number(n, sizes) if is_symbolic(n) else n for n in value.stride()]
    offset = value.storage_offset()
    offset = _number(offset, sizes) if is_symbolic(offset) else offset
    if not offset:
        return torch.empty_strided(size, stride, dtype=value.dtype, device=value.device)
    last = sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    base = torch.empty(offset + last + 1, dtype=value.dtype, device=value.device)
    return base.as_strided(size, stride, offset)
