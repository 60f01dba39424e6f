"""Attention over pages of a cache, in operations that become a part of the model's program.

It is traced for one `Part` of a batch: so many sequences, each with the same number of queries and
of pages. Keys and values are written by `index_copy_`, the rows of each sequence's pages are
gathered, and what a query may not see (later tokens, pages that only fill up the table) is masked
by position. Nothing here knows vLLM.

    part: 4 sequences, 1 query each, 8 pages of 64 tokens
    scores: (4, key heads, queries that share a key head, 512) + mask (4, 1, 1, 512)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from torch_spyre_vllm.parts import PAGE

Cache = tuple[torch.Tensor, torch.Tensor]
"""Keys and values of a layer, each (rows, key heads, size). A page is 64 rows, one for each token.
The card gathers and scatters rows of whole tensors, so pages are no dimension; the default layout
has all rows of a head together, as attention wants them."""


@dataclass
class Part:
    """What a program is called with, on the card."""

    sequences: int
    positions: torch.Tensor
    """Of each query: (sequences * queries)."""
    slots: torch.Tensor
    """Row of the cache of each query."""
    pages: torch.Tensor
    """Page numbers, sequence by sequence: (sequences * pages)."""
    lengths: torch.Tensor
    """Of the sequences. Only encoders look at it: they have no cache, and fillers are keys, too."""
    rows: torch.Tensor = field(init=False)
    """Rows of the cache of those pages, one after the other."""
    masks: dict[Kind, torch.Tensor] = field(default_factory=dict)
    """Made while the program is traced, once for all layers of a kind."""

    def __post_init__(self) -> None:
        tokens = torch.arange(PAGE, device=self.pages.device)
        self.rows = (self.pages[:, None] * PAGE + tokens).flatten()


@dataclass(frozen=True)
class Kind:
    """What a query of a layer sees."""

    encoder: bool = False
    """All tokens of its sequence, and not only earlier ones."""
    window: int | None = None
    """This many tokens, its own included (of an encoder: to both sides)."""


@dataclass(frozen=True)
class Heads:
    """The shape of a layer's attention."""

    heads: int
    key_heads: int
    size: int
    scale: float
    soft_cap: float | None = None
    kind: Kind = Kind()


def store(part: Part, cache: Cache, key: torch.Tensor, value: torch.Tensor) -> None:
    """Writes the keys and values of the part's tokens, (tokens, key heads, size)."""
    for into, new in zip(cache, (key, value)):
        into.index_copy_(0, part.slots, new)


def gather(part: Part, cache: Cache) -> Cache:
    """The pages of the part's sequences."""
    keys, values = (tensor.index_select(0, part.rows) for tensor in cache)
    return keys, values


def attend(
    heads: Heads, part: Part, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> torch.Tensor:
    """Queries (tokens, heads, size) to results of the same shape. Keys and values are those of
    each sequence, in any shape that ends with (key heads, size)."""
    count = part.sequences
    queries, groups = len(query) // count, heads.heads // heads.key_heads
    key, value = (t.reshape(count, -1, heads.key_heads, heads.size) for t in (key, value))
    # The queries that share keys are rows of one product.
    shared = (count, queries, heads.key_heads, groups, heads.size)
    rows = (query * heads.scale).view(shared).permute(0, 2, 3, 1, 4)
    scores = rows.reshape(count, heads.key_heads, -1, heads.size) @ key.permute(0, 2, 3, 1)
    if heads.soft_cap:
        scores = torch.tanh(scores / heads.soft_cap) * heads.soft_cap
    scores = scores.view(count, heads.key_heads, groups, queries, -1)
    weights = torch.softmax(scores + mask(heads.kind, part, query.dtype)[:, None, None], dim=-1)
    found = weights.flatten(2, 3) @ value.transpose(1, 2)
    found = found.view(count, heads.key_heads, groups, queries, heads.size)
    return found.permute(0, 3, 1, 2, 4).reshape(query.shape)


def mask(kind: Kind, part: Part, dtype: torch.dtype) -> torch.Tensor:
    """0 where a query sees a key, minus infinity elsewhere: (sequences, queries, keys)."""
    if kind not in part.masks:
        part.masks[kind] = _make_mask(kind, part, dtype)
    return part.masks[kind]


def _make_mask(kind: Kind, part: Part, dtype: torch.dtype) -> torch.Tensor:
    device = part.positions.device
    if kind.encoder:
        keys = torch.arange(len(part.positions) // part.sequences, device=device)
        at = keys.view(1, -1, 1)
        seen = keys < part.lengths.view(-1, 1, 1)
        if kind.window is not None:
            seen = seen & (keys < at + kind.window)
    else:
        keys = torch.arange(len(part.rows) // part.sequences, device=device)
        at = part.positions.view(part.sequences, -1, 1)
        seen = keys <= at
    if kind.window is not None:
        seen = seen & (keys > at - kind.window)
    zero, hidden = (torch.full((), n, dtype=dtype, device=device) for n in (0.0, -math.inf))
    return torch.where(seen, zero, hidden)
