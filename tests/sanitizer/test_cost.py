"""What checking costs: at most twenty times the time of a program.

Copies between layouts are the dearest steps, since they are the cheapest to run. Processor time of
all threads, the best of several runs: other processes do not count.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import pytest
import torch

LIMIT = 20


def half(*size: int) -> torch.Tensor:
    return torch.randn(*size, dtype=torch.float16).to("spyre")


def best(call: Callable[[], object], runs: int) -> float:
    found = []
    for _ in range(runs):
        begin = time.process_time()
        call()
        torch.spyre.synchronize()
        found.append(time.process_time() - begin)
    return min(found)


def times_slower(call: Callable[[], object]) -> float:
    """The least of several tries, up to the first within the limit: who else uses the caches of the
    processor makes a try worse, never better."""
    call()
    least = math.inf
    for _ in range(8):
        without = best(call, 15)
        with torch.spyre.sanitizer():
            least = min(least, best(call, 8) / without)
        if least <= LIMIT:
            break
    return least


@pytest.mark.parametrize(
    "function",
    [
        lambda a: a.t() + a,
        lambda a: a[:, 10:].contiguous(),
        lambda a: a.view(1024, 32, 32).transpose(0, 1).contiguous() + 1,
    ],
    ids=["transposed", "cut through sticks", "heads of half a stick"],
)
def test_a_kernel_with_a_copy_between_layouts(function):
    torch._dynamo.reset()
    compiled, x = torch.compile(function), half(1024, 1024)
    assert times_slower(lambda: compiled(x)) <= LIMIT


def test_copies_from_and_to_the_host_and_between_tensors():
    x = half(1024, 1024)
    y, on_host = torch.empty_like(x), x.cpu()
    for call in (x.cpu, lambda: on_host.to("spyre"), lambda: y.copy_(x), lambda: y.copy_(x.t())):
        assert times_slower(call) <= LIMIT
