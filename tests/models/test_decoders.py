"""Stock decoders of transformers: generate() on the card against the CPU in float32."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._dynamo.utils import counters

pytest.importorskip("transformers", reason="pip install 'torch-spyre[models]'")

from docs.generate import stock_models as stock
from docs.generate.stock_models import Generated, Size
from torch_spyre._inductor.inspect import debug_dir

NEW_TOKENS = 9


@pytest.fixture(autouse=True)
def fresh_counters() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def prompt(batch: int, length: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    """Random tokens; every second text is shorter and padded on the left."""
    ids = torch.randint(2, 512, (batch, length), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1::2, :4] = 0
    return ids, mask


def check_agreement(
    model: torch.nn.Module, expected: Generated, actual: Generated, batch: int, layers: int
) -> None:
    """Logits within the bound; the same token wherever the bound leaves no other."""
    if not torch.equal(actual.tokens, expected.tokens):  # go on as the CPU did
        ids, mask = prompt(batch)
        actual = stock.generate(model, ids, mask, NEW_TOKENS, forced=expected.tokens)
    allowed = stock.allowed_error(layers)
    found = stock.compare(expected.logits, actual.logits, allowed)
    assert found.error < allowed
    assert found.clear_and_equal == found.clear
    assert found.clear > 0.6 * found.choices, (
        "random weights that leave the choice open test little"
    )


def check_graphs(record: debug_dir.Record, layers: int) -> None:
    """Prefill and decode are one kernel each, and the cache is written where it is."""
    assert counters["stats"]["unique_graphs"] == 2 and not counters["graph_break"]
    prefill, decode = record.plans
    assert not prefill.fallbacks and not decode.fallbacks
    assert len(prefill.kernels) == len(decode.kernels) == 1
    (kernel,) = decode.kernels
    caches = {b for b in kernel.arguments if len(b.size) == 4 and b.written}
    assert len(caches) == 2 * layers
    writers = [op for op in kernel.operations if op.output.buffer in caches]
    assert [op.kind for op in writers] == ["scatter"] * (2 * layers)


@pytest.mark.parametrize("name", stock.DECODERS)
def test_generate_is_two_graphs_without_host_steps_and_agrees_with_the_cpu(name: str) -> None:
    ids, mask = prompt(2)
    model = stock.make(name)
    expected = stock.generate(model, ids, mask, NEW_TOKENS)
    on_card = stock.compiled(stock.on_card(model))
    with debug_dir.listen() as record:
        actual = stock.generate(on_card, ids, mask, NEW_TOKENS)
    check_graphs(record, stock.SMALL.layers)
    check_agreement(on_card, expected, actual, 2, stock.SMALL.layers)
    stock.generate(on_card, ids, mask, NEW_TOKENS)
    assert counters["stats"]["unique_graphs"] == 2, "a second call compiles nothing"


@pytest.mark.parametrize("head_dim", [32, 80, 128])
def test_heads_of_other_sizes_than_a_stick(head_dim: int) -> None:
    ids, mask = prompt(1)
    size = Size(layers=1, hidden=4 * head_dim, head_dim=head_dim)
    model = stock.make("llama", size)
    expected = stock.generate(model, ids, mask, NEW_TOKENS)
    on_card = stock.compiled(stock.on_card(model))
    with debug_dir.listen() as record:
        actual = stock.generate(on_card, ids, mask, NEW_TOKENS)
    check_graphs(record, size.layers)
    check_agreement(on_card, expected, actual, 1, size.layers)


def test_heads_are_not_repeated_for_groups_of_queries() -> None:
    ids, mask = prompt(1)
    size = Size(layers=1, heads=8, kv_heads=2, hidden=512)
    on_card = stock.compiled(stock.on_card(stock.make("llama", size)))
    with debug_dir.listen() as record:
        stock.generate(on_card, ids, mask, 3)
    (kernel,) = record.plans[1].kernels
    cached = 2 * 64 * (12 + 3 - 1)  # elements of keys, or of values
    moved = [r.elements for r in kernel.restickifies if "once" not in r.reason]
    assert moved and max(moved) <= cached


def test_compilation_by_generate_itself_has_one_decode_graph() -> None:
    from transformers import CompileConfig

    own = CompileConfig(fullgraph=True, mode="default")
    own._compile_all_devices = True  # it knows a list of devices, which spyre is not on
    ids, mask = prompt(1)
    model = stock.make("llama")
    expected = stock.generate(model, ids, mask, NEW_TOKENS, disable_compile=True)
    on_card = stock.on_card(model)
    with debug_dir.listen() as record:
        actual = stock.generate(on_card, ids, mask, NEW_TOKENS, compile_config=own)
    (decode,) = record.plans
    assert not decode.fallbacks and len(decode.kernels) == 1
    check_agreement(on_card, expected, actual, 1, stock.SMALL.layers)
