"""Content-checked cache on disk: safe against crashes, full disks and other users.

In: a directory and entries by name, each with a key (everything it was made from) and a function
that writes its files. Out: the directory of an entry that is complete, unmodified, of that key and
owned by this user; or None, and the entry is made again.

    store = Store(Path(cache_dir()) / "inductor-spyre")
    directory = store.find(name, key) or store.publish(name, key, fill)  # fill(path): its files

How it holds:

- an entry is written beside its place and renamed: it is there as a whole or not at all, and of
  several processes that write the same one, one wins and the others take its entry;
- `entry.json` has the key and a hash of every file, and all are compared before an entry is used;
- the store is of mode 0700, and what is not ours, a link, or open to others is never read;
- an entry that is used is marked, and the ones longest unused go when there are too many bytes;
- temporary files of a killed process hold no lock, and are removed by the next trimming.

Nothing here imports the compiler or torch.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

MANIFEST = "entry.json"
FORMAT = 1
LIMIT_VARIABLE = "SPYRE_CACHE_LIMIT"
DEFAULT_LIMIT = 4 << 30
MARKED_FOR = 600.0
"""Seconds for which a mark of use counts as of now."""

_NEW = ".new-"
_OLD = ".old-"
_LOCKS = ".locks"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class UntrustedDirectory(OSError):
    """A directory that another user can write to."""


def private_directory(path: Path) -> Path:
    """A directory of this user alone, made if it is not there. Raises UntrustedDirectory if it
    belongs to another user, OSError if it cannot be made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.stat()
    if found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode):
        raise UntrustedDirectory(
            errno.EPERM,
            f"belongs to user {found.st_uid} and not to {os.geteuid()}: programs would be loaded "
            "from files that another user wrote. Delete it, or set TORCHINDUCTOR_CACHE_DIR to a "
            "directory of your own",
            str(path),
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        path.chmod(0o700)
    return path


def size_limit() -> int:
    """Bytes that a store may have: SPYRE_CACHE_LIMIT, such as 500M, 4G or a number of bytes."""
    text = os.environ.get(LIMIT_VARIABLE, "").strip().upper()
    if not text:
        return DEFAULT_LIMIT
    shift = {"K": 10, "M": 20, "G": 30, "T": 40}.get(text[-1])
    digits = text if shift is None else text[:-1]
    if not digits.isdecimal():
        raise ValueError(
            f"invalid {LIMIT_VARIABLE} value '{text}': expected a size such as 500M, 4G or a "
            "number of bytes"
        )
    return int(digits) << (shift or 0)


@dataclass
class Store:
    """Entries in one directory. Threads and processes may use one directory at the same time."""

    root: Path
    limit: int | None = None
    """Bytes; None: as SPYRE_CACHE_LIMIT says."""
    _written: int | None = None
    """Bytes since the last trimming; None: this process has not trimmed yet."""

    def find(self, name: str, key: str) -> Path | None:
        """The directory of an entry, if it is what `publish` left there for this key. One that is
        anything else is taken away."""
        entry = self.root / name
        if is_sound(entry, key):
            _mark(entry)
            return entry
        if os.path.lexists(entry):
            with contextlib.suppress(OSError):
                self.drop(name)
        return None

    def publish(self, name: str, key: str, fill: Callable[[Path], None]) -> Path:
        """Write an entry and return its directory; `fill` gets an empty directory for the files.
        Raises OSError when the disk does not allow it, and whatever `fill` raises."""
        private_directory(self.root)
        entry = self.root / name
        with _new_directory(self.root) as work:
            fill(work)
            size = _write_manifest(work, key)
            self._move(work, entry, key)
        self._written = None if self._written is None else self._written + size
        if self._written is None or self._written > self._allowed() // 16:
            self.trim(keep=name)
        return entry

    def _move(self, work: Path, entry: Path, key: str) -> None:
        for _ in range(100):
            try:
                os.rename(work, entry)
                return
            except OSError as problem:
                # A file in its place is ENOTDIR, a directory ENOTEMPTY or EEXIST.
                if problem.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
            if is_sound(entry, key):
                return  # another process was faster
            self.drop(entry.name)
        raise OSError(errno.EBUSY, "other processes keep replacing this entry", str(entry))

    def drop(self, name: str) -> None:
        """Take an entry away; whoever has its files open keeps them."""
        away = Path(tempfile.mkdtemp(prefix=_OLD, dir=self.root))
        try:
            with contextlib.suppress(FileNotFoundError):
                os.rename(self.root / name, away / "entry")
        finally:
            _remove(away)

    def trim(self, keep: str = "") -> None:
        """Remove what died half done, and the entries longest unused until the limit holds."""
        self._written = 0
        entries = []
        for found in self._listed():
            if found.name.startswith((_NEW, _OLD)):
                _remove_abandoned(Path(found.path))
            elif not found.name.startswith("."):
                entries.append((*_use_and_size(Path(found.path)), found.name))
        total = sum(size for _, size, _ in entries)
        for _, size, name in sorted(entries):
            if total <= self._allowed():
                break
            if name != keep:
                with contextlib.suppress(OSError):
                    self.drop(name)
                total -= size

    def _listed(self) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self.root) as found:
                return list(found)
        except OSError:
            return []

    def _allowed(self) -> int:
        return size_limit() if self.limit is None else self.limit

    @contextlib.contextmanager
    def locked(self, name: str, seconds: float) -> Iterator[bool]:
        """Hold the lock of a name: one process makes something while the others wait for it. After
        `seconds`, or where there are no locks, it goes on without; the value says which. Nothing
        depends on a lock but work that is saved."""
        handle = None
        try:
            folder = private_directory(private_directory(self.root) / _LOCKS)
            # A fixed number of files, so that locks need no trimming.
            number = hashlib.sha256(name.encode()).hexdigest()[:2]
            handle = os.open(folder / number, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            held = _try_lock(handle, seconds)
        except OSError:
            held = False
        try:
            yield held
        finally:
            if handle is not None:
                os.close(handle)


# ---- Is it what was written? --------------------------------------------------------------------


def is_sound(entry: Path, key: str) -> bool:
    """Whether a directory is a whole, unchanged entry of this key, and only ours to write."""
    try:
        _check_directory(entry)
        manifest = json.loads(_read_ours(entry / MANIFEST))
        if manifest["format"] != FORMAT or manifest["key"] != key:
            return False
        files: dict[str, str] = manifest["files"]
        for folder in {os.path.dirname(name) for name in files} - {""}:
            _check_directory(entry / folder)
        return all(_digest(_read_ours(entry / name)) == told for name, told in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _check_directory(path: Path) -> None:
    _check_owner(os.lstat(path), stat.S_ISDIR, path)


def _read_ours(path: Path) -> bytes:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(handle, "rb") as file:
        _check_owner(os.fstat(handle), stat.S_ISREG, path)
        return file.read()


def _check_owner(found: os.stat_result, kind: Callable[[int], bool], path: Path) -> None:
    others = stat.S_IMODE(found.st_mode) & _OTHERS_WRITE
    if found.st_uid != os.geteuid() or others or not kind(found.st_mode):
        raise UntrustedDirectory(errno.EPERM, "another user can write to it", str(path))


def _write_manifest(work: Path, key: str) -> int:
    """Say what is there, and close it to others, whatever the umask is."""
    files: dict[str, str] = {}
    size = 0
    for folder, _, names in os.walk(work):
        os.chmod(folder, 0o700)
        for name in names:
            path = Path(folder, name)
            path.chmod(0o600)
            content = path.read_bytes()
            size += len(content)
            files[str(path.relative_to(work))] = _digest(content)
    text = json.dumps({"format": FORMAT, "key": key, "bytes": size, "files": files}, indent=1)
    (work / MANIFEST).write_text(text)
    (work / MANIFEST).chmod(0o600)
    return size


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# ---- Which ones go ------------------------------------------------------------------------------


def _mark(entry: Path) -> None:
    """The entry is used. On a disk that cannot be written it counts as unused."""
    with contextlib.suppress(OSError):
        manifest = entry / MANIFEST
        if time.time() - manifest.stat().st_mtime > MARKED_FOR:
            os.utime(manifest)


def _use_and_size(entry: Path) -> tuple[float, int]:
    """When an entry was used last, and its bytes. What is no entry was never used."""
    try:
        manifest = entry / MANIFEST
        return manifest.stat().st_mtime, int(json.loads(manifest.read_bytes())["bytes"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0, _bytes_in(entry)


def _bytes_in(path: Path) -> int:
    if path.is_symlink() or not path.is_dir():
        return 0
    return sum(
        os.lstat(os.path.join(folder, name)).st_size
        for folder, _, names in os.walk(path)
        for name in names
    )


@contextlib.contextmanager
def _new_directory(root: Path) -> Iterator[Path]:
    """A directory that is locked as long as its process lives and works on it."""
    work = Path(tempfile.mkdtemp(prefix=_NEW, dir=root))
    handle = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a disk without locks
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield work
    finally:
        os.close(handle)
        _remove(work)


def _remove_abandoned(path: Path) -> None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if _try_lock(handle, 0):
            _remove(path)
    except OSError:
        pass  # a disk without locks: it may still be in use
    finally:
        os.close(handle)


def _try_lock(handle: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(0.02)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
