"""Shared by all tests: quiet fallbacks, and helpers to run a script in a fresh process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.support import sanitized

# Every run begins with empty caches, shared by its processes: what an earlier run compiled
# must not decide what this one sees.
CACHES = "TORCHINDUCTOR_CACHE_DIR"

# The same examples in every run, however busy the machine is and whatever an earlier run found.
settings.register_profile("tests", derandomize=True, deadline=None, database=None,
                          suppress_health_check=[HealthCheck.too_slow])  # fmt: skip
settings.load_profile("tests")

torch.spyre.set_fallback_warning(False)
torch.spyre.set_downcast_warning(False)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="also run what is marked full")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full: one of many like it; run with --full (make test-all)")
    if sanitized.is_wanted():
        config.pluginmanager.register(sanitized.SanitizedRun())
    if not _is_worker(config):
        os.environ[CACHES] = tempfile.mkdtemp(prefix="spyre-tests-")  # workers inherit it


def pytest_unconfigure(config: pytest.Config) -> None:
    if not _is_worker(config):
        shutil.rmtree(os.environ.pop(CACHES), ignore_errors=True)


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full"):
        return
    left_out = [item for item in items if item.get_closest_marker("full")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("full")]


class Script:
    """Runs Python source in a new process and gives its output."""

    def __call__(self, source: str, *, expect_failure: bool = False, **env: str) -> str:
        result = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", textwrap.dedent(source)],
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=1800,  # for one that hangs
            check=False,
        )
        output = result.stdout + result.stderr
        assert (result.returncode != 0) == expect_failure, output
        return output if expect_failure else result.stdout.strip()


@pytest.fixture(scope="session")
def script() -> Script:
    return Script()
