"""The back-end: SuperDSC bundles in, device programs out.

A bundle directory (docs/formats/superdsc.md) becomes a SpyreCode directory that the runtime
launches. The way of the data, one folder a stage:

    read   the files, every field and rule checked: Operations
    lower  each operation as a step (`steps.py` is the IR), with its work
    fuse   steps joined, dead stores eliminated
    emit   the words of the steps, the directory, its cache; what the card's sanitizer reads

Example: `plan = torch_spyre._C.prepare_kernel(str(compile_bundle("my_bundle")))`; on the command
line, `python -m torch_spyre.backend my_bundle` does it and shows what it did. Nothing here imports
the front-end.
"""

from __future__ import annotations

from torch_spyre.backend.compile import compile_bundle, program_bytes, steps_of
from torch_spyre.backend.errors import BackendError, BundleError, ProgramError, SpyreCodeError
from torch_spyre.backend.read.bundle import read_bundle
from torch_spyre.backend.sanitizer_data import write_checks
from torch_spyre.constants import CODE_DIRECTORY as OUTPUT

__all__ = [
    "OUTPUT",
    "BackendError",
    "BundleError",
    "ProgramError",
    "SpyreCodeError",
    "compile_bundle",
    "program_bytes",
    "read_bundle",
    "steps_of",
    "write_checks",
]
