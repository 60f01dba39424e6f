"""Eager operations on the card: the bits of compiled graphs, and what is left to the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

Operations = Callable[..., dict[str, torch.Tensor]]


@pytest.fixture(autouse=True)
def on_card() -> Iterator[None]:
    torch.spyre.set_eager("card")
    torch.spyre.reset_eager_counts()
    torch.spyre.reset_fallback_counts()
    yield
    torch.spyre.set_eager("host")


def bits(tensor: torch.Tensor) -> torch.Tensor:
    host = tensor.detach().cpu().contiguous()
    views = {torch.float16: torch.int16, torch.float32: torch.int32}
    return host.view(views[host.dtype]) if host.dtype in views else host


def pointwise(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    positive = x.abs()
    return {
        "abs": positive,
        "add": x + y,
        "add alpha": torch.add(x, y, alpha=2.5),
        "add number": x + 2.75,
        "add one": x + 1,
        "sub": x - y,
        "sub from a number": 3 - x,
        "mul": x * y,
        "mul number": x * 0.3,
        "div": x / y,
        "div number": x / 3.0,
        "div of a number": torch.div(2.5, x),
        "exp": torch.exp(x),
        "floor": torch.floor(x),
        "log": torch.log(positive),
        "reciprocal": torch.reciprocal(y),
        "neg": -x,
        "relu": torch.relu(x),
        "rsqrt": torch.rsqrt(positive),
        "sigmoid": torch.sigmoid(x),
        "silu": torch.nn.functional.silu(x),
        "mish": torch.nn.functional.mish(x),
        "sqrt": torch.sqrt(positive),
        "tanh": torch.tanh(x),
        "maximum": torch.maximum(x, y),
        "minimum": torch.minimum(x, y),
        "square": x**2,
        "pow": torch.pow(positive, y),
        "clamp": torch.clamp(x, -0.5, 0.5),
        "clamp low": torch.clamp(x, min=0.25),
    }


def logical(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    larger = x > y
    return {
        "gt": larger,
        "eq": x == y,
        "ne": x != 0.5,
        "lt": x < 0.25,
        "le": x <= y,
        "ge": x >= y,
        "logical_not": torch.logical_not(larger),
        "bitwise_not": ~larger,
        "where": torch.where(larger, x, y),
    }


def reductions(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    return {
        "sum": x.sum(),
        "sum rows": x.sum(1),
        "sum columns": x.sum(0, keepdim=True),
        "mean": x.mean(),
        "mean rows": x.mean(-1, keepdim=True),
        "softmax": torch.softmax(x, -1),
        "softmax columns": torch.softmax(x, 0),
        "norm": torch.linalg.vector_norm(x, dim=1),
        "cat": torch.cat([x, y], 0),
        "stack": torch.stack([x, y], 1),
        "pad": torch.nn.functional.pad(x, (1, 2, 3, 0), value=1.5),
    }


def products(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    return {
        "mm": torch.mm(x, y.t()),
        "addmm": torch.addmm(x[0], x.t(), y, beta=0.5, alpha=2),
        "bmm": torch.bmm(x.unsqueeze(0), y.t().unsqueeze(0)),
    }


def contiguous(dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.randn(48, 70).to(dtype).to("spyre") for _ in range(2)]


def transposed(dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.randn(70, 48).to(dtype).to("spyre").t() for _ in range(2)]


def sliced(dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.randn(50, 140).to(dtype).to("spyre")[2:, ::2] for _ in range(2)]


def broadcast(dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.randn(48, 70).to(dtype).to("spyre"), torch.randn(70).to(dtype).to("spyre")]


def check(operations: Operations, x: torch.Tensor, y: torch.Tensor) -> None:
    """On the card, all of them; with the bits of the compiled graph; near the CPU."""
    found = operations(x, y)
    assert torch.spyre.fallback_counts() == {}
    assert sum(torch.spyre.eager_counts().values()) >= len(found)
    compiled = torch.compile(operations, dynamic=False)(x, y)
    different = [n for n in found if not torch.equal(bits(found[n]), bits(compiled[n]))]
    assert not different
    exact = operations(x.cpu().float(), y.cpu().float())
    for name, tensor in found.items():
        assert tensor.shape == exact[name].shape, name
        assert tensor.stride() == compiled[name].stride(), name
        if tensor.dtype == torch.bool:
            assert torch.equal(tensor.cpu(), exact[name]), name
        else:
            rtol = 4e-3 if tensor.dtype == torch.float16 else 2e-5
            torch.testing.assert_close(
                tensor.cpu().float(),
                exact[name],
                rtol=rtol,
                atol=4 * rtol,
                equal_nan=True,
                msg=name,
            )


# ---- The same bits as compiled graphs -----------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["float16", "float32"])
@pytest.mark.parametrize("operations", [pointwise, logical, reductions, products])
def test_operations_run_on_the_card_with_the_bits_of_compiled_graphs(
    operations: Operations, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    check(operations, *contiguous(dtype))


@pytest.mark.parametrize("inputs", [transposed, sliced, broadcast])
def test_views_and_broadcasts_have_the_bits_of_compiled_graphs(
    inputs: Callable[[torch.dtype], list[torch.Tensor]],
) -> None:
    torch.manual_seed(1)

    def few(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        larger = x > y
        return {
            "add": x + y,
            "div number": x / 3.0,
            "exp": torch.exp(x),
            "gt": larger,
            "where": torch.where(larger, x, y),
            "sum": x.sum(1),
            "softmax": torch.softmax(x, -1),
        }

    check(few, *inputs(torch.float16))
