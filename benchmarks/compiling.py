"""Time to compile, cold and warm, against Inductor on the CPU.

Each measurement is a process of its own with an empty cache directory (cold) or with the one that
the process before it left (warm). Processes of the card and of the CPU alternate; the best of a few
counts. Those of the CPU do not load this package: it would make PyTorch's compiler quicker there,
too. The card's processes also say how many device programs they made and how many they found made
already, by an earlier layer or an earlier process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.processes import environment
from benchmarks.results import Promise, Result

_SOURCE = """
import json, sys, time, warnings
import torch
warnings.simplefilter("ignore")
from benchmarks import workloads
device, dtype, make, *sizes = sys.argv[1:]
dtype = getattr(torch, dtype)
module, inputs = getattr(workloads, make)(*map(int, sizes))
module = module.eval().to(dtype)
inputs = [x.to(dtype) if x.is_floating_point() else x for x in inputs]
if device == "spyre":
    torch.spyre.set_downcast_warning(False)
    torch.spyre.set_fallback_warning(False)
    from torch_spyre._inductor.counters import counters
else:
    counters = {}
module, inputs = module.to(device), [x.to(device) for x in inputs]
torch.compile(lambda z: z + 1)(torch.zeros(64, dtype=dtype, device=device)).cpu()  # imports
before = dict(counters)
begin = time.perf_counter()
with torch.no_grad():
    torch.compile(module, fullgraph=True)(*inputs).cpu()
seconds = time.perf_counter() - begin
counted = {name.replace("_", " "): counters[name] - before.get(name, 0) for name in counters}
if device == "spyre":
    from torch_spyre._inductor.host.async_compile import bundle_root
    bundles = list(bundle_root().rglob("bundle.mlir"))
    texts = [bundle.read_text() for bundle in bundles]
    counted["operations"] = sum(text.count("sdsc_execute ") for text in texts)
    counted["SuperDSC files"] = sum(len(list(b.parent.glob("sdsc_*.json"))) for b in bundles)
print(json.dumps({"seconds": seconds, "counters": counted}))
"""


@dataclass(frozen=True)
class Case:
    """Something to compile: a function of `workloads` with sizes, and what is promised."""

    name: str
    make: str
    sizes: tuple[int, ...]
    bounds: tuple[float | None, float | None] = (None, None)
    """Cold and warm, against Inductor."""
    rounds: int = 1


CASES = [
    Case("decoder block", "prefill", (1, 128, 128, 256, 4, 2, 512), (1.0, None), 2),
    Case("MiniLM 8x128", "minilm", (8, 128), (0.5, 1.0), 3),
    Case("decoder, 6 layers", "decoder", (6,), rounds=2),
    Case("decoder, 24 layers", "decoder", (24,), rounds=2),
]
STATES = ("cold", "warm")


def names() -> list[str]:
    """Names of all rows, in order."""
    return [f"{case.name}, {state}" for case in CASES for state in STATES]


def measure(wanted: Callable[[str], bool], quick: bool, failed: list[str]) -> list[Result]:
    """Cold and warm. Quickly: one round, and only what is compiled in a few seconds.

    Names of rows that could not be measured are added to `failed`.
    """
    results = []
    for case in CASES:
        if not any(wanted(f"{case.name}, {state}") for state in STATES):
            continue
        if quick and case.make == "decoder":
            continue
        try:
            measured = _measure(case, 1 if quick else case.rounds)
        except RuntimeError as problem:  # of a process; the other rows are worth having
            print(f"  {case.name}: FAILED\n{problem}", flush=True)
            failed += [f"{case.name}, {state}" for state in STATES]
            continue
        for result in measured:
            print(f"  {result.name:28} {result.ours / 1e6:7.2f} s  {_told(result)}", flush=True)
            results.append(result)
    return results


def promises(results: Sequence[Result]) -> list[Promise]:
    """More layers cost less than their number, because they share what is made for one of them."""
    rows = {result.name: result for result in results}
    few, many = rows.get("decoder, 6 layers, cold"), rows.get("decoder, 24 layers, cold")
    if few is None or many is None:
        return []
    return [Promise("24 layers over 6 layers, cold", many.ours / few.ours, 3)]


def _told(result: Result) -> str:
    ratios = [f"{peer} {result.ratio(peer):.2f}" for peer in result.peers]
    return "  ".join([*ratios, *(f"{name} {value:g}" for name, value in result.facts.items())])


def _measure(case: Case, rounds: int) -> list[Result]:
    best: dict[tuple[str, str], float] = {}
    facts: dict[str, dict[str, float]] = {}
    sides = (("spyre", "spyre", "float16"), ("Inductor", "cpu", "float32"))
    for _ in range(rounds):
        for side, device, dtype in sides:
            with tempfile.TemporaryDirectory() as folder:
                for state in STATES:
                    told = _process(case, device, dtype, folder)
                    key = (side, state)
                    best[key] = min(best.get(key, 1e9), told["seconds"])
                    if device == "spyre":
                        facts[state] = told["counters"]
    results = []
    for state, bound in zip(STATES, case.bounds, strict=True):
        ours = best["spyre", state] * 1e6
        peer = best["Inductor", state] * 1e6
        holds = bound is None or ours <= bound * peer
        text = "" if bound is None else f"<= {bound:g}"
        name = f"{case.name}, {state}"
        results.append(
            Result(name, ours, {"Inductor": peer}, "us", text, holds, facts=facts[state])
        )
    return results


def _process(case: Case, device: str, dtype: str, folder: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", _SOURCE, device, dtype, case.make, *map(str, case.sizes)],
        env={**environment(device), "TORCHINDUCTOR_CACHE_DIR": folder},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{case.name} on {device} did not compile:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])
