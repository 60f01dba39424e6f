"""IBM's own Granite, from the package ibm-fms: its forward pass on the card."""

from __future__ import annotations

import copy

import pytest
import torch

import torch_spyre
from torch_spyre.tools import stock_models as stock

granite = pytest.importorskip("fms.models.granite", reason="pip install --no-deps ibm-fms")


@torch.no_grad()
def test_the_forward_pass_of_fms_granite_is_one_kernel() -> None:
    torch.manual_seed(0)
    config = granite.GraniteConfig(
        src_vocab_size=512, emb_dim=256, nheads=4, kvheads=2, nlayers=2, head_dim=64,
        hidden_grow_factor=2.0, max_expected_seq_len=256, p_dropout=0.0,
    )  # fmt: skip
    model = granite.Granite(config)
    model.reset_parameters()
    model.eval()
    ids = torch.randint(2, 512, (2, 12), generator=torch.Generator().manual_seed(1))
    expected = model(ids)
    on_card = copy.deepcopy(model).half().to("spyre")
    on_card.base_model.post_init()  # its table of rotations is kept for each device
    told = torch_spyre.explain(on_card, ids.to("spyre"))
    assert len(told.graphs) == len(told.kernels) == 1
    assert not told.fallbacks and not told.graph_breaks
    found = stock.compare(expected, told.result.cpu().float(), stock.allowed_error(layers=2))
    assert found.error < stock.allowed_error(layers=2)
    assert found.clear_and_equal == found.clear
