"""Plans of a suite of graphs: modelled time and traffic, against `documented` mode and against the
traffic that no plan can avoid.

    python -m benchmarks.plans            # all
    python -m benchmarks.plans softmax    # those whose names contain a text
    python -m benchmarks.plans --planning # how long planning takes, as a part of compiling

Times of plans are those of the model (docs/architecture/device_time.md), bytes those of the plan,
which the card's counters confirm (tests/inductor/inspect/test_cost_report.py). Planning time is
processor time of the thread that compiles, with nothing in the caches, each graph in a process of
its own; planning is loops over tiles, divisions, scratchpads and the pool.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import torch_spyre
from torch_spyre._inductor import config, pipeline
from torch_spyre._inductor.planning.divide_and_place import DOCUMENTED_SCRATCHPADS


class Block(nn.Module):
    """A block of a transformer: attention and an MLP, each with a norm before it."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inputs = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.output = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        y = self.first(x)
        shape = (batch, tokens, self.heads, width // self.heads)
        q, k, v = (linear(y).view(shape).transpose(1, 2) for linear in self.inputs)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.output(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(functional.gelu(self.up(self.second(x))))


def _half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float16).to("spyre")


def _on_card(module: nn.Module) -> nn.Module:
    return module.half().eval().to("spyre")


def _attention(tokens: int) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
    arguments = tuple(_half(1, 4, tokens, 64) for _ in range(3))
    return functional.scaled_dot_product_attention, arguments


def _blocks(
    width: int, tokens: int, causal: bool, layers: int = 1, *, batch: int = 1, columns: int = 64
) -> Any:
    """`columns` are those of a head."""
    heads = max(1, width // columns)
    model = nn.Sequential(*(Block(width, heads, causal) for _ in range(layers)))
    return _on_card(model), (_half(batch, tokens, width),)


DOCUMENTED = {"work_division": "documented", **DOCUMENTED_SCRATCHPADS}
"""The documented system: its divisions, and its planner of scratchpads at its defaults."""

SUITE: dict[str, Callable[[], Any]] = {
    "softmax": lambda: (lambda x: torch.softmax(x, 0), (_half(512, 1024),)),
    "layer norm": lambda: (_on_card(nn.LayerNorm(1024)), (_half(512, 1024),)),
    "MLP": lambda: (
        _on_card(nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512))),
        (_half(256, 512),),
    ),
    "attention 128": lambda: _attention(128),
    "attention 512": lambda: _attention(512),
    "attention 2048": lambda: _attention(2048),
    "encoder block 128": lambda: _blocks(128, 128, False),
    "encoder block 384": lambda: _blocks(384, 128, False),
    "encoder block 768": lambda: _blocks(768, 128, False),
    "decoder block 128": lambda: _blocks(128, 128, True),
    "decoder block 384": lambda: _blocks(384, 128, True),
    "decoder block 768": lambda: _blocks(768, 128, True),
    "encoder of 6 layers": lambda: _blocks(384, 128, False, 6),
    "heads of 32, block 128": lambda: _blocks(128, 128, False, columns=32),
    "heads of 32, block 384, batch 8": lambda: _blocks(384, 128, False, batch=8, columns=32),
}


@dataclass(frozen=True)
class Row:
    """One graph."""

    name: str
    us: float
    documented_us: float
    bytes: int
    documented_bytes: int
    compulsory: int

    @property
    def ratio(self) -> float:
        return self.us / self.documented_us


def measure(name: str) -> Row:
    """Both plans of a graph."""
    torch.manual_seed(0)
    function, arguments = SUITE[name]()
    told = {}
    with torch.no_grad():
        for mode, settings in (("joint", {}), ("documented", DOCUMENTED)):
            torch._dynamo.reset()
            with config.patch(**settings):
                told[mode] = torch_spyre.explain(function, *arguments)
    joint, documented = told["joint"], told["documented"]
    return Row(
        name,
        joint.device_time_us,
        documented.device_time_us,
        joint.hbm_bytes,
        documented.hbm_bytes,
        joint.compulsory_bytes,
    )


PLANNING_LIMIT = 0.25
"""Of the time to compile a graph."""


def compile_and_time(name: str) -> tuple[float, float]:
    """Seconds of planning, and of compiling in all, in this process."""
    planning = 0.0

    def timed(stage: pipeline.Stage) -> pipeline.Stage:
        def function(program: Any) -> Any:
            nonlocal planning
            begin = time.thread_time()
            stage.function(program)
            planning += time.thread_time() - begin

        return stage._replace(function=function)

    def is_planning(stage: pipeline.Stage) -> bool:
        return stage.takes == "plan" and stage.name not in ("split", "stickify")

    function, arguments = SUITE[name]()
    torch.compile(lambda x: x + 1)(_half(64)).cpu()  # imports
    stock = pipeline.PIPELINE
    pipeline.PIPELINE = tuple(timed(s) if is_planning(s) else s for s in stock)
    try:
        begin = time.thread_time()
        with torch.no_grad():
            torch.compile(function)(*arguments)
        return planning, time.thread_time() - begin
    finally:
        pipeline.PIPELINE = stock


def planning_time(name: str) -> tuple[float, float]:
    """The same in a process of its own, without anything in its caches."""
    source = (
        "import json; from benchmarks import plans; "
        f"print(json.dumps(plans.compile_and_time({name!r})))"
    )
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", source],
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise RuntimeError(f"{name} did not compile:\n{done.stderr[-2000:]}")
    planning, total = json.loads(done.stdout.splitlines()[-1])
    return planning, total


def show_planning(names: Sequence[str]) -> bool:
    """Print how long planning takes; whether that is within the limit."""
    print("| graph | planning s | compiling s | part |")
    print("|---|---|---|---|")
    most = 0.0
    for name in names:
        planning, total = planning_time(name)
        most = max(most, planning / total)
        print(f"| {name} | {planning:.2f} | {total:.2f} | {planning / total:.2f} |", flush=True)
    print(f"\nlargest part: {most:.2f}, limit {PLANNING_LIMIT}")
    return most <= PLANNING_LIMIT


def show_plans(names: Sequence[str]) -> None:
    """Print the table."""
    print("| graph | us | documented us | ratio | bytes | of documented | of compulsory |")
    print("|---|---|---|---|---|---|---|")
    ratios = []
    for name in names:
        row = measure(name)
        ratios.append(row.ratio)
        print(
            f"| {name} | {row.us:.1f} | {row.documented_us:.1f} | {row.ratio:.2f} | {row.bytes} | "
            f"{row.bytes / row.documented_bytes:.2f} | {row.bytes / row.compulsory:.2f} |",
            flush=True,
        )
    mean = exp(sum(map(log, ratios)) / len(ratios))
    print(f"\ngeometric mean of modelled time against documented mode: {mean:.3f}")


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plans")
    parser.add_argument("wanted", nargs="?", default="", help="part of the names of graphs")
    parser.add_argument("--planning", action="store_true", help="the time that planning takes")
    given = parser.parse_args(argv)
    names = [name for name in SUITE if given.wanted in name]
    if not names:
        parser.error(f"no graph has {given.wanted!r} in its name; there are {', '.join(SUITE)}")
    if given.planning:
        return 0 if show_planning(names) else 1
    show_plans(names)
    return 0


if __name__ == "__main__":
    sys.exit(main())
