"""Compiled programs, kept on disk: the next engine loads them without tracing the model again.

Tracing takes longer than everything else of a start with warm caches: 8 s for each program of 30
layers. What `aot_compile` makes is written to a file beside Inductor's caches. Nothing guards such
a program, so its key has all that it depends on, and the store checks that the file is the one
that was written.

    kept = Kept(model, config, shapes_of_the_cache)
    program = kept.program((8, 1, 16), function, arguments)      # compiled, or found
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from vllm import __version__ as vllm_version
from vllm.config import VllmConfig
from vllm.logger import init_logger

from torch_spyre._inductor.capture.fingerprints import settings, source_hash
from torch_spyre.cache.store import Store

logger = init_logger("vllm.torch_spyre")

_FILE = "program"


class Kept:
    """The programs of one model."""

    def __init__(self, model: nn.Module, config: VllmConfig, more: Any) -> None:
        """Of a model and its configuration, and of `more` that programs depend on."""
        from torch._inductor.runtime.cache_dir_utils import cache_dir

        self._store = Store(Path(cache_dir()) / "spyre-vllm")
        tensors = [*model.named_parameters(), *model.named_buffers()]
        told = config.model_config
        own = sorted(Path(__file__).parent.glob("*.py"))
        self._identity = (
            source_hash(), settings(), torch.__version__, vllm_version,
            # Only the model's part: sizes of batches, and what the scheduler and the server are
            # told, decide which programs there are, not what they are.
            told.compute_hash(), told.runner_type, told.convert_type,
            told.hf_config.to_json_string(),
            [(name, t.shape, t.dtype, str(t.device)) for name, t in tensors],
            [path.read_text() for path in own], more,
        )  # fmt: skip

    def program(
        self,
        key: tuple[Any, ...],
        function: Callable[..., torch.Tensor],
        arguments: tuple[Any, ...],
    ) -> Callable[..., torch.Tensor]:
        """The function, compiled for arguments like these."""
        whole = repr((self._identity, key))
        name = f"program-{hashlib.sha256(whole.encode()).hexdigest()[:24]}"
        entry = self._store.find(name, whole)
        program = None if entry is None else _load(entry / _FILE)
        if program is None:
            logger.info("compiling a program for %s, once", key)
            program = _compile(function, arguments)
            self._keep(program, name, whole)
        program.disable_guard_check()
        return program

    def _keep(self, program: Any, name: str, whole: str) -> None:
        def fill(folder: Path) -> None:
            program.save_compiled_function(str(folder / _FILE))

        try:
            self._store.publish(name, whole, fill)
        except OSError as error:
            logger.warning("compiled programs are not kept: %s", error)


def _load(file: Path) -> Any:
    """None if it was compiled on another kind of machine, which PyTorch checks."""
    try:
        with file.open("rb") as stream:
            return torch.compiler.load_compiled_function(stream)
    except RuntimeError as error:
        logger.warning("a program that was kept does not fit, it is compiled again: %s", error)
        return None


def _compile(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    options = {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
    with fresh_random_numbers(), torch._dynamo.config.patch(enable_aot_compile=True):
        compiled = torch.compile(function, fullgraph=True, dynamic=False, options=options)
        return compiled.aot_compile((arguments, {}))


@contextlib.contextmanager
def fresh_random_numbers() -> Iterator[None]:
    """Where AOTAutograd has no key for its cache, it takes a random number, of Python's generator.
    vLLM seeds that: another program of an earlier process had the same number, and was found."""
    state = random.getstate()
    random.seed()
    try:
        yield
    finally:
        random.setstate(state)
