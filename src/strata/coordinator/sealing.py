"""Makes checkpoints real, and removes those that are not: the files behind the facts.

When every rank has acknowledged its part the manifest is written, from what the ranks left beside
their parts, and the checkpoint is confirmed. Writing it again changes nothing, so whatever was
`sealing` when the coordinator died is simply sealed again. When a checkpoint has failed or was
deleted, its files go, the manifest first, or are left for the next save to write over; a committed
one that turned out to be damaged keeps them, for whoever wants to look. And a checkpoint in which
nothing has moved for long is given up. Where the settings name a second place, committed
checkpoints are copied there, one after the other.

All file work is done in threads; the event loop only decides.
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from itertools import chain, repeat

from strata.checkpoint.catalog import Catalog, is_id
from strata.checkpoint.copying import copy_checkpoint
from strata.checkpoint.format import MANIFEST_SUFFIX
from strata.checkpoint.parts import commit
from strata.checkpoint.sidecar import manifest_of, read_sidecars
from strata.checkpoint.spares import drop_spares, retire
from strata.coordinator.engine import Engine
from strata.coordinator.observed import Observed
from strata.coordinator.places import CheckpointPlaces
from strata.core.checkpoints import (
    Checkpoint,
    CheckpointCommitted,
    CheckpointDeleted,
    CheckpointFailed,
    CheckpointSealed,
)
from strata.core.events import Command, Event
from strata.core.saving import ConfirmCheckpoint, FailCheckpoint, NoteCopy
from strata.core.tasks import ENDED, Task, TaskStateChanged
from strata.errors import StrataError, Unavailable
from strata.storage.base import StorageBackend

log = logging.getLogger(__name__)

DELAYS_S = (0.2, 1.0, 5.0, 15.0)
WATCH_INTERVAL_S = 1.0
AT_ONCE = 4


class Sealing:
    """Follows the facts about checkpoints and does what they ask of the storage."""

    def __init__(
        self, engine: Engine, observed: Observed, places: CheckpointPlaces, timeout_s: float
    ) -> None:
        self._engine = engine
        self._observed = observed
        self._places = places
        self._timeout_s = timeout_s
        self._work: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(AT_ONCE)
        self._copying = asyncio.Lock()
        self._moved: dict[tuple[str, str], tuple[int, float]] = {}

    def start(self) -> None:
        """Takes up what an earlier coordinator left, then follows."""
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
        """Ends; what was not finished is taken up by the next coordinator."""
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
        """Writes the manifest and confirms; gives the checkpoint up when that is hopeless."""
        async with self._room:
            for delay_s in (*DELAYS_S, 0.0):
                checkpoint = self._known(task, checkpoint_id)
                if checkpoint is None or checkpoint.state != "sealing":
                    return
                try:
                    storage = self._places.storage(task)
                    path = await asyncio.to_thread(write_manifest, storage, checkpoint)
                except Unavailable as error:
                    log.warning("checkpoint %s is sealed again: %s", checkpoint_id, error)
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
        """Where there is a second place, has the checkpoint copied there."""
        checkpoint = self._known(task, checkpoint_id)
        if checkpoint is not None and checkpoint.manifest and self._places.far_root:
            self._begin(self._copy(task, checkpoint_id))

    async def _copy(self, task: str, checkpoint_id: str) -> None:
        """Copies one checkpoint at a time, until that has gone well or the checkpoint expires."""
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
                    log.warning("checkpoint %s is not in %s yet: %s", checkpoint_id, place, error)
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
        """Removes the files of a checkpoint that is none; a rank may still be writing there."""
        if not is_id(checkpoint_id):
            return  # only told of: its files are not ours
        async with self._room:
            for delay_s in (*DELAYS_S, 0.0):
                try:
                    near, *further = self._places.storages(task)
                    recycle = self._wants_spares(task, checkpoint_id)
                    await asyncio.to_thread(retire, near, checkpoint_id, recycle=recycle)
                    for far in further:
                        await asyncio.to_thread(retire, far, checkpoint_id, recycle=False)
                    return
                except StrataError as error:
                    log.warning("the files of %s stay for now: %s", checkpoint_id, error)
                    await asyncio.sleep(delay_s)

    def _wants_spares(self, task: str, checkpoint_id: str) -> bool:
        """Whether the next save may write over its parts: it had all of them, and there is one."""
        found, checkpoint = self._tasks.get(task), self._known(task, checkpoint_id)
        expired = checkpoint is not None and checkpoint.state == "deleted"
        return self._places.recycle and expired and found is not None and not found.ended

    async def _drop_spares(self, task: str) -> None:
        """Nobody saves any more."""
        known = self._tasks.get(task)  # None: forgotten in the turn in which it ended
        if known is not None and not known.checkpoints:
            return
        try:
            await asyncio.to_thread(drop_spares, self._places.storage(task))
        except StrataError as error:
            log.warning("spare files of %s stay: %s", task, error)

    async def _sweep(self, task: str) -> None:
        """Removes what is left of checkpoints that ended while nobody could remove them."""
        if self._tasks[task].ended:
            await self._drop_spares(task)
        storage = self._places.storage(task)
        try:
            listing = await asyncio.to_thread(storage.list)
        except StrataError as error:
            log.warning("the checkpoints of %s are not swept: %s", task, error)
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
        """Gives up checkpoints in which nothing moves: a rank that never saves would hold them."""
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
        """What is acknowledged, and what ranks say they have written."""
        writing = self._observed.saving(task, checkpoint)
        return checkpoint.size_bytes + sum(each.written_bytes for each in writing)

    async def _give_up(self, task: str, checkpoint: Checkpoint) -> None:
        absent = [str(rank) for rank in range(checkpoint.expected) if rank not in checkpoint.parts]
        reason = f"nothing moved for {self._timeout_s:g} s; no part of rank {', '.join(absent)}"
        await self._submit(FailCheckpoint(task=task, checkpoint=checkpoint.id, reason=reason))


def write_manifest(storage: StorageBackend, checkpoint: Checkpoint) -> str:
    """Commits a checkpoint from its sidecars; answers where it is."""
    checksums = {rank: part.checksum for rank, part in checkpoint.parts.items()}
    sidecars = read_sidecars(storage, checkpoint.id, checksums)
    number = int(checkpoint.id.rpartition("-")[2])
    commit(storage, manifest_of(sidecars, number, checkpoint.created_ns))
    return f"{storage.url}/{checkpoint.id}"


def copy_named(near: StorageBackend, far: StorageBackend, checkpoint_id: str) -> None:
    """Copies a checkpoint that is named by its id."""
    copy_checkpoint(near, far, Catalog(near).read(checkpoint_id))
