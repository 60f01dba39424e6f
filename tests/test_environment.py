"""The list of environment variables is what the sources read and what the page says; one that is
none of them is reported with the nearest that is."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import Script
from torch_spyre import environment

ROOT = Path(__file__).resolve().parents[1]

# What reads variables, and how it names them.
READERS = {
    "torch_spyre/csrc/settings.cpp": r'"([A-Z][A-Z0-9_]{5,})"',
    "torch_spyre/_inductor/config.py": r'_(?:flag|read)\("(\w+)"|get\("(\w+)"',
    "torch_spyre/validation.py": r'flag\("(\w+)"',
    "torch_spyre/device/registration.py": r'environ\.get\("(\w+)"',
    "torch_spyre/upstream/install.py": r'VARIABLE = "(\w+)"',
    "torch_spyre/cache/store.py": r'LIMIT_VARIABLE = "(\w+)"',
    "torch_spyre/logs.py": r'"(SPYRE_[A-Z_]+)":',
}


def test_the_list_is_what_the_sources_read():
    found = set()
    for file, pattern in READERS.items():
        matches = list(re.finditer(pattern, (ROOT / file).read_text()))
        assert matches, file
        found |= {name for match in matches for name in match.groups() if name}
    assert found == environment.VARIABLES


def test_no_other_source_reads_a_variable_of_ours():
    known = {ROOT / file for file in READERS} | {ROOT / "torch_spyre/environment.py"}
    wrong = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in (*(ROOT / "torch_spyre").rglob("*.py"), *(ROOT / "torch_spyre").rglob("*.cpp"))
        if path not in known
        for line in path.read_text().splitlines()
        if re.search(r'(environ|getenv|env)\w*(\.get)?\W{1,2}"(SPYRE|AIU|LX)_', line)
    ]
    assert not wrong, "\n".join(wrong)


def test_every_variable_has_a_row_on_the_page():
    page = (ROOT / "docs/user_guide/environment_variables.md").read_text()
    rows = set(re.findall(r"^\| `([A-Z][A-Z0-9_]+)(?:=\w*)?`", page, re.MULTILINE))
    assert environment.VARIABLES - rows == set()
    assert {name for name in rows if name.startswith("SPYRE_")} <= environment.VARIABLES


def test_an_unknown_variable_is_told_with_the_nearest_one():
    names = ["SPYRE_EAGR", "SPYRE_LX_PLANNING", "SPYRE_EAGER", "HOME", "LX_PLANING"]
    assert environment.unknown(names) == {
        "SPYRE_EAGR": "SPYRE_EAGER",
        "SPYRE_LX_PLANNING": "LX_PLANNING",
    }


def test_importing_torch_warns_of_unknown_variables_and_works(script: Script):
    source = """
        import warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import torch
        for warning in caught:
            if "SPYRE" in str(warning.message):
                print(warning.message)
        print(torch.spyre.device_count())
    """
    said, count = script(source, SPYRE_FALBACK_WARN="0").splitlines()
    assert said == (
        "the environment variable SPYRE_FALBACK_WARN is unknown and has no effect; the nearest is "
        "SPYRE_FALLBACK_WARN"
    )
    assert count == "1"
    assert script(source, SPYRE_FALLBACK_WARN="0") == "1"
