"""Convolutions: sums over all taps that are rounded once, whatever the shape of the kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_spyre
from tests.support.together import host_steps, together

F = torch.nn.functional
Program = Callable[..., torch.Tensor]
ONE_ROUNDING = 2.0**-10


def numbers(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.rand(shape, generator=generator) - 0.5).half().to("spyre").cpu()


X = numbers(2, 8, 9, 13)


def conv(*weight: int, bias: bool = False, of: int = 0, **options: Any) -> Program:
    """A convolution of one of the arguments with a kernel of this shape."""
    w = numbers(*weight)
    b = numbers(weight[0]) if bias else None
    rank = len(weight) - 2
    convolve = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]

    def program(*inputs: torch.Tensor) -> torch.Tensor:
        x = inputs[of]
        own = w.to(x.device, x.dtype)
        return convolve(x, own, None if b is None else b.to(x.device, x.dtype), **options)

    return program


IMAGES = {
    "1x1": conv(16, 8, 1, 1),
    "1x1, every other": conv(16, 8, 1, 1, stride=2),
    "3x3": conv(16, 8, 3, 3, padding=1, bias=True),
    "3x3, every other": conv(16, 8, 3, 3, padding=1, stride=2),
    "strides and dilation": conv(16, 8, 3, 2, stride=(2, 1), dilation=(2, 3), padding=(2, 0)),
    "all of the image": conv(70, 8, 9, 13),
    "patches": conv(70, 8, 3, 4, stride=(3, 4), bias=True),
    "groups": conv(16, 2, 3, 3, groups=4, bias=True),
    "depthwise": conv(8, 1, 3, 3, groups=8, padding=1, bias=True),
    "depthwise, every other": conv(8, 1, 5, 3, groups=8, padding=2, stride=2),
    "depthwise, three of each": conv(24, 1, 3, 3, groups=8),
}


def test_a_convolution_of_any_shape_is_computed_on_the_card() -> None:
    assert not host_steps(together(IMAGES, X, tolerance=2.0**-9))


def test_convolutions_of_one_and_three_dimensions_are_computed_on_the_card() -> None:
    programs = {
        "1-D": conv(16, 8, 5, padding=2, stride=2, bias=True),
        "1-D depthwise": conv(8, 1, 4, padding=3, groups=8),
        "3-D": conv(5, 3, 2, 3, 3, padding=(0, 1, 1), of=1),
    }
    line, volume = numbers(2, 8, 70), numbers(1, 3, 4, 6, 7)
    assert not host_steps(together(programs, line, volume, tolerance=2.0**-9))


def test_inputs_that_lie_in_another_order_or_begin_inside_are_convolved() -> None:
    first, second = conv(16, 8, 3, 3, padding=1), conv(8, 16, 3, 3)
    programs = {
        "channels last": lambda x, y: first(y.permute(0, 3, 1, 2)),
        "a slice": lambda x, y: first(x[1:, :, 1:, 2:]),
        "after another": lambda x, y: second(torch.relu(first(x))),
    }
    last = numbers(2, 9, 13, 8)
    assert not host_steps(together(programs, X, last, tolerance=2.0**-8))


@pytest.mark.parametrize("groups", [1, 70], ids=["dense", "depthwise"])
def test_a_sum_over_all_taps_is_rounded_once(groups: int) -> None:
    """Terms of one sign: each rounding on the way would add to the error."""
    x, weight = numbers(1, 70, 8, 8).abs() + 0.5, numbers(70, 70 // groups, 5, 5).abs() + 0.5
    held = [t.to("spyre") for t in (x, weight)]
    result = torch.compile(lambda x, w: F.conv2d(x, w, groups=groups))(*held)
    x, weight = (t.cpu().double() for t in held)
    exact = F.conv2d(x, weight, groups=groups)
    assert bool(((result.cpu().double() - exact).abs() <= exact * ONE_ROUNDING * 1.001).all())


def test_a_convolution_is_a_handful_of_operations() -> None:
    """Zeros, the middle, windows, weights, the product; the rest moves between scratchpads."""
    x, weight = numbers(2, 64, 16, 16).to("spyre"), numbers(64, 64, 3, 3).to("spyre")
    report = torch_spyre.explain(lambda x, w: F.conv2d(x, w, padding=1), x, weight)
    found = [op.opfunc for op in report.ops if op.opfunc != "ringmove"]
    assert len(found) == 5 and found[-1] == "batchmatmul"


def test_the_weights_of_a_module_are_laid_out_once() -> None:
    module = torch.nn.Conv2d(64, 70, 3, bias=False).half().eval()
    x = numbers(1, 64, 8, 8)
    expected = module.float()(x.float())
    twin = module.half().to("spyre")
    with torch.no_grad():
        report = torch_spyre.explain(twin, x.to("spyre"))
    torch.testing.assert_close(report.result.cpu().float(), expected, rtol=2e-3, atol=2e-3)
    kernels = [op for op in report.ops if op.opfunc in ("ReStickifyOpHBM", "relayout")]
    assert len(kernels) == 1  # the windows


def test_a_block_with_batch_norms_is_rounded_once_after_its_sum() -> None:
    """Statistics of a new batch norm multiply by almost 1: what was rounded before the sum would be
    next to half way between two numbers there, and rounded to one side."""
    convs = [torch.nn.Conv2d(64, 64, 3, padding=1, bias=False) for _ in range(2)]
    norms = [torch.nn.BatchNorm2d(64) for _ in range(2)]
    block = torch.nn.Sequential(convs[0], norms[0], torch.nn.ReLU(), convs[1], norms[1])
    block = block.half().eval().to("spyre")
    x = numbers(2, 64, 8, 8).to("spyre")
    with torch.no_grad():
        report = torch_spyre.explain(lambda x: torch.relu(block(x) + x), x)
        x, block = x.cpu().double(), block.cpu().double()
        exact = torch.relu(block(x) + x)
    error = report.result.cpu().double() - exact
    assert not report.fallbacks
    assert float(error.pow(2).mean().sqrt() / exact.pow(2).mean().sqrt()) < 2.0**-11
    assert abs(float((error * exact).sum() / exact.pow(2).sum())) < 2.0**-15


def test_windows_and_weights_as_matrices_are_a_convolution_on_the_cpu_too() -> None:
    x, weight = X.float(), numbers(16, 8, 3, 2).float()
    windows = torch.ops.spyre.windows(x, [3, 2], [2, 1], [1, 3])
    assert windows.shape == (2, 4, 10, 3, 2, 8)
    matrix = torch.ops.spyre.reordered(weight, [2, 3, 1, 0], [48, 16])
    product = torch.ops.spyre.product_float32(windows.reshape(-1, 48), matrix)
    expected = F.conv2d(x, weight, stride=(2, 1), dilation=(1, 3))
    torch.testing.assert_close(product.reshape(2, 4, 10, 16).permute(0, 3, 1, 2), expected)
    grown = torch.ops.spyre.padded(x, [1, 2, 3, 0], 0.5)
    assert torch.equal(grown, F.pad(x, (1, 2, 3, 0), value=0.5))


def test_gradients_of_convolutions_are_those_of_the_cpu() -> None:
    def loss(x: torch.Tensor, dense: torch.Tensor, deep: torch.Tensor) -> torch.Tensor:
        y = torch.relu(F.conv2d(x, dense, padding=1, stride=2))
        return F.conv2d(y, deep, groups=16).square().sum()

    here = [t.float().requires_grad_() for t in (X, numbers(16, 8, 3, 3), numbers(16, 1, 3, 3))]
    there = [t.detach().to("spyre").requires_grad_() for t in here]
    loss(*here).backward()
    torch.compile(loss)(*there).backward()
    for a, b in zip(here, there, strict=True):
        torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-3, atol=1e-3)
