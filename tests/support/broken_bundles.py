"""Bundles that are refused: a copy of the handwritten one to break, and what is said of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from torch_spyre.backend import BundleError, read_bundle

HANDWRITTEN = Path(__file__).parents[1] / "backend" / "handwritten"


def broken_copy(tmp_path: Path) -> Path:
    directory = tmp_path / "bundle"
    shutil.copytree(HANDWRITTEN, directory)
    return directory


def refusal(directory: Path) -> str:
    with pytest.raises(BundleError) as error:
        read_bundle(directory)
    message = str(error.value)
    assert "\n" not in message and len(message) < 1000
    return message
