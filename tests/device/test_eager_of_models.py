"""Eager operations that models are made of: on the card, with the values of the CPU."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.conftest import Script

Call = Callable[..., Any]


@pytest.fixture(autouse=True)
def on_card() -> Iterator[None]:
    torch.spyre.set_eager("card")
    torch.spyre.reset_fallback_counts()
    yield
    torch.spyre.set_eager(os.environ["SPYRE_EAGER"])


def half(*size: int) -> torch.Tensor:
    return torch.randn(*size).half()


def contiguous(t: torch.Tensor) -> torch.Tensor:
    return t.to("spyre")


def sliced(t: torch.Tensor) -> torch.Tensor:
    """The same values as a view that begins in the middle of a larger tensor."""
    whole = torch.zeros([n + 3 for n in t.shape], dtype=t.dtype)
    inside = tuple(slice(2, 2 + n) for n in t.shape)
    whole[inside] = t
    return whole.to("spyre")[inside]


def transposed(t: torch.Tensor) -> torch.Tensor:
    return t.mT.contiguous().to("spyre").mT if t.dim() > 1 else t.to("spyre")


FORMS = [contiguous, sliced, transposed]
IDS = torch.tensor([[3, 0, 17, 9, 9], [1, 1, 2, 30, 4]])
ROWS = torch.tensor([4, 0, 7])
MASK = torch.tensor([True, False, True, True, False, True, False])

# name: (function, operands). Results are compared with those of the CPU for the same operands.
CALLS: dict[str, tuple[Call, list[torch.Tensor]]] = {
    "embedding": (lambda w, i: F.embedding(i, w), [half(31, 70), IDS]),
    "embedding of int32": (lambda w, i: F.embedding(i, w), [half(31, 70), IDS.int()]),
    "embedding of a slice": (lambda w, i: F.embedding(i[:, -1:], w), [half(31, 70), IDS]),
    "index_select": (lambda x, i: x.index_select(0, i), [half(9, 66), ROWS]),
    "index_select of columns": (lambda x, i: x.index_select(-1, i), [half(9, 66), ROWS]),
    "index": (lambda x, i: x[i], [half(9, 4, 66), ROWS]),
    "index in the middle": (lambda x, i: x[:, i], [half(2, 9, 66), ROWS]),
    "index of two": (lambda x, i: x[i, i], [half(9, 12, 66), ROWS]),
    "gather": (lambda x, i: x.gather(1, i), [half(2, 40), IDS]),
    "gather of integers": (lambda x, i: x.gather(1, i), [torch.arange(80).view(2, 40), IDS]),
    "index_copy_": (lambda x, i, v: x.index_copy_(0, i, v), [half(9, 66), ROWS, half(3, 66)]),
    "index_put_": (lambda x, i, v: x.index_put_((i,), v), [half(9, 66), ROWS, half(3, 66)]),
    "gelu": (lambda x: F.gelu(x), [half(5, 70)]),
    "gelu of tanh": (lambda x: F.gelu(x, approximate="tanh"), [half(5, 70)]),
    "layer_norm": (
        lambda x, w, b: F.layer_norm(x, (70,), w, b),
        [half(5, 70), half(70), half(70)],
    ),
    "layer_norm without weights": (lambda x: F.layer_norm(x, (70,)), [half(5, 70)]),
    "rms_norm": (lambda x, w: F.rms_norm(x, (70,), w, 1e-6), [half(5, 70), half(70)]),
    "softplus": (lambda x: F.softplus(x), [half(5, 70)]),
    "amax": (lambda x: x.amax(-1), [half(5, 70)]),
    "amax of two": (lambda x: x.amax((0, 1), keepdim=True), [half(3, 5, 70)]),
    "max of rows": (lambda x: tuple(x.max(-1)), [half(5, 70)]),
    "min of columns": (lambda x: tuple(x.min(0)), [half(5, 70)]),
    "argmax": (lambda x: x.argmax(-1), [half(5, 70)]),
    "argmax of all": (lambda x: x.argmax(), [half(5, 70)]),
    "sign": (lambda x: x.sign(), [half(5, 70)]),
    "ceil": (lambda x: x.ceil(), [half(5, 70)]),
    "isin": (lambda x, y: torch.isin(x, y), [IDS, ROWS]),
    "cumsum": (lambda x: (x * 0.125).cumsum(0), [half(5, 70)]),
    "tril": (lambda x: x.tril(), [half(70, 70)]),
    "triu": (lambda x: x.triu(3), [half(2, 40, 70)]),
    "tril of truth values": (lambda x: (x > 0).tril(-1), [half(40, 40)]),
    "where": (lambda x: torch.where(x > 0, x, -1.5), [half(5, 70)]),
    "masked_fill": (lambda x, m: x.masked_fill(m, float("-inf")), [half(4, 7), MASK]),
    "masked_fill_": (lambda x, m: x.masked_fill_(m, -2.0), [half(4, 7), MASK]),
    "logical_and": (lambda x, m: (x > 0).logical_and(m), [half(4, 7), MASK]),
    "bitwise or": (lambda x, m: (x > 0) | m, [half(4, 7), MASK]),
    "bitwise xor": (lambda x, m: (x > 0) ^ m, [half(4, 7), MASK]),
    "any": (lambda x: (x > 2).any(-1), [half(5, 70)]),
    "all": (lambda x: (x > -9).all(), [half(5, 70)]),
    "isneginf": (lambda x: torch.isneginf(x.masked_fill(x > 0, float("-inf"))), [half(5, 70)]),
    "comparison of integers": (lambda i: i[:, None, :] <= i[:, :, None], [IDS]),
    "comparison with a number": (lambda i: i >= 9, [IDS]),
    "equal integers": (lambda i: i == 9, [IDS]),
    "cat of integers": (lambda i: torch.cat([i, i[:, :2]], -1), [IDS]),
    "cat with a cache of no rows": (
        lambda x: torch.cat([x[:, :0], x, x.new_zeros(0), x], 1),
        [half(2, 5, 66)],
    ),
    "product of truth values": (lambda x, m: (x > 0) * m, [half(4, 7), MASK]),
    "sums of integers": (lambda i: i + 7 - i * 3, [IDS]),
    "positions": (lambda i: torch.arange(5, device=i.device) + i, [IDS]),
    "maximum of integers": (lambda i: torch.maximum(i, i + i[:, :1]), [IDS]),
    "in place on a part": (lambda x: x[:, 1::2].mul_(3.0), [half(5, 70)]),
    "topk": (lambda x: x.topk(4).values, [half(5, 70)]),
    "to float32": (lambda x: x.float(), [half(5, 70)]),
    "to bfloat16": (lambda x: x.bfloat16(), [half(5, 70)]),
    "to float16": (lambda x: x.half(), [torch.randn(5, 70)]),
    "truth values to float16": (lambda m: m.half(), [MASK]),
    "truth values to integers": (lambda m: m.long(), [MASK]),
    "to truth values": (lambda x: x.bool(), [torch.tensor([[0.0, -1.5, 2.0]]).half()]),
    "integers to float32": (lambda i: i.float(), [IDS]),
    "integers to float16": (lambda i: i.half(), [IDS]),
    "int64 to int32": (lambda i: i.int(), [IDS]),
    "int32 to int64": (lambda i: i.long(), [IDS.int()]),
    "copy_ to another type": (lambda x, y: x.copy_(y), [torch.zeros(5, 70), half(5, 70)]),
}


def as_tuple(value: Any) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def check(found: Any, expected: Any) -> None:
    for f, e in zip(as_tuple(found), as_tuple(expected), strict=True):
        assert f.device.type == "spyre" and f.dtype == e.dtype and f.shape == e.shape
        if e.dtype.is_floating_point:
            rtol = 2**-7 if e.dtype == torch.bfloat16 else 4e-3
            torch.testing.assert_close(f.cpu().float(), e.float(), rtol=rtol, atol=4e-3)
        else:
            assert torch.equal(f.cpu(), e)


@pytest.mark.parametrize("name", CALLS)
def test_an_operation_of_models_runs_on_the_card(name: str) -> None:
    """Without the host, for every form of the operands, in inference mode and outside of it."""
    function, operands = CALLS[name]
    for number, form in enumerate(FORMS):
        card = [form(t) for t in operands]
        torch.spyre.reset_fallback_counts()
        with torch.inference_mode(number == 1):
            found = function(*card)
        assert torch.spyre.fallback_counts() == {}, form.__name__
        check(found, function(*[t.clone() for t in operands]))


# ---- Attention ----------------------------------------------------------------------------------

ATTENTION: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "truth values": {"attn_mask": torch.ones(7, 7, dtype=torch.bool).tril()},
    "numbers": {"attn_mask": torch.randn(2, 1, 7, 7).half()},
    "scaled": {"scale": 0.1},
}


@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_is_one_program(name: str, groups: bool) -> None:
    torch.manual_seed(0)
    q, kv = half(2, 4, 7, 64), (half(2, 2 if groups else 4, 7, 64) for _ in range(2))
    k, v = kv
    options = ATTENTION[name]
    card = {n: o.to("spyre") if isinstance(o, torch.Tensor) else o for n, o in options.items()}
    torch.spyre.reset_eager_counts()
    found = F.scaled_dot_product_attention(
        q.to("spyre"), k.to("spyre"), v.to("spyre"), enable_gqa=groups, **card
    )
    assert torch.spyre.fallback_counts() == {}
    others = {"aten::where.self": 1} if name == "truth values" else {}  # PyTorch's own conversion
    assert torch.spyre.eager_counts() == {"aten::scaled_dot_product_attention": 1, **others}
    exact = {n: o.float() if isinstance(o, torch.Tensor) and name == "numbers" else o
             for n, o in options.items()}  # fmt: skip
    expected = F.scaled_dot_product_attention(
        q.float(), k.float(), v.float(), enable_gqa=groups, **exact
    )
    torch.testing.assert_close(found.cpu().float(), expected, rtol=4e-3, atol=4e-3)


def test_attention_has_a_gradient() -> None:
    torch.manual_seed(0)
    host = [torch.randn(1, 2, 5, 64, requires_grad=True) for _ in range(3)]
    card = [t.detach().to("spyre").requires_grad_() for t in host]
    F.scaled_dot_product_attention(*host, is_causal=True).square().sum().backward()
    F.scaled_dot_product_attention(*card, is_causal=True).square().sum().backward()
    for c, h in zip(card, host, strict=True):
        assert c.grad is not None and h.grad is not None
        torch.testing.assert_close(c.grad.cpu(), h.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_attention_of_fakes_has_a_shape(mode: Callable[[], Any]) -> None:
    """Tracers ask for the choice of implementations with tensors that have no memory."""
    from torch._subclasses import FakeTensorMode

    q = half(1, 2, 5, 64).to("spyre")
    with mode(), FakeTensorMode() as fakes:
        fake = fakes.from_tensor(q)
        assert F.scaled_dot_product_attention(fake, fake, fake, is_causal=True).shape == q.shape


def test_a_query_that_may_look_at_nothing_is_zero_as_on_the_cpu() -> None:
    q, k, v = (half(1, 2, 4, 64) for _ in range(3))
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[2] = False
    found = F.scaled_dot_product_attention(
        *(t.to("spyre") for t in (q, k, v)), attn_mask=mask.to("spyre")
    ).cpu()
    expected = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), attn_mask=mask)
    torch.testing.assert_close(found.float(), expected, rtol=4e-3, atol=4e-3)


# ---- Tensors made of numbers --------------------------------------------------------------------

MAKERS: dict[str, Callable[[str], torch.Tensor]] = {
    "zeros": lambda d: torch.zeros(3, 70, dtype=torch.float16, device=d),
    "zeros of integers": lambda d: torch.zeros(3, 70, dtype=torch.int64, device=d),
    "ones": lambda d: torch.ones(5, dtype=torch.bool, device=d),
    "full": lambda d: torch.full((2, 3, 66), -1.5, device=d),
    "full of nothing": lambda d: torch.full((0, 3), 2.0, device=d),
    "full beyond int32": lambda d: torch.full((4,), 2**40, device=d),
    "full of complex": lambda d: torch.full((4,), 1 + 2j, device=d),
    "arange": lambda d: torch.arange(130, device=d),
    "arange of steps": lambda d: torch.arange(3, -2, -0.5, device=d),
    "arange of float16": lambda d: torch.arange(5, dtype=torch.float16, device=d),
    "arange of nothing": lambda d: torch.arange(0, device=d),
    "new_ones": lambda d: torch.zeros(2, device=d).new_ones(3, 4),
    "like": lambda d: torch.zeros_like(torch.ones(4, 70, device=d).t()),
    "zero_ of a slice": lambda d: torch.ones(4, 70, device=d)[1:3, ::2].zero_(),
    "fill_ by a tensor": lambda d: torch.ones(4, 70, device=d).fill_(torch.tensor(2.5, device=d)),
    "fill_ by a tensor of the host": lambda d: torch.ones(4, device=d).fill_(torch.tensor(2.5)),
    "fill_ rounds as the host": lambda d: torch.empty(4, dtype=torch.float16, device=d).fill_(0.1),
}


@pytest.mark.parametrize("name", MAKERS)
def test_tensors_of_numbers_are_made_without_a_fallback(name: str) -> None:
    expected = MAKERS[name]("cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error", torch.spyre.FallbackWarning)
        found = MAKERS[name]("spyre")
    assert torch.spyre.fallback_counts() == {}
    assert found.dtype == expected.dtype and found.stride() == expected.stride()
    if expected.dtype == torch.float16:  # the card has 9 of its 10 bits
        expected = expected.to("spyre").cpu()
    assert torch.equal(found.cpu(), expected)


def test_fill_refuses_what_the_cpu_refuses() -> None:
    with pytest.raises(RuntimeError, match="0-dimension"):
        torch.zeros(3, device="spyre").fill_(torch.ones(2, device="spyre"))
    with pytest.raises(RuntimeError, match="more than one element"):
        torch.zeros(1, device="spyre").expand(4).fill_(1)
    with pytest.raises(RuntimeError, match="overflow"):
        torch.zeros(3, dtype=torch.int8, device="spyre").fill_(1000)


# ---- Values that a program must not get wrong ---------------------------------------------------


def test_integers_beyond_32_bits_stay_exact() -> None:
    big = torch.tensor([2**40, 1, -(2**35)])
    card = big.to("spyre")
    assert torch.equal((card == 2**40).cpu(), big == 2**40)
    assert torch.equal((torch.tensor([1, 2, 3]).to("spyre") < 2**40).cpu(), torch.ones(3) > 0)
    assert torch.equal(card.float().cpu(), big.float())
    assert torch.equal(torch.cat([card, card]).cpu(), torch.cat([big, big]))


def test_integers_that_leave_32_bits_are_computed_by_the_host() -> None:
    x = torch.tensor([2**31 - 1, 5])
    y = x.to("spyre")
    assert torch.equal((y + 1).cpu(), x + 1)
    assert torch.equal((y * y).cpu(), x * x)
    assert torch.equal((y + 2**31).cpu(), x + 2**31)
    x = torch.tensor([3, 5])
    y = x.to("spyre")
    for _ in range(5):  # what the card has written is measured again
        x, y = x * x, y * y
        assert torch.equal(y.cpu(), x)


def test_a_new_number_beside_integers_is_no_new_program() -> None:
    from torch_spyre.ops import eager

    x = torch.arange(37).to("spyre")
    x + 3
    before = eager.counters["compiled"] + eager.counters["loaded"]
    for number in (5, 7, 1000, 4097):
        assert torch.equal((x + number).cpu(), torch.arange(37) + number)
    assert eager.counters["compiled"] + eager.counters["loaded"] == before


def test_joining_refuses_what_the_cpu_refuses() -> None:
    x = half(2, 66).to("spyre")
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        torch.cat([x.new_zeros(0, 66), x], 1)


def test_casts_to_integers_have_the_values_of_the_cpu() -> None:
    x = torch.tensor([0.0, 1.5, -1.5, 2.9999, -0.2, 70000.0, 3e9, -3e9, 1e12])
    assert torch.equal(x.to("spyre").long().cpu(), x.long())
    y = torch.tensor([0.0, 1.5, -1.75, 200.0, -100.0]).half()
    assert torch.equal(y.to("spyre").long().cpu(), y.long())
    assert torch.equal(y.to("spyre").int().cpu(), y.int())


def test_rows_that_do_not_exist_are_an_error() -> None:
    x = half(9, 66).to("spyre")
    with pytest.raises((IndexError, RuntimeError), match=r"out of (range|bounds)|index"):
        x[torch.tensor([3, 9]).to("spyre")].cpu()


def test_negative_indices_count_from_the_end() -> None:
    x = half(9, 66)
    rows = torch.tensor([-1, 3, -9])
    assert torch.equal(x.to("spyre")[rows.to("spyre")].cpu(), x.to("spyre").cpu()[rows])


def test_a_mask_as_an_index_is_computed_by_the_host() -> None:
    x = half(7, 66)
    found = x.to("spyre")[MASK.to("spyre")]
    assert torch.equal(found.cpu(), x.to("spyre").cpu()[MASK])
    assert torch.spyre.fallback_counts()


# ---- A layer ------------------------------------------------------------------------------------

DECODE = """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300, hidden_size=128, intermediate_size=192, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    )
    model = LlamaForCausalLM(config).eval()
    prompt = torch.tensor([[5, 9, 250, 31, 7]])
    options = dict(max_new_tokens=6, do_sample=False, pad_token_id=0)
    with torch.no_grad():
        expected = model(prompt).logits
    card = model.half().to("spyre")
    with torch.no_grad():
        out = card(prompt.to("spyre"), use_cache=True)
        torch.spyre.reset_fallback_counts()
        step = card(torch.tensor([[3]]).to("spyre"), past_key_values=out.past_key_values)
    print(torch.spyre.fallback_counts())
    print(float((out.logits.cpu().float() - expected).abs().max() / expected.abs().max()))
"""


def test_a_layer_of_llama_decodes_without_the_host(script: Script) -> None:
    counts, error = script(DECODE, SPYRE_EAGER="card").splitlines()[-2:]
    assert counts == "{}"
    assert float(error) < 0.02
