"""The allocator as PyTorch sees it: statistics, cache, out of memory, threads and streams."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch

MIB = 1 << 20


def test_statistics_are_exact():
    torch.ones(1, device="spyre")
    before, count = (
        torch.spyre.memory_allocated(),
        torch.spyre.memory_stats()["allocation.all.current"],
    )
    torch.spyre.reset_peak_memory_stats()
    t = torch.empty(100, 100, dtype=torch.float16, device="spyre")  # 2 sticks of 64 a row
    assert torch.spyre.memory_allocated() - before == 2 * 100 * 128
    assert torch.spyre.memory_stats()["allocation.all.current"] == count + 1
    view = t[5:]
    del t
    assert torch.spyre.memory_allocated() - before == 2 * 100 * 128
    del view
    assert torch.spyre.memory_allocated() == before
    assert torch.spyre.max_memory_allocated() >= before + 2 * 100 * 128
    assert torch.accelerator.memory_allocated() == before
    assert torch.spyre._spyre_get_allocator_stats(0)["allocated_bytes.all.current"] == before


def test_cache_is_reused_and_emptied():
    a = torch.empty(MIB, device="spyre")
    address = a.data_ptr()
    del a
    assert torch.empty(MIB, device="spyre").data_ptr() == address
    assert torch.spyre.memory_reserved() >= torch.spyre.memory_allocated()
    reserved = torch.spyre.memory_reserved()
    torch.spyre.empty_cache()
    assert torch.spyre.memory_reserved() <= reserved
    free, total = torch.spyre.mem_get_info()
    assert total == 128 << 30 and 0 < free <= total


def test_summary_is_readable():
    text = torch.spyre.memory_summary()
    assert "llocated" in text and "eserved" in text and len(text.splitlines()) > 4


def test_out_of_memory_says_what_is_in_use_and_leaves_everything_usable(script):
    out = script(
        """
        import torch
        kept = torch.full((1000,), 3.0, device="spyre")
        big = torch.empty(40 << 20, dtype=torch.int8, device="spyre")
        for _ in range(3):
            try:
                torch.empty(60 << 20, dtype=torch.int8, device="spyre")
            except torch.OutOfMemoryError as error:
                text = str(error)
        print(text)
        assert torch.spyre.memory_stats()["num_ooms"] == 3
        small = torch.ones(4, device="spyre")
        try:
            small.resize_(100_000_000)
        except torch.OutOfMemoryError:
            assert small.shape == (4,) and small.sum().item() == 4
        del small
        del big
        again = torch.full((60 << 20,), 1, dtype=torch.int8, device="spyre")
        assert kept.sum().item() == 3000 and again[-1].item() == 1
        try:
            torch.empty(1 << 60, dtype=torch.int8, device="spyre")
        except torch.OutOfMemoryError:
            print("refused")
        """,
        SPYRE_MEMORY="64M",
    )
    assert "SPYRE_MEMORY" in out and "60" in out and out.endswith("refused")


def test_memory_is_committed_lazily():
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    t = torch.empty(8 << 30, dtype=torch.int8, device="spyre")
    assert t.nbytes == 8 << 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KB


def test_100000_allocations_from_4_threads_and_8_streams():
    torch.ones(1, device="spyre")
    torch.spyre.synchronize()
    before = torch.spyre.memory_allocated(), torch.spyre.memory_stats()["allocation.all.current"]
    allocated = torch.spyre.memory_stats()["allocation.all.allocated"]
    checked = 25

    def work(seed: int) -> int:
        rng = random.Random(seed)
        streams = [torch.spyre.Stream() for _ in range(2)]
        live: list[tuple[torch.Tensor, int]] = []
        for i in range(25_000):
            torch.spyre.set_stream(streams[i % 2])
            if len(live) > 50:
                t, value = live.pop(rng.randrange(len(live)))
                if value >= 0:
                    assert (t.cpu() == value).all(), "another tensor's bytes"
            size = rng.randrange(1, 20_000)
            if i % (25_000 // checked) == 0:
                live.append(
                    (
                        torch.full(
                            (size,), seed * 1000 + i // 1000 + 2, dtype=torch.int32, device="spyre"
                        ),
                        seed * 1000 + i // 1000 + 2,
                    )
                )
            else:
                live.append((torch.empty(size, dtype=torch.int8, device="spyre"), -1))
        ranges = sorted((t.data_ptr(), t.data_ptr() + t.numel()) for t, _ in live)
        assert all(a[1] <= b[0] for a, b in pairwise(ranges)), "blocks overlap"
        torch.spyre.set_stream(torch.spyre.default_stream())
        return len(live)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    torch.spyre.synchronize()
    after = torch.spyre.memory_allocated(), torch.spyre.memory_stats()["allocation.all.current"]
    assert after == before
    assert torch.spyre.memory_stats()["allocation.all.allocated"] - allocated >= 100_000


def test_sizes_that_overflow_are_refused():
    with pytest.raises(RuntimeError, match="overflow"):
        torch.empty(2**40, 2**40, device="spyre")
