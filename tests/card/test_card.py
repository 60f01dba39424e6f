"""Builds the card's C++ tests and runs each program as one test.

The sources are tests/card/<folder>/*_test.cpp; tests/card/Makefile says how they are built. Run a
single C++ test by hand with `build/card/<program> <part of its name>`.
"""

import fcntl
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUILD = ROOT / "build" / "card"
PROGRAMS = sorted(
    str(source.relative_to(HERE).with_suffix("")) for source in HERE.rglob("*_test.cpp")
)


@pytest.fixture(scope="session")
def built_programs():
    """The folder of the built programs. Parallel pytest workers build one after the other."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with open(BUILD / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = ["make", "-f", str(HERE / "Makefile"), "-j2", f"BUILD={BUILD}"]
        result = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    if result.returncode != 0:
        pytest.fail(f"{' '.join(command)} failed:\n{result.stdout}\n{result.stderr}", pytrace=False)
    return BUILD


@pytest.mark.parametrize("program", PROGRAMS)
def test_card_program_passes(built_programs, program):
    result = subprocess.run(
        [str(built_programs / program)], text=True, capture_output=True, timeout=600
    )
    if result.returncode != 0:
        pytest.fail(
            f"{program} ended with {result.returncode}:\n{result.stdout}\n{result.stderr}",
            pytrace=False,
        )
