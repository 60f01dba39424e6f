"""When the plan of one layer may stand for several: a small plan by hand, and what spoils it.

Three layers of one operation each, `x' = x * w`, with x in scratchpads:

    before  x0 = input * one
    first   x1 = x0 * w1
    second  x2 = x1 * w2
    last    x3 = x2 * w3
    behind  result = x3 * one
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import sympy
import torch

from torch_spyre._inductor.layouts.to_op_spec import buffers_of
from torch_spyre._inductor.lowering.repeated_layers import (
    BEFORE,
    BEHIND,
    FIRST,
    LAST,
    SECOND,
    Repeats,
    RestartLowering,
)
from torch_spyre._inductor.operations.operation import (
    Access,
    Buffer,
    HoistedCopy,
    Operation,
    Origin,
)
from torch_spyre._inductor.opspec.op_spec import OpSpec
from torch_spyre._inductor.planning.repeat_layers import Inside, Repetition, with_left_out
from torch_spyre._inductor.planning.tiling.loops import Item, Loop, Node, items_of


def spec(op: str = "mul", slices: int = 4) -> OpSpec:
    return OpSpec(op, False, {sympy.Symbol("c0"): (64, slices)}, [])


def buffer(name: str) -> Buffer:
    return Buffer(name, (64,), (1,), torch.float16)


@dataclass
class Plan:
    """Nodes with the parts of the graph that they belong to, and where intermediates lie."""

    nodes: list[Node] = field(default_factory=list)
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    addresses: dict[Buffer, tuple[str, int]] = field(default_factory=dict)
    arguments: dict[str, Buffer] = field(default_factory=dict)
    inputs: list[dict[str, str]] = field(default_factory=lambda: [{"w2": "w2a"}, {"w2": "w2b"}])
    foreign: set[str] = field(default_factory=lambda: {"input", "w1", "w3"})

    def argument(self, name: str) -> Buffer:
        return self.arguments.setdefault(name, buffer(name))

    def inside(self, name: str, at: int) -> Buffer:
        made = buffer(name)
        self.addresses[made] = ("lx", at)
        return made

    def add(self, part: int, inputs: list[Buffer], output: Buffer, does: OpSpec) -> Item:
        node = f"{output.name}_node{len(self.nodes)}"
        self.places[node] = (part, 0)
        zero = sympy.S.Zero
        op = Operation("mul", "pointwise", {}, (), [Access(b, zero) for b in inputs],
                       Access(output, zero), {}, Origin(node, "", ""))  # fmt: skip
        item = Item(op, does, begins=(0,) * (len(inputs) + 1))
        self.nodes.append(item)
        return item

    def whole(self) -> tuple[list[Node], Repetition | None]:
        found = Repeats(1, {}, 0, 3 + len(self.inputs), self.inputs, self.foreign, self.places)
        inside = Inside(
            lambda b: b.name in self.arguments or b.hoisted is not None,
            lambda b: self.addresses[b],
            self.addresses.__setitem__,
            self.argument,
        )
        return with_left_out(self.nodes, found, inside)


def plan(at: tuple[int, ...] = (0, 0, 0), slices: tuple[int, ...] = (4, 4, 4)) -> Plan:
    """x1, x2 and x3 at the given bytes, made with so many slices."""
    made = Plan()
    x0 = made.inside("x0", 128)
    x1, x2, x3 = (made.inside(f"x{i + 1}", byte) for i, byte in enumerate(at))
    made.add(BEFORE, [made.argument("input")], x0, spec("identity"))
    for part, x, y, n in ((FIRST, x0, x1, 0), (SECOND, x1, x2, 1), (LAST, x2, x3, 2)):
        made.add(part, [x, made.argument(f"w{n + 1}")], y, spec(slices=slices[n]))
    made.add(BEHIND, [x3], made.argument("result"), spec("identity"))
    return made


def test_the_second_layer_is_repeated_with_the_inputs_of_the_others() -> None:
    made = plan()
    nodes, repetition = made.whole()
    assert repetition == Repetition(first=2, operations=1, times=2)
    rows = [[b.name for b in buffers_of(item.op)] for item in items_of(nodes)]
    assert rows == [
        ["input", "x0"],
        ["x0", "w1", "x1"],
        ["x1", "w2", "x2"],
        ["x2", "w2a", "x2_layer2"],
        ["x2_layer2", "w2b", "x2_layer3"],
        ["x2_layer3", "w3", "x3"],
        ["x3", "result"],
    ]
    places = [made.addresses.get(item.op.output.buffer) for item in items_of(nodes)]
    assert places[2:5] == [("lx", 0)] * 3


def test_a_last_layer_that_works_differently_is_left_as_it_is() -> None:
    """What the second layer wrote as the first one did lies as that did."""
    _, repetition = plan(slices=(4, 4, 2)).whole()
    assert repetition is not None


def test_a_kernel_without_the_second_layer_stays_as_it_is() -> None:
    made = plan()
    made.nodes = made.nodes[:2]
    assert made.whole() == (made.nodes, None)


def test_what_comes_from_before_is_read_by_all() -> None:
    made = plan()
    shared = made.inside("shared", 256)
    made.nodes.insert(0, Plan.add(made, BEFORE, [made.argument("input")], shared, spec()))
    made.nodes.pop()
    for item in (made.nodes[3], made.nodes[4]):
        assert isinstance(item, Item)
        item.op.inputs.append(Access(shared, sympy.S.Zero))
    nodes, repetition = made.whole()
    assert repetition is not None
    readers = [item for item in items_of(nodes) if shared in buffers_of(item.op)[:-1]]
    assert len(readers) == 4


def moved() -> Plan:
    return plan(at=(0, 64, 0))


def moved_and_different() -> Plan:
    return plan(at=(0, 64, 0), slices=(4, 4, 2))


def written_by_other_cores() -> Plan:
    """The last layer reads as the second wrote, the second as the first wrote: they differ."""
    return plan(slices=(2, 4, 8))


def reads_ahead() -> Plan:
    """The second layer fetches what the last one needs; for another that is something else."""
    made = plan()
    ahead = made.inside("w3_lx", 512)
    made.nodes.insert(3, made.add(SECOND, [made.argument("w3")], ahead, spec("identity")))
    made.nodes.pop()
    return made


def writes_what_all_read() -> Plan:
    made = plan()
    made.add(SECOND, [made.argument("w2")], made.argument("shared"), spec())
    made.nodes.insert(3, made.nodes.pop())
    return made


def comes_from_another_kernel() -> Plan:
    made = plan()
    (x1,) = [b for b in made.addresses if b.name == "x1"]
    made.arguments["x1"] = x1
    made.places["x1"] = (FIRST, 0)
    return made


def alternates() -> Plan:
    made = plan()
    made.nodes[2], made.nodes[3] = made.nodes[3], made.nodes[2]
    return made


def two_layers_write() -> Plan:
    made = plan()
    (x2,) = [b for b in made.addresses if b.name == "x2"]
    made.add(FIRST, [made.argument("w1")], x2, spec("identity"))
    made.nodes.insert(2, made.nodes.pop())
    return made


def two_layers_write_a_temporary() -> Plan:
    made = plan()
    temporary = made.inside("temporary", 512)
    for part, after, read in ((SECOND, 3, made.argument("w2")), (LAST, 5, temporary)):
        made.nodes.insert(after, made.add(part, [read], temporary, spec("identity")))
        made.nodes.pop()
    return made


def dies_early() -> Plan:
    """The last layer reads a copy; its source was where the next layer would look for it."""
    made = plan(slices=(4, 4, 2))
    (x2,) = [b for b in made.addresses if b.name == "x2"]
    copy = made.inside("x2_copy", 64)
    made.nodes.insert(3, made.add(SECOND, [x2], copy, spec("identity")))
    made.nodes.pop()
    last: Any = made.nodes[4]
    last.op.inputs[0] = Access(copy, sympy.S.Zero)
    return made


def in_one_loop() -> Plan:
    made = plan()
    made.nodes[2:4] = [Loop(2, made.nodes[2:4])]
    return made


def of_no_node() -> Plan:
    made = plan()
    item: Any = made.nodes[2]
    made.nodes[2] = replace(item, op=replace(item.op, origin=Origin("unknown", "", "")))
    return made


def another_type() -> Plan:
    made = plan()
    made.arguments["w2b"] = Buffer("w2b", (64,), (1,), torch.float32)
    return made


@pytest.mark.parametrize(
    "spoilt",
    [moved, moved_and_different, written_by_other_cores, reads_ahead, writes_what_all_read,
     comes_from_another_kernel, alternates, two_layers_write, two_layers_write_a_temporary,
     dies_early, in_one_loop, of_no_node, another_type],
)  # fmt: skip
def test_plans_that_cannot_be_repeated_are_refused(spoilt: Any) -> None:
    with pytest.raises(RestartLowering):
        spoilt().whole()


def test_copies_of_parameters_are_made_for_each_layer() -> None:
    made = plan()
    source = made.argument("w2")
    copy = replace(buffer("copy"), hoisted=HoistedCopy(source, (64,), (1,), 0))
    item: Any = made.nodes[2]
    item.op.inputs[1] = Access(copy, sympy.S.Zero)
    nodes, _ = made.whole()
    hoisted = [b.hoisted.source.name for item in items_of(nodes)
               for b in buffers_of(item.op) if b.hoisted is not None]  # fmt: skip
    assert hoisted == ["w2", "w2a", "w2b"]
