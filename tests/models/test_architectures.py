"""Models of transformers beyond the seven of docs/models.md: each compiles, unchanged, and agrees
with the CPU in float32. Small sizes, random weights.

What a model leaves to the host is not counted here: experts sort their tokens there, for example.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="pip install 'torch-spyre[models]'")

TEXT = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 200,
    "max_position_embeddings": 64,
}
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
EXPERTS = TEXT | IDS | {"num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2}
# Encoder and decoder with the names that BART and Whisper share.
PAIR = IDS | {
    "vocab_size": 200,
    "d_model": 64,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
}
WAVES = {
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "conv_dim": (16, 16),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}

# The name of the architecture, its inputs, its config.
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "DistilBert": (
        "text",
        {"vocab_size": 200, "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128},
    ),
    "Roberta": ("text", TEXT),
    "Albert": ("text", TEXT | {"embedding_size": 32}),
    "Electra": ("text", TEXT | {"embedding_size": 32}),
    "DebertaV2": (
        "text",
        TEXT | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 16},
    ),
    "ModernBert": ("text", TEXT | IDS | {"cls_token_id": 1, "sep_token_id": 2}),
    "T5": (
        "text and start",
        {
            "vocab_size": 200,
            "d_model": 64,
            "d_kv": 16,
            "d_ff": 128,
            "num_layers": 2,
            "num_heads": 4,
        },
    ),
    "Bart": ("text and start", PAIR | {"max_position_embeddings": 64}),
    "OPT": (
        "text",
        {
            "vocab_size": 200,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "ffn_dim": 128,
            "num_attention_heads": 4,
            "max_position_embeddings": 64,
            "word_embed_proj_dim": 64,
        },
    ),
    "Bloom": ("text", {"vocab_size": 200, "hidden_size": 64, "n_layer": 2, "n_head": 4}),
    "Falcon": ("text", TEXT | IDS),
    "GPTNeoX": ("text", TEXT | IDS),
    "Gemma2": ("text", TEXT | IDS | {"num_key_value_heads": 2, "head_dim": 16}),
    "Phi": ("text", TEXT | IDS),
    "Mixtral": ("text", EXPERTS),
    "GraniteMoe": ("text", EXPERTS),
    "Mamba": (
        "text",
        {"vocab_size": 200, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8},
    ),
    "CLIPVision": (
        "picture",
        {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 32,
            "patch_size": 8,
        },
    ),
    "ResNet": ("picture", {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]}),
    "ConvNext": ("picture", {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2}),
    "Swin": (
        "picture",
        {
            "image_size": 32,
            "patch_size": 4,
            "embed_dim": 16,
            "depths": [2],
            "num_heads": [2],
            "window_size": 4,
        },
    ),
    "Segformer": ("picture", {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1]}),
    "Whisper": (
        "spectrum and start",
        PAIR
        | {
            "num_mel_bins": 16,
            "max_source_positions": 32,
            "max_target_positions": 32,
            "decoder_start_token_id": 1,
        },
    ),
    "Wav2Vec2": ("waves", WAVES),
}
IN_MAKE_TEST = {"GraniteMoe"}


def inputs_of(kind: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(5, 190, (2, 24), generator=generator)
    kinds = {
        "text": {"input_ids": ids},
        "text and start": {"input_ids": ids, "decoder_input_ids": ids[:, :8]},
        "picture": {"pixel_values": torch.randn(2, 3, 32, 32, generator=generator)},
        "spectrum and start": {
            "input_features": torch.randn(2, 16, 64, generator=generator),
            "decoder_input_ids": ids[:, :8],
        },
        "waves": {"input_values": torch.randn(1, 400, generator=generator)},
    }
    return kinds[kind]


def on_card(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.half() if tensor.is_floating_point() else tensor).to("spyre")


@pytest.fixture(autouse=True)
def fresh_graphs() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in IN_MAKE_TEST else pytest.mark.full)
        for name in ARCHITECTURES
    ],
)
def test_an_architecture_agrees_with_the_cpu(name: str):
    kind, settings = ARCHITECTURES[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**settings)
    model = getattr(transformers, f"{name}Model")(config).eval()
    inputs = inputs_of(kind)
    with torch.no_grad():
        expected = model(**inputs).last_hidden_state
        compiled = torch.compile(model.half().to("spyre"))
        result = compiled(**{key: on_card(value) for key, value in inputs.items()})
    actual = result.last_hidden_state.float().cpu()
    assert expected.std() > 1e-3, "an output that vanishes tests nothing"
    assert torch.cosine_similarity(actual.flatten(), expected.flatten(), dim=0) > 0.9999
    assert (actual - expected).abs().max() < 0.01 * expected.abs().max()
