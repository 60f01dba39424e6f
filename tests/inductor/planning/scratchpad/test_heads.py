"""Heads that are parts of sticks: their copies across sticks stay in scratchpads."""

from __future__ import annotations

import pytest
import torch

import torch_spyre
from torch_spyre._inductor import config

BATCH, TOKENS, HEADS, COLUMNS = 4, 64, 4, 32
WIDTH = HEADS * COLUMNS


def attention(x, wq, wk, wv, wo):
    """4 heads of 32 columns: two of them share a stick of a row."""
    shape = (BATCH, TOKENS, HEADS, COLUMNS)
    q, k, v = ((x @ w).view(shape).transpose(1, 2) for w in (wq, wk, wv))
    weights = torch.softmax(q @ k.transpose(2, 3), dim=-1)
    mixed = (weights @ v).transpose(1, 2).reshape(BATCH, TOKENS, WIDTH)
    return x + mixed @ wo


@pytest.fixture(scope="module")
def arguments():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, TOKENS, WIDTH, generator=generator).half()
    weights = [torch.randn(WIDTH, WIDTH, generator=generator).half() / 16 for _ in range(4)]
    return [x, *weights]


@pytest.fixture(scope="module")
def plain(arguments):
    """The result on one core without scratchpads."""
    return run(arguments, 1, False)


def run(arguments, cores, lx):
    torch._dynamo.reset()
    with config.patch(cores=cores, lx_planning=lx):
        return torch.compile(attention)(*(a.to("spyre") for a in arguments)).cpu()


def test_results_are_those_of_the_cpu(arguments, plain):
    expected = attention(*(a.float() for a in arguments))
    torch.testing.assert_close(plain.float(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("cores", [1, 4, 5, 32])
def test_bits_do_not_depend_on_cores_and_scratchpads(arguments, plain, cores):
    with torch.spyre.sanitizer():
        assert torch.equal(run(arguments, cores, True), plain)
    assert torch.equal(run(arguments, cores, True), plain)  # scratchpads in one piece


def test_the_card_counts_the_compulsory_traffic_and_copies_across_sticks_are_in_lx(arguments):
    on_card = [a.to("spyre") for a in arguments]
    torch._dynamo.reset()
    told = torch_spyre.explain(attention, *on_card)
    copies = [op for op in told.ops if op.opfunc == "relayout"]
    assert copies
    assert {operand.place for op in copies for operand in op.operands} == {"lx"}
    compiled = torch.compile(attention)
    compiled(*on_card)
    torch.spyre.reset_counters()
    compiled(*on_card)
    counted = torch.spyre.counters()
    scale = 128  # of the scores: a constant, one stick
    assert counted["hbm_read_bytes"] == sum(a.nbytes for a in arguments) + scale
    assert counted["hbm_write_bytes"] == arguments[0].nbytes
    assert counted["device_time_us"] == pytest.approx(told.device_time_us)


def test_a_tensor_of_which_a_part_is_written_keeps_the_rest(arguments):
    """The copy into a part of a stick must not take the whole tensor into scratchpads."""

    def f(x, y):
        x = x.clone()
        x[:, :, 5:37] = torch.relu(y[:, :, :32])
        return torch.exp(x) + x

    x = arguments[0]
    torch._dynamo.reset()
    with torch.spyre.sanitizer():
        found = torch.compile(f)(x.to("spyre"), (-x).to("spyre")).cpu()
    torch.testing.assert_close(found.float(), f(x.float(), -x.float()), rtol=2e-2, atol=2e-2)


def test_a_share_that_looks_like_rows_inside_of_a_stick_goes_through_memory():
    """Patches of 8 columns, 16 apart: as a storage of its own, the card misread a core's share."""
    generator = torch.Generator().manual_seed(1)
    x, w = (torch.randn(*s, generator=generator).half() for s in ((1, 3, 32, 33), (70, 3, 8, 8)))

    def f(x, w):
        return torch.nn.functional.conv2d(x, w, stride=8)

    torch._dynamo.reset()
    with torch.spyre.sanitizer():
        found = torch.compile(f)(x.to("spyre"), w.to("spyre")).cpu()
    torch.testing.assert_close(found.float(), f(x.float(), w.float()), rtol=2e-2, atol=5e-2)
