"""Pieces of files and lists of files by their SHA-256, in a folder.

A piece is written to a temporary file and renamed, so a name means that the content is whole. It is
compared with its digest whenever it is read: damage is an error and never returned as data.
"""

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from strata.core.tasks.workdirs import Workdir, WorkdirFile, is_digest
from strata.errors import UNDECODABLE, Corrupt, NotFound, Unavailable
from strata.files import write_whole


class PieceStore:
    """Pieces in `pieces` and lists of files in `lists`. Its methods access files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pieces, self._lists = folder / "pieces", folder / "lists"
        self._writing = threading.Lock()
        try:
            for each in (folder, self._pieces, self._lists):
                each.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(folder, error) from error

    def put(self, content: bytes) -> str:
        """Store a piece and return its digest."""
        digest = self.digest(content)
        self._write(self._pieces / digest, content)
        return digest

    @staticmethod
    def digest(content: bytes) -> str:
        """The SHA-256 of a piece, by which it is stored."""
        return hashlib.sha256(content).hexdigest()

    def put_list(self, workdir: Workdir) -> str:
        """Store a list of files and return its digest."""
        content = msgspec.json.encode(workdir.files)
        digest = self.digest(content)
        self._write(self._lists / digest, content)
        return digest

    def get(self, digest: str) -> bytes:
        """A piece; raises if it is missing or damaged."""
        return self._read(self._pieces / digest, "a file of the task's folder")

    def get_list(self, digest: str) -> bytes:
        """A list of files as it was stored; raises if it is missing or damaged."""
        return self._read(self._lists / digest, "the list of the files of the task's folder")

    def workdir(self, digest: str) -> Workdir:
        """A list of files."""
        return listed(self.get_list(digest))

    def missing(self, workdir: Workdir) -> list[str]:
        """The pieces of a folder that are not here or damaged; the others count as used now."""
        return [piece for piece in workdir.pieces if not self._holds(piece)]

    def _holds(self, piece: str) -> bool:
        try:
            self.get(piece)
            os.utime(self._pieces / piece)
        except (NotFound, Corrupt, OSError):
            return False
        return True

    def lists(self) -> list[str]:
        """The digests of all lists of files."""
        return [path.name for path in self._lists.iterdir() if is_digest(path.name)]

    @property
    def size_bytes(self) -> int:
        """The size of everything stored."""
        return sum(size for _, size, _ in self._stored())

    def sweep(self, needed: Collection[str], unused_s: float) -> None:
        """Delete what belongs to no folder that is needed and was not used for some time."""
        kept, before_s = set(needed), time.time() - unused_s
        for digest in needed:
            with suppress(NotFound, Corrupt, Unavailable):
                kept.update(self.workdir(digest).pieces)
        for path, _, used_s in self._stored():
            if path.name not in kept and used_s <= before_s:
                with suppress(OSError):
                    path.unlink()

    def _stored(self) -> Iterator[tuple[Path, int, float]]:
        """Each file with its size and the time of its last use; foreign files are left out."""
        for folder in (self._lists, self._pieces):
            with os.scandir(folder) as entries:
                for entry in entries:
                    if not is_digest(entry.name.removesuffix(".new")):
                        continue
                    with suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        yield Path(entry.path), status.st_size, status.st_mtime

    def _write(self, path: Path, content: bytes) -> None:
        try:
            with self._writing:
                write_whole(path, content)
        except OSError as error:
            raise _unwritable(self.folder, error) from error

    def _read(self, path: Path, what: str) -> bytes:
        if not is_digest(path.name):
            raise NotFound(
                f"{path.name[:100]!r} is not a SHA-256", hint="use 64 hexadecimal digits"
            )
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise NotFound(
                f"{what} is not stored here: {path.name}", hint="submit it again with --workdir"
            ) from None
        except OSError as error:
            raise Unavailable(
                f"{what} in {path} cannot be read: {error.strerror}",
                hint="correct the permissions of the file",
            ) from error
        if self.digest(content) != path.name:
            raise Corrupt(
                f"{what} in {path} is damaged: its content has another SHA-256",
                hint="submit the task again with --workdir, which replaces the file",
            )
        return content


def listed(content: bytes) -> Workdir:
    """A list of files as it was stored."""
    try:
        return Workdir(msgspec.json.decode(content, type=list[WorkdirFile]))
    except UNDECODABLE as error:
        raise Corrupt(
            f"a list of the files of a task's folder cannot be read: {error}",
            hint="run the same release of Strata on all hosts",
        ) from error


def _unwritable(folder: Path, error: OSError) -> Unavailable:
    return Unavailable(
        f"files of tasks cannot be stored in {folder}: {error.strerror}",
        hint="free space there, or make the folder writable",
    )


def delete_folder(folder: Path) -> None:
    """Delete a folder with everything in it, also where files in it are read-only."""
    for path, _, _ in os.walk(folder):
        with suppress(OSError):
            os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
