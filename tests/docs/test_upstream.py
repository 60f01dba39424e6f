"""docs/contributing/upstream.md is what the command makes of the table."""

from __future__ import annotations

from docs.generate import upstream
from torch_spyre.upstream.table import PATCHES


def test_the_page_is_up_to_date() -> None:
    assert upstream.main(["--check"]) == 0


def test_every_row_is_on_the_page_with_all_that_it_changes() -> None:
    text = upstream.PAGE.read_text()
    for patch in PATCHES:
        assert f"| {patch.name} |" in text
        assert all(target.replace(":", ".") in text for target in patch.targets)
