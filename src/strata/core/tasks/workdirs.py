"""Folders that travel with tasks: the files of a script, named by their digests.

A task with a `workdir` (`TaskSpec`) runs in a copy of a folder. The folder is the list of its
files; its digest is the SHA-256 of that list, and the list has the SHA-256 of each file, so one
digest names the exact content. `WorkdirRecorded` records the list, so what ran is known after the
files are deleted.

A file is stored and sent in pieces of at most `PIECE_BYTES`; a smaller file is one piece. A path is
relative, and there are no links: a file of the list is never outside of the folder.
"""

import hashlib
from collections.abc import Sequence

import msgspec
from msgspec import Struct, field

from strata.core.decision import Decision, applies
from strata.core.events import Event, Fact
from strata.core.state import Cluster
from strata.core.task_spec import TaskSpec
from strata.core.task_state import Task, TaskWorkdir
from strata.errors import InvalidArgument, LimitExceeded

PIECE_BYTES = 512 * 1024
MAX_FILES = 2_000
MAX_PATH = 1_024
MAX_MODE = 0o777
DIGEST_CHARS = 64
IGNORE = "leave files out with .strataignore, which has the syntax of .gitignore"


class WorkdirFile(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A file of a folder. `pieces` has the SHA-256 of each piece if there are several."""

    path: str
    sha256: str
    size_bytes: int
    mode: int
    pieces: list[str] = field(default_factory=list)

    @property
    def stored_as(self) -> list[str]:
        """The digests of its pieces, in their order; an empty file has one."""
        return self.pieces or [self.sha256]


class Workdir(Struct, frozen=True):
    """The files of a folder, ordered by their paths."""

    files: list[WorkdirFile]

    @property
    def digest(self) -> str:
        """The SHA-256 of the list of files."""
        return hashlib.sha256(msgspec.json.encode(self.files)).hexdigest()

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def pieces(self) -> dict[str, int]:
        """The size of each piece by its digest."""
        found: dict[str, int] = {}
        for file in self.files:
            left = file.size_bytes
            for piece in file.stored_as:
                found[piece] = min(left, PIECE_BYTES)
                left -= found[piece]
        return found


class WorkdirRecorded(Fact, frozen=True, kw_only=True):
    """The folder that a task runs in: every file with its digest."""

    sentence = "{task} runs the {file_count} files of folder {digest}"

    task: str
    digest: str
    file_count: int
    size_bytes: int
    files: list[WorkdirFile]


@applies(WorkdirRecorded)
def _recorded(state: Cluster, fact: WorkdirRecorded, event: Event) -> None:
    state.tasks[fact.task].workdir = TaskWorkdir(
        digest=fact.digest, files=fact.file_count, size_bytes=fact.size_bytes
    )


def record_workdir(d: Decision, task: Task, workdir: Workdir | None, cause: str) -> None:
    """Record the folder of a task, unless it is the one recorded last."""
    known = task.workdir.digest if task.workdir is not None else ""
    if workdir is None or workdir.digest == known:
        return
    recorded = WorkdirRecorded(
        task=task.id,
        digest=workdir.digest,
        file_count=len(workdir.files),
        size_bytes=workdir.size_bytes,
        files=workdir.files,
    )
    d.record(recorded, cause)


def check_spec_workdir(spec: TaskSpec, workdir: Workdir | None) -> None:
    """Refuse a task whose folder cannot be used."""
    assert spec.workdir == (workdir.digest if workdir else ""), "the caller gives the files"
    if workdir is not None and spec.external:
        raise InvalidArgument(
            "workdir is for workers that strata starts, and the user starts those of this task",
            hint="give the task an entry, or leave workdir out",
        )
    is_file = spec.entry.endswith(".py") or "/" in spec.entry
    if workdir is not None and is_file and all(file.path != spec.entry for file in workdir.files):
        raise InvalidArgument(
            f"entry {spec.entry[:100]!r} is not in the folder of the task",
            hint="with a workdir, entry is the path of a file in it, such as train.py",
        )


def check_workdir(workdir: Workdir, max_bytes: int) -> None:
    """Refuse a list of files that is too large, or that a host must not unpack."""
    paths = [file.path for file in workdir.files]
    if not paths:
        raise InvalidArgument("the folder has no files", hint="choose the folder of the script")
    check_size(workdir.files, max_bytes)
    if paths != sorted(set(paths)):
        raise InvalidArgument("the paths are not sorted and unique", hint="sort them as text")
    folders = {path[:at] for path in paths for at, each in enumerate(path) if each == "/"}
    for file in workdir.files:
        check_path(file.path)
        if file.path in folders:
            raise InvalidArgument(
                f"{file.path[:100]!r} is a file and a folder", hint="send the list again"
            )
        _check_file(file)
    sizes: dict[str, int] = {}
    for file in workdir.files:
        for piece, size in Workdir([file]).pieces.items():
            if sizes.setdefault(piece, size) != size:
                raise InvalidArgument(f"piece {piece} has two sizes", hint="send the list again")


def check_size(files: Sequence[WorkdirFile], max_bytes: int) -> None:
    """Refuse too many files, or too large ones; the error names the largest."""
    if len(files) > MAX_FILES:
        raise LimitExceeded(
            f"the folder has {len(files)} files; the limit is {MAX_FILES}", hint=IGNORE
        )
    total = sum(file.size_bytes for file in files)
    if total > max_bytes:
        largest = sorted(files, key=lambda file: file.size_bytes, reverse=True)[:3]
        named = ", ".join(f"{file.path} ({file.size_bytes:,} bytes)" for file in largest)
        raise LimitExceeded(
            f"the folder has {total:,} bytes; max_workdir_bytes is {max_bytes:,}; the largest "
            f"files are {named}",
            hint=f"{IGNORE}; or raise max_workdir_bytes of the coordinator",
        )


def check_path(path: str) -> None:
    """Refuse a path that is absolute, leads out of the folder, or is not printable."""
    parts = path.split("/")
    if (
        len(path) > MAX_PATH
        or not path.isprintable()
        or any(part in ("", ".", "..") for part in parts)
    ):
        raise InvalidArgument(
            f"the path {path[:100]!r} cannot be used in a folder of a task",
            hint=f"use relative paths of at most {MAX_PATH} printable characters; {IGNORE}",
        )


def _check_file(file: WorkdirFile) -> None:
    count = -(-file.size_bytes // PIECE_BYTES)
    right = len(file.pieces) == (count if count > 1 else 0) and all(map(is_digest, file.pieces))
    if not (right and is_digest(file.sha256) and file.size_bytes >= 0):
        raise InvalidArgument(
            f"the digests of {file.path[:100]!r} are wrong",
            hint=f"a file above {PIECE_BYTES} bytes has a SHA-256 for each piece of that size",
        )
    if not 0 <= file.mode <= MAX_MODE:
        raise InvalidArgument(
            f"the mode of {file.path[:100]!r} is {file.mode:o}", hint="it must be 0 to 777"
        )


def is_digest(text: str) -> bool:
    """Whether a text is a SHA-256 in hexadecimal digits."""
    return len(text) == DIGEST_CHARS and set(text) <= set("0123456789abcdef")
