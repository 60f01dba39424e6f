"""Writes and checks SpyreCode directories: what the runtime loads and launches.

In: the bytes of a program. Out: a directory with `program.bin` and `spyrecode.json`, which
allocates program memory, puts the program there and runs it. All numbers are decimal strings.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch_spyre.backend.emit.program import read_program
from torch_spyre.backend.errors import ProgramError, SpyreCodeError
from torch_spyre.backend.steps import Item
from torch_spyre.constants import SEGMENT_BYTES, SEGMENTS

MANIFEST = "spyrecode.json"
PROGRAM = "program.bin"
PROGRAM_SEGMENT = SEGMENTS * SEGMENT_BYTES
PROGRAM_SEGMENT_END = PROGRAM_SEGMENT + SEGMENT_BYTES


def write_spyrecode(directory: Path, program: bytes) -> None:
    """Write both files into a directory that exists."""
    (directory / PROGRAM).write_bytes(program)
    manifest = {
        "JobPreparationPlan": [
            _entry("Allocate", size=str(len(program))),
            _entry(
                "InitTransfer",
                init_bin_file=PROGRAM,
                dev_ptr=str(PROGRAM_SEGMENT),
                size=str(len(program)),
            ),
        ],
        "JobExecPlan": [_entry("ComputeOnDevice", job_bin_ptr=str(PROGRAM_SEGMENT))],
    }
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def _entry(command: str, **properties: str) -> dict[str, Any]:
    return {"command": command, "properties": properties}


def read_spyrecode(directory: str | Path) -> list[Item]:
    """Check a directory that `write_spyrecode` has written and return the steps of its program."""
    directory = Path(directory)
    path = directory / MANIFEST
    if not path.is_file():
        raise SpyreCodeError(f"{directory}: found no {MANIFEST}, allowed: a SpyreCode directory")
    try:
        manifest = json.loads(path.read_bytes())
    except ValueError as error:
        raise SpyreCodeError(f"{path}: not valid JSON: {error}") from None
    plan = _plan(manifest, "JobPreparationPlan", ("Allocate", "InitTransfer"), path)
    execution = _plan(manifest, "JobExecPlan", ("ComputeOnDevice",), path)
    allocated = _number(plan[0], "size", f"{path}: JobPreparationPlan[0]")
    where = f"{path}: JobPreparationPlan[1]"
    size = _number(plan[1], "size", where)
    for entry, key, at in (
        (plan[1], "dev_ptr", where),
        (execution[0], "job_bin_ptr", f"{path}: JobExecPlan[0]"),
    ):
        pointer = _number(entry, key, at)
        if not PROGRAM_SEGMENT <= pointer < PROGRAM_SEGMENT_END:
            raise SpyreCodeError(
                f"{at}.{key}: found {pointer}, allowed: {PROGRAM_SEGMENT} to "
                f"{PROGRAM_SEGMENT_END - 1}"
            )
    start = _number(plan[1], "dev_ptr", where) - PROGRAM_SEGMENT
    if start + size > allocated:
        raise SpyreCodeError(
            f"{where}: found {size} bytes at {start}, allowed: up to {allocated}, as allocated"
        )
    binary = directory / str(plan[1].get("init_bin_file", ""))
    if not binary.is_file():
        raise SpyreCodeError(
            f"{where}.init_bin_file: found no file '{binary.name}', allowed: a file beside it"
        )
    data = binary.read_bytes()
    if len(data) != size:
        raise SpyreCodeError(f"{binary}: found {len(data)} bytes, allowed: {size}, as {MANIFEST}")
    try:
        return read_program(data)
    except ProgramError as error:
        raise SpyreCodeError(f"{binary}: {error}") from None


def _plan(manifest: Any, name: str, commands: tuple[str, ...], path: Path) -> list[dict[str, Any]]:
    entries = manifest.get(name) if isinstance(manifest, dict) else None
    found = [e.get("command") if isinstance(e, dict) else None for e in entries or ()]
    if not isinstance(entries, list) or found != list(commands):
        raise SpyreCodeError(
            f"{path}: {name}: found {', '.join(map(str, found)) or 'nothing'}, "
            f"allowed: {', '.join(commands)}"
        )
    return [e.get("properties", {}) for e in entries]


def _number(properties: dict[str, Any], name: str, where: str) -> int:
    value = properties.get(name)
    if not isinstance(value, str) or not value.isdecimal():
        raise SpyreCodeError(
            f"{where}.{name}: found {json.dumps(value)}, allowed: a decimal string"
        )
    return int(value)
