"""Reads the folder of a script: which files travel, their digests, and their pieces.

Left out are the names in `ALWAYS_OUT`, and what `.strataignore` names; without that file, what the
`.gitignore` files of the folder name. Both have the syntax of Git. A link to a file travels as the
file that it names, which must be in the folder; links to folders, and anything that is not a
regular file, are errors that name them.
"""

import hashlib
import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from strata.core.tasks.workdirs import (
    IGNORE,
    MAX_FILES,
    PIECE_BYTES,
    Workdir,
    WorkdirFile,
    check_path,
    check_size,
)
from strata.errors import InvalidArgument, LimitExceeded, NotFound

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

OWN_RULES = ".strataignore"
GIT_RULES = ".gitignore"
ALWAYS_OUT = frozenset(
    {".env", ".git", ".hg", ".ipynb_checkpoints", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
    | {".svn", ".venv", "__pycache__"}
)
"""Never sent: histories, environments and caches, and `.env`, which may hold secrets."""

MAX_FOUND = 10 * MAX_FILES
"""Files at which the search ends; the error then says which folders have the most."""


class Piece(NamedTuple):
    """Where a piece is read from."""

    file: Path
    offset: int
    size_bytes: int

    def read(self) -> bytes:
        """Its content now."""
        with self.file.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.size_bytes)


class Scanned(Struct, frozen=True):
    """A folder as it was read, and where each piece came from."""

    workdir: Workdir
    sources: dict[str, Piece]


def scan(folder: Path, max_bytes: int, left_out: Collection[Path] = ()) -> Scanned:
    """Read a folder. The number and size of its files are checked before any file is read."""
    root = folder.resolve()
    if not root.is_dir():
        raise NotFound(f"{folder} is not a folder", hint="give the folder of the script")
    out = {path.resolve() for path in left_out}
    found = sorted(_files(root, out), key=lambda file: file.path)
    check_size(found, max_bytes)
    sources: dict[str, Piece] = {}
    files = [_digested(root, file, sources) for file in found]
    return Scanned(Workdir(files), sources)


class IgnoreRules(NamedTuple):
    """The rules of one ignore file, for paths below its folder."""

    folder: Path
    spec: "GitIgnoreSpec"

    def match(self, path: Path, is_folder: bool) -> bool:
        """Whether the rules leave out a path."""
        below = path.relative_to(self.folder).as_posix()
        return self.spec.match_file(f"{below}/" if is_folder else below)


def _rules(file: Path) -> list[IgnoreRules]:
    """The rules of an ignore file; none if there is no such file."""
    if not file.is_file():
        return []
    # Imported here: only folders with ignore files need it.
    from pathspec import GitIgnoreSpec

    lines = file.read_text("utf-8", errors="surrogateescape").splitlines()
    return [IgnoreRules(file.parent, GitIgnoreSpec.from_lines(lines))]


def _files(root: Path, out: Collection[Path]) -> Iterator[WorkdirFile]:
    """The files of a folder that travel, with their sizes; their digests are not read yet."""
    own = _rules(root / OWN_RULES)
    waiting: list[tuple[Path, list[IgnoreRules]]] = [(root, own)]
    found: dict[str, int] = {}
    while waiting:
        folder, above = waiting.pop()
        rules = above if own else [*above, *_rules(folder / GIT_RULES)]
        for entry in _entries(folder):
            path = Path(entry.path)
            is_folder = entry.is_dir(follow_symlinks=False)
            if entry.name in ALWAYS_OUT or path in out:
                continue
            if any(each.match(path, is_folder) for each in rules):
                continue
            if is_folder:
                waiting.append((path, rules))
                continue
            file = _listed(root, path)
            top = file.path.partition("/")[0]
            found[top] = found.get(top, 0) + 1
            if sum(found.values()) > MAX_FOUND:
                raise _too_many(found)
            yield file


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise InvalidArgument(
            f"the folder {folder} cannot be read: {error.strerror}", hint=IGNORE
        ) from error


def _too_many(found: dict[str, int]) -> LimitExceeded:
    most = sorted(found, key=lambda name: found[name], reverse=True)[:3]
    named = ", ".join(f"{name} ({found[name]})" for name in most)
    return LimitExceeded(
        f"the folder has more than {MAX_FOUND} files; the limit is {MAX_FILES}; "
        f"most are in {named}",
        hint=IGNORE,
    )


def _listed(root: Path, path: Path) -> WorkdirFile:
    """A file with its size and mode."""
    name = path.relative_to(root).as_posix()
    check_path(name)
    try:
        target = path.resolve(strict=True)
        status = target.stat()
    except (OSError, RuntimeError) as error:
        raise InvalidArgument(f"{name} cannot be read: {error}", hint=IGNORE) from error
    if path.is_symlink() and not target.is_relative_to(root):
        raise InvalidArgument(f"{name} is a link that leads out of the folder", hint=IGNORE)
    if not stat.S_ISREG(status.st_mode):
        kind = "a link to a folder" if path.is_symlink() else "not a regular file"
        raise InvalidArgument(f"{name} is {kind}, which cannot travel", hint=IGNORE)
    mode = stat.S_IMODE(status.st_mode) & 0o777
    return WorkdirFile(path=name, sha256="", size_bytes=status.st_size, mode=mode)


def _digested(root: Path, listed: WorkdirFile, sources: dict[str, Piece]) -> WorkdirFile:
    """The file with its digests as it is now; adds its pieces to the sources."""
    path, whole, size, pieces = root / listed.path, hashlib.sha256(), 0, list[str]()
    try:
        with path.open("rb") as file:
            while (content := file.read(PIECE_BYTES)) or not pieces:
                whole.update(content)
                pieces.append(hashlib.sha256(content).hexdigest())
                sources[pieces[-1]] = Piece(path, size, len(content))
                size += len(content)
                if size > listed.size_bytes:
                    break
    except OSError as error:
        raise InvalidArgument(
            f"{listed.path} cannot be read: {error.strerror}", hint=IGNORE
        ) from error
    if size != listed.size_bytes:
        raise InvalidArgument(
            f"{listed.path} changed while it was read", hint=f"submit again; {IGNORE}"
        )
    return WorkdirFile(
        path=listed.path,
        sha256=whole.hexdigest(),
        size_bytes=size,
        mode=listed.mode,
        pieces=pieces if len(pieces) > 1 else [],
    )
