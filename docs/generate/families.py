"""Families of models, two layers each: do they compile without host steps, and are they right?

In: the name of a family of `transformers`, with its own config class, random weights and the sizes
below. Out: a row with its graphs, graph breaks, the steps that the host does with their reasons,
and the error of the compiled model in float16 against the CPU in float32. `models` makes a part of
docs/models.md of them.

    measure("mixtral").host_steps       # Counter()
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from docs.generate import stock_models as stock
from torch_spyre.constants import DEVICE_NAME

BATCH, LENGTH, NEW_TOKENS = 2, 23, 3
"""Of a prompt; neither is a multiple of anything."""
CALLS = 3
"""That are measured, when all is compiled."""

_PIXELS, _WAVES, _BINS, _FRAMES, _START = 64, 1200, 16, 64, 8

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
    "num_attention_heads": 4, "image_size": _PIXELS, "patch_size": 16,
}  # fmt: skip
_TOWER = {k: v for k, v in _TEXT.items() if k != "max_position_embeddings"}
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
    # Encoders and decoders
    "t5": _once("T5", {"vocab_size": 500, "d_model": 128, "d_kv": 32, "d_ff": 192, "num_layers": 2,
                       "num_heads": 4}, "text and start"),
    "bart": _once("BART", _PAIR, "text and start"),
    "bart, bfloat16": Family("BART, bfloat16", _PAIR, "text and start", "", False, "bart",
                             torch.bfloat16),
    "whisper": _once("Whisper", {**_PAIR, "num_mel_bins": _BINS, "max_target_positions": 64,
                                 "max_source_positions": _FRAMES // 2}, "spectrum and start"),
    # Pictures and sound
    "vit": _once("ViT", _PATCHES, "picture"),
    "dinov2": _once("DINOv2", _PATCHES, "picture"),
    "swin": _once("Swin", {"image_size": _PIXELS, "patch_size": 4, "embed_dim": 32,
                           "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}, "picture"),
    "pixtral": _once("Pixtral", dict(_PATCHES.items()), "picture"),
    "clip": _once("CLIP", {
        "text_config": {**_TEXT, **_ENDS, "eos_token_id": 499},
        "vision_config": _PATCHES, "projection_dim": 64}, "text and picture"),
    "siglip": _once("SigLIP", {"text_config": {**_TEXT, **_ENDS}, "vision_config": _PATCHES},
                    "text and picture"),
    "wav2vec2": _once("Wav2Vec2", {
        **_TEXT, "conv_dim": (32, 32), "conv_stride": (5, 2), "conv_kernel": (10, 3),
        "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 4}, "waves"),
}  # fmt: skip


# ---- Models and inputs --------------------------------------------------------------------------


def make(name: str) -> nn.Module:
    """A model on the CPU, in float32, for inference."""
    family, package = FAMILIES[name], stock.library()
    config = package.AutoConfig.for_model(family.type or name, **copy.deepcopy(family.config))
    torch.manual_seed(family.seed)
    model: nn.Module = getattr(
        package, f"AutoModel{family.head and f'For{family.head}'}"
    ).from_config(config)
    return model.eval()


def inputs(name: str) -> dict[str, torch.Tensor]:
    """What a family is called with, on the host."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(2, 490, (BATCH, LENGTH), generator=generator)
    text = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    kinds: dict[str, Callable[[], dict[str, torch.Tensor]]] = {
        "text": lambda: text,
        "text and start": lambda: {**text, "decoder_input_ids": ids[:, :_START].contiguous()},
        "picture": lambda: {"pixel_values": _noise(BATCH, 3, _PIXELS, _PIXELS)},
        "text and picture": lambda: {**text, "pixel_values": _noise(BATCH, 3, _PIXELS, _PIXELS)},
        "spectrum and start": lambda: {
            "input_features": _noise(BATCH, _BINS, _FRAMES),
            "decoder_input_ids": ids[:, :_START].contiguous(),
        },
        "waves": lambda: {"input_values": _noise(BATCH, _WAVES)},
    }
    return kinds[FAMILIES[name].inputs]()


def _noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def call(model: nn.Module, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The first floating-point result, on the host."""
    parameter = next(model.parameters())
    placed = {
        key: t.to(parameter.device, parameter.dtype if t.is_floating_point() else t.dtype)
        for key, t in given.items()
    }
    found = model(**placed)
    return next(t for t in found.to_tuple() if torch.is_tensor(t)).cpu().float()


# ---- Measuring ----------------------------------------------------------------------------------


@dataclass
class FamilyRow:
    name: str
    graphs: int = 0
    operations: int = 0
    breaks: list[str] = field(default_factory=list)
    """Why Dynamo cut the model into several graphs."""
    host_steps: Counter[str] = field(default_factory=Counter)
    """Of all graphs, with their reasons."""
    error: float = 0.0
    half_error: float = 0.0
    """Of the CPU in the same type."""
    compile_seconds: float = 0.0
    """Of all graphs, with their first calls."""
    call_seconds: float = 0.0
    """Of one call with the prompt or the picture, the fastest of some."""
    token_seconds: float | None = None
    """Of one more token, with what `generate` does around it; None for what does not decode."""


def measure(name: str) -> FamilyRow:
    """Compile a family for the card, run it, and compare."""
    from torch._dynamo import output_graph

    from torch_spyre._inductor.inspect import debug_dir

    model, row = make(name), FamilyRow(name)
    given = inputs(name)
    decodes, dtype = FAMILIES[name].decodes, FAMILIES[name].dtype

    def run(which: nn.Module) -> torch.Tensor:
        once = call(which, given)
        if not decodes:
            return once
        ids, mask = given["input_ids"], given["attention_mask"]
        logits = stock.generate(which, ids, mask, NEW_TOKENS, forced=tokens).logits
        return torch.cat([once.flatten(), logits.flatten()])

    tokens = torch.randint(2, 490, (BATCH, NEW_TOKENS), generator=torch.Generator().manual_seed(4))
    expected = run(model)
    card = copy.deepcopy(model).to(dtype).to(DEVICE_NAME)
    card.compile()
    first = len(output_graph.graph_break_reasons)
    began = time.perf_counter()
    with debug_dir.listen() as record:
        actual = run(card)
    row.compile_seconds = time.perf_counter() - began
    row.call_seconds = min(_seconds(lambda: call(card, given)) for _ in range(CALLS))
    if decodes:
        ids, mask = given["input_ids"], given["attention_mask"]
        row.token_seconds = min(
            stock.generate(card, ids, mask, NEW_TOKENS, forced=tokens).decode_seconds
            for _ in range(CALLS)
        )
    row.breaks = [_first_line(r.reason) for r in output_graph.graph_break_reasons[first:]]
    row.graphs = len(record.plans)
    row.operations = sum(len(k.operations) for p in record.plans for k in p.kernels)
    row.host_steps = Counter(f"{s.op}: {s.reason}" for p in record.plans for s in p.fallbacks)
    size = expected.pow(2).mean().sqrt()
    half = run(copy.deepcopy(model).to(dtype))
    row.error = float((actual - expected).pow(2).mean().sqrt() / size)
    row.half_error = float((half - expected).pow(2).mean().sqrt() / size)
    return row


def _seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _first_line(reason: object) -> str:
    return str(reason).strip().splitlines()[0]


# ---- The part of the page -----------------------------------------------------------------------

HEADING = "## Families\n"

_INTRODUCTION = """\
{count} families of `transformers` {version}, each with two layers, random weights, float16 and a
prompt of {batch} x {length}: one graph. Decoders also generate {new} tokens with a static cache:
two more. *Error* is the root mean square over all results against the CPU in float32, relative to
that of the results; *ratio* is how often that of the CPU in the same type it is: {most} at most is
what is expected, as the card keeps one bit less than float16. *Compile* is what the first calls of
all graphs took, with caches that have only what the families above left; *call* is one call with
the prompt, picture or sound, *token* one token of `generate` with all that it does around it, with
{threads} threads. {clean} of them have neither a host step nor a graph break. `make families`
measures them again.
"""

MOST = 3
_HEADS_OF_TABLE = (
    "family", "graphs", "graph breaks", "host steps", "error", "ratio", "compile s", "call ms",
    "token ms",
)  # fmt: skip


def part(rows: Sequence[FamilyRow]) -> str:
    """The part of docs/models.md about families."""
    clean = sum(not row.host_steps and not row.breaks for row in rows)
    lines = [
        HEADING,
        _INTRODUCTION.format(
            count=len(rows), version=stock.library().__version__, batch=BATCH, length=LENGTH,
            new=NEW_TOKENS, most=MOST, clean=clean,
            threads=torch.get_num_threads(),
        ),
        f"| {' | '.join(_HEADS_OF_TABLE)} |",
        f"| {' | '.join('---' for _ in _HEADS_OF_TABLE)} |",
    ]  # fmt: skip
    lines += [f"| {' | '.join(_cells(row))} |" for row in rows]
    left = [
        f"- {FAMILIES[row.name].title}: `{step.split(': ', 1)[0]}` ({count}), "
        f"{step.split(': ', 1)[1]}"
        for row in rows
        for step, count in row.host_steps.items()
    ]
    left += [
        f"- {FAMILIES[row.name].title}: graph break ({count}), {reason}"
        for row in rows
        for reason, count in Counter(row.breaks).items()
    ]
    if left:
        lines += ["", "What the host does or what cuts a graph, how often, and why:", "", *left]
    return "\n".join(lines) + "\n"


def _cells(row: FamilyRow) -> tuple[str, ...]:
    numbers = (row.graphs, len(row.breaks), row.host_steps.total())
    ratio = row.error / row.half_error
    return (
        FAMILIES[row.name].title, *map(str, numbers), f"{100 * row.error:.2f} %", f"{ratio:.1f}",
        f"{row.compile_seconds:.1f}", f"{1e3 * row.call_seconds:.2f}",
        "" if row.token_seconds is None else f"{1e3 * row.token_seconds:.2f}",
    )  # fmt: skip


def replaced(page: str, rows: Sequence[FamilyRow]) -> str:
    """A page with the part of these rows in place of the one that it has."""
    before, found, after = page.partition(HEADING)
    if not found:
        raise ValueError(f"the page has no part {HEADING.strip()!r}")
    begin = after.find("\n## ")
    return before + part(rows) + (after[begin:] if begin >= 0 else "")


def described(row: FamilyRow) -> str:
    """One line, and one for each kind of step that is not the card's."""
    ratio = row.error / row.half_error if row.half_error else 0.0
    lines = [
        f"{row.name}: {row.graphs} graphs, {row.operations} operations, {len(row.breaks)} breaks, "
        f"{row.host_steps.total()} host steps, error {row.error:.5f} ({ratio:.1f} x float16), "
        f"{row.compile_seconds:.1f} s"
    ]
    lines += [f"    {count} {step}" for step, count in row.host_steps.items()]
    lines += [f"    break: {reason}" for reason in row.breaks]
    return "\n".join(lines)
