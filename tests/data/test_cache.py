"""Guards the cache of downloaded files: who owns its folder, short writes, and that a thread waits
only for the file that it wants."""

import errno
import os
import resource
import stat
import threading
from pathlib import Path

import pytest

from strata.config import Settings
from strata.data import cache as caches
from strata.data.cache import Cache, shared_cache, write_all
from strata.errors import PermissionDenied

NOBODY = 65_534


class Arriving:
    """A file that comes by a function; what the cache told of it is in `told`."""

    def __init__(self, bring) -> None:
        self.bring, self.told = bring, []

    def arrived(self) -> None:
        self.told.append("arrived")

    def shared(self) -> None:
        self.told.append("shared")

    def failed(self, error) -> None:
        self.told.append(str(error))


def put(content: bytes):
    return expected(lambda descriptor: write_all(descriptor, content, 0))


def expected(bring):
    return lambda: Arriving(bring)


def released() -> None:
    pass


def mode_of(folder: Path) -> int:
    return stat.S_IMODE(folder.stat().st_mode)


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The system's folder of temporary files, as the cache sees it."""
    monkeypatch.setattr(caches.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(caches, "_caches", {})
    return tmp_path / f"strata-cache-{os.getuid()}"


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o755])
def test_a_folder_made_before_is_closed_to_others(temporary, mode):
    temporary.mkdir()
    temporary.chmod(mode)
    shared_cache(Settings())
    assert mode_of(temporary) == 0o700


def test_a_new_folder_is_closed_to_others_whatever_the_umask(temporary):
    before = os.umask(0)
    try:
        shared_cache(Settings())
    finally:
        os.umask(before)
    assert mode_of(temporary) == 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(temporary):
    temporary.mkdir()
    os.chown(temporary, NOBODY, NOBODY)
    with pytest.raises(PermissionDenied, match=r"belongs to user 65534.*STRATA_DATA_CACHE_DIR"):
        shared_cache(Settings())


def test_a_link_in_the_place_of_the_folder_is_refused(temporary, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    temporary.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionDenied, match="is a link"):
        shared_cache(Settings())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_file_that_another_user_put_into_the_folder_is_not_used(tmp_path):
    cache = Cache(tmp_path / "cache", 1_000)
    path = cache.path("a", 3, put(b"abc"), released)
    os.chown(path, NOBODY, NOBODY)
    other = Cache(tmp_path / "cache", 1_000)
    with pytest.raises(PermissionDenied, match="belongs to user 65534"):
        other.path("a", 3, put(b"abc"), released)


def test_short_writes_are_continued(tmp_path, monkeypatch):
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, bytes(data)[:7], at))
    cache = Cache(tmp_path / "cache", 1_000)
    content = os.urandom(100)
    assert cache.path("a", 100, put(content), released).read_bytes() == content


def test_a_write_that_ends_early_is_an_error(tmp_path):
    limit, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, hard))
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            write_all(descriptor, bytes(100), 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        os.close(descriptor)


def test_other_files_are_usable_while_one_is_being_brought(tmp_path):
    cache = Cache(tmp_path / "cache", 1_000)
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


def test_threads_that_want_the_same_file_bring_it_once(tmp_path):
    cache = Cache(tmp_path / "cache", 1_000)
    brought: list[int] = []
    together = threading.Barrier(8)

    def bring(descriptor: int) -> None:
        brought.append(descriptor)
        write_all(descriptor, b"abc", 0)

    def ask() -> None:
        together.wait(60)
        assert cache.path("a", 3, expected(bring), released).read_bytes() == b"abc"

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(brought) == 1


def test_a_file_that_could_not_be_brought_is_tried_again(tmp_path):
    cache = Cache(tmp_path / "cache", 1_000)

    def fail(descriptor: int) -> None:
        raise ConnectionError("gone")

    arrivals = [Arriving(fail)]
    with pytest.raises(ConnectionError):
        cache.path("a", 3, lambda: arrivals[0], released)
    assert arrivals[0].told == ["gone"]
    assert cache.path("a", 3, put(b"abc"), released).read_bytes() == b"abc"


def test_a_file_that_another_process_brings_meanwhile_is_shared(tmp_path):
    first, second = (Cache(tmp_path / "cache", 1_000) for _ in range(2))
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
        may_end.set()  # it is asked for while the other one brings it
        return waiting

    assert second.path("a", 3, expect, released).read_bytes() == b"abc"
    thread.join(60)
    assert waiting.told == ["shared"]
    second.path("a", 3, pytest.fail, released)
