"""Life of a model on the card: autograd, torch.func, checkpointing, optimizers, AMP, state_dict."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.support.dlfloat16_reference import round_trip


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.randn(8, 10, generator=g), torch.randint(0, 4, (8,), generator=g)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
        lambda p: torch.optim.AdamW(p, 1e-2),
        lambda p: torch.optim.AdamW(p, 1e-2, foreach=True),
        lambda p: torch.optim.Adam(p, 1e-2, foreach=False, amsgrad=True),
        lambda p: torch.optim.RMSprop(p, 1e-2),
        lambda p: torch.optim.Adagrad(p, 1e-2),
    ],
    ids=["sgd", "adamw", "adamw-foreach", "adam", "rmsprop", "adagrad"],
)
def test_training_equals_cpu(optimizer):
    losses = {}
    for device in ("cpu", "spyre"):
        net = model().to(device)
        x, y = (t.to(device) for t in batch())
        opt = optimizer(net.parameters())
        losses[device] = []
        for _ in range(4):
            opt.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            losses[device].append(loss.item())
    assert losses["spyre"] == pytest.approx(losses["cpu"], rel=1e-5)
    assert losses["spyre"][-1] < losses["spyre"][0]


def test_gradients_have_layouts_and_accumulate():
    net = model().to("spyre")
    x, y = (t.to("spyre") for t in batch())
    for _ in range(2):
        nn.functional.cross_entropy(net(x), y).backward()
    assert (
        net[0].weight.grad.device.type == "spyre"
        and net[0].weight.grad.device_tensor_layout() is not None
    )
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        a = torch.ones(3, device="spyre", requires_grad=True)
        b = a * 2
        c = b.exp()
        c.add_(1)
        c.sum().backward()


def test_convolution_and_batch_norm_train():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.ConvTranspose2d(6, 2, 2),
    )
    twin = copy.deepcopy(net).to("spyre")
    x = torch.randn(2, 3, 8, 8)
    net(x).sum().backward()
    twin(x.to("spyre")).sum().backward()
    for a, b in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(twin[1].running_mean.cpu(), net[1].running_mean)


def test_rnn_and_attention_modules():
    torch.manual_seed(0)
    lstm, attention = (
        nn.LSTM(5, 7, 2, bidirectional=True),
        nn.MultiheadAttention(8, 2, batch_first=True),
    )
    x, q = torch.randn(4, 3, 5), torch.randn(2, 6, 8)
    expected = lstm(x)[0], attention(q, q, q)[0]
    lstm.to("spyre"), attention.to("spyre")
    torch.testing.assert_close(lstm(x.to("spyre"))[0].cpu(), expected[0], rtol=1e-5, atol=1e-5)
    q = q.to("spyre")
    torch.testing.assert_close(attention(q, q, q)[0].cpu(), expected[1], rtol=1e-5, atol=1e-5)
    packed = nn.utils.rnn.pack_padded_sequence(x.to("spyre"), torch.tensor([4, 3, 1]))
    assert nn.utils.rnn.pad_packed_sequence(lstm(packed)[0])[0].shape == (4, 3, 14)


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_train_as_on_cpu(layer):
    torch.manual_seed(0)
    net = layer(5, 7, 2, bidirectional=True)
    twin = copy.deepcopy(net).to("spyre")
    x = torch.randn(4, 3, 5)
    net(x)[0].pow(2).sum().backward()
    twin(x.to("spyre"))[0].pow(2).sum().backward()
    for a, b in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-4, atol=1e-5)


def test_autocast():
    net = model().to("spyre")
    x, y = (t.to("spyre") for t in batch())
    with torch.autocast("spyre", dtype=torch.float16):
        out = net[0](x)
        assert out.dtype == torch.float16
        assert torch.exp(out).dtype == torch.float32
        loss = nn.functional.cross_entropy(net(x), y)
        with pytest.raises(RuntimeError, match="binary_cross_entropy_with_logits"):
            nn.functional.binary_cross_entropy(
                torch.rand(3, device="spyre"), torch.rand(3, device="spyre")
            )
    scaler = torch.amp.GradScaler("spyre", init_scale=128.0)
    opt = torch.optim.SGD(net.parameters(), 0.1)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    assert all(p.grad is not None for p in net.parameters())
    with torch.autocast("spyre", dtype=torch.bfloat16):
        assert (x @ x.t()).dtype == torch.bfloat16


def test_functional_transforms():
    x = torch.randn(5, 3)
    f = lambda v: (v.sin() * v).sum()  # noqa: E731
    on_card = x.to("spyre")
    torch.testing.assert_close(torch.func.grad(f)(on_card).cpu(), torch.func.grad(f)(x))
    torch.testing.assert_close(torch.func.vmap(f)(on_card).cpu(), torch.func.vmap(f)(x))
    torch.testing.assert_close(
        torch.func.vmap(torch.func.grad(f))(on_card).cpu(), torch.func.vmap(torch.func.grad(f))(x)
    )
    torch.testing.assert_close(
        torch.func.jacrev(torch.tanh)(on_card[0]).cpu(), torch.func.jacrev(torch.tanh)(x[0])
    )
    assert torch.autograd.gradcheck(
        torch.tanh, (torch.randn(3, dtype=torch.float64, device="spyre", requires_grad=True),)
    )


@pytest.mark.parametrize("size", [0, 1, 5])
def test_forward_mode_and_hessians(size):
    def cubes(v):
        return (v**3).sum()

    x = torch.randn(size)
    on_card = torch.func.hessian(cubes)(x.to("spyre"))
    torch.testing.assert_close(on_card.cpu(), torch.func.hessian(cubes)(x))
    zeros = torch._efficientzerotensor(3).to("spyre")
    assert zeros.tolist() == [0, 0, 0]


def test_activation_checkpointing_with_dropout():
    from torch.utils.checkpoint import checkpoint

    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1)).to("spyre")
    x = torch.ones(6, 4, device="spyre", requires_grad=True)
    torch.manual_seed(2)
    net(x).sum().backward()
    plain, x.grad = x.grad.cpu(), None
    torch.manual_seed(2)
    checkpoint(net, x, use_reentrant=False).sum().backward()
    torch.testing.assert_close(x.grad.cpu(), plain)


def test_state_dict_both_ways(tmp_path):
    net = model().half().to("spyre")
    state = net.state_dict()
    assert all(v.device.type == "spyre" for v in state.values())
    torch.save(state, tmp_path / "s.pt")
    on_cpu = model().half()
    on_cpu.load_state_dict(torch.load(tmp_path / "s.pt", map_location="cpu"))
    for a, b in zip(on_cpu.parameters(), model().half().parameters(), strict=True):
        assert torch.equal(a, round_trip(b.detach()))
    other = model().half().to("spyre")
    other.load_state_dict(on_cpu.state_dict())
    assert torch.equal(other[0].weight.cpu(), on_cpu[0].weight)
    assert torch.equal(other.cpu()[3].weight, on_cpu[3].weight)


def test_module_life_cycle():
    net = model()
    assert net.spyre() is net and next(net.parameters()).device.type == "spyre"
    net.half().float().cpu().to("spyre", torch.float16)
    assert net[0].weight.dtype == torch.float16
    twin = copy.deepcopy(net)
    assert twin[0].weight.device.type == "spyre" and isinstance(twin[0].weight, nn.Parameter)
    with torch.device("spyre"):
        assert nn.Linear(3, 3).weight.device.type == "spyre"
    net.to_empty(device="spyre")
    tied = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    tied[1].weight = tied[0].weight
    tied.to("spyre")
    assert tied[0].weight is tied[1].weight


def test_default_device():
    torch.set_default_device("spyre")
    try:
        assert torch.ones(2).device.type == "spyre" and torch.arange(3).device.type == "spyre"
    finally:
        torch.set_default_device(None)


def test_custom_autograd_function_and_hooks():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            assert x.device_tensor_layout() is not None
            return grad * 2

    x = torch.ones(3, device="spyre", requires_grad=True)
    x.register_hook(lambda g: g + 1)
    Double.apply(x).sum().backward()
    assert x.grad.tolist() == [3, 3, 3]


def test_lazy_modules_are_moved_before_they_know_their_shapes():
    assert nn.LazyLinear(3).to(torch.float64)(torch.ones(2, 5).double()).dtype is torch.float64
    lazy = nn.Sequential(nn.LazyConv1d(4, 3), nn.Flatten(), nn.LazyLinear(3), nn.LazyBatchNorm1d())
    lazy = lazy.to("spyre")
    assert all(p.device.type == "spyre" for p in lazy.parameters())
    x = torch.randn(6, 2, 8)
    lazy(x.to("spyre"))
    made = copy.deepcopy(lazy).cpu()
    result, expected = lazy(x.to("spyre")), made(x)
    result.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(result.cpu(), expected, rtol=1e-3, atol=1e-3)
    for ours, theirs in zip(lazy.parameters(), made.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-2, atol=1e-2)
