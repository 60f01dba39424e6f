"""What was measured, kept as JSON, judged, and compared with an earlier run.

A group of measurements is a list of `Result`s: a name, what it is here, and what it is for each
peer, all in one unit. `Promise`s are what the project wants of them. An earlier run comes from the
JSON that it left, or from a commit; `compare` says what became better or worse by more than noise.

    changes = compare(results, load(Path("docs/performance/speed.json")))
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

NOISE = 0.1  # what two runs of the same code differ by on a quiet machine, and a little more


@dataclass(frozen=True)
class Result:
    """One row: `ours` and the `peers`' in `unit`. Comparisons use the first peer."""

    name: str
    ours: float
    peers: dict[str, float]
    unit: str = "us"
    bound: str = ""
    holds: bool = True
    spread: float = 0.0
    """By how much, as a share, most rounds were worse than the best one."""
    facts: dict[str, float] = field(default_factory=dict)
    """Whatever else is worth a place in the JSON."""

    def ratio(self, peer: str | None = None) -> float:
        """Ours over the peer's; of the first peer if none is named."""
        return self.ours / self.peers[peer or next(iter(self.peers))]


@dataclass(frozen=True)
class Promise:
    """Something about a whole group."""

    what: str
    value: float
    bound: float

    @property
    def holds(self) -> bool:
        return self.value <= self.bound


@dataclass(frozen=True)
class Change:
    """A row against the same row of an earlier run: new over old, 1 if nothing changed."""

    name: str
    of_time: float
    of_ratio: float
    noise: float

    @property
    def verdict(self) -> str:
        """Only what shows in the value and in the ratio to the peer is a change of ours."""
        if max(self.of_time, self.of_ratio) < 1 / (1 + self.noise):
            return "better"
        if min(self.of_time, self.of_ratio) > 1 + self.noise:
            return "worse"
        return "same"


def geometric_mean(values: Iterable[float]) -> float:
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms))


# ---- Files --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """What one run left: the results, and the machine that they are from."""

    machine: dict[str, Any]
    results: list[Result]
    busy: float | None = None
    """Share of the processor that others used just before; None if that is not known."""


def dump(run: Run, promises: Sequence[Promise]) -> str:
    """As JSON."""
    content = {
        "machine": run.machine,
        "busy": run.busy,
        "results": [asdict(result) for result in run.results],
        "promises": [{**asdict(p), "holds": p.holds} for p in promises],
    }
    return json.dumps(content, indent=2) + "\n"


def parse(text: str) -> Run:
    """What `dump` wrote. Raises: ValueError for anything else."""
    content = json.loads(text)
    try:
        results = [Result(**row) for row in content["results"]]
        return Run(content["machine"], results, content.get("busy"))
    except (KeyError, TypeError) as problem:
        raise ValueError(f"not the results of a run: {problem}") from problem


def load(path: Path, commit: str = "") -> Run | None:
    """An earlier run, from its file as it is or as it was in a commit; None if there is none.

    Raises: ValueError for a file that is something else, with its name and what to do.
    """
    if commit:
        shown = subprocess.run(
            ["git", "show", f"{commit}:./{path.name}"],
            cwd=path.parent,
            capture_output=True,
            text=True,
            check=False,
        )
        if shown.returncode != 0:
            return None
        text = shown.stdout
    elif path.is_file():
        text = path.read_text()
    else:
        return None
    try:
        return parse(text)
    except ValueError as problem:
        where = f"{path} in {commit}" if commit else str(path)
        raise ValueError(f"{where}: {problem}; delete it or choose another --against") from None


def is_commit(name: str, folder: Path) -> bool:
    """Whether the repository of a folder has a commit of this name."""
    command = ["git", "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    return done.returncode == 0


def merged(new: Sequence[Result], old: Sequence[Result], names: Sequence[str]) -> list[Result]:
    """New rows in the place of old ones of the same name; rows that are no longer in `names` go."""
    known = {result.name: result for result in [*old, *new]}
    return [known[name] for name in names if name in known]


def machine() -> dict[str, Any]:
    """What the times depend on besides the code."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__.split("+")[0],
        "python": platform.python_version(),
    }


def busy(seconds: float = 0.5) -> float | None:
    """Which share of the processor others use while we sleep; None where that cannot be known."""

    def ticks() -> tuple[int, int]:
        numbers = [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return sum(numbers), numbers[3] + numbers[4]

    if not Path("/proc/stat").is_file():
        return None
    before, before_idle = ticks()
    time.sleep(seconds)
    after, after_idle = ticks()
    return 1 - (after_idle - before_idle) / max(after - before, 1)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


# ---- Comparison ---------------------------------------------------------------------------------


def compare(new: Sequence[Result], old: Sequence[Result]) -> list[Change]:
    """Rows that both runs have, in the order of the new one."""
    before = {result.name: result for result in old}
    return [
        Change(
            result.name,
            result.ours / before[result.name].ours,
            result.ratio() / before[result.name].ratio(),
            max(NOISE, result.spread, before[result.name].spread),
        )
        for result in new
        if result.name in before and result.unit == before[result.name].unit
    ]
