"""A second process starts warm; what a compilation depends on is in the key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
