"""One module says whether something is on the card."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from torch_spyre.on_card import any_on_card, is_on_card, is_spyre

ROOT = Path(__file__).resolve().parents[1] / "torch_spyre"
ON_HOST, ON_CARD = torch.zeros(2), torch.zeros(2).to("spyre")


def test_a_device_is_a_card_by_its_type() -> None:
    assert is_spyre(torch.device("spyre")) and is_spyre(torch.device("spyre", 3))
    assert not is_spyre(torch.device("cpu")) and not is_spyre(None)


def test_real_and_fake_tensors_are_told_apart_by_their_device() -> None:
    with torch._subclasses.FakeTensorMode() as mode:
        assert is_on_card(mode.from_tensor(ON_CARD)) and not is_on_card(mode.from_tensor(ON_HOST))
    assert is_on_card(ON_CARD) and not is_on_card(ON_HOST) and not is_on_card(torch.device("spyre"))


@pytest.mark.parametrize("values", [[ON_HOST, ON_CARD], [1, [ON_CARD]], [(None, [ON_CARD])]])
def test_a_tensor_of_the_card_is_found_in_lists(values: list[object]) -> None:
    assert any_on_card(values)
    assert not any_on_card([ON_HOST, [ON_HOST], "spyre"])


def test_no_other_module_compares_the_type_of_a_device() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in ROOT.rglob("*.py")
        if path.name != "on_card.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Compare)
        and ast.unparse(node.left).endswith(".type")
        and {"DEVICE_NAME", "'spyre'"} & {ast.unparse(n) for n in node.comparators}
    ]
    assert not found
