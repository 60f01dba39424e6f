"""Small programs, native throughout: copies, casts, gathers, composite operations, mutation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest
import torch
from torch._inductor.scheduler import Scheduler

import torch_spyre
from tests.support.cases import values
from tests.support.upstream import needs
from torch_spyre import _C

F = torch.nn.functional


@dataclass
class Program:
    name: str
    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    roundings: int = 1
    """To 9 fraction bits, one after another, on the way to the result."""


def x(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return values(shape, "any", dtype, seed)


def ints(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(1))


def distinct(*shape: int) -> torch.Tensor:
    """No two values are equal, along any dimension: which of two equal ones comes first is open."""
    count = torch.Size(shape).numel()
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(2))
    step = order[: shape[-1]].expand(shape)
    offset = torch.arange(count // shape[-1]).reshape(*shape[:-1], 1) * 7
    return ((step + offset) % 1000 - 500).half()


COPIES = [
    Program("pad", lambda a: F.pad(a, (3, 4, 1, 2), value=2.0), (x(5, 70),)),
    Program("crop", lambda a: F.pad(a, (-3, 4, 1, -2)), (x(5, 70),)),
    Program("cat of rows", lambda a, b: torch.cat([a, b, a], 0), (x(5, 70), x(3, 70, seed=1))),
    Program("cat in sticks", lambda a, b: torch.cat([a, b, a], 1), (x(5, 70), x(5, 64, seed=1))),
    Program("stack", lambda a, b: torch.stack([a, b], 1), (x(5, 70), x(5, 70, seed=1))),
    Program("stack last", lambda a, b: torch.stack([a, b], -1), (x(5, 70), x(5, 70, seed=1))),
    Program("chunk", lambda a: sum(a.chunk(3, -1)), (x(5, 192),), 3),
    Program("split", lambda a: a.split([10, 60], -1)[1] * 2, (x(5, 70),)),
    Program("steps", lambda a: a[::2, ::3] + 1, (x(9, 70),)),
    Program("roll", lambda a: a.roll(3, 1) + 1, (x(9, 70),)),
    Program("view", lambda a: a.view(2, 3, 10, 7) + 1, (x(6, 70),)),
    Program("sum of a view", lambda a: a.view(2, 3, 10, 7).sum(-1), (x(6, 70),)),
    Program("permute", lambda a: a.permute(2, 0, 1).contiguous() * 2, (x(6, 7, 70),)),
    Program("permute and reshape", lambda a: a.permute(2, 0, 1).reshape(70, 42), (x(6, 7, 70),)),
    Program("flatten", lambda a, b: a.flatten(0, 1) + b, (x(50, 10, 200), x(500, 200, seed=1))),
    Program(
        "flattened from two shapes",
        lambda a, b: a.view(35, 65) + b.view(35, 65),
        (x(5, 7, 65), x(7, 5, 65, seed=1)),
    ),
    Program(
        "flattened from two shapes into a third",
        lambda a, b: torch.where(a > 0, a, b.view(15, 2, 100)).view(6, 5, 100) * 2,
        (x(15, 2, 100), x(10, 3, 100, seed=1)),
    ),
    Program("expand", lambda a: a[:, None].expand(5, 4, 70) * 2, (x(5, 70),)),
    Program("repeat", lambda a: a.repeat(2, 3) + 1, (x(5, 70),)),
    Program("slice", lambda a: a[:, 3:50] + 1, (x(30, 65),)),
    Program("transpose back and forth", lambda a: (a.t() + 1).t() * a, (x(65, 129),), 2),
    Program(
        "steps of an intermediate",
        lambda a: F.pad(a, (0, 0, 2, 2))[:, :, 2:12:2] * 2,
        (x(2, 8, 9, 13),),
    ),
    Program(
        "steps in two dimensions",
        lambda a: (a * 2)[:, 1::3, ::2] * a[:, 1::3, ::2],
        (x(4, 14, 65),),
    ),
    Program("restickify", lambda a: torch.ops.spyre.restickify(a) + 1, (x(65, 129),)),
]

CASTS = [
    Program(f"{name} {list(shape)}", function, (x(*shape),), 2)
    for shape in ((68,), (4, 68), (4, 16), (3, 5, 100), (2, 129))
    for name, function in {
        "up": lambda a: a.float(),
        "up and down": lambda a: (a.float() * 2).half(),
        "up and sum": lambda a: a.float().sum(-1, keepdim=True) * 0.1 + a.float(),
        "up and compare": lambda a: torch.where(a.float() > 0.5, a.float(), -a.float()),
        "rms norm in float32": lambda a: (
            a.float() * torch.rsqrt(a.float().pow(2).mean(-1, keepdim=True) + 1e-5)
        ).half(),
    }.items()
] + [
    Program("bool", lambda a: (a > 0).half() + a.bool().half(), (x(4, 68),)),
    Program("bfloat16", lambda a: (a * 2).bfloat16() + 1, (x(4, 68),), 10),
    Program("narrow float32", lambda a: a.half() * 2, (x(4, 68, dtype=torch.float32),), 2),
    Program("int to float", lambda a: a.half() * 0.5, (ints(100, 5, 70),)),
    Program("float to int", lambda a: a.long() + 1, (ints(100, 5, 70).half() / 2,)),
    Program("mixed", lambda a, b: a.float() * b + b, (x(4, 68), x(4, 68, dtype=torch.float32))),
]

INDEXING = [
    Program("embedding", lambda w, i: F.embedding(i, w) * 2, (x(30, 65), ints(30, 4, 7))),
    Program("columns", lambda w, i: w[:, i], (x(30, 65), ints(65, 4, 7))),
    Program("index_select", lambda w, i: w.index_select(0, i), (x(30, 65), ints(30, 7))),
    Program("vector", lambda w, i: w[i] + 1, (x(30), ints(30, 9))),
    Program("topk", lambda a: torch.topk(a, 3), (distinct(30, 65),)),
    Program("topk of rows", lambda a: torch.topk(a, 3, dim=0), (distinct(30, 65),)),
    Program("smallest", lambda a: torch.topk(a, 10, 1, largest=False), (distinct(3, 30, 65),)),
]

COMPOSITE = [
    Program("softmax", lambda a: torch.softmax(a, -1), (x(30, 65),), 4),
    Program("softmax of rows", lambda a: torch.softmax(a, 0), (x(30, 65),), 4),
    Program("log_softmax", lambda a: F.log_softmax(a, -1), (x(30, 65),), 4),
    Program("layer_norm", lambda a, w, b: F.layer_norm(a, (100,), w, b),
            (x(3, 5, 100), x(100, seed=1), x(100, seed=2)), 3),
    Program("layer_norm plain", lambda a: F.layer_norm(a, (129,)), (x(5, 129),), 3),
    Program("layer_norm, its scale alone",
            lambda a: torch.native_layer_norm(a, (100,), None, None, 1e-5)[2].squeeze(-1) + 1,
            (x(63, 100, dtype=torch.float32),), 3),
    Program("layer_norm, transposed", lambda a: F.layer_norm(a, (100,)).t().contiguous(),
            (x(63, 100, dtype=torch.float32),), 3),
    Program("rms_norm", lambda a, w: F.rms_norm(a, (100,), w), (x(5, 100), x(100, seed=1)), 5),
    Program("linear", F.linear, (x(2, 7, 65), x(100, 65, seed=1), x(100, seed=2)), 2),
    Program("addmm", lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2.0),
            (x(100), x(7, 65), x(65, 100, seed=1)), 4),
    Program("product of ones", lambda a: torch.ones(8, 64, device=a.device, dtype=a.dtype) @ a.t(),
            (x(65, 64),)),
    Program("product of a column", lambda s, a: s.expand(8, 64) @ a.t(), (x(8, 1), x(65, 64))),
    Program("product with a row", lambda a, s: a @ s.expand(64, 9), (x(8, 64), x(1, 9))),
    Program("product of numbers", lambda s, t: s.expand(8, 64) @ t.expand(64, 9), (x(), x())),
    Program("einsum", lambda a, b: torch.einsum("bij,bkj->bik", a, b),
            (x(2, 7, 65), x(2, 100, 65, seed=1)), 2),
    Program("attention", lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m),
            (x(2, 3, 7, 64), x(2, 3, 9, 64, seed=1), x(2, 3, 9, 64, seed=2), x(7, 9, seed=3)), 12),
    Program("causal attention", lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True),
            (x(2, 3, 65, 80),), 12),
    Program("var", lambda a: a.var(-1), (x(30, 65),), 5),
    Program("std of rows", lambda a: a.std(0), (x(30, 65),), 5),
    Program("norm", lambda a: torch.linalg.vector_norm(a, dim=-1), (x(30, 65),), 4),
    Program("logsumexp", lambda a: torch.logsumexp(a, -1), (x(30, 65),), 5),
    Program("any", lambda a: (a > 1).any(-1), (x(30, 65),)),
    Program("all", lambda a: (a > -2).all(0), (x(30, 65),)),
    Program("masked_fill", lambda a: a.masked_fill(a > 0, -1.0), (x(5, 70),)),
    Program("tril", lambda a: a.tril(), (x(70, 70),)),
    Program("arange", lambda a: a + torch.arange(70, device=a.device), (x(5, 70),), 2),
    Program("sign", lambda a: a.sign() * 2, (x(5, 70),)),
    Program("powers", lambda a: a.abs() ** 1.5 + a**2 + a**3, (x(5, 70),), 6),
    Program("activations", lambda a: F.hardswish(a) + F.leaky_relu(a) + F.elu(a), (x(5, 70),), 8),
    Program("scalars", lambda a, b: a * b + a.sum(), (x(), x(seed=1)), 2),
]  # fmt: skip

FAMILIES = {"copies": COPIES, "casts": CASTS, "indexing": INDEXING, "composite": COMPOSITE}


def leaves(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def problem_of(program: Program, actual: torch.Tensor, expected: torch.Tensor) -> str:
    if actual.shape != expected.shape:
        return f"{program.name}: shape {list(actual.shape)} for {list(expected.shape)}"
    a, e = actual.double(), expected.double()
    if a.numel() == 0:
        return ""
    magnitude = torch.clamp(e.abs(), min=float(e.abs().max()) / 4)
    excess = ((a - e).abs() / (magnitude * 2.0**-10 * program.roundings * 1.01 + 1e-12)).max()
    return "" if excess <= 1 else f"{program.name}: {excess:.1f} times what rounding explains"


@pytest.mark.parametrize("family", FAMILIES)
def test_programs_run_on_the_card(family: str) -> None:
    programs = FAMILIES[family]

    def graph(*stored: torch.Tensor) -> list[torch.Tensor]:
        rest, results = list(stored), []
        for program in programs:
            own, rest = rest[: len(program.inputs)], rest[len(program.inputs) :]
            results += leaves(program.function(*own))
        return results

    torch.spyre.reset_fallback_counts()
    torch._dynamo.reset()
    on_card = [t.to("spyre") for program in programs for t in program.inputs]
    results = torch.compile(graph, fullgraph=True)(*on_card)
    problems = []
    for program in programs:
        wide = [t.double() if t.is_floating_point() else t for t in program.inputs]
        for expected in leaves(program.function(*wide)):
            problems.append(problem_of(program, results.pop(0).cpu(), expected))
    assert not [p for p in problems if p]
    assert not torch.spyre.fallback_counts()


def test_inputs_are_changed_in_place() -> None:
    def step(cache: torch.Tensor, new: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        cache[:, 2:3] = new
        cache[..., 5:9] = 1
        total.add_(new.sum())
        total.mul_(2)
        return cache.sum()

    host = [x(4, 8, 70), x(4, 1, 70, seed=1), x(3)]
    card = [t.to("spyre") for t in host]
    torch._dynamo.reset()
    torch.spyre.reset_fallback_counts()
    torch.compile(step, fullgraph=True)(*card)
    assert not torch.spyre.fallback_counts()
    wide = [t.double() for t in host]
    step(*wide)
    assert torch.equal(card[0].cpu(), wide[0].half())
    assert (card[2].cpu().double() - wide[2]).abs().max() <= wide[2].abs().max() * 2.0**-8


def test_an_argument_in_another_layout_is_copied_into_the_kernels_layout() -> None:
    from torch_spyre._C import SpyreTensorLayout
    from torch_spyre._inductor.counters import counters

    compiled = torch.compile(lambda a: a * 2 + 1)
    torch._dynamo.reset()
    a = x(100, 70)
    first = compiled(a.to("spyre"))
    before = counters["relaid_arguments"]
    layout = SpyreTensorLayout([100, 70], [70, 1], torch.float16, [1, 0])
    second = compiled(a.to("spyre", device_layout=layout))
    assert torch.equal(first.cpu(), second.cpu())
    assert counters["relaid_arguments"] == before + 1


@pytest.mark.parametrize("view", [
    lambda z: z[2:5], lambda z: z.t(), lambda z: z[:, 3:9], lambda z: z[1],
    lambda z: z.expand(3, 10, 70), lambda z: z[::2],
])  # fmt: skip
def test_inputs_may_be_views(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    torch._dynamo.reset()
    a = x(10, 70)
    result = torch.compile(lambda z: z * 2)(view(a.to("spyre")))
    assert torch.equal(result.cpu(), view(a) * 2)


@pytest.mark.parametrize("function", [
    lambda w, i: w[2:][i], lambda w, i: w[:, 16:].index_select(1, i), lambda w, i: w[i[:3], i[:3]],
    lambda w, i: F.embedding(i, w[:, 5:]), lambda w, i: torch.gather(w[:, 5:], 1, i[:, None]),
    lambda w, i: torch.gather(w, 0, i[None]), lambda w, i: F.embedding(i, w[::2]),
    lambda w, i: w.unflatten(0, (20, 2))[i], lambda w, i: w.flip(0)[i],
])  # fmt: skip
def test_gathers_from_views_are_right_wherever_they_run(function: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    table, rows = x(40, 70), ints(15, 9)
    result = torch.compile(function)(table.to("spyre"), rows.to("spyre"))
    assert torch.equal(result.cpu(), function(table, rows))


def test_pieces_of_a_cat_are_read_again_and_inputs_change_beside_host_steps() -> None:
    def cats(a: torch.Tensor, b: torch.Tensor) -> Any:
        v = a * 2
        return torch.cat([v, b, v], 1), v + b, torch.cat([b, v], 0)

    def mutation(a: torch.Tensor, b: torch.Tensor) -> Any:
        a[:, 1:2].zero_()
        return (a * 2).cumsum(0) + b, torch.cat([a, b], 1).cumsum(1)

    for function in (cats, mutation):
        stale = [torch.full((n,), float("nan"), device="spyre") for n in (64, 512, 4096) * 4]
        del stale  # what is allocated next holds NaN until it is written
        torch._dynamo.reset()
        host = [values((5, 70), "any", torch.float16, i).round() for i in range(2)]
        card = [t.to("spyre") for t in host]
        results = torch.compile(function)(*card)
        for actual, expected in zip(results, function(*host), strict=True):
            assert torch.equal(actual.cpu(), expected)
        assert torch.equal(card[0].cpu(), host[0])


@pytest.mark.parametrize("view", [lambda z: z[2:5], lambda z: z[:, 3:9], lambda z: z[1]])
def test_a_view_is_changed_in_place(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    torch._dynamo.reset()
    base = x(10, 130).round()
    card = base.to("spyre")
    torch.compile(lambda z: z.add_(1) * 1)(view(card))
    view(base).add_(1)
    assert torch.equal(card.cpu(), base)


@pytest.mark.parametrize("function", [
    lambda z: F.scaled_dot_product_attention(z, z, z, is_causal=True),
    lambda z: z + torch.arange(z.shape[-1], device=z.device),
    lambda z: F.layer_norm(z, z.shape[-1:]), lambda z: F.pad(z, [0, z.shape[0]]),
    lambda z: z.var(-1),
])  # fmt: skip
def test_other_shapes_are_compiled_for(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function)
    for shape in ((2, 7, 64), (2, 9, 64), (3, 9, 70)):
        a = x(*shape)
        expected = function(a.double())
        error = (compiled(a.to("spyre")).cpu().double() - expected).abs().max()
        assert error <= expected.abs().max() * 2.0**-7


@pytest.mark.parametrize("function", [
    lambda z: torch.topk(z[:1].clone(), 1, 0)[0], lambda z: (z > 0).clamp(-3, 3),
    lambda z: F.layer_norm(z.amin().expand(7), [7]), lambda z: z[:0].t() @ z[:0],
])  # fmt: skip
def test_odd_but_legal_programs(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    torch._dynamo.reset()
    a = x(5, 70).round()
    assert torch.equal(torch.compile(function)(a.to("spyre")).cpu(), function(a))


def test_a_compiled_optimizer_step_follows_the_cpu() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    host = torch.nn.Linear(33, 7)
    card = copy.deepcopy(host).to("spyre")
    optimizers = [torch.optim.AdamW(m.parameters()) for m in (host, card)]
    step = torch.compile(lambda: optimizers[1].step())
    data = torch.randn(5, 33)
    for _ in range(3):
        for module, optimizer, inputs in zip(
            (host, card), optimizers, (data, data.to("spyre")), strict=True
        ):
            optimizer.zero_grad()
            module(inputs).pow(2).sum().backward()
            step() if module is card else optimizer.step()
    assert (card.weight.cpu() - host.weight).abs().max() < 1e-5


def test_zero_has_two_signs() -> None:
    """They are equal: who looks numbers up by value finds the wrong one."""
    ones = torch.tensor([1.0, -1.0]).half()
    results = torch.compile(lambda a: (a * 0.0, a * -0.0, torch.full_like(a, -0.0)))(
        ones.to("spyre")
    )
    signs = [torch.signbit(r.cpu()).tolist() for r in results]
    assert signs == [[False, True], [True, False], [True, True]]


def test_the_sign_of_what_is_no_number_is_zero() -> None:
    odd = torch.tensor([float("nan"), -0.0, float("-inf"), 2.0]).half()
    result = torch.compile(torch.sign)(odd.to("spyre")).cpu()
    assert result.tolist() == torch.sign(odd).tolist() == [0.0, 0.0, -1.0, 1.0]


def test_a_cropped_tensor_is_a_copy() -> None:
    torch._dynamo.reset()
    a = torch.ones(3, 4).half().to("spyre")
    torch.compile(lambda z: F.pad(z, [-1, 0]))(a).zero_()
    assert a.cpu().sum() == 12


def test_the_copy_of_a_parameter_is_made_once() -> None:
    from torch_spyre._inductor.counters import counters

    class Product(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(x(65, 129))

        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return a @ self.weight.t()

    torch._dynamo.reset()
    module = Product().to("spyre")
    compiled = torch.compile(module)
    a = x(7, 129, seed=1)
    with torch.no_grad():
        before = counters["hoisted_copies"]
        first = [compiled(a.to("spyre")).cpu() for _ in range(3)][-1]
        assert counters["hoisted_copies"] == before + 1
        module.weight.mul_(2)
        assert torch.equal(compiled(a.to("spyre")).cpu(), first * 2)
        assert counters["hoisted_copies"] == before + 2


def test_an_operation_without_opfunc_is_a_step_on_the_host() -> None:
    torch._dynamo.reset()
    torch.spyre.reset_fallback_counts()
    a = x(5, 70)
    result = torch.compile(lambda z: torch.lgamma(z * 2) + 1, fullgraph=True)(a.to("spyre"))
    assert (result.cpu() - (torch.lgamma((a * 2).float()) + 1)).abs().max() < 0.1
    assert list(torch.spyre.fallback_counts()) == ["aten::lgamma"]


@pytest.mark.parametrize("options", [
    {}, {"backend": "spyre"}, {"mode": "reduce-overhead"}, {"mode": "max-autotune"},
    {"backend": "spyre", "mode": "default", "fullgraph": True}, {"dynamic": True},
])  # fmt: skip
def test_ways_of_calling_the_compiler(options: dict[str, Any]) -> None:
    torch._dynamo.reset()
    a = x(5, 70)
    assert torch.equal(torch.compile(lambda z: z * 2, **options)(a.to("spyre")).cpu(), a * 2)


def test_an_index_out_of_range_is_reported() -> None:
    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match="index 12 is out of bounds for dimension with size 10"):
        torch.compile(lambda w, i: w[i])(x(10, 70).to("spyre"), torch.tensor([1, 12]).to("spyre"))
        torch.spyre.synchronize()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [(4, 64, 8), (16, 144, 64), (65, 256, 129)])
def test_float8_products_with_scales(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    m, k, n = shape
    a = x(m, k).to(torch.float8_e4m3fn)
    b = x(n, k, seed=1).to(torch.float8_e4m3fn).t()
    scales = [torch.tensor(0.5), torch.tensor(2.0)]

    def product(*args: torch.Tensor) -> torch.Tensor:
        left, right, first, second = args
        return torch._scaled_mm(left, right, scale_a=first, scale_b=second, out_dtype=dtype)

    torch._dynamo.reset()
    torch.spyre.reset_fallback_counts()
    result = torch.compile(product)(*(t.to("spyre") for t in (a, b, *scales))).cpu().double()
    expected = a.double() @ b.double()
    assert (result - expected).abs().max() <= expected.abs().max() * 2.0**-9
    assert not torch.spyre.fallback_counts()


@pytest.mark.parametrize("shape", [(68,), (4, 129), (3, 5, 64)])
def test_float8_casts(shape: tuple[int, ...]) -> None:
    torch._dynamo.reset()
    a = x(*shape)
    result = torch.compile(lambda z: z.to(torch.float8_e4m3fn).half() * 2)(a.to("spyre"))
    assert torch.equal(result.cpu(), a.to(torch.float8_e4m3fn).half() * 2)


def test_operators_that_write_are_copies_on_the_card() -> None:
    def window(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        torch.ops.spyre.overwrite(a, b, [0, 1], [1, 3])
        return b + 1

    def whole(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        torch.ops.spyre.copy_from_d2d(a, b)
        return b + 1

    for function, shape in ((window, (3, 4)), (whole, (5, 70))):
        torch._dynamo.reset()
        a, b = x(*shape).round(), x(5, 70, seed=1).round()
        card = b.to("spyre")
        torch.spyre.reset_fallback_counts()
        result = torch.compile(function, fullgraph=True)(a.to("spyre"), card)
        assert not torch.spyre.fallback_counts()
        expected = b.clone()
        expected[1 : 1 + shape[0], 3:7] = a if shape == (3, 4) else 0
        expected = expected if function is window else a
        assert torch.equal(card.cpu(), expected)
        assert torch.equal(result.cpu(), expected + 1)


@needs("never-fused")
def test_no_pair_of_nodes_is_compared_for_fusion() -> None:
    torch._dynamo.reset()
    a = x(5, 70)

    def f(a: torch.Tensor) -> torch.Tensor:
        return torch.exp(a + 1).sum(-1)

    with mock.patch.object(Scheduler, "can_fuse", side_effect=AssertionError("compared")):
        told = torch_spyre.explain(f, a.to("spyre"))
    assert torch.allclose(told.result.cpu().float(), f(a.float()), rtol=0.02)


def test_a_copy_is_remembered_for_one_tensor_at_one_version() -> None:
    find, place = _C._remembered()
    tensor, other, copy = x(4, 64).to("spyre"), x(4, 64).to("spyre"), x(4, 64).to("spyre")
    assert find(tensor) is None
    _C._remember(place, tensor, copy)
    assert find(tensor) is copy and find(other) is None and find(None) is None
    tensor.add_(1)
    assert find(tensor) is None
    _C._remember(place, tensor, copy)
    assert find(tensor) is copy
    del copy
    assert find(tensor) is None, "it keeps no copy alive"
    with torch.inference_mode():
        unversioned = torch.zeros(4, 64, dtype=torch.float16, device="spyre")
    _C._remember(place, unversioned, other)
    assert find(unversioned) is None


def test_outputs_have_memory_of_their_own() -> None:
    layout = torch_spyre._C.SpyreTensorLayout([4, 64], torch.float16)
    make = _C._output((4, 64), (64, 1), torch.float16, layout, 0)
    first, second = make(), make()
    first.fill_(1)
    second.fill_(2)
    assert first.shape == (4, 64) and first.stride() == (64, 1) and first.dtype is torch.float16
    assert torch.equal(first.cpu(), torch.ones(4, 64, dtype=torch.float16))
    with pytest.raises(ValueError, match="cannot hold dtype"):
        _C._output((4, 64), (64, 1), torch.float32, layout, 0)


@needs("products-with-bias")
def test_products_are_not_traced_again() -> None:
    from unittest import mock

    from torch._inductor.fx_passes import post_grad

    torch._dynamo.reset()
    a, b, c = x(5, 64), x(64, 70), x(70)

    def f(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return a @ b + c

    with mock.patch.object(post_grad.Match, "replace_by_example", side_effect=AssertionError):
        told = torch_spyre.explain(f, a.to("spyre"), b.to("spyre"), c.to("spyre"))
    assert [op.opfunc for op in told.ops] == ["batchmatmul", "add"]
