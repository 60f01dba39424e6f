"""A refusal reaches the user with operation, shapes, layouts, source line and a way out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch._inductor.exc import InductorError
from torch._inductor.utils import fresh_cache

from torch_spyre import backend
from torch_spyre._inductor import config, errors
from torch_spyre._inductor.codegen import bundle
from torch_spyre._inductor.layouts import requirements, to_op_spec
from torch_spyre._inductor.opspec.access import InvalidOpSpec
from torch_spyre._inductor.opspec.coordinates import Misaligned
from torch_spyre._inductor.planning import kernels
from torch_spyre.cache import keys

X = torch.randn(128, 256).half()


def program(x):
    y = x + 1
    return torch.exp(y)  # the line that is refused


EXP_LINE = program.__code__.co_firstlineno + 2


def refusal() -> str:
    """The message that a user sees."""
    torch._dynamo.reset()
    with fresh_cache(), pytest.raises(InductorError) as caught:
        torch.compile(program)(X.to("spyre"))
    return str(caught.value)


def assert_tells_where(message: str) -> None:
    assert "operation: exp of aten.exp.default" in message
    assert "input 0: buf0 torch.float16 [128, 256] strides [256, 1], layout [4, 128, 64]" in message
    assert "output: buf1 torch.float16 [128, 256]" in message
    assert f"at: {__file__}:{EXP_LINE}: return torch.exp(y)" in message
    assert "try: " in message and "@torch.compiler.disable" in message


def failing_for_exp(monkeypatch, module, name, problem):
    """`module.name(op, ...)` raises when the operation is exp."""
    stock = getattr(module, name)

    def function(op, *args, **kwargs):
        if getattr(op, "opfunc", getattr(op, "op", "")) == "exp":
            raise problem
        return stock(op, *args, **kwargs)

    monkeypatch.setattr(module, name, function)


def test_a_refusal_while_layouts_are_chosen(monkeypatch):
    failing_for_exp(monkeypatch, requirements, "needs", errors.NoLayout("nothing fits"))
    message = refusal()
    assert "NoLayout: nothing fits" in message
    assert "operation: exp of aten.exp.default" in message
    assert "output: buf1 torch.float16 [128, 256] strides [256, 1], no layout yet" in message
    assert f"at: {__file__}:{EXP_LINE}: return torch.exp(y)" in message
    assert ".contiguous()" in message


def test_a_view_that_coordinates_cannot_express(monkeypatch):
    failing_for_exp(monkeypatch, to_op_spec, "make_spec", Misaligned("c0/3", "no whole number"))
    message = refusal()
    assert "UnsupportedAccess: coordinates cannot express a view" in message
    assert_tells_where(message)


def test_a_mistake_of_the_planner_is_called_one(monkeypatch):
    failing_for_exp(monkeypatch, to_op_spec, "make_spec", KeyError("c7"))
    message = refusal()
    assert "CompilerMistake: KeyError: 'c7'" in message
    assert_tells_where(message)
    assert "TORCH_COMPILE_DEBUG=1" in message


def test_a_node_that_cannot_be_traced(monkeypatch):
    stock = kernels.trace

    def trace(node):
        if node.get_name() == "buf1":
            raise errors.NoOpFunc("the card has no operation for 'exp'")
        return stock(node)

    monkeypatch.setattr(kernels, "trace", trace)
    message = refusal()
    assert "NoOpFunc: the card has no operation for 'exp'" in message
    assert "operation: aten.exp.default" in message
    assert "input 0: buf0 torch.float16 [128, 256]" in message
    assert f"at: {__file__}:{EXP_LINE}: return torch.exp(y)" in message
    assert "@torch.compiler.disable" in message


def test_an_op_spec_that_breaks_a_rule(monkeypatch):
    problem = InvalidOpSpec("number of inputs", "operation exp", 2, "1 to 1")
    failing_for_exp(monkeypatch, bundle, "generate", problem)
    message = refusal()
    assert "InvalidOpSpec: operation exp: number of inputs: found 2, allowed 1 to 1" in message
    assert_tells_where(message)


def break_the_second_file(monkeypatch) -> None:
    """The bundle that the back-end gets divides the work of exp over no core."""
    stock = backend.compile_bundle

    def compile_bundle(directory, *args, **kwargs):
        file = Path(directory) / "sdsc_1.json"
        content = json.loads(file.read_text())
        content["1_exp"]["numCoresUsed_"] = 0
        file.write_text(json.dumps(content))
        return stock(directory, *args, **kwargs)

    monkeypatch.setattr(backend, "compile_bundle", compile_bundle)


def test_a_bundle_that_the_back_end_refuses(monkeypatch, tmp_path):
    break_the_second_file(monkeypatch)
    with torch._inductor.config.patch({"trace.enabled": True, "trace.debug_dir": str(tmp_path)}):
        message = refusal()
    assert "BundleError: sdsc_1.json: numCoresUsed_: found 0" in message
    assert_tells_where(message)
    # The bundle is there to be looked at.
    (kept,) = tmp_path.rglob("spyre/*/sdsc_1.json")
    assert json.loads(kept.read_text())["1_exp"]["numCoresUsed_"] == 0
    assert (kept.parent / "bundle.mlir").is_file()


def test_a_bundle_that_fails_leaves_nothing_in_the_cache(monkeypatch, tmp_path):
    break_the_second_file(monkeypatch)
    monkeypatch.setattr(keys, "bundle_root", lambda: tmp_path)
    refusal()
    assert [p.name for p in tmp_path.iterdir() if p.name != ".locks"] == []


def test_a_graph_works_again_after_a_refusal(monkeypatch):
    with monkeypatch.context() as broken:
        failing_for_exp(broken, to_op_spec, "make_spec", KeyError("c7"))
        refusal()
    result = torch.compile(program)(X.to("spyre")).cpu()
    torch.testing.assert_close(result, program(X.float()).half(), rtol=1e-2, atol=1e-2)


def test_too_many_tensors_for_concrete_addresses():
    tensors = [torch.randn(8, 70).half().to("spyre") for _ in range(7)]

    def total(*values):
        return sum(values)  # the line that is named

    torch._dynamo.reset()
    settings = {"symbolic_args": False, "lx_planning": False}  # with intermediates in the pool
    with config.patch(**settings), fresh_cache(), pytest.raises(InductorError) as caught:
        torch.compile(total)(*tensors)
    message = str(caught.value)
    assert "at most 7 tensors, this one 10, the pool included" in message
    assert "operation: 7 in one bundle, from add of aten.add.Tensor to add of" in message
    assert ": arg6_1 torch.float16 [8, 70] strides [70, 1], layout [2, 8, 64]" in message
    assert f"at: {__file__}:{total.__code__.co_firstlineno + 1}: return sum(values)" in message
    assert "try: leave BUNDLE_SYMBOLIC_ARGS at 1" in message


def test_what_an_inner_place_says_is_kept():
    inner = errors.NoLayout("no", source="model.py:1: x", hint="try this")
    outer = inner.at(errors.Place("mm", ("input 0: x",), "other.py:2: y"))
    assert type(outer) is errors.NoLayout
    text = "no\n  operation: mm\n  input 0: x\n  at: model.py:1: x\n  try: try this"
    assert str(outer) == text
