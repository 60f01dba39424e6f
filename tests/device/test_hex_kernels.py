"""The older form of kernels, programs as lines of hexadecimal digits: `launch_kernel`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import torch_spyre._C as _C
from tests.support.job_plans import EMPTY_PROGRAM, allocations


def hex_lines(program: bytes) -> str:
    program = program.ljust(-(-len(program) // 128) * 128, b"\0")
    lines = [program[i : i + 128][::-1].hex() for i in range(0, len(program), 128)]
    return "# program\n\n" + "\n".join(f"{line}  # {i}" for i, line in enumerate(lines)) + "\n"


def write_kernel(directory: Path, text: str) -> Path:
    program = directory / "loadprogram_to_device" / f"{directory.name}-SenProgSend"
    program.mkdir(parents=True, exist_ok=True)
    (program / "init.txt").write_text(text)
    (directory / "bundle.mlir").write_text("module {}\n")
    return directory


@pytest.fixture
def kernel(tmp_path: Path):
    _C._clear_kernel_cache()
    yield tmp_path / "sdsc_add"
    _C._clear_kernel_cache()


@pytest.mark.parametrize("spell", [str, str.upper, lambda text: text.replace("\n", "\r\n")])
def test_a_hex_kernel_runs(kernel, spell):
    text = hex_lines(EMPTY_PROGRAM + bytes(200))
    comment, _, rest = text.partition("\n")
    write_kernel(kernel, comment + "\n" + spell(rest))
    x = torch.ones(2, device="spyre")
    _C.launch_kernel(str(kernel), [x, x])
    torch.spyre.synchronize()


def test_a_hex_kernel_is_loaded_once_per_directory(kernel, tmp_path):
    before = allocations()
    write_kernel(kernel, hex_lines(EMPTY_PROGRAM))
    _C.launch_kernel(str(kernel), [])
    assert allocations() == before + 1
    (kernel / "bundle.mlir").unlink()
    _C.launch_kernel(str(kernel), ())
    _C.launch_kernel(str(kernel) + "/", ())
    assert allocations() == before + 1
    _C.launch_kernel(str(write_kernel(tmp_path / "other", hex_lines(EMPTY_PROGRAM))), [])
    assert allocations() == before + 2
    _C._clear_kernel_cache()
    assert allocations() == before
    with pytest.raises(
        RuntimeError, match=r"Required file bundle\.mlir not found in '.*/sdsc_add'"
    ):
        _C.launch_kernel(str(kernel), [])


def test_a_hex_kernel_is_loaded_at_the_base_of_the_program_segment(kernel):
    write_kernel(kernel, hex_lines(b"PROGRAM?" + bytes(120)))
    _C.launch_kernel(str(kernel), [])
    expected = "^kernel sdsc_add step 0: no Spyre program at 0x1c00000000.*found 'PROGRAM\\?'"
    with pytest.raises(RuntimeError, match=expected):
        torch.spyre.synchronize()


def test_a_hex_kernel_runs_on_the_card_of_its_arguments(script, kernel):
    write_kernel(kernel, hex_lines(EMPTY_PROGRAM))
    out = script(
        f"""
        import torch, torch_spyre._C as _C
        x = [torch.ones(2, device=f"spyre:{{i}}") for i in range(2)]
        before = [torch.spyre.memory_allocated(i) for i in range(2)]
        _C.launch_kernel({str(kernel)!r}, [x[1]])
        print([torch.spyre.memory_allocated(i) - before[i] for i in range(2)])
        _C.launch_kernel({str(kernel)!r}, [x[0]])
        print([torch.spyre.memory_allocated(i) - before[i] for i in range(2)])
        try:
            _C.launch_kernel({str(kernel)!r}, [x[0], x[1]])
        except RuntimeError as error:
            print(error)
        """,
        AIU_WORLD_SIZE="2",
    ).splitlines()
    assert out[:2] == ["[0, 128]", "[128, 128]"]
    assert out[2].startswith("args[1] must be a tensor on spyre:0")


def test_missing_files_of_a_hex_kernel(kernel):
    with pytest.raises(RuntimeError, match=r"kernel directory does not exist: '.*/sdsc_add'"):
        _C.launch_kernel(str(kernel), [])
    write_kernel(kernel, hex_lines(EMPTY_PROGRAM))
    init = kernel / "loadprogram_to_device" / "sdsc_add-SenProgSend" / "init.txt"
    init.unlink()
    with pytest.raises(
        RuntimeError, match=r"Required file init\.txt not found: '.*SenProgSend/init"
    ):
        _C.launch_kernel(str(kernel), [])
    write_kernel(kernel, hex_lines(EMPTY_PROGRAM))
    _C.launch_kernel(str(kernel), [])  # a refusal is not remembered
    torch.spyre.synchronize()


@pytest.mark.parametrize(
    "text, message",
    [
        ("# only a comment\n", "init.txt: holds no program"),
        ("", "init.txt: holds no program"),
        ("00" * 128 + "\n" + "0" * 255, "init.txt:2: expected 256 hex digits a line, found 255"),
        ("0" * 258, "init.txt:1: expected 256 hex digits a line, found 258"),
        (
            "\n" + "0" * 10 + "g" + "0" * 245,
            "init.txt:2: expected hex digits, found 'g' at digit 11",
        ),
        ("0x" + "0" * 254, "init.txt:1: expected hex digits, found 'x' at digit 2"),
        ("00 " * 128, "init.txt:1: expected hex digits, found ' ' at digit 3"),
    ],
)
def test_bad_hex(kernel, text: str, message: str):
    with pytest.raises(RuntimeError) as error:
        _C.launch_kernel(str(write_kernel(kernel, text)), [])
    assert message in str(error.value)


def test_free_runtime_drops_cached_kernels(script, kernel):
    write_kernel(kernel, hex_lines(EMPTY_PROGRAM))
    out = script(
        f"""
        import torch, torch_spyre._C as _C
        for _ in range(2):
            _C.launch_kernel({str(kernel)!r}, [])
            _C.free_runtime()
            print(_C._is_started())
        """
    )
    assert out.split() == ["False", "False"]
