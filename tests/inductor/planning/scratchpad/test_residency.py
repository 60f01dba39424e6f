"""What stays in scratchpads: traffic as the card counts it, the same bits, and plans."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import torch_spyre
from torch_spyre._inductor import config
from torch_spyre._inductor.inspect import debug_dir
from torch_spyre._inductor.opspec.op_spec import OpSpec

M, N = 512, 1024


def _compiled(function, *inputs, **settings):
    """The result, and what the second call moved."""
    torch._dynamo.reset()
    settings.setdefault("lx_planning", True)
    on_card = [x.to("spyre") for x in inputs]
    with config.patch(**settings), torch.no_grad():
        compiled = torch.compile(function)
        compiled(*on_card)
        torch.spyre.reset_counters()
        result = compiled(*on_card)
        torch.spyre.synchronize()
        counters = torch.spyre.counters()
    return result.cpu(), counters["hbm_read_bytes"] + counters["hbm_write_bytes"], counters


def _specs(function, *inputs, **settings) -> list[OpSpec]:
    """The operations of the only kernel."""
    torch._dynamo.reset()
    settings.setdefault("lx_planning", True)
    with config.patch(**settings), debug_dir.listen() as record:
        torch.compile(function)(*(x.to("spyre") for x in inputs))
    (kernel,) = record.plans[-1].kernels
    return kernel.specs


# ---- The published softmax -----------------------------------------------------------------------

STAGES = {
    "no planning": ({"lx_planning": False}, 8 * M * N + 4 * N),
    "results of reductions": (
        {"lx_residents": "reductions", "lx_boundary_clones": False},
        8 * M * N,
    ),
    "in place": ({"lx_boundary_clones": False}, 3 * M * N),
    "default": ({}, 2 * M * N),
}


@pytest.mark.parametrize("fused", [True, False])
def test_softmax_on_one_core_moves_what_is_published_for_each_stage(fused):
    x = torch.randn(M, N, dtype=torch.float16)
    results = []
    for name, (settings, elements) in STAGES.items():
        result, moved, _ = _compiled(
            lambda t: torch.softmax(t, 0), x, cores=1, backend_fusion=fused, **settings
        )
        assert moved == 2 * elements, name
        results.append(result)
    assert all(torch.equal(results[0], other) for other in results[1:])
    torch.testing.assert_close(
        results[0].float(), torch.softmax(x.float(), 0), rtol=0.02, atol=1e-4
    )


def test_the_documented_planner_can_be_chosen():
    x = torch.randn(M, N, dtype=torch.float16)
    documented = {
        "layout_solver": "greedy",
        "allow_all_ops_in_lx_planning": False,
        "lx_boundary_clones": False,
        "cores": 1,
    }
    _, moved, _ = _compiled(lambda t: torch.softmax(t, 0), x, **documented)
    assert moved == 2 * 3 * M * N  # all of softmax is on its list
    # tanh is not: sub is read once in LX, tanh goes through memory.
    _, moved, _ = _compiled(lambda t: torch.tanh(t - 1) + 1, x, **documented)
    everything = dict(documented, allow_all_ops_in_lx_planning=True)
    _, less, _ = _compiled(lambda t: torch.tanh(t - 1) + 1, x, **everything)
    assert moved - less == 2 * 2 * M * N


# ---- The same bits -------------------------------------------------------------------------------


class _Block(torch.nn.Module):
    """Attention, norms and an MLP."""

    def __init__(self, hidden: int = 128, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (torch.nn.Linear(hidden, hidden) for _ in range(4))
        self.up, self.down = torch.nn.Linear(hidden, 512), torch.nn.Linear(512, hidden)
        self.norm1, self.norm2 = torch.nn.LayerNorm(hidden), torch.nn.LayerNorm(hidden)

    def forward(self, x):
        b, t, h = x.shape
        q, k, v = (
            f(x).view(b, t, self.heads, h // self.heads).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, h)
        x = self.norm1(x + self.o(a))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


def _crowded(x, y):
    """x is used, then much else, then x again; two thirds of a scratchpad each."""
    a = torch.relu(x) * x
    b = torch.exp(-y.abs()) + y * y
    b = torch.sigmoid(b) - b * y
    return a + b + x * 2 - torch.tanh(x) * y


def _results_that_are_read(x):
    y = x * 2 + 1
    z = torch.relu(y) * y
    return torch.cat([y, z, y - z])


def _padded(x):
    return torch.softmax(x[:, :100] * 1.5, -1) + x[:, :100].amax(0)


def _mixed_divisions(x):
    return (x.sum(0) + x.sum(1)[: x.shape[1]].exp()).sigmoid() * x.amax(0)


def _mutation(x):
    y = x + 1
    y.mul_(x)
    y[8:16] = y[:8] * 3
    return y * y


PROGRAMS = {
    "softmax": (lambda x: torch.softmax(x, -1), (256, 512)),
    "rows": (_padded, (64, 128)),
    "divisions": (_mixed_divisions, (256, 256)),
    "results": (_results_that_are_read, (128, 256)),
    "mutation": (_mutation, (64, 128)),
    "layer norm": (lambda x: F.layer_norm(x * x, (512,)) + x, (128, 512)),
    "product": (lambda x: torch.relu(x @ x.t()) @ x + x, (128, 128)),
    "float32": (lambda x: (x.float() * 2).sum(-1).sqrt() + x.float().amax(-1), (64, 256)),
}


@pytest.mark.parametrize("cores", [1, 4, 5, 32])
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_have_the_same_bits_with_and_without_scratchpads(name, cores):
    function, shape = PROGRAMS[name]
    torch.manual_seed(1)
    x = torch.rand(shape).half() + 0.1
    expected, without, _ = _compiled(function, x, cores=cores, lx_planning=False)
    for fused in (True, False):
        result, moved, _ = _compiled(function, x, cores=cores, backend_fusion=fused, validate=True)
        assert torch.equal(result, expected), fused
        assert moved <= without


@pytest.mark.parametrize("cores", [1, 4, 5, 32])
def test_a_block_has_the_same_bits_and_moves_less(cores):
    torch.manual_seed(2)
    block = _Block().half().eval().to("spyre")
    x = torch.randn(4, 64, 128, dtype=torch.float16)
    expected, without, _ = _compiled(block, x, cores=cores, lx_planning=False)
    for fused in (True, False):
        result, moved, counters = _compiled(block, x, cores=cores, backend_fusion=fused)
        assert torch.equal(result, expected)
        assert moved < 0.75 * without
        assert counters["lx_bytes"] > 0


@pytest.mark.parametrize("fused", [True, False])
def test_buffers_that_do_not_fit_together_have_the_same_bits(fused):
    torch.manual_seed(3)
    x, y = (torch.randn(512, 1024, dtype=torch.float16) for _ in range(2))
    expected, without, _ = _compiled(_crowded, x, y, cores=1, lx_planning=False)
    result, moved, _ = _compiled(_crowded, x, y, cores=1, backend_fusion=fused)
    assert torch.equal(result, expected)
    assert moved < without


# ---- Plans ---------------------------------------------------------------------------------------


def test_an_input_that_is_read_twice_is_loaded_once_and_its_place_taken_over():
    x = torch.randn(M, N, dtype=torch.float16)
    specs = _specs(lambda t: torch.softmax(t, 0), x, cores=1)
    assert [spec.op for spec in specs] == ["identity", "max", "sub", "exp", "sum", "realdiv"]
    places = [next(iter(arg.allocation)) for spec in specs for arg in spec.args]
    assert places == ["hbm"] + ["lx"] * 12 + ["hbm"]
    load, _, sub, exp, *_ = specs
    assert load.args[-1].allocation == sub.args[-1].allocation == exp.args[-1].allocation


def test_addresses_stay_in_the_budget_that_the_environment_gives():
    x = torch.randn(M, N, dtype=torch.float16)
    # 1 MB does not fit into what is left of 2 MB.
    specs = _specs(lambda t: torch.softmax(t, 0), x, cores=1, lx_reserved=0.6)
    large = [a for s in specs for a in s.args if "lx" in a.allocation and a.device_size[-2] == M]
    small = [a for s in specs for a in s.args if "lx" in a.allocation]
    assert small and not large


def test_a_tensor_that_cores_divide_in_two_ways_is_in_memory_for_one_of_them():
    x = torch.randn(256, 2048, dtype=torch.float16)

    def both(t):
        y = torch.relu(t)
        return y.sum(0), (y * 2).sum(1)

    expected = both(x.float())
    with config.patch(lx_planning=True):
        results = torch.compile(both)(x.to("spyre"))
    for result, reference in zip(results, expected):
        torch.testing.assert_close(result.cpu().float(), reference, rtol=0.02, atol=0.5)


@pytest.mark.parametrize("fused", [True, False])
def test_a_tensor_that_is_divided_in_two_ways_goes_over_the_ring(fused):
    """Reductions of both dimensions: each wants its own division, or parts of sums are sent."""
    torch.manual_seed(5)
    x, w = torch.randn(256, 512).half() / 8, torch.randn(512, 256).half() / 8

    def function(t, w):
        y = torch.relu(t @ w)
        return (y * y.sum(0) + y.amax(1, keepdim=True)) @ w.t()

    expected, without, _ = _compiled(function, x, w, lx_planning=False)
    through_memory, more, _ = _compiled(function, x, w, lx_ring_moves=False)
    result, moved, counters = _compiled(function, x, w, backend_fusion=fused, validate=True)
    assert torch.equal(result, expected) and torch.equal(result, through_memory)
    assert counters["ring_bytes"] > 0 and moved < more <= without
    assert moved == 2 * (x.numel() + w.numel() + x.numel())  # x, w and the result, once each
    with torch.spyre.sanitizer():
        checked, _, _ = _compiled(function, x, w)
    assert torch.equal(checked, expected)


def test_attention_moves_what_it_must_and_its_keys_over_the_ring():
    torch.manual_seed(6)
    q, k, v = (torch.randn(1, 4, 512, 64).half() for _ in range(3))
    expected, _, _ = _compiled(F.scaled_dot_product_attention, q, k, v, lx_planning=False)
    result, moved, counters = _compiled(F.scaled_dot_product_attention, q, k, v)
    assert torch.equal(result, expected)
    assert moved <= 1.01 * 4 * q.numel() * 2 and counters["ring_bytes"] > 0


def test_explain_still_reads_the_plan():
    x = torch.randn(64, 128, dtype=torch.float16).to("spyre")
    with config.patch(lx_planning=True):
        text = str(torch_spyre.explain(lambda t: torch.softmax(t, 0), x))
    assert "added: into scratchpads" in text
