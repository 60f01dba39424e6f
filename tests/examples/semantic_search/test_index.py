"""Embeddings of earlier runs: what is new is embedded, what is wrong is found out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from examples.semantic_search.index import CHECKED, Index, Recalled
from torch_spyre.cache.store import Store

TEXTS = [f"text number {i}" for i in range(3 * CHECKED)]


class Model:
    """Embeds a text as its length and its last character, and remembers what it was asked."""

    def __init__(self, shift: float = 0.0) -> None:
        self.shift = shift
        self.asked: list[str] = []

    def __call__(self, texts: list[str]) -> torch.Tensor:
        self.asked += texts
        return torch.tensor([[len(t), ord(t[-1]) + self.shift] for t in texts])


def recall(store: Store, texts: list[str], model: Model, maker: str = "model") -> Recalled:
    return Index(store, maker).recall(texts, model, torch.equal)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "index")


def test_a_first_run_embeds_all_and_a_second_one_only_some_to_compare(store):
    first, second = Model(), Model()
    made = recall(store, TEXTS, first)
    assert first.asked == TEXTS and (made.recalled, made.checked) == (0, 0)
    again = recall(store, TEXTS, second)
    assert len(second.asked) == CHECKED == again.checked
    assert again.recalled == len(TEXTS) - CHECKED
    assert torch.equal(again.rows, Model()(TEXTS)) and torch.equal(made.rows, again.rows)


def test_only_what_changed_is_embedded_again_and_rows_stay_with_their_texts(store):
    recall(store, TEXTS, Model())
    texts = ["something new", *TEXTS[5:], "another", TEXTS[0]]
    model = Model()
    made = recall(store, texts, model)
    assert 0 < made.checked <= CHECKED and len(model.asked) == made.checked + 2
    assert {"something new", "another"} <= {*model.asked}
    assert torch.equal(made.rows, Model()(texts))
    made = recall(store, texts, Model())
    assert made.recalled == len(texts) - made.checked


def test_few_texts_are_all_compared(store):
    recall(store, TEXTS[:3], Model())
    made = recall(store, TEXTS[:3], Model())
    assert (made.recalled, made.checked) == (0, 3)


def test_another_model_does_not_see_them(store):
    recall(store, TEXTS, Model())
    model = Model(1.0)
    made = recall(store, TEXTS, model, maker="another model")
    assert model.asked == TEXTS and not made.problem


def test_changed_embeddings_are_all_recomputed_and_cached(store):
    recall(store, TEXTS, Model())
    model = Model(1.0)
    made = recall(store, TEXTS, model)
    assert sorted(model.asked) == sorted(TEXTS) and made.recalled == 0
    assert torch.equal(made.rows, Model(1.0)(TEXTS))
    assert "not the same" in made.problem
    assert recall(store, TEXTS, Model(1.0)).recalled == len(TEXTS) - CHECKED


@pytest.mark.parametrize("file", ["texts", "rows", "entry.json"])
def test_a_damaged_index_is_not_used(store, file):
    recall(store, TEXTS, Model())
    [damaged] = store.root.glob(f"*/{file}")
    damaged.write_bytes(damaged.read_bytes()[:-3] + b"abc")
    model = Model()
    assert torch.equal(recall(store, TEXTS, model).rows, Model()(TEXTS))
    assert model.asked == TEXTS


def test_a_run_that_is_interrupted_leaves_nothing(store):
    def interrupted(texts: list[str]) -> torch.Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Index(store, "model").recall(TEXTS, interrupted, torch.equal)
    assert not store.root.exists() or not os.listdir(store.root)


def test_a_disk_that_takes_nothing_costs_the_next_run_time_and_nothing_else(tmp_path):
    (tmp_path / "file").write_text("no directory")
    made = recall(Store(tmp_path / "file" / "index"), TEXTS, Model())
    assert torch.equal(made.rows, Model()(TEXTS))
    assert "not saved" in made.problem
