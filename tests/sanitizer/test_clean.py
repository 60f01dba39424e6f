"""Programs of other tests run clean under the sanitizer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = (
    "tests/backend/on_card/test_run_fusion.py",
    "tests/backend/on_card/test_run_indices.py",
    "tests/backend/on_card/test_run_layouts.py",
    "tests/backend/on_card/test_run_pointwise.py",
    "tests/backend/on_card/test_run_products.py",
    "tests/backend/on_card/test_run_reductions.py",
    "tests/e2e/test_blocks.py",
    "tests/e2e/test_graphs.py",
    "tests/e2e/test_programs.py",
    "tests/e2e/test_scatter.py",
    "tests/e2e/test_training.py",
    "tests/inductor/opspec/test_coordinates.py",
    "tests/inductor/fx/decompositions/test_pooling_and_indexing.py",
    "tests/device/test_training.py",
)


@pytest.mark.full
@pytest.mark.parametrize("file", FILES)
def test_programs_of_a_test_file_run_clean(file: str):
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", file],
        cwd=ROOT, env={**os.environ, "SPYRE_SANITIZE": "1"},
        capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
