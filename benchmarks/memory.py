"""Memory of a process that has run MiniLM, on the card and on the CPU.

Each side is a process of its own: it loads the model, compiles it, runs it a few times and says how
much of it is resident. The card of the emulation is host memory, so its process has the weights
there, as a real one would not.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

from benchmarks.processes import environment
from benchmarks.results import Result

_SOURCE = """
import gc, json, os, pathlib, sys, warnings
import torch
warnings.simplefilter("ignore")
from benchmarks import workloads

def resident():
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")

device = sys.argv[1]
module, inputs = workloads.minilm(8, 128)
module.eval()
if device == "spyre":
    torch.spyre.set_downcast_warning(False)
    module.half().to(device)
    inputs = [x.to(device) for x in inputs]
weights = sum(2 * p.numel() for p in module.parameters())
run = torch.compile(module, fullgraph=True)
with torch.no_grad():
    for _ in range(5):
        run(*inputs).cpu()
gc.collect()
peak = torch.spyre.max_memory_allocated() if device == "spyre" else 0
print(json.dumps({"resident": resident(), "weights": weights, "peak": peak}))
"""

NAME = "resident after MiniLM, 8x128"


def measure(wanted: Callable[[str], bool], quick: bool, failed: list[str]) -> list[Result]:
    """One row, in MB. `quick` changes nothing."""
    if not wanted(NAME):
        return []
    cpu, card = _run("cpu"), _run("spyre")
    # Weights in 16 bits, and what the card holds beside them at the height of a call.
    weights = card["weights"]
    activations = max(card["peak"] - weights, 0)
    allowed = cpu["resident"] + 1.5 * (weights + activations) + 250e6
    return [
        Result(
            NAME,
            card["resident"] / 1e6,
            {"cpu float32": cpu["resident"] / 1e6},
            "MB",
            f"<= {allowed / 1e6:.0f} MB",
            card["resident"] <= allowed,
            facts={"16-bit weights, MB": weights / 1e6, "activations, MB": activations / 1e6},
        )
    ]


def _run(device: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", _SOURCE, device],
        env=environment(device),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"MiniLM on {device} ended with an error:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])
