"""Programs that are kept on disk."""

from __future__ import annotations

import random

import torch
from torch_spyre_vllm import kept


def add_one(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device).copy_(x) + 1


def add_two(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device).copy_(x) + 2


# `torch.empty` is what vLLM's attention begins with, and what AOTAutograd makes no key of.
def test_a_program_is_not_taken_for_another_one_because_of_a_seed():
    found = []
    for function in (add_one, add_two):
        random.seed(0)
        drawn = random.random()
        random.seed(0)
        x = torch.zeros(2, 64, dtype=torch.float16).to("spyre")
        program = kept._compile(function, (x,))
        program.disable_guard_check()
        found.append(float(program(x).cpu()[0, 0]))
        assert random.random() == drawn, "the caller's numbers go on"
    assert found == [1, 2]
