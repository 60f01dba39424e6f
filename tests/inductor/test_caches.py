"""A second process starts warm; what a compilation depends on is in the key."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

SOURCE = """
    import json, os, torch, torch_spyre
    from torch._dynamo.utils import counters
    from torch_spyre._C import SpyreTensorLayout

    change = os.environ.get("CHANGE", "")
    x = torch.randn(100, 70).half()
    layout = None
    if change == "layout":
        layout = SpyreTensorLayout([100, 70], [70, 1], torch.float16, [1, 0])
    d = x.to("spyre", device_layout=layout) if layout is not None else x.to("spyre")
    if change == "source":
        from torch_spyre._inductor import sources
        from torch_spyre._inductor import async_compile, passes
        for module in (sources, async_compile, passes):
            module.source_hash = lambda: "another version"
    if change == "cores":
        from torch_spyre._inductor import config
        config.cores = 4

    def f(a):
        return torch.softmax(a * 2, -1) + 1

    y = torch.compile(f)(d).cpu()
    assert (y - f(x.float())).abs().max() < 0.01
    from torch_spyre._inductor import async_compile
    print(json.dumps({
        "hits": counters["inductor"]["fxgraph_cache_hit"],
        "misses": counters["inductor"]["fxgraph_cache_miss"],
        "bypasses": counters["inductor"]["fxgraph_cache_bypass"],
        "aot_hits": counters["aot_autograd"]["autograd_cache_hit"],
        **async_compile.counters,
    }))
"""


def run(script: Any, folder: Path, **env: str) -> dict[str, int]:
    output = script(SOURCE, TORCHINDUCTOR_CACHE_DIR=str(folder), **env)
    return json.loads(output.splitlines()[-1])


def test_a_second_process_compiles_nothing_and_the_key_has_layouts_sources_and_settings(
    script: Any, tmp_path: Path
) -> None:
    first = run(script, tmp_path)
    assert first["misses"] == 1 and first["bypasses"] == 0 and first["bundles_compiled"] == 1

    second = run(script, tmp_path)
    assert second["hits"] == 1 and second["misses"] == 0
    assert second["aot_hits"] == 1
    assert second["bundles_reused"] == 1 and second["bundles_compiled"] == 0

    for change in ("layout", "source", "cores"):
        other = run(script, tmp_path, CHANGE=change)
        assert other["hits"] == 0 and other["misses"] == 1, f"{change} must be in the key"
        again = run(script, tmp_path, CHANGE=change)
        assert again["hits"] == 1, f"{change}: warm as well"


def test_a_damaged_bundle_says_what_to_delete(script: Any, tmp_path: Path) -> None:
    run(script, tmp_path)
    (program,) = tmp_path.rglob("program.bin")
    whole = program.read_bytes()
    program.write_bytes(whole[:100])
    with pytest.raises(AssertionError, match="has 100 bytes") as refused:
        run(script, tmp_path)
    bundle = program.parent.parent
    assert f"Delete {bundle}, and the next process compiles it again" in str(refused.value)
    shutil.rmtree(bundle)
    assert run(script, tmp_path)["bundles_compiled"] == 1
    (again,) = tmp_path.rglob("program.bin")
    assert again.read_bytes() == whole


REPEATED = """
import json, torch
from torch_spyre._inductor import async_compile
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
    before = dict(async_compile.counters)
    model = torch.nn.Sequential(*(Layer() for _ in range(layers))).half()
    x = torch.randn(8, 64, dtype=torch.float16)
    with torch.no_grad():
        expected = model.float()(x.float())
        model = model.half().to("spyre")
        told = torch_spyre.explain(model, x.to("spyre"))
    after = async_compile.counters
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
