"""What checking costs: at most twenty times the time of a program, and in practice far less.

Held to half of that, in processor time of all threads: other processes count little then. The
cheapest steps to run are the dearest to check, copies between layouts above all; `costs.py` has all
kinds and prints them.
"""

from __future__ import annotations

import pytest
import torch

from tests.sanitizer.costs import KINDS, Kind, cost, half

LIMIT = 10
TRIES = 3  # who else uses the caches of the processor makes a try worse, never better

NAMES = (
    "transposed",
    "cut through sticks",
    "heads of half a stick",
    "add",
    "fill",
    "softmax of columns",
    "float32 chain",
    "int32",
    "embedding",
    "over the ring",
)


def times_slower(kind: Kind) -> float:
    call = kind.call()
    tries = []
    for _ in range(TRIES):
        without = cost(call, 15).processor
        with torch.spyre.sanitizer():
            call()  # it was allocated again: memory from before counts as data
            tries.append(cost(call, 8).processor / without)
        if tries[-1] <= LIMIT:
            break
    return min(tries)


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_of_a_kind(name):
    (kind,) = (kind for kind in KINDS if kind.name == name)
    assert times_slower(kind) <= LIMIT


@pytest.mark.full
@pytest.mark.parametrize("kind", [k for k in KINDS if k.name not in NAMES], ids=lambda k: k.name)
def test_a_kernel_of_any_other_kind(kind):
    assert times_slower(kind) <= 2 * LIMIT


def test_copies_from_and_to_the_host_and_between_tensors():
    x = half(1024, 1024).to("spyre")
    y, on_host = torch.empty_like(x), x.cpu()
    calls = (x.cpu, lambda: on_host.to("spyre"), lambda: y.copy_(x), lambda: y.copy_(x.t()))
    for call in calls:
        assert times_slower(Kind("copy", lambda call=call: call(), list, compiled=False)) <= LIMIT
