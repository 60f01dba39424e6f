"""torch.spyre.counters: what the card says it has done."""

from __future__ import annotations

import threading

import pytest
import torch

from torch_spyre._inductor import config
from torch_spyre.hardware import CARD

NAMES = {
    "device_time_us",
    "hbm_read_bytes",
    "hbm_write_bytes",
    "lx_bytes",
    "ring_bytes",
    "launches",
}


def counted(function, *args):
    torch._dynamo.reset()
    compiled = torch.compile(function)
    compiled(*args)
    torch.spyre.reset_counters()
    compiled(*args)
    return torch.spyre.counters()


def half(*shape):
    return torch.randn(*shape, dtype=torch.float16).to("spyre")


@pytest.mark.parametrize("fusion", [True, False])
def test_softmax_without_scratchpads_moves_what_is_published(fusion):
    m, n = 512, 1024
    with config.patch(cores=1, backend_fusion=fusion, lx_planning=False):
        totals = counted(lambda x: torch.softmax(x, 0), half(m, n))
    assert totals["hbm_read_bytes"] + totals["hbm_write_bytes"] == 2 * (8 * m * n + 4 * n)
    assert (totals["lx_bytes"], totals["ring_bytes"], totals["launches"]) == (0, 0, 1)


def test_counters_are_named_start_at_zero_and_add_up_over_launches():
    x = half(64, 64)
    once = counted(lambda x: x + x, x)
    assert set(once) == NAMES
    torch.spyre.reset_counters()
    assert not any(torch.spyre.counters().values())
    compiled = torch.compile(lambda x: x + x)
    for _ in range(3):
        compiled(x)
    three = torch.spyre.counters()
    assert three["launches"] == 3
    assert three["hbm_read_bytes"] == 3 * once["hbm_read_bytes"] == 3 * 2 * 8192
    assert three["device_time_us"] == pytest.approx(3 * once["device_time_us"])


def test_the_clock_of_a_stream_and_the_counters_agree():
    compiled = torch.compile(lambda x: torch.exp(x) + 1)
    x = half(256, 256)
    compiled(x)
    torch.spyre.synchronize()
    start, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
    torch.spyre.reset_counters()
    start.record()
    compiled(x)
    end.record()
    end.synchronize()
    elapsed = 1000 * start.elapsed_time(end)
    assert elapsed == pytest.approx(torch.spyre.counters()["device_time_us"])
    assert elapsed > CARD.job_us


def test_launches_from_many_threads_are_all_counted():
    compiled = torch.compile(lambda x: x * 2)
    x = half(64, 64)
    compiled(x)
    torch.spyre.reset_counters()
    threads = [threading.Thread(target=lambda: [compiled(x) for _ in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    totals = torch.spyre.counters()
    assert totals["launches"] == 80
    assert totals["hbm_write_bytes"] == 80 * 8192
