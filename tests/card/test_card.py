"""Runs each of the card's C++ test programs as one test.

The sources are tests/card/<folder>/*_test.cpp. `make card-tests` builds them, as `make test` does
before it starts pytest: a compiler takes what it takes. Run a single C++ test by hand with
`build/card/<program> <part of its name>`.
"""

import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUILD = ROOT / "build" / "card"
PROGRAMS = sorted(
    str(source.relative_to(HERE).with_suffix("")) for source in HERE.rglob("*_test.cpp")
)


def test_the_programs_are_built_from_the_sources_that_are_there():
    built = BUILD / ".built"
    assert built.is_file(), "the card's tests are not built: run make card-tests"
    folders = (HERE, ROOT / "torch_spyre" / "csrc" / "card")
    files = [f for d in folders for f in d.rglob("*") if f.suffix in (".cpp", ".h", ".inl")]
    newer = [str(f) for f in files if f.stat().st_mtime > built.stat().st_mtime]
    assert not newer, f"the card's tests are older than {newer}: run make card-tests"


@pytest.mark.parametrize("program", PROGRAMS)
def test_card_program_passes(program):
    path = BUILD / program
    if not path.is_file():
        pytest.fail(f"{program} is not built: run make card-tests", pytrace=False)
    result = subprocess.run([str(path)], text=True, capture_output=True)
    if result.returncode != 0:
        pytest.fail(
            f"{program} ended with {result.returncode}:\n{result.stdout}\n{result.stderr}",
            pytrace=False,
        )
