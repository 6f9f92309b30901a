"""Unpacks the folder of a task from stored pieces.

A folder is made under a temporary name and renamed when it is whole. A folder that exists already
is compared with the list of files: what the task changed is restored, what it added stays.
"""

import hashlib
import os
from pathlib import Path

from strata.core.tasks.workdirs import Workdir, WorkdirFile
from strata.errors import Corrupt
from strata.workdir.piece_store import PieceStore, delete_folder

READ_BYTES = 2**20


def unpack(workdir: Workdir, store: PieceStore, folder: Path) -> list[str]:
    """Make the folder hold these files; returns the paths that had to be restored."""
    if folder.is_dir() and all(_is_inside(folder, file) for file in workdir.files):
        changed = [file for file in workdir.files if not _is_whole(folder / file.path, file)]
        for file in changed:
            _write(folder, file, store)
        return [file.path for file in changed]
    draft = folder.with_name(f"{folder.name}.new")
    delete_folder(draft)
    delete_folder(folder)
    draft.mkdir(parents=True)
    for file in workdir.files:
        _write(draft, file, store)
    draft.rename(folder)
    return []


def _is_inside(folder: Path, file: WorkdirFile) -> bool:
    """Whether the place of a file is in the folder: the task may have replaced folders by links."""
    parent = (folder / file.path).parent
    return Path(os.path.realpath(parent)) == Path(os.path.realpath(folder)) / Path(file.path).parent


def _is_whole(path: Path, file: WorkdirFile) -> bool:
    """Whether a file on disk has the recorded content and mode."""
    try:
        status = path.lstat()
        if path.is_symlink() or status.st_size != file.size_bytes:
            return False
        if status.st_mode & 0o777 != file.mode:
            return False
        digest = hashlib.sha256()
        with path.open("rb") as opened:
            while content := opened.read(READ_BYTES):
                digest.update(content)
    except OSError:
        return False
    return digest.hexdigest() == file.sha256


def _write(folder: Path, file: WorkdirFile, store: PieceStore) -> None:
    """Write a file under a temporary name and rename it."""
    path = folder / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".strata-{file.sha256[:16]}.new")
    digest = hashlib.sha256()
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as opened:
        for piece in file.stored_as:
            content = store.get(piece)
            digest.update(content)
            opened.write(content)
        os.fchmod(opened.fileno(), file.mode)
    if digest.hexdigest() != file.sha256:
        draft.unlink()
        raise Corrupt(
            f"the pieces of {file.path} do not make the file that was submitted",
            hint="submit the task again with --workdir",
        )
    if path.is_dir() and not path.is_symlink():
        delete_folder(path)
    draft.replace(path)
