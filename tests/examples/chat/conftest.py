"""A small Llama with random weights, and a tokenizer of bytes, both made on the spot."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.chat.weights import Files, Loaded, load

PACKAGES = ("transformers", "tokenizers")
MISSING = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
needs_models = pytest.mark.skipif(
    bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (make test installs them)"
)

TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
"""As that of SmolLM2: an answer is followed by a token that ends it."""
BEGIN, END = 256, 257
ROWS = 192
"""Positions that the small model knows: three chunks."""


def make_tokenizer(template: str | None = TEMPLATE) -> Any:
    """A token for each byte, and two that frame messages."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    whole = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    whole.decoder = decoders.ByteLevel()
    whole.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    return PreTrainedTokenizerFast(
        tokenizer_object=whole, bos_token="<s>", eos_token="</s>", chat_template=template
    )


def make_model(**settings: Any) -> Any:
    """Two layers; in float32 on the CPU."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {
        "vocab_size": 258, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": ROWS,
        "bos_token_id": BEGIN, "eos_token_id": END,
    }  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**(sizes | settings))).eval()


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return make_tokenizer()


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "small"
    make_model().save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def small(small_folder: Path) -> Loaded:
    return load(Files(small_folder, "small", "Make it again."), torch.float32)
