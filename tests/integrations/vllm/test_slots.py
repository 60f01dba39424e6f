"""Rows of the cache, without Triton."""

from __future__ import annotations

import pytest
import torch
from torch_spyre_vllm.slots import SlotMapping


def call(world: int = 1) -> list[int]:
    slots = torch.full((8,), 99)
    SlotMapping()[(3,)](
        5, 8, torch.tensor([0, 2, 5]), torch.tensor([64, 65, 0, 1, 2]),
        torch.tensor([[7, 3], [5, 0]]), 2, 64, slots,
        TOTAL_CP_WORLD_SIZE=world, PAD_ID=-1,
    )  # fmt: skip
    return slots.tolist()


def test_a_token_goes_to_its_place_in_its_page():
    assert call() == [3 * 64, 3 * 64 + 1, 5 * 64, 5 * 64 + 1, 5 * 64 + 2, -1, -1, -1]


def test_context_parallelism_is_refused():
    with pytest.raises(NotImplementedError, match="context parallelism"):
        call(world=2)
