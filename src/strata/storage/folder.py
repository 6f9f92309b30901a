"""A folder as object storage: atomic by rename, durable by fsync, confined to its root.

An object is written beside its place, in a hidden file (`.name.token.part`) that its writer keeps
locked. It is synced, then renamed or, for `if_absent`, hard-linked into place, which only one
writer can do; the folder is synced last. A reader holds a shared lock on the file it has open.
Recycling overwrites a file in place, so it first takes an exclusive lock, and leaves the file alone
if that fails.

Unmounted disks. When a disk is unmounted, the folder below its mount point is missing, or is a
different one, and writing there would fill the wrong disk. So a storage remembers the filesystem of
its root, and refuses to write to another one until the disk is back.

Confinement. Names are checked, and every folder on the path is resolved: a symbolic link that leads
out of the root raises an error. The root itself may be a link.
"""

import errno
import fcntl
import hashlib
import logging
import os
import secrets
import socket
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from strata.errors import AlreadyExists, InvalidArgument, NotFound, Unavailable
from strata.files import sync_folder
from strata.storage.backend import Buffer, ObjectInfo, ObjectListing, checked_name
from strata.storage.direct_io import BlockWriter
from strata.storage.folder_reader import NO_LOCKS, LocalReader, locked
from strata.storage.io_threads import download
from strata.storage.storage_errors import disk_error

log = logging.getLogger(__name__)

HIDDEN_SUFFIX = ".part"
HOST = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK}


class LocalStorage:
    """Objects are files below `root`, which is created when first written to."""

    recycles = True

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(os.path.abspath(root))
        self.url = str(self.root)
        self._identity = folder_identity(self.root)

    def put(self, name: str, data: Buffer, *, if_absent: bool = False) -> None:
        with self._placing(name, if_absent) as hidden:
            view = memoryview(data).cast("B")
            with open(hidden, "wb", buffering=0) as file:
                while view.nbytes:
                    view = view[file.write(view) :]
                os.fsync(file.fileno())

    def put_stream(
        self,
        name: str,
        chunks: Iterable[Buffer],
        *,
        size_bytes: int | None = None,
        recycle: str | None = None,
    ) -> int:
        with self._placing(name, False) as hidden, self._recycled(recycle, hidden):
            writer = BlockWriter(str(hidden))
            try:
                return writer.write(chunks)
            finally:
                writer.close()

    def link(self, name: str, other: str) -> bool:
        """Give an object another name by a hard link, if the filesystem has those."""
        path = self._path(other)
        try:
            self._require_same_disk()
            make_folders(path.parent)
            os.link(self._path(name), path)
            sync_folder(path.parent)
        except OSError:
            return False
        return True

    def get(self, name: str) -> bytes:
        begun_s = time.monotonic()
        with self._reading(name), open(self._path(name), "rb", buffering=0) as file:
            found = file.read()
        took_s = time.monotonic() - begun_s
        log.debug("read %s: %d bytes in %.3f s", file.name, len(found), took_s)
        return found

    def open(self, name: str) -> LocalReader:
        with self._reading(name):
            reader = LocalReader(self._path(name))
        log.debug("opened %s: %d bytes", reader.path, reader.size_bytes)
        return reader

    def download(self, name: str, buffer: memoryview, *, offset: int = 0) -> None:
        with self.open(name) as reader:
            download(reader, buffer, offset)

    def head(self, name: str) -> ObjectInfo:
        with self._reading(name, wanted=False):
            path = self._path(name)
            found = path.stat()
            if not path.is_file():
                raise NotFound(f"{path} is not an object")
            return ObjectInfo(name=name, size_bytes=found.st_size, modified_s=found.st_mtime)

    def exists(self, name: str) -> bool:
        try:
            self.head(name)
        except NotFound:
            return False
        return True

    def list(self, folder: str = "") -> ObjectListing:
        objects, folders = [], []
        for entry in self._scan(folder):
            name = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir():
                folders.append(name)
            elif not hidden_name(entry.name):
                with suppress(FileNotFoundError):  # deleted while listing
                    found = entry.stat()
                    objects.append(
                        ObjectInfo(name=name, size_bytes=found.st_size, modified_s=found.st_mtime)
                    )
        return ObjectListing(sorted(objects, key=lambda o: o.name), sorted(folders))

    def walk(self, folder: str = "") -> Sequence[ObjectInfo]:
        level = self.list(folder)
        below = [found for each in level.folders for found in self.walk(each)]
        return sorted([*level.objects, *below], key=lambda found: found.name)

    def delete(self, name: str) -> None:
        path = self._path(name)
        try:
            path.unlink(missing_ok=True)
            sync_folder(path.parent)
            log.debug("deleted %s", path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise disk_error(error, f"cannot delete {path}") from error

    def delete_folder(self, folder: str) -> None:
        """Delete the files, then their folders; links are deleted, never followed."""
        path = self._path(folder)
        try:
            if path.is_symlink():
                path.unlink()
            for where, folders, files in os.walk(path, topdown=False):
                for each in files:
                    Path(where, each).unlink(missing_ok=True)
                for each in folders:
                    below = Path(where, each)
                    below.unlink() if below.is_symlink() else below.rmdir()
            with suppress(FileNotFoundError):
                path.rmdir()
            sync_folder(path.parent)
        except FileNotFoundError:
            return
        except OSError as error:
            raise disk_error(error, f"cannot delete {path}") from error

    def abort_uploads(self, older_than_s: float) -> int:
        """Delete the hidden files of dead writers in the root; those in folders are deleted with
        the folder. The lock shows which writers are dead, except on other machines.
        """
        gone = 0
        for entry in self._scan(""):
            if not hidden_name(entry.name) or not entry.is_file(follow_symlinks=False):
                continue
            path = Path(entry.path)
            with suppress(FileNotFoundError):
                if time.time() - entry.stat().st_mtime > older_than_s:
                    path.unlink()
                    gone += 1
                elif f".{HOST}-" in entry.name:
                    gone += removed_unless_held(path)
        return gone

    def in_use(self, name: str) -> bool:
        try:
            with locked(self._path(name), fcntl.LOCK_EX | fcntl.LOCK_NB):
                return False
        except OSError as error:
            return error.errno not in (*NO_LOCKS, errno.ENOENT)

    def close(self) -> None:
        """Close nothing: no file is kept open between calls."""

    def _path(self, name: str) -> Path:
        path = self.root / checked_name(name)
        # Resolving a path checks every folder from `/` on, which is necessary only if there is a
        # link.
        if self._meets_link(name) and not path.resolve().is_relative_to(self.root.resolve()):
            raise InvalidArgument(
                f"{name!r} leaves {self.root} by a symbolic link",
                hint="remove the link, or open the folder that it points to",
            )
        return path

    def _meets_link(self, name: str) -> bool:
        """Whether anything on the path from the root is a symbolic link."""
        at = self.url
        for part in name.split("/"):
            at = f"{at}/{part}"
            try:
                if stat.S_ISLNK(os.lstat(at).st_mode):
                    return True
            except OSError:
                return False  # it does not exist, so nothing is below it
        return False

    def _require_same_disk(self) -> None:
        """Raise if the root is on another filesystem than when this storage was opened.

        A disk that is mounted again may have another device number; its folder has the same inode.
        """
        device, inode = self._identity
        device_now, inode_now = folder_identity(self.root)
        if device_now != device and (inode_now != inode or not inode):
            raise Unavailable(
                f"the folder {self.root} is on a different disk than before",
                hint="mount its disk again; nothing is written while the mount is missing",
            )
        if inode_now:
            self._identity = device_now, inode_now

    def _scan(self, folder: str) -> Sequence[os.DirEntry[str]]:
        path = self._path(folder) if folder else self.root
        try:
            with os.scandir(path) as entries:
                return [*entries]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise disk_error(error, f"cannot list {path}") from error

    @contextmanager
    def _placing(self, name: str, if_absent: bool) -> Iterator[Path]:
        """A hidden file to fill; it is moved into place if the block succeeds,
        otherwise deleted.
        """
        path, begun_s = self._path(name), time.monotonic()
        try:
            self._require_same_disk()
            make_folders(path.parent)
            with hidden_file(path) as hidden:
                yield hidden
                size_bytes = hidden.stat().st_size if log.isEnabledFor(logging.DEBUG) else 0
                place_new(hidden, path) if if_absent else os.replace(hidden, path)
            sync_folder(path.parent)
            log.debug("wrote %s: %d bytes in %.3f s", path, size_bytes, time.monotonic() - begun_s)
        except FileExistsError as error:
            raise AlreadyExists(f"{path} exists") from error
        except OSError as error:
            log.debug("cannot write %s: %s", path, error)
            raise disk_error(error, f"cannot write {path}") from error

    @contextmanager
    def _reading(self, name: str, *, wanted: bool = True) -> Iterator[None]:
        """Map errors. If the whole folder is missing, which may be an unmounted disk, do not report
        a single object as missing.
        """
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            if wanted and not self.root.is_dir():
                hint = "mount its disk on this host; give all processes the same CHECKPOINT_DIR"
                raise Unavailable(f"the folder {self.root} does not exist", hint=hint) from error
            raise NotFound(f"{self.root / name} does not exist") from error
        except OSError as error:
            raise disk_error(error, f"cannot read {self.root / name}") from error

    @contextmanager
    def _recycled(self, recycle: str | None, hidden: Path) -> Iterator[None]:
        """Put the expired file in place of the hidden one, locked. It is renamed first, since only
        one writer can do that; a file that is being read, has another name or cannot be locked is
        deleted instead of overwritten.
        """
        with ExitStack() as held:
            if recycle is not None:
                taken = hidden.with_suffix(f".old{HIDDEN_SUFFIX}")
                try:
                    os.rename(self._path(recycle), taken)
                    held.enter_context(locked(taken, fcntl.LOCK_EX | fcntl.LOCK_NB))
                    if taken.stat().st_nlink == 1:
                        os.rename(taken, hidden)
                except FileNotFoundError:
                    pass
                except OSError:
                    self.delete(recycle)
                finally:
                    taken.unlink(missing_ok=True)
            yield


@contextmanager
def hidden_file(path: Path) -> Iterator[Path]:
    """An empty file beside `path`, locked while its writer lives, deleted unless renamed."""
    while True:
        token = f"{HOST}-{secrets.token_hex(6)}"
        hidden = path.with_name(f".{path.name[:100]}.{token}{HIDDEN_SUFFIX}")
        fd = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            with suppress(OSError):  # no locks in this filesystem
                fcntl.flock(fd, fcntl.LOCK_EX)
            if not hidden.exists():  # deleted by a sweep between the last two lines
                continue
            yield hidden
            return
        finally:
            os.close(fd)
            with suppress(FileNotFoundError):
                hidden.unlink()


def removed_unless_held(path: Path) -> bool:
    """Delete a file while holding its lock: a writer that has just created it
    then finds it gone.
    """
    try:
        with locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB):
            path.unlink()
            return True
    except OSError:
        return False


def hidden_name(name: str) -> bool:
    return name.startswith(".") and name.endswith(HIDDEN_SUFFIX)


def place_new(hidden: Path, path: Path) -> None:
    """Put a file in its place unless one exists: `link` fails where `rename` would replace."""
    try:
        os.link(hidden, path)
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        # No hard links here: the process that holds the folder's lock decides.
        with locked(path.parent, fcntl.LOCK_EX):
            if os.path.lexists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
            os.rename(hidden, path)


def folder_identity(folder: Path) -> tuple[int, int]:
    """Device and inode of a folder; if it does not exist, the device of its
    nearest parent, and 0.
    """
    try:
        found = folder.stat()
    except OSError:
        if folder == folder.parent:
            raise
        return folder_identity(folder.parent)[0], 0
    return found.st_dev, found.st_ino


def make_folders(folder: Path) -> None:
    """Create missing folders and sync each parent, so that the path to an object is durable."""
    if folder.is_dir():
        return
    make_folders(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir()
    sync_folder(folder.parent)
