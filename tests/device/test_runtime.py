"""torch.spyre: devices, environment, lifecycle of the runtime, errors for bad input."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torch_spyre
import torch_spyre._C as _C


def test_import_starts_nothing(script):
    assert (
        script("import torch; print(torch.spyre.is_initialized(), torch.spyre.is_available())")
        == "False True"
    )
    assert (
        script("import torch; torch.spyre.device_count(); print(torch.spyre.is_initialized())")
        == "False"
    )
    assert (
        script("import torch; torch.ones(2, device='spyre'); print(torch.spyre.is_initialized())")
        == "True"
    )


def test_import_loads_no_more_than_it_needs(script):
    """`import torch` waits for all of these. What is not on the list waits for its first use."""
    found = script(
        """
        import sys, torch
        known = set(sys.modules)
        import torch_spyre
        print(*sorted(set(sys.modules) - known))
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    allowed = {
        "torch.spyre",
        "torch.utils._device",
        "torch_spyre",
        "torch_spyre._C",
        "torch_spyre.upstream",
        "torch_spyre.upstream.frame_chunks",
        "torch_spyre.upstream.compile_fx",
        "torch_spyre.constants",
        "torch_spyre.device",
        "torch_spyre.device.devices",
        "torch_spyre.device.interface",
        "torch_spyre.device.module",
        "torch_spyre.device.module_to",
        "torch_spyre.hardware",
        "torch_spyre.dtypes",
        "torch_spyre.on_card",
        "torch_spyre.upstream.import_hooks",
        "torch_spyre.upstream.install",
        "torch_spyre.upstream.table",
        "torch_spyre.environment",
        "torch_spyre.logs",
        "torch_spyre.names",
        "torch_spyre.upstream.tensor_api",
        "torch_spyre.device.registration",
    }
    assert set(found.split()) <= allowed
    assert "torch_spyre._C" in found.split()


def test_keys_of_the_card_are_served_before_it_has_started(script):
    """Fallbacks for them are registered late; the first tensor of a process may need them."""
    out = script(
        """
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode
        with FakeTensorMode(), torch.autocast("spyre", dtype=torch.float16):
            x = torch.empty(3, 3, device="spyre:0")
            print((x @ x).dtype, torch.sin(x).dtype)
        for make in (
            lambda: torch.sparse_coo_tensor((2, 2), device="spyre:0"),
            lambda: torch.ops.aten.empty([2], dtype=torch.qint8, device=torch.device("spyre:0")),
        ):
            try:
                make()
            except NotImplementedError as problem:
                print(problem)
        print(torch.spyre.is_initialized())
        """
    )
    assert out.splitlines() == [
        "torch.float16 torch.float32",
        "aten::_sparse_coo_tensor_with_dims: sparse tensors do not exist on spyre; "
        "keep them on the cpu",
        "aten::empty: quantized tensors do not exist on spyre; keep them on the cpu",
        "False",
    ]


def test_autocast_switched_on_by_hand():
    x = torch.ones(3, 3, device="spyre")
    torch.set_autocast_enabled("spyre", True)
    try:
        assert (x @ x).dtype == torch.get_autocast_dtype("spyre")
        assert torch.sin(x).dtype == torch.float32
    finally:
        torch.set_autocast_enabled("spyre", False)


def test_import_without_autoload_registers_too(script):
    out = script(
        """
        import torch_spyre, torch
        print(torch.ones(2, device='spyre').sum().item(), torch_spyre.__version__)
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert out == "2.0 0.1.0"


def test_documented_names_exist():
    for name in [
        "is_available",
        "is_initialized",
        "device_count",
        "current_device",
        "set_device",
        "manual_seed",
        "manual_seed_all",
        "get_rng_state",
        "set_rng_state",
        "initial_seed",
        "get_amp_supported_dtype",
        "memory",
        "Stream",
        "stream",
        "current_stream",
        "default_stream",
        "synchronize",
        "_is_in_bad_fork",
        "_is_compiled",
        "_impl",
        "SpyreTensorLayout",
        "get_device_dtype",
        "set_downcast_warning",
        "get_device_properties",
        "get_device_name",
        "device",
        "Event",
        "mem_get_info",
        "empty_cache",
        "memory_summary",
        "set_stream",
        "is_bf16_supported",
        "fallback_counts",
        "reset_fallback_counts",
        "FallbackWarning",
    ]:
        assert hasattr(torch.spyre, name), name
    for name in ("Scheduling", "GraphLowering", "Lowering", "Codegen", "Compile"):
        assert getattr(torch.spyre, name) is None
    assert not hasattr(torch.spyre, "__file__") and not hasattr(torch.spyre, "_C")
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = torch.spyre.nonsense
    assert {"SpyreTensorLayout", "memory_stats", "eager_counts"} <= set(dir(torch.spyre))
    assert torch.spyre.get_amp_supported_dtype() == [torch.float16, torch.bfloat16]
    assert torch.spyre.memory is torch.accelerator.memory


def test_properties():
    properties = torch.spyre.get_device_properties()
    assert (properties.type, properties.index, properties.multi_processor_count) == ("dd2", 0, 32)
    assert properties.total_memory == 128 << 30 and "Spyre" in torch.spyre.get_device_name(0)
    with pytest.raises(AssertionError, match=r"Device index 3 out of range \[0, 1\)"):
        torch.spyre.get_device_properties(3)


def test_accelerator_api():
    assert torch.accelerator.is_available() and torch.accelerator.device_count() == 1
    assert torch.accelerator.current_accelerator() == torch.device("spyre")
    assert torch.accelerator.current_device_index() == 0
    torch.accelerator.synchronize()
    assert torch.accelerator.current_stream().device.type == "spyre"
    capability = torch.accelerator.get_device_capability()
    assert torch.float16 in capability["supported_dtypes"]


@pytest.mark.parametrize(
    ("env", "count"),
    [
        ({}, 1),
        ({"AIU_WORLD_SIZE": "4"}, 4),
        ({"AIU_WORLD_SIZE": "99"}, 8),
        ({"SPYRE_DEVICES": "0,2"}, 2),
        ({"SPYRE_DEVICES": "0, 2,2,77"}, 2),
        ({"SPYRE_DEVICES": "0,1,2", "AIU_WORLD_SIZE": "2"}, 2),
        ({"FLEX_DEVICE": "MOCK", "AIU_WORLD_SIZE": "3"}, 3),
        ({"SPYRE_DEVICES": "42"}, 0),
        ({"SPYRE_VISIBLE_DEVICES": "1,3,5"}, 3),
        ({"SPYRE_VISIBLE_DEVICES": "1,3,5", "SPYRE_DEVICES": "0"}, 1),
        ({"PCIDEVICE_IBM_COM_AIU_PF": "0000:1a:00.0,0000:1b:00.0"}, 2),
        ({"PCIDEVICE_IBM_COM_AIU_PF": "0000:1a:00.0, 0000:1A:00.1,0000:1a:00.0"}, 2),
        ({"PCIDEVICE_IBM_COM_AIU_PF": ",".join(f"00{i}:0.0" for i in range(10))}, 8),
        ({"PCIDEVICE_IBM_COM_AIU_PF": "1a:0.0,1b:0.0", "SPYRE_VISIBLE_DEVICES": "0,1,2"}, 3),
        ({"PCIDEVICE_IBM_COM_AIU_PF": "1a:0.0,1b:0.0,1c:0.0", "AIU_WORLD_SIZE": "2"}, 2),
    ],
)
def test_device_enumeration(monkeypatch, env, count):
    for name in ("AIU_WORLD_SIZE", "SPYRE_DEVICES", "SPYRE_VISIBLE_DEVICES", "FLEX_DEVICE",
                 "PCIDEVICE_IBM_COM_AIU_PF"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert _C._read_settings()["device_count"] == count


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("SENCORES", "0", "1 to 32"),
        ("SENCORES", "33", "1 to 32"),
        ("SENCORES", "many", "1 to 32"),
        ("SPYRE_DEVICES", "x", "0,2"),
        ("SPYRE_VISIBLE_DEVICES", "all", "0,2"),
        ("PCIDEVICE_IBM_COM_AIU_PF", "0,,1", "0000:1a:00.0"),
        ("PCIDEVICE_IBM_COM_AIU_PF", "card", "0000:1a:00.0"),
        ("AIU_WORLD_SIZE", "0", "whole number"),
        ("FLEX_DEVICE", "GPU", "PF, VF and MOCK"),
        ("SPYRE_MEMORY", "lots", "128G"),
        ("SPYRE_MEMORY", "0", "128G"),
        ("SPYRE_MEMORY", "9999T", "128G"),
        ("SPYRE_NUM_THREADS", "-1", "1 to"),
        ("SPYRE_NUMERICS", "bf16", "dlfloat16 and ieee"),
        ("SPYRE_LAUNCH_BLOCKING", "maybe", "0/false/off"),
        ("SPYRE_PAIRS", "three", "0/false/off"),
        ("TORCH_SPYRE_DOWNCAST_WARN", "perhaps", "0/false/off"),
        ("LOCAL_RANK", "x", "whole number"),
    ],
)
def test_bad_environment_is_named(monkeypatch, name, value, allowed):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"(?s){name}.*{value}.*{allowed}"):
        _C._read_settings()


def test_bad_environment_shows_at_first_use_not_at_import(script):
    out = script(
        """
        import torch
        print("imported")
        torch.ones(2, device="spyre")
        """,
        expect_failure=True,
        SENCORES="0",
    )
    assert "imported" in out and "invalid SENCORES value" in out


def test_several_cards_have_their_own_memory(script):
    out = script(
        """
        import torch
        a = [torch.full((1000,), float(i), device=f"spyre:{i}") for i in range(4)]
        assert [int(t.sum().item()) for t in a] == [0, 1000, 2000, 3000]
        assert all(torch.spyre.memory_allocated(i) > 0 for i in range(4))
        b = a[3].to("spyre:1")
        assert b.device.index == 1 and b.sum().item() == 3000
        before = torch.spyre.memory_allocated(2)
        with torch.spyre.device(2):
            assert torch.spyre.current_device() == 2
            c = torch.ones(5, device="spyre")
        assert c.device.index == 2 and torch.spyre.memory_allocated(2) > before
        assert torch.spyre.current_device() == 0
        with torch.spyre.device_of(b):
            assert torch.spyre.current_device() == 1
        turned = torch.spyre.SpyreTensorLayout([8, 70], [70, 1], torch.float16, [1, 0])
        x = torch.randn(8, 70).half().to("spyre:0")
        y = x.to("spyre:3", device_layout=turned)
        assert y.device.index == 3 and y.device_tensor_layout() == turned
        assert (x.cpu() == y.cpu()).all()
        try:
            a[0] + a[1]
        except RuntimeError as error:
            assert "spyre:0 and spyre:1" in str(error), error
        else:
            raise AssertionError("two cards in one operation")
        event = torch.spyre.Event(device=0)
        event.record(torch.spyre.current_stream(0))
        try:
            event.record(torch.spyre.current_stream(1))
        except RuntimeError as error:
            print(error)
        """,
        AIU_WORLD_SIZE="4",
    )
    assert "does not match" in out or "cannot be recorded in a stream of spyre:1" in out, out


def test_device_index_out_of_range():
    with pytest.raises(RuntimeError, match=r"Device index 5 out of range \[0, 1\)"):
        torch.ones(1, device="spyre:5")
    torch.ones(1, device="spyre")
    with pytest.raises(RuntimeError, match=r"Device index 5 out of range \[0, 1\)"):
        torch.spyre.set_device(5)
    with pytest.raises(ValueError, match="cpu"):
        torch.spyre.set_device("cpu")
    with pytest.raises(TypeError):
        torch.spyre.set_device(1.5)


def test_device_is_remembered_before_the_runtime_starts(script):
    out = script(
        """
        import torch
        torch.spyre.set_device(1)
        print(torch.spyre.is_initialized(), torch.ones(1, device="spyre").device)
        """,
        AIU_WORLD_SIZE="2",
    )
    assert out == "False spyre:1"
    late = "import torch; torch.spyre.set_device(3); torch.ones(1, device='spyre')"
    assert "out of range [0, 2)" in script(late, expect_failure=True, AIU_WORLD_SIZE="2")


def test_local_rank_chooses_the_card(script):
    print_device = "import torch; print(torch.ones(1, device='spyre').device)"
    assert script(print_device, AIU_WORLD_SIZE="2", LOCAL_RANK="1") == "spyre:1"
    assert "Device index out of bounds" in script(print_device, expect_failure=True, LOCAL_RANK="1")


def test_fork_before_use_works_and_after_use_is_refused(script):
    out = script(
        """
        import os, torch
        def child(action):
            pid = os.fork()
            if pid == 0:
                try:
                    action()
                    os._exit(0)
                except RuntimeError as error:
                    os._exit(7 if "forked child" in str(error) else 8)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(child(lambda: torch.ones(2, device="spyre").sum().item()))
        kept = torch.ones(2, device="spyre")
        print(child(lambda: torch.ones(2, device="spyre")), child(lambda: kept.cpu()))
        def look():
            global kept
            assert torch.spyre._is_in_bad_fork() and torch.spyre.is_available()
            assert not torch.spyre.is_initialized()
            del kept
        print(child(look), kept.sum().item())
        """
    )
    assert out.split() == ["0", "7", "7", "0", "2.0"]


def test_inductor_workers_do_not_touch_the_card(script):
    out = script(
        "import torch; print(torch.spyre._is_in_bad_fork())", IS_INDUCTOR_SPAWNED_SUBPROCESS="1"
    )
    assert out == "True"


def test_free_runtime(script):
    out = script(
        """
        import torch, torch_spyre._C as _C
        t = torch.ones(3, device="spyre")
        try:
            _C.free_runtime()
        except RuntimeError as error:
            print(error)
        del t
        _C.free_runtime()
        print(torch.spyre.is_initialized(), torch.ones(3, device="spyre").sum().item())
        """
    )
    assert "1 allocations are alive" in out and out.endswith("False 3.0")


def test_threads_follow_torch_unless_set(script):
    show = "import torch, torch_spyre._C as _C; torch.set_num_threads(2); print(_C._num_threads())"
    assert script(show) == "2"
    assert script(show, SPYRE_NUM_THREADS="1") == "1"


def test_ieee_numerics_switch(script):
    show = "import torch; print(torch.tensor([1.0009765625]).half().to('spyre').cpu().item())"
    assert script(show, SPYRE_NUMERICS="ieee") == "1.0009765625"
    assert script(show) == "1.001953125"


def test_spawn_works(script, tmp_path):
    source = """
        import sys, torch, torch.multiprocessing as mp
        def work(rank):
            assert torch.ones(4, device="spyre").sum().item() == 4
        if __name__ == "__main__":
            torch.ones(1, device="spyre")
            mp.spawn(work, nprocs=2)
            print("done")
        """
    import subprocess
    import sys
    import textwrap

    path = tmp_path / "spawn.py"
    path.write_text(textwrap.dedent(source))
    result = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=1800, check=False
    )
    assert result.stdout.strip() == "done", result.stderr


@pytest.mark.parametrize("module", ["torch", "torch_spyre"])
def test_a_package_that_is_not_built_says_what_to_do(module, tmp_path):
    package = Path(torch_spyre.__file__).parent
    only_python = shutil.ignore_patterns("*.so", "csrc", "__pycache__")
    shutil.copytree(package, tmp_path / "torch_spyre", ignore=only_python)
    result = subprocess.run([sys.executable, "-c", f"import {module}"], cwd=tmp_path, text=True,
                            env={**os.environ, "PYTHONPATH": str(tmp_path)},
                            capture_output=True, check=False)  # fmt: skip
    assert result.returncode != 0
    assert "torch_spyre is not built: run `make setup`" in result.stderr
