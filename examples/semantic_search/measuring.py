"""Running the model, and what is measured while it runs.

`CardEncoder` embeds batches on the card and keeps count: time here, modelled time on the card,
tokens, bytes over the host link, operations that the host had to do. `cpu_embeddings` is what they
are compared with, and `race` is the card against `torch.compile` on the CPU.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from examples.semantic_search.encoder import BATCH, Batch, Embed, embedder, on_card
from torch_spyre import _C
from torch_spyre.constants import BYTES_IN_STICK, DEVICE_NAME
from torch_spyre.device.memory import memory_allocated
from torch_spyre.device.streams import Event
from torch_spyre.ops.fallbacks import fallback_counts


@dataclass
class Counts:
    """What running batches on the card cost."""

    batches: int = 0
    texts: int = 0
    tokens: int = 0
    seconds: float = 0.0
    """Here."""
    card_ms: float = 0.0
    """Modelled, transfers included."""
    sent_bytes: int = 0
    received_bytes: int = 0
    host_operations: Counter[str] = field(default_factory=Counter)
    """Eager and compiled ones: what the card left to the host."""

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def card_tokens_per_second(self) -> float:
        return self.tokens / self.card_ms * 1e3 if self.card_ms else 0.0


class CardEncoder:
    """The model on the card, compiled."""

    def __init__(self, model: torch.nn.Module) -> None:
        before = memory_allocated()
        self.plain = embedder(on_card(model))
        self.weight_bytes = memory_allocated() - before
        self.counts = Counts()
        self.compile_seconds = 0.0
        self.bundles_compiled = 0
        self._compiled: Embed = torch.compile(self.plain, fullgraph=True, dynamic=False)

    def compile(self, batch: Batch) -> None:
        """Run a batch for the first time; the time over that of a second run was compiling."""
        from torch_spyre._inductor.counters import counters

        before = counters["bundles_compiled"]
        first = _seconds(lambda: self.run(batch))
        self.compile_seconds = max(0.0, first - _seconds(lambda: self.run(batch)))
        self.bundles_compiled = counters["bundles_compiled"] - before

    def run(self, batch: Batch) -> torch.Tensor:
        """Embeddings of a batch, on the host; nothing is counted."""
        ids, mask = batch.ids.to(DEVICE_NAME), batch.mask.to(DEVICE_NAME)
        return self._compiled(ids, mask).cpu()

    def embed(self, batches: list[Batch], done: Callable[[], object]) -> torch.Tensor:
        """Embeddings of all texts, in float32 on the host; `done` is called after each batch."""
        rows: list[torch.Tensor] = []
        for batch in batches:
            rows.append(self._counted(batch)[: batch.texts].float())
            done()
        return torch.cat(rows)

    def _counted(self, batch: Batch) -> torch.Tensor:
        counts = self.counts
        host_before = Counter(fallback_counts())
        start, end = (Event(enable_timing=True) for _ in range(2))
        began = time.perf_counter()
        start.record()
        ids, mask = batch.ids.to(DEVICE_NAME), batch.mask.to(DEVICE_NAME)
        result = self._compiled(ids, mask)
        on_host = result.cpu()
        end.record()
        end.synchronize()
        counts.seconds += time.perf_counter() - began
        counts.card_ms += start.elapsed_time(end)
        counts.batches += 1
        counts.texts += batch.texts
        counts.tokens += batch.tokens
        counts.sent_bytes += _card_bytes(ids) + _card_bytes(mask)
        counts.received_bytes += _card_bytes(result)
        counts.host_operations += Counter(fallback_counts()) - host_before
        return on_host


def _card_bytes(tensor: torch.Tensor) -> int:
    """Size of a tensor in the card's memory, which is what a transfer moves."""
    layout = _C.get_spyre_tensor_layout(tensor)
    if layout is None:
        return tensor.numel() * tensor.element_size()
    sticks = 1
    for size in layout.device_size[:-1]:
        sticks *= size
    return sticks * BYTES_IN_STICK


# ---- The CPU -------------------------------------------------------------------------------------


def cpu_embeddings(
    model: torch.nn.Module, batches: list[Batch], done: Callable[[], object]
) -> torch.Tensor:
    """The same texts with the same model in eager float32 on the CPU.

    Texts of similar length go together, without padding beyond the longest of them: the reference
    shares neither compiler nor padding with what it judges.
    """
    embed = embedder(model)
    ids = torch.cat([b.ids[: b.texts] for b in batches])
    mask = torch.cat([b.mask[: b.texts] for b in batches])
    lengths = mask.sum(1)
    order = torch.argsort(lengths)
    rows = torch.empty(0)
    for picked in torch.split(order, BATCH):
        longest = int(lengths[picked].max())
        some = embed(ids[picked, :longest], mask[picked, :longest])
        if not rows.numel():
            rows = torch.empty(len(ids), some.shape[1])
        rows[picked] = some
        done()
    return rows


@dataclass(frozen=True)
class Race:
    """One batch, the card against `torch.compile` on the CPU in float32."""

    card_seconds: float
    cpu_seconds: float
    """The best of `rounds` that alternate."""
    rounds: int
    cpu_compile_seconds: float

    @property
    def ratio(self) -> float:
        return self.card_seconds / self.cpu_seconds


def race(
    card: CardEncoder, model: torch.nn.Module, batch: Batch, rounds: int, done: Callable[[], object]
) -> Race:
    """Both run the batch in turn, from tokens on the host to embeddings on the host."""
    cpu: Embed = torch.compile(embedder(model), fullgraph=True, dynamic=False)
    first = _seconds(lambda: cpu(batch.ids, batch.mask))
    done()
    card_seconds, cpu_seconds = [], []
    for _ in range(rounds):
        card_seconds.append(_seconds(lambda: card.run(batch)))
        cpu_seconds.append(_seconds(lambda: cpu(batch.ids, batch.mask)))
        done()
    best = min(cpu_seconds)
    return Race(min(card_seconds), best, rounds, max(0.0, first - best))


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
