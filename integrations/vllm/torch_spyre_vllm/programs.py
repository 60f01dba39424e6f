"""The programs of a model: one for each size of a part of a batch, one for each count of logits.

A program is the whole model with its attention, compiled by `torch.compile` when its size is needed
first (or all of them when the engine starts). It takes token numbers and positions, writes keys and
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
from torch_spyre_vllm.paged import Part
from torch_spyre_vllm.parts import Cut, Cutter, fitting

logger = init_logger("vllm.torch_spyre")


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
        self._steps: dict[Any, Callable[..., torch.Tensor]] = {}
        # A decoder that pools has the method without the weights.
        pools = config.model_config.runner_type == "pooling"
        self._head = None if pools else model.compute_logits
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
        found: torch.Tensor | None = None
        for cut in self.cutter.cut(batch.starts.tolist(), batch.lengths.tolist()):
            hidden = self._run_part(cut, ids, positions, batch, more)
            if found is None:
                found = hidden.new_empty(len(ids), *hidden.shape[1:])
            found[cut.rows] = hidden[: len(cut.rows)]
        assert found is not None, "vLLM runs no empty batches"
        return found

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Takes the place of the model's `compute_logits`."""
        assert self._head is not None
        largest = self.cutter.sizes.batches[-1]
        found = []
        for rows in hidden.split(largest):
            size = fitting(self.cutter.sizes.batches, len(rows))
            program = self._program(("logits", size), self._head)
            found.append(program(self._padded(rows, size)).cpu()[: len(rows)])
        return torch.cat(found)

    def warm_up(self, pages: int, hidden_size: int, dtype: torch.dtype) -> None:
        """Compiles all programs, for a cache of so many pages. The compiler distinguishes numbers
        up to 1, which may be masks, from larger ones: the inputs are as large as real ones."""
        sizes = self.cutter.all_sizes()
        for i, size in enumerate(sizes):
            logger.info("program %d of %d: %d x %d tokens, %d pages each", i + 1, len(sizes), *size)
            count, queries, of_each = size
            tokens = torch.full((count * queries,), 2)
            batch = Batch(
                starts=torch.arange(count + 1) * queries,
                lengths=torch.full((count,), max(queries, 2)),
                pages=torch.full((count, of_each), min(2, pages - 1)),
                slots=tokens,
            )
            cut = Cut(list(range(count)), list(range(len(tokens))), *size)
            self._run_part(cut, tokens, tokens, batch, {})
        if self._head is not None:
            for rows in self.cutter.sizes.batches:
                self.logits(torch.zeros(rows, hidden_size, dtype=dtype))

    def _run_part(
        self,
        cut: Cut,
        ids: torch.Tensor,
        positions: torch.Tensor,
        batch: Batch,
        more: Mapping[str, torch.Tensor],
    ) -> torch.Tensor:
        tokens = cut.count * cut.queries
        pages = torch.zeros(cut.count, cut.pages, dtype=torch.int64)
        table = batch.pages[cut.sequences, : cut.pages]
        pages[: len(table), : table.shape[1]] = table
        lengths = torch.ones(cut.count, dtype=torch.int64)
        lengths[: len(cut.sequences)] = batch.lengths[cut.sequences]
        inputs = {"ids": ids, "positions": positions, "slots": batch.slots, **more}
        # Fillers write to page 0, which belongs to no sequence, and are read by no one.
        on_card = {k: self._padded(v[cut.rows].long(), tokens) for k, v in inputs.items()}
        program = self._program((*cut.size, *more), self._step(cut.count))
        with override_forward_context(self._context):
            hidden = program(
                pages=pages.flatten().to(self._device), lengths=lengths.to(self._device), **on_card
            )
        return hidden.cpu()

    def _padded(self, rows: torch.Tensor, size: int) -> torch.Tensor:
        if len(rows) < size:
            rows = torch.cat([rows, rows.new_zeros(size - len(rows), *rows.shape[1:])])
        return rows.to(self._device)

    def _step(self, sequences: int) -> Callable[..., torch.Tensor]:
        model = self._model

        def step(
            ids: torch.Tensor,
            positions: torch.Tensor,
            slots: torch.Tensor,
            pages: torch.Tensor,
            lengths: torch.Tensor,
            **more: torch.Tensor,
        ) -> torch.Tensor:
            context = get_forward_context()
            context.attn_metadata = Part(sequences, positions, slots, pages, lengths)  # type: ignore[assignment]
            hidden = model(ids, positions, None, None, **more)
            context.attn_metadata = {}
            return hidden

        return step

    def _program(self, key: Any, function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
        """The function compiled for the shapes that the key stands for. Nothing else about the
        model changes after loading, so there is nothing to guard."""
        if not self._compiled:
            return function
        if key not in self._steps:
            self._steps[key] = torch.compile(
                function,
                fullgraph=True,
                dynamic=False,
                isolate_recompiles=True,
                options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe},
            )
        return self._steps[key]
