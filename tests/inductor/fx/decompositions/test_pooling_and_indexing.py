"""Pooling, interpolation, indexing, counts, running sums and fused layers, on the card alone.

Expected values are those of CPU float32; the graphs have no host steps unless a test says which.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional as F

import torch_spyre
from tests.support.together import host_steps, together

HALF = torch.float16


def numbers(*shape: int, dtype: torch.dtype = HALF, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def test_pooling_with_padding_dilation_and_ceil_mode() -> None:
    image = torch.round(numbers(2, 3, 14, 15) * 4)  # with ties: the first counts
    image[0, 0, 3, 3] = float("nan")
    report = together(
        {
            "plain": lambda x: F.max_pool2d(x, 2, return_indices=True),
            "padded": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
            "ceil": lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True, return_indices=True),
            "dilated": lambda x: F.max_pool2d(x, 2, 1, dilation=2, return_indices=True),
            "line": lambda x: F.max_pool1d(x[0], 3, 2),
            "mean": lambda x: F.avg_pool2d(x, 3, 2, 1),
            "mean inside": lambda x: F.avg_pool2d(
                x, 3, 2, 1, ceil_mode=True, count_include_pad=False
            ),
            "mean of all": lambda x: F.avg_pool2d(x[:, :, :5, :6], 40, ceil_mode=True),
            "mean of a number": lambda x: F.avg_pool2d(x, (2, 3), divisor_override=4),
        },
        image,
    )
    assert not host_steps(report)


def test_a_row_of_infinities_has_its_first_place_inside_as_the_largest() -> None:
    lowest = torch.full((1, 1, 4, 4), float("-inf"), dtype=HALF)
    together({"pool": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True)}, lowest)


def test_interpolation_and_reversal() -> None:
    report = together(
        {
            "twice": lambda x: F.interpolate(x, scale_factor=2),
            "size": lambda x: F.interpolate(x, size=(21, 16)),
            "linear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
            "corners": lambda x: F.interpolate(
                x, size=(9, 20), mode="bilinear", align_corners=True
            ),
            "flip": lambda x: x.flip(0, 3),
        },
        numbers(2, 3, 7, 8),
    )
    assert not host_steps(report)


def test_indices_of_several_dimensions() -> None:
    report = together(
        {
            "elements": lambda x, m, k: m[k, k],
            "rows": lambda x, m, k: x[k, k * 2],
            "from the end": lambda x, m, k: x[-k, k],
            "in the middle": lambda x, m, k: x[:, k, k],
            "a grid": lambda x, m, k: x[k[:, None], k],
            "stored": lambda x, m, k: x.index_put((k, k * 2), torch.ones_like(x[0, :3])),
            "gathered": lambda x, m, k: m.gather(1, (k * 5).expand(9, 3)),
            "one of a row": lambda x, m, k: m.gather(1, k.repeat(3).unsqueeze(1)),
        },
        numbers(4, 8, 96),
        numbers(9, 70),
        torch.tensor([3, 1, 2]),
    )
    assert not host_steps(report)


def test_an_index_out_of_bounds_is_an_error_also_when_another_row_would_fit() -> None:
    table, row = numbers(4, 8, 64).to("spyre"), torch.tensor([1]).to("spyre")
    read = torch.compile(lambda t, i, j: t[i, j], dynamic=False)
    with pytest.raises(RuntimeError, match="out of bounds"):
        read(table, row, torch.tensor([9]).to("spyre")).cpu()


def test_counts_running_sums_and_losses() -> None:
    report = together(
        {
            "count": lambda x, b, t: (b.sum(), b.sum(1), torch.count_nonzero(x, 0)),
            "running": lambda x, b, t: (x.cumsum(1), x.cumsum(0), b.cumsum(1)),
            "products": lambda x, b, t: torch.tanh(x).add(1).cumprod(1),
            "logarithms": lambda x, b, t: x.logcumsumexp(0),
            "loss": lambda x, b, t: F.cross_entropy(x, t),
            "ignored": lambda x, b, t: F.cross_entropy(x, t, ignore_index=2, reduction="sum"),
        },
        numbers(9, 70),
        numbers(9, 70) > 0,
        torch.arange(9) % 5,
    )
    assert not host_steps(report)


def test_an_infinity_does_not_spoil_sums_before_it() -> None:
    x = torch.tensor([[1.0, 2.0, float("inf"), 3.0], [1.0, float("nan"), 1.0, 1.0]])
    together({"cumsum": lambda x: x.cumsum(1)}, x)


@pytest.mark.parametrize("norm_first", [False, True])
def test_an_encoder_layer_in_eval_mode_is_operations_of_the_card(norm_first: bool) -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(
        64, 4, 128, batch_first=True, norm_first=norm_first, activation="gelu"
    ).eval()
    on_card = copy.deepcopy(layer).to("spyre")
    x = torch.randn(3, 20, 64)
    padding = torch.zeros(3, 20, dtype=torch.bool)
    padding[1, 15:] = True
    causal = torch.ones(20, 20).triu(1).bool()
    with torch.no_grad():
        expected = [layer(x), layer(x, src_key_padding_mask=padding), layer(x, src_mask=causal)]
        report = torch_spyre.explain(
            lambda x, p, c: [
                on_card(x),
                on_card(x, src_key_padding_mask=p),
                on_card(x, src_mask=c),
            ],
            *(t.to("spyre") for t in (x, padding, causal)),
        )
    assert not report.fallbacks and not report.graph_breaks
    for got, want in zip(report.result, expected, strict=True):
        assert torch.allclose(got.cpu(), want, atol=1e-5)


def test_multi_head_attention_gives_its_weights() -> None:
    torch.manual_seed(0)
    attention = torch.nn.MultiheadAttention(64, 4, batch_first=True).eval()
    on_card = copy.deepcopy(attention).to("spyre")
    x = torch.randn(3, 20, 64)
    with torch.no_grad():
        report = torch_spyre.explain(lambda x: on_card(x, x, x), x.to("spyre"))
        expected = attention(x, x, x)
    assert not report.fallbacks
    for got, want in zip(report.result, expected, strict=True):
        assert torch.allclose(got.cpu(), want, atol=1e-5)
