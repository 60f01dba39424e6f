"""Small models with random weights and a tokenizer, made on the spot: there is no hub here.

make_llama(folder)         a decoder of 2 layers with grouped queries
make_bert(folder)          an encoder; with labels=1 one that scores pairs of texts
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

VOCABULARY = 320
SPECIAL = ["<pad>", "<s>", "</s>", "[CLS]", "[SEP]", "[UNK]"]
CHAT = (
    "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)


def make_tokenizer(folder: Path, *, pairs: bool = False) -> None:
    """One token for each byte, after the special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if pairs:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])],
        )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
        cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]",
    )  # fmt: skip
    fast.chat_template = CHAT
    fast.save_pretrained(folder)


def make_llama(
    folder: Path, *, heads: int = 4, size: int = 64, tied: bool = False
) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=heads * size, intermediate_size=384,
        num_hidden_layers=2, num_attention_heads=heads, num_key_value_heads=2,
        max_position_embeddings=512, initializer_range=0.1, dtype="float16",
        pad_token_id=0, bos_token_id=1, eos_token_id=2, tie_word_embeddings=tied,
    )  # fmt: skip
    model = LlamaForCausalLM(config).half()
    model.save_pretrained(folder)
    make_tokenizer(folder)
    return model.float().eval()


def make_bert(folder: Path, *, labels: int = 0) -> torch.nn.Module:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=256, intermediate_size=384, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=256, initializer_range=0.1,
        pad_token_id=0, num_labels=max(labels, 1), dtype="float16",
    )  # fmt: skip
    model = (BertForSequenceClassification if labels else BertModel)(config).half()
    model.save_pretrained(folder)
    make_tokenizer(folder, pairs=True)
    return model.float().eval()
