"""Notes about the runs of `strata run`: which script each folder holds, and how its run ended.

Each run folder has a `launch.json`, written when the run begins and when it ends. It is only an
index: the log in the folder says what happened. A note that says `running` while its process is
gone belongs to a run that was killed.
"""

import os
import socket
from pathlib import Path

import msgspec
from msgspec import Struct

from strata.errors import NotAllowedNow, NotFound
from strata.files import write_whole

NOTE = "launch.json"
RUNS = "runs"
NEWEST = "newest"
RUNNING = "running"


class RunNote(Struct, frozen=True, kw_only=True):
    """One run: its script, its task, and `status`, which is `running` until the run has ended."""

    entry: str
    task: str = ""
    status: str = RUNNING
    exit_code: int = 0
    steps: int = 0
    slots: int = 0
    pid: int = 0
    host: str = ""

    @property
    def runs(self) -> bool:
        """Whether the process of the run is alive, as far as this host can tell."""
        if self.status != RUNNING:
            return False
        return self.host != socket.gethostname() or _alive(self.pid)

    @property
    def unfinished(self) -> bool:
        """Whether the run was stopped, failed or killed before its script was done."""
        done = self.status in ("completed", "stopped") and not self.exit_code
        return not done and not self.runs

    @property
    def how_it_ended(self) -> str:
        """One word for the end of an unfinished run."""
        return "killed" if self.status == RUNNING else self.status


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid > 0


def begin(folder: Path, entry: str, slots: int) -> None:
    """Note that a run of a script begins in a folder, with that many slots."""
    pid, host = os.getpid(), socket.gethostname()
    _write(folder, RunNote(entry=entry, slots=slots, pid=pid, host=host))


def end(folder: Path, **outcome: str | int) -> None:
    """Note how the run in a folder ended."""
    _write(folder, msgspec.structs.replace(read(folder), **outcome))


def _write(folder: Path, note: RunNote) -> None:
    write_whole(folder / NOTE, msgspec.json.encode(note))


def read(folder: Path) -> RunNote:
    """The note of a folder; an empty one if there is none."""
    try:
        return msgspec.json.decode((folder / NOTE).read_bytes(), type=RunNote)
    except (FileNotFoundError, msgspec.DecodeError):
        return RunNote(entry="", status="")


def newest(data_dir: Path, entry: str) -> Path | None:
    """The folder of the newest run of a script; names begin with the time of the start."""
    found = sorted((data_dir / RUNS).glob(f"*/{NOTE}"), reverse=True)
    return next((each.parent for each in found if read(each.parent).entry == entry), None)


def find(data_dir: Path, entry: str, wanted: str) -> Path:
    """The folder of a run of a script: the newest, or by folder, folder name or task."""
    if wanted == NEWEST:
        folder = newest(data_dir, entry)
        if folder is None:
            raise NotFound(
                f"no run of {Path(entry).name} is in {data_dir / RUNS}",
                hint="leave --resume out to start one, or name the folder of the run",
            )
    else:
        folder = _named(data_dir, wanted)
    if read(folder).runs:
        raise NotAllowedNow(f"the run in {folder} still runs", hint="stop it first: press Ctrl-C")
    return folder


def _named(data_dir: Path, wanted: str) -> Path:
    for folder in (Path(wanted), data_dir / RUNS / wanted):
        if (folder / NOTE).exists():
            return folder
    notes = sorted((data_dir / RUNS).glob(f"*/{NOTE}"), reverse=True)
    for note in notes:
        if read(note.parent).task == wanted:
            return note.parent
    raise NotFound(
        f"there is no run {wanted!r} in {data_dir / RUNS}",
        hint="`strata runs` lists runs; name a folder, or leave the name out for the newest run",
    )
