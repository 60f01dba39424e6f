"""A model's weights: from a checkpoint, and to the card.

Weights of products get the layout that products want (sticks along the outputs), tables of
embeddings keep their rows. What pools hidden states stays on the host, with vLLM's own code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from torch_spyre.device.module_to import linear_weight_layout

TABLE, PRODUCT = "model.embed_tokens.weight", "lm_head.weight"


def load(config: VllmConfig) -> nn.Module:
    """The model on the host, as vLLM loads it."""
    loader = get_model_loader(config.load_config)
    hf_config = config.model_config.hf_config
    if isinstance(loader, DefaultModelLoader) and getattr(hf_config, "tie_word_embeddings", False):
        stock = loader.get_all_weights
        loader.get_all_weights = lambda *args: with_table(stock(*args))  # type: ignore[method-assign]
    return loader.load_model(vllm_config=config, model_config=config.model_config)


def with_table(weights: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """The weights of a checkpoint, complete if one table is both embeddings and product.

    `transformers` saves a model that it has read from GGUF with the product alone, and vLLM skips
    that: the embeddings would be whatever was in memory.
    """
    table, missing = None, True
    for name, tensor in weights:
        missing = missing and name != TABLE
        if name == PRODUCT:
            table = tensor
        yield name, tensor
    if missing and table is not None:
        yield TABLE, table


def move_to_card(model: nn.Module, device: torch.device) -> None:
    """Moves parameters and buffers, one after the other, so that none is held twice for long."""
    untie(model)
    products = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, (LinearBase, ParallelLMHead, nn.Linear)) and module.weight.dim() == 2
    }
    on_host = {
        id(tensor)
        for module in used_by(getattr(model, "pooler", None), set())
        for tensor in (*module.parameters(), *module.buffers())
    }
    moved: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is None or id(tensor) in on_host:
                    continue
                if id(tensor) not in moved:
                    moved[id(tensor)] = _to(tensor, device, id(tensor) in products)
                tensors[name] = moved[id(tensor)]


def used_by(pooler: Any, met: set[int]) -> Iterator[nn.Module]:
    """The modules that pooling calls. Some it only has in functions, so that they are registered
    at one place; the model itself, which may be in there, too, is none of them."""
    if id(pooler) in met:
        return
    met.add(id(pooler))
    held: list[Any] = []
    if isinstance(pooler, nn.Module):
        if any(isinstance(module, AttentionLayerBase) for module in pooler.modules()):
            return
        yield pooler
        held = [*vars(pooler).values(), *pooler.children()]
    elif isinstance(pooler, FunctionType):
        held = [cell.cell_contents for cell in pooler.__closure__ or ()]
    elif isinstance(pooler, MethodType):
        held = [pooler.__self__]
    elif isinstance(pooler, (list, tuple)):
        held = list(pooler)
    elif isinstance(pooler, dict):
        held = list(pooler.values())
    for value in held:
        yield from used_by(value, met)


def untie(model: nn.Module) -> None:
    """Gives a product with the table of embeddings a copy of its own: one layout for both would
    be turned in every step."""
    tables = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, VocabParallelEmbedding) and not isinstance(module, ParallelLMHead)
    }
    for module in model.modules():
        if isinstance(module, ParallelLMHead) and id(module.weight) in tables:
            module.weight = nn.Parameter(module.weight.data.clone(), requires_grad=False)


def _to(tensor: torch.Tensor, device: torch.device, product: bool) -> torch.Tensor:
    data = tensor.data
    if product:
        layout = linear_weight_layout(data, data.dtype)
        on_card = data.to(device, device_layout=layout)  # type: ignore[call-overload]
    else:
        on_card = data.to(device)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(on_card, requires_grad=False)
    return on_card
