"""Sweep PyTorch's operator database (OpInfo) on a device, eager or compiled, and compare with CPU.

In: a device, dtypes, a pattern of operator names. Out: results as JSON, a summary on the terminal,
a page for the documentation, and exit code 1 when too few of a dtype match or anything crashed or
hung. A sweep that was interrupted goes on where it was, unless the device's code has changed.
Workers live long (importing the database takes seconds) and get one (operator, dtype) at a time;
one that dies or takes too long is replaced, and its operator is tried once more in a fresh worker,
so that the blame is right.

    python -m tests.opinfo.sweep --device spyre --dtypes float16,bool --ops "nn.functional.*"
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import torch

from . import compiled_report, report
from .worker import Outcome, all_ops, clean, device_build

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT = 300.0
PROGRESS_SECONDS = 15.0
LIFETIME = 200


class WorkerGone(Exception):
    """A worker died or did not answer in time; `status` is crash or hang."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


class CannotStart(Exception):
    """No worker can run here, for instance because the device does not exist."""


def main() -> int:
    """Run the command."""
    args = _arguments()
    tasks = find_tasks(args.dtypes, args.ops)
    if not tasks:
        print(f"no operator matches {args.ops!r} with {', '.join(args.dtypes)}")
        return 1
    print(
        f"OpInfo sweep of torch {torch.__version__} on {args.device!r}: "
        f"{len(tasks)} operator-dtype pairs, up to {args.samples} samples "
        f"each, {args.jobs} worker{'s' if args.jobs > 1 else ''}"
    )
    start = time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    name = "compiled" if args.compiled else "results"
    log = Log(args.out / f"{name}.partial.jsonl", f"{device_build()} {args.samples} {args.device}")
    outcomes = log.read(args.keep) if args.keep or not args.again else []
    sweep = Sweep(
        args.device, args.samples, args.timeout, args.compiled, outcomes, builds={device_build()}
    )
    sweep.log = log
    log.start(outcomes)
    try:
        outcomes = sweep.run(tasks, args.jobs)
    except CannotStart as error:
        print(f"The sweep cannot start: {error}", file=sys.stderr)
        return 1
    seconds = time.monotonic() - start
    result = report.Result(
        args.device, str(torch.__version__), args.samples, tuple(outcomes), args.compiled
    )
    (args.out / f"{name}.json").write_text(report.as_json(result))
    print(report.as_text(result))
    print(f"{len(outcomes)} pairs in {_duration(seconds)}; details in {args.out / name}.json")
    if len(sweep.builds | {device_build()}) > 1:
        print(
            "workers loaded more than one build of torch_spyre: the results count for none of "
            "them. Run the sweep again when nothing is being built.",
            file=sys.stderr,
        )
        return 1
    if args.docs:
        args.docs.parent.mkdir(parents=True, exist_ok=True)
        page = compiled_report.as_page(result) if args.compiled else report.as_page(result)
        args.docs.write_text(page)
        print(f"page written to {args.docs}")
    log.path.unlink()
    return 0 if report.is_good(result) else 1


def _arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.opinfo.sweep", description=__doc__)
    parser.add_argument("--device", default="spyre", help="device to try (default: spyre)")
    parser.add_argument(
        "--dtypes",
        type=lambda text: [x.strip() for x in text.split(",") if x.strip()],
        default=["float16", "float32", "int64", "bool"],
        help="comma-separated (default: float16,float32,int64,bool)",
    )
    parser.add_argument(
        "--ops", default="", help="regular expression of operator names (default: all)"
    )
    parser.add_argument("--compiled", action="store_true", help="through torch.compile")
    parser.add_argument("--samples", type=int, help="most samples per pair (8; compiled: 4)")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes (default: 2)")
    parser.add_argument("--timeout", type=float, help="seconds per pair (60; compiled: 300)")
    parser.add_argument("--again", action="store_true", help="forget a sweep that was interrupted")
    parser.add_argument(
        "--keep",
        default="",
        help="statuses to take over from the last results whatever has changed since, as in "
        "match,skipped: to try again what failed",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("build/opinfo"), help="directory of the results"
    )
    parser.add_argument("--docs", type=Path, help="write a Markdown page here")
    args = parser.parse_args()
    args.samples = args.samples or (4 if args.compiled else 8)
    args.timeout = args.timeout or (300 if args.compiled else 60)
    for name in args.dtypes:
        if not isinstance(getattr(torch, name, None), torch.dtype):
            parser.error(f"{name!r} is not a dtype of torch")
    return args


def find_tasks(dtypes: list[str], pattern: str) -> list[tuple[str, str]]:
    """Return the pairs that CPU supports and whose name contains `pattern`, in a fixed order."""
    wanted = re.compile(pattern)
    return [
        (name, dtype)
        for name, op in all_ops().items()
        if wanted.search(name)
        for dtype in dtypes
        if getattr(torch, dtype) in op.supported_dtypes("cpu")
    ]


# -------------------------------------------------------------------------------------------------
# 1. Running all tasks


@dataclass
class Sweep:
    """Feeds tasks to worker processes and collects their outcomes."""

    device: str
    samples: int
    timeout: float
    compiled: bool = False
    outcomes: list[Outcome] = field(default_factory=list)
    failure: Exception | None = None
    builds: set[str] = field(default_factory=set)
    log: Log | None = None

    def run(self, tasks: list[tuple[str, str]], jobs: int) -> list[Outcome]:
        """Run every task and return the outcomes in the order of the tasks."""
        waiting: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        done = {(o.op, o.dtype) for o in self.outcomes}
        for task in tasks:
            if task not in done:
                waiting.put(task)
        threads = [
            threading.Thread(target=self._feed, args=(waiting,), daemon=True) for _ in range(jobs)
        ]
        for thread in threads:
            thread.start()
        start = shown = time.monotonic()
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.2)
            if time.monotonic() - shown > PROGRESS_SECONDS:
                shown = time.monotonic()
                print(self._progress(len(tasks), shown - start), flush=True)
        if self.failure:
            raise self.failure
        order = {task: index for index, task in enumerate(tasks)}
        found = [o for o in self.outcomes if (o.op, o.dtype) in order]
        return sorted(found, key=lambda o: order[o.op, o.dtype])

    def _feed(self, waiting: queue.SimpleQueue[tuple[str, str]]) -> None:
        """Give one worker after the other tasks until none is left."""
        worker: Worker | None = None
        asked = 0
        try:
            while self.failure is None:
                try:
                    task = waiting.get_nowait()
                except queue.Empty:
                    break
                asked += 1
                if worker is not None and asked % LIFETIME == 0:
                    worker.end()  # compilers keep what they made
                if worker is None or not worker.alive:
                    worker = self._start()
                try:
                    outcome = worker.ask(task, self.timeout)
                except WorkerGone as gone:
                    worker = self._start()
                    outcome = self._blame(worker, task, gone)
                self.outcomes.append(outcome)
                if self.log is not None:
                    self.log.add(outcome)
        except Exception as error:
            self.failure = error
        finally:
            if worker is not None:
                worker.end()

    def _start(self) -> Worker:
        """Start a worker and remember which build of the device it loaded."""
        worker = Worker(self.device, self.samples, self.compiled)
        self.builds.add(worker.build)
        return worker

    def _blame(self, worker: Worker, task: tuple[str, str], first: WorkerGone) -> Outcome:
        """Try an operator that took its worker down once more in a fresh one."""
        try:
            outcome = worker.ask(task, self.timeout)
        except WorkerGone as gone:
            return Outcome(*task, gone.status, str(gone), worker.at)
        return replace(outcome, note=f"{first.status} at the first try, not in a fresh worker")

    def _progress(self, total: int, seconds: float) -> str:
        """Write one line of progress."""
        done = list(self.outcomes)
        counts = {s: sum(o.status == s for o in done) for s in report.STATUSES}
        said = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        left = (
            f", about {_duration(seconds / len(done) * (total - len(done)))} left" if done else ""
        )
        return f"  {len(done):4d} of {total}: {said or 'starting'}{left}"


@dataclass
class Log:
    """Outcomes so far, one JSON line each after one that says what they are outcomes of."""

    path: Path
    subject: str
    lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self, keep: str) -> list[Outcome]:
        """Outcomes of an interrupted sweep; with `keep` those with one of its statuses, also of
        another build and of a sweep that came to its end."""
        finished = self.path.with_name(self.path.name.replace(".partial.jsonl", ".json"))
        if keep and finished.exists() and not self.path.exists():
            found = [Outcome(**o) for o in json.loads(finished.read_text())["outcomes"]]
        else:
            lines = self.path.read_text().splitlines() if self.path.exists() else [""]
            if not keep and lines[0] != self.subject:
                return []
            found = [Outcome(**json.loads(line)) for line in lines[1:]]
        return [o for o in found if not keep or o.status in keep.split(",")]

    def start(self, outcomes: list[Outcome]) -> None:
        """Begin with what is known."""
        self.path.write_text(self.subject + "\n")
        for outcome in outcomes:
            self.add(outcome)

    def add(self, outcome: Outcome) -> None:
        """One more."""
        with self.lock, self.path.open("a") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")


# -------------------------------------------------------------------------------------------------
# 2. One worker process


class Worker:
    """A worker process that can be asked to try one operator at a time."""

    def __init__(self, device: str, samples: int, compiled: bool = False) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the worker)
        command = [sys.executable, "-m", f"{__package__}.worker", "--device", device]
        command += ["--samples", str(samples)] + ["--compiled"] * compiled
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
        )
        self._pending = b""
        self.alive = True
        self.at = ""
        try:
            hello = self._receive(time.monotonic() + START_TIMEOUT)
        except WorkerGone as gone:
            raise CannotStart(
                f"a worker ended while starting: {gone}\n{self._last_words(12)}"
            ) from None
        if "fatal" in hello:
            self.end()
            raise CannotStart(hello["fatal"])
        self.build: str = hello["build"]

    def ask(self, task: tuple[str, str], timeout: float) -> Outcome:
        """Try one operator; raise WorkerGone when the process dies or takes too long."""
        self.at = ""
        op, dtype = task
        line = json.dumps({"op": op, "dtype": dtype}) + "\n"
        deadline = time.monotonic() + timeout
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._gone("crash", "the worker ended between two operators") from None
        while True:
            answer = self._receive(deadline)
            if "outcome" in answer:
                return Outcome(**answer["outcome"])
            self.at = answer["at"]

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self.alive = False
        self._process.kill()
        self._process.wait()

    def _receive(self, deadline: float) -> dict[str, Any]:
        """Return the next answer."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not selector.select(max(deadline - time.monotonic(), 0)):
                    raise self._gone("hang", "no result in time")
                chunk = os.read(self._process.stdout.fileno(), 65536)
                if not chunk:
                    raise self._gone("crash", self._cause_of_death())
                self._pending += chunk
        line, self._pending = self._pending.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _gone(self, status: str, message: str) -> WorkerGone:
        """End the process and return the error to raise."""
        self.end()
        return WorkerGone(status, message)

    def _cause_of_death(self) -> str:
        """Say which signal or exit code ended the process, with what it said last."""
        code = self._process.wait()
        cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        words = [
            x
            for x in self._last_words(40).splitlines()
            if "terminate called" in x or "what():" in x
        ]
        return cause if not words else f"{cause}: {clean(words[-1])}"

    def _last_words(self, lines: int) -> str:
        """Return the end of what the process wrote to standard error."""
        self._log.seek(0)
        return "\n".join(self._log.read().decode(errors="replace").splitlines()[-lines:])


def _duration(seconds: float) -> str:
    """Write a duration as a person would."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return "{} min {} s".format(*divmod(round(seconds), 60))


if __name__ == "__main__":
    raise SystemExit(main())
