"""Tests of what a change to PyTorch brings are skipped where SPYRE_UPSTREAM leaves that out."""

from __future__ import annotations

import pytest

from torch_spyre.upstream.install import VARIABLE, is_on


def needs(*names: str) -> pytest.MarkDecorator:
    """A mark for tests of these rows of upstream/table.py."""
    missing = [name for name in names if not is_on(name)]
    reason = f"{VARIABLE} leaves out {', '.join(missing)}"
    return pytest.mark.skipif(bool(missing), reason=reason)
