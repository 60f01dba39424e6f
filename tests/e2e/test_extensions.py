"""Operations and passes that are added from outside of the package.

The recipes of the cookbook run literally, in one fresh process: the first test is
docs/compiler/operation_cookbook.md. What else has to hold for them is below, each group in a
process of its own, because recipes change what a whole process compiles.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.conftest import Script
from torch_spyre._inductor import passes
from torch_spyre._inductor.capture import fingerprints
from torch_spyre.ops.fallbacks import register_fallback

PAGE = Path(__file__).parents[2] / "docs" / "compiler" / "operation_cookbook.md"


def recipes() -> list[tuple[str, str]]:
    """The blocks of code of the page, each with the heading above it."""
    heading, blocks = "", []
    for part in re.split(
        r"(^#+ [^\n]*$|^```python\n.*?^```$)", PAGE.read_text(), flags=re.M | re.S
    ):
        if part.startswith("#"):
            heading = part.lstrip("# ")
        elif part.startswith("```python"):
            blocks.append((heading, part.removeprefix("```python\n").removesuffix("```")))
    return blocks


@pytest.fixture(scope="module")
def page_output(script: Script) -> str:
    """What a process prints that runs the page: the number of each block that passed.

    A block that fails ends the page; its traceback is then what all tests from there on show.
    """
    source = []
    for number, (_, code) in enumerate(recipes()):
        source += [code, f"print('block {number} passed', flush=True)"]
    return script("try:\n" + _indented("\n".join(source)) + "\nexcept Exception:\n"
                  "    import traceback; print(traceback.format_exc())")  # fmt: skip


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" if line else "\n" for line in text.splitlines())


@pytest.mark.parametrize(
    "number", range(len(recipes())), ids=[f"{i} {h}" for i, (h, _) in enumerate(recipes())]
)
def test_a_recipe_of_the_cookbook_does_what_the_page_says(page_output: str, number: int) -> None:
    assert f"block {number} passed" in page_output.splitlines(), page_output


# ---- More about recipes -------------------------------------------------------------------------

START = """
import torch, torch_spyre
from torch_spyre._inductor import *
from torch_spyre._inductor import passes
from torch_spyre.ops.fallbacks import register_fallback
aten = torch.ops.aten

def opfuncs(function, *inputs):
    report = torch_spyre.explain(function, *(x.to("spyre") for x in inputs))
    torch.testing.assert_close(report.result.cpu(), function(*inputs), rtol=0.01, atol=0.01)
    ops = [op.opfunc for op in report.ops if "scratchpads" not in op.reason]
    return ops + [f"host: {s.op}" for s in report.fallbacks]

x = (torch.rand(8, 70) + 0.5).half()
"""


def test_a_method_counts_from_when_it_is_there_until_it_is_gone(script: Script) -> None:
    script(
        START
        + """
def exp2(x):
    return opfunc("exp", opfunc("mul", x, constant(0.6931471805599453, x)))

f = lambda x: torch.exp2(x)
assert opfuncs(f, x) == ["host: aten.exp2.default"]
SpyreOpFuncs.exp2 = staticmethod(exp2)
assert opfuncs(f, x) == ["mul", "exp"]
del SpyreOpFuncs.exp2
assert opfuncs(f, x) == ["host: aten.exp2.default"]

# Over a decomposition of Inductor, over one of this package, and back.
leaky = lambda x: torch.nn.functional.leaky_relu(x, 0.5)
before = opfuncs(leaky, x)
SpyreOpFuncs.leaky_relu = staticmethod(
    lambda x, slope: opfunc("maximum", x, opfunc("mul", x, constant(slope, x))))
assert opfuncs(leaky, x) == ["mul", "maximum"] != before
del SpyreOpFuncs.leaky_relu
assert opfuncs(leaky, x) == before

sign = lambda x: torch.sign(x)
before = opfuncs(sign, x)
SpyreOpFuncs.sign = staticmethod(lambda x: opfunc("realdiv", x, opfunc("abs", x)))
assert opfuncs(sign, x) == ["abs", "realdiv"] != before
del SpyreOpFuncs.sign
assert opfuncs(sign, x) == before
"""
    )


def test_recipes_may_pass_and_leave_gradients_alone(script: Script) -> None:
    script(
        START
        + """
SpyreOpFuncs.leaky_relu = staticmethod(
    lambda x, slope: opfunc("maximum", x, opfunc("mul", x, constant(slope, x))))

@register_spyre_decomposition(aten.cosh.default)
def cosh(x):
    if x.dtype is torch.float16:
        return NotImplemented
    e = torch.exp(x)
    return (e + torch.reciprocal(e)) * 0.5

@register_spyre_lowering(aten.hypot.default)
def hypot(x, y):
    if x.get_dtype() is torch.float16:
        return None
    return pointwise(lambda a, b: spyre_ops.sqrt(a * a + b * b), x, y)

def f(x):
    return torch.nn.functional.leaky_relu(torch.cosh(x), 0.5) * torch.hypot(x, x)

names = opfuncs(f, x.float())
assert "reciprocal" in names and "sqrt" in names and not any(n.startswith("host") for n in names)
names = opfuncs(f, x)
assert "host: aten.cosh.default" in names and "host: aten.hypot.default" in names

a = x.float().requires_grad_()
b = x.float().to("spyre").requires_grad_()
f(a).sum().backward()
torch.compile(f)(b).sum().backward()
torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-3, atol=1e-3)
"""
    )


def test_custom_operators_go_to_the_host_and_are_counted(script: Script) -> None:
    out = script(
        START
        + """
import warnings
warnings.simplefilter("always")
torch.spyre.set_fallback_warning(True)

@torch.library.custom_op("mylib::add_into", mutates_args=("total",))
def add_into(total: torch.Tensor, parts: list[torch.Tensor], factor: float = 1.0) -> torch.Tensor:
    raise RuntimeError("only for tensors on spyre")

@add_into.register_fake
def _(total, parts, factor=1.0):
    return torch.empty_like(total, dtype=torch.int64)

@register_fallback(add_into)
def _(total, parts, factor=1.0):
    assert total.device.type == "cpu" and all(p.device.type == "cpu" for p in parts)
    for p in parts:
        total += p * factor
    return total.long()

# Without a registration: only a CPU kernel.
@torch.library.custom_op("mylib::flipped", mutates_args=(), device_types="cpu")
def flipped(x: torch.Tensor) -> torch.Tensor:
    return x.flip(0)

@flipped.register_fake
def _(x):
    return torch.empty_like(x)

def f(total, a):
    r = add_into(total, [a, a + 1], 2.0)
    return r, flipped(total * 2)

for function in (f, torch.compile(f)):
    total, a = torch.zeros(3, 70).to("spyre"), torch.ones(3, 70).to("spyre")
    torch.spyre.reset_fallback_counts()
    with warnings.catch_warnings(record=True) as caught:
        r, g = function(total, a)
    assert r.device.type == g.device.type == "spyre" and r.dtype is torch.int64
    assert (total.cpu() == 6).all() and (r.cpu() == 6).all() and (g.cpu() == 12).all()
    counts = torch.spyre.fallback_counts()
    assert counts["mylib::add_into"] == 1 and counts["mylib::flipped"] == 1, counts
    print([str(w.message) for w in caught if "mylib" in str(w.message)])
"""
    )
    first, second = out.splitlines()[-2:]
    assert "mylib::add_into is falling back to cpu" in first
    assert second == "[]"  # once per operation


def test_passes_given_to_inductor_itself_run_after_those_of_a_stage(script: Script) -> None:
    script(
        START
        + """
from torch._inductor.custom_graph_pass import CustomGraphPass, CustomSchedulerPass

seen = []
class Mine(CustomGraphPass):
    def __call__(self, graph): seen.append("inductor: early")
    def uuid(self): return "mine"
class Nodes(CustomSchedulerPass):
    def __init__(self, name): self.name = name
    def __call__(self, nodes):
        seen.append(f"inductor: {self.name}")
        return nodes
    def uuid(self): return self.name

class First(CustomGraphPass):
    def __call__(self, graph): seen.append("inductor: pre_grad")
    def uuid(self): return "first"

@add_pass("pre_grad")
def pre_grad(graph): seen.append("pre_grad")
@add_pass("early")
def early(graph): seen.append("early")
@add_pass("late")
def late(graph): seen.append("late")
@add_pass("pre_scheduling")
def pre_scheduling(operations):
    seen.append("pre_scheduling")
    return list(operations)
@add_pass("pre_fusion")
def pre_fusion(nodes):
    seen.append("pre_fusion")
    return list(nodes)
@add_pass("post_fusion")
def post_fusion(nodes): seen.append("post_fusion")

options = {"pre_grad_custom_pass": First(), "post_grad_custom_pre_pass": Mine(),
           "_pre_fusion_custom_pass": Nodes("pre_fusion")}
f = lambda x: torch.relu(x) + 1
with torch._inductor.config.patch(_post_fusion_custom_pass=Nodes("post_fusion")):
    r = torch.compile(f, options=options)(x.to("spyre"))
torch.testing.assert_close(r.cpu(), f(x), rtol=0.01, atol=0.01)
assert seen == ["pre_grad", "inductor: pre_grad", "early", "inductor: early", "late",
                "pre_scheduling", "pre_fusion", "inductor: pre_fusion", "post_fusion",
                "inductor: post_fusion"], seen

seen.clear()
for stage, function in (("pre_grad", pre_grad), ("early", early), ("late", late),
                        ("pre_scheduling", pre_scheduling), ("pre_fusion", pre_fusion),
                        ("post_fusion", post_fusion)):
    remove_pass(stage, function)
torch.compiler.reset()
torch.compile(f)(x.to("spyre"))
assert seen == [], seen
"""
    )


CACHED = (
    START
    + """
from torch._dynamo.utils import counters

def exp2(x):
    return opfunc("exp", opfunc("mul", x, constant(BASE, x)))

SpyreOpFuncs.exp2 = staticmethod(exp2)
seen = []
@add_pass("early")
def look(graph): seen.append(len(graph.nodes))

def compiled():
    torch.compiler.reset()
    counters.clear()
    r = torch.compile(lambda x: torch.exp2(x))(x.to("spyre"))
    torch.testing.assert_close(r.cpu(), torch.exp(x * BASE), rtol=0.01, atol=0.01)
    return {k: v for k, v in counters["inductor"].items() if k.startswith("fxgraph_cache")}
"""
)


def test_caches_on_disk_know_what_was_added(script: Script, tmp_path: Path) -> None:
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_FX_GRAPH_CACHE": "1"}
    first = script("BASE = 0.7\n" + CACHED + """
print(compiled())
print(compiled())
# A method with other code, and a pass more, are another compiler.
SpyreOpFuncs.exp2 = staticmethod(lambda x: exp2(opfunc("add", x, constant(0.0, x))))
print(compiled())
remove_pass("early", look)
print(compiled())
""", **cache)  # fmt: skip
    miss, hit = "{'fxgraph_cache_miss': 1}", "{'fxgraph_cache_hit': 1}"
    assert first.splitlines() == [miss, hit, miss, miss]
    second = script("BASE = 0.7\n" + CACHED + "print(compiled())", **cache)
    assert second == hit


# ---- Refusals, and what caches go by ------------------------------------------------------------


def test_a_stage_that_does_not_exist_is_an_error_that_names_the_stages() -> None:
    with pytest.raises(ValueError, match="unknown stage 'first'; stages are pre_grad, early, late"):
        passes.add_pass("first")(lambda graph: None)


def test_a_fallback_is_for_one_overload() -> None:
    with pytest.raises(ValueError, match="has several overloads"):
        register_fallback(torch.ops.aten.add)
    with pytest.raises(TypeError, match="got 'aten::add'"):
        register_fallback("aten::add")


def test_a_fingerprint_goes_by_code_and_by_what_a_function_closes_over() -> None:
    def scaled(factor: float, times: int = 1):
        return lambda x: x * factor * times

    same, other = fingerprints.fingerprint(scaled(2.0)), fingerprints.fingerprint(scaled(3.0))
    assert fingerprints.fingerprint(scaled(2.0)) == same != other
    assert fingerprints.fingerprint(lambda x: x + 1) != fingerprints.fingerprint(lambda x: x + 2)

    class Setting:
        def __init__(self, value: int) -> None:
            self.value = value

        def __call__(self, graph: object) -> None: ...

        def uuid(self) -> int:
            return self.value

    assert fingerprints.fingerprint(Setting(1)) == fingerprints.fingerprint(Setting(1))
    assert fingerprints.fingerprint(Setting(1)) != fingerprints.fingerprint(Setting(2))
