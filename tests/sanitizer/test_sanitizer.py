"""The sanitizer from Python: switching it on, what its error says, what the host does."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch._inductor.utils import fresh_cache

import torch_spyre._C as _C
from tests.sanitizer.cases import handmade_cases, record
from tests.sanitizer.faults import Case, write_code
from torch_spyre._inductor import config
from torch_spyre.backend.sanitizer_data import write_checks
from torch_spyre.backend.steps import Copy, Tile, addresses, with_addresses
from torch_spyre.device.sanitizer import Finding


@pytest.fixture
def scratchpad(tmp_path) -> Case:
    return handmade_cases(tmp_path)[0]


def broken(case: Case, code: Path) -> Path:
    """The first step writes one stick further on core 1, where core 2 writes too."""
    items = case.items()
    step = items[-1]
    assert isinstance(step, Tile)
    out = addresses(step)[-1]
    moved = tuple(o + 128 * (core == 1) for core, o in enumerate(out.offsets))
    items[-1] = with_addresses(
        step, (*addresses(step)[:-1], type(out)(out.space, out.argument, moved))
    )
    write_code(case, items, code)
    return code


def test_a_block_turns_it_on_and_off():
    assert not torch.spyre.is_sanitizing()
    with torch.spyre.sanitizer():
        assert torch.spyre.is_sanitizing()
        with torch.spyre.sanitizer():
            assert torch.spyre.is_sanitizing()
        assert torch.spyre.is_sanitizing()
    assert not torch.spyre.is_sanitizing()


def test_a_finding_names_kernel_operation_core_tensor_address_line_and_writer(scratchpad, tmp_path):
    code = broken(scratchpad, tmp_path / "code")
    with pytest.raises(torch.spyre.SanitizerError) as raised, torch.spyre.sanitizer():
        scratchpad.launch(code)
    finding = raised.value.findings[0]
    assert isinstance(finding, Finding)
    assert finding.what.startswith("scratchpad: ")
    assert "sub writes a stick that another core writes in the same step" in finding.what
    assert finding.core == 2
    assert finding.tensor == "argument 1"
    assert finding.address.startswith("0x")
    assert "model.py:4: line 3" in finding.source
    assert "of scratchpad, core 1" in finding.written
    assert not torch.spyre.is_sanitizing()


def test_without_it_the_same_program_runs(scratchpad, tmp_path):
    scratchpad.launch(broken(scratchpad, tmp_path / "code"))


def test_the_error_comes_with_the_next_call_that_waits(scratchpad, tmp_path):
    code = broken(scratchpad, tmp_path / "code")
    plan = _C.prepare_kernel(str(code))
    with torch.spyre.sanitizer():
        tensors = [argument.make(False) for argument in scratchpad.arguments]
        _C.launch_jobplan(plan, tensors)
        with pytest.raises(torch.spyre.SanitizerError):
            tensors[1].cpu()
        tensors[0].cpu()


def test_compiled_programs_have_names_and_lines():
    def add_one_and_sum(x):
        return torch.relu(x + 1).sum(-1)

    case = record("sum", add_one_and_sum, [torch.randn(8, 100).half()])[0]
    names = (case.directory / "names.json").read_text()
    assert "return torch.relu(x + 1).sum(-1)" in names
    assert "test_sanitizer.py" in names
    assert '"arg0_1"' in names


def test_the_host_may_read_an_unwritten_tensor_but_not_a_half_written_one():
    with torch.spyre.sanitizer():
        torch.empty(4, 100, dtype=torch.float16, device="spyre").cpu()
        half_written = torch.empty(4, 100, dtype=torch.float16, device="spyre")
        half_written[:2] = 1
        half_written[:2].cpu()
        with pytest.raises(torch.spyre.SanitizerError, match="elements that nobody wrote"):
            half_written.cpu()


def test_memory_from_before_counts_as_written():
    x = torch.empty(4, 100, dtype=torch.float16, device="spyre")
    with torch.spyre.sanitizer():
        x.cpu()


def test_the_environment_turns_it_on(script):
    out = script(
        """
        import torch
        print(torch.spyre.is_sanitizing())
        x = torch.randn(33, 100, dtype=torch.float16).to("spyre")
        f = torch.compile(lambda x: torch.softmax(x @ x.T, -1))
        print(torch.isfinite(f(x).cpu()).all().item(), torch.spyre.is_sanitizing())
        """,
        SPYRE_SANITIZE="1",
    )
    assert out.split() == ["True", "True", "True"]


def test_a_strange_value_of_the_variable_is_refused(script):
    out = script("import torch; torch.zeros(1, device='spyre')", expect_failure=True,
                 SPYRE_SANITIZE="maybe")  # fmt: skip
    assert "SPYRE_SANITIZE" in out and "maybe" in out


def test_names_of_another_version_are_refused(scratchpad, tmp_path):
    write_code(scratchpad, scratchpad.items(), tmp_path / "code")
    names = tmp_path / "code" / "names.json"
    names.write_text(names.read_text().replace('"version": 1', '"version": 9'))
    with pytest.raises(RuntimeError, match="version 9"), torch.spyre.sanitizer():
        scratchpad.launch(tmp_path / "code")


def test_kernels_whose_files_are_gone_are_checked_without_names():
    x = torch.randn(3, 70).half().to("spyre")
    with fresh_cache():
        compiled = torch.compile(lambda x: torch.exp(x) * 3)
        expected = compiled(x).cpu()
    with torch.spyre.sanitizer():
        found = compiled(x).cpu()
    assert torch.equal(found, expected)


def test_side_files_that_were_changed_are_made_again(scratchpad, tmp_path):
    code = tmp_path / "code"
    code.mkdir()

    def write() -> None:
        write_checks(
            scratchpad.directory, code, fuse=True, pool=scratchpad.pool_bytes > 0, private_lx=True
        )

    write()
    files = {path: path.read_bytes() for path in code.iterdir()}
    assert {path.name for path in files} >= {"names.json", "reference.bin", "checked.bin"}
    for path, content in files.items():
        path.write_bytes(content[:-7] + b"garbage")
        write()
        assert path.read_bytes() == content


@pytest.mark.parametrize("shifted", [False, True])
def test_a_copy_between_layouts_is_checked_in_every_launch(tmp_path, shifted):
    """The first launch follows elements, later ones sticks: both see the same."""

    def function(x):
        return (x[:, 10:] - x.t()[:60].t()) * 2

    (case,) = record("copies", function, [torch.randn(100, 70).half()])
    items = case.items()
    if shifted:
        at = next(i for i, item in enumerate(items) if isinstance(item, Copy))
        (source, target) = addresses(items[at])
        moved = replace(source, offsets=(source.offsets[0] + 128, *source.offsets[1:]))
        items[at] = with_addresses(items[at], (moved, target))
    write_code(case, items, tmp_path / "code")
    plan = _C.prepare_kernel(str(tmp_path / "code"))
    said = []
    for _ in range(3):
        with torch.spyre.sanitizer():
            pool = [torch.empty(case.pool_bytes // 4, device="spyre")] if case.pool_bytes else []
            tensors = [argument.make(False) for argument in case.arguments]
            try:
                _C.launch_jobplan(plan, [*pool, *tensors])
                torch.spyre.synchronize()
                said.append("")
            except torch.spyre.SanitizerError as error:
                said.append(re.sub(r"0x[0-9a-f]+", "address", str(error)))
    assert bool(said[0]) == shifted and said[0] == said[1] == said[2], said


def test_a_part_of_a_joined_tensor_that_is_written_before_its_first_part_is_no_fault():
    """The cast of the last part ends with the step of a chain that comes before the copies."""

    def joined(x, y, column, at):
        rows = x.sum(1, keepdim=True)
        both = torch.cat([rows, rows, F.leaky_relu(y)], 0)
        copied = rows.index_copy(-1, at, column)
        return both.amin((0, 1)), torch.expm1(both), torch.sigmoid(copied)

    torch._dynamo.reset()
    inputs = [torch.randn(64, 1).half(), torch.randn(2, 1).half(), torch.randn(64, 1).half()]
    inputs.append(torch.zeros(1, dtype=torch.int64))
    with torch.spyre.sanitizer(), config.patch(cores=6):
        found = torch.compile(joined)(*(x.to("spyre") for x in inputs))
    for result, expected in zip(found, joined(*inputs), strict=True):
        torch.testing.assert_close(result.cpu(), expected, rtol=1e-2, atol=1e-2)
