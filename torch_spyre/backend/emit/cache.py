"""Compiled bundles by content: the same files are compiled once.

In: the files of a bundle and the options. Out: a key, and directories that appear whole or not at
all, also when several processes write the same one. The key covers the back-end's own sources, so
that a change of the compiler is a change of every key.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from torch_spyre.backend.read.bundle import bundle_files
from torch_spyre.cache.store import MANIFEST

KEY_FILE = "bundle.sha256"
# All that has a say in what a bundle becomes, from the package's folder.
SOURCES = ("*.py", "backend/**/*.py", "card_model/*.py")


def bundle_key(directory: Path, options: str) -> str:
    """Hash of what a bundle is compiled from. Raises FileNotFoundError for a missing file."""
    digest = hashlib.sha256(f"{_sources_key()} {options}\n".encode())
    for path in bundle_files(directory):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


@lru_cache(maxsize=1)
def _sources_key() -> str:
    digest = hashlib.sha256()
    package = Path(__file__).parents[2]
    files = (path for pattern in SOURCES for path in package.glob(pattern))
    for path in sorted(files):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def has_key(directory: Path, key: str) -> bool:
    """The directory is complete and was made from this content."""
    try:
        return (directory / KEY_FILE).read_text() == key
    except OSError:
        return False


def write_directory(target: Path, key: str, fill: Callable[[Path], None]) -> None:
    """Make a directory in one move: `fill` writes its files into a new one beside it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        fill(fresh)
        (fresh / KEY_FILE).write_text(key)
        fresh.chmod(0o755)
        _move(fresh, target, key)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _move(fresh: Path, target: Path, key: str) -> None:
    while True:
        try:
            os.rename(fresh, target)
            return
        except OSError:
            if not target.exists():
                raise
        if has_key(target, key):
            return  # another process was faster
        old = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
        try:
            os.rename(target, old / target.name)
        except FileNotFoundError:
            pass  # another process has moved it away
        finally:
            shutil.rmtree(old, ignore_errors=True)


def copy_directory(source: Path, target: Path, key: str) -> None:
    """A copy of a kept entry, in files of its own: whoever writes to one spoils no other."""

    def fill(fresh: Path) -> None:
        for path in source.iterdir():
            if path.name not in (KEY_FILE, MANIFEST):
                shutil.copyfile(path, fresh / path.name)

    write_directory(target, key, fill)
