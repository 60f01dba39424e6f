"""Sampling profiler of Python code, by phase of compilation.

In: a block of code. Out: seconds by phase (which part of PyTorch or of this package was at work)
and by function. A thread samples the stacks of the others every few milliseconds; the overhead is
small, and generated code, C++ and imports are attributed to their callers.

    with Sampler() as sampler:
        torch.compile(model)(x)
    print(sampler.phases())

The innermost frame that belongs to a row of `PHASES` says which phase a moment belongs to. Files
that many phases use (sympy, fake tensors, torch.fx) are in none, so their time counts for the
caller.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from types import FrameType, TracebackType

# A part of a file's path, and the phase; the first row that fits counts. `*` is the module's name,
# None is for files that stand between a phase and what it calls.
PHASES: tuple[tuple[str, str | None], ...] = (
    ("torch_spyre/tools/", None),
    ("torch_spyre/backend/", "back-end: *"),
    ("torch_spyre/_inductor/codegen/", "SuperDSC: *"),
    ("torch_spyre/_inductor/host/async_compile", "kernels: load and launch"),
    ("torch_spyre/_inductor/", "front-end: *"),
    ("torch_spyre/upstream/", None),
    ("torch_spyre/device/streams.", "first run: waiting for the card"),
    ("torch_spyre/", "device: *"),
    ("torch/_inductor/fx_passes/", "Inductor: FX passes"),
    ("torch/_inductor/pattern_matcher", "Inductor: FX passes"),
    ("torch/_inductor/graph", "Inductor: lowering"),
    ("torch/_inductor/lowering", "Inductor: lowering"),
    ("torch/_inductor/ir", "Inductor: lowering"),
    ("torch/_inductor/loop_body", "Inductor: lowering"),
    ("torch/_inductor/scheduler", "Inductor: scheduler"),
    ("torch/_inductor/dependencies", "Inductor: scheduler"),
    ("torch/_inductor/codegen/", "Inductor: host code"),
    ("torch/_inductor/codecache", "Inductor: caches"),
    ("torch/_inductor/remote_cache", "Inductor: caches"),
    ("torch/_inductor/", "Inductor: *"),
    ("torch/_functorch/", "AOTAutograd"),
    ("torch/_dynamo/eval_frame.", None),
    ("torch/_dynamo/utils.", None),
    ("torch/_dynamo/decorators.", None),
    ("torch/_dynamo/guards.", "Dynamo: guards"),
    ("torch/_dynamo/", "Dynamo"),
    ("<frozen importlib", "imports"),
)
OTHER = "the model itself"

# A thread whose innermost frame is one of these waits for work.
_WAITING = {"wait", "_wait_for_tstate_lock", "select", "poll", "get", "_worker", "accept", "recv"}


class Sampler:
    """Watches all threads while a `with` block runs."""

    def __init__(self, interval: float = 0.002) -> None:
        self.interval = interval
        self.seconds = 0.0
        """What the block took."""
        self.samples = 0
        self._phases: Counter[str] = Counter()
        self._elsewhere: Counter[str] = Counter()
        self._inclusive: Counter[str] = Counter()
        self._own: Counter[str] = Counter()
        self._phase_of: dict[str, str | None] = {}
        self._stop = threading.Event()

    def __enter__(self) -> Sampler:
        self._main = threading.get_ident()
        self._thread = threading.Thread(target=self._watch, name="sampler", daemon=True)
        self._begin = time.perf_counter()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.seconds = time.perf_counter() - self._begin
        self._stop.set()
        self._thread.join()

    # ---- What was seen ----

    def phases(self) -> dict[str, float]:
        """Seconds by phase of the thread that runs the block, longest first; they add up to it."""
        return self._in_seconds(self._phases)

    def other_threads(self) -> dict[str, float]:
        """Seconds by phase of all other threads that did something."""
        return self._in_seconds(self._elsewhere)

    def functions(self) -> dict[str, tuple[float, float]]:
        """Of this package's functions: seconds with what they call, and of their own lines."""
        own = self._in_seconds(self._own)
        return {
            name: (seconds, own.get(name, 0.0))
            for name, seconds in self._in_seconds(self._inclusive).items()
        }

    def _in_seconds(self, weights: Counter[str]) -> dict[str, float]:
        # Watching begins and ends a moment later than the block: what was seen stands for all.
        total = sum(self._phases.values())
        scale = self.seconds / total if total else 0.0
        return {name: weight * scale for name, weight in weights.most_common()}

    # ---- Looking ----

    def _watch(self) -> None:
        last = time.perf_counter()
        while not self._stop.wait(self.interval):
            frames = sys._current_frames()
            now = time.perf_counter()
            for thread, frame in frames.items():
                if thread == self._main:
                    self._note(frame, now - last, self._phases)
                elif thread != self._thread.ident and frame.f_code.co_name not in _WAITING:
                    self._note(frame, now - last, self._elsewhere)
            self.samples += 1
            last = now

    def _note(self, innermost: FrameType, weight: float, phases: Counter[str]) -> None:
        found: str | None = None
        seen: set[str] = set()
        frame: FrameType | None = innermost
        while frame is not None:
            code = frame.f_code
            phase = self._phase(code.co_filename)
            if found is None and phase is not None:
                found = phase
            if "torch_spyre/" in code.co_filename and phase:
                file = code.co_filename.rpartition("torch_spyre/")[2]
                name = f"{file}: {code.co_qualname if _QUALNAME else code.co_name}"
                if frame is innermost:
                    self._own[name] += weight  # type: ignore[assignment]
                if name not in seen:
                    seen.add(name)
                    self._inclusive[name] += weight  # type: ignore[assignment]
            frame = frame.f_back
        phases[found or OTHER] += weight  # type: ignore[assignment]

    def _phase(self, file: str) -> str | None:
        if file not in self._phase_of:
            self._phase_of[file] = phase_of(file)
        return self._phase_of[file]


_QUALNAME = sys.version_info >= (3, 11)


def phase_of(file: str) -> str | None:
    """The phase that a file belongs to; None for what several phases use."""
    for part, phase in PHASES:
        if file.startswith(part) or f"/{part}" in file:
            module = file.rpartition("/")[2].removesuffix(".py")
            return phase and phase.replace("*", module)
    return None


def stages(phases: Mapping[str, float]) -> dict[str, float]:
    """Sums over the phases of a stage, the part of a phase's name before the colon."""
    sums: Counter[str] = Counter()
    for phase, seconds in phases.items():
        sums[phase.partition(":")[0]] += seconds  # type: ignore[assignment]
    return dict(sums.most_common())
