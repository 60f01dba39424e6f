"""What this package and recipes of users do to Inductor does not reach other devices."""

from __future__ import annotations

from tests.conftest import Script

SOURCE = """
import torch, torch._inductor.config
torch._inductor.config.fx_graph_cache = False
torch._functorch.config.enable_autograd_cache = False
F = torch.nn.functional

def f(x, w, b):
    y = F.layer_norm(x, (64,), w, b)
    q = torch.matmul(y, y.transpose(-2, -1))
    a = F.scaled_dot_product_attention(y, y, y, is_causal=True)
    c = torch.cat([F.gelu(y), a, F.silu(x), F.softplus(x)], -1)
    m, i = torch.max(x, -1)
    extra = torch.sigmoid(q) + torch.sign(q) + torch.pow(q, 3) + torch.clamp(q, -1, 1)
    extra = extra + m[..., None]
    s = torch.softmax(q * 0.125, -1)
    added = F.leaky_relu(torch.cosh(x), 0.5) * torch.hypot(x, y)
    return s, c, i, extra, F.pad(c, (1, 2)), torch.topk(x, 3)[0], added, x.var(-1)

def inputs(device):
    torch.manual_seed(0)
    return [t.to(device) for t in (torch.randn(2, 4, 16, 64), torch.ones(64), torch.zeros(64))]
"""

COMPILE = """
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.utils import run_and_get_code
AsyncCompile.cpp_pybinding = lambda *args, **kwargs: lambda *args: None  # the text is enough
# Training too: the code of the backward graph is compared as well.
args = [t.requires_grad_() for t in inputs("cpu")]
def step(*args):
    result = torch.compile(f)(*args)
    sum(r.sum() for r in result if r.is_floating_point()).backward()
    return result
result, code = run_and_get_code(step, *args)
assert len(code) == 2
print(*code, sep="\\n# ----\\n")
"""

USE_SPYRE = """
from torch_spyre._inductor import (
    SpyreOpFuncs, opfunc, pointwise, register_spyre_decomposition, register_spyre_lowering,
    spyre_ops)
SpyreOpFuncs.leaky_relu = staticmethod(lambda x, slope: opfunc("relufwd", x))
register_spyre_decomposition(torch.ops.aten.cosh.default)(lambda x: torch.exp(x))
register_spyre_lowering(torch.ops.aten.hypot.default)(
    lambda x, y: pointwise(lambda a, b: spyre_ops.sqrt(a * a + b * b), x, y))
def g(x):
    return torch.softmax(F.leaky_relu(torch.hypot(torch.cosh(x), x)) @ x.mT * 0.125, -1)

assert torch.compile(g)(inputs("spyre")[0].half()).device.type == "spyre"
torch.compiler.reset()
"""


def test_code_for_the_cpu_is_the_same_with_and_without_this_package(script: Script) -> None:
    without = script(SOURCE + COMPILE, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    used = script(SOURCE + USE_SPYRE + COMPILE)
    assert "cpp_fused" in without
    assert _without_comments(used) == _without_comments(without)


def _without_comments(code: str) -> list[str]:
    """Lines of code; comments say how many graphs were compiled before."""
    return [line for line in code.splitlines() if not line.lstrip().startswith("#")]
