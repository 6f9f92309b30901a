"""Commits and deletes checkpoint files, following the facts about checkpoints.

When every rank has acknowledged its part, the manifest is written from the ranks' sidecars and the
checkpoint is confirmed. Writing the manifest again changes nothing, so checkpoints that were in
state `sealing` when the coordinator died are sealed again. The files of a failed or deleted
checkpoint are deleted, the manifest first, or kept for the next save to overwrite; a committed
checkpoint that is damaged keeps its files for inspection. A checkpoint without progress fails after
a timeout. If the settings name a second storage, committed checkpoints are copied there, one after
the other. File operations run in threads.

Each task has a folder below the configured storage:

    <root>/<cluster>/<task>/step-00000100-7.json

The path contains the cluster's name, because several coordinators may share a bucket and all of
them start with task 1. Nothing outside of these folders is written or deleted: the coordinator
computes the paths itself and does not accept them from workers.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from itertools import chain, repeat
from urllib.parse import quote

import msgspec

from strata.checkpoint.catalog import Catalog, is_id
from strata.checkpoint.cleanup import delete_files, drop_spares
from strata.checkpoint.manifest import MANIFEST_SUFFIX
from strata.checkpoint.transfer import copy_checkpoint
from strata.checkpoint.write.part_sidecar import manifest_of, read_sidecars
from strata.checkpoint.write.part_writer import commit
from strata.config import Settings
from strata.coordinator.engine.engine import Engine
from strata.coordinator.sessions.last_heartbeats import Heartbeats
from strata.core.checkpoints.checkpoint_commits import ConfirmCheckpoint, FailCheckpoint, NoteCopy
from strata.core.checkpoints.checkpoint_lifecycle import (
    CheckpointCommitted,
    CheckpointDeleted,
    CheckpointFailed,
    CheckpointSealed,
)
from strata.core.events import Command, Event
from strata.core.task_state import ENDED, Checkpoint, Task
from strata.core.tasks.task_lifecycle import TaskStateChanged
from strata.errors import StrataError, Unavailable
from strata.storage.backend import StorageBackend
from strata.storage.locations import configured_storage, open_storage


class CheckpointPlaces:
    """The checkpoint storages of tasks, opened when first needed.

    `far_root` is the second storage, to which checkpoints are copied; empty if there is none. An
    invalid setting is an error at the start, not at the first checkpoint. `reading` is a lock for
    requests that read whole checkpoints.
    """

    def __init__(self, settings: Settings, cluster: str) -> None:
        self._settings = settings
        self.root = configured_storage(settings).url
        upload = settings.checkpoint_upload.rstrip("/")
        self.far_root = open_storage(upload, settings).url if upload else ""
        self.cluster = cluster
        self.recycle = settings.checkpoint_recycle
        self.reading = asyncio.Lock()
        self._open: dict[str, StorageBackend] = {}
        self._far: dict[str, StorageBackend] = {}

    def folder(self, task: str) -> str:
        """The task's folder, relative to the root."""
        return f"{self.cluster}/{quote(task, safe='').replace('.', '%2E')}"

    def storage(self, task: str) -> StorageBackend:
        """The storage of one task."""
        if task not in self._open:
            self._open[task] = open_storage(f"{self.root}/{self.folder(task)}", self._settings)
        return self._open[task]

    def far_storage(self, task: str) -> StorageBackend | None:
        """The second storage of a task, or None."""
        if not self.far_root:
            return None
        if task not in self._far:
            self._far[task] = open_storage(f"{self.far_root}/{self.folder(task)}", self._settings)
        return self._far[task]

    def storages(self, task: str) -> list[StorageBackend]:
        """All storages that may have checkpoints of a task, the nearest first."""
        far = self.far_storage(task)
        return [self.storage(task)] if far is None else [self.storage(task), far]

    def worker_config(self, task: Task) -> dict[str, str]:
        """Configuration from which a worker finds the same storage, maybe under another root.

        `inherited` maps checkpoints of other tasks to their folders, as JSON.
        """
        inherited = {
            each.id: self.folder(each.owner) for each in task.checkpoints.values() if each.owner
        }
        return {
            "checkpoint_root": self.root,
            "checkpoint_folder": self.folder(task.id),
            "checkpoint_upload": self._settings.checkpoint_upload.rstrip("/"),
            "inherited": msgspec.json.encode(inherited).decode(),
        }

    def close(self) -> None:
        """Close all storages."""
        for storage in [*self._open.values(), *self._far.values()]:
            storage.close()


log = logging.getLogger(__name__)

DELAYS_S = (0.2, 1.0, 5.0, 15.0)
WATCH_INTERVAL_S = 1.0
DELETE_LOOK_S = 0.2
AT_ONCE = 4


class Sealing:
    """Follows the facts about checkpoints and updates the storage."""

    def __init__(
        self, engine: Engine, heartbeats: Heartbeats, places: CheckpointPlaces, timeout_s: float
    ) -> None:
        self._engine = engine
        self._heartbeats = heartbeats
        self._places = places
        self._timeout_s = timeout_s
        self._work: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(AT_ONCE)
        self._copying = asyncio.Lock()
        self._moved: dict[tuple[str, str], tuple[int, float]] = {}
        self.deletable: Callable[[int], bool] = lambda position: True
        """Whether the files of a checkpoint may be deleted whose deletion is recorded before a
        position; no if another machine could still need them."""

    def start(self) -> None:
        """Continue the unfinished work of an earlier coordinator, then follow new facts."""
        for task in self._tasks.values():
            if task.checkpoints:
                self._begin(self._sweep(task.id))
            for checkpoint in task.checkpoints.values():
                if checkpoint.state == "sealing":
                    self._begin(self._seal(task.id, checkpoint.id))
                elif checkpoint.state == "committed" and not checkpoint.copies:
                    self._copy_later(task.id, checkpoint.id)
        self._engine.follow(
            self._follow,
            CheckpointSealed,
            CheckpointCommitted,
            CheckpointDeleted,
            CheckpointFailed,
            TaskStateChanged,
        )
        self._begin(self._watch())

    async def stop(self) -> None:
        """Stop; the next coordinator continues unfinished work."""
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        await asyncio.to_thread(self._places.close)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    def _follow(self, events: Sequence[Event]) -> None:
        for event in events:
            body = event.body
            if isinstance(body, CheckpointSealed):
                self._begin(self._seal(body.task, body.checkpoint))
            elif isinstance(body, CheckpointCommitted):
                self._copy_later(body.task, body.checkpoint)
            elif isinstance(body, CheckpointDeleted) or (
                isinstance(body, CheckpointFailed) and not body.damaged
            ):
                self._begin(self._remove(body.task, body.checkpoint))
            elif isinstance(body, TaskStateChanged) and body.after in ENDED:
                self._begin(self._drop_spares(body.task))

    async def _seal(self, task: str, checkpoint_id: str) -> None:
        """Write the manifest and confirm the checkpoint; fail it after the last retry."""
        async with self._room:
            for delay_s in (*DELAYS_S, 0.0):
                checkpoint = self._known(task, checkpoint_id)
                if checkpoint is None or checkpoint.state != "sealing":
                    return
                try:
                    storage = self._places.storage(task)
                    path = await asyncio.to_thread(write_manifest, storage, checkpoint)
                except Unavailable as error:
                    log.warning("checkpoint %s: retrying the manifest: %s", checkpoint_id, error)
                    reason = str(error)
                    await asyncio.sleep(delay_s)
                except StrataError as error:
                    reason = str(error)
                    break
                else:
                    return await self._submit(
                        ConfirmCheckpoint(task=task, checkpoint=checkpoint_id, path=path)
                    )
        await self._submit(FailCheckpoint(task=task, checkpoint=checkpoint_id, reason=reason))

    def _copy_later(self, task: str, checkpoint_id: str) -> None:
        """Start to copy a checkpoint to the second storage, if there is one."""
        checkpoint = self._known(task, checkpoint_id)
        own = checkpoint is not None and checkpoint.manifest and not checkpoint.owner
        if own and self._places.far_root:
            self._begin(self._copy(task, checkpoint_id))

    async def _copy(self, task: str, checkpoint_id: str) -> None:
        """Copy a checkpoint, with retries until it succeeds or the checkpoint expires."""
        for delay_s in chain(DELAYS_S, repeat(DELAYS_S[-1])):
            async with self._copying:
                checkpoint = self._known(task, checkpoint_id)
                if checkpoint is None or checkpoint.state != "committed":
                    return
                try:
                    near, far = self._places.storages(task)
                    await asyncio.to_thread(copy_named, near, far, checkpoint_id)
                except StrataError as error:
                    place = self._places.far_root
                    log.warning(
                        "checkpoint %s could not be copied to %s; retrying: %s",
                        checkpoint_id,
                        place,
                        error,
                    )
                else:
                    path = f"{far.url}/{checkpoint_id}"
                    note = NoteCopy(task=task, checkpoint=checkpoint_id, path=path)
                    return await self._submit(note)
            await asyncio.sleep(delay_s)

    @property
    def _tasks(self) -> dict[str, Task]:
        return self._engine.kernel.state.tasks

    def _known(self, task: str, checkpoint_id: str) -> Checkpoint | None:
        found = self._tasks.get(task)
        return found.checkpoints.get(checkpoint_id) if found is not None else None

    async def _submit(self, command: Command) -> None:
        try:
            await self._engine.submit(command)
        except StrataError as error:
            log.warning("%s was not recorded: %s", type(command).__name__, error)

    async def _remove(self, task: str, checkpoint_id: str) -> None:
        """Delete the files of a failed or deleted checkpoint; a rank may still be writing."""
        checkpoint = self._known(task, checkpoint_id)
        inherited = checkpoint is not None and checkpoint.owner
        if not is_id(checkpoint_id) or inherited:
            return  # the files belong to the user's own code, or to another task
        position = self._engine.kernel.durable
        while not self.deletable(position):
            await asyncio.sleep(DELETE_LOOK_S)
        async with self._room:
            for delay_s in (*DELAYS_S, 0.0):
                try:
                    near, *further = self._places.storages(task)
                    recycle = self._wants_spares(task, checkpoint_id)
                    await asyncio.to_thread(delete_files, near, checkpoint_id, recycle=recycle)
                    if recycle and not self._wants_spares(task, checkpoint_id):
                        await self._drop_spares(task)  # the task ended meanwhile
                    for far in further:
                        await asyncio.to_thread(delete_files, far, checkpoint_id, recycle=False)
                    return
                except StrataError as error:
                    log.warning(
                        "the files of checkpoint %s could not be deleted; retrying: %s",
                        checkpoint_id,
                        error,
                    )
                    await asyncio.sleep(delay_s)

    def _wants_spares(self, task: str, checkpoint_id: str) -> bool:
        """Whether the next save may overwrite its parts: it expired, and the task still runs."""
        found, checkpoint = self._tasks.get(task), self._known(task, checkpoint_id)
        expired = checkpoint is not None and checkpoint.state == "deleted"
        return self._places.recycle and expired and found is not None and not found.ended

    async def _drop_spares(self, task: str) -> None:
        """Delete the spare files of a task that has ended."""
        known = self._tasks.get(task)  # None: deleted in the turn in which it ended
        if known is not None and not known.checkpoints:
            return
        try:
            await asyncio.to_thread(drop_spares, self._places.storage(task))
        except StrataError as error:
            log.warning("the spare files of %s could not be deleted: %s", task, error)

    async def _sweep(self, task: str) -> None:
        """Delete files of failed and deleted checkpoints that an earlier coordinator left."""
        if self._tasks[task].ended:
            await self._drop_spares(task)
        storage = self._places.storage(task)
        try:
            listing = await asyncio.to_thread(storage.list)
        except StrataError as error:
            log.warning("old checkpoint files of %s could not be listed: %s", task, error)
            return
        manifests = {found.name for found in listing.objects}
        for name in listing.folders:
            checkpoint = self._known(task, name)
            unwanted = (
                name + MANIFEST_SUFFIX not in manifests
                if checkpoint is None
                else checkpoint.state == "deleted"
                or (checkpoint.state == "failed" and not checkpoint.damaged)
            )
            if unwanted and is_id(name):
                await self._remove(task, name)

    async def _watch(self) -> None:
        """Fail checkpoints without progress, for example if a rank never saves its part."""
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            now_s = asyncio.get_running_loop().time()
            moved, self._moved = self._moved, {}
            for task in self._tasks.values():
                for checkpoint in task.checkpoints.values():
                    if checkpoint.state != "in_progress" or not checkpoint.manifest:
                        continue
                    key, done = (task.id, checkpoint.id), self._done_bytes(task, checkpoint)
                    before, since_s = moved.get(key, (-1, now_s))
                    self._moved[key] = (done, since_s if done == before else now_s)
                    if now_s - self._moved[key][1] >= self._timeout_s:
                        self._begin(self._give_up(task.id, checkpoint))

    def _done_bytes(self, task: Task, checkpoint: Checkpoint) -> int:
        """Bytes of acknowledged parts, plus what ranks report to have written."""
        writing = self._heartbeats.saving(task, checkpoint)
        return checkpoint.size_bytes + sum(each.written_bytes for each in writing)

    async def _give_up(self, task: str, checkpoint: Checkpoint) -> None:
        absent = [str(rank) for rank in range(checkpoint.expected) if rank not in checkpoint.parts]
        ranks = ", ".join(absent)
        reason = f"no progress for {self._timeout_s:g} s; the part of rank {ranks} is missing"
        await self._submit(FailCheckpoint(task=task, checkpoint=checkpoint.id, reason=reason))


def write_manifest(storage: StorageBackend, checkpoint: Checkpoint) -> str:
    """Write the manifest of a checkpoint from its sidecars; returns the checkpoint's path."""
    checksums = {rank: part.checksum for rank, part in checkpoint.parts.items()}
    sidecars = read_sidecars(storage, checkpoint.id, checksums)
    number = int(checkpoint.id.rpartition("-")[2])
    commit(storage, manifest_of(sidecars, number, checkpoint.created_ns))
    return f"{storage.url}/{checkpoint.id}"


def copy_named(near: StorageBackend, far: StorageBackend, checkpoint_id: str) -> None:
    """Copy the checkpoint with this id."""
    copy_checkpoint(near, far, Catalog(near).read(checkpoint_id))
