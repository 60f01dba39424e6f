"""IBM's own Granite, from the package ibm-fms: its forward pass and `generate`, on the card."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

import torch_spyre
from docs.generate import stock_models as stock

granite = pytest.importorskip("fms.models.granite", reason="pip install --no-deps ibm-fms")
generation = pytest.importorskip("fms.utils.generation", reason="pip install --no-deps ibm-fms")

_PROMPT = 12


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = granite.GraniteConfig(
        src_vocab_size=512, emb_dim=256, nheads=4, kvheads=2, nlayers=2, head_dim=64,
        hidden_grow_factor=2.0, max_expected_seq_len=256, p_dropout=0.0,
    )  # fmt: skip
    model = granite.Granite(config)
    model.reset_parameters()
    return model.eval()


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(2, 512, (2, _PROMPT), generator=torch.Generator().manual_seed(1))


def _on_card(model: Any) -> Any:
    moved = copy.deepcopy(model).half().to("spyre")
    moved.base_model.post_init()  # its table of rotations is kept for each device
    return moved


@torch.no_grad()
def test_the_forward_pass_of_fms_granite_is_one_kernel(model: Any, ids: torch.Tensor) -> None:
    expected = model(ids)
    told = torch_spyre.explain(_on_card(model), ids.to("spyre"))
    assert len(told.graphs) == len(told.kernels) == 1
    assert not told.fallbacks and not told.graph_breaks
    found = stock.compare(expected, told.result.cpu().float(), stock.allowed_error(layers=2))
    assert found.error < stock.allowed_error(layers=2)
    assert found.clear_and_equal == found.clear


@torch.no_grad()
def test_generate_of_fms_granite_is_two_graphs_with_a_cache_that_grows(
    model: Any, ids: torch.Tensor
) -> None:
    on_card = _on_card(model)
    on_card.compile(fullgraph=True)
    torch._dynamo.reset()
    counters.clear()
    torch.spyre.reset_fallback_counts()
    found = generation.generate(
        on_card,
        ids.to("spyre"),
        max_new_tokens=16,
        do_sample=False,
        use_cache=True,
        contiguous_cache=True,  # without it that of the prompt has other strides: a third graph
    ).cpu()
    assert counters["stats"]["unique_graphs"] == 2
    # What it does between the model's calls: it chooses tokens.
    assert set(torch.spyre.fallback_counts()) <= {"aten::argmax", "aten::cat", "aten::zero_"}
    # Each token as the CPU would have chosen it after those before.
    expected = model(found[:, :-1])[:, _PROMPT - 1 :]
    chosen = expected.scatter(-1, found[:, _PROMPT:, None], float(expected.max()) + 1)
    agreement = stock.compare(expected, chosen, stock.allowed_error(layers=2))
    assert agreement.clear_and_equal == agreement.clear
    assert agreement.clear > 10
