"""Identity of this installation of the package, for cache keys.

In: nothing. Out: hashes that are the same in every process and change with the sources of the
compiler and with the compiled extension. The extension is known by the build id that the linker
makes from its content: reading it costs 0.1 ms, where hashing the file would cost 20.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from torch_spyre import _C

ROOT = Path(__file__).parents[1]
# What has a say in what a program becomes.
SOURCES = (
    "*.py",
    "_inductor/**/*.py",
    "backend/**/*.py",
    "card_model/*.py",
    "cache/*.py",
    "upstream/*.py",
)


@cache
def package_hash() -> str:
    """By content: the same for the same sources, wherever they lie. Some milliseconds."""
    digest = hashlib.sha256(extension_id().encode())
    for file in _source_files():
        digest.update(str(file.relative_to(ROOT)).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


@cache
def quick_hash() -> str:
    """By sizes and times of the same files, without reading them: for who has no milliseconds. It
    also changes when nothing but a time does."""
    digest = hashlib.sha256(extension_id().encode())
    for file in _source_files():
        found = file.stat()
        digest.update(f"{file} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _source_files() -> list[Path]:
    return sorted(file for pattern in SOURCES for file in ROOT.glob(pattern))


@cache
def extension_id() -> str:
    """The build id of the extension; for one without, its size and time."""
    path = Path(_C.__file__)
    found = build_id(path)
    if found is not None:
        return found
    status = path.stat()
    return f"{status.st_size} {status.st_mtime_ns}"


def build_id(path: Path) -> str | None:
    """The build id in the notes of an ELF file (64 bits, little endian), as in `readelf -n`."""
    with path.open("rb") as file:
        header = file.read(64)
        if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
            return None
        (offset,) = struct.unpack_from("<Q", header, 32)
        size, count = struct.unpack_from("<HH", header, 54)
        file.seek(offset)
        table = file.read(size * count)
        for start in range(0, len(table) - 55, size):
            (kind,) = struct.unpack_from("<I", table, start)
            if kind != 4:  # PT_NOTE
                continue
            (at,) = struct.unpack_from("<Q", table, start + 8)
            (length,) = struct.unpack_from("<Q", table, start + 32)
            file.seek(at)
            for owner, note, content in _notes(file.read(length)):
                if owner == b"GNU\0" and note == 3:  # NT_GNU_BUILD_ID
                    return content.hex()
    return None


def _notes(data: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    at = 0
    while at + 12 <= len(data):
        name, content, kind = struct.unpack_from("<III", data, at)
        begin = at + 12 + _padded(name)
        yield data[at + 12 : at + 12 + name], kind, data[begin : begin + content]
        at = begin + _padded(content)


def _padded(size: int) -> int:
    return (size + 3) & ~3
