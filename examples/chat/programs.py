"""The two programs of a decoder, compiled once and kept.

`torch.compile` traces a model in each new process, which for thirty layers takes longer than all
that comes before the first token. `aot_compile` is its way to do without: what was compiled is
written to a file, which the next process loads. Nothing guards such a program, so its key has all
that it depends on, and the store checks that the file is the one that was written.

    >>> made = programs(decoder, store(), print)
    >>> decoder.prefill, decoder.decode = made.prefill, made.decode
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from examples.chat import decoder as decoder_module
from examples.chat.decoder import CHUNK, Decoder, Step, step
from torch_spyre.cache.store import Store

_FILE = "program"


@dataclass(frozen=True)
class Programs:
    """What a decoder calls."""

    prefill: Step
    decode: Step
    seconds: float
    """For both, compiled or loaded."""
    compiled: int
    """How many of them were not there."""


def programs(decoder: Decoder, kept: Store, tell: Callable[[str], object]) -> Programs:
    """The programs of a decoder. `tell` hears why there is something to wait for."""
    began = time.perf_counter()
    made: list[int] = []
    found: list[Step] = []
    for count in (CHUNK, 1):
        key = repr((identity(decoder), count))
        name = f"program-{hashlib.sha256(key.encode()).hexdigest()[:24]}"
        entry = kept.find(name, key)
        if entry is None:
            if not made:
                tell("compiling, once (a minute or less)")
            made.append(count)
            program = _compile(decoder, count)
            _keep(program, kept, name, key)
        else:
            with (entry / _FILE).open("rb") as file:
                program = torch.compiler.load_compiled_function(file)
        program.disable_guard_check()
        found.append(cast(Step, program))
    return Programs(found[0], found[1], time.perf_counter() - began, len(made))


def for_cpu() -> Step:
    """What computes a token on the CPU, compiled by whoever calls it first."""
    return cast(Step, torch.compile(step, fullgraph=True, dynamic=False))


def _keep(program: Any, kept: Store, name: str, key: str) -> None:
    """For the next process. A disk that is full or cannot be written costs it the compilation."""

    def fill(folder: Path) -> None:
        program.save_compiled_function(str(folder / _FILE))

    try:
        kept.publish(name, key, fill)
    except OSError as error:
        warnings.warn(f"compiled programs were not kept: {error}", stacklevel=3)


def identity(decoder: Decoder) -> tuple[Any, ...]:
    """All that the programs of a decoder depend on, weights aside."""
    import transformers

    from torch_spyre._inductor.capture.fingerprints import settings, source_hash

    own = [Path(module).read_text() for module in (__file__, decoder_module.__file__)]
    weights = [(name, p.shape, p.dtype) for name, p in decoder.model.named_parameters()]
    return (
        source_hash(), settings(), torch.__version__, transformers.__version__, own,
        decoder.model.config.to_json_string(), weights, decoder.rows, str(decoder.device),
    )  # fmt: skip


def _compile(decoder: Decoder, count: int) -> Any:
    arguments = decoder.arguments([0] * count, 0, count - 1)
    options = {"guard_filter_fn": lambda guards: [False for _ in guards]}
    with torch._dynamo.config.patch(enable_aot_compile=True):
        compiled = torch.compile(step, fullgraph=True, dynamic=False, options=options)
        return compiled.aot_compile((arguments, {}))
