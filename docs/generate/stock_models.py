"""Stock models of `transformers` at small sizes, and running them on the card.

In: the name of a model. Out: that model with its own config class and random weights of a fixed
seed (no hub is needed), what it generates or encodes, and how far that is from the CPU in float32.
`tests/models` and `model_report` stand on it.

    model = make("granite")
    expected = generate(model, ids, mask, 8)
    actual = generate(compiled(on_card(model)), ids, mask, 8)
    compare(expected.logits, actual.logits, allowed_error(layers=2))
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

from torch_spyre.constants import DEVICE_NAME

DECODERS = ("granite", "llama", "mistral", "qwen3", "gpt2")
ENCODERS = ("bert", "vit")


def library() -> ModuleType:
    """The package `transformers`."""
    try:
        import transformers
    except ImportError as problem:
        raise SystemExit(
            "the models need the package `transformers`, which is not installed: "
            "pip install 'torch-spyre[models]'"
        ) from problem
    return transformers


# ---- Models -------------------------------------------------------------------------------------


class Size(NamedTuple):
    """What the configs of all models share."""

    layers: int = 2
    hidden: int = 256
    inner: int = 512
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    vocabulary: int = 512
    length: int = 256
    """Positions that a model knows; pixels of a side for images, in patches of 16."""


SMALL = Size()


def config(name: str, size: Size = SMALL) -> Any:
    """The model's own config, with everything that has no size left as it is."""
    package = library()
    ends = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    if name == "gpt2":
        return package.GPT2Config(
            vocab_size=size.vocabulary, n_positions=size.length, n_embd=size.hidden,
            n_layer=size.layers, n_head=size.heads, n_inner=size.inner, **ends,
        )  # fmt: skip
    shared = {
        "hidden_size": size.hidden, "intermediate_size": size.inner,
        "num_hidden_layers": size.layers, "num_attention_heads": size.heads,
    }  # fmt: skip
    if name == "vit":
        return package.ViTConfig(image_size=size.length, patch_size=16, num_labels=10, **shared)
    shared |= {"vocab_size": size.vocabulary, "max_position_embeddings": size.length}
    if name == "bert":
        return package.BertConfig(**shared)
    classes = {
        "granite": package.GraniteConfig, "llama": package.LlamaConfig,
        "mistral": package.MistralConfig, "qwen3": package.Qwen3Config,
    }  # fmt: skip
    if name not in classes:
        raise ValueError(f"no model '{name}'; there are {', '.join((*DECODERS, *ENCODERS))}")
    made = classes[name](num_key_value_heads=size.kv_heads, **shared, **ends)
    made.head_dim = size.head_dim
    return made


def make(name: str, size: Size = SMALL, seed: int = 0) -> nn.Module:
    """A model on the CPU, in float32, for inference."""
    package = library()
    classes = {"bert": package.AutoModelForMaskedLM, "vit": package.AutoModelForImageClassification}
    torch.manual_seed(seed)
    model: nn.Module = classes.get(name, package.AutoModelForCausalLM).from_config(
        config(name, size)
    )
    return model.eval()


def on_card(model: nn.Module) -> nn.Module:
    """A copy on the card, in float16."""
    return copy.deepcopy(model).half().to(DEVICE_NAME)


def compiled(model: nn.Module) -> nn.Module:
    """The model, compiled in place: `generate` and plain calls both use it."""
    model.compile(fullgraph=True)
    return model


# ---- Running ------------------------------------------------------------------------------------


@dataclass
class Generated:
    """What `generate` gave, on the host."""

    tokens: torch.Tensor
    """(batch, new tokens)"""
    logits: torch.Tensor
    """(new tokens, batch, vocabulary), float32, before anything was chosen"""
    times: list[float] = field(default_factory=list)
    """When each token was there, in seconds from the call on."""

    @property
    def prefill_seconds(self) -> float:
        return self.times[0]

    @property
    def decode_seconds(self) -> float:
        """Of one token, the fastest of all steps but the first, which may compile."""
        steps = [b - a for a, b in zip(self.times, self.times[1:])]
        return min(steps[1:])


@torch.no_grad()
def generate(
    model: nn.Module,
    ids: torch.Tensor,
    mask: torch.Tensor,
    new_tokens: int,
    forced: torch.Tensor | None = None,
    **options: Any,
) -> Generated:
    """Greedy generation with a static cache; with `forced` tokens whatever the logits say."""
    package = library()

    class Clock(package.generation.streamers.BaseStreamer):  # type: ignore[name-defined]
        times: list[float] = []  # noqa: RUF012 (one clock a call)

        def put(self, value: torch.Tensor) -> None:
            value.cpu()
            self.times.append(time.perf_counter())

        def end(self) -> None:
            pass

    class Force(package.LogitsProcessor):  # type: ignore[name-defined]
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            assert forced is not None
            chosen = forced[:, input_ids.shape[1] - ids.shape[1]]
            only = torch.full(scores.shape, -math.inf)
            return only.scatter(1, chosen[:, None], 0.0).to(scores.device)

    clock, device = Clock(), next(model.parameters()).device
    began = time.perf_counter()
    out = model.generate(  # type: ignore[operator]
        ids.to(device), attention_mask=mask.to(device), max_new_tokens=new_tokens,
        min_new_tokens=new_tokens, do_sample=False, cache_implementation="static",
        return_dict_in_generate=True, output_logits=True, streamer=clock,
        logits_processor=[] if forced is None else [Force()], **options,
    )  # fmt: skip
    return Generated(
        tokens=out.sequences[:, ids.shape[1] :].cpu(),
        logits=torch.stack([x.cpu().float() for x in out.logits]),
        times=[t - began for t in clock.times[1:]],  # the first one is the prompt
    )


@torch.no_grad()
def encode(model: nn.Module, *inputs: torch.Tensor) -> torch.Tensor:
    """The logits of an encoder, on the host: token ids and mask, or pixels."""
    parameter = next(model.parameters())
    placed = [
        t.to(parameter.device, parameter.dtype if t.is_floating_point() else t.dtype)
        for t in inputs
    ]
    names = ("pixel_values",) if inputs[0].dim() == 4 else ("input_ids", "attention_mask")
    logits: torch.Tensor = model(**dict(zip(names, placed))).logits
    return logits.cpu().float()


# ---- Agreement ----------------------------------------------------------------------------------

_PER_LAYER = 12
"""Roundings of a row in one layer that do not average out, as in tests/e2e/test_blocks.py."""
_AROUND = 4
"""Embedding, last normalisation, weights of the head, logits."""
_DEVIATIONS = 4
"""A difference of two logits may be so many standard deviations off."""


def allowed_error(layers: int) -> float:
    """Relative error that DLFloat16 explains, as a root mean square.

    Each rounding to 9 fraction bits is off by at most half a unit (2^-10), uniformly spread, which
    is a variance of 2^-20 / 3; they are independent, so that variances add.
    """
    return 2.0**-10 * math.sqrt((_PER_LAYER * layers + _AROUND) / 3)


@dataclass(frozen=True)
class Agreement:
    """How far logits are from the expected ones."""

    error: float
    """Root mean square, relative to that of the expected logits."""
    choices: int
    """How often a token was chosen."""
    clear: int
    """How often the two largest expected logits are further apart than the error allowed."""
    equal: int
    """How often the same token was chosen."""
    clear_and_equal: int


def compare(expected: torch.Tensor, actual: torch.Tensor, allowed: float) -> Agreement:
    """Compare logits; their last dimension is the vocabulary."""
    size = expected.pow(2).mean().sqrt()
    error = float((actual - expected).pow(2).mean().sqrt() / size)
    largest = expected.topk(2, -1).values
    clear = largest[..., 0] - largest[..., 1] > _DEVIATIONS * math.sqrt(2) * allowed * size
    same = actual.argmax(-1) == expected.argmax(-1)
    return Agreement(
        error, clear.numel(), int(clear.sum()), int(same.sum()), int((clear & same).sum())
    )
