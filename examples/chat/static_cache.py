"""The static cache of `transformers`, written where the caller says.

The stock one counts what it is given, and so would take the padding behind a prompt for a part of
the conversation. Importing this imports `transformers`.

    >>> cache = cache_at(positions, keys, values)       # lists: a tensor of each layer
    >>> model(ids, past_key_values=cache)               # writes rows `positions` of all of them
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, StaticLayer


class PlacedLayer(StaticLayer):
    """Keys and values of one layer, each (batch, heads, rows, head_dim)."""

    def __init__(self, positions: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.positions, self.keys, self.values = positions, keys, values
        self.max_cache_len = keys.shape[2]
        self.is_initialized = True

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys.index_copy_(2, self.positions, keys)
        self.values.index_copy_(2, self.positions, values)
        return self.keys, self.values


def cache_at(
    positions: torch.Tensor, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
) -> Cache:
    """A cache for one call of a model."""
    return Cache(layers=[PlacedLayer(positions, k, v) for k, v in zip(keys, values)])
