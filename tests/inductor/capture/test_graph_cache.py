"""A second process starts warm; the key is complete; nothing on disk leads to a wrong program."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from torch_spyre._inductor import config
from torch_spyre._inductor.capture import graph_cache
from torch_spyre._inductor.host import async_compile

SOURCE = """
    import json, os, signal, torch, torch_spyre
    from torch._dynamo.utils import counters
    from torch_spyre._C import SpyreTensorLayout
    from torch_spyre import backend
    from torch_spyre._inductor import config
    from torch_spyre._inductor.counters import counters as ours
    from torch_spyre._inductor.host import async_compile, inductor_hooks

    x = torch.randn(100, 70).half()
    sticks_along_rows = SpyreTensorLayout([100, 70], [70, 1], torch.float16, [1, 0])
    package_hash = async_compile.source_hash
    work = backend.compile_bundle

    def f(a):
        return torch.softmax(a * 2, -1) + 1

    def result(change):
        torch._dynamo.reset()
        counters.clear()
        ours.update(bundles_compiled=0, bundles_reused=0)
        other = (lambda: "another version") if change == "source" else package_hash
        async_compile.source_hash = inductor_hooks.source_hash = other
        d = x.to("spyre", device_layout=sticks_along_rows) if change == "layout" else x.to("spyre")
        with config.patch(cores=4 if change == "cores" else 32):
            y = torch.compile(f)(d).cpu()
        assert (y - f(x.float())).abs().max() < 0.01
        inductor, aot = counters["inductor"], counters["aot_autograd"]
        return {
            "hits": inductor["fxgraph_cache_hit"], "misses": inductor["fxgraph_cache_miss"],
            "bypasses": inductor["fxgraph_cache_bypass"], "aot_hits": aot["autograd_cache_hit"],
            **ours,
        }

    def die(*args, **kwargs):
        work(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    if os.environ.get("KILLED"):
        backend.compile_bundle = die
    changes = os.environ.get("CHANGES", "").split(",")
    print(json.dumps({change: result(change) for change in changes}))
"""


def run(script: Any, folder: Path, changes: str = "") -> dict[str, dict[str, int]]:
    output = script(SOURCE, TORCHINDUCTOR_CACHE_DIR=str(folder), CHANGES=changes)
    return json.loads(output.splitlines()[-1])


def test_a_second_process_compiles_nothing_and_the_key_has_layouts_sources_and_settings(
    script: Any, tmp_path: Path
) -> None:
    for change, found in run(script, tmp_path, ",layout,source,cores").items():
        assert found["misses"] == 1 and found["hits"] == 0, f"{change} must be in the key"
        assert found["bypasses"] == 0 and found["bundles_compiled"] == 1
    for change, found in run(script, tmp_path, "cores,layout,source,").items():
        assert found["hits"] == 1 and found["misses"] == 0, f"{change}: warm"
        assert found["aot_hits"] == 1
        assert found["bundles_reused"] == 1 and found["bundles_compiled"] == 0


# ---- Files that are not as they were written ----------------------------------------------------


def program(a: torch.Tensor) -> torch.Tensor:
    return torch.softmax(a * 2, -1) + 1


X = torch.linspace(-3, 3, 1000).reshape(20, 50).half()
RIGHT = program(X.float())


def compiled(function: Any = program) -> torch.Tensor:
    torch._dynamo.reset()
    return torch.compile(function)(X.to("spyre")).cpu()


def assert_right(result: torch.Tensor) -> None:
    torch.testing.assert_close(result.float(), RIGHT, rtol=1e-2, atol=1e-2)


def kept(folder: Path) -> dict[str, Path]:
    """One file of each kind; there must be no second one of a kind."""
    patterns = {
        "fx": "fxgraph/*/*/*",
        "aot": "aotautograd/*/*",
        "host code": "??/*.py",
        "program": "inductor-spyre/sdsc*/spyreCodeDir/program.bin",
        "plan": "inductor-spyre/sdsc*/spyreCodeDir/spyrecode.json",
        "manifest": "inductor-spyre/sdsc*/entry.json",
    }
    found = {kind: list(folder.glob(pattern)) for kind, pattern in patterns.items()}
    assert {kind: len(files) for kind, files in found.items()} == dict.fromkeys(patterns, 1)
    return {kind: file for kind, (file,) in found.items()}


def a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def link_of_another_user(path: Path) -> None:
    other = path.parent.parent / "copy"
    shutil.move(path, other)
    path.symlink_to(other)


FAULTS: dict[str, Callable[[Path], Any]] = {
    "truncated": lambda p: p.write_bytes(p.read_bytes()[:100]),
    "garbage": lambda p: p.write_bytes(b"\x80\x04garbage" * 100),
    "a bit": a_bit,
    "open to all": lambda p: p.chmod(0o666),
    "a link": link_of_another_user,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "caches"))
    return tmp_path / "caches"


def test_damaged_files_of_every_cache_are_made_again(folder: Path) -> None:
    assert_right(compiled())
    for kind in kept(folder):
        for fault, spoil in FAULTS.items():
            file = kept(folder)[kind]
            whole = file.read_bytes()
            spoil(file)
            counters.clear()
            assert_right(compiled())
            _leave_newest(folder, "aotautograd/*/*")  # a graph that was compiled again in one
            _leave_newest(folder, "??/*.py")  # process has another number in its host code
            again = kept(folder)[kind]
            if kind not in ("fx", "aot"):  # a pickle has the time that compiling took
                assert again.read_bytes() == whole, f"{kind}: {fault}"
            assert not again.is_symlink(), f"{kind}: {fault}"
            if kind != "host code":  # of which the content is compared, whoever wrote it
                assert not again.stat().st_mode & 0o077, f"{kind}: {fault}"
            if kind == "fx":
                assert counters["inductor"]["fxgraph_cache_hit"] == 0, fault
            if kind == "aot":
                assert counters["aot_autograd"]["autograd_cache_hit"] == 0, fault


def _leave_newest(folder: Path, pattern: str) -> None:
    for older in sorted(folder.glob(pattern), key=lambda f: f.lstat().st_mtime_ns)[:-1]:
        older.unlink()


def test_a_kernel_whose_files_vanish_before_it_is_loaded_is_compiled_again(folder: Path) -> None:
    compiled()
    (kernel,) = [k for k in async_compile._kernels if k.directory.startswith(str(folder))]
    code = Path(kernel.directory)
    whole = (code / "program.bin").read_bytes()
    (code / "program.bin").write_bytes(whole[:100])
    with config.patch(cores=3):  # it is made as it was
        assert kernel._prepare() is not None
    assert (code / "program.bin").read_bytes() == whole
    shutil.rmtree(code.parent)
    assert kernel._prepare() is not None
    assert (code / "program.bin").read_bytes() == whole


# ---- Directories and disks ----------------------------------------------------------------------


@pytest.mark.parametrize("how", ["of another user", "open to all"])
def test_a_directory_that_others_can_write_is_not_used(folder: Path, how: str) -> None:
    folder.mkdir()
    (folder / "planted").touch()
    with pytest.MonkeyPatch.context() as patched:
        if how == "open to all":
            folder.chmod(0o777)
        else:
            patched.setattr(os, "stat", functools.partial(_foreign, os.stat, folder))
        with pytest.warns(UserWarning, match="compiled programs cannot be kept in .*caches"):
            assert_right(compiled())
    assert [p.name for p in folder.iterdir()] == ["planted"]
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] != str(folder)


def _foreign(stat: Any, folder: Path, path: Any, **options: Any) -> os.stat_result:
    found = stat(path, **options)
    if str(path) != str(folder):
        return found
    return os.stat_result([*found[:4], os.getuid() + 1, *found[5:]])


def test_a_directory_of_ours_becomes_private(folder: Path) -> None:
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)  # empty: no other user has written to it yet
    compiled()
    assert folder.stat().st_mode & 0o777 == 0o700


WITHOUT_DISK = """
    import errno, os, sys, torch, warnings
    warnings.simplefilter("always")
    x = torch.linspace(-3, 3, 1000).reshape(20, 50).half()
    caches = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    trouble, everywhere = 0, False

    def refuse(event, args):
        # What a file system does that is full or read only, for all that Python does.
        if not trouble or event not in ("open", "os.mkdir", "os.rename", "os.link"):
            return
        path = args[0] if isinstance(args[0], str) else ""
        writes = event != "open" or (args[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if writes and (path.startswith(caches) or everywhere and "torch-spyre" in path):
            raise OSError(trouble, os.strerror(trouble), path)

    sys.addaudithook(refuse)

    def compiled(f):
        torch._dynamo.reset()
        y = torch.compile(f)(x.to("spyre")).cpu().float()
        torch.testing.assert_close(y, f(x.float()), rtol=1e-2, atol=1e-2)

    first = lambda a: torch.softmax(a, -1)
    compiled(first)
    for trouble in (errno.ENOSPC, errno.EROFS):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = caches
        compiled(first)  # what is there is read
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == caches
        number = trouble
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            compiled(lambda a: torch.softmax(a * number, -1))
        assert any("cannot be kept" in str(w.message) for w in said), said
        elsewhere = os.environ["TORCHINDUCTOR_CACHE_DIR"]
        assert elsewhere != caches and os.path.isdir(elsewhere + "/inductor-spyre")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = caches
    everywhere = True
    try:
        compiled(lambda a: torch.softmax(a * 77, -1))
    except Exception as problem:
        assert "there is no place for compiled programs" in str(problem), problem
        assert "Make room, or set TORCHINDUCTOR_CACHE_DIR" in str(problem), problem
    else:
        raise AssertionError("where was it written?")
    print(elsewhere)
"""


def test_a_full_or_read_only_disk_is_done_without(script: Any, tmp_path: Path) -> None:
    elsewhere = script(WITHOUT_DISK, TORCHINDUCTOR_CACHE_DIR=str(tmp_path)).splitlines()[-1]
    assert not Path(elsewhere).exists(), "it goes with the process"


def test_pickles_and_host_code_are_trimmed(tmp_path: Path) -> None:
    names = ("fxgraph/aa/key/{}", "aotautograd/key{}/entry", "ab/{}.py")
    files = [tmp_path / name.format(i) for i in range(4) for name in names]
    for i, file in enumerate(files):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(100))
        os.utime(file, (1000 + i, 1000 + i))
    os.utime(files[0])  # used now
    graph_cache.trim(tmp_path, limit=500)
    assert [file for file in files if file.exists()] == [files[0], *files[-4:]]
    graph_cache.trim(tmp_path, limit=0)
    assert [file for file in files if file.exists()] == [files[0]], "not what may be in use"


# ---- Several processes --------------------------------------------------------------------------


def test_after_one_is_killed_four_processes_at_once_leave_the_files_of_one(tmp_path: Path) -> None:
    def start(**env: str) -> subprocess.Popen[str]:
        given = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), **env}
        command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(SOURCE)]
        return subprocess.Popen(command, env=given, text=True, stdout=subprocess.PIPE)

    killed = start(KILLED="1")
    killed.communicate(timeout=1800)
    assert killed.returncode == -signal.SIGKILL
    assert any(tmp_path.glob("inductor-spyre/.new-*")), "it died while it wrote"
    found = []
    for process in [start() for _ in range(4)]:
        output, _ = process.communicate(timeout=1800)
        assert process.returncode == 0
        found.append(json.loads(output.splitlines()[-1])[""])
    assert sum(run["bundles_compiled"] for run in found) == 1
    assert sum(run["misses"] for run in found) == 1
    kept(tmp_path)
    assert not any(tmp_path.glob("inductor-spyre/.new-*"))


REPEATED = """
import json, torch
from torch_spyre._inductor.counters import counters
from torch_spyre._inductor.host import async_compile
import torch_spyre

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 128), torch.nn.Linear(128, 64)
    def forward(self, x):
        return x + self.second(torch.nn.functional.gelu(self.first(x)))

torch.manual_seed(0)
found = {}
for layers in (1, 4):
    torch._dynamo.reset()
    before = dict(counters)
    model = torch.nn.Sequential(*(Layer() for _ in range(layers))).half()
    x = torch.randn(8, 64, dtype=torch.float16)
    with torch.no_grad():
        expected = model.float()(x.float())
        model = model.half().to("spyre")
        told = torch_spyre.explain(model, x.to("spyre"))
    after = counters
    found[layers] = {
        "operations": after["operations_compiled"] - before["operations_compiled"],
        "files": after["sdsc_files_written"] - before["sdsc_files_written"],
        "told": [line for line in str(told).splitlines() if "sdsc files" in line],
        "close": bool(torch.allclose(told.result.cpu().float(), expected, atol=0.05, rtol=0.02)),
    }
print(json.dumps(found))
"""


def test_layers_share_the_files_of_their_operations(script: Any, tmp_path: Path) -> None:
    output = script(REPEATED, TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
    found = json.loads(output.splitlines()[-1])
    one, four = found["1"], found["4"]
    assert four["operations"] <= 4 * one["operations"] + 3
    # Addresses in scratchpads are numbers: those of layers repeat, but for the first and the last.
    assert four["files"] <= 2 * one["files"] + 4 < four["operations"]
    assert four["told"] == [f"    {four['operations']} operations in {four['files']} sdsc files"]
    assert one["close"] and four["close"]
