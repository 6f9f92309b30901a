"""Guards the cache of downloaded files: the owner of its folder, short writes, and that a thread
waits only for the file that it needs.
"""

import errno
import os
import resource
import stat
import threading
from pathlib import Path

import pytest

from strata.config import Settings
from strata.data.cache import host_cache as caches
from strata.data.cache.host_cache import FileCache, shared_cache
from strata.errors import PermissionDenied
from strata.storage.direct_io import write_all

NOBODY = 65_534


class Arriving:
    """A file written by a function; `told` lists the calls of the cache."""

    def __init__(self, write) -> None:
        self.write, self.told = write, []

    def arrived(self) -> None:
        self.told.append("arrived")

    def shared(self) -> None:
        self.told.append("shared")

    def failed(self, error) -> None:
        self.told.append(str(error))


def put(content: bytes):
    return expected(lambda descriptor: write_all(descriptor, content, 0))


def expected(write):
    return lambda: Arriving(write)


def released() -> None:
    pass


def mode_of(folder: Path) -> int:
    return stat.S_IMODE(folder.stat().st_mode)


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The system's temporary folder, as the cache sees it."""
    monkeypatch.setattr(caches.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(caches, "_caches", {})
    return tmp_path / f"strata-cache-{os.getuid()}"


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o755])
def test_existing_cache_folder_is_closed_to_other_users(temporary, mode):
    temporary.mkdir()
    temporary.chmod(mode)
    shared_cache(Settings())
    assert mode_of(temporary) == 0o700


def test_new_cache_folder_is_closed_to_other_users_for_any_umask(temporary):
    before = os.umask(0)
    try:
        shared_cache(Settings())
    finally:
        os.umask(before)
    assert mode_of(temporary) == 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_cache_folder_of_another_user_is_refused(temporary):
    temporary.mkdir()
    os.chown(temporary, NOBODY, NOBODY)
    with pytest.raises(PermissionDenied, match=r"belongs to user 65534.*STRATA_DATA_CACHE_DIR"):
        shared_cache(Settings())


def test_symbolic_link_as_cache_folder_is_refused(temporary, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    temporary.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionDenied, match="is a symbolic link"):
        shared_cache(Settings())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_cache_file_of_another_user_is_not_used(tmp_path):
    cache = FileCache(tmp_path / "cache", 1_000)
    path = cache.path("a", 3, put(b"abc"), released)
    os.chown(path, NOBODY, NOBODY)
    other = FileCache(tmp_path / "cache", 1_000)
    with pytest.raises(PermissionDenied, match="belongs to user 65534"):
        other.path("a", 3, put(b"abc"), released)


def test_short_writes_to_the_cache_are_continued(tmp_path, monkeypatch):
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, bytes(data)[:7], at))
    cache = FileCache(tmp_path / "cache", 1_000)
    content = os.urandom(100)
    assert cache.path("a", 100, put(content), released).read_bytes() == content


def test_zero_byte_write_is_an_error(tmp_path):
    limit, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, hard))
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            write_all(descriptor, bytes(100), 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        os.close(descriptor)


def test_other_files_are_usable_during_a_download(tmp_path):
    cache = FileCache(tmp_path / "cache", 1_000)
    cache.path("here", 3, put(b"abc"), released)
    begun, may_end = threading.Event(), threading.Event()

    def slow(descriptor: int) -> None:
        begun.set()
        assert may_end.wait(60)
        write_all(descriptor, b"def", 0)

    found: list[bytes] = []
    thread = threading.Thread(
        target=lambda: found.append(cache.path("slow", 3, expected(slow), released).read_bytes())
    )
    thread.start()
    assert begun.wait(60)
    others = threading.Thread(
        target=lambda: found.extend(
            cache.path(key, 3, put(b"ghi"), released).read_bytes() for key in ("here", "new")
        )
    )
    others.start()
    others.join(30)
    assert found == [b"abc", b"ghi"]
    may_end.set()
    thread.join(30)
    assert found == [b"abc", b"ghi", b"def"]


def test_threads_that_need_the_same_file_fetch_it_once(tmp_path):
    cache = FileCache(tmp_path / "cache", 1_000)
    brought: list[int] = []
    together = threading.Barrier(8)

    def write(descriptor: int) -> None:
        brought.append(descriptor)
        write_all(descriptor, b"abc", 0)

    def ask() -> None:
        together.wait(60)
        assert cache.path("a", 3, expected(write), released).read_bytes() == b"abc"

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(brought) == 1


def test_failed_download_is_retried(tmp_path):
    cache = FileCache(tmp_path / "cache", 1_000)

    def fail(descriptor: int) -> None:
        raise ConnectionError("gone")

    arrivals = [Arriving(fail)]
    with pytest.raises(ConnectionError):
        cache.path("a", 3, lambda: arrivals[0], released)
    assert arrivals[0].told == ["gone"]
    assert cache.path("a", 3, put(b"abc"), released).read_bytes() == b"abc"


def test_file_fetched_by_another_process_is_shared(tmp_path):
    first, second = (FileCache(tmp_path / "cache", 1_000) for _ in range(2))
    begun, may_end = threading.Event(), threading.Event()

    def slow(descriptor: int) -> None:
        begun.set()
        assert may_end.wait(60)
        write_all(descriptor, b"abc", 0)

    thread = threading.Thread(target=lambda: first.path("a", 3, expected(slow), released))
    thread.start()
    assert begun.wait(60)
    waiting = Arriving(pytest.fail)

    def expect() -> Arriving:
        may_end.set()  # requested while the other thread fetches it
        return waiting

    assert second.path("a", 3, expect, released).read_bytes() == b"abc"
    thread.join(60)
    assert waiting.told == ["shared"]
    second.path("a", 3, pytest.fail, released)
