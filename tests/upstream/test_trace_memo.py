"""Operations of equal layers are traced once, and the graph is the one that tracing all gives."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch.nn import functional as F

import torch_spyre
from tests.support.cases import values
from tests.support.upstream import needs
from torch_spyre._inductor.fx import decompositions
from torch_spyre.upstream import trace_memo

aten = torch.ops.aten


def x(*shape: int, seed: int = 0) -> torch.Tensor:
    return values(shape, "any", torch.float16, seed)


def layers(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        a = F.layer_norm(F.silu(F.linear(a, w)) + a, (64,))
    return a


def attentions(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        q = F.linear(a, w).view(2, 9, 2, 32).transpose(1, 2)
        a = F.scaled_dot_product_attention(q, q, q).transpose(1, 2).reshape(2, 9, 64)
    return a


def other_sizes(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    b = torch.cat((a, a), 1)
    return (F.linear(a, w).sum(1) + F.linear(b, w).sum(1)) + F.linear(b[:, 1:], w).sum(1)


def the_same_twice(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    b = a * w[0]
    return (a * a) + (a * b) + (b * b)


def mutations(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        a = F.linear(a, w)
        row = a[:, 2]
        a.mul_(0.5)
        row.add_(1)  # a view of what a layer returns
        a = a + torch.relu(row).unsqueeze(1) + torch.relu(a)
    return a


def results_are_changed(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    total = torch.zeros_like(a)
    for _ in range(3):
        b = F.linear(a, w)
        b[:, 1:3].fill_(2)
        total += b
        a = b.view(2, 9, 8, 8).transpose(2, 3).reshape(2, 9, 64)
    return total


def inputs_are_changed(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    seen = a.view(18, 64)
    for _ in range(3):
        b = F.linear(seen, w)
        a.add_(1)
        b = b + F.linear(seen, w)
        a.copy_(b.view(2, 9, 64) * 0.1)
    return b


def one_number(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.add(a, w[0], alpha=2) + torch.add(a, w[0], alpha=3) + torch.add(a, w[0], alpha=2)


def gives_tuples(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        largest, _places = torch.max(F.linear(a, w), -1)
        a = a + largest.unsqueeze(-1)
    return a


FUNCTIONS = [
    layers,
    attentions,
    other_sizes,
    the_same_twice,
    mutations,
    results_are_changed,
    inputs_are_changed,
    one_number,
    gives_tuples,
]


def described(node: torch.fx.Node, memory: dict[int, int]) -> Any:
    """All of a node that anybody looks at later. `memory` numbers the memories of tensors."""
    value, told = node.meta.get("val"), ()
    if isinstance(value, torch.Tensor):
        place = memory.setdefault(value.untyped_storage()._cdata, len(memory))
        told = (value.shape, value.stride(), value.storage_offset(), value.dtype, value.device)
        told = (*told, value.requires_grad, place, value.untyped_storage().nbytes())
    meta = [str(node.meta.get(n)) for n in ("original_aten", "stack_trace", "tensor_meta")]
    return (node.name, str(node.target), str(node.args), str(node.kwargs), *told, *meta)


def graph_and_result(function: Callable[..., Any], again: bool) -> tuple[list[Any], Any, Any]:
    torch._dynamo.reset()
    graphs: list[Any] = []

    @torch_spyre._inductor.add_pass("early")
    def look(graph: torch.fx.Graph) -> None:
        memory: dict[int, int] = {}
        graphs.append([described(node, memory) for node in graph.nodes])

    never = mock.patch.object(trace_memo, "_is_changed_later", return_value=True)
    inputs = x(2, 9, 64).to("spyre"), x(64, 64, seed=1).mul(0.1).to("spyre")
    try:
        with (
            contextlib.nullcontext() if again else never,
            torch._inductor.config.patch(force_disable_caches=True),
            torch.no_grad(),
        ):
            result = torch.compile(function, fullgraph=True)(*inputs)
    finally:
        torch_spyre._inductor.remove_pass("early", look)
    (graph,) = graphs
    return graph, result.cpu(), inputs[0].cpu()


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_the_graph_is_the_one_that_is_traced(function: Callable[..., Any]) -> None:
    traced, expected, changed = graph_and_result(function, again=False)
    replayed, result, also_changed = graph_and_result(function, again=True)
    for ours, theirs in zip(replayed, traced, strict=True):
        assert ours == theirs
    assert torch.equal(result, expected)
    assert torch.equal(also_changed, changed)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_results_are_those_of_the_host(function: Callable[..., Any]) -> None:
    a, w = x(2, 9, 64).float(), x(64, 64, seed=1).mul(0.1).float()
    expected = function(a, w)
    _, result, changed = graph_and_result(function, again=True)
    scale = expected.abs().max()
    assert torch.allclose(result.float(), expected, atol=0.02 * float(scale))
    assert torch.allclose(changed.float(), a, atol=0.02 * float(a.abs().max()))


@needs("trace-memo")
def test_an_operation_is_decomposed_once_for_all_layers() -> None:
    op, calls = aten.scaled_dot_product_attention.default, []
    stock = decompositions._DECOMPOSITIONS[op]

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return stock(*args, **kwargs)

    counts = []
    for again in (False, False, True):  # in the first Dynamo works out the shapes
        calls.clear()
        with mock.patch.dict(decompositions._DECOMPOSITIONS, {op: counted}):
            graph_and_result(attentions, again)
        counts.append(len(calls))
    _, traced, replayed = counts
    assert traced == 6  # twice for each layer
    assert replayed == 2  # twice for the first


def test_random_numbers_are_drawn_for_each() -> None:
    def function(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.rand_like(a), torch.rand_like(a), torch.rand_like(a)])

    _, result, _ = graph_and_result(function, again=True)
    assert not torch.equal(result[0], result[1]) and not torch.equal(result[1], result[2])


def test_gradients_are_traced_as_ever() -> None:
    torch._dynamo.reset()
    a, w, c = x(2, 9, 64), x(64, 64, seed=1).mul(0.1), x(2, 9, 64, seed=2)
    ours, theirs = w.to("spyre").requires_grad_(), w.float().requires_grad_()
    torch.compile(layers)(a.to("spyre"), ours).square().mul(c.to("spyre")).sum().backward()
    layers(a.float(), theirs).square().mul(c.float()).sum().backward()
    assert ours.grad is not None and theirs.grad is not None
    scale = float(theirs.grad.abs().max())
    assert torch.allclose(ours.grad.cpu().float(), theirs.grad, atol=0.03 * scale)
