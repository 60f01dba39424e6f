"""What is done to the graph so that writes to a part of a tensor can be writes in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from torch_spyre._inductor.fx.passes.partial_writes import _are_apart, prepare_writes

aten = torch.ops.aten


def prepared(function: Callable[..., Any], *shapes: tuple[int, ...]) -> torch.fx.Graph:
    """The graph of a function of tensors on the card, after the pass."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        inputs = [torch.empty(shape, dtype=torch.float16, device="spyre") for shape in shapes]
        graph = make_fx(function)(*inputs).graph
        prepare_writes(graph)
    graph.lint()
    return graph


def targets(graph: torch.fx.Graph) -> list[Any]:
    return [node.target for node in graph.nodes if node.op == "call_function"]


def test_what_is_written_is_not_copied_first() -> None:
    def function(x, v):
        window = aten.slice.Tensor(x, 0, 3, 5)
        y = aten.slice_scatter.default(x, aten.copy.default(window, v), 0, 3, 5)
        return aten.copy_.default(x, y)

    wide = targets(prepared(function, (8, 64), (2, 64)))
    assert wide == [aten.slice_scatter.default, aten.copy_.default]
    narrow = targets(prepared(function, (8, 64), (64,)))
    assert narrow == [aten.expand.default, aten.slice_scatter.default, aten.copy_.default]


def test_a_copy_that_somebody_reads_stays() -> None:
    def function(x, v):
        copy = aten.copy.default(aten.slice.Tensor(x, 0, 3, 5), v)
        aten.copy_.default(x, aten.slice_scatter.default(x, copy, 0, 3, 5))
        return copy

    assert aten.copy.default in targets(prepared(function, (8, 64), (2, 64)))


def test_readers_of_the_old_value_come_first() -> None:
    def function(x, v):
        y = aten.slice_scatter.default(x, v, 0, 3, 5)
        old = aten.mul.Tensor(x, 2)
        aten.copy_.default(x, y)
        return old

    found = targets(prepared(function, (8, 64), (2, 64)))
    assert found == [aten.mul.Tensor, aten.slice_scatter.default, aten.copy_.default]


def test_who_needs_both_values_gets_a_copy_of_a_part() -> None:
    def function(x, v):
        y = aten.slice_scatter.default(x, v, 0, 3, 5)
        old = aten.slice.Tensor(x, 0, 2, 4)
        both = aten.add.Tensor(old, aten.slice.Tensor(y, 0, 2, 4))
        aten.copy_.default(x, y)
        return both

    graph = prepared(function, (8, 64), (2, 64))
    found = targets(graph)
    assert found.index(aten.clone.default) < found.index(aten.slice_scatter.default)
    (add,) = graph.find_nodes(op="call_function", target=aten.add.Tensor)
    assert add.args[0].target is aten.clone.default
    assert add.args[1].args[0].target is aten.slice_scatter.default


def test_nothing_is_moved_for_an_input_that_the_program_does_not_change() -> None:
    def function(x, v):
        y = aten.slice_scatter.default(x, v, 0, 3, 5)
        return aten.add.Tensor(aten.slice.Tensor(x, 0, 0, 2), aten.slice.Tensor(y, 0, 0, 2))

    assert aten.clone.default not in targets(prepared(function, (8, 64), (2, 64)))


def test_writes_through_views_of_an_input_are_writes_to_the_input() -> None:
    def function(x, v):
        turned = aten.permute.default(x, [1, 0])
        first = aten.slice_scatter.default(turned, v, 0, 3, 5)
        inner = aten.slice_scatter.default(aten.slice.Tensor(first, 0, 7, 9), v, 1, 0, 8)
        second = aten.slice_scatter.default(first, inner, 0, 7, 9)
        aten.copy_.default(x, aten.permute.default(second, [1, 0]))
        return second

    graph = prepared(function, (8, 16), (2, 8))
    first, second = graph.find_nodes(op="call_function", target=aten.as_strided_scatter.default)
    (x, _) = graph.find_nodes(op="placeholder")
    assert first.args[0] is x
    assert second.args[0] is first
    assert first.args[2:] == ([2, 8], [1, 16], 3)
    assert second.args[2:] == ([2, 8], [1, 16], 7), "the inner one, whose rows are all of 8"
    (change,) = graph.find_nodes(op="call_function", target=aten.copy_.default)
    assert change.args == (x, second)
    assert aten.slice_scatter.default not in targets(graph)


@pytest.mark.parametrize(
    ("first", "second", "apart"),
    [
        (lambda x: x[:, 3:5], lambda x: x[:, 5:6], True),
        (lambda x: x[:, 3:5], lambda x: x[:, 4:6], False),
        (lambda x: x[..., 0], lambda x: x[..., 1], True),
        (lambda x: x[:2, 3], lambda x: x[2:], True),
        (lambda x: x[:, 3].t(), lambda x: x[:, 2], True),
        (lambda x: x[:, ::2], lambda x: x[:, 1::2], False),  # they are, but places do not tell
        (lambda x: x.view(-1)[:20], lambda x: x.view(-1)[40:], False),  # the same
        (lambda x: x[0], lambda x: x[0], False),
    ],
)
def test_whether_two_views_are_apart(
    first: Callable[..., Any], second: Callable[..., Any], apart: bool
) -> None:
    x = torch.empty(4, 6, 10)
    assert _are_apart(first(x), second(x), x) == apart


def test_a_source_that_lies_where_it_is_written_is_copied() -> None:
    def function(x, v):
        y = aten.slice_scatter.default(x, aten.slice.Tensor(x, 0, 2, 4), 0, 3, 5)
        return aten.copy_.default(x, y)

    def apart(x, v):
        y = aten.slice_scatter.default(x, aten.slice.Tensor(x, 0, 0, 2), 0, 3, 5)
        return aten.copy_.default(x, y)

    assert aten.clone.default in targets(prepared(function, (8, 64), (2, 64)))
    assert aten.clone.default not in targets(prepared(apart, (8, 64), (2, 64)))


def test_rows_of_a_part_are_written_where_they_are() -> None:
    def function(x, v):
        index = torch.zeros(1, dtype=torch.int64, device="spyre")
        layer = aten.select.int(x, 0, 2)
        rows = aten.index_put.default(layer, [None, index], v)
        return aten.copy_.default(x, aten.select_scatter.default(x, rows, 0, 2))

    def cut(x, v):
        index = torch.zeros(1, dtype=torch.int64, device="spyre")
        some = aten.slice.Tensor(x, 1, 0, 4)
        rows = aten.index_put.default(some, [None, index], v)
        return aten.copy_.default(x, aten.slice_scatter.default(x, rows, 1, 0, 4))

    put = torch.ops.spyre.put_rows.default
    (node,) = prepared(function, (3, 4, 8, 64), (4, 1, 64)).find_nodes(
        op="call_function", target=put
    )
    assert node.args[1:4] == ([4, 8, 64], [512, 64, 1], 4096)
    assert put not in targets(prepared(cut, (3, 8, 64), (3, 1, 64))), "rows of a part of their own"


def test_put_rows_means_index_put_into_a_part() -> None:
    x, v, index = torch.randn(3, 4, 8), torch.randn(4, 2), torch.tensor([5, 1])
    expected = x.clone()
    expected[1][:, index] = v
    where = ([4, 8], [8, 1], 32, [None, index], v)
    assert torch.equal(torch.ops.spyre.put_rows(x, *where), expected)
    assert torch.ops.spyre.put_rows_(x, *where) is x
    assert torch.equal(x, expected)
