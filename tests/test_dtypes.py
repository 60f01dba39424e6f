"""Facts about dtypes against PyTorch, the card's own conversions and the table of formats."""

from __future__ import annotations

import pytest
import torch

from torch_spyre import _C, dtypes, opfuncs


def test_limits_are_those_of_pytorch() -> None:
    assert torch.finfo(torch.float16).max == dtypes.FLOAT16_MAX
    assert torch.finfo(torch.float8_e4m3fn).max == dtypes.FLOAT8_MAX
    limits = torch.iinfo(torch.int32)
    assert (limits.min, limits.max) == (dtypes.INT32_MIN, dtypes.INT32_MAX)


def test_float32_loses_the_first_integer_above_the_exact_ones() -> None:
    exact = dtypes.FLOAT32_EXACT
    numbers = torch.tensor([exact - 1, exact, exact + 1])
    assert numbers.to(torch.float32).to(torch.int64).tolist() == [exact - 1, exact, exact]


def test_the_least_power_of_two_is_held_and_a_quarter_of_it_is_zero() -> None:
    least = dtypes.DLFLOAT16_LEAST
    numbers = torch.tensor([least, 1.5 * least, least / 4], dtype=torch.bfloat16)
    assert numbers.to("spyre").cpu().tolist() == [least, 1.5 * least, 0.0]


@pytest.mark.parametrize("dtype", dtypes.NATIVE_TYPES)
def test_native_types_have_the_format_that_is_documented(dtype: torch.dtype) -> None:
    found = _C.get_device_dtype(dtype).name
    if dtype in (*dtypes.SIXTEEN_BITS, torch.bool):
        assert found == opfuncs.FP16
    elif dtype in dtypes.INTEGERS:
        assert found == opfuncs.INT32
    else:
        assert found in (opfuncs.FP32, opfuncs.FP8)


def test_complex_tensors_have_no_format() -> None:
    assert dtypes.has_device_format(torch.float32)
    assert not dtypes.has_device_format(torch.complex64)
