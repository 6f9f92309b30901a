"""A folder as object storage: atomic by rename, durable by fsync, confined to its root.

An object is written beside its place under a name that no listing shows (`.name.token.part`),
synced, then renamed or, for `if_absent`, hard-linked into place, which only one writer can do; the
folder is synced last. A reader holds a shared lock on the file it has open. Recycling writes over
a file in place, so it takes the file exclusively first and leaves it alone when that fails.

Confinement. Names are checked, and every folder on the way is resolved: a symbolic link that leads
out of the root is refused. The root itself may be a link; that is the operator's choice.
"""

import errno
import fcntl
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from strata.errors import AlreadyExists, InvalidArgument, NotFound
from strata.storage.base import Buffer, Listing, ObjectInfo, checked_name
from strata.storage.blocks import BlockWriter
from strata.storage.faults import disk_fault
from strata.storage.local_reader import LocalReader, locked
from strata.storage.parallel import download

HIDDEN_SUFFIX = ".part"
NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK}


class LocalStorage:
    """Objects are files below `root`, which is created when first written to."""

    recycles = True

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(os.path.abspath(root))
        self.url = str(self.root)

    def put(self, name: str, data: Buffer, *, if_absent: bool = False) -> None:
        with self._placing(name, if_absent) as hidden:
            fd = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            with open(fd, "wb", buffering=0) as file:
                view = memoryview(data).cast("B")
                while view.nbytes:
                    view = view[file.write(view) :]
                os.fsync(fd)

    def put_stream(
        self,
        name: str,
        chunks: Iterable[Buffer],
        *,
        size_bytes: int | None = None,
        recycle: str | None = None,
    ) -> int:
        with self._placing(name, False) as hidden:
            writer = self._recycled(recycle, hidden) or BlockWriter(str(hidden), create=True)
            try:
                return writer.write(chunks)
            finally:
                writer.close()

    def get(self, name: str) -> bytes:
        with self._reading(name), open(self._path(name), "rb", buffering=0) as file:
            return file.read()

    def open(self, name: str) -> LocalReader:
        with self._reading(name):
            return LocalReader(self._path(name))

    def download(self, name: str, buffer: memoryview, *, offset: int = 0) -> None:
        with self.open(name) as reader:
            download(reader, buffer, offset)

    def head(self, name: str) -> ObjectInfo:
        with self._reading(name):
            path = self._path(name)
            found = path.stat()
            if not path.is_file():
                raise NotFound(f"{path} is not an object")
            return ObjectInfo(name, found.st_size, found.st_mtime)

    def exists(self, name: str) -> bool:
        try:
            self.head(name)
        except NotFound:
            return False
        return True

    def list(self, folder: str = "") -> Listing:
        objects, folders = [], []
        for entry in self._scan(folder):
            name = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir():
                folders.append(name)
            elif not hidden_name(entry.name):
                with suppress(FileNotFoundError):  # deleted while listing
                    found = entry.stat()
                    objects.append(ObjectInfo(name, found.st_size, found.st_mtime))
        return Listing(sorted(objects, key=lambda o: o.name), sorted(folders))

    def walk(self, folder: str = "") -> Sequence[ObjectInfo]:
        level = self.list(folder)
        below = [found for each in level.folders for found in self.walk(each)]
        return sorted([*level.objects, *below], key=lambda found: found.name)

    def delete(self, name: str) -> None:
        path = self._path(name)
        try:
            path.unlink(missing_ok=True)
            sync_folder(path.parent)
        except FileNotFoundError:
            return
        except OSError as error:
            raise disk_fault(error, f"cannot delete {path}") from error

    def delete_folder(self, folder: str) -> None:
        """Files first, then their folders; links are removed, never followed."""
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
            raise disk_fault(error, f"cannot delete {path}") from error

    def abort_uploads(self, older_than_s: float) -> int:
        """Half-written files lie in the folder they belong to and go with it."""
        return 0

    def in_use(self, name: str) -> bool:
        try:
            with locked(self._path(name), fcntl.LOCK_EX | fcntl.LOCK_NB):
                return False
        except BlockingIOError:
            return True
        except OSError:  # not there, or a filesystem without locks
            return False

    def close(self) -> None:
        """Nothing is held between calls."""

    def _path(self, name: str) -> Path:
        path = self.root / checked_name(name)
        root = self.root.resolve()
        if not path.parent.resolve().is_relative_to(root) or (
            path.is_symlink() and not path.resolve().is_relative_to(root)
        ):
            raise InvalidArgument(
                f"{name!r} leads out of {self.root} by a symbolic link",
                hint="remove the link, or open the folder that it points to",
            )
        return path

    def _scan(self, folder: str) -> Sequence[os.DirEntry[str]]:
        path = self._path(folder) if folder else self.root
        try:
            with os.scandir(path) as entries:
                return [*entries]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise disk_fault(error, f"cannot list {path}") from error

    @contextmanager
    def _placing(self, name: str, if_absent: bool) -> Iterator[Path]:
        """A hidden file to fill; it takes its place when that went well, else it is removed."""
        path = self._path(name)
        hidden = path.with_name(f".{path.name[:100]}.{secrets.token_hex(6)}{HIDDEN_SUFFIX}")
        try:
            make_folders(path.parent)
            try:
                yield hidden
                place_new(hidden, path) if if_absent else os.replace(hidden, path)
            finally:
                with suppress(FileNotFoundError):
                    hidden.unlink()
            sync_folder(path.parent)
        except FileExistsError as error:
            raise AlreadyExists(f"{path} exists") from error
        except OSError as error:
            raise disk_fault(error, f"cannot write {path}") from error

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise NotFound(f"there is no {self.root / name}") from error
        except OSError as error:
            raise disk_fault(error, f"cannot read {self.root / name}") from error

    def _recycled(self, recycle: str | None, hidden: Path) -> BlockWriter | None:
        """The expired file under its new name, exclusively; None when somebody reads it."""
        if recycle is None:
            return None
        path = self._path(recycle)
        try:
            with locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB):
                os.rename(path, hidden)
            writer = BlockWriter(str(hidden), create=False)
            fcntl.flock(writer.fd, fcntl.LOCK_EX)
            return writer
        except FileNotFoundError:
            return None
        except OSError:  # somebody reads it, or this filesystem has no locks: never write over it
            self.delete(recycle)
            return None


def hidden_name(name: str) -> bool:
    return name.startswith(".") and name.endswith(HIDDEN_SUFFIX)


def place_new(hidden: Path, path: Path) -> None:
    """Puts a file in its place unless there is one: `link` fails where `rename` would replace."""
    try:
        os.link(hidden, path)
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        # No hard links here: whoever holds the folder decides.
        with locked(path.parent, fcntl.LOCK_EX):
            if os.path.lexists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
            os.rename(hidden, path)


def make_folders(folder: Path) -> None:
    """Creates what is missing and syncs each parent, so that the way to an object is durable."""
    if folder.is_dir():
        return
    make_folders(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir()
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # network filesystems sync by rename
            raise
    finally:
        os.close(fd)
