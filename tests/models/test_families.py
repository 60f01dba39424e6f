"""The table of families of models in docs/models.md."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from docs.generate import families
from docs.generate.families import FAMILIES, FamilyRow

pytest.importorskip("transformers", reason="pip install 'torch-spyre[models]'")

IN_MAKE_TEST = {"mixtral", "deberta-v2"}
LEFT = {
    "deepseek_v2": "complex numbers",
    "qwen3_next": "triangular solves",
    "bart": "asks whether its numbers are finite, if they are float16",
    "marian": "asks whether its numbers are finite, if they are float16",
    "yolos": "gathers along two dimensions, for a bicubic interpolation of its positions",
}
"""What is not without host steps and graph breaks."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in IN_MAKE_TEST else pytest.mark.full)
        for name in FAMILIES
    ],
)
def test_a_family_compiles_without_host_steps_and_agrees_with_the_cpu(name: str) -> None:
    torch._dynamo.reset()
    row = families.measure(name)
    assert row.error <= families.MOST * row.half_error
    assert bool(row.host_steps or row.breaks) == (name in LEFT), families.described(row)


def test_the_part_of_the_page_says_what_is_left_and_replaces_the_old_one() -> None:
    rows = [
        FamilyRow("opt", 3, 417, error=0.002, half_error=0.001, compile_seconds=2.34,
                  call_seconds=0.00345, token_seconds=0.001),
        FamilyRow("bart", 5, 315, ["Data-dependent branching"] * 2, error=0.002, half_error=0.001),
        FamilyRow("qwen3_next", 1, 490, [], Counter({"aten.solve: no lowering: at all": 2}),
                  error=0.0016, half_error=0.001),
    ]  # fmt: skip
    page = families.replaced("before\n\n## Families\nold\n\n## After\nrest\n", rows)
    assert page.startswith("before\n\n## Families\n") and page.endswith("\n## After\nrest\n")
    assert "old" not in page and "1 of them have neither" in page
    assert "| OPT | 3 | 0 | 0 | 0.20 % | 2.0 | 2.3 | 3.45 | 1.00 |" in page
    assert "- Qwen3-Next: `aten.solve` (2), no lowering: at all" in page
    assert "- BART: graph break (2), Data-dependent branching" in page
    with pytest.raises(ValueError, match="no part"):
        families.replaced("a page without it", rows)
