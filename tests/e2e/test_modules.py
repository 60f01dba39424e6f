"""PyTorch's own samples of its modules: forward and backward, compiled, as on the CPU.

`make test` runs some of the modules, `--full` all of them.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.common_modules import ModuleInfo, module_db
from torch.utils import _pytree as pytree

_ALWAYS = ("nn.Conv2d", "nn.GRU", "nn.TransformerDecoderLayer")
_RANDOM = ("Dropout", "RReLU", "FractionalMaxPool")
_SAMPLES = 2


def _modules() -> list[Any]:
    seen: dict[str, Any] = {}
    for info in module_db:
        if torch.float32 in info.dtypes:
            marks = [] if info.name in _ALWAYS else [pytest.mark.full]
            seen.setdefault(info.name, pytest.param(info, id=info.name, marks=marks))
    return list(seen.values())


def _tensors(values: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(values) if isinstance(t, torch.Tensor)]


def _on_card(values: Any) -> Any:
    def move(t: Any) -> Any:
        if not isinstance(t, torch.Tensor):
            return t
        return t.detach().to("spyre").requires_grad_(t.requires_grad)

    return pytree.tree_map(move, values)


@pytest.mark.parametrize("info", _modules())
def test_a_module_and_its_gradients_follow_the_cpu(info: ModuleInfo) -> None:
    torch.manual_seed(0)
    samples = list(
        info.module_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=True, training=True
        )
    )
    compared = 0
    for sample in samples[:: max(1, len(samples) // _SAMPLES)][:_SAMPLES]:
        made, called = sample.constructor_input, sample.forward_input
        module = info.module_cls(*made.args, **made.kwargs).float()
        arguments = called.args, called.kwargs
        if any(nn.parameter.is_lazy(p) for p in module.parameters()):
            module(*arguments[0], **arguments[1])  # both shall have the same weights
        twin = copy.deepcopy(module).to("spyre")
        moved = _on_card(arguments)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wanted = _tensors(module(*arguments[0], **arguments[1]))
            torch._dynamo.reset()
            results = _tensors(torch.compile(twin)(*moved[0], **moved[1]))
        same = not any(word in info.name for word in _RANDOM)
        _compare(results, wanted, same)
        if any(w.requires_grad for w in wanted):
            for values in (results, wanted):
                sum((v**2).sum() for v in values if v.requires_grad).backward()
            leaves = [
                ([*twin.parameters()], [*module.parameters()]),
                (_tensors(moved), _tensors(arguments)),
            ]
            for ours, theirs in leaves:
                pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if b.is_leaf]
                gradients = [(a.grad, b.grad) for a, b in pairs]
                assert all((a is None) == (b is None) for a, b in gradients)
                found = [(a, b) for a, b in gradients if a is not None and b is not None]
                _compare([a for a, _ in found], [b for _, b in found], same)
        compared += 1
    assert compared


def _compare(results: list[torch.Tensor], wanted: list[torch.Tensor], same: bool) -> None:
    for result, expected in zip(results, wanted, strict=True):
        assert result.device.type == "spyre"
        assert result.shape == expected.shape and result.dtype is expected.dtype
        if same and result.numel():
            scale = max(1.0, expected.abs().nan_to_num(0, 0, 0).max().item())
            torch.testing.assert_close(
                result.cpu() / scale, expected / scale, rtol=1e-3, atol=1e-3, equal_nan=True
            )
