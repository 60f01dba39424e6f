"""`make fuzz`: thousands of random programs, in processes of their own; failures become tests.

In: how many programs, from which seed on. Out: a line per batch, the failures at the end, a ready
test for each in build/fuzz, and exit code 1 if there is one. A batch is compiled as one graph, on a
number of cores of its own (`cores_of`), every other one with plans of scratchpads, in a worker
process: one that dies or hangs is reported with the programs that it had, each of which is then
tried alone.

    python -m tests.fuzz --programs 2000 --first 0
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BATCH = 10
SECONDS_PER_PROGRAM = 120


def cores_of(seed: int) -> int:
    """Cores that the batch of a program is compiled for: each number from 1 to 32 has its turn."""
    return seed // BATCH * 7 % 32 + 1


def lx_of(seed: int) -> bool:
    """Whether the batch of a program is compiled with plans of scratchpads: every other one."""
    return seed // BATCH % 2 == 1


def main() -> int:
    args = _arguments()
    if args.worker is not None:
        return _work(args.worker, args.out)
    start = time.monotonic()
    seeds = range(args.first, args.first + args.programs)
    size = BATCH * 5
    parts = [seeds[i : i + size] for i in range(0, len(seeds), size)]
    with ThreadPoolExecutor(args.jobs) as pool:
        bad = [
            line for found in pool.map(lambda p: _in_process(p, args.out), parts) for line in found
        ]
    minutes = (time.monotonic() - start) / 60
    print(f"{args.programs} programs in {minutes:.1f} minutes: {len(bad)} failures")
    print("\n".join(bad))
    return 1 if bad else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--programs", type=int, default=2000, help="how many (default: 2000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once (default: 2)")
    parser.add_argument(
        "--out", type=Path, default=Path("build/fuzz"), help="where tests are written"
    )
    parser.add_argument(
        "--worker", type=lambda t: [int(x) for x in t.split(",")], help=argparse.SUPPRESS
    )
    return parser.parse_args()


def _in_process(seeds: Sequence[int], out: Path) -> list[str]:
    """Run programs in a process of their own; if it is lost, one process for each program."""
    text = ",".join(map(str, seeds))
    command = [sys.executable, "-m", "tests.fuzz", "--worker", text, "--out", str(out)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False,
                              timeout=SECONDS_PER_PROGRAM * len(seeds))  # fmt: skip
        lost = "" if done.returncode in (0, 1) else f"the process ended with {done.returncode}"
    except subprocess.TimeoutExpired:
        lost = f"no answer after {SECONDS_PER_PROGRAM * len(seeds)} seconds"
    if lost and len(seeds) > 1:
        return [line for seed in seeds for line in _in_process([seed], out)]
    if lost:
        return [f"seed {seeds[0]}: {lost}"]
    found = [x.removeprefix("FAILED ") for x in done.stdout.splitlines() if x.startswith("FAILED ")]
    print(f"seeds {seeds[0]} to {seeds[-1]}: {len(found)} failures", flush=True)
    if done.returncode and not found:
        found = [f"seeds {seeds[0]} to {seeds[-1]}: {done.stderr.strip().splitlines()[-1]}"]
    return found


def _work(seeds: Sequence[int], out: Path) -> int:
    """In a worker: run programs in batches, make failures small, write them as tests."""
    from tests.fuzz.generate import generate
    from tests.fuzz.ready_test import as_test
    from tests.fuzz.run import failure_of, failures
    from tests.fuzz.shrink import shrink
    from torch_spyre._inductor import config

    warnings.simplefilter("ignore")
    bad = 0
    for start in range(0, len(seeds), BATCH):
        batch = seeds[start : start + BATCH]
        cores, lx = cores_of(batch[0]), lx_of(batch[0])
        programs = [generate(seed) for seed in batch]
        with config.patch(lx_planning=lx):
            results = failures(programs, cores)
        for seed, program, found in zip(batch, programs, results, strict=True):
            if found is None:
                continue
            bad += 1
            with config.patch(lx_planning=lx):
                small = shrink(program, found, cores) if found.where != "together" else program
                said = failure_of(small, cores) or found
            out.mkdir(parents=True, exist_ok=True)
            path = out / f"test_seed_{seed}.py"
            path.write_text(as_test(small, said, cores, seed, lx))
            print(f"FAILED seed {seed}: {found} ({len(small.lines)} lines in {path})", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
