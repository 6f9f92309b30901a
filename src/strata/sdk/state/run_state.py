"""The state of a run: save it, restore it, and send it to other workers."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from typing import Any, Protocol

import msgspec

from strata.checkpoint.state.stateful import plain
from strata.config import Settings
from strata.core.limits import finite_values
from strata.core.state import Outcome
from strata.errors import Corrupt, NotAllowedNow, StrataError
from strata.sdk.data.script_position import ScriptPosition
from strata.sdk.peers.blob_server import Blobs
from strata.sdk.session.agreed_values import AgreedValues
from strata.sdk.session.membership import Recovery
from strata.sdk.session.run_worker import RunWorker
from strata.sdk.state.final_save import FinalCalls, FinalSave
from strata.sdk.state.initial_weights import InitialWeights, WeightLoader
from strata.sdk.state.logged_metrics import LoggedMetrics
from strata.sdk.state.model_offer import ModelOffer
from strata.sdk.state.restorer import Restorer, StorageWaiter
from strata.sdk.state.save_policy import SavePolicy
from strata.sdk.state.saver import SavePosition, Saver
from strata.sdk.state.state_checks import StateChecks
from strata.storage.backend import StorageBackend
from strata.storage.locations import configured_storage, open_storage
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

NOTHING = object()
SCRIPT = "/script"
"""The key of the script's position among those of datasets, whose names have no slash."""


class Positioned(Protocol):
    """An object with a position to save, such as batches."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class RunState:
    """The state of a run and its checkpoints. For the training thread, unless stated otherwise."""

    def __init__(
        self,
        worker: RunWorker,
        settings: Settings,
        task_config: Mapping[str, str],
        policy: SavePolicy,
    ) -> None:
        self.state: Any = NOTHING
        self._build: Callable[[], Any] | None = None
        self._feeds: dict[str, Positioned] = {}
        self._positions: dict[str, dict[str, Any]] = {}
        self.script = ScriptPosition()
        self.checks = StateChecks()
        self.script.check_replay = lambda: self.checks.require_unchanged(self.state)
        self.script.note_cut = lambda: self.checks.note_cut(self.state)
        self.script.changed_since_cut = lambda: self.checks.changed_since_cut(self.state)
        self.due = worker.due
        self.due.policy = policy
        self._worker, self._settings, self._task_config = worker, settings, task_config
        self._membership, self._session = worker.membership, worker.session
        self._open: StorageBackend | None = None
        self.saver = Saver(worker, self.storage, self.due.took)
        self.due.under_way = lambda: self.saver.under_way
        self.due.waits = settings.checkpoint_when_busy == "wait"
        self._metadata: dict[str, object] = {}
        self.metrics = LoggedMetrics(task_config.get("keep_best", ""))
        self._restorer = Restorer(worker)
        self._sources: dict[str, list[StorageBackend]] = {}
        self._storage_wait = StorageWaiter(
            self._session, self._membership, lambda: self.due.stopping()
        )
        self.blobs = Blobs(worker.recorder)
        self._model_offer = ModelOffer(self.blobs)
        self.initial: InitialWeights | None = None
        self.agreements = AgreedValues(
            worker, lambda: "" if self.due.finishing else self.due.stopping()
        )
        self._weights = WeightLoader(worker.recorder, settings, self._roots)
        self._warm_starts = (0, 0)
        self._given = 0
        self._replaced = self._warned_of_clear_text = False
        worker.saving = self.saver.saving
        self._membership.address = self._address

    @property
    def has_state(self) -> bool:
        """Whether the script has set its state."""
        return self.state is not NOTHING

    @property
    def known_state(self) -> Any:
        """The state that the script has set; raises if there is none."""
        if not self.has_state:
            raise NotAllowedNow("the run has no state", hint="call run.restore(state) first")
        return self.state

    def rebuild(self, build: Callable[[], Any]) -> None:
        """Set a function that builds the state in each generation."""
        self._build = build
        self._membership.rebuilds = True

    def storage(self) -> StorageBackend:
        """The storage of the task's checkpoints; opened when first needed."""
        if self._open is None:
            own = self._settings.checkpoint_dir or self._settings.storage_backend == "s3"
            root = (
                configured_storage(self._settings).url
                if own
                else self._task_config["checkpoint_root"]
            )
            url = f"{root}/{self._task_config['checkpoint_folder']}"
            self._open = open_storage(url, self._settings)
        return self._open

    def _storages(self, checkpoint: str = "") -> list[StorageBackend]:
        """All storages to restore a checkpoint from, nearest first; few retries, as callers retry.

        A fork finds the checkpoint at which it was forked in the folder of another task.
        """
        inherited = msgspec.json.decode(self._task_config.get("inherited", "{}"))
        folder = inherited.get(checkpoint, self._task_config["checkpoint_folder"])
        if folder not in self._sources:
            root = self.storage().url.removesuffix(f"/{self._task_config['checkpoint_folder']}")
            roots = [root, self._task_config.get("checkpoint_upload", "")]
            places = [f"{each}/{folder}" for each in roots if each]
            self._sources[folder] = [
                open_storage(place, self._settings, retries=3) for place in places
            ]
        return self._sources[folder]

    def apply_recovery(self, recovery: Recovery) -> None:
        """Restore the state for the entered generation, and offer it to other workers."""
        place, standing = self._membership.place, self._membership.entered
        self.blobs.open_to(standing)
        if self._build is not None:
            self.state = self._build()
            self.checks.partly_changed = ""
            self.metrics.restore({})
        elif recovery.source == "fresh" and self._has_changed:
            raise NotAllowedNow(
                "the task restarts from step 0, but this process has already changed its state",
                hint="start the process again; with checkpoints the task would have resumed",
            )
        if self.initial is not None and self.starts_warm(recovery):
            self.state = self.load_weights(self.state, self.initial)
        if not recovery.in_place and self._membership.model.step < 0:
            self._model_offer.stop()
            self._replaced = True
            if recovery.source == "checkpoint":
                self.state, manifest = self._storage_wait.until_reached(
                    lambda: self._restorer.from_nearest(
                        self._storages(recovery.checkpoint_id),
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
            self.metrics.restore(manifest.metrics)
            if SCRIPT in manifest.data:
                self.script.load_state_dict(manifest.data[SCRIPT])
            self.checks.note_restored(self.state)
        elif place.generation != self._given:
            self._give(standing, recovery)
        self._given = place.generation
        self._storage_wait.ended()
        self.due.begin(recovery.step)

    @property
    def _has_changed(self) -> bool:
        """Whether the state is no longer the one with which the script started."""
        partly = bool(self.checks.partly_changed)
        return self._membership.applied > 0 or self._replaced or partly

    def attach(self, name: str, feed: Positioned) -> None:
        """Add the position of a dataset to the state; a saved position must have its order."""
        self._feeds[name] = feed
        self._reposition(self._positions)

    def _data(self) -> dict[str, Any]:
        """The positions of all datasets and of the script, saved with the state."""
        positions = {name: feed.state_dict() for name, feed in self._feeds.items()}
        return {**positions, SCRIPT: self.script.state_dict()}

    def _reposition(self, positions: dict[str, dict[str, Any]]) -> None:
        self._positions = positions
        for name in positions.keys() & self._feeds.keys():
            self._feeds[name].load_state_dict(positions[name])

    def starts_warm(self, recovery: Recovery) -> bool:
        """Whether this recovery is a fresh start that begins with weights from elsewhere."""
        fresh = recovery.source == "fresh" and self._membership.steps == 0
        return fresh and self.initial is not None

    def load_weights(self, state: Any, wanted: InitialWeights) -> Any:
        """Fill a state with the weights that a fresh start begins with; a collective call."""
        place = self._membership.place
        generation, count = self._warm_starts
        count = count + 1 if generation == place.generation else 1
        self._warm_starts = (place.generation, count)

        def agree(what: str, value: str) -> str:
            return self.agreements.agree(f"warm-start-{place.generation}-{count}-{what}", value)

        return self._weights.load(state, wanted, place.rank, agree)

    def _roots(self) -> list[str]:
        """The storage URLs in which each task of the cluster has a folder, nearest first."""
        return [each.url.rpartition("/")[0] for each in self._storages()]

    def _give(self, standing: pb.Standing, recovery: Recovery) -> None:
        """Offer this worker's model if other workers need it."""
        mine = self._session.identity.worker_id
        chosen = [peer.worker_id for peer in standing.recovery.peers]
        if recovery.source != "peer" or not standing.recovery.fetching or mine not in chosen:
            return self._model_offer.stop()
        fetching = standing.recovery.fetching
        self._model_offer.offer(
            plain(self.state),
            standing.generation,
            recovery.step,
            fetching,
            self._data(),
            finite_values(self.metrics.last()),
        )

    def _address(self) -> str:
        """The address for downloading this worker's model; empty if it has none to offer."""
        self._model_offer.stop()
        return self.own_address() if self.has_state else ""

    def own_address(self) -> str:
        """The address at which peers reach this worker."""
        # Peers may connect as soon as all have entered, before this worker trains again.
        standing = self._membership.standing
        self.blobs.open_to(standing if standing is not None else pb.Standing())
        self._warn_of_clear_text(standing)
        target = self._worker.connection.address
        return self.blobs.address((target.host, target.port))

    def _warn_of_clear_text(self, standing: pb.Standing | None) -> None:
        """Log once that workers do not encrypt what they send each other, unlike this worker."""
        if standing is None or standing.peer_certificate or self._warned_of_clear_text:
            return
        if self._worker.connection.encrypted:
            self._warned_of_clear_text = True
            log.warning(
                "workers send each other their models in clear text: the coordinator itself does "
                "not use TLS (a proxy does), or is of an older release"
            )

    def refuse(self, error: StrataError) -> None:
        """Report that the chosen source is unusable; raises the error if there is no other."""
        generation = self._membership.place.generation
        refusal = pb.RefuseRecovery(
            generation=generation, reason=str(error)[:1_000], damaged=isinstance(error, Corrupt)
        )
        log.warning("the model cannot be restored from the chosen source: %s", error)
        try:
            self._session.answer(self._session.ask("refuse_recovery", refusal))
        except NotAllowedNow:
            raise error from None

    def prepare_saves(self) -> None:
        """Prepare memory for the first save, in the background."""
        if self.has_state and self.due.policy.active:
            self.storage()  # opens it, so that its free space is reported from now on
            self.saver.prepare(plain(self.state), self._membership.place)

    def save_if_due(self, step: int, epoch: int) -> bool:
        """Start a save if one is due; True if it did. Every rank asks after every step."""
        return self.has_state and self.due.now(step) and self.save(step, epoch)

    def save(self, step: int, epoch: int, metadata: Mapping[str, object] | None = None) -> bool:
        """Start a save; False if it is postponed because another save is running."""
        self._metadata |= metadata or {}
        busy = self.saver.under_way
        if busy is not None and not self.due.waits:
            self.due.postpone(step, busy)
            return False
        self._begin_save(step, epoch)
        return True

    def _begin_save(self, step: int, epoch: int, final: bool = False) -> None:
        self.checks.require_whole()
        metadata, self._metadata = self._metadata, {}
        place = self._membership.place
        if place.rank == 0:
            self.metrics.check_best()
        moment = SavePosition(
            step=step,
            epoch=epoch,
            place=place,
            metadata=metadata,
            data=self._data(),
            metrics=self.metrics.last() if place.rank == 0 else {},
            final=final,
        )
        self.due.saved(step, self.saver.save(plain(self.known_state), moment))

    def save_at_end(self, timeout_s: float) -> None:
        """Save the final state even if its step is saved: the metrics may have changed since.

        Waits for a running save.
        """
        self.saver.wait(timeout_s)
        self.saver.committed = (0, 0)
        self.due.postponed = True

    def finish(self, outcome: Outcome, epoch: int, timeout_s: float) -> str:
        """Finish saving; returns why the final state is not saved, or an empty string."""
        self._worker.waiting = True  # no more steps follow, and that is not a hang
        calls = FinalCalls(
            wanted=partial(self._wants_final_save, outcome),
            begin=lambda step: self._begin_save(step, epoch, final=True),
            apply_recovery=self.apply_recovery,
        )
        try:
            final = FinalSave(self._session, self._membership, self.saver, calls)
            unsaved = final.save(outcome == "done", timeout_s)
        finally:
            self.blobs.close()
            for source in chain.from_iterable(self._sources.values()):
                source.close()
            if self._open is not None and not self.saver.busy:
                self._open.close()
        if unsaved:
            log.error("the state after %d steps is not saved: %s", self._membership.steps, unsaved)
        return unsaved

    def _wants_final_save(self, outcome: Outcome, step: int) -> bool:
        """Whether the final state should be saved and is not saved yet.

        A run that failed, or that saves only on request and has nothing postponed, needs no final
        save.
        """
        due = self.due
        wanted = (due.policy.active and due.even) or due.postponed
        stopped = outcome == "stopped" and due.finishing and self.script.resumable
        ended = outcome == "done" or stopped
        saved = self.saver.committed == (self._membership.place.attempt, step)
        return self.has_state and wanted and ended and step > 0 and not saved
