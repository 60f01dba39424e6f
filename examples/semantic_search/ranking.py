"""Scores of passages, and whether two rankings of them are the same.

The score of a passage is the cosine between its embedding and that of the question. Embeddings from
the card are rounded to 16 bits, so scores that lie very close can change places: they count as
tied. `TIE` is what the last rounding alone explains. An element of an embedding is off by at most
u = 2^-10 of itself (DLFloat16 has nine fraction bits), a product of two by 2u, and so is a sum of
products whose magnitudes sum to at most one, as those of unit vectors do. Two scores that are
compared are off by 2u each: 4u. Roundings inside of the model are not counted, so this is less
than the format would excuse.

    >>> compare(card_scores, cpu_scores).holds
    True                                # no two passages swapped that the CPU tells apart
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

TIE = 4 * 2.0**-10


def scores(question: torch.Tensor, passages: torch.Tensor) -> torch.Tensor:
    """Cosines of one unit vector with many, in float32 on the host."""
    return passages.float() @ question.float()


def best(values: torch.Tensor, count: int) -> list[int]:
    """Numbers of the passages with the highest scores; equal ones in the order of the text."""
    return torch.sort(values, descending=True, stable=True).indices[:count].tolist()


@dataclass(frozen=True)
class Comparison:
    """The rankings of all passages for one question, on the card and on the CPU."""

    same_best: bool
    """The first passage is the same."""
    same_top: bool
    """The passages that are shown are the same, in the same order."""
    swapped: float
    """The largest difference of CPU scores between two passages whose order is not the CPU's."""

    @property
    def holds(self) -> bool:
        return self.swapped <= TIE


def compare(card: torch.Tensor, cpu: torch.Tensor, shown: int) -> Comparison:
    """Compare the scores that all passages got for one question."""
    a, b = best(card, shown), best(cpu, shown)
    return Comparison(a[:1] == b[:1], a == b, _swapped(card, cpu))


def _swapped(card: torch.Tensor, cpu: torch.Tensor) -> float:
    """In the card's order, the CPU's scores must not rise again; by how much do they?"""
    in_order = cpu[torch.sort(card, descending=True, stable=True).indices]
    lowest_so_far = torch.cummin(in_order, 0).values
    return float((in_order - lowest_so_far).max())
