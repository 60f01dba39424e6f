"""The command, the SpyreCode directory and the cache."""

from __future__ import annotations

import ast
import json
import os
import shutil
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from torch_spyre.backend import BundleError, SpyreCodeError, compile_bundle
from torch_spyre.backend import __main__ as command
from torch_spyre.backend.emit.cache import KEY_FILE
from torch_spyre.backend.emit.program import read_program
from torch_spyre.backend.emit.spyrecode import read_spyrecode
from torch_spyre.backend.report import disassemble

HANDWRITTEN = Path(__file__).parent / "handwritten"
BASE = 0x1C00000000


def bundle_copy(tmp_path: Path) -> Path:
    directory = tmp_path / "bundle"
    shutil.copytree(HANDWRITTEN, directory)
    return directory


# ---- the command ---------------------------------------------------------------------------------


def test_the_command_shows_operations_steps_and_output(tmp_path, capsys):
    out = tmp_path / "out"
    assert command.main([str(HANDWRITTEN), "-o", str(out), "--disassemble"]) == 0
    text = capsys.readouterr().out
    for part in (
        "2 operations, symbolic addresses, argument 0 is the pool",
        "0_add", "mb 96, out 320", "4 cores: mb 4",
        "SEN169_FP16", "out/64 5, mb 96, [64]", "mb 96, [64 the same]", "pool +0 to +9216",
        "program: 1 step,", "us modelled", "0_add + 1_sum",
        "r0 = load @0", "reduce sum r0 over 1 dims and lanes", "round r0 to SEN169_FP16",
        f"written to {out}",
    ):  # fmt: skip
        assert part in text, text
    assert command.main([str(HANDWRITTEN), "-o", str(tmp_path / "plain"), "--no-fuse"]) == 0
    assert "program: 2 steps," in capsys.readouterr().out


def test_the_default_output_is_in_the_bundle(tmp_path, capsys):
    directory = bundle_copy(tmp_path)
    assert command.main([str(directory)]) == 0
    assert (directory / "spyreCodeDir" / "spyrecode.json").is_file()
    assert command.main([str(directory)]) == 0  # its own output does not disturb a bundle


def test_errors_are_one_line_and_exit_code_2(tmp_path, capsys):
    directory = bundle_copy(tmp_path)
    path = directory / "sdsc_0.json"
    path.write_text(path.read_text().replace('"mb_": 96', '"mb_": 98'))
    assert command.main([str(directory)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert captured.err.startswith("error: sdsc_0.json: numWkSlicesPerDim_.mb: found 4, allowed:")
    assert command.main([str(tmp_path / "nowhere")]) == 2
    assert not (directory / "spyreCodeDir").exists()


def test_it_runs_as_a_module(tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "torch_spyre.backend", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert result.stderr.strip().splitlines()[-1].startswith("error: ")
    assert "Traceback" not in result.stderr


def test_the_back_end_stands_alone():
    """Its modules use the standard library and the common tables, nothing else."""
    allowed = ("torch_spyre.backend", "torch_spyre.opfuncs", "torch_spyre.hardware",
               "torch_spyre.constants", "torch_spyre.card_model",
               "torch_spyre.cache.store", "torch_spyre.validation")  # fmt: skip
    for path in Path(command.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module == "torch_spyre":
                names = [f"torch_spyre.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                known = name.startswith(allowed) or name.split(".")[0] in sys.stdlib_module_names
                assert known, f"{path.name} imports {name}"


# ---- the directory -------------------------------------------------------------------------------


def test_the_manifest_is_what_the_runtime_reads(tmp_path):
    out = compile_bundle(HANDWRITTEN, tmp_path / "out")
    manifest = json.loads((out / "spyrecode.json").read_text())
    size = str((out / "program.bin").stat().st_size)
    assert manifest == {
        "JobPreparationPlan": [
            {"command": "Allocate", "properties": {"size": size}},
            {
                "command": "InitTransfer",
                "properties": {"init_bin_file": "program.bin", "dev_ptr": str(BASE), "size": size},
            },
        ],
        "JobExecPlan": [
            {"command": "ComputeOnDevice", "properties": {"job_bin_ptr": str(BASE)}},
        ],
    }
    program = (out / "program.bin").read_bytes()
    assert program[:8] == b"SPYREPRG"
    version, words = struct.unpack_from("<II", program, 8)
    assert version == 5 and len(program) == 16 + 8 * words
    assert [s.name for s in read_spyrecode(out)] == ["0_add+1_sum"]
    assert "0_add+1_sum" in disassemble(read_program(program))


def damage(path: Path, change: dict[str, str]) -> None:
    text = path.read_text()
    for old, new in change.items():
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


@pytest.mark.parametrize(
    "change, parts",
    [
        ({"Allocate": "Free"}, ["JobPreparationPlan", "found Free", "Allocate, InitTransfer"]),
        ({"ComputeOnDevice": "ComputeOnHost"}, ["JobExecPlan", "ComputeOnHost"]),
        ({'"120259084288"': "120259084288"}, ["dev_ptr", "found 120259084288", "decimal string"]),
        ({"120259084288": "12"}, ["dev_ptr", "found 12", "120259084288"]),
        ({"program.bin": "other.bin"}, ["init_bin_file", "no file 'other.bin'"]),
        ({"JobExecPlan": "JobPlan"}, ["JobExecPlan", "found nothing"]),
        ({"{\n": "{,\n"}, ["not valid JSON"]),
    ],
)
def test_a_damaged_manifest(tmp_path, change: dict[str, str], parts: list[str]):
    out = compile_bundle(HANDWRITTEN, tmp_path / "out")
    damage(out / "spyrecode.json", change)
    with pytest.raises(SpyreCodeError) as error:
        read_spyrecode(out)
    for part in parts:
        assert part in str(error.value)


def words(program: bytes) -> list[int]:
    return list(struct.unpack(f"<{(len(program) - 16) // 8}q", program[16:]))


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda p: p[:10], "found 10 bytes"),
        (lambda p: b"X" + p[1:], "found magic b'XPYREPRG'"),
        (lambda p: p[:8] + struct.pack("<I", 1) + p[12:], "found version 1, allowed: 5"),
        (lambda p: p[:-8], "as the header says"),
        (lambda p: p[:16] + struct.pack("<q", 12) + p[24:], "word 0: found kind 12"),
        (lambda p: p[:24] + struct.pack("<q", 3) + p[32:], "found a step of 3 words"),
        (lambda p: p[:24] + struct.pack("<q", words(p)[1] - 1) + p[32:], "too early"),
    ],
)
def test_bytes_that_are_no_program(tmp_path, change, message: str):
    program = (compile_bundle(HANDWRITTEN, tmp_path / "out") / "program.bin").read_bytes()
    assert len(read_program(program)) == 1
    with pytest.raises(Exception, match=message):
        read_program(change(program))


def test_the_same_bundle_gives_the_same_bytes(tmp_path):
    first, second = (compile_bundle(HANDWRITTEN, tmp_path / str(i)) for i in range(2))
    for name in ("program.bin", "spyrecode.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


# ---- the cache -----------------------------------------------------------------------------------


def test_a_second_compile_is_a_lookup(tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    first = compile_bundle(HANDWRITTEN, tmp_path / "a", cache_dir=cache)
    assert len(list(cache.iterdir())) == 1

    def never(*args: object, **options: object) -> None:
        raise AssertionError("the bundle was read again")

    monkeypatch.setattr("torch_spyre.backend.read_bundle", never)
    second = compile_bundle(HANDWRITTEN, tmp_path / "b", cache_dir=cache)
    assert (first / "program.bin").read_bytes() == (second / "program.bin").read_bytes()
    assert compile_bundle(HANDWRITTEN, tmp_path / "a") == first  # the output knows its content


def test_a_damaged_entry_is_compiled_again(tmp_path):
    cache = tmp_path / "cache"
    first = compile_bundle(HANDWRITTEN, tmp_path / "a", cache_dir=cache)
    (kept,) = cache.glob("*/program.bin")
    kept.write_bytes(kept.read_bytes()[:-1] + b"!")
    second = compile_bundle(HANDWRITTEN, tmp_path / "b", cache_dir=cache)
    assert (first / "program.bin").read_bytes() == (second / "program.bin").read_bytes()
    assert kept.read_bytes() == (first / "program.bin").read_bytes()


def test_content_and_options_are_the_key(tmp_path):
    cache = tmp_path / "cache"
    directory = bundle_copy(tmp_path)
    keys = set()
    for options in ({}, {"fuse": False}):
        out = compile_bundle(directory, cache_dir=cache, **options)
        keys.add((out / KEY_FILE).read_text())
    path = directory / "sdsc_1.json"
    path.write_text(path.read_text().replace("1_sum", "2_sum"))
    out = compile_bundle(directory, cache_dir=cache)
    assert [s.name for s in read_spyrecode(out)] == ["0_add+2_sum"]
    keys.add((out / KEY_FILE).read_text())
    assert len(keys) == 3 == len(list(cache.iterdir()))
    same = tmp_path / "elsewhere"
    shutil.copytree(HANDWRITTEN, same)
    assert (compile_bundle(same, cache_dir=cache) / KEY_FILE).read_text() in keys


def test_a_changed_bundle_replaces_the_output_whole(tmp_path):
    directory = bundle_copy(tmp_path)
    out = compile_bundle(directory)
    (out / "left-over").write_text("old")
    path = directory / "sdsc_0.json"
    path.write_text(path.read_text() + "\n")
    assert compile_bundle(directory) == out
    assert sorted(p.name for p in out.iterdir()) == [
        "bundle.sha256",
        "program.bin",
        "spyrecode.json",
    ]
    assert not [p for p in directory.iterdir() if p.name.startswith(".")]


def test_many_at_once(tmp_path):
    errors = []

    def work(fuse: bool) -> None:
        try:
            for _ in range(5):
                out = compile_bundle(HANDWRITTEN, tmp_path / "out", fuse=fuse)
                assert (out / "spyrecode.json").name == "spyrecode.json"
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i % 2 == 0,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    read_spyrecode(tmp_path / "out")
    assert os.listdir(tmp_path) == ["out"]


def test_a_broken_bundle_leaves_no_files(tmp_path):
    directory = bundle_copy(tmp_path)
    (directory / "sdsc_1.json").unlink()
    with pytest.raises(BundleError, match=r"unknown file 'sdsc_1\.json'"):
        compile_bundle(directory, cache_dir=tmp_path / "cache")
    assert not (directory / "spyreCodeDir").exists() and not (tmp_path / "cache").exists()
    with pytest.raises(BundleError, match="no such directory"):
        compile_bundle(tmp_path / "nowhere")
