"""The sanitizer: every memory access of device programs is checked.

    with torch.spyre.sanitizer():
        compiled(x).cpu()

or `SPYRE_SANITIZE=1` for a whole process. What is found is raised as `SanitizerError` by the next
call that waits for the card. docs/user_guide/sanitizer.md has what is checked and what it costs.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from torch_spyre import _C


@dataclass(frozen=True)
class Finding:
    """One fault of a device program."""

    what: str
    """Kernel, operation, and what it does wrong."""
    tensor: str
    address: str
    core: int | None
    """None where it is not one core's."""
    source: str
    """Lines of the user's program that the operation stands for; empty where none are known."""
    written: str
    """Who wrote there last."""


class SanitizerError(RuntimeError):
    """A device program touched memory in a way that it must not, or computed something else than
    its operations say."""

    @property
    def findings(self) -> list[Finding]:
        """What was found, one by one."""
        blocks = re.split(r"\n(?=\S)", str(self))[1:]
        return [_finding(block) for block in blocks]


def _finding(block: str) -> Finding:
    what, *rest = block.split("\n")
    fields: dict[str, str] = {}
    name = ""
    for line in rest:
        if line[4:13].strip():
            name = line[4:13].strip()
            fields[name] = line[13:]
        else:  # a source has several lines
            fields[name] += "\n" + line[13:]
    core = fields.get("core")
    return Finding(
        what,
        fields.get("tensor", ""),
        fields.get("address", ""),
        int(core) if core is not None else None,
        fields.get("source", ""),
        fields.get("written", ""),
    )


_lock = threading.Lock()
_depth = 0


@contextlib.contextmanager
def sanitizer() -> Iterator[None]:
    """Check every access of device programs while the block runs, and wait for them at its end.

    Memory that was written before counts as written, padding included. Blocks may be nested; the
    check is for all threads and cards."""
    global _depth
    with _lock:
        if _depth == 0 and not _C._is_sanitizing():
            _C._set_sanitizing(True)
        _depth += 1
    # Kernels that the process has compiled so far; later ones find the sanitizer on.
    compiler = sys.modules.get("torch_spyre._inductor.host.async_compile")
    try:
        if compiler is not None:
            compiler.write_checks_of_all()
        eager = sys.modules.get("torch_spyre.ops.eager")
        if eager is not None:
            eager.write_checks_of_all()
        yield
        for device in range(_C.device_count()):
            _C.synchronize(device)
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0 and not _C._settings()["sanitize"]:
                _C._set_sanitizing(False)


def is_sanitizing() -> bool:
    """Whether device programs are being checked, or will be once the card runs."""
    return _C._is_sanitizing() or bool(_C._settings()["sanitize"])
