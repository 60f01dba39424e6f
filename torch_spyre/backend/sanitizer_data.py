"""Side data of a program for the card's sanitizer: names, and the operations one by one.

In: a bundle directory and the SpyreCode directory made from it. Out: more files there:

    reference.bin  the program without fusion, one step for each operation of the bundle
    checked.bin    the program to run while accesses are checked, where it is another one: on the
                   scratchpads themselves (`sharing`)
    names.json     kernel, arguments, operations with their source lines, which operations each step
                   stands for, and which pieces of the pool and of the scratchpads hold what
    checks.json    a hash of each of them: what was changed since is made again

The front-end leaves what only it knows in `names.json` of the bundle (docs/formats/superdsc.md);
without that file there are numbers in place of names. Nothing else reads these files: a program
runs the same with and without them.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from torch_spyre.backend.compile import program_bytes, steps_of
from torch_spyre.backend.errors import BundleError
from torch_spyre.backend.read.bundle import Bundle, Operation, read_bundle
from torch_spyre.backend.steps import Item, LoopBegin, LoopEnd

NAMES = "names.json"
REFERENCE = "reference.bin"
CHECKED = "checked.bin"
HASHES = "checks.json"
VERSION = 1


def write_checks(
    directory: str | Path,
    code: str | Path,
    *,
    fuse: bool,
    pool: bool,
    private_lx: bool = False,
) -> None:
    """Write the files beside the program, unless they are there as they were written. `fuse`,
    `pool` and `private_lx` are those that the program was compiled with."""
    directory, code = Path(directory), Path(code)
    if _are_whole(code):
        return
    bundle = read_bundle(directory, pool=pool)
    names = make_names(bundle, steps_of(bundle, fuse=fuse))
    files = {REFERENCE: program_bytes(steps_of(bundle, fuse=False))}
    in_lx = any(tensor.in_lx for op in bundle.operations() for tensor in op.sdsc.tensors)
    if private_lx and in_lx:
        files[CHECKED] = program_bytes(steps_of(bundle, fuse=fuse))
    else:
        (code / CHECKED).unlink(missing_ok=True)
    files[NAMES] = (json.dumps(names, indent=1) + "\n").encode()
    for name, content in files.items():
        _write(code / name, content)
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    _write(code / HASHES, (json.dumps(hashes, indent=1) + "\n").encode())


def _are_whole(code: Path) -> bool:
    """Whether the files are there, all of them, with the content that was written."""
    try:
        hashes = json.loads((code / HASHES).read_text())
    except (OSError, ValueError):
        return False
    there = {name for name in (NAMES, REFERENCE, CHECKED) if (code / name).is_file()}
    return (
        isinstance(hashes, dict)
        and there == hashes.keys()
        and all(
            hashlib.sha256((code / name).read_bytes()).hexdigest() == hashes[name] for name in there
        )
    )


def make_names(bundle: Bundle, items: list[Item]) -> dict[str, Any]:
    """The content of names.json for a program of these steps."""
    known = _read_names(bundle.directory / NAMES)
    operations = bundle.operations()
    sources = known.get("operations", [])
    if sources and len(sources) != len(operations):
        raise BundleError(
            f"{NAMES}: operations: found {len(sources)}, allowed: {len(operations)}, one for each "
            "operation of the bundle"
        )
    number = {operation.name: i for i, operation in enumerate(operations)}
    return {
        "version": VERSION,
        "kernel": known.get("kernel", bundle.directory.name),
        "pool": -1 if bundle.pool is None else bundle.pool,
        "arguments": known.get("arguments", []),
        "operations": [
            {"name": operation.name, "source": sources[i]["source"] if sources else ""}
            for i, operation in enumerate(operations)
        ],
        "steps": [
            [] if isinstance(item, LoopBegin) else [number[name] for name in item.source]
            for item in items
            if not isinstance(item, LoopEnd)
        ],
        "buffers": [_with_slice(buffer, operations) for buffer in known.get("buffers", [])],
    }


def _with_slice(buffer: dict[str, Any], operations: list[Operation]) -> dict[str, Any]:
    """In a scratchpad there is a core's slice alone, which the operation knows."""
    if buffer["space"] != "lx":
        return buffer
    first = operations[buffer["first"]]
    sizes = [
        first.sdsc.storage_bytes(tensor)
        for tensor, address in zip(first.sdsc.tensors, first.addresses)
        if tensor.in_lx and address.offsets[0] == buffer["offset"]
    ]
    return {**buffer, "bytes": max(sizes, default=buffer["bytes"])}


def _read_names(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        names = json.loads(path.read_bytes())
    except ValueError as error:
        raise BundleError(f"{NAMES}: not valid JSON: {error}") from None
    if not isinstance(names, dict) or names.get("version") != VERSION:
        found = names.get("version") if isinstance(names, dict) else names
        raise BundleError(f"{NAMES}: version: found {found}, allowed: {VERSION}")
    return names


def _write(path: Path, content: bytes) -> None:
    """In one move: another process may read it."""
    handle, fresh = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(fresh, path)
    except BaseException:
        Path(fresh).unlink(missing_ok=True)
        raise
