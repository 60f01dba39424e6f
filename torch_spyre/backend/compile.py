"""The whole way from a bundle directory to a SpyreCode directory.

In: a bundle. Out: the directory that the runtime launches, from the cache if it is there.

    read -> share scratchpads (emulator only) -> lower -> fuse -> (validate) -> emit
"""

from __future__ import annotations

from pathlib import Path

from torch_spyre.backend.emit.cache import bundle_key, copy_directory, has_key, write_directory
from torch_spyre.backend.emit.program import ProgramWriter
from torch_spyre.backend.emit.spyrecode import write_spyrecode
from torch_spyre.backend.fuse import schedule
from torch_spyre.backend.fuse.shared_lx import share_scratchpads
from torch_spyre.backend.lower import lower
from torch_spyre.backend.read.bundle import Bundle, BundleNode, OperationLoop, read_bundle
from torch_spyre.backend.steps import Item, LoopBegin, LoopEnd
from torch_spyre.backend.validate import check_fused, check_steps
from torch_spyre.cache.store import Store
from torch_spyre.constants import CODE_DIRECTORY, SEGMENTS
from torch_spyre.validation import VALIDATE


def compile_bundle(
    directory: str | Path,
    output: str | Path | None = None,
    *,
    fuse: bool = True,
    pool: bool = False,
    private_lx: bool = False,
    cache_dir: str | Path | None = None,
    validate: bool = VALIDATE,
) -> Path:
    """Compile a bundle into a SpyreCode directory and return its path.

    output     where to; default CODE_DIRECTORY in `directory`
    fuse       join steps; the results are the same bits either way
    pool       argument 0 is the pool, for bundles with concrete addresses
    private_lx LX is dead after the bundle: values there are joined as those of the pool are, and
               dead ones are never stored
    cache_dir  where compiled bundles are kept by content; a second compile is a lookup
    validate   check the steps on the way (SPYRE_VALIDATE)

    Raises BundleError when the bundle breaks a rule."""
    directory = Path(directory)
    target = Path(output) if output is not None else directory / CODE_DIRECTORY
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
    program = program_bytes(steps_of(bundle, fuse=fuse, private_lx=private_lx, validate=validate))
    write_directory(target, key, lambda fresh: write_spyrecode(fresh, program))
    if store is not None:
        store.publish(key, key, lambda fresh: write_spyrecode(fresh, program))
    return target


def steps_of(
    bundle: Bundle, *, fuse: bool = True, private_lx: bool = False, validate: bool = VALIDATE
) -> list[Item]:
    """The steps of a bundle, in order. `validate` checks them after lower and after fuse."""
    if fuse and private_lx:
        bundle = share_scratchpads(bundle)
    lowered = _items(bundle.body)
    fused = schedule(lowered, bundle.pool, fuse=fuse)
    if validate:
        arguments = len(bundle.parameters) or SEGMENTS
        check_steps(lowered, arguments)
        if fuse:
            check_steps(fused, arguments)
            check_fused(lowered, fused, bundle.pool)
    return fused


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
