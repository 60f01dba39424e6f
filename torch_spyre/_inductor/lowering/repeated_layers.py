"""Layers that are equal are lowered and planned once.

A model of 24 layers is a graph in which the same hundred nodes stand 24 times, with other weights.
Of such a stretch only the first layer, the second and the last one are lowered; where a node of
those between them is wanted, the node of the second layer stands for it:

    before  first  second  [third ... last but one]  last  behind
                     |      left out: as the second   |
                     +--------------------------------+   the last layer reads the second

What the scheduler and the plan get is a graph of three layers. `repeat_layers.py` puts the others
back into the finished plan: the operations of the second one again, with the weights of the others.
Whether that is right can only be seen there. If it is not, planning raises `RestartLowering`, as
Dynamo restarts its analysis: the graph is lowered again, as a whole.

A layer is left out if its nodes are those of the layer before it, in the same order, and each reads
the same: the same node of its own layer, of the layer before or from before all layers, or an input
of the graph that no other layer reads and that looks, and lies, like its counterpart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.graph import GraphLowering
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node

from torch_spyre._inductor import config, passes, state
from torch_spyre._inductor.capture import input_layouts
from torch_spyre._inductor.fx.passes.cleanup import changed_by
from torch_spyre._inductor.operations import origins
from torch_spyre.on_card import is_spyre

BEFORE, FIRST, SECOND, LAST, BEHIND = range(5)
"""Parts of a graph from which layers were left out, in order."""

_LEAST_NODES = 8
"""Layers of fewer nodes are not looked for."""
_LEAST_LAYERS = 4
"""Of fewer, none can be left out."""


class RestartLowering(Exception):
    """The plan of a graph from which layers were left out cannot be made that of the whole."""


@dataclass
class Repeats:
    """The equal layers of a graph."""

    period: int
    position: dict[Node, int]
    """Of each node that is computed, in order."""
    begin: int
    """Where the first layer begins."""
    count: int
    """Of layers."""
    inputs: list[dict[str, str]]
    """For each layer that is left out: its inputs, by the names of those of the second."""
    foreign: set[str] = field(default_factory=set)
    """Inputs of the graph that the second layer does not read: they are neither its own nor those
    of all layers."""
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Of each buffer, by its name, the part of the graph that made it, and which of its nodes."""
    _values: dict[int, Any] = field(default_factory=dict)
    """What the nodes of the second layer were lowered to."""
    _is_sure: bool = False

    def layer(self, node: Node) -> int:
        """Which layer a node belongs to: -1 before the first, `count` behind the last."""
        position = self.position.get(node)
        if position is None:
            return self.count if node.op == "output" else -1
        return max(-1, min(self.count, (position - self.begin) // self.period))

    def place(self, node: Node) -> tuple[int, int]:
        """The part of a node, and its number in it."""
        layer = self.layer(node)
        offset = (self.position.get(node, 0) - self.begin) % self.period
        if layer < 0 or layer >= self.count:
            return (BEFORE, 0) if layer < 0 else (BEHIND, 0)
        parts = {0: FIRST, 1: SECOND}
        return parts.get(layer, LAST), offset

    def place_of(self, name: str) -> tuple[int, int]:
        """The same for the buffer of that name."""
        if name not in self.places:
            raise RestartLowering(f"{name} belongs to no node")
        return self.places[name]

    def lower(self, graph: GraphLowering, node: Node, lower: Callable[[Node], Any]) -> Any:
        """Lower a node, unless it is left out."""
        layer = self.layer(node)
        part, offset = self.place(node)
        if 1 < layer < self.count - 1:
            if self._second_is_native(graph):
                return self._values[offset]
            leave_nothing_out(graph)
            return lower(node)
        first = len(graph.buffers)
        result = lower(node)
        for buffer in graph.buffers[first:]:
            self.places[buffer.get_name()] = (part, offset)
        if part == SECOND:
            self._values[offset] = result
        return result

    def _second_is_native(self, graph: GraphLowering) -> bool:
        """Whether all of the second layer is the card's; steps of the host are not repeated."""
        if not self._is_sure:
            for buffer in graph.buffers:
                if self.places.get(buffer.get_name(), (BEFORE, 0))[0] == SECOND:
                    device = buffer.get_device()
                    # A cat is memory whose pieces are written by their own nodes.
                    own = isinstance(buffer, (ir.ComputedBuffer, ir.NopKernel))
                    if not own or not is_spyre(device):
                        return False
            self._is_sure = True
        return True


@dataclass
class Layers:
    """What is known about the layers of a graph."""

    repeats: Repeats | None = None
    """None where no layer is left out."""
    is_known: bool = False


def of(graph: GraphLowering) -> Repeats | None:
    """The layers of a graph, if some of them are left out."""
    return state.of(graph, Layers).repeats


def begin(graph: GraphLowering) -> None:
    """Look for equal layers, before a graph is lowered."""
    layers = state.of(graph, Layers)
    if not layers.is_known and _may_leave_out(graph):
        layers.repeats, layers.is_known = find(list(graph.module.graph.nodes)), True


def leave_nothing_out(graph: GraphLowering) -> None:
    """A graph is lowered as a whole."""
    layers = state.of(graph, Layers)
    layers.repeats, layers.is_known = None, True


def _may_leave_out(graph: GraphLowering) -> bool:
    """Passes that were added from outside are promised all nodes of a graph."""
    return (
        config.share_layers
        and config.enable_fusion
        and not graph.aot_mode
        and not graph.cpp_wrapper
        and not passes.look_at_lowered_nodes()
    )


# ---- 1. Which nodes are alike -------------------------------------------------------------------


@dataclass(frozen=True)
class _Looks:
    """A node by itself, and the nodes that it reads in the order in which they stand there."""

    kind: Any
    reads: list[Node]


def find(nodes: Sequence[Node]) -> Repeats | None:
    """The equal layers of a graph; None if there are too few."""
    computed = [n for n in nodes if n.op not in ("placeholder", "get_attr", "output")]
    if len(computed) < _LEAST_LAYERS * _LEAST_NODES:
        return None
    numbers: dict[Any, int] = {}
    looks: list[_Looks] = []
    for node in computed:
        reads: list[Node] = []
        kind = _looks(node, reads)
        # A node that is like no other has a number of its own.
        number = -1 - len(looks) if kind is None else numbers.setdefault(kind, len(numbers))
        looks.append(_Looks(number, reads))
    stretch = _longest_stretch([look.kind for look in looks])
    if stretch is None:
        return None
    position = {node: i for i, node in enumerate(computed)}
    start, end, period = stretch
    start = _thinnest(computed, position, start, period)
    found = _checked(computed, looks, position, start, end, period)
    if found is not None:
        read = {r for look in looks[start + period : start + 2 * period] for r in look.reads}
        found.foreign = {str(n.target) for n in nodes if n.op == "placeholder" and n not in read}
    return found


def _looks(node: Node, reads: list[Node]) -> Any:
    """What makes two nodes equal but for what they read; None for what is like nothing else."""
    meta = node.meta  # what a program asks for around a node, and its streams, are in "custom"
    if node.op != "call_function" or "custom" in meta or "inductor_realize_to_strides" in meta:
        return None
    value = _described(node.meta.get("val"))
    if value is None:
        return None
    kind = (
        node.target, _arguments(node.args, reads), _arguments(node.kwargs, reads), value,
        origins.aten_name(node), origins.source_of(node),
    )  # fmt: skip
    try:
        hash(kind)
    except TypeError:
        return None
    return kind


def _described(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        parts = tuple([_described(v) for v in value])
        return None if None in parts else parts
    if type(value) is not FakeTensor or value._has_symbolic_sizes_strides:
        return None
    if not is_spyre(value.fake_device):
        return None
    return (value.shape, value.stride(), value.storage_offset(), value.dtype, value.fake_device)


_READ = object()
"""Stands for a node in the arguments of another."""


def _arguments(value: Any, reads: list[Node]) -> Any:
    """Arguments without the nodes in them, so that equal means of the same type: 1 is not 1.0."""
    kind = type(value)
    if kind is Node:
        reads.append(value)
        return _READ
    if kind is int or kind is str or value is None:
        return value
    if kind is float:
        return (float, repr(value))  # -0.0 and nan are numbers of their own
    if isinstance(value, (tuple, list)):
        return (tuple, *[_arguments(v, reads) for v in value])
    if isinstance(value, dict):
        return (dict, *[(k, _arguments(v, reads)) for k, v in value.items()])
    if kind is slice:
        return (slice, *[_arguments(v, reads) for v in (value.start, value.stop, value.step)])
    return (kind, value)


def _longest_stretch(kinds: Sequence[int]) -> tuple[int, int, int] | None:
    """Where kinds of nodes repeat for longest: begin, end and period."""
    last: dict[int, int] = {}
    distances: Counter[int] = Counter()
    for i, kind in enumerate(kinds):
        if kind in last and i - last[kind] >= _LEAST_NODES:
            distances[i - last[kind]] += 1
        last[kind] = i
    best: tuple[int, int, int] | None = None
    for period, _ in distances.most_common(4):
        begin = run = 0
        for i in range(len(kinds) - period + 1):
            if i < len(kinds) - period and kinds[i] == kinds[i + period]:
                run += 1
                continue
            begin, length, run = i - run, run + period, 0
            enough = length >= _LEAST_LAYERS * period
            if enough and (best is None or length > best[1] - best[0]):
                best = (begin, begin + length, period)
    return best


def _thinnest(nodes: Sequence[Node], position: dict[Node, int], start: int, period: int) -> int:
    """Where layers should begin so that the fewest values go from one to the next."""
    crossing = [0] * (2 * period + 1)
    for i in range(start, start + 2 * period):
        ends = [position.get(user, -1) for user in nodes[i].users]
        until = min(max(ends, default=i), start + 2 * period - 1)
        if until > i:  # it crosses what is before each node from i + 1 to its last reader
            crossing[i + 1 - start] += 1
            crossing[until + 1 - start] -= 1
    live, found = 0, []
    for offset in range(2 * period):
        live += crossing[offset]
        if offset >= period:
            found.append(live)
    return start + found.index(min(found))


# ---- 2. Which layers are equal ------------------------------------------------------------------


@dataclass
class _Inputs:
    """Inputs of the graph, as layers read them."""

    own: dict[Node, int] = field(default_factory=dict)
    """Those of one layer alone, and which that is."""
    shared: set[Node] = field(default_factory=set)
    """Those, and nodes from before all layers, that any layer may read."""


def _checked(
    nodes: list[Node],
    looks: list[_Looks],
    position: dict[Node, int],
    start: int,
    end: int,
    period: int,
) -> Repeats | None:
    """As many layers as do the same with what corresponds, from the first one on."""
    found = Repeats(period, position, start, (end - start) // period, [])
    inputs = _Inputs()
    names: list[dict[str, str]] = []  # of the second layer and those behind it
    for layer in range(1, found.count - 1):
        pairs = _counterparts(found, looks, layer, inputs)
        if pairs is None:
            found.count = layer + 1
            break
        if layer == 1:
            names = [{name: name for name in pairs}]
        names.append({name: pairs[there] for name, there in names[-1].items()})
    while found.count >= _LEAST_LAYERS and not _is_closed(found, nodes, inputs.own):
        found.count -= 1
    if found.count < _LEAST_LAYERS:
        return None
    found.inputs = names[1 : found.count - 2]
    return found


def _counterparts(
    found: Repeats, looks: list[_Looks], layer: int, inputs: _Inputs
) -> dict[str, str] | None:
    """The names of a layer's own inputs, with those that the next layer reads in their place; None
    if the two layers differ."""
    pairs: dict[Node, Node] = {}
    first = found.begin + layer * found.period
    for i in range(first, first + found.period):
        for here, there in zip(looks[i].reads, looks[i + found.period].reads, strict=True):
            if here is there:
                if found.layer(here) != -1:
                    return None
                inputs.shared.add(here)
            elif here.op == there.op == "placeholder":
                if pairs.setdefault(here, there) is not there:
                    return None
            elif not _is_next(found, here, there, layer):
                return None
    for here, there in pairs.items():
        if inputs.own.setdefault(here, layer) != layer or there in inputs.own:
            return None
        inputs.own[there] = layer + 1
        if _description(here) is None or _description(here) != _description(there):
            return None
    if not inputs.shared.isdisjoint(inputs.own):
        return None
    return {str(here.target): str(there.target) for here, there in pairs.items()}


def _is_next(found: Repeats, here: Node, there: Node, layer: int) -> bool:
    """Whether two nodes that are read by neighbouring layers are the same node of both."""
    a, b = found.position.get(here), found.position.get(there)
    if a is None or b is None or b != a + found.period:
        return False
    if found.layer(here) == layer:
        return True
    # Sums of integers may grow from layer to layer, and with them what they need.
    value = here.meta["val"]
    exact = isinstance(value, torch.Tensor) and (
        value.dtype.is_floating_point or value.dtype is torch.bool
    )
    return found.layer(here) == layer - 1 and exact


def _description(node: Node) -> Any:
    """All that the compiler knows of an input of the graph."""
    value = _described(node.meta.get("val"))
    return None if value is None else (value, input_layouts.known_of(node.meta["val"], node.name))


def _is_closed(found: Repeats, nodes: list[Node], own: dict[Node, int]) -> bool:
    """Whether layers are read by the next one alone, and their inputs are theirs. The last layer is
    read by whoever wants to."""
    layers = range(found.begin, found.begin + (found.count - 1) * found.period)
    for i in layers:
        layer = (i - found.begin) // found.period
        if any(found.layer(user) not in (layer, layer + 1) for user in nodes[i].users):
            return False
    changed = {node for i in layers for node in changed_by(nodes[i])}
    if any(node.op != "placeholder" for node in changed):
        return False  # a view of something: of what, nobody has asked
    return all(
        _is_used_by_its_layer(found, node, layer, node in changed)
        for node, layer in own.items()
        if layer < found.count - 1
    )


def _is_used_by_its_layer(found: Repeats, node: Node, layer: int, is_changed: bool) -> bool:
    """Whether others use an input of a layer only where they cannot come in its way: the scheduler
    does not know of layers that are left out. What the layer only reads may be read before all
    layers, and changed behind them, which the plan has a look at."""
    for user in node.users:
        place = found.layer(user)
        if place == layer:
            continue
        behind = place == found.count
        if is_changed or not (place == -1 or behind) or (not behind and node in changed_by(user)):
            return False
    return True
