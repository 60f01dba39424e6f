"""Time to compile a decoder block, cold and warm, against Inductor on the CPU.

Each measurement is a process of its own with an empty cache directory (cold) or with the one that
the
process before it left (warm). Processes of the card and of the CPU alternate; the best of a few
counts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

from benchmarks.overheads import Row

_SOURCE = """
import json, sys, time, warnings
import torch
warnings.simplefilter("ignore")
from tests.inductor.test_blocks import DecoderBlock, rotary
device, dtype = sys.argv[1], getattr(torch, sys.argv[2])
torch.manual_seed(0)
block = DecoderBlock(256, 4, 2, 64, 512).eval().to(dtype).to(device)
cos, sin = rotary(128, 64)
inputs = [t.to(dtype).to(device) for t in (torch.randn(2, 128, 256), cos, sin)]
torch.compile(lambda z: z + 1)(inputs[0]).cpu()  # imports, and the compiler's own start
begin = time.perf_counter()
with torch.no_grad():
    torch.compile(block)(*inputs).cpu()
print(json.dumps(time.perf_counter() - begin))
"""


def _seconds(device: str, dtype: str, folder: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", _SOURCE, device, dtype],
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(json.loads(done.stdout.splitlines()[-1]))


def measure(rounds: int = 2) -> list[Row]:
    """Cold and warm, float32 and float16 on the CPU against float16 on the card."""
    best: dict[tuple[str, str, str], float] = {}
    for _ in range(rounds):
        for device, dtype in (("spyre", "float16"), ("cpu", "float32"), ("cpu", "float16")):
            with tempfile.TemporaryDirectory() as folder:
                for state in ("cold", "warm"):
                    key = (device, dtype, state)
                    best[key] = min(best.get(key, 1e9), _seconds(device, dtype, folder))
    rows = []
    for state in ("cold", "warm"):
        for dtype in ("float32", "float16"):
            ours, peer = best["spyre", "float16", state], best["cpu", dtype, state]
            bound = "below 1" if state == "cold" else ""
            name = f"decoder block, {state}, CPU in {dtype}"
            rows.append(Row(name, ours * 1e6, peer * 1e6, "us", bound, not bound or ours < peer))
    return rows
