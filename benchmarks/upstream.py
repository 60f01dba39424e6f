"""What each change to PyTorch that only saves time is worth: `python -m benchmarks.upstream`.

Each row of `torch_spyre/upstream/table.py` of the kind *time* is left out in turn
(`SPYRE_UPSTREAM=without:NAME`), and the functions that are called while a model is compiled are
counted, those of Python and those of C. The counts are the same in each run and on each machine, so
that a hundredth is seen where times differ by a tenth. Rows that change nothing of PyTorch call the
same functions: for these it is processor time, the best of five processes that alternate. A last
line has all of them left out (`SPYRE_UPSTREAM=semantics`). The figures go into the table by hand:

                            MiniLM 8x128        decoder, 24 layers
    left out                cold      warm      cold      warm
    equal-layers            +6.7 %    +0.0 %    +53.7 %   +0.0 %
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile

from torch_spyre.upstream.install import VARIABLE
from torch_spyre.upstream.table import PATCHES

_SOURCE = """
import cProfile, sys, time, warnings
import torch
warnings.simplefilter("ignore")
from benchmarks import workloads
what, make, *sizes = sys.argv[1:]
module, inputs = getattr(workloads, make)(*map(int, sizes))
module = module.eval().half().to("spyre")
inputs = [x.to("spyre", torch.half if x.is_floating_point() else None) for x in inputs]
torch.compile(lambda z: z + 1)(torch.zeros(64, dtype=torch.half, device="spyre")).cpu()  # imports
profile = cProfile.Profile()
run = torch.compile(module, fullgraph=True)
with torch.no_grad():
    if what == "calls":
        profile.runcall(run, *inputs)
        print(sum(entry.callcount for entry in profile.getstats()))
    else:
        begin = time.process_time()
        run(*inputs)
        print(time.process_time() - begin)
"""

CASES = {"MiniLM 8x128": ("minilm", "8", "128"), "decoder, 24 layers": ("decoder", "24")}
STATES = ("cold", "warm")
ROUNDS = 5


def main() -> None:
    known = [patch.name for patch in PATCHES if patch.kind == "time"]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.upstream", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", choices=[*known, []], help="rows; all if none is given")
    wanted = parser.parse_args().names or known
    print(" " * 22 + "".join(f"{name:24}" for name in CASES))
    print(f"{'left out':22}" + "".join(f"{state:12}" for _ in CASES for state in STATES))
    whole = _measured("calls", "all")
    print(f"{'nothing':22}" + "".join(f"{count / 1e6:.2f} M".ljust(12) for count in whole))
    for name in wanted:
        if any(patch.name == name and patch.targets for patch in PATCHES):
            _tell(name, _measured("calls", f"without:{name}"), whole)
        else:
            _tell(name, *_times(f"without:{name}", "all"))
    _tell("all, in calls", _measured("calls", "semantics"), whole)
    _tell("all, in time", *_times("semantics", "all"))


def _tell(name: str, found: list[float], whole: list[float]) -> None:
    gains = (f"{100 * (a / b - 1):+.1f} %" for a, b in zip(found, whole, strict=True))
    print(f"{name:22}" + "".join(gain.ljust(12) for gain in gains), flush=True)


def _times(*settings: str) -> list[list[float]]:
    """Seconds of processor time with each of the settings."""
    runs = [[_measured("seconds", setting) for setting in settings] for _ in range(ROUNDS)]
    of_setting = zip(*runs, strict=True)
    return [[min(times) for times in zip(*of_one, strict=True)] for of_one in of_setting]


def _measured(what: str, setting: str) -> list[float]:
    """Calls of functions or seconds, of each case cold and warm."""
    found = []
    for case in CASES.values():
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, VARIABLE: setting, "TORCHINDUCTOR_CACHE_DIR": folder}
            for _ in STATES:
                done = subprocess.run(
                    [sys.executable, "-c", _SOURCE, what, *case],
                    env=environment,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if done.returncode != 0:
                    raise SystemExit(f"{case[0]} did not compile, {setting}:\n{done.stderr}")
                found.append(float(done.stdout.splitlines()[-1]))
    return found


if __name__ == "__main__":
    main()
