"""Speed of compiled computations on the card against CPU PyTorch, all in one process.

In: the list `CASES`. Out: a `Result` for each: the time on the card and of four peers, eager and
`torch.compile` in float32 and float16. On the card everything is float16 (DLFloat16 in its memory),
inputs and weights are there already, and the time includes waiting for the result. What each case
computed is compared with float32 on the CPU, so that nothing fast and wrong gets into a table.
"""

from __future__ import annotations

import copy
import functools
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from benchmarks import workloads
from benchmarks.results import Promise, Result, geometric_mean
from benchmarks.timing import Timing, interleaved
from benchmarks.workloads import Workload

PEERS = {
    "compile float32": (torch.float32, True),
    "compile float16": (torch.float16, True),
    "eager float32": (torch.float32, False),
    "eager float16": (torch.float16, False),
}


# Far more than rounding explains: a result with this error is wrong, and its time means nothing.
ALLOWED_ERROR = 0.02


@dataclass(frozen=True)
class Case:
    """A row of the table, and what is promised for it against torch.compile in float32."""

    name: str
    make: Callable[[], Workload]
    bound: float = 1.2


# "It holds when" of the project: 1.2 for any, less where the card's 16 bits should show.
CASES = [
    Case("pointwise, arithmetic, 1024x4096", workloads.arithmetic),
    Case("pointwise, transcendental, 1024x4096", workloads.transcendental),
    Case("pointwise, SwiGLU gate, 1024x4096", workloads.swiglu),
    Case("softmax, 4096x1024", workloads.softmax),
    Case("layer norm, 4096x1024", workloads.layer_norm),
    Case("GELU, 1024x4096", workloads.gelu),
    Case("GEMM, 512x4096x4096", workloads.gemm),
    Case("GEMV, 1x4096x4096", workloads.gemv, 0.7),
    Case("bmm, 32 heads of 128x128x128", workloads.bmm),
    Case("encoder block, 128 tokens", workloads.encoder_block),
    Case("decoder block, prefill 128", workloads.prefill),
    Case("decoder block, decode 1", workloads.decode, 0.7),
    Case("MiniLM, 1x16", functools.partial(workloads.minilm, 1, 16)),
    Case("MiniLM, 8x128", functools.partial(workloads.minilm, 8, 128), 0.9),
    Case("training step, 8x64 tokens", workloads.training_step),
]


def measure(wanted: Callable[[str], bool], quick: bool, failed: list[str]) -> list[Result]:
    """Every wanted case, one after the other; the sides of a case alternate.

    Names of those that could not be measured are added to `failed`.
    """
    torch.spyre.set_fallback_warning(False)
    torch.spyre.set_downcast_warning(False)
    results = []
    for case in CASES:
        if not wanted(case.name):
            continue
        try:
            result = _measure(case, *((0.2, 8) if quick else (1.0, 100)))
        except Exception:  # the other rows are worth having; the command fails in the end
            print(f"  {case.name}: FAILED\n{traceback.format_exc()}", flush=True)
            failed.append(case.name)
            continue
        ratios = "  ".join(f"{peer} {result.ratio(peer):.2f}" for peer in PEERS)
        print(f"  {result.name:38} {result.ours / 1000:9.3f} ms   {ratios}", flush=True)
        results.append(result)
    return results


_BESIDE_THE_LIST = ("training step",)
"""Rows with a promise of their own. Training in float16 takes the CPU thirty times as long as in
float32: in a mean over a list for inference it would hide what the others are."""


def promises(results: Sequence[Result]) -> list[Promise]:
    """What is promised for the whole list."""
    listed = [r for r in results if not r.name.startswith(_BESIDE_THE_LIST)]
    if not listed:
        return []
    return [
        Promise(
            f"geometric mean against {peer}",
            geometric_mean(result.ratio(peer) for result in listed),
            bound,
        )
        for peer, bound in (("compile float32", 0.8), ("compile float16", 0.4))
    ]


@torch.no_grad()
def _measure(case: Case, seconds: float, rounds: int) -> Result:
    torch._dynamo.reset()
    module, inputs = case.make()
    module.eval()
    expected = module(*inputs)
    on_card = _call(module, inputs, torch.float16, "spyre", True)
    error = _relative_error(on_card().cpu().float(), expected)
    if not error <= ALLOWED_ERROR:
        raise ValueError(f"the result on the card has a relative error of {error:.3g}")
    torch.spyre.synchronize()

    torch.spyre.reset_fallback_counts()
    begin, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
    begin.record()
    on_card()
    end.record()
    torch.spyre.synchronize()
    modelled_us = begin.elapsed_time(end) * 1000
    host_steps = sum(torch.spyre.fallback_counts().values())

    def waited_for() -> None:
        on_card()
        torch.spyre.synchronize()

    sides: dict[str, Callable[[], object]] = {"spyre": waited_for}
    for peer, (dtype, compiled) in PEERS.items():
        sides[peer] = _call(module, inputs, dtype, "cpu", compiled)
    times: dict[str, Timing] = interleaved(sides, seconds=seconds, rounds=rounds)
    ours = times.pop("spyre")
    peers = {peer: timing.best for peer, timing in times.items()}
    facts = {
        "relative error": error,
        "host steps": host_steps,
        "modelled us": modelled_us,
        "rounds": ours.rounds,
        "rounds of the slowest": min(timing.rounds for timing in times.values()),
    }
    holds = ours.best <= case.bound * peers["compile float32"]
    bound = f"<= {case.bound}"
    return Result(case.name, ours.best, peers, "us", bound, holds, ours.spread, facts)


def _call(
    module: nn.Module,
    inputs: tuple[torch.Tensor, ...],
    dtype: torch.dtype,
    device: str,
    compiled: bool,
) -> Callable[[], torch.Tensor]:
    """A call of a copy of the module, with inputs of its own."""
    own = copy.deepcopy(module).to(dtype).to(device)
    moved = [(x.to(dtype) if x.is_floating_point() else x).to(device) for x in inputs]
    if isinstance(own, workloads.Training):
        run = own.stepping(compiled)
    else:
        run = torch.compile(own, fullgraph=True) if compiled else own
    return lambda: run(*moved)


def _relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    difference = (actual - expected).pow(2).mean().sqrt()
    return float(difference / expected.pow(2).mean().sqrt())
