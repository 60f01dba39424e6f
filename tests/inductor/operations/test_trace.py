"""Bodies of nodes are run once, unless layouts have changed since."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch._inductor import ir

import torch_spyre
from tests.support.cases import values
from torch_spyre._inductor.operations import body_memo, trace


def compiled(function: Callable[..., torch.Tensor], x: torch.Tensor) -> Counter[str | None]:
    """How often the body of each node was run. The result must be that of the CPU."""
    torch._dynamo.reset()
    runs: Counter[str | None] = Counter()
    stock = body_memo.run_once

    def counted(node: Any, run: Any, read_by: Any) -> Any:
        def noted(node: Any) -> Any:
            runs[node.name] += node.name is not None
            return run(node)

        return stock(node, noted, read_by)

    with mock.patch.object(body_memo, "run_once", counted):
        told = torch_spyre.explain(function, x.to("spyre"))
    expected = function(x.float())
    assert torch.allclose(told.result.cpu().float(), expected, rtol=0.02, atol=0.02)
    return runs


def test_a_body_is_run_once_for_one_layout() -> None:
    runs = compiled(
        lambda a: torch.relu(torch.exp(a + 1)), values((8, 128), "any", torch.float16, 0)
    )
    named = {name: n for name, n in runs.items() if name is not None}
    assert named
    assert set(named.values()) == {1}


def test_a_node_whose_input_gets_another_layout_is_run_again() -> None:
    """A result takes the strides of what it reads when that is known; until then it is in order."""

    def function(a: torch.Tensor) -> torch.Tensor:
        b = torch.exp(a.t())
        return (b + 1) * b.sum(-1, keepdim=True)

    runs = compiled(function, values((64, 128), "any", torch.float16, 0))
    assert max(runs.values()) == 2


@pytest.mark.parametrize("changed", [False, True])
def test_what_is_known_of_a_node_holds_for_its_layouts(changed: bool) -> None:
    size, device = [4, 8], torch.device("spyre", 0)

    def buffer(name: str, stride: list[int]) -> Any:
        layout = ir.FixedLayout(device, torch.float16, size, stride)
        return mock.Mock(spec=ir.ComputedBuffer, data=name, **{"get_layout.return_value": layout})

    known = {"a": buffer("a", [8, 1]), "b": buffer("b", [8, 1])}
    known["b"].name = "b"
    known["b"].get_name.return_value = "b"
    graph = mock.Mock(constants={})
    graph.try_get_buffer = known.get
    run = mock.Mock(side_effect=["first", "second"])
    with trace.V.set_graph_handler(graph):
        assert body_memo.run_once(known["b"], run, lambda _: ["a"]) == "first"
        if changed:
            known["a"] = buffer("a", [1, 4])
        again = body_memo.run_once(known["b"], run, lambda _: ["a"])
    assert again == ("second" if changed else "first")
