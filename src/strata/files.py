"""Atomic writes of small files: secrets, ids, records of running processes.

`write_whole` writes a temporary file, syncs it, renames it and syncs the folder. After a power
failure the file has its old or its new content, and is never empty or incomplete.
"""

import errno
import os
from contextlib import suppress
from pathlib import Path

import psutil


def write_whole(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace the content of a file atomically; it is on disk when the call returns."""
    draft = path.with_name(f"{path.name}.new")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def filesystem_of(path: Path) -> str:
    """The kind of the file system that holds a path, such as ext4 or nfs4; empty if not known."""
    there = str(path.absolute())
    mounts = [
        (mount.mountpoint, mount.fstype)
        for mount in psutil.disk_partitions(all=True)
        if f"{there}/".startswith(f"{mount.mountpoint.rstrip('/')}/")
    ]
    return max(mounts, key=lambda mount: len(mount[0]), default=("", ""))[1]


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # network filesystems sync by rename
            raise
    finally:
        os.close(descriptor)
