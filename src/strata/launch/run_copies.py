"""Copies of a run's log beside its checkpoints in an object storage.

`strata run` keeps its log in the data folder. If the checkpoints are in an object storage, a copy
of the log is stored there after each checkpoint and at the end, so that the run can continue on
another machine, with one audit over both. Below the root of the checkpoints:

    runs/NAME/claim-00000002.json    process 2 that runs it; written only if absent
    runs/NAME/beat-00000002.json     its heartbeat
    runs/NAME/log-00000002-0007.db   copy 7 of its log
    runs/NAME/stretches/...          events that were moved out of the log
    runs/NAME/run.json               the script, how the run stands, and the newest copy

A process continues a run only after it has written the next claim, which one process can do. Until
the run has ended, another machine first waits whether the heartbeat goes on. A process that finds
a later claim than its own ends its run. A copy may lack the last facts of a machine that was
killed, so a run that continues from it skips numbers as after a salvage
(`core/record/log_salvage`).
"""

import logging
import os
import socket
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from strata.config import Settings
from strata.errors import AlreadyExists, Conflict, NotAllowedNow, NotFound, StrataError
from strata.files import write_whole
from strata.launch import run_notes
from strata.storage.backend import StorageBackend
from strata.storage.locations import configured_storage, open_storage

RUNS = "runs"
RUN = "run.json"
STRETCHES = "stretches"
PLACE = "copies.json"
"""File in a run's folder: where its copies are, and the claim of the process that wrote it."""

COPIED = "copied.json"
"""File in a folder made from a copy that may lack facts; removed when that is recorded."""

BEAT_S = 3.0
GONE_S = 15.0
"""How long a heartbeat must be unchanged before another machine may continue the run."""

LOOK_S = 0.5
SETTLE_S = 2.5
"""Workers' events of a checkpoint's steps arrive within this time; then the log is copied again."""

COPY_S = 30.0
"""How often the log is copied without a new checkpoint."""

PAUSE = 4
"""After a copy, the next one waits at least so many times as long as the copy took."""

CHUNK_BYTES = 8 * 2**20
LOOKED_AT = 200

log = logging.getLogger(__name__)


class Claim(Struct, frozen=True, kw_only=True):
    """The process that runs it: number of the claim, host, pid, and when it began."""

    number: int
    host: str
    pid: int
    begun_s: float


class CopiedRun(Struct, frozen=True, kw_only=True):
    """The content of `run.json`."""

    name: str
    note: run_notes.RunNote
    claim: Claim
    log: str = ""
    ended: bool = False


class CopyPlace(Struct, frozen=True, kw_only=True):
    """The content of `copies.json`: the storage of the run, and the newest claim of this folder."""

    url: str
    claim: int = 0


def remote_root(settings: Settings) -> str:
    """The URL of the object storage for checkpoints; empty if they are in a folder."""
    storage = configured_storage(settings)
    url = storage.url
    storage.close()
    return url if url.startswith("s3://") else ""


def find(where: str, entry: str, wanted: str, settings: Settings) -> tuple[str, CopiedRun]:
    """The URL and description of a run: by name or task, or the newest of a script."""
    with _opened(where, settings) as storage:
        if storage.exists(RUN):
            return where, _described(storage)
    with _opened(f"{where.rstrip('/')}/{RUNS}", settings) as runs:
        names = sorted((each.strip("/") for each in runs.list().folders), reverse=True)
        for name in names[:LOOKED_AT]:
            if not runs.exists(f"{name}/{RUN}"):
                continue
            run = _decoded(runs.get(f"{name}/{RUN}"))
            newest = wanted == run_notes.NEWEST and _same_script(run.note.entry, entry)
            if newest or wanted in (name, run.note.task):
                return f"{where.rstrip('/')}/{RUNS}/{name}", run
    what = Path(entry).name if wanted == run_notes.NEWEST else repr(wanted)
    raise NotFound(
        f"{where} holds no copy of a run of {what}",
        hint="copies are stored by `strata run` with checkpoints on S3, after each checkpoint",
    )


def _same_script(there: str, here: str) -> bool:
    """Whether two scripts have one name; their folders differ between machines."""
    return Path(there).name == Path(here).name


def fetch(url: str, run: CopiedRun, folder: Path, settings: Settings) -> None:
    """Make the folder of a run from its newest copy; raises while another process runs it."""
    with _opened(url, settings) as storage:
        claim = newest_claim(storage)
        gone = run.ended and claim.number == run.claim.number
        if not gone:
            require_gone(storage, claim)
            run = _described(storage)  # a copy may have been stored meanwhile
        if not run.log:
            raise NotFound(
                f"{url} has no copy of the log: the run ended before its first checkpoint",
                hint="start it anew, without --resume",
            )
        folder.mkdir(parents=True, exist_ok=True)
        _download(storage, run.log, folder / run_notes.LOG)
        for info in storage.walk(STRETCHES):
            _download(storage, info.name, folder / info.name)
    if not gone:
        write_whole(folder / COPIED, msgspec.json.encode(claim))
    place = CopyPlace(url=url, claim=claim.number)
    write_whole(folder / PLACE, msgspec.json.encode(place))
    run_notes.write(folder, run.note)


def require_gone(storage: StorageBackend, claim: Claim) -> None:
    """Refuse a run whose process still writes its heartbeat."""
    before, deadline_s = _beat(storage, claim.number), time.monotonic() + GONE_S
    while time.monotonic() < deadline_s:
        time.sleep(LOOK_S)
        if _beat(storage, claim.number) != before or newest_claim(storage) != claim:
            raise NotAllowedNow(
                f"the run in {storage.url} is still active on {claim.host}: process {claim.pid}",
                hint="press Ctrl-C there, or send SIGTERM to that process",
            )


def newest_claim(storage: StorageBackend) -> Claim:
    """The newest claim of a run."""
    names = [each.name for each in storage.list().objects if each.name.startswith("claim-")]
    if not names:
        return Claim(number=0, host="", pid=0, begun_s=0.0)
    return msgspec.json.decode(storage.get(max(names)), type=Claim)


def _beat(storage: StorageBackend, number: int) -> bytes:
    name = f"beat-{number:08d}.json"
    return storage.get(name) if storage.exists(name) else b""


@contextmanager
def _opened(url: str, settings: Settings) -> Iterator[StorageBackend]:
    storage = open_storage(url, settings)
    try:
        yield storage
    finally:
        storage.close()


def _described(storage: StorageBackend) -> CopiedRun:
    return _decoded(storage.get(RUN))


def _decoded(data: bytes) -> CopiedRun:
    return msgspec.json.decode(data, type=CopiedRun)


def _download(storage: StorageBackend, name: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with storage.open(name) as source, target.open("wb") as file:
        for offset in range(0, source.size_bytes, CHUNK_BYTES):
            piece = memoryview(bytearray(min(CHUNK_BYTES, source.size_bytes - offset)))
            source.read_into(offset, [piece])
            file.write(piece)


class RunCopies:
    """The claim of this process on a run, its heartbeat, and the copies of the log, in threads.

    The heartbeat has a thread of its own, because copying a large log can take longer than
    `GONE_S`.

    `saved` returns the number of committed checkpoints, `position` that of stored facts. `copied`
    is the position up to which the newest copy has them all. `on_fenced` is called once if another
    process continues the run.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        settings: Settings,
        saved: Callable[[], int],
        position: Callable[[], int],
    ) -> None:
        self.url = url
        self._folder = folder
        self._saved = saved
        self._position = position
        self.copied = 0
        self._storage = open_storage(url, settings)
        self._claim = self._claimed()
        self._copies = 0
        self._log = ""
        self._stored: set[str] = set()
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._beat, name="strata-run-beat", daemon=True),
            threading.Thread(target=self._work, name="strata-run-copies", daemon=True),
        ]
        self.fenced_by: Claim | None = None
        self.on_fenced: Callable[[], None] = lambda: None

    def _claimed(self) -> Claim:
        """Write the next claim; raises if another process wrote it."""
        place = self._place()
        claim = Claim(
            number=place.claim + 1, host=socket.gethostname(), pid=os.getpid(), begun_s=time.time()
        )
        try:
            self._storage.put(
                f"claim-{claim.number:08d}.json", msgspec.json.encode(claim), if_absent=True
            )
        except AlreadyExists:
            other = newest_claim(self._storage)
            self._storage.close()
            raise Conflict(
                f"the run in {self._folder} was continued on {other.host} by process {other.pid}",
                hint=f"continue what is newest: --resume={self.url}",
            ) from None
        write_whole(
            self._folder / PLACE, msgspec.json.encode(CopyPlace(url=self.url, claim=claim.number))
        )
        return claim

    def _place(self) -> CopyPlace:
        return place_of(self._folder) or CopyPlace(url=self.url)

    def start(self) -> None:
        """Start the heartbeat and the copies."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Store the last copy, after the log was closed; a fenced process stores none."""
        self._stopping.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        try:
            if self.fenced_by is None and not self._is_fenced():
                self._copy(ended=True)
        except (StrataError, OSError, sqlite3.Error) as error:
            log.warning("the log could not be copied to %s: %s", self.url, error)
        self._storage.close()

    def _beat(self) -> None:
        beats = 0
        while True:
            beats += 1
            try:
                self._storage.put(f"beat-{self._claim.number:08d}.json", b"%d" % beats)
                if self._is_fenced():
                    return self.on_fenced()
            except (StrataError, OSError) as error:
                log.warning("no heartbeat of the run could be stored in %s: %s", self.url, error)
            if self._stopping.wait(BEAT_S):
                return None

    def _work(self) -> None:
        copied, due_s, allowed_s = 0, time.monotonic() + COPY_S, 0.0
        while not self._stopping.wait(LOOK_S) and self.fenced_by is None:
            now_s, saved = time.monotonic(), self._saved()
            if now_s < allowed_s or (saved == copied and now_s < due_s):
                continue
            try:
                self._copy(ended=False)
            except (StrataError, OSError, sqlite3.Error) as error:
                log.warning("the log could not be copied to %s; retrying: %s", self.url, error)
            ended_s = time.monotonic()
            due_s = ended_s + (SETTLE_S if saved != copied else COPY_S)
            copied, allowed_s = saved, ended_s + (ended_s - now_s) * PAUSE

    def _is_fenced(self) -> bool:
        """Whether another process has claimed the run since."""
        if not self._storage.exists(f"claim-{self._claim.number + 1:08d}.json"):
            return False
        self.fenced_by = newest_claim(self._storage)
        return True

    def _copy(self, ended: bool) -> None:
        """Store a copy of the log, then the events that were moved out of it, then `run.json`."""
        self._copies += 1
        position = self._position()
        name, before = f"log-{self._claim.number:08d}-{self._copies:08d}.db", self._log
        with tempfile.TemporaryDirectory(dir=self._folder) as scratch:
            copy = Path(scratch) / run_notes.LOG
            _back_up(self._folder / run_notes.LOG, copy)
            self._storage.put_stream(name, _chunks(copy), size_bytes=copy.stat().st_size)
        for path in sorted((self._folder / STRETCHES).rglob("*")):
            moved = path.relative_to(self._folder).as_posix()
            if path.is_file() and moved not in self._stored:
                self._storage.put_stream(moved, _chunks(path), size_bytes=path.stat().st_size)
                self._stored.add(moved)
        run = CopiedRun(
            name=self.url.rpartition("/")[2],
            note=run_notes.read(self._folder),
            claim=self._claim,
            log=name,
            ended=ended,
        )
        self._storage.put(RUN, msgspec.json.encode(run))
        self._log, self.copied = name, position
        if before:
            self._storage.delete(before)


def place_of(folder: Path) -> CopyPlace | None:
    """Where the copies of the run in a folder are; None if it has none."""
    try:
        return msgspec.json.decode((folder / PLACE).read_bytes(), type=CopyPlace)
    except FileNotFoundError:
        return None


def _back_up(source: Path, target: Path) -> None:
    """Copy a log consistently while it is written."""
    with (
        closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as log_db,
        closing(sqlite3.connect(target)) as copy,
    ):
        log_db.backup(copy)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
