"""Families of models: the config class of each, its sizes, and what it is called with.

A row of `FAMILIES` is a name that `transformers` has for a family (`AutoConfig.for_model`), with
two layers and small sizes; `families` makes the model and measures it. A new family is a line:

    "helium": Family("Helium", _HEADS),
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

PIXELS, WAVES, BINS, FRAMES, START = 64, 1200, 16, 64, 8
"""Sides of a picture, samples of sound, bins and frames of a spectrum, tokens of a decoder."""

Config = Mapping[str, Any]

# ---- The table ----------------------------------------------------------------------------------

_TEXT: Config = {
    "vocab_size": 500, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 128,
}  # fmt: skip
_ENDS: Config = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
_GROUPS: Config = {**_TEXT, **_ENDS, "num_key_value_heads": 2}
_HEADS: Config = {**_GROUPS, "head_dim": 32}
_LOCAL: Config = {**_GROUPS, "num_local_experts": 8, "num_experts_per_tok": 2}
_EXPERTS: Config = {
    **_HEADS, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96,
}  # fmt: skip
_LATENT: Config = {
    **_TEXT, **_ENDS, "num_key_value_heads": 4, "moe_intermediate_size": 96,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2,
    "first_k_dense_replace": 1, "kv_lora_rank": 32, "q_lora_rank": 48, "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32, "v_head_dim": 32,
}  # fmt: skip
_PAIR: Config = {
    **_ENDS, "vocab_size": 500, "d_model": 128, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 192,
    "decoder_ffn_dim": 192, "max_position_embeddings": 128, "decoder_start_token_id": 0,
}  # fmt: skip
_PATCHES: Config = {
    "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2,
    "num_attention_heads": 4, "image_size": PIXELS, "patch_size": 16,
}  # fmt: skip
_TOWER = {k: v for k, v in _TEXT.items() if k != "max_position_embeddings"}
_T5: Config = {
    "vocab_size": 500, "d_model": 128, "d_kv": 32, "d_ff": 192, "num_layers": 2, "num_heads": 4,
}  # fmt: skip
_SOUND: Config = {
    **_TEXT, "conv_dim": (32, 32), "conv_stride": (5, 2), "conv_kernel": (10, 3),
    "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}  # fmt: skip
_GPT: Config = {**_ENDS, "vocab_size": 500, "n_embd": 128, "n_layer": 2, "n_head": 4}


@dataclass(frozen=True)
class Family:
    title: str
    config: Config
    inputs: str = "text"
    """A name in `_INPUTS`."""
    head: str = "CausalLM"
    """Of the class: what follows `AutoModelFor`; empty for the model without a head."""
    decodes: bool = True
    """Generates with a static cache; the others are called once."""
    type: str = ""
    """The name that transformers has for it, where that is not the name in the table."""
    dtype: torch.dtype = torch.float16
    seed: int = 0
    """Of the weights. An expert that is nearly tied with another one is chosen by rounding, and the
    rows of that token say nothing then."""


def _once(
    title: str, config: Config, inputs: str = "text", head: str = "", type: str = ""
) -> Family:
    return Family(title, config, inputs, head, False, type)


FAMILIES: dict[str, Family] = {
    # Decoders
    "llama": Family("Llama", _GROUPS),
    "llama3": Family("Llama 3, scaled rotary", {**_GROUPS, "rope_parameters": {
        "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64}}, type="llama"),
    "granite": Family("Granite", _GROUPS),
    "mistral": Family("Mistral, window", {**_HEADS, "sliding_window": 16}),
    "qwen2": Family("Qwen2", _GROUPS),
    "qwen3": Family("Qwen3", _HEADS),
    "gemma": Family("Gemma", _HEADS),
    "gemma2": Family("Gemma 2", _HEADS),
    "gemma3_text": Family("Gemma 3", _HEADS),
    "phi": Family("Phi", _GROUPS),
    "phi3": Family("Phi-3", _GROUPS),
    "olmo": Family("OLMo", _GROUPS),
    "olmo2": Family("OLMo 2", _GROUPS),
    "smollm3": Family("SmolLM3", _GROUPS),
    "gpt2": Family("GPT-2", {**_GPT, "n_positions": 128}),
    "gpt_neo": Family("GPT-Neo", {**_ENDS, "vocab_size": 500, "hidden_size": 128, "num_layers": 2,
                                  "num_heads": 4, "max_position_embeddings": 128,
                                  "attention_types": [[["global", "local"], 1]]}),
    "gpt_neox": Family("GPT-NeoX", {**_TEXT, **_ENDS}),
    "gptj": Family("GPT-J", {**_GPT, "n_positions": 128, "rotary_dim": 16}),
    "codegen": Family("CodeGen", {**_GPT, "n_positions": 128, "rotary_dim": 16}),
    "gpt_bigcode": Family("StarCoder", {**_GPT, "n_positions": 128}),
    "starcoder2": Family("StarCoder 2", _GROUPS),
    "falcon": Family("Falcon", {**_TEXT, **_ENDS}),
    "mpt": _once("MPT", {"vocab_size": 500, "d_model": 128, "n_layers": 2, "n_heads": 4,
                         "max_seq_len": 128}, head="CausalLM"),
    "opt": Family("OPT", {**_ENDS, "vocab_size": 500, "hidden_size": 128, "num_hidden_layers": 2,
                          "ffn_dim": 192, "num_attention_heads": 4, "word_embed_proj_dim": 128,
                          "max_position_embeddings": 128}),
    "bloom": Family("Bloom", {**_ENDS, "vocab_size": 500, "hidden_size": 128, "n_layer": 2,
                              "n_head": 4}),
    "glm4": Family("GLM-4", _HEADS),
    "cohere2": Family("Cohere 2", _GROUPS),
    "stablelm": Family("StableLM", _GROUPS),
    "nemotron": Family("Nemotron", _GROUPS),
    "mamba": _once("Mamba", {"vocab_size": 500, "hidden_size": 128, "num_hidden_layers": 2,
                             "state_size": 8}, head="CausalLM"),
    "mamba2": _once("Mamba 2", {"vocab_size": 500, "hidden_size": 128, "num_hidden_layers": 2,
                                "state_size": 16, "num_heads": 8, "head_dim": 32,
                                "n_groups": 1}, head="CausalLM"),
    "helium": Family("Helium", _HEADS),
    "olmo3": Family("OLMo 3", {**_GROUPS, "sliding_window": 16}),
    "seed_oss": Family("Seed-OSS", _HEADS),
    "exaone4": Family("EXAONE 4", {**_HEADS, "sliding_window": 16}),
    "ernie4_5": Family("ERNIE 4.5", _HEADS),
    "hunyuan_v1_dense": Family("Hunyuan dense", _HEADS),
    "arcee": Family("Arcee", _GROUPS),
    "apertus": Family("Apertus", _GROUPS),
    "diffllama": Family("DiffLlama", _GROUPS),
    "persimmon": Family("Persimmon", _GROUPS),
    "glm": Family("GLM", _HEADS),
    "cohere": Family("Cohere", _GROUPS),
    "biogpt": Family("BioGPT", _GROUPS),
    "xglm": Family("XGLM", {**_ENDS, "vocab_size": 500, "d_model": 128, "ffn_dim": 192,
        "num_layers": 2, "attention_heads": 4, "max_position_embeddings": 128}),
    "ministral": Family("Ministral", {**_HEADS, "sliding_window": 16}),
    "nanochat": Family("nanochat", _GROUPS),
    "openai-gpt": _once("GPT", {**_GPT, "n_positions": 128}, head="CausalLM"),
    "falcon_mamba": _once("Falcon Mamba", {"vocab_size": 500, "hidden_size": 128,
        "num_hidden_layers": 2, "state_size": 8}, head="CausalLM"),
    "lfm2": _once("LFM2", {**_GROUPS, "layer_types": ["conv", "full_attention"]}, head="CausalLM"),
    "bamba": _once("Bamba", {**_GROUPS, "attn_layer_indices": [1], "mamba_n_heads": 8,
        "mamba_d_head": 32, "mamba_d_state": 16}, head="CausalLM"),
    "jamba": _once("Jamba", {**_GROUPS, "num_experts": 4, "attn_layer_period": 2,
        "attn_layer_offset": 1, "mamba_d_state": 8, "use_mamba_kernels": False}, head="CausalLM"),
    # Mixtures of experts
    "mixtral": Family("Mixtral", _LOCAL),
    "granitemoe": Family("GraniteMoE", _LOCAL),
    "granitemoehybrid": _once("GraniteMoE hybrid", {
        **_LOCAL, "shared_intermediate_size": 96, "layer_types": ["mamba", "attention"],
        "mamba_n_heads": 8, "mamba_d_head": 32, "mamba_d_state": 16}, head="CausalLM"),
    "qwen2_moe": Family("Qwen2-MoE", {**_EXPERTS, "shared_expert_intermediate_size": 96}),
    "qwen3_moe": Family("Qwen3-MoE", _EXPERTS),
    "gpt_oss": Family("gpt-oss", seed=21, config={**_LOCAL, "head_dim": 32, "layer_types": [
        "sliding_attention", "full_attention"], "sliding_window": 16}),
    "olmoe": Family("OLMoE", {**_GROUPS, "num_experts": 8, "num_experts_per_tok": 2}),
    "phimoe": Family("Phi-3.5-MoE", _LOCAL),
    "deepseek_v2": Family("DeepSeek-V2", {**_LATENT, "head_dim": 16}),
    "deepseek_v3": Family("DeepSeek-V3", _LATENT),
    "glm4_moe": Family("GLM-4.5", {**_HEADS, "moe_intermediate_size": 96, "n_routed_experts": 8,
                                   "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
                                   "first_k_dense_replace": 1}),
    "qwen3_next": _once("Qwen3-Next", {
        **_EXPERTS, "shared_expert_intermediate_size": 96, "linear_key_head_dim": 32,
        "linear_value_head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "layer_types": ["linear_attention", "full_attention"]}, head="CausalLM"),
    "dots1": Family("dots.llm1", {**_HEADS, "moe_intermediate_size": 96, "n_routed_experts": 8,
        "num_experts_per_tok": 2, "first_k_dense_replace": 1, "n_shared_experts": 1}),
    "ernie4_5_moe": Family("ERNIE 4.5 MoE", {**_GROUPS, "moe_intermediate_size": 96,
        "moe_num_experts": 8, "moe_k": 2}),
    "minimax": Family("MiniMax", {**_LOCAL, "head_dim": 32, "layer_types": ["full_attention",
        "full_attention"]}),
    "flex_olmo": Family("FlexOLMo", {**_GROUPS, "num_experts": 8, "num_experts_per_tok": 2}),
    # Encoders
    "bert": _once("BERT", _TEXT),
    "distilbert": _once("DistilBERT", {"vocab_size": 500, "dim": 128, "n_layers": 2, "n_heads": 4,
                                       "hidden_dim": 192, "max_position_embeddings": 128}),
    "modernbert": _once("ModernBERT", {**_TEXT, **_ENDS, "cls_token_id": 0, "sep_token_id": 1}),
    "albert": _once("ALBERT", {**_TEXT, "embedding_size": 32}),
    "electra": _once("ELECTRA", {**_TEXT, "embedding_size": 32}),
    "roberta": _once("RoBERTa", {**_TEXT, **_ENDS}),
    "xlm-roberta": _once("XLM-R", {**_TEXT, **_ENDS}),
    "mpnet": _once("MPNet", {**_TEXT, **_ENDS}),
    "deberta-v2": _once("DeBERTa-v2", {**_TEXT, "relative_attention": True, "position_buckets": 16,
                                       "pos_att_type": ["p2c", "c2p"]}),
    "camembert": _once("CamemBERT", {**_TEXT,**_ENDS}),
    "ernie": _once("ERNIE", _TEXT),
    "megatron-bert": _once("Megatron-BERT", _TEXT),
    "roformer": _once("RoFormer", {**_TEXT, "embedding_size": 128}),
    "squeezebert": _once("SqueezeBERT", {**_TEXT, "embedding_size": 128}),
    "convbert": _once("ConvBERT", _TEXT),
    "mobilebert": _once("MobileBERT", {"vocab_size": 500, "num_hidden_layers": 2,
        "hidden_size": 128, "true_hidden_size": 64, "intra_bottleneck_size": 64,
        "embedding_size": 64, "max_position_embeddings": 128, "intermediate_size": 128}),
    "rembert": _once("RemBERT", {**_TEXT, "input_embedding_size": 64}),
    "nystromformer": _once("Nystromformer", {**_TEXT, "segment_means_seq_len": 23,
        "num_landmarks": 23}),
    "xlm-roberta-xl": _once("XLM-R XL", {**_TEXT,**_ENDS}),
    "nomic_bert": _once("Nomic BERT", _TEXT),
    "eurobert": _once("EuroBERT", _GROUPS),
    "gte": _once("GTE", _TEXT),
    "layoutlm": _once("LayoutLM", {**_TEXT, "max_2d_position_embeddings": 64}),
    # Encoders and decoders
    "t5": _once("T5", _T5, "text and start"),
    "bart": _once("BART", _PAIR, "text and start"),
    "bart, bfloat16": Family("BART, bfloat16", _PAIR, "text and start", "", False, "bart",
                             torch.bfloat16),
    "whisper": _once("Whisper", {**_PAIR, "num_mel_bins": BINS, "max_target_positions": 64,
                                 "max_source_positions": FRAMES // 2}, "spectrum and start"),
    "mbart": _once("mBART", _PAIR, "text and start"),
    "m2m_100": _once("M2M-100", _PAIR, "text and start"),
    "pegasus": _once("Pegasus", _PAIR, "text and start"),
    "marian": _once("Marian", _PAIR, "text and start"),
    "blenderbot": _once("Blenderbot", _PAIR, "text and start"),
    "mt5": _once("mT5", _T5, "text and start"),
    "umt5": _once("UMT5", _T5, "text and start"),
    # Pictures and sound
    "vit": _once("ViT", _PATCHES, "picture"),
    "dinov2": _once("DINOv2", _PATCHES, "picture"),
    "swin": _once("Swin", {"image_size": PIXELS, "patch_size": 4, "embed_dim": 32,
                           "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}, "picture"),
    "pixtral": _once("Pixtral", dict(_PATCHES.items()), "picture"),
    "clip": _once("CLIP", {
        "text_config": {**_TEXT, **_ENDS, "eos_token_id": 499},
        "vision_config": _PATCHES, "projection_dim": 64}, "text and picture"),
    "siglip": _once("SigLIP", {"text_config": {**_TEXT, **_ENDS}, "vision_config": _PATCHES},
                    "text and picture"),
    "wav2vec2": _once("Wav2Vec2", _SOUND, "waves"),
    "deit": _once("DeiT", _PATCHES, "picture"),
    "beit": _once("BEiT", _PATCHES, "picture"),
    "vit_msn": _once("ViT-MSN", _PATCHES, "picture"),
    "dinov3_vit": _once("DINOv3", _PATCHES, "picture"),
    "ijepa": _once("I-JEPA", _PATCHES, "picture"),
    "yolos": _once("YOLOS", {**_PATCHES, "image_size": [64, 64], "num_detection_tokens": 10},
        "picture"),
    "swinv2": _once("Swin v2", {"image_size": 64, "patch_size": 4, "embed_dim": 32, "depths": [2,
        2], "num_heads": [2, 4], "window_size": 4}, "picture"),
    "hiera": _once("Hiera", {"image_size": [64, 64], "embed_dim": 32, "depths": [1, 1, 1, 1]},
        "picture"),
    "convnext": _once("ConvNeXt", {"hidden_sizes": [32, 64], "depths": [2, 2], "num_stages": 2},
        "picture"),
    "convnextv2": _once("ConvNeXt v2", {"hidden_sizes": [32, 64], "depths": [2, 2],
        "num_stages": 2}, "picture"),
    "resnet": _once("ResNet", {"embedding_size": 32, "hidden_sizes": [32, 64], "depths": [2, 2],
        "layer_type": "basic"}, "picture"),
    "regnet": _once("RegNet", {"embedding_size": 32, "hidden_sizes": [32, 64], "depths": [2, 2],
        "groups_width": 16}, "picture"),
    "poolformer": _once("PoolFormer", {"hidden_sizes": [32, 64, 64, 64], "depths": [1, 1, 1, 1]},
        "picture"),
    "segformer": _once("SegFormer", {"hidden_sizes": [32, 64], "depths": [2, 2],
        "num_encoder_blocks": 2, "num_attention_heads": [1, 2], "sr_ratios": [4, 2],
        "patch_sizes": [7, 3], "strides": [4, 2], "mlp_ratios": [2, 2]}, "picture"),
    "focalnet": _once("FocalNet", {"image_size": 64, "embed_dim": 32, "depths": [1, 1],
        "hidden_sizes": [32, 64], "focal_levels": [2, 2], "focal_windows": [3, 3]}, "picture"),
    "pvt_v2": _once("PVT v2", {"image_size": 64, "hidden_sizes": [16, 32, 64, 64], "depths": [1,
        1, 1, 1], "num_attention_heads": [1, 2, 2, 2]}, "picture"),
    "hubert": _once("HuBERT", _SOUND, "waves"),
    "wavlm": _once("WavLM", {**_SOUND, "num_buckets": 32, "max_bucket_distance": 64}, "waves"),
    "sew": _once("SEW", {**_SOUND, "squeeze_factor": 2}, "waves"),
    "data2vec-audio": _once("data2vec audio", {**_SOUND, "num_conv_pos_embeddings": 3,
        "conv_pos_kernel_size": 5}, "waves"),
}  # fmt: skip
