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

from pathlib import Path

from torch_spyre.backend.emit.cache import bundle_key, copy_directory, has_key, write_directory
from torch_spyre.backend.emit.program import ProgramWriter
from torch_spyre.backend.emit.sanitizer_data import write_checks
from torch_spyre.backend.emit.spyrecode import write_spyrecode
from torch_spyre.backend.errors import BackendError, BundleError, ProgramError, SpyreCodeError
from torch_spyre.backend.fuse import schedule
from torch_spyre.backend.fuse.shared_lx import share_scratchpads
from torch_spyre.backend.lower import lower
from torch_spyre.backend.read.bundle import Bundle, BundleNode, OperationLoop, read_bundle
from torch_spyre.backend.steps import Item, LoopBegin, LoopEnd
from torch_spyre.cache.store import Store

__all__ = [
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

OUTPUT = "spyreCodeDir"


def compile_bundle(
    directory: str | Path,
    output: str | Path | None = None,
    *,
    fuse: bool = True,
    pool: bool = False,
    private_lx: bool = False,
    cache_dir: str | Path | None = None,
) -> Path:
    """Compile a bundle into a SpyreCode directory and return its path.

    output     where to; default `<directory>/spyreCodeDir`
    fuse       join steps; the results are the same bits either way
    pool       argument 0 is the pool, for bundles with concrete addresses
    private_lx nobody needs what the bundle leaves in scratchpads: values there are joined as those
               of the pool are, and those that die are never stored
    cache_dir  where compiled bundles are kept by content; a second compile is a lookup

    Raises BundleError when the bundle breaks a rule."""
    directory = Path(directory)
    target = Path(output) if output is not None else directory / OUTPUT
    try:
        key = bundle_key(directory, f"fuse={fuse} pool={pool} private_lx={private_lx}")
    except OSError:
        read_bundle(directory, pool=pool)  # says what is missing
        raise
    if has_key(target, key):
        return target
    store = Store(Path(cache_dir)) if cache_dir is not None else None
    kept = store.find(key, key) if store is not None else None
    if kept is not None:
        copy_directory(kept, target, key)
        return target
    bundle = read_bundle(directory, pool=pool)
    program = program_bytes(steps_of(bundle, fuse=fuse, private_lx=private_lx))
    write_directory(target, key, lambda fresh: write_spyrecode(fresh, program))
    if store is not None:
        store.publish(key, key, lambda fresh: write_spyrecode(fresh, program))
    return target


def steps_of(bundle: Bundle, *, fuse: bool = True, private_lx: bool = False) -> list[Item]:
    """The steps of a bundle, in order."""
    if fuse and private_lx:
        bundle = share_scratchpads(bundle)
    return schedule(_items(bundle.body), bundle.pool, fuse=fuse)


def program_bytes(items: list[Item]) -> bytes:
    """Steps and loops as a device program."""
    writer = ProgramWriter()
    writer.add_all(items)
    return writer.bytes()


def _items(nodes: tuple[BundleNode, ...]) -> list[Item]:
    items: list[Item] = []
    for node in nodes:
        if isinstance(node, OperationLoop):
            items += [LoopBegin(node.count), *_items(node.body), LoopEnd()]
        else:
            items.append(lower(node))
    return items
