"""Stock encoders of transformers: one kernel, no host steps, the logits of the CPU in float32."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters

pytest.importorskip("transformers", reason="pip install 'torch-spyre[models]'")

from docs.generate import stock_models as stock
from docs.generate.stock_models import Size
from torch_spyre._inductor.inspect import debug_dir


def check(name: str, size: Size, *inputs: torch.Tensor) -> None:
    torch._dynamo.reset()
    counters.clear()
    model = stock.make(name, size)
    expected = stock.encode(model, *inputs)
    on_card = stock.compiled(stock.on_card(model))
    with debug_dir.listen() as record:
        actual = stock.encode(on_card, *inputs)
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]
    (plan,) = record.plans
    assert not plan.fallbacks and len(plan.kernels) == 1
    allowed = stock.allowed_error(size.layers)
    found = stock.compare(expected, actual, allowed)
    assert found.error < allowed
    assert found.clear and found.clear_and_equal == found.clear


@pytest.mark.parametrize("head_dim", [32, 64])
@pytest.mark.parametrize("batch", [1, 2])
def test_bert_with_padding_is_one_kernel(batch: int, head_dim: int) -> None:
    ids = torch.randint(2, 512, (batch, 24), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[-1, 17:] = 0
    check("bert", Size(hidden=4 * head_dim), ids, mask)


@pytest.mark.parametrize("batch", [1, 2])
def test_vit_is_one_kernel(batch: int) -> None:
    pixels = torch.randn(batch, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    check("vit", Size(length=64), pixels)
