"""Notes about the runs of `strata run`: which script each folder holds, and how its run ended.

Each run folder has a `launch.json`, written when the run begins and when it ends. It is only an
index: the log in the folder says what happened. A run is active while its log is locked; a note
that says `running` without that lock belongs to a run that was killed.
"""

from pathlib import Path

import msgspec
from msgspec import Struct

from strata.errors import UNDECODABLE, NotAllowedNow, NotFound
from strata.files import write_whole
from strata.store.sqlite.lock_files import lock_holder

NOTE = "launch.json"
LOG = "log.db"
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

    @property
    def unfinished(self) -> bool:
        """Whether a run that is not active ended before its script was done."""
        return self.status not in ("completed", "stopped") or self.exit_code != 0

    @property
    def how_it_ended(self) -> str:
        """The end of an unfinished run, after its name: `was killed`, `was stopped`, `failed`."""
        if self.status == RUNNING:
            return "was killed"
        return f"was {self.status}" if self.status == "stopped" else self.status


def begin(folder: Path, entry: str, task: str, slots: int) -> None:
    """Note that a task of a script runs in a folder, with that many slots."""
    write(folder, RunNote(entry=entry, task=task, slots=slots))


def end(folder: Path, **outcome: str | int) -> None:
    """Note how the run in a folder ended."""
    write(folder, msgspec.structs.replace(read(folder), **outcome))


def write(folder: Path, note: RunNote) -> None:
    write_whole(folder / NOTE, msgspec.json.encode(note))


def read(folder: Path) -> RunNote:
    """The note of a folder; an empty one if there is none."""
    try:
        return msgspec.json.decode((folder / NOTE).read_bytes(), type=RunNote)
    except (FileNotFoundError, *UNDECODABLE):
        return RunNote(entry="", status="")


def active_pid(folder: Path) -> str:
    """The pid of the process that runs in a folder; empty if the run there is not active."""
    return lock_holder(folder / LOG)


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
    require_continuable(folder, resume=True)
    return folder


def require_continuable(folder: Path, resume: bool) -> None:
    """Refuse a folder in which a run is active, and with `resume` one that holds no run."""
    if pid := active_pid(folder):
        raise NotAllowedNow(
            f"the run in {folder} is still active: process {pid}",
            hint="press Ctrl-C there, or send SIGTERM to that process",
        )
    if resume and not (folder / LOG).exists():
        raise NotFound(
            f"{folder} holds no run to resume",
            hint="check the path, or leave --resume out to start a run there",
        )


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
