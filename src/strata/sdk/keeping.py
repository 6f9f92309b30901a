"""The state of a run: where its checkpoints lie; saving it, bringing it back, giving it away."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from strata.checkpoint.catalog import Catalog, is_id
from strata.checkpoint.randomness import random_state, set_random_state
from strata.checkpoint.stateful import plain
from strata.config import Settings
from strata.core.workers import Outcome
from strata.errors import Corrupt, NotAllowedNow, NotFound, StrataError
from strata.sdk.blobs import Blobs
from strata.sdk.due import Policy
from strata.sdk.final_save import FinalCalls, FinalSave
from strata.sdk.giving import Giver
from strata.sdk.membership import Recovery
from strata.sdk.position import Script
from strata.sdk.restoring import Restorer
from strata.sdk.saving import Moment, Saver
from strata.sdk.state_checks import StateChecks
from strata.sdk.storage_wait import StorageWait
from strata.sdk.worker import Worker
from strata.storage.base import StorageBackend
from strata.storage.opening import configured_storage, open_storage
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

NOTHING = object()
SCRIPT = "/script"
"""The script's position beside those of datasets, whose names have no slash."""


class Positioned(Protocol):
    """Something that knows how far it has come, such as batches."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Keeping:
    """What a run knows of its state. For the training thread, except where it says otherwise."""

    def __init__(
        self,
        worker: Worker,
        settings: Settings,
        told: Mapping[str, str],
        policy: Policy,
    ) -> None:
        self.state: Any = NOTHING
        self._build: Callable[[], Any] | None = None
        self._feeds: dict[str, Positioned] = {}
        self._positions: dict[str, dict[str, Any]] = {}
        self.script = Script()
        self.checks = StateChecks()
        self.script.check_replay = lambda: self.checks.require_unchanged(self.state)
        self.due = worker.due
        self.due.policy = policy
        self._worker, self._settings, self._told = worker, settings, told
        self._membership, self._session = worker.membership, worker.session
        self._open: StorageBackend | None = None
        self.saver = Saver(worker, self.storage, self.due.took)
        self.due.under_way = lambda: self.saver.under_way
        self.due.waits = settings.checkpoint_when_busy == "wait"
        self._metadata: dict[str, object] = {}
        self._restorer = Restorer(worker)
        self._sources: list[StorageBackend] = []
        self._storage_wait = StorageWait(
            self._session, self._membership, lambda: self.due.stopping()
        )
        self.blobs = Blobs(worker.recorder)
        self._giver = Giver(self.blobs)
        self._given = 0
        self._replaced = False
        worker.saving = self.saver.saving
        self._membership.address = self._address

    @property
    def has_state(self) -> bool:
        """Whether the script has named its state."""
        return self.state is not NOTHING

    @property
    def known_state(self) -> Any:
        """The state that the script has named."""
        if not self.has_state:
            raise NotAllowedNow("the run knows no state", hint="call run.restore(state) first")
        return self.state

    def rebuild(self, build: Callable[[], Any]) -> None:
        """The state is made anew in each generation."""
        self._build = build
        self._membership.rebuilds = True

    def storage(self) -> StorageBackend:
        """Where the task's checkpoints lie, seen from here; opened when first needed."""
        if self._open is None:
            own = self._settings.checkpoint_dir or self._settings.storage_backend == "s3"
            root = configured_storage(self._settings).url if own else self._told["checkpoint_root"]
            url = f"{root}/{self._told['checkpoint_folder']}"
            self._open = open_storage(url, self._settings)
        return self._open

    def _storages(self) -> list[StorageBackend]:
        """Every place to restore from, the nearest first; each fails soon, as it is tried again."""
        if not self._sources:
            far = self._told.get("checkpoint_upload", "")
            places = [self.storage().url]
            if far:
                places.append(f"{far}/{self._told['checkpoint_folder']}")
            self._sources = [open_storage(place, self._settings, retries=3) for place in places]
        return self._sources

    def carry_out(self, recovery: Recovery) -> None:
        """Brings the state to where the entered generation goes on, and gives it to others."""
        place, standing = self._membership.place, self._membership.entered
        self.blobs.token = standing.peer_token
        if self._build is not None:
            self.state = self._build()
        elif recovery.source == "fresh" and (self._membership.applied or self._replaced):
            raise NotAllowedNow(
                "the task begins anew, and the state of this process is no longer its first one",
                hint="start the process again; checkpoints would have kept the task's progress",
            )
        if not recovery.in_place and self._membership.model.step < 0:
            self._giver.stop()
            self._replaced = True
            if recovery.source == "checkpoint":
                self.state, manifest = self._storage_wait.until_reached(
                    lambda: self._restorer.from_nearest(
                        self._storages(),
                        recovery.checkpoint_id,
                        self.state,
                        place.rank,
                        standing.recovery.copies,
                    )
                )
                self.saver.committed = (place.attempt, recovery.step)
            else:
                self.state, manifest = self._restorer.from_peers(
                    standing, self._session.identity.worker_id, self.state
                )
            self._reposition(manifest.data)
            if SCRIPT in manifest.data:
                self.script.load_state_dict(manifest.data[SCRIPT])
            self.checks.note_restored(self.state)
        elif place.generation != self._given:
            self._give(standing, recovery)
        self._given = place.generation
        self._storage_wait.ended()
        self.due.begin(recovery.step)

    def attach(self, name: str, feed: Positioned) -> None:
        """Keeps the position of a dataset; one that was saved must be of the same order."""
        self._feeds[name] = feed
        self._reposition(self._positions)

    def _data(self) -> dict[str, Any]:
        """What is saved beside the state: the position of every dataset, and of the script."""
        positions = {name: feed.state_dict() for name, feed in self._feeds.items()}
        return {**positions, SCRIPT: self.script.state_dict()}

    def _reposition(self, positions: dict[str, dict[str, Any]]) -> None:
        self._positions = positions
        for name in positions.keys() & self._feeds.keys():
            self._feeds[name].load_state_dict(positions[name])

    def load(self, where: str, state: Any) -> Any:
        """A state from the newest checkpoint, or the one named, of another task or place."""
        storage, checkpoint = self._elsewhere(where)
        random = random_state()
        state, manifest = self._restorer.from_checkpoint(
            storage, checkpoint, state, self._membership.place.rank
        )
        set_random_state(random)  # the script's own seed, not that of the task that saved
        log.info("began with %s/%s, step %d", storage.url, checkpoint, manifest.step)
        return state

    def _elsewhere(self, where: str) -> tuple[StorageBackend, str]:
        folder, _, last = where.rstrip("/").rpartition("/")
        place, checkpoint = (folder, last) if is_id(last) else (where, "")
        if "/" not in place:  # a task of this cluster
            root, _, _ = self.storage().url.rpartition("/")
            place = f"{root}/{place}" if place else self.storage().url
        storage = open_storage(place, self._settings)
        newest = [checkpoint] if checkpoint else Catalog(storage).newest_ids()
        if not newest:
            raise NotFound(f"there is no checkpoint in {storage.url}", hint="leave resume out")
        return storage, newest[0]

    def _give(self, standing: pb.Standing, recovery: Recovery) -> None:
        """Where others need this worker's model, copies it for them."""
        mine = self._session.identity.worker_id
        chosen = [peer.worker_id for peer in standing.recovery.peers]
        if recovery.source != "peer" or not standing.recovery.fetching or mine not in chosen:
            return self._giver.stop()
        fetching = standing.recovery.fetching
        self._giver.give(
            plain(self.state), standing.generation, recovery.step, fetching, self._data()
        )

    def _address(self) -> str:
        """Where others may fetch the model, if there is one that they could use."""
        self._giver.stop()
        return self.own_address() if self.has_state else ""

    def own_address(self) -> str:
        """Where other workers reach this one."""
        # Others may ask as soon as all have entered, which may be before this worker trains on.
        standing = self._membership.standing
        self.blobs.token = standing.peer_token if standing is not None else ""
        target = self._worker.connection.address
        return self.blobs.address((target.host, target.port))

    def refuse(self, error: StrataError) -> None:
        """Tells that the chosen source cannot be had; raises the error if there is no other."""
        generation = self._membership.place.generation
        refusal = pb.RefuseRecovery(
            generation=generation, reason=str(error)[:1_000], damaged=isinstance(error, Corrupt)
        )
        log.warning("the model cannot be restored: %s", error)
        try:
            self._session.answer(self._session.ask("refuse_recovery", refusal))
        except NotAllowedNow:
            raise error from None

    def prepare_saves(self) -> None:
        """Makes memory ready for the first save, in the background."""
        if self.has_state and self.due.policy.active:
            self.storage()  # from now on it is known on which disk the checkpoints lie
            self.saver.prepare(plain(self.state), self._membership.place)

    def save_if_due(self, step: int, epoch: int) -> bool:
        """Begins to save if a save is due; whether it did. Every rank asks after every step."""
        return self.has_state and self.due.now(step) and self.save(step, epoch)

    def save(self, step: int, epoch: int, metadata: Mapping[str, object] | None = None) -> bool:
        """Begins to save; False if the save is postponed because another one is under way."""
        self._metadata |= metadata or {}
        busy = self.saver.under_way
        if busy is not None and not self.due.waits:
            self.due.postpone(step, busy)
            return False
        self._begin_save(step, epoch)
        return True

    def _begin_save(self, step: int, epoch: int, final: bool = False) -> None:
        metadata, self._metadata = self._metadata, {}
        moment = Moment(
            step=step,
            epoch=epoch,
            place=self._membership.place,
            metadata=metadata,
            data=self._data(),
            final=final,
        )
        self.due.saved(step, self.saver.save(plain(self.known_state), moment))

    def finish(self, outcome: Outcome, epoch: int, timeout_s: float) -> str:
        """Ends all of this; why the state in which training ended is not saved, if it should be."""
        self._worker.waiting = True  # no more steps come, and that is not a hang
        calls = FinalCalls(
            wanted=partial(self._wants_final_save, outcome),
            begin=lambda step: self._begin_save(step, epoch, final=True),
            carry_out=self.carry_out,
        )
        try:
            final = FinalSave(self._session, self._membership, self.saver, calls)
            unsaved = final.save(outcome == "done", timeout_s)
        finally:
            self.blobs.close()
            for source in self._sources:
                source.close()
            if self._open is not None and not self.saver.busy:
                self._open.close()
        if unsaved:
            log.error("the state after step %d is not saved: %s", self._membership.steps, unsaved)
        return unsaved

    def _wants_final_save(self, outcome: Outcome, step: int) -> bool:
        """Whether the state in which training ended should be saved and is not.

        Nothing is saved for a run that failed, or that saves nothing by itself and has nothing
        postponed; then what counts is how its last save ended.
        """
        due = self.due
        wanted = (due.policy.active and due.even) or due.postponed
        ended = outcome == "done" or (outcome == "stopped" and due.finishing)
        saved = self.saver.committed == (self._membership.place.attempt, step)
        return self.has_state and wanted and ended and step > 0 and not saved
