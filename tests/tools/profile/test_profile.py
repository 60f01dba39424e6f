"""`make profile`: phases, steps of the card with their sources, and what the tool refuses."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torch_spyre.show.explain import Explanation, Op
from torch_spyre.tools.profile import card_steps, measure, report, sampling
from torch_spyre.tools.profile.card_steps import steps_of
from torch_spyre.tools.profile.sampling import OTHER, Sampler, phase_of, stages

# ---- Sampling -----------------------------------------------------------------------------------


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock counts looks: between two of them there is one second, on any machine."""
    clock = SimpleNamespace(perf_counter=itertools.count().__next__)
    monkeypatch.setattr(sampling, "time", clock)


def _busy(sampler: Sampler, looks: int) -> None:
    """Until the sampler has looked so often."""
    end = sampler.samples + looks
    while sampler.samples < end:
        pass


def _function_in(file: str, body: str = "_busy(*args)") -> Callable[..., None]:
    """`_busy` as if it came from another file."""
    space: dict[str, Any] = {"_busy": _busy}
    exec(compile(f"def work(*args):\n    {body}\n", file, "exec"), space)
    return space["work"]


@pytest.mark.usefixtures("looks")
def test_time_goes_to_the_innermost_phase_and_adds_up() -> None:
    lower = _function_in("/x/torch/_inductor/graph.py")
    plan = _function_in("/x/torch_spyre/_inductor/layouts/stickify.py")
    with Sampler() as sampler:
        lower(sampler, 5)
        plan(sampler, 30)
        _busy(sampler, 5)
    phases = sampler.phases()
    assert abs(sum(phases.values()) - sampler.seconds) < 1e-6
    # Who waits for a processor is looked at more often, and nobody less: but for the first look,
    # which may have begun before.
    least = {"front-end: stickify": 29, "Inductor: lowering": 4, OTHER: 4}
    assert all(sampler._phases[phase] >= looks for phase, looks in least.items())
    assert list(phases) == [phase for phase, _ in sampler._phases.most_common()]
    inclusive, own = sampler.functions()["_inductor/layouts/stickify.py: work"]
    assert inclusive == phases["front-end: stickify"] and own < inclusive  # it calls a loop


def test_other_threads_are_counted_apart_unless_they_wait() -> None:
    plan = _function_in("/x/torch_spyre/_inductor/layouts/stickify.py")
    idle = _function_in("/x/torch_spyre/backend/read/bundle.py", "args[0].wait()")
    enough = threading.Event()
    sampler = Sampler()
    threads = [
        threading.Thread(target=plan, args=(sampler, 10)),
        threading.Thread(target=idle, args=(enough,)),
    ]
    threads[1].start()
    while sys._current_frames()[threads[1].ident or 0].f_code.co_name != "wait":
        pass  # it has begun to wait
    with sampler:
        threads[0].start()
        threads[0].join()
    enough.set()
    threads[1].join()
    assert "front-end: stickify" not in sampler.phases()
    others = sampler.other_threads()
    assert "front-end: stickify" in others and "back-end: bundle" not in others


@pytest.mark.parametrize(
    ("file", "phase"),
    [
        ("/site-packages/torch/_dynamo/symbolic_convert.py", "Dynamo"),
        ("/site-packages/torch/_dynamo/eval_frame.py", None),
        ("/site-packages/torch/_inductor/fx_passes/post_grad.py", "Inductor: FX passes"),
        ("/site-packages/torch/_inductor/sizevars.py", "Inductor: sizevars"),
        ("/site-packages/torch/_subclasses/fake_tensor.py", None),
        ("/home/me/torch_spyre/backend/read/sdsc_reader.py", "back-end: sdsc_reader"),
        ("/home/me/torch_spyre/_inductor/codegen/bundle.py", "SuperDSC: bundle"),
        ("/home/me/torch_spyre/upstream/trace_memo.py", None),
        ("/home/me/model.py", None),
        ("<frozen importlib._bootstrap>", "imports"),
    ],
)
def test_a_file_belongs_to_a_phase(file: str, phase: str | None) -> None:
    assert phase_of(file) == phase


def test_a_stage_is_the_sum_of_its_phases() -> None:
    phases = {"back-end: a": 1.0, "Dynamo": 2.5, "back-end: b": 2.0}
    assert list(stages(phases).items()) == [("back-end", 3.0), ("Dynamo", 2.5)]


# ---- Steps --------------------------------------------------------------------------------------


def _op(kernel: int, opfunc: str, shape: tuple[int, ...], reduced: tuple[int, ...] = ()) -> Op:
    source = f"/m/model.py:{kernel}: code"
    return Op(0, kernel, opfunc, "aten.x.default", shape, reduced, (), (), 1, source, "")


def test_steps_get_sizes_lines_and_rates_from_the_operations_of_their_kernel() -> None:
    told = Explanation(
        ops=[
            _op(0, "batchmatmul", (128, 256), (512,)),
            _op(0, "max", (128,), (256,)),
            _op(1, "exp", (64,)),
            _op(1, "add", (64,)),
        ]
    )
    rows = [
        ("0_batchmatmul", "matmul", 4, 0.008, 5.0),
        ("1_max", "tile", 4, 0.004, 1.0),
        ("0_exp+1_add", "tile", 8, 0.002, 2.0),
    ]
    product, largest, chain = steps_of(rows, 4, told)
    assert (product.program, largest.program, chain.program) == (0, 0, 1)
    assert product.us == 2000 and product.runs == 1
    assert product.flops == 2 * 128 * 256 * 512
    assert product.gflops == pytest.approx(2 * 128 * 256 * 512 / 2e-3 / 1e9)
    assert product.shape == "128x256 (512)" and largest.shape == "128 (256)"
    assert chain.opfuncs == ("exp", "add") and chain.flops == 0
    assert chain.runs == 2 and chain.modelled_us == 4.0
    assert chain.source == "/m/model.py:1: code"


def test_a_program_belongs_to_the_kernel_that_has_most_of_its_names() -> None:
    names = ["exp", "add", "mul", "sum", "sub"]
    other = [_op(0, name, (64,)) for name in ["exp", "exp", "mul", "sum", "sub"]]
    own = [_op(1, name, (128,)) for name in names]
    steps = ["0_exp+1_add", "2_mul", "3_sumnonstick", "4_sub"]
    rows = [(name, "tile", 1, 0.001, 1.0) for name in steps]
    found = steps_of(rows, 1, Explanation(ops=[*other, *own]))
    assert {step.shape for step in found} == {"128"}


def test_a_program_that_fits_no_kernel_keeps_its_times() -> None:
    (step,) = steps_of(
        [("0_exp", "tile", 2, 0.004, 1.0)], 2, Explanation(ops=[_op(0, "add", (4,))])
    )
    assert step.us == 2000 and step.source == "" and step.shape == ""


def test_the_steps_of_a_compiled_function_are_found() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ w, -1)

    x, w = (torch.randn(n, m).half().to("spyre") for n, m in ((64, 128), (128, 192)))
    steps = card_steps.measure(function, torch.compile(function), [x, w])
    product = next(step for step in steps if "batchmatmul" in step.opfuncs)
    assert product.flops == 2 * 64 * 128 * 192 and product.runs == 1
    assert "test_profile.py" in product.source and "softmax" in product.source
    assert all(step.us > 0 and step.modelled_us > 0 for step in steps)


# ---- The tool -----------------------------------------------------------------------------------

_MINE = """
import torch

def small(rows=8):
    return torch.nn.Linear(64, 64), (torch.randn(rows, 64),)

def wrong():
    return torch.nn.Linear(64, 64)

def broken():
    raise ValueError("of its own")
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine_to_profile.py").write_text(_MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_function_of_the_user_is_profiled(mine: Path) -> None:
    command = [sys.executable, "-m", "torch_spyre.tools.profile", "mine_to_profile:small"]
    done = subprocess.run(
        [*command, "--shape", "16", "--folder", str(mine)],
        env={**_environment(), "PYTHONPATH": str(mine)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    kept = json.loads((mine / "small_16.json").read_text())
    assert kept["compile_seconds"] > 0
    assert abs(sum(kept["phases"].values()) - kept["compile_seconds"]) < 1e-6
    assert any(phase.startswith("back-end") for phase in kept["phases"])
    host = kept["host"]
    assert host["total"] >= host["call"] >= host["host_code"] >= host["launch"] > 0
    assert host["launches"] == 1 and kept["fallbacks"] == {}
    (product,) = [step for step in kept["steps"] if step["flops"]]
    assert product["flops"] == 2 * 16 * 64 * 64
    for part in ("compile time", "back-end", "one call", "on the card", "batchmatmul"):
        assert part in done.stdout
    assert "the card's steps, in order" in (mine / "small_16.txt").read_text()


def _environment() -> dict[str, str]:
    import os

    return dict(os.environ)


@pytest.mark.parametrize(
    ("what", "shape", "message"),
    [
        ("mine_to_profile", (), "no module:function"),
        ("mine_to_profile:smal", (), "has no function 'smal'; it has .*small"),
        ("mine_to_profile:wrong", (), "must return a module or function and a tuple of inputs"),
        ("mine_to_profile:small", (1, 2), "mine_to_profile:small.1, 2."),
        ("mine_to_profile:broken", (), "^of its own"),
    ],
)
def test_what_cannot_be_profiled_is_refused(
    mine: Path, what: str, shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        measure.load(what, shape)


def test_the_command_says_what_is_wrong_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    assert measure.main(["no_such_module_here:f"]) == 2
    assert "no_such_module_here" in capsys.readouterr().err


def test_columns_of_numbers_are_flush_right() -> None:
    lines = report.table([("us", "size"), ("5", "128x4"), ("120", "64")])
    assert lines == ["   us  size", "    5  128x4", "  120  64"]
