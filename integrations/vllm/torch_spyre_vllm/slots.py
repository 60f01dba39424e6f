"""Rows of the cache where the tokens of a batch go; vLLM computes them with Triton.

page 7 of 64 tokens, the 3rd token of it: row 7 * 64 + 2
"""

from __future__ import annotations

from typing import Any

import torch


class SlotMapping:
    """Takes the place of the Triton kernel in `vllm.v1.worker.block_table`: called as
    `kernel[grid](...)`, it writes `slots` for each token."""

    def __getitem__(self, grid: Any) -> Any:
        return compute_slots


def compute_slots(
    count: int,
    most: int,
    query_start: torch.Tensor,
    positions: torch.Tensor,
    pages: torch.Tensor,
    stride: int,
    page_size: int,
    slots: torch.Tensor,
    **constants: Any,
) -> None:
    """The arguments are those of vLLM's kernel."""
    if constants["TOTAL_CP_WORLD_SIZE"] != 1:
        raise NotImplementedError("torch-spyre-vllm has no context parallelism")
    owner = torch.repeat_interleave(torch.arange(len(query_start) - 1), query_start.diff())
    page = pages[owner, positions // page_size]
    slots[:count] = page * page_size + positions % page_size
    slots[count:] = constants["PAD_ID"]
