"""Lists of files of a task's folder: a list that stays inside its folder, or an error.

The first byte says whether the rest is the list or the only piece. What is accepted is unpacked.
"""

import hashlib
import tempfile
from functools import cache
from pathlib import Path

import msgspec

from strata.core.tasks.workdirs import Workdir, WorkdirFile, check_workdir
from strata.workdir.folder_unpack import unpack
from strata.workdir.piece_store import PieceStore, listed
from tests.fuzz.targets import refused_naming

CONTENT = b"print('hello')\n"
MAX_BYTES = 10_000


@cache
def _list() -> bytes:
    digest = hashlib.sha256(CONTENT).hexdigest()
    empty = hashlib.sha256(b"").hexdigest()
    files = [
        WorkdirFile(path="a/empty", sha256=empty, size_bytes=0, mode=0o600),
        WorkdirFile(path="train.py", sha256=digest, size_bytes=len(CONTENT), mode=0o644),
    ]
    return msgspec.json.encode(files)


def seeds() -> list[bytes]:
    return [b"\x00" + _list(), b"\x01" + CONTENT]


def check(data: bytes) -> None:
    replaced_piece, rest = data[:1] == b"\x01", data[1:]
    with tempfile.TemporaryDirectory(prefix="strata-fuzz-") as made:
        store = PieceStore(Path(made, "store"))
        store.put(b"")
        digest = store.put(CONTENT)
        if replaced_piece:
            Path(made, "store", "pieces", digest).write_bytes(rest)
        with refused_naming():
            workdir = listed(_list() if replaced_piece else rest)
            check_workdir(workdir, MAX_BYTES)
            unpack(workdir, store, Path(made, "task"))
            _require_whole(workdir, Path(made, "task"))
        outside = {path.name for path in Path(made).iterdir()}
        assert outside <= {"store", "task", "task.new"}, f"files outside the folder: {outside}"


def _require_whole(workdir: Workdir, folder: Path) -> None:
    for file in workdir.files:
        content = (folder / file.path).read_bytes()
        assert hashlib.sha256(content).hexdigest() == file.sha256
