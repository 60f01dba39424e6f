"""The table of changes to PyTorch: each row is still needed, is installed, and can be left out.

A probe is a program that runs with the row and does not without it. One that runs without it too
says that PyTorch has what was missing: the row can go.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from torch_spyre import _inductor
from torch_spyre.upstream import install, table
from torch_spyre.upstream.table import PATCHES, Patch

TESTS = Path(__file__).resolve().parents[1]

HEAD = """
import os, pathlib, tempfile
import torch, torch_spyre
torch.spyre.set_fallback_warning(False)
layout = torch.spyre.SpyreTensorLayout([4, 128], [128, 1], torch.float16, [1, 0])
x = torch.arange(512.0).reshape(4, 128).half() / 512
d = x.to("spyre")

def fresh_folder():
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(dir=os.environ["FOLDER"])
    return pathlib.Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])

fresh_folder()
"""

PROBES = {
    "tensor-layout": "assert d.device_tensor_layout() is not None",
    "tensor-to": 'x.to("spyre", device_layout=layout)',
    "empty": "torch.empty(4, 128, dtype=torch.half, device='spyre', device_layout=layout)",
    "print": """
        torch.spyre.reset_fallback_counts()
        torch.spyre.reset_eager_counts()
        repr(d)
        assert not torch.spyre.fallback_counts() and not torch.spyre.eager_counts()
    """,
    "module-to": """
        weight = torch.nn.Linear(128, 64).half().to("spyre").weight
        layout = torch.spyre.get_spyre_tensor_layout(weight)
        assert layout != torch.spyre.SpyreTensorLayout([64, 128], torch.float16)
    """,
    "module-spyre": """
        weight = torch.nn.Linear(128, 64).half().spyre().weight
        layout = torch.spyre.get_spyre_tensor_layout(weight)
        assert layout != torch.spyre.SpyreTensorLayout([64, 128], torch.float16)
    """,
    "dlpack": """
        try:
            torch.utils.dlpack.to_dlpack(d)
            raise AssertionError("exported")
        except BufferError as error:
            assert "tiled" in str(error)
    """,
    "log-settings": """
        import logging
        assert logging.getLogger("spyre.inductor").level == logging.WARNING
    """,
    "custom-ops": "torch.ops.spyre.to_dtype_cpu",
    "compile-fx": """
        from torch_spyre._inductor.counters import counters
        torch.compile(lambda a: a + 1)(d)
        assert counters["bundles_compiled"]
    """,
    "narrow": """
        torch._dynamo.config.capture_scalar_outputs = True
        narrow = torch.compile(lambda a, n: a.narrow(-1, n + 1, 70) * 2, fullgraph=True)
        assert torch.allclose(narrow(d, torch.tensor(3).to("spyre")).cpu(), x[:, 4:74] * 2)
    """,
    "call-function": """
        told = torch_spyre.explain(lambda a: torch.lgamma(a + 1) * a, d)
        assert [f.op for f in told.fallbacks] == ["aten.lgamma.default"]
    """,
    "plan": "torch.compile(lambda a: a + 1)(d)",
    "process-kernel": """
        def lookup(a):
            table = torch.arange(8, device="spyre") * 2
            return torch.cummax(table, 0).values + a[0, :8].long()
        found = torch.compile(lookup)(d).cpu()
        assert found.tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
    """,
    "scaled-softmax": """
        told = torch_spyre.explain(lambda a: torch.softmax(a * 0.125, -1), d)
        assert len([op for op in told.ops if not op.reason]) == 6
    """,
    "reinplace": """
        def update(a, i, s):
            b = a.index_add(0, i, s)
            a.zero_()
            return b
        a, i, s = torch.ones(3, 2), torch.tensor([1]), torch.full((1, 2), 7.0)
        on_card = torch.compile(update)(a.to("spyre"), i.to("spyre"), s.to("spyre")).cpu()
        assert torch.equal(on_card, update(a, i, s))
    """,
    "sound-pickles": """
        def run():
            torch._dynamo.reset()
            return torch.compile(lambda a: a * 3 + 1)(d).cpu()
        folder = fresh_folder()
        wanted = run()
        pickles = [f for f in folder.glob("aotautograd/**/*") if f.is_file()]
        assert pickles
        for file in pickles:
            spoilt = file.read_bytes() + b" "  # loads, and is not what was written
            file.write_bytes(spoilt)
        assert torch.equal(run(), wanted)
        assert not any(file.exists() and file.read_bytes() == spoilt for file in pickles)
    """,
    "closed-pickles": """
        os.umask(0o002)
        folder = fresh_folder()
        torch.compile(lambda a: a * 3 + 2)(d)
        pickles = [f for f in folder.glob("fxgraph/**/*") if f.is_file()]
        assert pickles and not any(file.stat().st_mode & 0o077 for file in pickles)
    """,
    "sound-host-code": """
        folder = fresh_folder()
        def run():
            torch._dynamo.reset()
            torch._inductor.codecache.PyCodeCache.cache_clear()
            return torch.compile(lambda a: a * 3 + 3)(d).cpu()
        wanted = run()
        (code,) = (f for f in folder.glob("??/*.py") if "sdsc" in f.read_text())
        code.write_text("raise SystemExit('what others have written was run')")
        assert torch.equal(run(), wanted)
    """,
}
"""Programs that need a row. Rows that only save time have their measured gain, and tests of their
own."""


left_out: Any = inspect.unwrap(install._left_out)


def needed() -> list[Patch]:
    return [patch for patch in PATCHES if patch.kind != "time"]


# Left out together, in one process: they have nothing to do with each other.
GROUPS = [
    ["custom-ops", "tensor-layout", "tensor-to", "empty", "print", "module-to", "module-spyre",
     "dlpack"],
    ["narrow", "process-kernel", "scaled-softmax", "reinplace", "sound-pickles", "closed-pickles",
     "sound-host-code"],
    ["log-settings"],
    ["compile-fx"],
    ["call-function"],
    ["plan"],
]  # fmt: skip


def failed(script: Any, names: list[str], folder: Path, setting: str) -> set[str]:
    """Which probes do not run in a process with that setting."""
    probes = [(name, inspect.cleandoc(PROBES[name])) for name in names]
    logs = {"TORCH_LOGS": "+spyre,spyre.inductor:WARNING"} if "log-settings" in names else {}
    source = f"""
        try:
            exec({HEAD!r})
        except Exception:  # not even `import torch`
            print("failed", *{names!r})
            raise SystemExit(0)
        import traceback
        for name, source in {probes!r}:
            try:
                exec(source, dict(globals()))
            except BaseException:
                traceback.print_exc()
                print("failed", name)
    """
    env = {install.VARIABLE: setting, "FOLDER": str(folder), **logs}
    lines = script(source, **env).splitlines()
    return {name for line in lines if line.startswith("failed ") for name in line.split()[1:]}


def test_each_row_that_is_no_matter_of_time_has_a_probe() -> None:
    assert sorted(PROBES) == sorted(patch.name for patch in needed())
    assert sorted(PROBES) == sorted(name for group in GROUPS for name in group)


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group[0])
def test_pytorch_still_needs_a_row(group: list[str], script: Any, tmp_path: Path) -> None:
    setting = f"without:{','.join(group)}"
    assert failed(script, group, tmp_path, setting) == set(group)


def test_every_probe_runs_with_its_row(script: Any, tmp_path: Path) -> None:
    names = [name for group in GROUPS for name in group if name != "log-settings"]
    assert not failed(script, names, tmp_path, "all")
    assert not failed(script, ["log-settings"], tmp_path, "all")


def test_the_compiler_runs_without_what_only_saves_time(script: Any, tmp_path: Path) -> None:
    names = ["call-function", "plan", "scaled-softmax", "reinplace"]
    assert not failed(script, names, tmp_path, "semantics")


def test_a_change_that_only_saves_time_names_its_gain_and_its_test() -> None:
    known = "\n".join(file.read_text() for file in TESTS.rglob("test_*.py"))
    for patch in PATCHES:
        if patch.kind == "time":
            assert re.fullmatch(r"(\d+ / \d+ %(, )?){2}", patch.gain), patch.name
            most = max(map(int, re.findall(r"\d+", patch.gain)))
            assert most >= (5 if patch.scope == "process" else 2), patch.name
            assert f"def {patch.test}(" in known, patch.test


def test_every_function_that_makes_replacements_is_in_the_table() -> None:
    named = {patch.by for patch in PATCHES}
    for file in Path(table.__file__).parent.glob("*.py"):
        text = file.read_text()
        for function in re.findall(r"^def (\w+)\((?:stock|_: None)", text, re.MULTILINE):
            if not function.startswith("_"):
                assert f"{file.stem}.{function}" in named, f"{file.name}: {function}"


def test_rows_are_installed_and_keep_what_they_replace() -> None:
    _inductor.register()
    kept = 0
    for patch in [*table.WITH_THE_DEVICE, *table.WITH_THE_COMPILER]:
        for target in patch.targets:
            owner, name = install._found(target)
            found = inspect.getattr_static(owner, name)
            function = getattr(found, "__func__", found)
            if inspect.isfunction(function) and hasattr(function, "__wrapped__"):
                assert "torch_spyre/upstream" in function.__code__.co_filename, target
                kept += 1
    assert kept > 15


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("", set()),
        ("all", set()),
        ("semantics", {patch.name for patch in PATCHES if patch.kind == "time"}),
        ("without:print, plan", {"print", "plan"}),
    ],
)
def test_the_switch(monkeypatch: pytest.MonkeyPatch, value: str, names: set[str]) -> None:
    monkeypatch.setenv(install.VARIABLE, value)
    assert left_out() == names


@pytest.mark.parametrize("value", ["none", "without", "without:", "without:speed", "print"])
def test_another_value_of_the_switch_is_refused(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(install.VARIABLE, value)
    with pytest.raises(ValueError, match="expected all, semantics, or without: and some of call"):
        left_out()


def test_nothing_but_what_is_listed_changes_for_a_block() -> None:
    with pytest.raises(AssertionError, match="is not in upstream"), install.scoped("a:b", 1):
        pass
    with pytest.raises(AssertionError, match="is not in upstream"):
        install.add_attribute("a:b", "c", 1)
