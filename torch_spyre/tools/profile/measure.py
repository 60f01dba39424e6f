"""`python -m torch_spyre.tools.profile MODULE:FUNCTION`: where compile time and run time go.

The function makes what is to be looked at: it returns a module or function, and its inputs.

    def small():                                    # in mine.py
        return torch.nn.Linear(64, 64), (torch.randn(8, 64),)

    python -m torch_spyre.tools.profile mine:small
    make profile MODEL=minilm SHAPE=8x128           # minilm(8, 128) of benchmarks/workloads.py

It is moved to the card in float16, compiled with empty caches under a sampler, called many times,
and once more with a clock at every step of the card. The report is printed and kept in
build/profile, as text and as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from torch_spyre import _C
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.tools.profile import card_steps, report
from torch_spyre.tools.profile.sampling import Sampler

FOLDER = Path("build/profile")


@dataclass
class HostTimes:
    """Of one call, in microseconds, medians: who spends what before and after the card computes."""

    total: float
    """From the call until the card has finished."""
    call: float
    """Until the call returns, with work still queued."""
    host_code: float
    """Of that, in the graphs' generated host code; the rest is guards and wrappers of PyTorch."""
    launch: float
    """Of that, in launches of kernels."""
    launches: int


@dataclass
class Profile:
    """All that was measured."""

    name: str
    compile_seconds: float
    phases: dict[str, float]
    other_threads: dict[str, float]
    functions: dict[str, tuple[float, float]]
    torch_phases: dict[str, float]
    """PyTorch's own figures, each with all that happens inside of it."""
    counters: dict[str, int]
    host: HostTimes
    fallbacks: dict[str, int]
    """Operations that the host did, in one call."""
    steps: list[card_steps.Step] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _arguments(arguments)
    if chosen.pyspy:
        return _under_pyspy(chosen)
    _C.set_fallback_warning(False)  # they are counted
    _C.set_downcast_warning(False)
    try:
        function, inputs = load(chosen.what, chosen.shape)
    except (ImportError, TypeError, ValueError) as problem:
        print(f"profile: {problem}", file=sys.stderr)
        return 2
    with _caches(chosen):
        if chosen.fill:
            with torch.no_grad():
                torch.compile(function)(*inputs)
            return 0
        profile = measure(_name(chosen), function, inputs)
    text = report.text(profile)
    print(text)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    file = chosen.folder / _name(chosen)
    file.with_suffix(".txt").write_text(report.text(profile, everything=True) + "\n")
    file.with_suffix(".json").write_text(json.dumps(asdict(profile), indent=2) + "\n")
    print(f"\nall rows: {file}.txt and .json")
    return 0


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m torch_spyre.tools.profile")
    parser.add_argument("what", help="module:function that returns a module and its inputs")
    parser.add_argument("--shape", type=_sizes, default=(), help="arguments for it, such as 8x128")
    parser.add_argument("--warm", action="store_true", help="compile with the caches of a process")
    parser.add_argument("--pyspy", action="store_true", help="record with py-spy, for speedscope")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="for the report: %(default)s")
    parser.add_argument("--fill", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split("x")) if text else ()
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}': sizes are like 8x128") from None


def _name(chosen: argparse.Namespace) -> str:
    function = chosen.what.rpartition(":")[2].replace(".", "_")
    return "_".join([function, *(["x".join(map(str, chosen.shape))] if chosen.shape else [])])


# --- 1. What is to be looked at -------------------------------------------------------------------


def load(what: str, shape: Sequence[int] = ()) -> tuple[Callable[..., Any], list[Any]]:
    """Call `module:function` with the sizes, and move what it returns to the card.

    Raises: ImportError, ValueError or TypeError that say what is wrong with the name or the result.
    """
    module_name, colon, function_name = what.partition(":")
    if not colon or not module_name or not function_name:
        raise ValueError(f"'{what}' is no module:function")
    module = importlib.import_module(module_name)
    make = getattr(module, function_name, None)
    if not callable(make):
        own = [
            name
            for name, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module_name and name[0] != "_"
        ]
        raise ValueError(
            f"module {module_name} has no function '{function_name}'; it has {', '.join(own)}"
        )
    try:
        function, inputs = make(*shape)
    except (TypeError, ValueError) as problem:
        if not _is_of_the_call(problem):
            raise
        raise TypeError(
            f"{what}{tuple(shape)} must return a module or function and a tuple of inputs: "
            f"{problem}"
        ) from problem
    if not callable(function):
        raise TypeError(f"{what} returned {type(function).__name__} where a function should be")
    return _to_card(function), [_to_card(value) for value in inputs]


def _is_of_the_call(problem: BaseException) -> bool:
    """Whether a wrong number of arguments or results is to blame, not something further inside."""
    trace = problem.__traceback__
    return trace is not None and trace.tb_next is None


def _to_card(value: Any) -> Any:
    if isinstance(value, torch.nn.Module):
        return value.eval().half().to(DEVICE_NAME)
    if isinstance(value, torch.Tensor):
        return (value.half() if value.is_floating_point() else value).to(DEVICE_NAME)
    return value


# --- 2. Measuring ---------------------------------------------------------------------------------


@torch.no_grad()
def measure(name: str, function: Callable[..., Any], inputs: Sequence[Any]) -> Profile:
    """Compile and call the function, and find out what took the time."""
    import torch._inductor.compile_fx  # what a first compilation imports is not ours to improve

    from torch_spyre._inductor.counters import counters

    torch.compile(lambda x: x + 1)(torch.zeros(64, dtype=torch.float16).to(DEVICE_NAME))
    before, torch_before = dict(counters), _torch_phases()
    compiled = torch.compile(function)
    with Sampler() as sampler:
        compiled(*inputs)
        torch.spyre.synchronize()  # type: ignore[attr-defined]
    counted = {key: counters[key] - before.get(key, 0) for key in counters}
    torch_phases = {
        phase: seconds - torch_before.get(phase, 0) for phase, seconds in _torch_phases().items()
    }

    _C.reset_fallback_counts()
    compiled(*inputs)
    fallbacks = _C.fallback_counts()
    host = _host_times(compiled, inputs)
    steps = card_steps.measure(function, compiled, inputs)
    return Profile(
        name,
        sampler.seconds,
        sampler.phases(),
        sampler.other_threads(),
        sampler.functions(),
        dict(sorted(torch_phases.items(), key=lambda item: -item[1])),
        counted,
        host,
        fallbacks,
        steps,
    )


def _torch_phases() -> dict[str, float]:
    from torch._dynamo.utils import compilation_time_metrics

    return {phase: sum(seconds) for phase, seconds in compilation_time_metrics.items()}


def _host_times(compiled: Callable[..., Any], inputs: Sequence[Any]) -> HostTimes:
    totals: list[float] = []
    calls: list[float] = []
    inside: list[float] = []
    launched: list[float] = []
    with _clocks() as clocks:
        begin = time.perf_counter()
        while len(totals) < 10 or time.perf_counter() - begin < 1:
            clocks.reset()
            start = time.perf_counter()
            compiled(*inputs)
            returned = time.perf_counter()
            torch.spyre.synchronize()  # type: ignore[attr-defined]
            totals.append(time.perf_counter() - start)
            calls.append(returned - start)
            inside.append(clocks.seconds["host code"])
            launched.append(clocks.seconds["launch"])
        launches = clocks.count["launch"]
    total, call, host_code, launch = (
        statistics.median(times) * 1e6 for times in (totals, calls, inside, launched)
    )
    return HostTimes(total, call, host_code, launch, launches)


class _Clocks:
    """Time and number of calls of the functions that were wrapped, since the last reset."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.seconds = {"host code": 0.0, "launch": 0.0}
        self.count = {"host code": 0, "launch": 0}

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[name] += time.perf_counter() - start
                self.count[name] += 1

        return timed


@contextlib.contextmanager
def _clocks() -> Iterator[_Clocks]:
    """Clocks around the generated host code of all graphs, and around launches in it."""
    import gc

    from torch._inductor.output_code import CompiledFxGraph

    from torch_spyre._inductor.host.async_compile import SpyreKernel

    clocks = _Clocks()
    graphs = [g for g in gc.get_objects() if type(g) is CompiledFxGraph]
    kept = [g.current_callable for g in graphs]
    launch = SpyreKernel.run
    for graph, function in zip(graphs, kept):
        graph.current_callable = clocks.wrap("host code", function)
    SpyreKernel.run = clocks.wrap("launch", launch)  # type: ignore[method-assign]
    try:
        yield clocks
    finally:
        SpyreKernel.run = launch  # type: ignore[method-assign]
        for graph, function in zip(graphs, kept):
            graph.current_callable = function


# --- 3. Caches and py-spy -------------------------------------------------------------------------


@contextlib.contextmanager
def _caches(chosen: argparse.Namespace) -> Iterator[None]:
    """Empty caches for the block; filled by another process before it, if they shall be warm."""
    if chosen.fill:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="spyre-profile-") as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        if chosen.warm:
            shape = ["--shape", "x".join(map(str, chosen.shape))] if chosen.shape else []
            command = [sys.executable, "-m", __spec__.name, chosen.what, *shape, "--fill"]
            subprocess.run(command, check=True)
        yield


def _under_pyspy(chosen: argparse.Namespace) -> int:
    """The same under py-spy, which sees C++ and child processes too."""
    if not _program("py-spy"):
        print("profile: py-spy is not installed: pip install py-spy", file=sys.stderr)
        return 2
    chosen.folder.mkdir(parents=True, exist_ok=True)
    output = chosen.folder / f"{_name(chosen)}.speedscope.json"
    options = ["--format", "speedscope", "--rate", "200", "--subprocesses", "--output", str(output)]
    shape = ["--shape", "x".join(map(str, chosen.shape))] if chosen.shape else []
    again = [sys.executable, "-m", __spec__.name, chosen.what, *shape]
    again += ["--folder", str(chosen.folder), *(["--warm"] if chosen.warm else [])]
    command = [_program("py-spy"), "record", *options, "--", *again]
    return subprocess.run(command, check=False).returncode


def _program(name: str) -> str:
    """A program of this Python environment, or of the path; empty if there is none."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.is_file() else shutil.which(name) or ""
