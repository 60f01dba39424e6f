"""All tests with the sanitizer on: `make test-sanitized`, or `SPYRE_SANITIZE=1` before pytest.

A finding fails the test in which it is made, also when the error is caught. The last lines
say how many launches were checked. Exclusions, with reasons, are the list below.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest

import torch_spyre._C as _C

# The prefix of a test's name, and why it is excluded.
EXCLUDED = {
    "tests/sanitizer/": "switches the sanitizer on and off itself, and seeds faults",
}


def is_wanted() -> bool:
    return os.environ.get("SPYRE_SANITIZE") == "1"


def why_excluded(nodeid: str) -> str | None:
    return next((why for begin, why in EXCLUDED.items() if nodeid.startswith(begin)), None)


class SanitizedRun:
    """A plugin of pytest."""

    def __init__(self) -> None:
        self.workers: list[dict[str, int]] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if reason := why_excluded(item.nodeid):
                item.add_marker(pytest.mark.skip(reason=f"not with the sanitizer: {reason}"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        before = _C._sanitizer_counts()["findings"]
        result = yield
        found = _C._sanitizer_counts()["findings"] - before
        assert found == 0, f"the sanitizer found {found} faults, and the test has caught the error"
        return result

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["sanitizer"] = _C._sanitizer_counts()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.workers.append(getattr(node, "workeroutput", {}).get("sanitizer", {}))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        counts = [_C._sanitizer_counts(), *self.workers]
        followed, known, found = (
            sum(own.get(name, 0) for own in counts) for name in ("followed", "known", "findings")
        )
        terminalreporter.write_line(
            f"sanitizer: {followed + known} launches checked ({known} of them like a clean one "
            f"before), {found} findings; processes that tests start not counted"
        )
