"""Entries on disk are whole, unchanged, of the right key and our own, or they are not used."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from torch_spyre.cache import installation
from torch_spyre.cache import store as disk_store
from torch_spyre.cache.store import MANIFEST, Store, UntrustedDirectory, private_directory

KEY = "made of this"
FILES = {"program.bin": bytes(range(256)) * 20, "inner/plan.json": b'{"steps": 3}\n'}


def fill(work: Path) -> None:
    for name, content in FILES.items():
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).write_bytes(content)


def is_right(entry: Path | None) -> bool:
    return entry is not None and all((entry / n).read_bytes() == c for n, c in FILES.items())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store", limit=1 << 30)


def in_child(work: Callable[[], None]) -> int:
    """Run something in a fork; its process id. Exit code 0 if nothing is raised."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return child


def ends_well(child: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_is_published_is_found_and_belongs_to_the_user_alone(store: Store) -> None:
    before = os.umask(0)
    try:
        entry = store.publish("a", KEY, fill)
    finally:
        os.umask(before)
    assert is_right(entry) and store.find("a", KEY) == entry
    assert stat.S_IMODE(store.root.stat().st_mode) == 0o700
    for path in entry.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


def test_another_key_finds_nothing(store: Store) -> None:
    store.publish("a", "another version", fill)
    assert store.find("a", KEY) is None
    assert is_right(store.publish("a", KEY, fill)) and is_right(store.find("a", KEY))


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _link(path: Path) -> None:
    kept = path.parent.parent.parent / "elsewhere"
    path.rename(kept)
    path.symlink_to(kept)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


FAULTS: dict[str, Callable[[Path], None]] = {
    "truncated": lambda p: p.write_bytes(p.read_bytes()[:-1]),
    "empty": lambda p: p.write_bytes(b""),
    "garbage": lambda p: p.write_bytes(b"\xff\x00garbage" * 30),
    "a bit": _flip,
    "gone": lambda p: p.unlink(),
    "a link": _link,
    "a pipe": _pipe,
    "a directory": lambda p: (p.unlink(), p.mkdir()),
    "open to all": lambda p: p.chmod(0o666),
    "open to the group": lambda p: p.chmod(0o620),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", [MANIFEST, *FILES])
def test_a_file_that_is_not_as_it_was_written_is_not_used(
    store: Store, name: str, fault: str
) -> None:
    entry = store.publish("a", KEY, fill)
    FAULTS[fault](entry / name)
    assert store.find("a", KEY) is None
    assert is_right(store.publish("a", KEY, fill)) and is_right(store.find("a", KEY))


def test_a_place_that_is_no_directory_or_open_is_replaced(store: Store) -> None:
    entry = store.publish("a", KEY, fill)
    for spoil in (
        lambda: entry.chmod(0o777),
        lambda: (entry / "inner").chmod(0o770),
        lambda: (entry.rename(store.root / "b"), entry.symlink_to("b")),
        lambda: (store.drop("a"), entry.write_text("a file")),
        lambda: (store.drop("a"), entry.mkdir()),
    ):
        spoil()
        assert store.find("a", KEY) is None
        assert is_right(store.publish("a", KEY, fill)) and is_right(store.find("a", KEY))


def test_what_belongs_to_another_user_is_not_used(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = store.publish("a", KEY, fill)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert not disk_store.is_sound(entry, KEY)
    with pytest.raises(UntrustedDirectory, match="Delete it, or set TORCH"):
        private_directory(store.root)


def test_a_store_that_was_open_is_closed(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store").chmod(0o777)
    Store(tmp_path / "store").publish("a", KEY, fill)
    assert stat.S_IMODE((tmp_path / "store").stat().st_mode) == 0o700


def test_many_processes_publish_the_same_entries_at_once(store: Store) -> None:
    def publish() -> None:
        for i in range(40):
            name = str(i % 4)
            with contextlib.suppress(FileNotFoundError):  # another one drops it in between
                assert is_right(store.find(name, KEY) or store.publish(name, KEY, fill))
            if i % 7 == 0:
                store.drop(name)

    children = [in_child(publish) for _ in range(6)]
    assert [ends_well(child) for child in children] == [True] * 6
    assert {p.name for p in store.root.iterdir()} <= {"0", "1", "2", "3"}
    assert all(is_right(p) for p in store.root.iterdir())


def test_a_killed_process_leaves_nothing_that_counts(store: Store) -> None:
    def hang(work: Path) -> None:
        fill(work)
        time.sleep(60)

    store.publish("other", KEY, fill)
    child = in_child(lambda: store.publish("a", KEY, hang) and None)
    while len(list(store.root.iterdir())) < 2 or not any(store.root.glob(".new-*/inner/*")):
        time.sleep(0.01)
    store.trim()
    assert any(store.root.glob(".new-*")), "a process is writing it"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert store.find("a", KEY) is None
    store.trim()
    assert [p.name for p in store.root.iterdir()] == ["other"]


def test_a_full_disk_is_an_error_and_leaves_what_was_there(store: Store) -> None:
    store.publish("a", KEY, fill)

    def full() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        with pytest.raises(OSError):
            store.publish("b", KEY, fill)

    assert ends_well(in_child(full))
    assert [p.name for p in store.root.iterdir()] == ["a"] and is_right(store.find("a", KEY))


def test_the_entries_longest_unused_go_first(store: Store) -> None:
    now = time.time()
    for age, name in enumerate("abcd"):
        entry = store.publish(name, KEY, fill)
        os.utime(entry / MANIFEST, (now - 10000 + age, now - 10000 + age))
    assert store.find("a", KEY)  # used now
    size = sum(map(len, FILES.values()))
    store.limit = 2 * size
    store.trim()
    assert {p.name for p in store.root.iterdir()} == {"a", "d"}
    store.limit = size // 2
    store._written = None
    store.publish("e", KEY, fill)
    assert {p.name for p in store.root.iterdir()} == {"e"}, "what was just made stays"


def test_the_limit_is_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, size in (("", 4 << 30), ("12", 12), ("3K", 3072), ("5g", 5 << 30)):
        monkeypatch.setenv("SPYRE_CACHE_LIMIT", text)
        assert disk_store.size_limit() == size
    monkeypatch.setenv("SPYRE_CACHE_LIMIT", "much")
    with pytest.raises(ValueError, match="invalid SPYRE_CACHE_LIMIT value 'MUCH'"):
        disk_store.size_limit()


def test_a_lock_is_waited_for_and_ends_with_its_process(store: Store) -> None:
    def hold() -> None:
        with store.locked("x", 0):
            (store.root / "held").touch()
            time.sleep(60)

    child = in_child(hold)
    while not (store.root / "held").exists():
        time.sleep(0.01)
    with store.locked("x", 0.05) as held:
        assert not held
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with store.locked("x", 5) as held:
        assert held


def test_the_extension_is_known_by_what_the_linker_says(tmp_path: Path) -> None:
    from torch_spyre import _C

    found = installation.build_id(Path(_C.__file__))
    assert found is not None and found == installation.extension_id() and len(found) >= 16
    assert bytes.fromhex(found) in Path(_C.__file__).read_bytes()
    other = tmp_path / "no.so"
    for content in (b"", b"not an ELF file" * 10, Path(_C.__file__).read_bytes()[:64]):
        other.write_bytes(content)
        assert installation.build_id(other) is None
