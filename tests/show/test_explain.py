"""`torch_spyre.explain` says what became of a function, and leaves compiled ones alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import torch_spyre

F = nn.functional


def on_card(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(shape).to(dtype).to("spyre")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(256)
        self.linear = nn.Linear(256, 512)

    def forward(self, x, scale=1.0):
        h = F.gelu(self.linear(self.norm(x)))
        h = torch.atan(h)  # the host does this
        return h * scale


@pytest.fixture(scope="module")
def block():
    torch.manual_seed(0)
    model = Block().half().to("spyre")
    x = on_card(128, 256)
    return model, x, torch_spyre.explain(model, x, scale=0.5)


def test_operations_come_in_order_with_their_lines(block):
    _, _, e = block
    asked = [op for op in e.ops if not op.reason]
    names = " ".join(op.opfunc for op in asked)
    assert names == "exx2 layernormscale layernormnorm batchmatmul add gelufwd mul"
    matmul = asked[3]
    assert (matmul.shape, matmul.reduced, matmul.aten) == ((128, 512), (256,), "aten.addmm.default")
    assert matmul.source.startswith(f"{__file__}:") and "self.linear" in matmul.source
    assert set(matmul.formats) == {"SEN169_FP16"} and matmul.cores == 32
    assert len(matmul.layouts) == 3 and matmul.layouts[-1] == "[8, 128, 64] / [64, 512, 1]"


def test_a_step_of_the_host_in_the_middle(block):
    _, _, e = block
    (step,) = e.fallbacks
    assert (step.op, step.kernels_before, step.shapes) == ("aten.atan.default", 1, ("128x512",))
    assert "torch.atan(h)" in step.source and step.reason
    assert [op.kernel for op in e.ops if not op.reason] == [0] * 6 + [1]


def test_artifacts_are_the_bundles(block):
    _, _, e = block
    assert len(e.artifacts) == len(e.kernels) == 2
    for directory in e.artifacts:
        assert (Path(directory) / "bundle.mlir").is_file()
        assert (Path(directory) / "spyreCodeDir" / "spyrecode.json").is_file()
    assert len(list(Path(e.artifacts[0]).glob("sdsc_*.json"))) == sum(
        op.kernel == 0 for op in e.ops
    )


def test_the_result_is_that_of_the_function(block):
    model, x, e = block
    expected = model(x, scale=0.5)
    torch.testing.assert_close(e.result.cpu(), expected.cpu(), rtol=2e-2, atol=2e-2)


def test_it_prints_as_an_aligned_table_of_moderate_width(block):
    _, _, e = block
    lines = str(e).splitlines()
    assert lines[0] == (
        f"1 graph, 2 kernels, {len(e.ops)} operations, no restickifies, 1 fallback, no graph breaks"
    )
    rows = [line for line in lines if " cores  " in line]
    assert len(rows) == len(e.ops) and len({row.index(" cores  ") for row in rows}) == 1
    others = [line for line in lines if not line.startswith("  /")]
    assert max(map(len, others)) <= 140
    text = "\n".join(lines)
    assert text.index("gelufwd") < text.index("host: aten.atan.default") < text.index(" mul ")
    assert "because " in text and e.artifacts[0] in text


def test_each_fallback_has_its_own_reason():
    def function(a, b, c):
        return a + a, b + b, c + c

    doubles = torch.ones(4, dtype=torch.float64, device="spyre")
    shorts = torch.ones(4, dtype=torch.int16, device="spyre")
    e = torch_spyre.explain(function, doubles, shorts, on_card(64))
    assert [op.opfunc for op in e.ops] == ["add"]
    assert [f.op for f in e.fallbacks] == ["aten.add.Tensor"] * 2
    assert "torch.float64" in e.fallbacks[0].reason and "torch.int16" in e.fallbacks[1].reason


def test_a_graph_that_the_host_does_alone():
    e = torch_spyre.explain(lambda x: torch.atan(x).t(), on_card(64, 64))
    assert [f.op for f in e.fallbacks] == ["aten.atan.default"]  # the view is no step
    assert len(e.graphs) == 1 and not e.ops and not e.artifacts
    assert "host: aten.atan.default  64x64" in str(e)


def test_a_restickify_says_why():
    e = torch_spyre.explain(lambda x: x.t() @ x, on_card(128, 256))
    (copy,) = e.restickifies
    assert (copy.elements, copy.reason) == (32768, "matmul wants x with its sticks along K")
    assert "[4, 128, 64] / [64, 256, 1] -> [2, 256, 64] / [64, 128, 1]" in str(e)
    (added,) = [op for op in e.ops if op.reason and "scratchpads" not in op.reason]
    assert added.opfunc == "ReStickifyOpHBM" and "added: matmul wants x" in str(e)


calls: list[str] = []


def breaks_twice(x):
    calls.append("called")
    torch._dynamo.graph_break()  # before there is any graph
    y = x + 1
    print(end="")
    return y * 2


def test_graph_breaks_come_with_reason_and_line_and_the_function_runs_once():
    calls.clear()
    e = torch_spyre.explain(breaks_twice, on_card(64, 64))
    assert calls == ["called"]
    assert len(e.graphs) == 2 and [op.graph for op in e.ops] == [0, 1]
    first, second = e.graph_breaks
    assert "graph_break()" in first.source and "graph break" in first.reason
    assert "print" in second.reason and second.source.endswith('print(end="")')
    assert second.reason in second.details and len(second.details) > len(second.reason)
    # Kernels of different graphs may have the same name; their bundles differ.
    assert len(set(e.artifacts)) == 2
    assert "2 graph breaks" in str(e)


def test_a_backward_pass_inside_of_the_function():
    w = on_card(256, 64).requires_grad_()

    def step(x):
        (x @ w).relu().sum().backward()

    e = torch_spyre.explain(step, on_card(128, 256))
    assert len(e.graphs) == 2
    asked = [op.opfunc for op in e.ops if op.graph == 1 and not op.reason]
    assert asked == ["where3", "batchmatmul"]


def test_without_spyre_tensors_there_is_a_hint():
    e = torch_spyre.explain(lambda x: x.view(3, 1), torch.ones(3))
    assert not e.graphs and not e.ops and '.to("spyre")' in str(e)
    assert torch.equal(e.result, torch.ones(3, 1))
    with pytest.raises(TypeError, match="takes a function and its arguments"):
        torch_spyre.explain(torch.ones(3))


def times_three(x):
    return x * 3


def test_what_is_already_compiled_is_explained_and_stays_compiled():
    x, wide = on_card(64, 64), on_card(64, 128)
    compiled = torch.compile(times_three)
    compiled(x)
    graphs = counters["stats"]["unique_graphs"]
    for function in (compiled, times_three):
        assert [op.opfunc for op in torch_spyre.explain(function, x).ops] == ["mul"]
    assert counters["stats"]["unique_graphs"] == graphs + 2
    compiled(x)
    assert counters["stats"]["unique_graphs"] == graphs + 2
    # Other shapes that were explained do not make Dynamo take sizes for dynamic.
    e = torch_spyre.explain(times_three, wide)
    assert [op.shape for op in e.ops] == [(64, 128)] and "s0" not in e.graphs[0]


@pytest.mark.parametrize("how", ["compile()", "torch.compile"])
def test_a_compiled_module(block, how):
    _, x, _ = block
    model = Block().half().to("spyre")
    if how == "compile()":
        model.compile()
        target = model
    else:
        target = torch.compile(model)
    e = torch_spyre.explain(target, x)
    asked = [op.opfunc for op in e.ops if not op.reason]
    assert len(e.fallbacks) == 1 and asked[0] == "exx2" and not e.graph_breaks
