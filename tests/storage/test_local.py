"""Guards what is special to folders: confinement, locks, the order of syncs, full and odd disks."""

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from strata.config import Settings
from strata.errors import InvalidArgument, NotFound, PermissionDenied, Unavailable
from strata.storage import direct_io
from strata.storage.folder import HIDDEN_SUFFIX, HOST, LocalStorage
from strata.storage.locations import configured_storage, open_storage

MIB = 1024 * 1024


@pytest.fixture
def storage(tmp_path):
    return LocalStorage(tmp_path / "root")


def files(storage):
    return sorted(str(each.relative_to(storage.root)) for each in storage.root.rglob("*"))


@pytest.mark.parametrize("method", ["get", "open"])
def test_missing_root_is_unavailable_and_a_missing_object_is_not_found(storage, method):
    storage.put("a", b"x")
    away = storage.root.with_name("away")
    storage.root.rename(away)
    with pytest.raises(Unavailable, match="mount its disk"):
        getattr(storage, method)("a")
    assert not storage.exists("a")
    away.rename(storage.root)
    with pytest.raises(NotFound):
        getattr(storage, method)("b")


@pytest.mark.parametrize("link", ["folder", "file"])
def test_a_link_out_of_the_root_is_refused(storage, tmp_path, link):
    storage.put("inside", b"")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    target, name = (outside, "link/secret") if link == "folder" else (outside / "secret", "link")
    (storage.root / "link").symlink_to(target)
    for act in (
        lambda: storage.get(name),
        lambda: storage.put(name, b"changed"),
        lambda: storage.put_stream(name, [b"changed"]),
        lambda: storage.open(name),
        lambda: storage.delete(name),
    ):
        with pytest.raises(InvalidArgument, match="symbolic link"):
            act()
    assert (outside / "secret").read_bytes() == b"secret"


def test_deleting_a_folder_does_not_follow_links(storage, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"")
    storage.put("x/a", b"")
    (storage.root / "x" / "link").symlink_to(outside)
    storage.delete_folder("x")
    assert files(storage) == []
    assert (outside / "kept").exists()


@pytest.fixture
def mount(tmp_path):
    """A mount point: a link to a folder on another filesystem. `mount(False)` unmounts it."""
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second filesystem here")
    disk = Path(tempfile.mkdtemp(dir=other))
    point = tmp_path / "mnt"

    def mounted(there):
        point.unlink() if point.is_symlink() else None
        shutil.rmtree(point, ignore_errors=True)
        point.symlink_to(disk) if there else point.mkdir()
        return point

    yield mounted
    shutil.rmtree(disk)


@pytest.mark.parametrize("used", [True, False])
def test_nothing_is_written_below_a_mount_point_whose_disk_is_gone(mount, used):
    storage = LocalStorage(mount(True) / "checkpoints" / "task")
    if used:
        storage.put("first", b"1")
    point = mount(False)
    for write in (storage.put, storage.put_stream):
        with pytest.raises(Unavailable, match="on a different disk than before"):
            write("second", [b"2"] if write == storage.put_stream else b"2")
    assert list(point.iterdir()) == []
    mount(True)
    storage.put("second", b"2")
    assert storage.get("second") == b"2"


def test_same_path_on_the_disk_below_a_mount_point_is_not_written_to(mount):
    storage = LocalStorage(mount(True) / "checkpoints")
    storage.put("first", b"1")
    bare = mount(False) / "checkpoints"
    bare.mkdir()
    with pytest.raises(Unavailable, match="on a different disk"):
        storage.put("second", b"2")
    assert list(bare.iterdir()) == []


def test_folder_that_was_deleted_on_the_same_disk_is_made_again(tmp_path):
    storage = LocalStorage(tmp_path / "checkpoints")
    storage.put("first", b"1")
    shutil.rmtree(tmp_path / "checkpoints")
    storage.put("second", b"2")
    assert storage.get("second") == b"2"


def test_the_root_may_be_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    LocalStorage(tmp_path / "link").put("a/b", b"x")
    assert (tmp_path / "real" / "a" / "b").read_bytes() == b"x"


@pytest.mark.parametrize(
    ("number", "kind", "hint"),
    [
        (errno.ENOSPC, Unavailable, "disk is full"),
        (errno.EDQUOT, Unavailable, "quota"),
        (errno.EROFS, PermissionDenied, "read-only"),
        (errno.EACCES, PermissionDenied, "permission"),
        (errno.EIO, Unavailable, "kernel's log"),
    ],
)
def test_failed_write_leaves_no_file(storage, monkeypatch, number, kind, hint):
    storage.put("kept", b"kept")

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(kind, match=hint):
        storage.put_stream("a", [bytes(40 * MIB)])
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(kind, match=hint):
        storage.put("a", b"x")
    assert files(storage) == ["kept"]


def test_a_limit_on_file_sizes_is_a_clear_error(tmp_path):
    script = f"""
import resource, signal
from strata.errors import Unavailable
from strata.storage.folder import LocalStorage
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, 8 << 20))
storage = LocalStorage({str(tmp_path)!r})
try:
    storage.put_stream("a", [bytes(32 << 20)])
except Unavailable as error:
    assert "ulimit -f" in str(error), error
    assert not storage.walk(), storage.walk()
    print("clear")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("clear\n", "")


def test_a_file_in_the_way_of_the_root_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidArgument, match="a file is where a folder should be"):
        LocalStorage(tmp_path / "file" / "root").put("a", b"")


def test_buffered_write_is_used_without_o_direct(storage, monkeypatch):
    real = os.pwrite
    refused = []

    def pwrite(fd, data, offset):
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            refused.append(offset)
            raise OSError(errno.EINVAL, "no direct writing here")
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    content = os.urandom(MIB) * 50 + b"tail"
    storage.put_stream("a", [content[:4096], content[4096:]])
    assert refused
    assert storage.get("a") == content


def test_a_filesystem_that_refuses_to_open_directly_is_written_too(storage, monkeypatch):
    real = os.open

    def opened(path, flags, *mode, **options):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no direct writing here")
        return real(path, flags, *mode, **options)

    monkeypatch.setattr(os, "open", opened)
    storage.put_stream("a", [b"x" * (17 * MIB)])
    assert storage.get("a") == b"x" * (17 * MIB)


def test_short_writes_are_completed(storage, monkeypatch):
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, data[: max(4096, 0)], at))
    content = os.urandom(100_000)
    storage.put_stream("a", [content])
    assert storage.get("a") == content


def test_chunks_become_aligned_blocks():
    sizes = [4096, 20 * MIB, 5, 4096, 3 * MIB, 1]
    chunks = [os.urandom(size) for size in sizes]
    made = list(direct_io.rechunked(chunks))
    assert b"".join(made) == b"".join(chunks)
    assert all(block.nbytes % direct_io.ALIGNMENT == 0 for block in made[:-1])
    assert max(block.nbytes for block in made) <= direct_io.BLOCK_BYTES


def test_file_being_read_is_never_overwritten(storage):
    old = os.urandom(3 * MIB)
    storage.put_stream("old", [old])
    with storage.open("old") as reader:
        storage.put_stream("new", [b"n" * 3 * MIB], recycle="old")
        got = bytearray(3 * MIB)
        reader.read_into(0, [memoryview(got)])
    assert got == old
    assert [each.name for each in storage.walk()] == ["new"]


def test_recycling_reuses_the_file(storage):
    storage.put_stream("old", [bytes(3 * MIB)])
    inode = (storage.root / "old").stat().st_ino
    storage.put_stream("new", [b"n" * MIB], recycle="old")
    assert (storage.root / "new").stat().st_ino == inode
    assert (storage.root / "new").stat().st_size == MIB


def test_file_shared_by_another_object_is_never_overwritten(storage):
    storage.put_stream("old", [b"o" * MIB])
    assert storage.link("old", "kept")
    storage.put_stream("new", [b"n" * MIB], recycle="old")
    assert storage.get("kept") == b"o" * MIB
    assert [each.name for each in storage.walk()] == ["kept", "new"]
    assert len(os.listdir(storage.root)) == 2, "nothing hidden stays"


def test_a_file_recycled_while_waiting_to_read_it_is_gone(storage, monkeypatch):
    from strata.storage import folder_reader

    storage.put_stream("old", [bytes(MIB)])

    def recycled_meanwhile(fd):
        storage.put_stream("new", [b"n" * MIB], recycle="old")

    monkeypatch.setattr(folder_reader, "lock_shared", recycled_meanwhile)
    with pytest.raises(NotFound):
        storage.open("old")


def test_create_if_absent_without_hard_links(storage, monkeypatch):
    def no_links(*_):
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", no_links)
    storage.put("a", b"first", if_absent=True)
    with pytest.raises(Exception, match="exists"):
        storage.put("a", b"second", if_absent=True)
    assert storage.get("a") == b"first"
    assert files(storage) == ["a"]


def test_half_written_files_are_not_listed_and_go_with_their_folder(storage):
    storage.put("x/a", b"")
    (storage.root / "x" / ".b.123456.part").write_bytes(b"half")
    assert [each.name for each in storage.walk()] == ["x/a"]
    storage.delete_folder("x")
    assert files(storage) == []


def test_a_killed_writer_leaves_no_object(tmp_path):
    script = f"""
import os, sys
from strata.storage.folder import LocalStorage
def chunks():
    yield bytes(32 << 20)
    os.kill(os.getpid(), 9)
LocalStorage({str(tmp_path)!r}).put_stream("a", chunks())
"""
    subprocess.run([sys.executable, "-c", script])
    assert LocalStorage(tmp_path).walk() == []


def test_paths_and_file_urls_are_local(tmp_path):
    for where in (tmp_path, str(tmp_path), tmp_path.as_uri()):
        assert open_storage(where).url == str(tmp_path)


def test_the_settings_choose_the_storage():
    assert configured_storage(Settings()).url == str(Path("strata-data/checkpoints").absolute())
    assert configured_storage(Settings(checkpoint_dir="/x")).url == "/x"
    with pytest.raises(InvalidArgument, match="CHECKPOINT_BUCKET"):
        configured_storage(Settings(storage_backend="s3"))
    s3 = Settings(storage_backend="s3", checkpoint_bucket="b/p", aws_region="eu-west-1")
    assert configured_storage(s3).url == "s3://b/p"


def test_files_of_a_dead_writer_are_deleted_under_their_lock(tmp_path, monkeypatch):
    """Otherwise a writer that has just created its file would lock it, and lose it at once."""
    left = tmp_path / f".x.{HOST}-0{HIDDEN_SUFFIX}"
    left.touch()
    locked = []

    def unlink(path):
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                locked.append(path)
        os.unlink(path)

    monkeypatch.setattr(Path, "unlink", unlink)
    assert LocalStorage(tmp_path).abort_uploads(older_than_s=3600.0) == 1
    assert locked == [left]
    assert not left.exists()
