"""What the compiled model consists of: operations, host steps, bytes.

`torch_spyre.explain` says it, at the price of compiling once more: a graph from a cache has no plan
to show. So the answer is kept beside Inductor's caches, by everything that it depends on.

    >>> describe(embedder(model), ids, mask, loaded.identity).operations
    270
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from examples.semantic_search.encoder import Embed


@dataclass(frozen=True)
class Anatomy:
    """One call of the compiled model."""

    kernels: int
    """Launches."""
    operations: int
    """OpFuncs on the card, copies included."""
    copies: int
    """Of them, copies into another layout that the compiler added."""
    host_steps: list[str]
    """What the host does inside of the graph: fallbacks."""
    graph_breaks: int
    memory_bytes: int
    """Moved between the card's memory and its cores."""


def describe(embed: Embed, ids: torch.Tensor, mask: torch.Tensor, model: str) -> Anatomy:
    """The anatomy for these arguments. `model` is its configuration, as text."""
    file = _remembered(model, ids)
    known = _read(file)
    if known is None:
        known = _explain(embed, ids, mask)
        _write(file, known)
    return known


def _explain(embed: Embed, ids: torch.Tensor, mask: torch.Tensor) -> Anatomy:
    import torch_spyre
    from torch_spyre import backend

    told = torch_spyre.explain(embed, ids, mask)
    return Anatomy(
        kernels=len(told.kernels),
        operations=len(told.ops),
        copies=len(told.restickifies),
        host_steps=[step.op for step in told.fallbacks],
        graph_breaks=len(told.graph_breaks),
        memory_bytes=sum(
            program_bytes(Path(directory) / backend.OUTPUT) for *_, directory in told.kernels
        ),
    )


def program_bytes(directory: Path) -> int:
    """Bytes that one launch moves between device memory and cores, as the timing model counts."""
    from torch_spyre.backend.emit.spyrecode import read_spyrecode
    from torch_spyre.backend.lower.work import device_bytes
    from torch_spyre.backend.steps import LoopBegin, LoopEnd

    total, times = 0, [1]
    for item in read_spyrecode(directory):
        if isinstance(item, LoopBegin):
            times.append(times[-1] * item.count)
        elif isinstance(item, LoopEnd):
            times.pop()
        else:
            total += times[-1] * device_bytes(item)
    return total


# ---- Kept between runs ---------------------------------------------------------------------------


def _remembered(model: str, ids: torch.Tensor) -> Path:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    own = [f.name for f in fields(Anatomy)], Path(__file__).read_text()
    key = repr((model, tuple(ids.shape), what_computes(), what_compiles(), own))
    name = hashlib.sha256(key.encode()).hexdigest()[:24]
    return Path(cache_dir()) / "spyre-search" / f"{name}.json"


def what_computes() -> tuple[str, ...]:
    """On what embeddings depend wherever they are made, the model's files aside."""
    import transformers

    own = (Path(__file__).parent / "encoder.py").read_text()
    return torch.__version__, transformers.__version__, own


def what_compiles() -> tuple[Any, ...]:
    """On what else the compiled model depends, and its results on this host."""
    from torch_spyre import _C
    from torch_spyre._inductor.capture.fingerprints import settings, source_hash

    return source_hash(), settings(), _C._settings()["pairs"]


def _read(file: Path) -> Anatomy | None:
    """None also for a file that is no such thing: it is made again."""
    try:
        values: Any = json.loads(file.read_text())
        return Anatomy(**values)
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _write(file: Path, anatomy: Anatomy) -> None:
    """All of it or nothing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=".writing-")
    try:
        with os.fdopen(handle, "w") as stream:
            json.dump(asdict(anatomy), stream)
        os.replace(name, file)
    except BaseException:
        os.unlink(name)
        raise
