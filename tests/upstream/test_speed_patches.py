"""Work that is not done twice while a graph is compiled, and that it is done when it has to be."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._inductor import compile_fx, fx_utils, ir, pattern_matcher
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import torch_spyre
from tests.support.cases import values
from tests.support.upstream import needs
from torch_spyre._inductor import state
from torch_spyre._inductor.fx import decompositions
from torch_spyre.upstream import fake_tensor_updates

aten = torch.ops.aten


def x(*shape: int, seed: int = 0) -> torch.Tensor:
    return values(shape, "any", torch.float16, seed)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = (t.view(2, 70, 2, 64).transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 70, 128)


# ---- Values of nodes ----------------------------------------------------------------------------


@needs("known-values")
def test_values_that_are_known_are_not_computed_again() -> None:
    torch._dynamo.reset()
    q, k, v = (x(2, 70, 128, seed=i) for i in range(3))
    stock = mock.Mock(side_effect=AssertionError("traced again"))
    with (
        mock.patch.object(compile_fx, "FakeTensorProp", stock),
        mock.patch.object(fx_utils, "FakeTensorUpdater", stock),
    ):
        told = torch_spyre.explain(attention, q.to("spyre"), k.to("spyre"), v.to("spyre"))
    expected = attention(q.float(), k.float(), v.float())
    assert torch.allclose(told.result.cpu().float(), expected, atol=0.02)


def traced(function: Callable[..., Any], *shapes: tuple[int, ...]) -> torch.fx.GraphModule:
    mode = FakeTensorMode()
    with mode:
        inputs = [torch.empty(s, dtype=torch.float16, device="spyre") for s in shapes]
    return make_fx(function)(*inputs)


def rewrite_transpose(graph: torch.fx.Graph) -> None:
    """Another shape from there on."""
    for node in graph.find_nodes(op="call_function", target=aten.permute.default):
        node.args = (node.args[0], [0, 1])


def view_of_a_copy(graph: torch.fx.Graph) -> None:
    """The same shapes, but views lie in other memory."""
    for node in graph.find_nodes(op="call_function", target=aten.permute.default):
        with graph.inserting_before(node):
            copy = graph.call_function(aten.clone.default, (node.args[0],))
        node.replace_input_with(node.args[0], copy)


def other_function(graph: torch.fx.Graph) -> None:
    for node in graph.find_nodes(op="call_function", target=aten.exp.default):
        node.target = aten.sin.default


@pytest.mark.parametrize("change", [rewrite_transpose, view_of_a_copy, other_function])
def test_values_are_those_that_inductor_would_find(
    change: Callable[[torch.fx.Graph], None],
) -> None:
    def function(a: torch.Tensor) -> torch.Tensor:
        b = torch.exp(a.permute(1, 0))
        return torch.relu(b.unsqueeze(0)).squeeze(0) + b

    graphs = [traced(function, (64, 32)) for _ in range(2)]
    for gm, make in zip(
        graphs, (fake_tensor_updates.Updater, fx_utils.FakeTensorUpdater), strict=True
    ):
        updater = make(gm)
        change(gm.graph)
        mode = next(iter(gm.graph.nodes)).meta["val"].fake_mode
        with V.set_fake_mode(mode), enable_python_dispatcher():
            updater.incremental_update()
    ours, theirs = ([n.meta.get("val") for n in gm.graph.nodes] for gm in graphs)
    for a, b in zip(ours, theirs, strict=True):
        if isinstance(a, torch.Tensor):
            assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)
    assert aliases(ours) == aliases(theirs)


def aliases(found: list[Any]) -> list[int]:
    """For each value the first one that lies in the same memory."""
    places = [v.untyped_storage()._cdata for v in found if isinstance(v, torch.Tensor)]
    return [places.index(p) for p in places]


def test_a_value_that_is_the_same_changes_nothing_behind_it() -> None:
    gm = traced(lambda a: torch.relu(torch.exp(a).view(-1)), (8, 64))
    updater = fake_tensor_updates.Updater(gm)
    before = [n.meta.get("val") for n in gm.graph.nodes]
    other_function(gm.graph)
    with V.set_fake_mode(before[0].fake_mode):
        assert updater.incremental_update() == 0
    assert all(a is n.meta.get("val") for a, n in zip(before, gm.graph.nodes, strict=True))


def test_views_that_become_reshapes_are_not_computed_again() -> None:
    gm = traced(lambda a: torch.relu(a.view(-1).view(16, 32)), (8, 64))
    updater = fake_tensor_updates.Updater(gm)
    before = [n.meta.get("val") for n in gm.graph.nodes]
    compile_fx.view_to_reshape(gm)
    with (
        mock.patch.object(fake_tensor_updates.fx_utils, "get_fake_args_kwargs") as computed,
        V.set_fake_mode(before[0].fake_mode),
    ):
        assert updater.incremental_update() == 0
    assert not computed.called
    targets = [n.target for n in gm.graph.nodes]
    assert aten.reshape.default in targets and aten.view.default not in targets


def test_equal_nodes_that_are_changed_alike_are_computed_once() -> None:
    def function(a: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            a = torch.relu(torch.exp(a))
        return a

    gm = traced(function, (8, 64))
    updater = fake_tensor_updates.Updater(gm)
    before = [n.meta.get("val") for n in gm.graph.nodes]
    other_function(gm.graph)
    computed = []
    stock = fake_tensor_updates.fx_utils.get_fake_args_kwargs

    def noted(node: torch.fx.Node, gm: torch.fx.GraphModule) -> Any:
        computed.append(node)
        return stock(node, gm)

    with (
        mock.patch.object(fake_tensor_updates.fx_utils, "get_fake_args_kwargs", noted),
        V.set_fake_mode(before[0].fake_mode),
    ):
        assert updater.incremental_update() == 0
    assert len(computed) == 1
    assert all(a is n.meta.get("val") for a, n in zip(before, gm.graph.nodes, strict=True))


# ---- Patterns -----------------------------------------------------------------------------------


@needs("possible-patterns")
def test_patterns_that_cannot_match_are_not_tried() -> None:
    torch_spyre._inductor.register()
    found = pattern_matcher.PatternMatcherPass()
    call, any_value = pattern_matcher.CallFunction, pattern_matcher.KeywordArg("a")
    tried: list[Any] = []
    for inner in (aten.exp.default, aten.sin.default):
        pattern = call(aten.relu.default, call(aten.neg.default, call(inner, any_value)))

        @pattern_matcher.register_graph_pattern(pattern, pass_dict=found)
        def replaced(match: Any, a: torch.fx.Node) -> None:
            tanh = match.graph.call_function(aten.tanh.default, (a,))
            match.output_node().replace_all_uses_with(tanh)
            match.erase_nodes()

    stock = pattern_matcher.PatternExpr.match

    def match(self: Any, node: torch.fx.Node) -> Any:
        tried.append(self)
        return stock(self, node)

    for ours in (False, True):
        tried.clear()
        gm = traced(lambda a: torch.relu(torch.neg(torch.sin(a))), (8, 64))
        with (
            state.compiling() if ours else contextlib.nullcontext(),
            mock.patch.object(pattern_matcher.PatternExpr, "match", match),
        ):
            assert found.apply(gm) == 1
        assert len(tried) == (1 if ours else 2)
        assert [n.target for n in gm.graph.nodes if n.op == "call_function"] == [aten.tanh.default]


def test_attention_in_small_steps_is_found_as_before() -> None:
    from torch._dynamo.utils import counters

    def steps(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.matmul(torch.matmul(q, k.transpose(-2, -1)).div(8).softmax(-1), v)

    torch._dynamo.reset()
    counters.clear()
    inputs = [torch.randn(2, 2, 16, 64) for _ in range(3)]
    torch.compile(steps)(*inputs)  # of the CPU, once the patterns were changed
    assert counters["inductor"]["fuse_attention"] == 1


# ---- The scheduler ------------------------------------------------------------------------------


@needs("never-fused")
def test_loops_are_made_on_demand() -> None:
    torch._dynamo.reset()
    a = x(5, 70)

    def function(a: torch.Tensor) -> torch.Tensor:
        return torch.exp(a + 1).sum(-1)

    stock = mock.patch.object(ir.ComputedBuffer, "simplify_and_reorder", side_effect=AssertionError)
    with stock:
        told = torch_spyre.explain(function, a.to("spyre"))
    assert torch.allclose(told.result.cpu().float(), function(a.float()), rtol=0.02)


def test_loops_are_there_for_who_looks_at_them() -> None:
    torch._dynamo.reset()
    seen = []

    @torch_spyre._inductor.add_pass("pre_fusion")
    def look(nodes: list[Any]) -> None:
        seen.extend((n.get_ranges(), n._body.debug_str()) for n in nodes)

    try:
        torch.compile(lambda a: torch.exp(a).sum(-1))(x(5, 70).to("spyre"))
    finally:
        torch_spyre._inductor.remove_pass("pre_fusion", look)
    assert [list(map(list, ranges)) for ranges, _ in seen] == [[[350], []], [[5], [70]]]
    assert "ops.exp" in seen[0][1] and "'sum'" in seen[1][1]


# ---- Shapes -------------------------------------------------------------------------------------


def test_what_an_attention_gives_is_worked_out_once() -> None:
    op, calls = aten.scaled_dot_product_attention.default, []
    stock = decompositions._DECOMPOSITIONS[op]

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return stock(*args, **kwargs)

    with (
        mock.patch.dict(decompositions._DECOMPOSITIONS, {op: counted}),
        FakeTensorMode(),
        enable_python_dispatcher(),
        torch.no_grad(),
    ):
        q, k = (torch.empty(2, 4, n, 64, dtype=torch.float16, device="spyre") for n in (9, 17))
        first, again = (F.scaled_dot_product_attention(q, k, k) for _ in range(2))
        assert len(calls) == 1
        assert (first.shape, first.stride()) == (again.shape, again.stride())
        assert (again.dtype, again.device) == (first.dtype, first.device)
        assert F.scaled_dot_product_attention(k, q, q).shape[2] == 17
        assert len(calls) == 2
        with torch.enable_grad():  # what is differentiated has to be there
            k.requires_grad_()
            assert F.scaled_dot_product_attention(q, k, k).grad_fn is not None
        assert len(calls) == 3


def test_what_a_product_with_weights_gives_is_worked_out_once() -> None:
    op, calls = aten.linear.default, []
    stock = op.decompose
    with FakeTensorMode(), enable_python_dispatcher(), torch.no_grad():
        a, w = (torch.empty(s, dtype=torch.float16, device="spyre") for s in ((2, 9, 64), (70, 64)))
        bias = torch.empty(70, dtype=torch.float16, device="spyre")

        def decompose(*args: Any, **kwargs: Any) -> Any:
            calls.append(args)
            return stock(*args, **kwargs)

        with mock.patch.object(op, "decompose", decompose):
            first, again = F.linear(a, w, bias), F.linear(a, w, bias)
            assert not calls  # there is a rule
            row = a[0, 0]  # and none for this
            assert F.linear(row, w, bias).shape == F.linear(row, w, bias).shape == (70,)
        assert len(calls) == 1
        assert (first.shape, first.stride()) == ((2, 9, 70), (630, 70, 1))
        assert (again.shape, again.stride()) == (first.shape, first.stride())
        assert again.untyped_storage()._cdata != first.untyped_storage()._cdata
        assert F.linear(a[:1], w).shape == (1, 9, 70)
        with pytest.raises(RuntimeError):
            F.linear(a, w.t())


def test_products_are_traced_without_casts() -> None:
    seen: list[Any] = []

    @torch_spyre._inductor.add_pass("early")
    def look(graph: torch.fx.Graph) -> None:
        seen.extend(n.target for n in graph.nodes if n.op == "call_function")

    def function(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return a @ b, c @ c.transpose(1, 2)

    torch._dynamo.reset()
    a, b, c = x(9, 64), x(64, 70, seed=1), x(3, 9, 64, seed=2)
    cast = mock.Mock(side_effect=AssertionError("cast"))
    try:
        with mock.patch.dict(
            torch._inductor.decomposition.decompositions, {aten._to_copy.default: cast}
        ):
            torch._inductor.decomposition.fast_random_decomps.cache_clear()
            results = torch.compile(function)(a.to("spyre"), b.to("spyre"), c.to("spyre"))
    finally:
        torch_spyre._inductor.remove_pass("early", look)
        torch._inductor.decomposition.fast_random_decomps.cache_clear()
    assert aten.mm.default in seen and aten.bmm.default in seen
    for result, expected in zip(results, function(a.float(), b.float(), c.float()), strict=True):
        assert torch.allclose(result.cpu().float(), expected, rtol=0.02, atol=0.02)


def test_outer_products_are_products_of_elements() -> None:
    torch._dynamo.reset()
    a, b = x(9, 1), x(1, 70, seed=1)
    told = torch_spyre.explain(torch.mm, a.to("spyre"), b.to("spyre"))
    assert "batchmatmul" not in [op.opfunc for op in told.ops]
    assert torch.allclose(told.result.cpu().float(), a.float() @ b.float(), rtol=0.01)
