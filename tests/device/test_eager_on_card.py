"""Eager operations on the card: the bits of compiled graphs, and what is left to the host."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.conftest import Script
from torch_spyre.ops import eager

Operations = Callable[..., dict[str, torch.Tensor]]


@pytest.fixture(autouse=True)
def on_card() -> Iterator[None]:
    torch.spyre.set_eager("card")
    torch.spyre.reset_eager_counts()
    torch.spyre.reset_fallback_counts()
    yield
    torch.spyre.set_eager(os.environ["SPYRE_EAGER"])


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


REDUCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": lambda x, y: x.sum(),
    "sum rows": lambda x, y: x.sum(1),
    "sum columns": lambda x, y: x.sum(0, keepdim=True),
    "mean": lambda x, y: x.mean(),
    "mean rows": lambda x, y: x.mean(-1, keepdim=True),
    "softmax": lambda x, y: torch.softmax(x, -1),
    "softmax columns": lambda x, y: torch.softmax(x, 0),
    "norm": lambda x, y: torch.linalg.vector_norm(x, dim=1),
    "cat": lambda x, y: torch.cat([x, y], 0),
    "stack": lambda x, y: torch.stack([x, y], 1),
    "pad": lambda x, y: torch.nn.functional.pad(x, (1, 2, 3, 0), value=1.5),
    "mm": lambda x, y: torch.mm(x, y.t()),
    "addmm": lambda x, y: torch.addmm(x[0], x.t(), y, beta=0.5, alpha=2),
    "bmm": lambda x, y: torch.bmm(x.unsqueeze(0), y.t().unsqueeze(0)),
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
        assert tensor.stride() == compiled[name].stride(), name
        check_values(name, tensor, exact[name])


def check_values(name: str, tensor: torch.Tensor, exact: torch.Tensor) -> None:
    assert tensor.shape == exact.shape, name
    if tensor.dtype == torch.bool:
        assert torch.equal(tensor.cpu(), exact), name
    else:
        rtol = 4e-3 if tensor.dtype == torch.float16 else 2e-5
        torch.testing.assert_close(
            tensor.cpu().float(), exact, rtol=rtol, atol=4 * rtol, equal_nan=True, msg=name
        )


# ---- The same bits as compiled graphs -----------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["float16", "float32"])
@pytest.mark.parametrize("operations", [pointwise, logical])
def test_operations_run_on_the_card_with_the_bits_of_compiled_graphs(
    operations: Operations, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    check(operations, *contiguous(dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["float16", "float32"])
def test_operations_over_several_elements_have_the_bits_of_their_compiled_graphs(
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(0)
    x, y = contiguous(dtype)
    for name, operation in REDUCTIONS.items():
        # Each its own graph: the order of a sum depends on how the work of a kernel is divided.
        compiled = torch.compile(operation, dynamic=False)(x, y)
        torch.spyre.reset_eager_counts()
        found = operation(x, y)
        assert sum(torch.spyre.eager_counts().values()) == 1, name
        assert torch.equal(bits(found), bits(compiled)), name
        check_values(name, found, operation(x.cpu().float(), y.cpu().float()))


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
        }

    check(few, *inputs(torch.float16))


# ---- In place, out=, views ----------------------------------------------------------------------


def half(*size: int) -> torch.Tensor:
    return torch.randn(*size).half().to("spyre")


def counted() -> dict[str, int]:
    """What ran on the card; fails if the host computed anything."""
    assert torch.spyre.fallback_counts() == {}
    return torch.spyre.eager_counts()


def test_operations_in_place_change_the_tensor_itself() -> None:
    x, y = half(40, 80), half(40, 80)
    expected = (x * 1.5 + y).relu()
    torch.spyre.reset_eager_counts()
    version, address = x._version, x.data_ptr()
    assert x.mul_(1.5).add_(y).relu_() is x
    assert counted() == {"aten::add_.Tensor": 1, "aten::mul_.Tensor": 1, "aten::relu_": 1}
    assert x.data_ptr() == address and x._version == version + 3
    assert torch.equal(x.cpu(), expected.cpu())


def test_an_operation_in_place_on_a_view_leaves_the_rest_of_the_storage_alone() -> None:
    x, y = half(40, 80), half(37, 80)
    before = x.cpu()
    x[3:].add_(y)
    assert torch.equal(x[:3].cpu(), before[:3])
    assert torch.equal(x[3:].cpu(), (before[3:].to("spyre") + y).cpu())
    x.t().mul_(0.3)
    assert "aten::add_.Tensor" in counted()


def test_the_same_tensor_as_both_operands() -> None:
    x = half(8, 64)
    twice = x + x
    x.add_(x)
    assert torch.equal(x.cpu(), twice.cpu())
    torch.mul(x, x, out=x)
    assert torch.equal(x.cpu(), (twice * twice).cpu())
    counted()


def test_results_are_written_to_out() -> None:
    x, y, out = half(40, 80), half(40, 80), half(40, 80)
    address = out.data_ptr()
    assert torch.add(x, y, out=out) is out
    assert out.data_ptr() == address
    assert torch.equal(out.cpu(), (x + y).cpu())
    turned = half(80, 40).t()
    torch.exp(x, out=turned)
    assert torch.equal(turned.cpu(), torch.exp(x).cpu())
    assert counted()["aten::add.out"] == 1


def test_out_of_another_shape_is_resized_by_the_host_with_the_usual_warning() -> None:
    x, out = half(4, 8), half(3)
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        torch.add(x, x, out=out)
    assert torch.equal(out.cpu(), (x + x).cpu())
    assert torch.spyre.fallback_counts() == {"aten::add.out": 1}


def as_operand(number: float, like: torch.Tensor) -> torch.Tensor:
    """A tensor of a number, rounded once: from float32 to the format of the card."""
    return torch.empty_like(like).copy_(torch.full(like.shape, number, dtype=torch.float32))


def test_numbers_are_operands_of_one_program() -> None:
    x = half(16, 72)
    x * 2.5
    compiled = eager.counters["compiled"]
    for number in (3, -0.125, 1e-3, 40000.0, float("inf")):
        assert torch.equal((x * number).cpu(), (x * as_operand(number, x)).cpu()), number
    assert eager.counters["compiled"] == compiled + 1  # the one with two tensors
    assert torch.equal(bits(x * 1), bits(x)) and torch.equal(bits(x - 0.0), bits(x))


# ---- What the host keeps ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: torch.arange(9).to("spyre") + 2**30, id="integers"),
        pytest.param(lambda: torch.zeros(0, 4, device="spyre") + 1, id="no elements"),
        pytest.param(lambda: half(8) * torch.tensor(2.0), id="a CPU tensor without dimensions"),
        pytest.param(lambda: torch.ones(3, dtype=torch.bool).to("spyre").sum(), id="counting"),
        pytest.param(lambda: half(8).double() + 1, id="a carried dtype"),
    ],
)
def test_the_host_computes_what_the_card_has_no_exact_form_of(
    call: Callable[[], torch.Tensor],
) -> None:
    call()
    assert set(torch.spyre.eager_counts()) <= {"aten::add.Tensor"}  # of the preparations
    assert torch.spyre.fallback_counts()


def test_integers_of_32_bits_do_not_wrap() -> None:
    x = torch.full((4,), 2**31 - 1).to("spyre")
    assert (x + 1).tolist() == [2**31] * 4
    assert (x * x).tolist() == [(2**31 - 1) ** 2] * 4


def test_several_views_of_what_is_written_are_left_to_the_host() -> None:
    x = torch.arange(8.0)
    card = x.half().to("spyre")
    card[4:].add_(card[:4])
    x[4:].add_(x[:4])
    assert torch.equal(card.cpu().float(), x)
    assert torch.spyre.fallback_counts() == {"aten::add_.Tensor": 1}
    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        card[1:].add_(card[:-1])


def test_errors_are_those_of_the_cpu() -> None:
    x = half(4, 8)
    with pytest.raises(RuntimeError, match="must match the size of tensor b"):
        x + half(3)
    with pytest.raises(RuntimeError, match=r"output with shape .* doesn't match the broadcast"):
        half(8).add_(x)
    with pytest.raises(RuntimeError, match="unsupported operation: more than one element"):
        half(1, 8).expand(4, 8).add_(1)
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.randn(4, 8)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        x @ x


def test_a_process_compiles_a_limited_number_of_signatures_of_an_operation(script: Script) -> None:
    source = """
        import torch, warnings
        from torch_spyre.ops import eager
        torch.spyre.set_fallback_warning(False)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for n in (3, 4, 5, 6, 3, 4, 5, 6):
                torch.ones(n).to("spyre").exp()
        texts = [str(w.message) for w in caught]
        assert sum("aten::exp was called with more than 2 comb" in text for text in texts) == 1
        print(eager.counters["compiled"] + eager.counters["loaded"])
        print(torch.spyre.eager_counts(), torch.spyre.fallback_counts())
    """
    for _ in range(2):  # the second finds them on disk, and the place is the same
        count, places = script(source, SPYRE_EAGER="card", SPYRE_EAGER_LIMIT="2").splitlines()
        assert count == "2"
        assert places == "{'aten::exp': 4} {'aten::exp': 4}"


def test_an_eager_operation_is_no_graph_of_the_program(script: Script, tmp_path: Path) -> None:
    source = """
        import torch
        from torch_spyre._inductor.inspect import debug_dir
        from torch_spyre.ops import eager
        x = torch.ones(3, 5, dtype=torch.float16).to("spyre")
        with debug_dir.listen() as record:
            torch.exp(x)
            torch.compile(lambda v: v * 2)(x)
        print(eager.counters["compiled"], len(record.plans), len(record.calls))
    """
    found = script(source, SPYRE_EAGER="card", TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
    assert found == "1 1 1"


# ---- Disk ---------------------------------------------------------------------------------------

FIRST_CALL = """
    import sys, torch
    torch.manual_seed(0)
    x, w = torch.randn(24, 96).half().to("spyre"), torch.randn(96, 40).half().to("spyre")
    y = torch.softmax(x @ w * 0.7, -1)
    y.add_(1.5)
    from torch_spyre.ops import eager
    print(torch.spyre.fallback_counts(), eager.counters)
    print(any(name.split(".")[:2] in (["torch", "_inductor"], ["torch", "_dynamo"])
              for name in sys.modules))
    print(y.cpu().view(torch.int16).tolist())
"""


def test_a_new_process_finds_programs_on_disk_without_importing_inductor(script: Script) -> None:
    first, imported, expected = script(FIRST_CALL, SPYRE_EAGER="card").splitlines()
    assert first == "{} {'compiled': 4, 'loaded': 0, 'left_to_host': 0}" and imported == "True"
    again, imported, found = script(FIRST_CALL, SPYRE_EAGER="card").splitlines()
    assert again == "{} {'compiled': 0, 'loaded': 4, 'left_to_host': 0}" and imported == "False"
    assert found == expected
    other, _, found = script(FIRST_CALL, SPYRE_EAGER="card", SENCORES="3").splitlines()
    assert "'compiled': 4" in other  # another setting, another program ...
    assert found == expected  # ... and the same numbers


def test_entries_that_are_damaged_or_lost_are_compiled_again() -> None:
    x = half(9, 70)
    expected = bits(torch.tanh(x))
    entries = list(eager.bundle_root().glob("eager_*/program.json"))
    (path,) = (p for p in entries if "aten::tanh" in p.read_text() and "(9, 70)" in p.read_text())
    assert path.parent.stat().st_mode & 0o777 == 0o700
    bundle = eager.bundle_root() / json.loads(path.read_text())["kernels"][0]["bundle"][0]
    for damage in (
        lambda: path.write_text("{}"),
        lambda: path.write_text("not json"),
        lambda: shutil.rmtree(path.parent),
        lambda: shutil.rmtree(bundle),
        lambda: (bundle / "spyreCodeDir" / "spyrecode.json").write_text("{}"),
    ):
        damage()
        eager._C._clear_eager_programs()
        compiled = eager.counters["compiled"]
        assert torch.equal(bits(torch.tanh(x)), expected)
        assert eager.counters["compiled"] == compiled + 1
    eager._C._clear_eager_programs()
    assert torch.equal(bits(torch.tanh(x)), expected)
    assert eager.counters["compiled"] == compiled + 1


def test_settings_of_the_compiler_have_programs_of_their_own() -> None:
    from torch_spyre._inductor import config

    x = half(64, 128)
    expected = torch.sigmoid(x).cpu()
    compiled = eager.counters["compiled"]
    with config.patch(cores=2):
        for _ in range(2):
            assert torch.equal(torch.sigmoid(x).cpu(), expected)
    assert eager.counters["compiled"] == compiled + 1
    torch.sigmoid(x)
    assert eager.counters["compiled"] == compiled + 1


def test_settings_are_compared_once_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler changes its own settings as it plans, and each call asks from then on."""
    from torch_spyre._inductor import config

    x = half(64, 128)
    torch.sigmoid(x)
    compared = []
    stock = eager.settings
    monkeypatch.setattr(eager, "settings", lambda: compared.append(1) or stock())
    with config.patch(cores=2):
        pass
    compiled = eager.counters["compiled"]
    for _ in range(20):
        torch.sigmoid(x)
    assert len(compared) == 1
    assert eager.counters["compiled"] == compiled


def test_settings_of_one_thread_are_not_those_of_another() -> None:
    from torch_spyre._inductor import config

    x = half(64, 128)
    torch.sigmoid(x)
    compiled = eager.counters["compiled"]
    with config.patch(cores=2):
        thread = threading.Thread(target=lambda: torch.sigmoid(x))
        thread.start()
        thread.join()
        assert eager.counters["compiled"] == compiled
        torch.sigmoid(x)  # with programs of its own, from the test before or compiled
        assert eager.find_epoch() != 0
    assert eager.find_epoch() == 0


# ---- The rest of PyTorch ------------------------------------------------------------------------


def test_gradients_follow_the_cpu() -> None:
    torch.manual_seed(2)
    model = torch.nn.Sequential(
        torch.nn.Linear(40, 64), torch.nn.SiLU(), torch.nn.Linear(64, 5), torch.nn.Softmax(-1)
    )
    x, target = torch.randn(12, 40), torch.randn(12, 5)
    (model(x) - target).pow(2).mean().backward()
    expected = [p.grad for p in model.parameters()]
    model.zero_grad()
    card = model.to("spyre")
    (card(x.to("spyre")) - target.to("spyre")).pow(2).mean().backward()
    for parameter, gradient in zip(card.parameters(), expected, strict=True):
        assert gradient is not None and parameter.grad is not None
        torch.testing.assert_close(parameter.grad.cpu(), gradient, rtol=1e-4, atol=1e-6)
    assert torch.spyre.eager_counts()["aten::mm"] >= 2  # of the backward pass


def test_autocast_and_inference_mode_and_modes_of_the_caller() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    names: list[str] = []

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            names.append(func.name())
            return func(*args, **(kwargs or {}))

    x, w = torch.randn(6, 33).to("spyre"), torch.randn(33, 7).to("spyre")
    with torch.autocast("spyre", dtype=torch.float16):
        assert (x @ w).dtype == torch.float16
    with torch.inference_mode():
        y = (x @ w).relu()
    with Seen():
        z = (x @ w).relu()
    assert names == ["aten::mm", "aten::relu"]
    assert torch.equal(y.cpu(), z.cpu())
    assert torch.vmap(lambda row: row.sum())(x).shape == (6,)


def test_threads_share_programs() -> None:
    x = half(21, 90)
    compiled = eager.counters["compiled"]
    results: list[torch.Tensor] = []
    threads = [
        threading.Thread(target=lambda: results.extend(torch.rsqrt(x.abs()) for _ in range(20)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert eager.counters["compiled"] == compiled + 2
    assert len(results) == 80
    assert all(torch.equal(bits(r), bits(results[0])) for r in results)


def test_streams_order_eager_operations() -> None:
    x = half(32, 64)
    first, second = torch.spyre.Stream(), torch.spyre.Stream()
    with torch.spyre.stream(first):
        y = x * 1.25
        done = torch.spyre.Event()
        done.record()
    with torch.spyre.stream(second):
        done.wait()
        z = y + x
    second.synchronize()
    assert torch.equal(z.cpu(), (x * 1.25 + x).cpu())


def test_each_card_has_its_own_programs_and_they_go_with_the_runtime(script: Script) -> None:
    output = script(
        """
        import torch
        from torch_spyre.ops import eager
        x = torch.randn(5, 66).half()
        results = [(x.to(f"spyre:{i}") + 0.3) for i in (0, 1)]
        print([str(r.device) for r in results], torch.equal(results[0].cpu(), results[1].cpu()))
        print(eager.counters, torch.spyre.fallback_counts())
        del results
        torch.spyre.free_runtime()
        print(torch.equal((x.to("spyre") + 0.3).cpu(), (x.to("spyre:1") + 0.3).cpu()))
        """,
        SPYRE_EAGER="card",
        AIU_WORLD_SIZE="2",
    )
    assert output.splitlines() == [
        "['spyre:0', 'spyre:1'] True",
        "{'compiled': 1, 'loaded': 1, 'left_to_host': 0} {}",
        "True",
    ]


def test_compiled_graphs_are_traced_and_run_without_eager_programs() -> None:
    x = half(8, 64)
    compiled = torch.compile(lambda x: (x * 2 + 1).sum(0), dynamic=False)(x)
    assert torch.spyre.eager_counts() == {}
    assert compiled.shape == (64,)


def test_the_sanitizer_finds_nothing_in_eager_operations() -> None:
    x, y = half(24, 72), half(24, 72)
    with torch.spyre.sanitizer():
        torch.softmax(x @ y.t(), 1).add_(0.25)
        x[2:].mul_(y[2:])


def test_a_place_that_does_not_exist_is_refused(script: Script) -> None:
    with pytest.raises(ValueError, match="'card' or the 'host'"):
        torch.spyre.set_eager("gpu")
    failed = script(
        "import torch; torch.ones(2).to('spyre') + 1", expect_failure=True, SPYRE_EAGER="gpu"
    )
    assert "invalid SPYRE_EAGER value: 'gpu'; allowed are card and host" in failed


def test_a_fault_of_the_compiler_is_reported_and_the_host_computes(monkeypatch) -> None:
    from torch_spyre._inductor.host import single_op as compiler

    def fault(*args: object) -> None:
        raise AssertionError("a plan without end")

    monkeypatch.setattr(compiler, "_compile", fault)
    x = torch.randn(3, 177).half().to("spyre")  # a shape that no other test has
    torch.spyre.reset_fallback_counts()
    with pytest.warns(torch.spyre.FallbackWarning, match="fault of the compiler") as found:
        result = torch.exp(x)
    assert torch.equal(result.cpu(), torch.exp(x.cpu()).to("spyre").cpu())
    assert torch.spyre.fallback_counts()["aten::exp"] == 1
    said = next(str(w.message) for w in found if "fault" in str(w.message))
    report = Path(said.split("report ")[1]).read_text()
    assert "a plan without end" in report and "(3, 177)" in report


def test_dynamo_does_not_trace_what_runs_an_eager_operation() -> None:
    from torch._dynamo.utils import counters as dynamo

    def in_pieces(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x.exp()

    torch._dynamo.reset()
    dynamo.clear()

    @torch._dynamo.disable(recursive=False)
    def skipped(x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x)  # eager, with Dynamo watching

    x = torch.randn(3, 179).half().to("spyre")
    torch.compile(lambda x: in_pieces(skipped(x)))(x)
    assert len(dynamo["graph_break"]) <= 2, list(dynamo["graph_break"])


IN_PLACE = {
    "mul_": lambda x: x.mul_(2.0),
    "add_": lambda x: x.add_(x * 0 + 1),
    "sub_ of a part": lambda x: x[2:9].sub_(3.0),
    "relu_": lambda x: x.relu_(),
    "clamp_": lambda x: x.clamp_(min=0.5),
    "mm out": lambda x: torch.mm(
        x, (x + 0).T, out=torch.empty(16, 16, dtype=x.dtype, device=x.device)
    ),
    "add out": lambda x: torch.add(x, 1.5, out=torch.empty_like(x)),
    "where out": lambda x: torch.where(x > 0, x, -x, out=torch.empty_like(x)),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_where_an_operation_runs_does_not_depend_on_inference_mode(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled in inference mode, its program is used outside of it, and the other way round."""
    run = IN_PLACE[name]
    torch.manual_seed(0)
    here = torch.randn(16, 64, dtype=torch.float16)
    expected = run(here.float())
    outcomes = []
    for first in (True, False):
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / str(first)))
        eager._C._clear_eager_programs()
        for inside in (first, not first):
            torch.spyre.reset_eager_counts()
            torch.spyre.reset_fallback_counts()
            with torch.inference_mode(inside):
                result = run(here.to("spyre")).cpu()
            outcomes.append((torch.spyre.eager_counts(), torch.spyre.fallback_counts()))
            torch.testing.assert_close(result.float(), expected, rtol=2**-6, atol=2**-4)
    eager._C._clear_eager_programs()
    assert all(outcome == outcomes[0] for outcome in outcomes)
    assert not outcomes[0][1]
