"""Embeddings and scores: those of the CPU in float32, to what the card's format explains."""

from __future__ import annotations

from pathlib import Path

import models
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoTokenizer
from vllm import LLM

TEXTS = ["The card", "Sticks of 128 bytes lie in tiles. " * 3, "a", "What is a stick?"]


def start(folder: Path, **options) -> LLM:
    sizes = {"spyre": {"batches": [1], "chunks": [64, 128], "pages": [4]}}
    return LLM(str(folder), runner="pooling", max_model_len=128, additional_config=sizes, **options)


def embeddings(llm: LLM) -> torch.Tensor:
    return torch.tensor([o.outputs.embedding for o in llm.embed(TEXTS, use_tqdm=False)])


@pytest.mark.usefixtures("engine")
def test_an_encoder_embeds_as_the_cpu_does(tmp_path: Path):
    cpu = models.make_bert(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    got = embeddings(start(tmp_path))
    for text, found in zip(TEXTS, got, strict=True):
        with torch.no_grad():
            hidden = cpu(**tokenizer(text, return_tensors="pt")).last_hidden_state
        assert F.cosine_similarity(found, hidden[0, 0], dim=0) > 0.9999


@pytest.mark.usefixtures("engine")
def test_a_decoder_embeds_by_its_last_token(llama):
    folder, cpu = llama
    tokenizer = AutoTokenizer.from_pretrained(folder)
    got = embeddings(start(folder, convert="embed"))
    for text, found in zip(TEXTS, got, strict=True):
        with torch.no_grad():
            hidden = cpu.model(tokenizer(text, return_tensors="pt").input_ids).last_hidden_state
        assert F.cosine_similarity(found, hidden[0, -1], dim=0) > 0.9999


@pytest.mark.usefixtures("engine")
def test_pairs_are_scored_as_the_cpu_does(tmp_path: Path):
    cpu = models.make_bert(tmp_path, labels=1)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    llm = start(tmp_path)
    question, texts = TEXTS[3], TEXTS[:3]
    got = [o.outputs.score for o in llm.score(question, texts, use_tqdm=False)]
    for text, found in zip(texts, got, strict=True):
        with torch.no_grad():
            inputs = tokenizer(question, text, return_tensors="pt")
            expected = cpu(**inputs).logits.sigmoid().item()
        assert found == pytest.approx(expected, abs=0.01)
