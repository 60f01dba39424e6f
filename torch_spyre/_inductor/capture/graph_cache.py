"""Makes PyTorch's graph caches as safe as our bundle store (cache/store.py).

PyTorch keeps graphs as pickles (`fxgraph`, `aotautograd`) and host code as Python files, in one
directory of the user. It trusts whatever lies there, and fails when it cannot write. So for
graphs with spyre tensors

- the directory is of mode 0700; one that others can write is not used (`begin`);
- a pickle is read if it is our own file and still what its name, a hash, says (`discard_unsound`);
- a file of host code that is not what the graph says is written again (`discard_if_changed`);
- when the disk is full or cannot be written, this process goes on in a temporary directory, with a
  warning (`surviving`, `without_the_disk`);
- processes that compile the same graph at once wait for the first, and find what it made
  (`one_at_a_time`);
- pickles and host code have the same limit of bytes as bundles (`trim`).
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import hashlib
import os
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch._inductor.codecache import sha256_hash
from torch._inductor.runtime.cache_dir_utils import cache_dir

from torch_spyre.cache.keys import bundle_store
from torch_spyre.cache.store import UntrustedDirectory, size_limit
from torch_spyre.logs import get_logger

T = TypeVar("T")
_log = get_logger("spyre.inductor.codegen")

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
WAIT_SECONDS = 60.0
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EFBIG,
         errno.ENOTDIR}  # fmt: skip
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_ROOM = 1 << 20
"""Bytes that a temporary directory must have room for."""


# ---- The directory ------------------------------------------------------------------------------


def begin() -> None:
    """Before a graph is compiled: the directory is ours alone, or another one is taken."""
    try:
        _check(Path(cache_dir()))
    except OSError as problem:
        _move(problem)


def _check(path: Path) -> None:
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.geteuid():
        who = f"belongs to user {found.st_uid}"
    elif mode & _OTHERS_WRITE and any(path.iterdir()):
        who = f"can be written by other users (mode {mode:04o})"
    else:
        if mode & 0o077:
            path.chmod(0o700)
        return
    raise UntrustedDirectory(errno.EPERM, who, str(path))


_temporary: list[str] = []


def _move(problem: OSError) -> None:
    """Caches go to a temporary directory of this process. RuntimeError when there is none."""
    tried = [f"{os.environ.get(VARIABLE, 'the cache directory')}: {problem.strerror}"]
    if os.environ.get(VARIABLE) not in _temporary:
        for place in (tempfile.gettempdir(), "/dev/shm"):
            try:
                _move_to(_directory_with_room(place))
            except OSError as refused:
                tried.append(f"{place}: {refused.strerror}")
            else:
                warnings.warn(
                    f"compiled programs cannot be kept in {tried[0]}. This process keeps them in a "
                    "temporary directory and the next one compiles again. Make room there and make "
                    f"it yours alone (chmod 700), or set {VARIABLE} to a directory of your own.",
                    stacklevel=2,
                )
                return
    raise RuntimeError(
        "there is no place for compiled programs:\n  " + "\n  ".join(tried) + f"\nMake room, or "
        f"set {VARIABLE} to a directory of your own that can be written."
    ) from problem


def _directory_with_room(place: str) -> str:
    path = tempfile.mkdtemp(prefix="torch-spyre-", dir=place)
    try:
        probe = Path(path, "probe")
        probe.write_bytes(bytes(_ROOM))
        probe.unlink()
    except OSError:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return path


def _move_to(path: str) -> None:
    _temporary.append(path)
    atexit.register(_remove_in, os.getpid(), path)
    os.environ[VARIABLE] = path


def _remove_in(process: int, path: str) -> None:
    if os.getpid() == process:  # a fork does not take it away
        shutil.rmtree(path, ignore_errors=True)


def without_the_disk(problem: OSError, again: Callable[[], T]) -> T:
    """After a failed write: repeat it in a temporary directory."""
    _move(problem)
    try:
        return again()
    except OSError as second:
        _move(second)  # says that there is no place
        raise


def surviving(compile_graph: Callable[[], T]) -> T:
    """Compile a graph; once more in a temporary directory if the disk was at fault."""
    try:
        return compile_graph()
    except Exception as problem:
        found = _disk_problem(problem)
        if found is None:
            raise
        return without_the_disk(found, compile_graph)


def _disk_problem(problem: BaseException | None) -> OSError | None:
    """The OSError that an exception came from, if it is about a file below the directory."""
    folder = os.environ.get(VARIABLE, "")
    for _ in range(20):
        if isinstance(problem, OSError) and problem.errno in _DISK:
            file = problem.filename
            return problem if file is None or str(file).startswith(folder) else None
        if problem is None:
            return None
        problem = problem.__cause__ or problem.__context__
    return None


# ---- Files --------------------------------------------------------------------------------------


def discard_unsound(folder: str) -> None:
    """Delete pickles of other users and corrupt ones: a name is the hash of the content."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        path = os.path.join(folder, name)
        if not name.startswith(".") and not _is_sound(path, name):
            _log.warning("%s was changed, or written by another user: it is not used", path)
            _delete(path)


def _is_sound(path: str, name: str) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as file:
            found = os.fstat(handle)
            ours = found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_WRITE
            sound = ours and stat.S_ISREG(found.st_mode) and sha256_hash(file.read()) == name
    except OSError:
        return False
    if sound:
        with contextlib.suppress(OSError):
            os.utime(path)  # used: it is trimmed last
    return sound


def close(path: str) -> None:
    """Restrict a file to its owner, whatever the umask is."""
    with contextlib.suppress(OSError):
        os.chmod(path, 0o600)


def discard_if_changed(path: str, content: str) -> None:
    """Delete a cached wrapper file if its contents differ from `content`."""
    try:
        if os.path.islink(path) or Path(path).read_bytes() != content.encode():
            _log.warning("%s was changed: it is written again", path)
            _delete(path)
    except FileNotFoundError:
        pass


def _delete(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def trim(root: Path, limit: int | None = None) -> None:
    """Remove pickles and host code that were used longest ago, until the limit holds.

    Any of them may go at any time: PyTorch makes again what it does not find."""
    allowed = size_limit() if limit is None else limit
    patterns = ("fxgraph/*/*/*", "aotautograd/*/*", "??/*.py")
    files = []
    for path in (p for pattern in patterns for p in root.glob(pattern)):
        with contextlib.suppress(OSError):
            found = path.lstat()
            files.append((max(found.st_mtime, found.st_atime), found.st_size, path))
    total = sum(size for _, size, _ in files)
    recently = time.time() - 60  # another process may not have loaded yet what it wrote
    for used, size, path in sorted(files):
        if total <= allowed or used > recently:
            return
        with contextlib.suppress(OSError):
            _delete(str(path))
            total -= size
            path.parent.rmdir()  # if that was the last one


@functools.cache
def trim_once(root: str) -> None:
    """When a process has compiled its first graph."""
    trim(Path(root))


# ---- Several processes --------------------------------------------------------------------------


@contextlib.contextmanager
def one_at_a_time(model: Any, example_inputs: Sequence[Any]) -> Iterator[None]:
    """Of processes that compile the same graph one goes first; the others find its results."""
    with bundle_store().locked(_describe(model, example_inputs), WAIT_SECONDS):
        yield


def _describe(model: Any, example_inputs: Sequence[Any]) -> str:
    """An approximate key of a graph. Locks save work, nothing else depends on it."""
    code = model.code if isinstance(model, torch.fx.GraphModule) else type(model).__name__
    shapes = [str(getattr(value, "shape", "")) for value in example_inputs]
    return hashlib.sha256(repr((code, shapes)).encode()).hexdigest()
