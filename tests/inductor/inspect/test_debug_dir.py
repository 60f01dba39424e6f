"""TORCH_COMPILE_DEBUG=1 and TORCH_LOGS show what the compiler decided."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torch_spyre._inductor.opspec.text import parse
from torch_spyre.backend.__main__ import main as compile_by_hand

SCRIPT = """
import torch
torch.spyre.set_fallback_warning(False)

@torch.compile
def program(x):
    y = torch.lgamma(x + 1)
    return torch.softmax(y, -1).t() @ x

program(torch.ones(128, 256, dtype=torch.float16, device="spyre"))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The directory `spyre` that a process left, and what it logged."""
    root = tmp_path_factory.mktemp("debug")
    script = root / "script.py"
    script.write_text(SCRIPT)
    variables = {
        "TORCHINDUCTOR_CACHE_DIR": str(root / "cache"),
        "TORCH_COMPILE_DEBUG": "1",
        "TORCH_COMPILE_DEBUG_DIR": str(root / "run"),
        "TORCH_LOGS": "+spyre.inductor",
    }
    result = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    log = result.stdout + result.stderr
    assert result.returncode == 0, log
    (directory,) = root.glob("run/**/spyre")
    return directory, log


def test_the_files_stand_beside_those_of_inductor(run):
    directory, _ = run
    beside = {p.name for p in directory.parent.iterdir()}
    assert {"output_code.py", "ir_post_fusion.txt", "fx_graph_readable.py"} <= beside
    for kernel in directory.glob("sdsc_*"):
        names = {p.name for p in kernel.iterdir()}
        assert names >= {"operations.txt", "layouts.txt", "restickifies.txt", "op_specs.py",
                         "bundle.mlir", "sdsc_0.json", "program.txt"}  # fmt: skip
        assert len(parse((kernel / "op_specs.py").read_text())) == len(
            list(kernel.glob("sdsc_*.json"))
        )
        assert f"{kernel.name}.run(" in (directory.parent / "output_code.py").read_text()


def kernel_with(directory: Path, opfunc: str) -> Path:
    (found,) = [p for p in directory.glob("sdsc_*") if opfunc in
                (p / "op_specs.py").read_text()]  # fmt: skip
    return found


def test_the_summary_has_kernels_and_host_steps_in_order(run):
    directory, _ = run
    text = (directory / "summary.txt").read_text()
    assert text.startswith("2 kernels, ")
    order = [text.index(part) for part in (" add ", "host: aten.lgamma.default", " batchmatmul ")]
    assert order == sorted(order)
    assert "script.py:7: y = torch.lgamma(x + 1)" in text


def test_operations_layouts_and_restickifies_can_be_read(run):
    directory, _ = run
    kernel = kernel_with(directory, "batchmatmul")
    operations = (kernel / "operations.txt").read_text()
    assert "script.py:8: return torch.softmax(y, -1).t() @ x" in operations
    assert re.search(r"\d: batchmatmul  256x256 \(128\)  \d+ cores", operations)
    layouts = (kernel / "layouts.txt").read_text().splitlines()
    columns = layouts[0].index("where")
    assert all(line[columns - 1] == " " and line[columns] != " " for line in layouts[1:])
    assert any("[4, 128, 64] / [64, 256, 1]" in line for line in layouts)
    restickifies = (kernel / "restickifies.txt").read_text()
    assert "elements for aten." in restickifies and " -> [" in restickifies


def test_the_bundle_can_be_compiled_by_hand(run, tmp_path, capsys):
    directory, _ = run
    kernel = kernel_with(directory, "batchmatmul")
    assert compile_by_hand([str(kernel), "-o", str(tmp_path / "out"), "--disassemble"]) == 0
    shown = capsys.readouterr().out
    program = (kernel / "program.txt").read_text()
    assert program.splitlines()[-1] in shown


def test_the_log_shows_decisions_with_reasons(run):
    directory, log = run
    assert re.search(r"kernel sdsc_\w+: \d+ operations?, \d arguments, \d+ bytes of pool", log)
    assert re.search(r"layout of buf\d+\[.*\] in pool: \[", log)
    assert re.search(r"restickify \w+ \(\d+ elements\) for aten\.\S+: ", log)
    assert re.search(r"fallback aten\.lgamma\.default 128x256: .*; at .*script\.py:7", log)
    found = re.search(r"bundle of (\w+), made in .* s: (\S+)", log)
    assert found is not None and (directory / found[1]).is_dir()
    assert (Path(found[2]) / "bundle.mlir").is_file()


def test_a_graph_whose_bundle_is_in_the_cache_has_files_too(tmp_path):
    """Without caches of whole graphs: Inductor writes nothing about a graph from there."""

    def function(x):
        return x * 2 + 1

    x = torch.ones(64, 64, dtype=torch.float16, device="spyre")
    for number in range(2):
        torch._dynamo.reset()
        where = tmp_path / str(number)
        with torch._inductor.config.patch({"trace.enabled": True, "trace.debug_dir": str(where)}):
            torch.compile(function)(x)
        assert len(list(where.rglob("spyre/*/program.txt"))) == 1
        assert len(list(where.rglob("spyre/*/sdsc_*.json"))) == 2


def test_a_full_disk_does_not_end_a_compilation_that_is_looked_at(tmp_path, monkeypatch):
    from torch_spyre._inductor.inspect import report

    def fail(kernel):
        raise OSError("no space left")

    monkeypatch.setattr(report, "layouts", fail)
    torch._dynamo.reset()
    with torch._inductor.config.patch({"trace.enabled": True, "trace.debug_dir": str(tmp_path)}):
        result = torch.compile(lambda x: x + 3)(torch.ones(64, dtype=torch.float16, device="spyre"))
    assert result.cpu().tolist() == [4.0] * 64
