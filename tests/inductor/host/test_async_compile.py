"""Copies of parameters that are made once, and kernels whose arguments lie elsewhere."""

from __future__ import annotations

import torch

from torch_spyre import _C
from torch_spyre._inductor.counters import counters
from torch_spyre._inductor.host.async_compile import HoistedCopy
from torch_spyre._inductor.layouts.stick_layouts import layout_of


def hoisted(size: tuple[int, ...], stride: tuple[int, ...], offset: int = 0) -> HoistedCopy:
    contiguous = tuple(torch.empty(size, device="meta").stride())
    return HoistedCopy(size, stride, offset, layout_of(size, contiguous, torch.float16, 0))


def parameter(*shape: int) -> torch.nn.Parameter:
    values = torch.arange(torch.Size(shape).numel(), dtype=torch.float16).reshape(shape)
    return torch.nn.Parameter(values.to("spyre"), requires_grad=False)


def test_a_copy_has_the_elements_of_its_view_in_the_layout_that_is_wanted() -> None:
    weight = parameter(8, 64)
    copy = hoisted((64, 4), (1, 64), 128)
    found = copy(weight)
    assert torch.equal(found.cpu(), weight.cpu()[2:6].t())
    assert found.device_tensor_layout() == copy.layout and found.is_contiguous()


def test_a_copy_is_made_once_for_all_places_of_the_host_code() -> None:
    weight = parameter(8, 64)
    made = counters["hoisted_copies"]
    first, second = hoisted((8, 64), (64, 1)), hoisted((8, 64), (64, 1))
    assert first(weight) is first(weight) is second(weight)
    assert counters["hoisted_copies"] == made + 1
    assert hoisted((4, 64), (64, 1))(weight) is not first(weight)
    assert counters["hoisted_copies"] == made + 2


def test_a_copy_is_made_again_when_the_parameter_has_changed() -> None:
    weight = parameter(8, 64)
    copy, other_place = hoisted((8, 64), (64, 1)), hoisted((8, 64), (64, 1))
    copy(weight)
    with torch.no_grad():
        weight.mul_(2)
    for place in (copy, other_place):
        assert torch.equal(place(weight).cpu(), weight.cpu())


def test_each_parameter_has_a_copy_of_its_own() -> None:
    copy, a, b = hoisted((8, 64), (64, 1)), parameter(8, 64), parameter(8, 64)
    with torch.no_grad():
        b.add_(1)
    assert torch.equal(copy(a).cpu(), a.cpu()) and torch.equal(copy(b).cpu(), b.cpu())


def test_an_argument_in_another_layout_is_laid_out_for_the_kernel_and_written_back() -> None:
    """The program was compiled for rows in sticks; then comes a tensor with columns in sticks."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2)

    torch._dynamo.reset()
    compiled = torch.compile(function)
    plain = torch.randn(64, 128).half().to("spyre")
    compiled(plain.clone())
    layout = layout_of((64, 128), (128, 1), torch.float16, 0)
    other = _C._empty_spyre((64, 128), (128, 1), torch.float16, layout, 0)
    other.copy_(plain)
    expected = plain.cpu() * 2
    compiled(other)
    assert torch.equal(other.cpu(), expected) and other.device_tensor_layout() == layout
