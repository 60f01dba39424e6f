"""vLLM's engine in this process: what it generates is what the CPU would."""

from __future__ import annotations

from pathlib import Path

import agreement
import models
import pytest
import torch
from safetensors.torch import load_file, save_file
from vllm import LLM, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True)
FEW = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
TABLES = ("model.embed_tokens.weight", "lm_head.weight")
SIZES = {"spyre": {"batches": [4], "chunks": [64, 128], "pages": [8]}}


def prompts(*lengths: int) -> list[list[int]]:
    torch.manual_seed(1)
    return [torch.randint(6, 260, (n,)).tolist() for n in lengths]


def generate(llm: LLM, texts: list[list[int]], parameters: SamplingParams = GREEDY) -> list:
    found = llm.generate([{"prompt_token_ids": ids} for ids in texts], parameters, use_tqdm=False)
    return [output.outputs[0] for output in found]


def start(folder: Path, **options) -> LLM:
    options = {"max_model_len": 512, "max_num_seqs": 4, "additional_config": SIZES, **options}
    return LLM(str(folder), **options)


@pytest.mark.usefixtures("engine")
def test_a_batch_of_prompts_is_continued_as_by_the_cpu(llama):
    folder, cpu = llama
    llm = start(folder)
    texts = prompts(7, 67, 110, 210)
    torch.spyre.reset_fallback_counts()
    found = generate(llm, texts)
    ties = sum(
        agreement.check(cpu, text, list(output.token_ids))
        for text, output in zip(texts, found, strict=True)
    )
    assert ties <= 10, "of 192 tokens: more would say that the model decides nothing"
    assert torch.spyre.fallback_counts() == {}, "programs leave nothing to the host"

    # Again, now with the prompts in the cache: the same tokens, and nothing new to compile.
    assert [o.token_ids for o in generate(llm, texts)] == [o.token_ids for o in found]

    # More sequences than a program holds, of any lengths, with prompts cut into chunks.
    texts = prompts(1, 63, 64, 65, 128, 129, 300)
    for text, output in zip(texts, generate(llm, texts), strict=True):
        agreement.check(cpu, text, list(output.token_ids))

    # Logits of prompts, and sampling, are vLLM's own.
    asked = SamplingParams(temperature=1.0, seed=3, max_tokens=4, prompt_logprobs=2, logprobs=2)
    (output,) = llm.generate([{"prompt_token_ids": texts[1]}], asked, use_tqdm=False)
    with torch.no_grad():
        expected = cpu(torch.tensor([texts[1]])).logits[0].log_softmax(-1)
    for at, told in enumerate(output.prompt_logprobs[1:]):
        token = texts[1][at + 1]
        assert told[token].logprob == pytest.approx(float(expected[at, token]), abs=0.15)


@pytest.mark.usefixtures("engine")
def test_without_compiling_the_tokens_are_the_same(llama):
    folder, cpu = llama
    llm = start(folder, enforce_eager=True)
    text = prompts(70)[0]
    (output,) = generate(llm, [text], FEW)
    agreement.check(cpu, text, list(output.token_ids))


@pytest.mark.parametrize("saved", ["model.embed_tokens.weight", "lm_head.weight"])
@pytest.mark.usefixtures("engine")
def test_a_table_for_embeddings_and_product_may_be_saved_as_either(tmp_path: Path, saved: str):
    cpu = models.make_llama(tmp_path, tied=True)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    (table,) = (weights.pop(name) for name in list(weights) if name.startswith(TABLES))
    save_file({saved: table, **weights}, file, metadata={"format": "pt"})
    (output,) = generate(start(tmp_path, enforce_eager=True), prompts(9), FEW)
    agreement.check(cpu, prompts(9)[0], list(output.token_ids))


@pytest.mark.parametrize(
    ("options", "said"),
    [({"tensor_parallel_size": 2}, "no tensor parallelism"),
     ({"additional_config": {"spyre": {"page": [1]}}}, r"unknown sizes \['page'\]")],
    ids=["two cards", "a misspelt size"],
)  # fmt: skip
@pytest.mark.usefixtures("engine")
def test_what_is_not_there_is_refused_with_a_reason(llama, options: dict, said: str):
    with pytest.raises(ValueError, match=said):
        start(llama[0], **options)


def test_weights_in_bfloat16_are_served_in_float16(tmp_path: Path):
    from vllm.engine.arg_utils import EngineArgs

    models.make_llama(tmp_path).bfloat16().save_pretrained(tmp_path)
    config = EngineArgs(str(tmp_path)).create_engine_config()
    assert config.model_config.dtype is torch.float16
