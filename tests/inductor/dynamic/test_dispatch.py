"""Sizes that change from call to call: right results, few programs, none of the padding seen."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters as dynamo_counters

from torch_spyre._inductor import config
from torch_spyre._inductor.counters import counters
from torch_spyre._inductor.dynamic.buckets import Ladder, ladder_up_to
from torch_spyre._inductor.dynamic.padded_dims import NotPaddable, broadcast, dim, view, whole
from torch_spyre._inductor.inspect import debug_dir

n, b = sympy.symbols("n b", integer=True, positive=True)


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    dynamo_counters.clear()


def made() -> tuple[int, int]:
    """Programs so far: padded ones, and ones for given sizes."""
    return counters["padded_programs"], counters["exact_programs"]


def half(*size: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(sum(size))
    return torch.randn(*size, generator=g).half()


def check(results, expected, tolerance=2e-2):
    for result, wanted in zip(results, expected, strict=True):
        assert result.dtype == wanted.dtype and result.shape == wanted.shape
        torch.testing.assert_close(
            result.cpu(), wanted, rtol=tolerance, atol=tolerance, equal_nan=True
        )


# ---- What dimensions are made of ----------------------------------------------------------------


def test_views_take_dimensions_apart_and_put_them_together():
    dims = whole([4, n, 64])
    flat = view(dims, [4 * n, sympy.Integer(64)])
    assert [d.parts for d in flat] == [(4, n), (64,)]
    assert [d.parts for d in view(flat, [2, 2, n, 8, 8])] == [(2,), (2,), (n,), (8,), (8,)]
    assert [d.parts for d in view(whole([n, 4]), [4 * n])] == [(n, 4)]
    with pytest.raises(NotPaddable):
        view(whole([n, 4]), [sympy.Integer(4), n])
    with pytest.raises(NotPaddable):
        view(dims, [2 * n, sympy.Integer(128)])


def test_sizes_of_other_parts_do_not_go_together():
    assert broadcast([whole([n, 1]), whole([8])]) == whole([n, 8])
    with pytest.raises(NotPaddable):
        broadcast([(dim([4, n]),), (dim([n, 4]),)])


def test_ladders_grow_by_a_factor_and_end_at_the_limit():
    assert [Ladder(128, None).above(s) for s in (2, 128, 129, 513)] == [128, 128, 512, 2048]
    assert [Ladder(128, 300).above(s) for s in (2, 128, 129, 300)] == [128, 128, 300, 300]
    assert Ladder(8, 5).above(3) == 5


def test_up_to_a_limit_there_are_no_more_buckets_than_the_setting_says():
    def buckets(smallest, limit):
        ladder = ladder_up_to(smallest, limit)
        return sorted({ladder.above(size) for size in range(1, limit + 1)})

    assert buckets(128, 4096) == [128, 512, 2048, 4096]
    with config.patch(max_buckets=3):
        assert buckets(128, 4096) == [128, 2048, 4096]
        assert buckets(128, 300) == [128, 300]
    with config.patch(max_buckets=1):
        assert buckets(128, 4096) == [4096]
    for most in range(1, 9):
        with config.patch(max_buckets=most):
            assert all(len(buckets(8, limit)) <= most for limit in (1, 8, 9, 100, 5000))
    with config.patch(max_buckets=1):
        assert ladder_up_to(8, None) == Ladder(8, None), "no limit, no number"


def test_a_batch_is_padded_to_what_the_settings_say():
    def sizes(**settings):
        torch._dynamo.reset()
        seen = []
        with config.patch(**settings):
            f = torch.compile(lambda x: torch.relu(x) * 2)
            for rows in (3, 5, 20):
                x = torch.randn(rows, 64, dtype=torch.float16)
                y = x.to("spyre")
                torch._dynamo.mark_dynamic(y, 0, min=2, max=40)
                with debug_dir.listen() as record:
                    close = f(y).cpu()
                assert torch.equal(close, f_cpu(x))
                seen += [
                    max(size for size, _ in spec.iteration_space.values() if size != 64)
                    for plan in record.plans for k in plan.kernels for spec in k.specs
                ]  # fmt: skip
        return sorted(set(seen))

    def f_cpu(x):
        return (torch.relu(x) * 2).to("spyre").cpu()

    assert sizes() == [8, 32]
    assert sizes(min_default_granularity=4) == [4, 16, 40]
    assert sizes(max_buckets=1) == [40]


# ---- A growing sequence -------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.first, self.second = nn.LayerNorm(64), nn.LayerNorm(64)
        self.heads, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        q, k, v = (
            t.view(batch, tokens, 4, 16).transpose(1, 2)
            for t in self.heads(self.first(x)).chunk(3, -1)
        )
        a = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(a.transpose(1, 2).reshape(batch, tokens, 64))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Model(nn.Module):
    """An encoder's block and a decoder's one over tokens; the mean and the last of them, too."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(100, 64), nn.Embedding(300, 64)
        self.blocks = nn.Sequential(Block(causal=False), Block(causal=True))

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        x = self.blocks(x)
        return x, x.mean(1), x[:, -1]


def models() -> tuple[Model, Model]:
    torch.manual_seed(0)
    model = Model().half().eval()
    twin = Model().eval()
    twin.load_state_dict({k: v.float() for k, v in model.state_dict().items()})
    return model.to("spyre"), twin


@pytest.mark.parametrize(
    ("how", "frames", "programs", "lengths"),
    [("automatic", 3, 3, 300), ("mark_dynamic", 2, 3, 60), ("dynamic=True", 2, 3, 60)],
)
@torch.no_grad()
def test_a_growing_sequence_is_compiled_three_times_at_most(
    how, frames, programs, lengths, request
):
    model, twin = models()
    compiled = torch.compile(model, dynamic=True if how == "dynamic=True" else None)
    order = list(range(1, 301))
    random.Random(0).shuffle(order)
    bundles = _bundles()
    if lengths < 300 and not request.config.getoption("--full"):
        order = [*order[:lengths], 1, 300]
    for length in order:
        ids = torch.randint(0, 100, (2, length))
        on_card = ids.to("spyre")
        if how == "mark_dynamic" and length > 1:
            torch._dynamo.mark_dynamic(on_card, 1, min=2, max=300)
        for result, wanted in zip(compiled(on_card), twin(ids), strict=True):
            assert result.shape == wanted.shape and result.stride() == wanted.stride()
            torch.testing.assert_close(result.cpu().float(), wanted, rtol=0.03, atol=0.03)
    assert dynamo_counters["stats"]["unique_graphs"] == frames
    assert _bundles() - bundles <= programs


def _bundles() -> int:
    return counters["bundles_compiled"] + counters["bundles_reused"]


# ---- Operations ---------------------------------------------------------------------------------


def many(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Every rule, with values that would show any padding: logarithms of 0, divisions by 0."""
    batch, tokens, width = x.shape
    flat = x.reshape(batch * tokens, width)
    return (
        x.sum(1), x.sum(), x.mean((0, 1)), x.amax(1), x.amin(1), x.argmax(1), x.max(1)[0],
        (x > 0).any(1), (x < 9).all(1), x.log().sum(1), (y / x).amin(1),
        x.softmax(1), x.transpose(1, 2).log_softmax(-1), x.var(1), x.std(1),
        x.transpose(1, 2) @ y, x @ y.transpose(1, 2), flat.t() @ flat, flat.sum(0),
        x[:, 1:] * 2, x[:, :-1].sum(1), x[:, -1], x[:, -2:], x[:, 0], x[:, : tokens // 2] + 1,
        torch.cat([x[:, :2], x], 1), torch.cat([x, x[:, :3]], 1) * 2, x.cumsum(1),
        x.permute(1, 0, 2).reshape(tokens, batch * width), x * tokens, x / tokens,
        x[:, :, 3:7].unsqueeze(0).expand(2, -1, -1, -1).sum(2), torch.full_like(x, 2.0).sum(1),
        torch.arange(tokens, device=x.device) * 2, x.split(32, -1)[1] + 1, x.tril(),
    )  # fmt: skip


def test_padding_is_never_seen():
    compiled = torch.compile(many, dynamic=None)
    before = made()
    for tokens in (9, 5, 70, 128):
        x, y = half(3, tokens, 64).abs() + 0.5, half(3, tokens, 64).abs() + 0.25
        on_card = x.to("spyre"), y.to("spyre")
        torch._dynamo.mark_dynamic(on_card[0], 1)
        torch._dynamo.mark_dynamic(on_card[1], 1)
        check(compiled(*on_card), many(x, y), 4e-2)
    assert (made()[0] - before[0], made()[1] - before[1]) == (1, 0)


def test_batches_and_lengths_may_both_be_open():
    def f(x):
        return x.flatten(0, 1) @ x.flatten(0, 1).t(), x.sum((0, 1)), x.mean(0), x.softmax(1)

    compiled = torch.compile(f, dynamic=True)
    before = made()
    for batch, tokens in ((3, 5), (3, 9), (3, 20), (4, 11), (7, 30)):
        x = half(batch, tokens, 64)
        check(compiled(x.to("spyre")), f(x), 6e-2)
    assert made()[0] - before[0] <= 2 and made()[1] - before[1] == 1  # the first sizes of all


def test_what_cannot_be_padded_is_compiled_for_its_sizes_and_their_number_is_bounded():
    def f(x):
        return x.flip(0), x.flip(0) + 1

    compiled = torch.compile(f, dynamic=True)
    before = made()
    with config.patch(max_dynamic_programs=2):
        for rows in (3, 5, 3, 7, 5):
            x = half(rows, 64)
            check(compiled(x.to("spyre")), f(x))
    assert made()[0] == before[0] and made()[1] - before[1] <= 4
    assert dynamo_counters["stats"]["unique_graphs"] == 1


def test_inputs_are_changed_where_they_count():
    def f(x, total):
        x[:, 1:].mul_(2)
        total.add_(x.sum(0))
        return x + 1, x

    compiled = torch.compile(f)
    total = torch.zeros(64, dtype=torch.float16)
    totals = total.to("spyre")
    for rows in (5, 9, 17, 6):
        x = half(rows, 64)
        on_card = x.to("spyre")
        result, same = compiled(on_card, totals)
        check([result, on_card, totals], [f(x, total)[0], x, total], 4e-2)
        assert same is on_card


def test_a_cache_that_grows_by_concatenation_and_one_that_is_written_in_place():
    def grow(past, new):
        past = torch.cat([past, new], 1)
        return past, (past * new).sum(1)

    def write(past, new, place):
        past[:, place : place + 1] = new
        return past.sum(1)

    growing, writing = torch.compile(grow), torch.compile(write)
    past, cache = half(2, 3, 64), torch.zeros(2, 16, 64, dtype=torch.float16)
    on_card, caches = past.to("spyre"), cache.to("spyre")
    for step in range(2, 9):
        new = half(2, 1, 64) * step
        on_card, result = growing(on_card, new.to("spyre"))
        past, wanted = grow(past, new)
        check([on_card, result], [past, wanted], 6e-2)
        check([writing(caches, new.to("spyre"), step)], [write(cache, new, step)], 6e-2)
        check([caches], [cache])
    assert dynamo_counters["stats"]["unique_graphs"] <= 4


def test_gradients_with_sequences_of_many_lengths():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 64), Block(causal=True), nn.Linear(64, 50))
    twin = nn.Sequential(nn.Embedding(50, 64), Block(causal=True), nn.Linear(64, 50))
    twin.load_state_dict(model.state_dict())
    model.to("spyre")

    def loss(net, ids):
        return F.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    compiled = torch.compile(loss)
    before = made()
    for length in (12, 20, 33, 7, 90):
        ids = torch.randint(0, 50, (3, length))
        torch.testing.assert_close(
            _gradients(compiled, model, ids.to("spyre")),
            _gradients(loss, twin, ids),
            rtol=1e-3,
            atol=1e-4,
        )
    assert dynamo_counters["stats"]["unique_graphs"] == 2
    assert made() == (before[0] + 2, before[1])  # forward and backward


def _gradients(loss, net, ids):
    net.zero_grad()
    value = loss(net, ids)
    value.backward()
    return [value.detach().cpu(), *(p.grad.cpu() for p in net.parameters())]


def test_another_process_finds_the_programs(tmp_path):
    program = textwrap.dedent("""
        import torch
        from torch_spyre._inductor.counters import counters
        f = torch.compile(lambda x: (x.softmax(0), x.sum(0)), dynamic=True)
        for rows in (3, 5, 90):
            f(torch.randn(rows, 64).half().to("spyre"))
        print(counters["bundles_compiled"], counters["bundles_reused"])
    """)
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    environment["PYTHONPATH"] = str(Path(__file__).parents[3])
    found = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for _ in range(2)
    ]
    compiled = int(found[0][0])
    assert compiled <= 3 and found[1] == ["0", str(compiled)]


def test_a_constant_tensor_of_a_graph_with_open_sizes() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * torch.tensor([1.0, -2.0, 0.5]).to(x)[None] + x.shape[0]

    compiled = torch.compile(program, dynamic=True)
    for rows in (5, 9):
        x = torch.arange(3 * rows).reshape(rows, 3).half()
        assert torch.equal(compiled(x.to("spyre")).cpu(), program(x))
