"""Attention over pages: what the card computes is attention over each sequence as it is."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch_spyre_vllm.paged import Heads, Kind, Part, attend, gather, mask, store
from torch_spyre_vllm.parts import PAGE

import torch_spyre

HEADS, KEY_HEADS, SIZE = 4, 2, 64


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).half()


class Sequences:
    """Sequences of some lengths whose pages lie anywhere in a cache, the last `queries` of whose
    tokens are new; of fillers as many as the batch has more places."""

    def __init__(self, lengths: list[int], queries: int, pages: int, count: int = 0) -> None:
        torch.manual_seed(0)
        self.lengths, self.queries = lengths, queries
        count = count or len(lengths)
        self.keys = [draw(n, KEY_HEADS, SIZE) for n in lengths]
        self.values = [draw(n, KEY_HEADS, SIZE) for n in lengths]
        self.query = draw(count * queries, HEADS, SIZE)
        places = 1 + torch.randperm(count * pages)
        self.table = torch.zeros(count, pages, dtype=torch.int64)
        self.cache = [draw((1 + count * pages) * PAGE, KEY_HEADS, SIZE) for _ in range(2)]
        new = [self.query.new_zeros(count * queries, KEY_HEADS, SIZE) for _ in range(2)]
        positions, slots = (torch.zeros(count * queries, dtype=torch.int64) for _ in range(2))
        for i, length in enumerate(lengths):
            used = -(-length // PAGE)
            self.table[i, :used] = places[i * pages : i * pages + used]
            at = torch.arange(length)
            rows = self.table[i, at // PAGE] * PAGE + at % PAGE
            part = slice(i * queries, i * queries + min(queries, length))
            fresh = at[-queries:]
            positions[part], slots[part] = fresh, rows[fresh]
            for cache, fill, of in zip(self.cache, new, (self.keys[i], self.values[i])):
                cache[rows[:-queries]] = of[:-queries]
                fill[part] = of[-queries:]
        self.new = new
        lengths_tensor = torch.ones(count, dtype=torch.int64)
        lengths_tensor[: len(lengths)] = torch.tensor(lengths)
        self.part = (positions, slots, self.table.flatten(), lengths_tensor)

    def expected(self, i: int, window: int | None) -> torch.Tensor:
        """By the CPU in float32, of the sequence as it is."""
        n = self.lengths[i]
        fresh = min(self.queries, n)
        at, keys = torch.arange(n)[-fresh:, None], torch.arange(n)
        seen = (keys <= at) & (keys > at - (window or n))
        found = F.scaled_dot_product_attention(
            self.query[i * self.queries :][:fresh].float().transpose(0, 1),
            self.keys[i].float().transpose(0, 1),
            self.values[i].float().transpose(0, 1),
            attn_mask=seen,
            enable_gqa=True,
        )
        return found.transpose(0, 1)


CASES: dict[str, tuple[tuple, int | None]] = {
    "one token each, a place left over": (([7, 64, 65, 200], 1, 4, 8), None),
    "a chunk of a prompt": (([150], 32, 4), None),
    "a whole prompt with fillers": (([40], 64, 1), None),
    "a window": (([150, 90], 16, 4), 20),
}


@pytest.mark.parametrize("name", CASES)
def test_paged_attention_is_attention_over_each_sequence(name: str):
    shape, window = CASES[name]
    sequences = Sequences(*shape)
    heads = Heads(HEADS, KEY_HEADS, SIZE, SIZE**-0.5, kind=Kind(window=window))
    count = len(sequences.part[3])

    def layer(query, key, value, keys, values, *part):
        on_card = Part(count, *part)
        store(on_card, (keys, values), key, value)
        return attend(heads, on_card, query, *gather(on_card, (keys, values)))

    inputs = (sequences.query, *sequences.new, *sequences.cache, *sequences.part)
    there = [t.to("spyre") for t in inputs]
    torch._dynamo.reset()
    told = torch_spyre.explain(layer, *there)
    assert not told.fallbacks
    assert not told.graph_breaks
    got = told.result.cpu().float()
    for i in range(len(sequences.lengths)):
        expected = sequences.expected(i, window)
        at = i * sequences.queries
        torch.testing.assert_close(got[at : at + len(expected)], expected, rtol=0.02, atol=0.01)
    assert got.isfinite().all(), "fillers are numbers, too"
    for cache, rows in zip(there[3:5], (sequences.keys, sequences.values), strict=True):
        stored = cache.cpu()
        for i, expected in enumerate(rows):
            fresh = min(sequences.queries, len(expected))
            slots = sequences.part[1][i * sequences.queries :][:fresh]
            torch.testing.assert_close(stored[slots], expected[-fresh:], rtol=2.0**-9, atol=0)


def test_an_encoder_sees_its_whole_sequence_and_no_fillers():
    part = Part(2, torch.zeros(8), torch.zeros(8), torch.zeros(0), torch.tensor([3, 4]))
    seen = mask(Kind(encoder=True), part, torch.float32) == 0
    assert seen.shape == (2, 1, 4)
    assert seen[:, 0].tolist() == [[True, True, True, False], [True] * 4]
    near = mask(Kind(encoder=True, window=2), part, torch.float32) == 0
    assert near[1].sum(-1).tolist() == [2, 3, 3, 2], "itself and a neighbour on each side"
    assert mask(Kind(encoder=True), part, torch.float32) is part.masks[Kind(encoder=True)]
