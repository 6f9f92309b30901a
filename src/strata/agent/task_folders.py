"""The folders of tasks on this host: fetched from the coordinator, verified, unpacked.

Before the first worker of a task starts, its folder is read piece by piece; every piece is compared
with its digest. Pieces stay in a cache, so files that other folders have too are not fetched again.
The folder is unpacked under the agent's folder, once for all workers of the task on this host, and
appears under its name when it is whole: an agent that is killed leaves nothing half.

A connection that breaks is repeated. A folder that is damaged at the coordinator, or that cannot be
written here, is reported, and the workers that wait do not start.

What scripts write in such a folder stays until `KEPT` other folders were unpacked.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from strata.core.tasks.workdirs import Workdir, check_workdir
from strata.errors import Corrupt, StrataError, Unavailable
from strata.sdk.session.channel import delays_s
from strata.wire.v1 import coordinator_pb2 as pb
from strata.workdir.folder_unpack import unpack
from strata.workdir.piece_store import PieceStore, delete_folder, listed

log = logging.getLogger(__name__)

KEPT = 20
AT_ONCE = 8
UNUSED_S = 600.0
NO_LIMIT = 2**62
"""The coordinator has checked the size."""

Read = Callable[[str, str], Awaitable[bytes]]
"""Reads a piece of a folder by both digests; the list of files if the piece is empty."""


class TaskFolder(NamedTuple):
    """A folder of a task."""

    task: str
    digest: str


class TaskFolders:
    """The folders by task. `read` is set by the link to the coordinator; `on_end` is called with a
    task when its folder is ready, and with the reason if it cannot be."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "workdirs"
        self._store: PieceStore | None = None
        self._ready: set[TaskFolder] = set()
        self._running: dict[TaskFolder, asyncio.Task[None]] = {}
        self._unpacking = threading.Lock()
        self.read: Read = _unlinked
        self.on_end: Callable[[str, str], None] = lambda task, reason: None

    def admits(self, job: pb.Job) -> bool:
        """Whether workers of a task may start; if not, its folder is being fetched."""
        wanted = TaskFolder(job.task_id, job.workdir)
        if not wanted.digest or wanted in self._ready:
            return True
        if wanted not in self._running:
            self._running[wanted] = asyncio.create_task(self._prepare(wanted))
        return False

    def where(self, job: pb.Job) -> tuple[str, str]:
        """The entry of a task in its folder, and the folder."""
        place = self._place(TaskFolder(job.task_id, job.workdir))
        is_file = job.entry.endswith(".py") or os.sep in job.entry
        return str(place / job.entry) if is_file else job.entry, str(place)

    def _place(self, wanted: TaskFolder) -> Path:
        return (self._folder / f"{wanted.task}-{wanted.digest[:12]}").absolute()

    def retain(self, jobs: Mapping[str, pb.Job]) -> None:
        """Forget folders that no worker here needs; they are verified before their next use."""
        wanted = {TaskFolder(job.task_id, job.workdir) for job in jobs.values()}
        self._ready &= wanted
        for unwanted in self._running.keys() - wanted:
            self._running.pop(unwanted).cancel()

    def close(self) -> None:
        """Stop fetching."""
        for preparing in self._running.values():
            preparing.cancel()

    async def _prepare(self, wanted: TaskFolder) -> None:
        try:
            reason = await self._failure(wanted)
        finally:
            if self._running.get(wanted) is asyncio.current_task():
                del self._running[wanted]
        if reason:
            log.error("the folder of task %s cannot be used: %s", wanted.task, reason)
        else:
            self._ready.add(wanted)
        self.on_end(wanted.task, reason)

    async def _failure(self, wanted: TaskFolder) -> str:
        """Fetch and unpack a folder; returns why that is impossible, or nothing."""
        try:
            await self._fetch(wanted)
        except StrataError as error:
            return str(error)
        except OSError as error:
            return f"it cannot be unpacked in {self._place(wanted)}: {error}"
        return ""

    async def _read(self, wanted: TaskFolder, piece: str) -> bytes:
        """Read a piece from the coordinator, for as long as it takes to reach it."""
        delays, warned = delays_s(), False
        while True:
            try:
                return await self.read(wanted.digest, piece)
            except Unavailable as error:
                if not warned:
                    warned = True
                    log.warning("reading the folder of task %s again: %s", wanted.task, error)
                await asyncio.sleep(next(delays))

    async def _fetch(self, wanted: TaskFolder) -> None:
        if self._store is None:
            self._store = await asyncio.to_thread(PieceStore, self._folder / "cache")
        store = self._store
        try:
            workdir = await asyncio.to_thread(store.workdir, wanted.digest)
        except StrataError:
            workdir = listed(await self._read(wanted, ""))
            await asyncio.to_thread(check_workdir, workdir, NO_LIMIT)
            await asyncio.to_thread(store.put_list, workdir)
            await asyncio.to_thread(store.workdir, wanted.digest)  # raises if it is another one
        await self._fetch_pieces(wanted, store, workdir)
        place = self._place(wanted)
        changed = await asyncio.to_thread(self._unpack, workdir, store, place)
        for path in changed:
            log.warning("task %s had changed %s on this host; it was restored", wanted.task, path)
        about = (wanted.task, wanted.digest[:12], len(workdir.files), place)
        log.info("the folder of task %s is ready: %s, %d files in %s", *about)

    def _unpack(self, workdir: Workdir, store: PieceStore, place: Path) -> list[str]:
        # A thread goes on after its task was cancelled, so a lock of the loop would not be enough.
        with self._unpacking:
            changed = unpack(workdir, store, place)
            self._clean(store, {place} | {self._place(each) for each in self._busy})
        return changed

    async def _fetch_pieces(self, wanted: TaskFolder, store: PieceStore, workdir: Workdir) -> None:
        missing = iter(await asyncio.to_thread(store.missing, workdir))

        async def fetch() -> None:
            for piece in missing:
                content = await self._read(wanted, piece)
                await asyncio.to_thread(_put, store, piece, content)

        fetching = [asyncio.ensure_future(fetch()) for _ in range(AT_ONCE)]
        try:
            await asyncio.gather(*fetching)
        finally:
            for each in fetching:
                each.cancel()

    @property
    def _busy(self) -> set[TaskFolder]:
        return self._ready.copy() | set(self._running.copy())

    def _clean(self, store: PieceStore, busy: set[Path]) -> None:
        """Delete the oldest folders that no task uses, and pieces of no folder."""
        found = [path for path in self._folder.iterdir() if path.name != "cache"]
        found.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        idle = [path for path in found if path not in busy]
        for path in idle[KEPT:]:
            delete_folder(path)
        kept = {path.name.rpartition("-")[2] for path in [*idle[:KEPT], *busy]}
        store.sweep([each for each in store.lists() if each[:12] in kept], UNUSED_S)


def _put(store: PieceStore, piece: str, content: bytes) -> None:
    """Store a piece that was sent; raises if it has another digest."""
    if store.put(content) != piece:
        raise Corrupt(
            f"the coordinator sent another piece than {piece}",
            hint="check the network between this host and the coordinator",
        )


async def _unlinked(workdir: str, piece: str) -> bytes:
    raise Unavailable("there is no connection to the coordinator")
