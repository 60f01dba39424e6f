"""The page of eager execution lists the operations that the card has programs for."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/user_guide/eager_execution.md"
TABLE = ROOT / "torch_spyre/csrc/eager/operations.cpp"
COMPOSITE = {"embedding"}
"""Made of one of the others by PyTorch."""
OF_THEIR_OWN = {"fill_", "zero_", "zeros", "ones", "full", "arange", "rms_norm"}
"""Not in the table: csrc/eager/fill.cpp, and what PyTorch makes of others."""


def test_the_page_names_the_operations_of_the_table() -> None:
    on_card = PAGE.read_text().partition("## On the card")[2].partition("## CPU fallbacks")[0]
    rows = [line for line in on_card.splitlines() if line.startswith("|")]
    named = set(re.findall(r"`(\w+)`(?! is)", "\n".join(rows)))
    table = set(re.findall(r'^ +\{"(\w+)", [A-Z]', TABLE.read_text(), re.MULTILINE))
    assert len(table) > 80
    assert named - COMPOSITE - OF_THEIR_OWN == table
