"""What the public project's notes list as impossible, and works here: types to numerics.

One test for each group of lines under Types, Reductions, Tensors and views, Shapes, Matmul and
Numerics; docs/user_guide/limits.md has the list. Compiled, and compared with CPU float32.
Steps that the host does are named: where nothing is said, the card does all.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

import torch_spyre
from tests.support.together import host_steps, together

HALF, SINGLE, BRAIN = torch.float16, torch.float32, torch.bfloat16


def numbers(*shape: int, dtype: torch.dtype = HALF, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# ---- Types --------------------------------------------------------------------------------------


def test_types_without_a_form_on_the_card_are_computed_by_the_host() -> None:
    report = together(
        {
            "float64": lambda x: x.double() * 2 + 1,
            "complex": lambda x: torch.view_as_real(torch.complex(x, x) * 2),
            "e5m2": lambda x: x.to(torch.float8_e5m2).float(),
        },
        numbers(5, 7, dtype=SINGLE),
    )
    assert host_steps(report)


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.uint8, torch.int8])
def test_narrow_integers_go_to_the_card_and_back(dtype: torch.dtype) -> None:
    x = torch.arange(100).reshape(4, 25).to(dtype)
    assert torch.equal(x.to("spyre").cpu(), x)


def test_integer_arithmetic_is_done_on_the_card_where_32_bits_are_enough() -> None:
    report = together(
        {
            "arithmetic": lambda a, b: a * 5 + 3 - b,
            "comparison": lambda a, b: torch.where(a < b, a, b).clamp(-3, 3),
            "extremes": lambda a, b: (torch.maximum(a, b), a.abs(), -a, ~a, a.sign()),
        },
        torch.arange(-50, 50).reshape(4, 25),
        torch.arange(100).reshape(4, 25) % 7,
    )
    assert not host_steps(report)


def test_float32_runs_everywhere() -> None:
    report = together(
        {
            "products": lambda x: (x @ x.t(), torch.bmm(x[None], x.t()[None])),
            "restickify": lambda x: x.t().contiguous() + 1,
            "functions": lambda x: (
                torch.log(x.abs() + 1),
                torch.tanh(x),
                F.gelu(x),
                F.silu(x),
                F.softplus(x),
                x.clamp(-1, 1),
            ),
            "comparisons": lambda x: (torch.where(x > 0, x, -x), x == x, x <= 0.5),
        },
        numbers(33, 70, dtype=SINGLE),
        tolerance=1e-5,
    )
    assert not host_steps(report)


def test_bfloat16_stays_bfloat16_and_is_at_least_as_exact() -> None:
    report = together(
        {
            "softmax": lambda x: torch.softmax(x @ x.t(), -1),
            "norm": lambda x: F.layer_norm(x, (70,)),
        },
        numbers(9, 70, dtype=BRAIN),
        tolerance=2.0**-7,
    )
    assert not host_steps(report)
    assert report.result["norm"].dtype is BRAIN


def test_casts_of_shapes_that_fill_no_stick() -> None:
    types = (HALF, BRAIN, SINGLE, torch.bool, torch.int64)
    programs = {
        f"{a} to {b}": lambda x, y, z, a=a, b=b: tuple(
            t.mul(4).to(a).to(b).to(SINGLE) for t in (x, y, z)
        )
        for a in types
        for b in types
    }
    inputs = (torch.round(numbers(*n) * 4) / 4 for n in ((68,), (4, 68), (4, 16)))
    report = together(programs, *inputs)
    assert not host_steps(report)  # all of them begin with float16, which ends at 65504


def test_tensors_of_several_types_come_together() -> None:
    report = together(
        {
            "cat": lambda h, s: torch.cat([h, s], 1),
            "sum": lambda h, s: h + s,
            "into another type": lambda h, s: torch.zeros_like(s).copy_(h),
            "and back": lambda h, s: torch.zeros_like(h).copy_(s),
        },
        numbers(5, 33),
        numbers(5, 33, dtype=SINGLE, seed=1),
    )
    assert not host_steps(report)


def test_products_of_float8_have_scales() -> None:
    x, y = numbers(32, 64, dtype=SINGLE), numbers(64, 48, dtype=SINGLE, seed=1)

    def scaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a, b = x.abs().amax() / 448, y.abs().amax() / 448
        narrow = torch.float8_e4m3fn
        return torch._scaled_mm(
            (x / a).to(HALF).to(narrow),
            (y / b).to(HALF).to(narrow).t().contiguous().t(),
            a,
            b,
            out_dtype=HALF,
        )

    torch._dynamo.reset()
    report = torch_spyre.explain(scaled, x.to("spyre"), y.to("spyre"))
    assert "batchmatmulfp8" in [op.opfunc for op in report.ops] and not report.fallbacks
    error = (report.result.cpu().float() - x @ y).abs().max() / (x @ y).abs().max()
    assert error < 0.06  # 3 fraction bits


# ---- Reductions ---------------------------------------------------------------------------------


def test_reductions_that_the_card_does() -> None:
    report = together(
        {
            "any, all": lambda x: ((x > 0).any(1), (x > -9).all(0), (x > 9).any(), (x < 9).all()),
            "prod": lambda x: (torch.tanh(x) + 1.2).prod(1),
            "variance": lambda x: (x.std(1), x.var(0), torch.std_mean(x), torch.var_mean(x, 1)),
            "count_nonzero": lambda x: torch.count_nonzero(x > 0, 1),
            "logsumexp": lambda x: x.logsumexp(1),
            "nan": lambda x: (x.nansum(1), x.nanmean(1)),
            "scans": lambda x: (x.cumprod(0), x.logcumsumexp(0)),
            "argmax": lambda x: (x.argmax(1), x.argmin(0), x.argmax()),
            "extremes": lambda x: (x.max(), x.min(), tuple(x.max(1)), torch.aminmax(x, dim=0)),
            "norms": lambda x: (x.norm(), torch.linalg.vector_norm(x, 1, 1)),
            "topk": lambda x: (tuple(x.topk(20, 0)), tuple(x.topk(7, 1, largest=False))),
        },
        numbers(21, 70, dtype=SINGLE),
        tolerance=1e-4,
    )
    assert not host_steps(report)


def test_reductions_over_padded_dimensions() -> None:
    report = together(
        {
            "3-D": lambda x: (x.mean(2), x.sum((0, 2)), x.amax(2)),
            "5-D": lambda x: (x.reshape(3, 2, 2, 7, 10).sum(), x.reshape(3, 2, 2, 7, 10).mean()),
        },
        numbers(3, 4, 70, dtype=SINGLE),
        tolerance=1e-5,
    )
    assert not host_steps(report)


def test_orders_and_scans_with_places_are_steps_of_the_host() -> None:
    report = together(
        {
            "order": lambda x: (x.median(1).values, x.nanmedian(1).values, x.mode(1).values),
            "quantiles": lambda x: (x.quantile(0.3, dim=1), x.nanquantile(0.3, dim=1)),
            "extremes so far": lambda x: (x.cummax(1).values, x.cummin(0).values),
        },
        numbers(6, 33, dtype=SINGLE),
        tolerance=1e-5,
    )
    assert "aten.median.dim" in host_steps(report)


# ---- Tensors and views --------------------------------------------------------------------------


def test_empty_scalar_and_high_rank_tensors() -> None:
    report = together(
        {
            "empty": lambda x, e: (e + 1, e.sum(), torch.cat([e, x[0, :3]])),
            "0-D": lambda x, e: (x[1, 2] * 2, x.sum().exp()),
            "rank 8": lambda x, e: (
                x.reshape(2, 2, 1, 2, 2, 2, 3, 2).permute(7, 0, 2, 1, 4, 3, 6, 5) * 2
            ).sum(0),
        },
        numbers(8, 24, dtype=SINGLE),
        torch.empty(0),
        tolerance=1e-5,
    )
    assert not host_steps(report)
    assert torch.empty(0).to("spyre").cpu().shape == (0,)
    assert torch.tensor(2.5).to("spyre").item() == 2.5


def test_sizes_that_depend_on_values() -> None:
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [
            torch.nonzero(x > 0),
            x[x > 0] * 2,
            torch.unique(torch.round(x)),
            x[:, x[0] > 0].t(),
        ]

    torch._dynamo.reset()
    x = numbers(5, 9, dtype=SINGLE)
    results = torch.compile(program, dynamic=False, fullgraph=True)(x.to("spyre"))
    for got, expected in zip(results, program(x), strict=True):
        assert torch.equal(got.cpu(), expected)


def test_indexing_of_every_kind() -> None:
    report = together(
        {
            "index": lambda x, i: (x[i], x[:, i], x[i, i], x[i][:, 1:] * 2),
            "put": lambda x, i: x.index_put((i,), torch.zeros_like(x[:3])),
            "copy": lambda x, i: x.index_copy(0, i, torch.zeros_like(x[:3])),
            "gather": lambda x, i: torch.relu(x.gather(1, i.expand(9, 3))) + 1,
            "tests": lambda x, i: (torch.isnan(x), torch.round(x)),
        },
        numbers(9, 70),
        torch.tensor([3, 1, 2]),
    )
    assert not host_steps(report)


def test_sums_through_indices_are_steps_of_the_host() -> None:
    report = together(
        {
            "scatter_add": lambda x, i: x.scatter_add(0, i[:, None].expand(3, 70), x[:3]),
        },
        numbers(9, 70),
        torch.tensor([3, 1, 2]),
    )
    assert host_steps(report) == ["aten.scatter_add.default"]


def test_a_number_is_scattered_on_the_card() -> None:
    report = together(
        {"scatter": lambda x, i: x.scatter(1, i.expand(9, 3), 2.0)},
        numbers(9, 70),
        torch.tensor([3, 1, 2]),
    )
    assert not host_steps(report)


def test_views_across_sticks() -> None:
    report = together(
        {
            "unfold": lambda x: x.unfold(1, 5, 2).contiguous(),
            "flatten": lambda x: (x[:, :33].flatten(), x[:7, :30].reshape(6, 35) + 1),
            "fractions": lambda x: x[:10, :6].reshape(4, 15) * 2,
            "scalars": lambda x: (x[:, :1].t().contiguous(), x[:1].t().contiguous() + 1),
            "expanded": lambda x: x[:, :1].expand(20, 65).contiguous(),
            "interleaved": lambda x: torch.stack([x[:, ::2], x[:, 1::2]], -1).flatten(1),
        },
        numbers(20, 70),
    )
    assert not host_steps(report)


def test_slices_that_begin_inside_a_stick_are_operands_of_everything() -> None:
    report = together(
        {
            "product": lambda x: x[:, 3:67] @ x[:, 5:69].t(),
            "norm": lambda x: F.layer_norm(x[:, 3:63], (60,)),
            "largest": lambda x: tuple(x[:, 5:50].topk(3, 1)),
            "sums": lambda x: x[:, 7:].sum(1),
        },
        numbers(16, 70),
        tolerance=2.0**-7,
    )
    assert not host_steps(report)


def test_batch_norm_and_a_large_transpose() -> None:
    report = together(
        {
            "one channel": lambda x, y: F.batch_norm(
                x.reshape(4, 1, 10, 7), torch.zeros_like(x[0, 0, :1]), torch.ones_like(x[0, 0, :1])
            ),
            "channels": lambda x, y: F.batch_norm(x, None, None, training=True),
            "group norm": lambda x, y: F.group_norm(x, 5),
            "transpose": lambda x, y: y.t().contiguous() * 2,
        },
        numbers(4, 10, 7, dtype=SINGLE),
        numbers(300, 1030),
        tolerance=2.0**-9,
    )
    assert not host_steps(report)


# ---- Shapes and products ------------------------------------------------------------------------


@pytest.mark.parametrize("cores", [5, 32])
def test_sizes_that_no_number_of_cores_divides(cores: int) -> None:
    from torch_spyre._inductor import config

    with config.patch(cores=cores):
        report = together(
            {
                "pointwise": lambda x, y: torch.exp(x) + 1,
                "product": lambda x, y: x @ y,
                "reduction": lambda x, y: (x.sum(0), x.amax(1)),
            },
            numbers(67, 131),
            numbers(131, 97, seed=1),
        )
    assert not host_steps(report)


def test_products_of_every_rank_and_attention_of_one_query() -> None:
    report = together(
        {
            "vectors": lambda x, w: (w[0] @ w[1], x[0, 0] @ w[0], w[0] @ x[0, 0].t()),
            "shared weight": lambda x, w: x @ w.t(),
            "batches": lambda x, w: x @ x.transpose(-1, -2),
            "five": lambda x, w: x.unsqueeze(1) @ w.t(),
            "decode": lambda x, w: F.scaled_dot_product_attention(x[:, :, :1], x, x),
            "image": lambda x, w: F.conv2d(x, x[:1, :, :3, :3].expand(2, 3, 3, 3), padding=1),
            "depth": lambda x, w: F.conv2d(x, x[:1, :, :3, :3].transpose(0, 1), groups=3),
        },
        numbers(2, 3, 9, 33),
        numbers(8, 33, seed=1),
        tolerance=2.0**-7,
    )
    assert not host_steps(report)


def test_attention_with_dropout_drops() -> None:
    torch._dynamo.reset()
    q = torch.zeros(1, 2, 64, 64, dtype=HALF, device="spyre")
    v = torch.ones(1, 2, 64, 64, dtype=HALF, device="spyre")

    def attend(q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, q, v, dropout_p=0.5)

    out = torch.compile(attend, dynamic=False)(q, v).cpu().float()
    assert abs(float(out.mean()) - 1) < 0.05 and float(out.std()) > 0.05


# ---- Numerics -----------------------------------------------------------------------------------


def test_quotients_powers_and_fills() -> None:
    zeros = torch.tensor([1.0, -1.0, 0.0, 1e-30, -0.0])
    report = together(
        {
            "division": lambda x, z: (x / z, z / z, torch.reciprocal(z)),
            "powers": lambda x, z: (x**0.5, x**2.5, x**-1, x**3, torch.pow(x, 2)),
            "fill": lambda x, z: (torch.empty_like(x).fill_(3.0), x.clone().zero_()),
        },
        torch.tensor([-2.0, 2.0, -0.5, 4.0, math.inf]),
        zeros,
        tolerance=1e-6,
    )
    assert not host_steps(report)
    eager = torch.ones(5, device="spyre").fill_(math.pi)
    assert torch.equal(eager.cpu(), torch.full((5,), math.pi))
