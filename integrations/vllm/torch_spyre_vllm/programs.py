"""The programs of a model: one for each size of a part of a batch, one for each count of logits.

A program is the whole model with its attention, compiled when the engine starts or when its size is
needed first. It takes token numbers and positions, writes keys and
values into the cache, and returns hidden states, which vLLM picks rows of on the host.

    programs = Programs(model, config, cutter, torch.device("spyre"), compiled=True)
    hidden = programs.run(ids, positions, metadata, {})       # CPU in, CPU out
    logits = programs.logits(hidden[rows])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.forward_context import ForwardContext, get_forward_context, override_forward_context
from vllm.logger import init_logger

from torch_spyre_vllm.attention import Batch
from torch_spyre_vllm.kept import Kept
from torch_spyre_vllm.paged import Cache, Part
from torch_spyre_vllm.parts import PAGE, Cut, Cutter, fitting

logger = init_logger("vllm.torch_spyre")

OWN = ("ids", "positions", "slots")
"""Inputs of all models; some have more."""


class Programs:
    """Runs a model on the card, part by part."""

    def __init__(
        self,
        model: nn.Module,
        config: VllmConfig,
        cutter: Cutter,
        device: torch.device,
        *,
        compiled: bool,
    ) -> None:
        self.cutter = cutter
        self._model = model
        self._device = device
        self._compiled = compiled
        self._made: dict[tuple[Any, ...], Callable[..., torch.Tensor]] = {}
        self._config = config
        self._store: Kept | None = None  # its keys have the shape of the cache, made after this
        self._pools = config.model_config.runner_type == "pooling"
        # Layers find themselves and the part in vLLM's context; this one serves all programs.
        layers = config.compilation_config.static_forward_context
        self._context = ForwardContext(no_compile_layers=layers, attn_metadata={}, slot_mapping={})

    def run(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        batch: Batch,
        more: Mapping[str, torch.Tensor],
    ) -> torch.Tensor:
        """Hidden states of all tokens of a batch. `more` are further inputs, one for each token."""
        inputs = {"ids": ids, "positions": positions, "slots": batch.slots, **more}
        found: torch.Tensor | None = None
        for cut in self.cutter.cut(batch.starts.tolist(), batch.lengths.tolist()):
            program = self._program(cut.size, tuple(more))
            with override_forward_context(self._context):
                hidden = program(*self._arguments(cut, inputs, batch)).cpu()
            if found is None:
                found = hidden.new_empty(len(ids), *hidden.shape[1:])
            found[cut.rows] = hidden[: len(cut.rows)]
        assert found is not None, "vLLM runs no empty batches"
        return found

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Takes the place of the model's `compute_logits`."""
        found = []
        for rows in hidden.split(self.cutter.sizes.batches[-1]):
            on_card = self._padded(rows, fitting(self.cutter.sizes.batches, len(rows)))
            found.append(self._head(len(on_card))(self._model, on_card).cpu()[: len(rows)])
        return torch.cat(found)

    def warm_up(self) -> None:
        """Compiles the programs that every batch of short sequences needs, or finds them. Those for
        longer ones are made when a sequence grows so long."""
        sizes = self.cutter.first_sizes()
        for i, size in enumerate(sizes):
            logger.info("program %d of %d: %d x %d tokens, %d pages each", i + 1, len(sizes), *size)
            self._program(size, ())
        if not self._pools:
            for rows in self.cutter.sizes.batches:
                self._head(rows)

    def _arguments(
        self, cut: Cut, inputs: Mapping[str, torch.Tensor], batch: Batch
    ) -> tuple[Any, ...]:
        """What `step` is called with. Fillers write to page 0, which belongs to no sequence."""
        tokens = cut.count * cut.queries
        on_card = {k: self._padded(v[cut.rows].long(), tokens) for k, v in inputs.items()}
        pages = torch.zeros(cut.count, cut.pages, dtype=torch.int64)
        table = batch.pages[cut.sequences, : cut.pages]
        pages[: len(table), : table.shape[1]] = table
        lengths = torch.ones(cut.count, dtype=torch.int64)
        lengths[: len(cut.sequences)] = batch.lengths[cut.sequences]
        flat = (pages.flatten().to(self._device), lengths.to(self._device))
        return self._model, cut.count, on_card, *flat

    def _padded(self, rows: torch.Tensor, size: int) -> torch.Tensor:
        if len(rows) < size:
            rows = torch.cat([rows, rows.new_zeros(size - len(rows), *rows.shape[1:])])
        return rows.to(self._device)

    def _program(self, size: tuple[int, int, int], more: tuple[str, ...]) -> Callable[..., Any]:
        key = (*size, *more)
        if not self._compiled:
            return step
        if key not in self._made:
            # Not the arguments of the call: the compiler takes numbers up to 1 for masks, and what
            # it makes of a first batch with small numbers would not do for the next one.
            count, queries, pages = size
            rows = list(range(count * queries))
            two = torch.full((len(rows),), 2)
            cut = Cut(list(range(count)), rows, *size)
            inputs = dict.fromkeys(OWN, two) | dict.fromkeys(more, torch.ones_like(two))
            table = torch.full((count, pages), min(2, self._pages() - 1))
            batch = Batch(two, torch.full((count,), max(queries, 2)), table, two)
            arguments = self._arguments(cut, inputs, batch)
            with override_forward_context(self._context):
                self._made[key] = self._kept().program(key, step, arguments)
        return self._made[key]

    def _head(self, rows: int) -> Callable[..., Any]:
        if not self._compiled:
            return head
        key = ("logits", rows)
        if key not in self._made:
            hf_config = self._config.model_config
            hidden = torch.zeros(rows, hf_config.get_hidden_size(), dtype=hf_config.dtype)
            arguments = (self._model, hidden.to(self._device))
            self._made[key] = self._kept().program(key, head, arguments)
        return self._made[key]

    def _pages(self) -> int:
        """Of the cache; encoders have none."""
        rows = [len(cache[0]) for cache in self._caches()]
        return min(rows, default=0) // PAGE

    def _caches(self) -> list[Cache]:
        layers = self._context.no_compile_layers.values()
        return [layer.kv_cache for layer in layers if isinstance(layer.kv_cache, tuple)]

    def _kept(self) -> Kept:
        if self._store is None:
            shapes = [(tuple(t.shape), t.dtype) for cache in self._caches() for t in cache]
            self._store = Kept(self._model, self._config, shapes)
        return self._store


def step(
    model: nn.Module,
    sequences: int,
    inputs: dict[str, torch.Tensor],
    pages: torch.Tensor,
    lengths: torch.Tensor,
) -> torch.Tensor:
    """Hidden states of a part. Layers find it in vLLM's context."""
    context = get_forward_context()
    ids, positions, slots = (inputs[name] for name in OWN)
    context.attn_metadata = Part(sequences, positions, slots, pages, lengths)  # type: ignore[assignment]
    more = {
        name: value for name, value in inputs.items() if name not in ("ids", "positions", "slots")
    }
    hidden = model(ids, positions, None, None, **more)
    context.attn_metadata = {}
    return hidden


def head(model: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """Logits. The model's own method is called by its class: the instance has ours."""
    return type(model).compute_logits(model, hidden)
