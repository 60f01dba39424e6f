"""Operations that become others on the card: same results as on the CPU, ties and NaN included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_spyre

F = torch.nn.functional


def on_card(function: Callable[..., Any], *inputs: torch.Tensor) -> tuple[list[Any], list[str]]:
    """Results of the compiled function, and the operations that ran on the host."""
    report = torch_spyre.explain(function, *(x.to("spyre") for x in inputs))
    results = report.result if isinstance(report.result, tuple) else (report.result,)
    return [r.cpu() for r in results], [step.op for step in report.fallbacks]


def check(function: Callable[..., Any], *inputs: torch.Tensor, tolerance: float = 0.01) -> None:
    """The card gives what the CPU gives, without help of the host."""
    results, host = on_card(function, *inputs)
    expected = function(*inputs)
    for result, value in zip(results, expected if isinstance(expected, tuple) else (expected,)):
        torch.testing.assert_close(result, value, rtol=tolerance, atol=tolerance, equal_nan=True)
    assert host == []


def awkward(dtype: torch.dtype) -> torch.Tensor:
    """Numbers with ties, both zeros, infinities and NaN, which the card holds exactly."""
    x = torch.randint(-50, 50, (6, 8, 70), generator=torch.Generator().manual_seed(0)).to(dtype)
    x[0, 1, 5] = x[0, 1, 9] = x[2, 3, 0] = float("nan")
    x[1] = 1.0
    x[3] = -float("inf")
    x[4, :, 3] = x[4, :, 60] = float("inf")
    x[5].clamp_(max=0)
    x[5, :, 1] = -0.0
    return x


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_largest_and_smallest_are_those_of_pytorch_with_nan_and_ties(dtype: torch.dtype) -> None:
    def extremes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            *torch.max(x, 1),
            *torch.min(x, -1, keepdim=True),
            torch.argmax(x, 0),
            torch.argmin(x, -1),
            torch.argmax(x),
            torch.argmin(x, keepdim=True),
            *torch.max(x[1:2], 0),
            *torch.min(x[3, 3], 0),
        )

    check(extremes, awkward(dtype), tolerance=0)


def test_largest_and_smallest_of_bool_and_int64() -> None:
    def extremes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (*torch.max(x, 1), *torch.min(x, 0))

    def plain(b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (*extremes(b), torch.amax(b, 0), torch.amin(b, 1), ~b & (b | ~b))

    check(plain, torch.rand(20, 70) > 0.7, tolerance=0)
    check(extremes, torch.randint(-9, 9, (20, 70)), tolerance=0)
    n = torch.randint(-9, 9, (20, 70)) + (1 << 40)
    results, host = on_card(extremes, n)
    for result, value in zip(results, extremes(n)):
        assert torch.equal(result, value)
    assert {op.split(".")[1] for op in host} == {
        "topkvalue", "topkindex", "bottomkvalue", "bottomkindex"
    }  # fmt: skip


def test_gradients_of_the_largest_go_to_where_it_was() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (torch.max(x, 1).values * torch.min(x, 1).values).sum()

    a = torch.randn(8, 70).requires_grad_()
    b = a.detach().to("spyre").requires_grad_()
    f(a).backward()
    torch.compile(f)(b).backward()
    torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-3, atol=1e-3)


def image(*shape: int) -> torch.Tensor:
    return (torch.rand(shape) - 0.5).half()


def test_custom_operators_of_the_package() -> None:
    spyre = torch.ops.spyre
    scale = torch.tensor([0.25], dtype=torch.float16)

    def everything(x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, ...]:
        eight = spyre.quantize_fp8_with_scale(x, scale)
        return (
            spyre.layer_norm(x, [70]),
            spyre.rms_norm(x, [70]),
            spyre.overwrite_f(x[:3, :5], x, [0, 1], [4, 60]),
            x + spyre.constant(2.0, torch.float16, x.device),
            spyre.dequantize_fp8_with_scale(eight, scale),
            spyre.softplus(spyre.silu(x)) + spyre.gelu(x) + spyre.clamp(x, -0.1, 0.1),
        )

    check(
        everything, (image(8, 70) * 64).round() / 64, scale
    )  # numbers that every type rounds alike


def test_custom_operators_of_the_package_that_run_on_the_host() -> None:
    spyre = torch.ops.spyre

    def everything(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        windows = spyre.unfold(x.reshape(1, 2, 4, 70), [2, 2], stride=[2, 2])
        return spyre.to_dtype_cpu(x, torch.float64), spyre.reshape_via_cpu(x, [70, 8]), windows

    x = image(8, 70)
    results, host = on_card(everything, x)
    for result, value in zip(results, everything(x)):
        torch.testing.assert_close(result, value, rtol=0.01, atol=0.01)
    assert sorted(host) == [
        "spyre.reshape_via_cpu.default", "spyre.to_dtype_cpu.default", "spyre.unfold.default",
    ]  # fmt: skip


def test_a_scaled_softmax_is_six_operations() -> None:
    x = image(8, 70).to("spyre")
    report = torch_spyre.explain(lambda x: torch.softmax(x * 0.125, -1), x)
    asked_for = [op.opfunc for op in report.ops if not op.reason]  # not copies of the plan
    assert asked_for == ["mul", "max", "sub", "exp", "sum", "realdiv"]


def test_scaled_sums_of_16_bits_are_rounded_once() -> None:
    generator = torch.Generator().manual_seed(3)
    x, y, z = (torch.randn(8, 8, generator=generator).half().to("spyre") for _ in range(3))
    eye = torch.eye(8).half().to("spyre")

    def program(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            torch.add(x, y, alpha=0.3),
            torch.sub(x, y, alpha=0.3),
            torch.addmm(z, x, eye, beta=0.3, alpha=1.7),
        )

    found = torch.compile(program, dynamic=False)(x, y, z)
    a, b, c = (t.cpu().float() for t in (x, y, z))
    for result, exact in zip(found, (a + 0.3 * b, a - 0.3 * b, 0.3 * c + 1.7 * a), strict=True):
        assert bool(((result.cpu().float() - exact).abs() <= exact.abs() * 2.0**-10).all())


def test_powers_of_one_half_are_those_of_the_cpu() -> None:
    x = torch.tensor([-float("inf"), -0.0, 0.0, -1.0, 4.0, float("inf"), float("nan"), 2.0])
    half = torch.full_like(x, 0.5)
    found = torch.compile(torch.pow, dynamic=False)(x.to("spyre"), half.to("spyre")).cpu()
    wanted = torch.pow(x, half)
    torch.testing.assert_close(found, wanted, equal_nan=True)
    assert torch.equal(found[1:3].signbit(), wanted[1:3].signbit())
