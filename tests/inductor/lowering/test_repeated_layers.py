"""Layers that are equal are lowered and planned once, and the plan is that of the whole graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from torch import nn
from torch._inductor.virtualized import V
from torch.nn import functional as F

from tests.support.cases import values
from tests.support.upstream import needs
from torch_spyre._inductor import config, errors
from torch_spyre._inductor.inspect import debug_dir
from torch_spyre._inductor.lowering import fallback_rules, repeated_layers
from torch_spyre._inductor.planning import plan, planner
from torch_spyre._inductor.planning.repeat_layers import Repetition

pytestmark = needs("equal-layers")

SIZE, TOKENS = 128, 64


class Layer(nn.Module):
    """Two products, a norm, a sum: small, and with all kinds of intermediates."""

    def __init__(self, number: int = 0) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(SIZE, 2 * SIZE), nn.Linear(2 * SIZE, SIZE)
        self.norm = nn.LayerNorm(SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.silu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, layers: int, kind: Callable[[int], nn.Module] = Layer) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(kind(number) for number in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(x)
        for layer in self.layers:
            x = layer(x)
        return torch.exp(x * 0.125)


class Compiled(NamedTuple):
    result: Any
    kernels: list[plan.Kernel]

    @property
    def lowered(self) -> int:
        """Nodes that Inductor's scheduler got to see."""
        return sum(len(kernel.nodes) for kernel in self.kernels)

    @property
    def repetitions(self) -> list[Repetition]:
        return [k.repetition for k in self.kernels if k.repetition is not None]

    def texts(self) -> list[tuple[str, int, int, list[tuple[Any, ...]]]]:
        """All that a kernel is, but for the names of what it returns."""
        return [
            (k.text(), k.pool_bytes, len(k.restickifies),
             [(b.layout, b.size, b.written, b.name if b.name.startswith("arg") else "")
              for b in k.arguments])
            for k in self.kernels
        ]  # fmt: skip


def compiled(program: Any, *inputs: torch.Tensor, share: bool = True) -> Compiled:
    torch._dynamo.reset()
    on_card = [x.to("spyre") for x in inputs]
    with debug_dir.listen() as record, config.patch(share_layers=share), torch.no_grad():
        result = torch.compile(program)(*on_card)
    kernels = [kernel for found in record.plans for kernel in found.kernels]
    return Compiled(result, kernels)


def x(*shape: int, seed: int = 0) -> torch.Tensor:
    return values(shape or (TOKENS, SIZE), "any", torch.float16, seed)


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(equal, a, b))
    return torch.equal(a.cpu(), b.cpu())


def both(program: Any, *inputs: torch.Tensor) -> tuple[Compiled, Compiled]:
    """With replicated layers and without; the results have the same bits."""
    few = compiled(program, *inputs)
    whole = compiled(program, *inputs, share=False)
    assert equal(few.result, whole.result)
    assert not whole.repetitions
    return few, whole


# ---- Equal layers --------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [4, 7])
def test_equal_layers_are_lowered_once(layers: int) -> None:
    model = Model(layers).half().to("spyre")
    few, whole = both(model, x())
    assert [r.times for r in few.repetitions] == [layers - 3]
    assert few.texts() == whole.texts()
    of_a_layer = (whole.lowered - few.lowered) / (layers - 3)
    assert of_a_layer > 4 and few.lowered < 3 * of_a_layer + 8
    expected = Model(layers)(x().float())
    error = (few.result.cpu().float() - expected).norm() / expected.norm()
    assert error < 0.01


def test_three_layers_are_lowered_as_they_are() -> None:
    few, whole = both(Model(3).half().to("spyre"), x())
    assert few.lowered == whole.lowered


def test_weights_that_all_layers_share() -> None:
    class Shared(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(6):
                x = self.layers[0](x)
            return torch.exp(x * 0.125)

    both(Shared(1).half().to("spyre"), x())


class Cached(Layer):
    """Writes what it computes into a tensor of its own, at places that all layers share."""

    def __init__(self, number: int = 0) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(2 * TOKENS, SIZE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(TOKENS, device=x.device) + 3
        self.seen.index_copy_(0, places, x)
        return super().forward(x + self.seen[:TOKENS])


def test_each_layer_changes_its_own_inputs() -> None:
    models = [Model(6, Cached).half().to("spyre") for _ in range(2)]
    few = compiled(models[0], x())
    whole = compiled(models[1], x(), share=False)
    assert few.repetitions and few.texts() == whole.texts()
    assert equal(few.result, whole.result)
    seen = [[layer.seen for layer in model.layers] for model in models]
    assert equal(*seen)
    assert all(tensor.abs().sum() > 0 for tensor in seen[0])


class Counting(Cached):
    """As stock models keep the length of a cache: a number of each layer, changed in every call.
    Inductor moves the change after all layers."""

    def __init__(self, number: int = 0) -> None:
        super().__init__()
        self.register_buffer("length", torch.tensor([number]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.length
        self.length.add_(1)
        return super().forward(x)


def test_inputs_of_layers_change_when_all_layers_have_read_them() -> None:
    models = [Model(7, Counting).half().to("spyre") for _ in range(2)]
    for calls in range(1, 3):
        few = compiled(models[0], x(seed=calls))
        whole = compiled(models[1], x(seed=calls), share=False)
        assert equal(few.result, whole.result)
        for layer, other in zip(models[0].layers, models[1].layers, strict=True):
            assert equal([layer.seen, layer.length], [other.seen, other.length])
        assert [int(layer.length) for layer in models[0].layers] == [n + calls for n in range(7)]
    assert few.repetitions


def test_repeated_layers_hold_under_the_sanitizer() -> None:
    model = Model(6).half().to("spyre")
    with torch.spyre.sanitizer():
        few = compiled(model, x())
    assert few.repetitions
    assert equal(few.result, compiled(model, x(), share=False).result)


def test_a_model_that_comes_from_the_cache_is_the_same() -> None:
    model = Model(6).half().to("spyre")
    with torch.no_grad():
        torch._dynamo.reset()
        first = torch.compile(model)(x().to("spyre"))
        torch._dynamo.reset()
        second = torch.compile(model)(x().to("spyre"))
    assert equal(first, second)


# ---- Layers that are not equal -------------------------------------------------------------------


class OtherFunction(Layer):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return torch.tanh(y) if self.number == 4 else torch.sigmoid(y)


class OtherNumber(Layer):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.factor = 1 + number / 8

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.factor


class HostStep(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.cummax(x, -1).values)


@pytest.mark.parametrize(("kind", "times"), [(OtherFunction, 1), (OtherNumber, 0), (HostStep, 0)])
def test_layers_that_do_something_else_are_lowered(
    kind: Callable[[int], nn.Module], times: int
) -> None:
    few, whole = both(Model(7, kind).half().to("spyre"), x())
    assert sum(r.times for r in few.repetitions) == times
    assert few.texts() == whole.texts()


def test_a_layer_whose_weight_lies_differently_is_lowered() -> None:
    model = Model(7).half().to("spyre")
    up = model.layers[3].up
    plain = torch.spyre.SpyreTensorLayout(list(up.weight.shape), torch.float16)
    assert up.weight.device_tensor_layout() != plain
    up.weight.data = up.weight.detach().cpu().to("spyre", device_layout=plain)
    few, whole = both(model, x())
    assert not few.repetitions
    assert few.lowered == whole.lowered


class Results(Model):
    """Returns what each layer computed."""

    def forward(self, x: torch.Tensor) -> Any:
        found = [x]
        for layer in self.layers:
            found.append(layer(found[-1]))
        return found


class TwoBack(Model):
    """Each layer also reads the one before the last."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before, x = x, torch.relu(x)
        for layer in self.layers:
            before, x = x, layer(x) + before
        return x


class Summed(Model):
    """What all layers found is added up at the end."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = []
        for layer in self.layers:
            x = layer(x)
            found.append(x)
        return torch.stack(found).mean(0)


@pytest.mark.parametrize("kind", [Results, TwoBack, Summed])
def test_layers_that_others_read_are_lowered(kind: type[Model]) -> None:
    few, whole = both(kind(6).half().to("spyre"), x())
    assert few.lowered == whole.lowered
    assert few.texts() == whole.texts()


class Counted(Model):
    """All layers change one tensor, and count in integers that grow."""

    def __init__(self, layers: int) -> None:
        super().__init__(layers)
        self.register_buffer("total", torch.zeros(TOKENS, SIZE))

    def forward(self, x: torch.Tensor) -> Any:
        count = torch.ones(TOKENS, dtype=torch.int32, device=x.device)
        for layer in self.layers:
            x = layer(x)
            self.total.add_(x)
            count = count * 1000 + 7
        return x, count


def test_what_grows_from_layer_to_layer_is_computed_exactly() -> None:
    models = [Counted(6).half().to("spyre") for _ in range(2)]
    few = compiled(models[0], x())
    whole = compiled(models[1], x(), share=False)
    assert equal(few.result, whole.result)
    assert equal(models[0].total, models[1].total)


# ---- Plans that cannot be repeated ---------------------------------------------------------------


def test_a_graph_whose_plan_differs_is_lowered_as_a_whole() -> None:
    model = Model(6).half().to("spyre")
    whole = compiled(model, x(), share=False)
    refuse = mock.Mock(side_effect=repeated_layers.RestartLowering("for this test"))
    with mock.patch.object(planner, "with_left_out", refuse):
        few = compiled(model, x())
    assert refuse.call_count == 1
    assert not few.repetitions
    assert few.texts() == whole.texts()
    assert equal(few.result, whole.result)


def test_a_host_step_in_the_first_layer_alone_keeps_layers_apart() -> None:
    """What the second layer reads of the first is then a tensor, and would be the same for all."""
    model = Model(6).half().to("spyre")
    expected = compiled(model, x(), share=False).result
    stock, refused = fallback_rules.check, list[Any]()

    def check(operation: Any) -> None:
        origins = {str(node.target) for node in operation.origins}
        lowering = V.graph.buffers  # one graph is lowered twice, with other lists
        if "aten.silu.default" in origins and not any(lowering is known for known in refused):
            refused.append(lowering)
            raise errors.Unsupported("for this test")
        stock(operation)

    with mock.patch.object(fallback_rules, "check", check):
        few = compiled(model, x())
    assert len(refused) == 2 and len(few.kernels) == 2 and not few.repetitions
    error = (few.result - expected).abs().max() / expected.abs().max()
    assert error < 0.01  # the host rounds its step in another way


class Transposed(Layer):
    """Reads a parameter across its sticks: a copy of it is made outside of the kernel."""

    def __init__(self, number: int = 0) -> None:
        super().__init__()
        self.other = nn.Parameter(torch.randn(SIZE, SIZE) / 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + x @ self.other + torch.exp(self.other.t()[:TOKENS]))


def test_each_layer_has_copies_of_its_own_parameters() -> None:
    model = Model(6, Transposed).half().to("spyre")
    few, whole = both(model, x())
    copies = [{b.hoisted.source.name for k in c.kernels for b in k.arguments if b.hoisted}
              for c in (few, whole)]  # fmt: skip
    assert copies[0] == copies[1] and len(copies[0]) == 6
    assert few.repetitions


def test_layers_in_loops_over_tiles() -> None:
    """Scratchpads of which little is left: the compiler cuts layers into tiles."""
    model = Model(6).half().to("spyre")
    with config.patch(lx_reserved=0.99), torch.spyre.sanitizer():
        both(model, x(2048, SIZE))


def test_passes_from_outside_see_every_layer() -> None:
    from torch_spyre._inductor import passes

    seen = []

    def look(operations: list[Any]) -> None:
        seen.append(len(operations))

    model = Model(6).half().to("spyre")
    passes.add_pass("pre_scheduling")(look)
    try:
        with_pass = compiled(model, x())
    finally:
        passes.remove_pass("pre_scheduling", look)
    assert seen and not with_pass.repetitions


def test_plans_of_two_settings_do_not_mix() -> None:
    """The setting is part of the key of the caches."""
    model = Model(6).half().to("spyre")
    on_card = x().to("spyre")
    results = []
    for share in (True, False):
        torch._dynamo.reset()
        with config.patch(share_layers=share), torch.no_grad():
            results.append(torch.compile(model)(on_card))
    assert equal(*results)


@pytest.mark.parametrize("where", ["before all layers", "behind all layers", "both"])
def test_what_belongs_to_a_layer_is_read_elsewhere_too(where: str) -> None:
    """The planner copies it into scratchpads for the layer, and whoever else reads it may find the
    copy there: but not that of another layer."""
    model = Model(6).half().to("spyre")
    own = [x(SIZE, seed=10 + i).to("spyre") for i in range(6)]

    def program(x: torch.Tensor) -> Any:
        results = [] if where.startswith("behind") else [c * 2 for c in own]
        for layer, c in zip(model.layers, own):
            x = layer(x * c)
        results += [] if where.startswith("before") else [c + 1 for c in own]
        return (torch.exp(x * 0.01), *results)

    few, _ = both(program, x())
    assert [r.times for r in few.repetitions] == [3]


# ---- Stock decoders ------------------------------------------------------------------------------


def test_layers_of_a_prompt_are_shared_if_the_cache_is_given_to_the_graph() -> None:
    pytest.importorskip("transformers", reason="pip install 'torch-spyre[models]'")
    from transformers import StaticCache

    from docs.generate import stock_models as stock

    ids = torch.randint(2, 512, (1, 12), generator=torch.Generator().manual_seed(1))
    plain = stock.make("llama", stock.Size(layers=6))
    model = stock.on_card(plain)

    def prefill(share: bool) -> tuple[Any, list[Repetition]]:
        torch._dynamo.reset()
        cache = StaticCache(model.config, max_cache_len=64)
        cache.early_initialization(1, 2, 64, torch.float16, torch.device("spyre"))
        with debug_dir.listen() as record, config.patch(share_layers=share), torch.no_grad():
            logits = torch.compile(model)(ids.to("spyre"), past_key_values=cache).logits
        kernels = [kernel for found in record.plans for kernel in found.kernels]
        written = [t for layer in cache.layers for t in (layer.keys, layer.values)]
        return (logits, *written), [k.repetition for k in kernels if k.repetition is not None]

    shared, repetitions = prefill(True)
    whole, none = prefill(False)
    assert [r.times for r in repetitions] == [2] and not none
    assert equal(shared, whole)
    with torch.no_grad():
        expected = plain(ids).logits
    found = stock.compare(expected, shared[0].cpu().float(), stock.allowed_error(layers=6))
    assert found.error < stock.allowed_error(layers=6)
