"""Shapes that are said by rules: those of the decomposition, or none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from torch_spyre import _inductor
from torch_spyre._inductor.fx import decompositions, shape_memo

aten = torch.ops.aten


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    _inductor.register()


def make(*shape: int, dtype: torch.dtype = torch.float16, device: str = "spyre") -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


def linears() -> list[tuple[Any, ...]]:
    w, b = make(40, 32), make(40)
    return [
        (make(8, 32), w),
        (make(8, 32), w, b),
        (make(2, 8, 32), w, b),
        (make(2, 3, 8, 32), w),
        (make(1, 1, 32), w, b),
        (make(8, 2, 32).transpose(0, 1), w, b),
        (make(2, 32, 8).transpose(1, 2), w, b),
        (make(32).expand(2, 8, 32), w, b),
        (make(2, 9, 32)[:, :1], w, b),
        (make(2, 8, 32), make(32, 40).t(), b),
        (make(2, 8, 32), w, make(80)[::2]),
        (make(2, 8, 32, dtype=torch.float32), w.float(), b.float()),
    ]


def attentions() -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    def heads(n: int, s: int, d: int) -> torch.Tensor:
        return make(2, s, n * d).view(2, s, n, d).transpose(1, 2)

    q, k, v = heads(4, 6, 16), heads(4, 10, 16), heads(4, 10, 24)
    flags = torch.bool
    return [
        ((q, k, v), {}),
        ((make(2, 4, 6, 16), make(2, 4, 10, 16), make(2, 4, 10, 24)), {}),
        ((q, k, v, make(2, 1, 6, 10, dtype=flags)), {}),
        ((q, k, v, make(6, 10)), {"scale": 0.3}),
        ((q, q, q), {"is_causal": True}),
        ((q, heads(2, 10, 16), heads(2, 10, 24)), {"enable_gqa": True}),
        ((make(2, 4, 1, 16), k, v, make(1, 1, 1, 10, dtype=flags)), {}),
        ((q.float(), k.float(), v.float()), {}),
        ((q, k, v, None, 0.1), {}),
    ]


def described(value: torch.Tensor) -> tuple[Any, ...]:
    return value.shape, value.stride(), value.dtype, value.device, value.storage_offset()


@pytest.fixture
def fakes() -> Any:
    with torch.no_grad(), FakeTensorMode(), enable_python_dispatcher():
        yield


def test_a_rule_says_what_a_linear_layer_gives(fakes: None) -> None:
    for args in linears():
        assert shape_memo.linear(*args) is not None
        expected = described(aten.linear.default.decompose(*args))
        assert described(F.linear(*args)) == expected, described(args[0])


def test_a_rule_says_what_an_attention_gives(fakes: None) -> None:
    for args, kwargs in attentions():
        assert shape_memo.attention(*args, **kwargs) is not None
        expected = described(decompositions.attention(*args, **kwargs))
        found = F.scaled_dot_product_attention(*args, **kwargs)
        assert described(found) == expected, (described(args[0]), kwargs)


def test_what_no_rule_knows_is_run(fakes: None) -> None:
    """With the messages of PyTorch."""
    q, k = make(2, 4, 6, 16), make(2, 4, 10, 16)
    assert shape_memo.linear(make(32), make(40, 32)) is None
    assert F.linear(make(32), make(40, 32)).shape == (40,)
    assert shape_memo.attention(q[0], k[0], k[0]) is None
    assert F.scaled_dot_product_attention(q[0], k[0], k[0]).shape == (4, 6, 16)
    for wrong in (
        lambda: F.linear(make(8, 31), make(40, 32)),
        lambda: F.linear(make(8, 32), make(40, 32), make(41)),
        lambda: F.scaled_dot_product_attention(q, make(2, 4, 10, 15), k),
        lambda: F.scaled_dot_product_attention(q, k, make(2, 4, 11, 16)),
        lambda: F.scaled_dot_product_attention(q, k, k, make(6, 9)),
    ):
        with pytest.raises((RuntimeError, ValueError)):
            wrong()


def test_who_replaces_the_decomposition_is_asked(fakes: None) -> None:
    op = aten.scaled_dot_product_attention.default
    before = decompositions._DECOMPOSITIONS[op]
    q = make(2, 4, 6, 16)
    assert F.scaled_dot_product_attention(q, q, q).shape == q.shape
    try:
        decompositions._DECOMPOSITIONS[op] = lambda q, k, v, *args, **kwargs: q[..., :1].clone()
        assert F.scaled_dot_product_attention(q, q, q).shape == (2, 4, 6, 1)
    finally:
        decompositions._DECOMPOSITIONS[op] = before
