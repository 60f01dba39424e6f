"""A batch of vLLM, cut into parts of a few fixed sizes: each size is one compiled program.

vLLM hands over the tokens of all sequences in one row: one token of each sequence that is being
continued, and chunks of prompts. Sequences with one token are put together, up to the largest
batch; a chunk of a prompt is a part of its own, or several if it is longer than the largest size.

    3 sequences with one token, a prompt of 300 tokens; batches 1, 8 and chunks 64, 256
    parts: 3 of 8 sequences x 1 query; 256 of 256 queries; 44 of 64 queries
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PAGE = 64
"""Tokens of a page of the cache: one stick of scores."""


@dataclass(frozen=True)
class Sizes:
    """The sizes for which programs are compiled, each in ascending order."""

    batches: tuple[int, ...]
    """Sequences that are continued by one token each."""
    chunks: tuple[int, ...]
    """Tokens of a prompt that are computed at once."""
    pages: tuple[int, ...]
    """Pages that a sequence may have."""

    @classmethod
    def choose(
        cls, longest: int, sequences: int, *, encoder: bool, wanted: Mapping[str, Any]
    ) -> Sizes:
        """For sequences of up to `longest` tokens, so many at once; `wanted` are the user's."""
        unknown = set(wanted) - {"batches", "chunks", "pages"}
        if unknown:
            raise ValueError(
                f"unknown sizes {sorted(unknown)} in additional_config['spyre']: it takes "
                "'batches', 'chunks' and 'pages', each a list of numbers"
            )
        most = -(-longest // PAGE)
        chunks = steps(64, 4, longest) if encoder else tuple(n for n in (64, 256) if n < longest)
        default = {
            "batches": tuple(n for n in (1, 8) if n <= sequences),
            "chunks": chunks or (64,),
            "pages": steps(16, 4, most),
        }
        return cls(**{name: ascending(name, wanted.get(name, default[name])) for name in default})


def steps(first: int, factor: int, last: int) -> tuple[int, ...]:
    """first, first * factor, ..., last."""
    found = []
    while first < last:
        found.append(first)
        first *= factor
    return (*found, last)


def ascending(name: str, sizes: Sequence[int]) -> tuple[int, ...]:
    """The user's numbers, checked."""
    found = tuple(sorted(set(sizes)))
    if not found or any(not isinstance(n, int) or n < 1 for n in found):
        raise ValueError(f"sizes of {name}: {sizes!r}; expected a list of numbers of at least 1")
    return found


@dataclass(frozen=True)
class Cut:
    """A part of a batch: which tokens it has, and the size of the program for it."""

    sequences: list[int]
    """Their places in the batch."""
    rows: list[int]
    """Of its tokens in the batch."""
    count: int
    """Sequences of the program."""
    queries: int
    """Tokens of each sequence of the program."""
    pages: int
    """Pages of each sequence of the program; 0 for encoders."""

    @property
    def size(self) -> tuple[int, int, int]:
        return self.count, self.queries, self.pages


@dataclass(frozen=True)
class Cutter:
    """Cuts batches into parts."""

    sizes: Sizes
    encoder: bool = False

    def cut(self, starts: Sequence[int], lengths: Sequence[int]) -> Iterator[Cut]:
        """Of sequences whose tokens begin at `starts` (and the end of the last), and which have
        `lengths` tokens after this batch."""
        single = []
        for i, (start, end) in enumerate(itertools.pairwise(starts)):
            if end - start == 1 and not self.encoder:
                single.append(i)
            else:
                yield from self._chunks(i, start, end, lengths[i])
        largest = self.sizes.batches[-1]
        for at in range(0, len(single), largest):
            chosen = single[at : at + largest]
            longest = max(lengths[i] for i in chosen)
            yield Cut(
                chosen,
                [starts[i] for i in chosen],
                fitting(self.sizes.batches, len(chosen)),
                1,
                self._pages(longest),
            )

    def _chunks(self, sequence: int, start: int, end: int, length: int) -> Iterator[Cut]:
        chunks = self.sizes.chunks
        if self.encoder:  # sees the whole sequence at once
            queries = fitting(chunks, end - start)
            yield Cut([sequence], list(range(start, end)), 1, queries, 0)
            return
        while start < end:
            queries = fitting(chunks, min(end - start, chunks[-1]))
            stop = min(start + queries, end)
            pages = self._pages(length - (end - stop))
            yield Cut([sequence], list(range(start, stop)), 1, queries, pages)
            start = stop

    def _pages(self, length: int) -> int:
        return fitting(self.sizes.pages, -(-length // PAGE))

    def all_sizes(self) -> list[tuple[int, int, int]]:
        """Of all programs that batches may need."""
        return [
            (*size, pages)
            for pages in (self.sizes.pages if not self.encoder else (0,))
            for size in self._shapes()
        ]

    def first_sizes(self) -> list[tuple[int, int, int]]:
        """Of the programs that are needed as long as sequences have few pages."""
        return self.all_sizes()[: len(self._shapes())]

    def _shapes(self) -> list[tuple[int, int]]:
        chunks = [(1, queries) for queries in self.sizes.chunks]
        return chunks if self.encoder else [(n, 1) for n in self.sizes.batches] + chunks


def fitting(sizes: Sequence[int], needed: int) -> int:
    """The smallest size that is enough."""
    at = bisect_left(sizes, needed)
    if at == len(sizes):
        raise ValueError(
            f"{needed} is more than the largest size, {sizes[-1]}: give additional_config['spyre'] "
            "a larger one"
        )
    return sizes[at]
