"""Restore a state from a checkpoint or from a peer.

Existing arrays and tensors are filled in place. Only what this rank needs is read, and everything
that is read is verified.

`StorageWaiter` waits until the storage of a checkpoint can be reached again. It reports the wait to
the coordinator, which shows it with the task, and retries with growing delays and no limit: the
coordinator stops the task after `storage_timeout_s`, and a new generation or a stop ends the wait
at once.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from strata.checkpoint.manifest import MANIFEST_SUFFIX, Manifest, decode_manifest
from strata.checkpoint.read.checkpoint_reader import CheckpointReader, OpenParts
from strata.checkpoint.read.reachability import ReadOnlyStorage, Unreachable
from strata.checkpoint.state.random_generators import set_random_state
from strata.checkpoint.state.stateful import restore_into, restore_target
from strata.core.workers.exchange_facts import ParametersRequested
from strata.core.workers.worker_operations import (
    CheckpointDownloadCompleted,
    CheckpointDownloadProgress,
    CheckpointDownloadStarted,
    ModelLoadCompleted,
    ModelLoadProgress,
    ModelLoadStarted,
)
from strata.errors import Corrupt, InvalidArgument, StrataError, Unavailable
from strata.sdk.interrupts import GenerationChanged, StopRequested
from strata.sdk.peers.blob_client import PeerClient
from strata.sdk.peers.peer_encryption import peer_encryption
from strata.sdk.record.recorder import RecordedOperation
from strata.sdk.session.channel import delays_s
from strata.sdk.session.membership import Membership
from strata.sdk.session.run_worker import RunWorker
from strata.sdk.session.worker_session import WorkerSession
from strata.sdk.state.model_offer import model_id
from strata.storage.backend import StorageBackend
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)


class DamagedCheckpoint(Corrupt):
    """The checkpoint is damaged in every storage that holds it."""


class PeersUnreachable(Unavailable):
    """No member sends the model from which the generation resumes."""


def _lists_others(storage: StorageBackend) -> bool:
    """Whether the storage holds other checkpoints: an unmounted disk or wrong bucket is empty."""
    try:
        found = storage.list()
    except (StrataError, OSError):
        return False
    return bool(found.objects or found.folders)


class Restorer:
    """Restores states for one worker."""

    def __init__(self, worker: RunWorker) -> None:
        self._worker = worker
        self._recorder = worker.recorder

    def from_nearest(
        self,
        storages: Sequence[StorageBackend],
        checkpoint: str,
        state: Any,
        rank: int,
        copies: int = 0,
    ) -> tuple[Any, Manifest]:
        """Restore a state from the nearest storage that is reachable and has it undamaged.

        Raises `DamagedCheckpoint` if it is damaged in every storage that holds it, and
        `Unreachable` if one of them could not be read. A farther storage to which nothing was
        copied (`copies` is 0) need not hold it.
        """
        damage: Corrupt | None = None
        away: Unreachable | None = None
        for number, storage in enumerate(storages):
            try:
                return self._from_checkpoint(storage, checkpoint, state, rank)
            except Corrupt as error:
                damage = damage or error
                log.warning("checkpoint %s in %s is damaged: %s", checkpoint, storage.url, error)
            except Unreachable as error:
                error.missing = error.missing and _lists_others(storage)
                if number == 0 or copies:
                    away = away or error
        if away is not None:
            raise away
        assert damage is not None, "at least one storage holds the checkpoint"
        raise DamagedCheckpoint(damage.message, hint=damage.hint) from damage

    def _from_checkpoint(
        self, storage: StorageBackend, checkpoint: str, state: Any, rank: int
    ) -> tuple[Any, Manifest]:
        name = checkpoint + MANIFEST_SUFFIX
        reached = ReadOnlyStorage(storage)
        manifest = decode_manifest(reached.get(name), f"{storage.url}/{name}")
        download = RecordedOperation(
            self._recorder,
            f"restore-{checkpoint}",
            CheckpointDownloadStarted(checkpoint=checkpoint, size_bytes=manifest.size_bytes),
            lambda done_bytes: CheckpointDownloadProgress(
                done_bytes=done_bytes, checkpoint=checkpoint
            ),
            lambda ok, error: CheckpointDownloadCompleted(
                ok=ok, error=error, checkpoint=checkpoint
            ),
        )
        try:
            loaded, local = self._read(reached, manifest, state, rank, download)
        except BaseException as error:
            download.end(error)
            raise
        download.end()
        state = self._put(state, loaded, checkpoint, manifest.step)
        if local is not None:
            set_random_state(local[f"rank-{rank:05d}"]["random"])
        return state, manifest

    def from_peers(self, standing: pb.Standing, worker_id: str, state: Any) -> tuple[Any, Manifest]:
        """Restore a state from one of the peers that offer it; returns it and its manifest."""
        failure: StrataError = Unavailable(
            "no other worker offers its model",
            hint="call run.restore on every worker: it offers the state to the others",
        )
        for attempt, offer in enumerate(standing.recovery.peers, 1):
            peer = PeerClient(
                offer.worker_id,
                offer.address,
                standing.peer_token,
                worker_id,
                attempt,
                self._recorder,
                peer_encryption(standing.peer_certificate),
            )
            try:
                restored = self._from_peer(peer, standing, state)
                self._recorder.emit(ParametersRequested(peer=offer.worker_id))
                return restored
            except InvalidArgument:
                raise  # the states have different structures, for any peer
            except StrataError as error:
                log.warning("could not download the model from %s: %s", offer.worker_id, error)
                self._recorder.emit(
                    ParametersRequested(peer=offer.worker_id, ok=False, error=error.message)
                )
                failure = error
        raise PeersUnreachable(
            f"no other worker sent its model: {failure.message}", hint=failure.hint
        ) from failure

    def _from_peer(
        self, peer: PeerClient, standing: pb.Standing, state: Any
    ) -> tuple[Any, Manifest]:
        name = model_id(standing.generation) + MANIFEST_SUFFIX
        manifest = decode_manifest(peer.get(name), f"{peer.url}/{name}")
        # The manifest is confirmed last: after that the peer releases the whole model.
        names = [f"{manifest.checkpoint_id}/{part.file}" for part in manifest.parts] + [name]
        download = peer.downloading(manifest.parts[0].xxh3, manifest.size_bytes, "model")
        try:
            loaded, _ = self._read(peer, manifest, state, -1, download)
        except BaseException as error:
            download.end(error)
            for each in names:
                peer.confirm(each, str(error) or type(error).__name__)
            raise
        download.end()
        for each in names:
            peer.confirm(each)
        return self._put(state, loaded, "", manifest.step), manifest

    def _read(
        self,
        source: OpenParts,
        manifest: Manifest,
        state: Any,
        rank: int,
        download: RecordedOperation,
    ) -> tuple[Any, Any]:
        with CheckpointReader(source, manifest, progress=download.progress) as reader:
            return reader.load(restore_target(state)), reader.load_local(rank)

    def _put(self, state: Any, loaded: Any, checkpoint: str, step: int) -> Any:
        load = RecordedOperation(
            self._recorder,
            f"load-{checkpoint or 'model'}-{step}",
            ModelLoadStarted(checkpoint=checkpoint, step=step),
            lambda done_bytes: ModelLoadProgress(done_bytes=done_bytes, checkpoint=checkpoint),
            lambda ok, error: ModelLoadCompleted(ok=ok, error=error, checkpoint=checkpoint),
        )

        def placed(value: Any) -> None:
            load.progress(load.done_bytes + getattr(value, "nbytes", 0))

        try:
            state = restore_into(state, loaded, placed)
        except BaseException as error:
            load.end(error)
            raise
        load.end()
        return state


FIRST_DELAY_S = 0.5
MAX_DELAY_S = 10.0
LOG_EVERY_S = 60.0
REASON_CHARACTERS = 1_000

Result = TypeVar("Result")


class StorageWaiter:
    """The waits of one worker; `stopping` returns why the worker should end, or an empty string."""

    def __init__(
        self, session: WorkerSession, membership: Membership, stopping: Callable[[], str]
    ) -> None:
        self._session, self._membership = session, membership
        self._stopping = stopping
        self._reported: tuple[int, bool] | None = None
        self._since_s = 0.0
        self._logged_s = 0.0

    def until_reached(self, attempt: Callable[[], Result]) -> Result:
        """Retry `attempt` until its storage can be reached; returns its result."""
        delays = delays_s(FIRST_DELAY_S, MAX_DELAY_S)
        while True:
            try:
                return attempt()
            except Unreachable as error:
                self._note(error)
                self._pause(next(delays))

    def ended(self) -> None:
        """Report the end of a wait, if one was reported."""
        if self._reported:
            log.info(
                "the model is restored after waiting %.1f s for storage",
                time.monotonic() - self._since_s,
            )
            self._report(reachable=True, reason="")
            self._reported = None

    def _note(self, error: Unreachable) -> None:
        """Report the wait once per generation and cause, and log it every `LOG_EVERY_S`."""
        now_s = time.monotonic()
        if not self._reported:
            self._since_s, self._logged_s = now_s, 0.0
        if now_s - self._logged_s >= LOG_EVERY_S or not self._logged_s:
            self._logged_s = now_s
            waited_s = now_s - self._since_s
            trouble = "a file is missing" if error.missing else "storage unreachable"
            log.error("%s for %.0f s, retrying: %s", trouble, waited_s, error)
        found = (self._membership.place.generation, error.missing)
        if self._reported != found:
            self._reported = found
            self._report(
                reachable=False, reason=str(error)[:REASON_CHARACTERS], missing=error.missing
            )

    def _report(self, *, reachable: bool, reason: str, missing: bool = False) -> None:
        report = pb.ReportStorage(
            generation=self._membership.place.generation,
            reachable=reachable,
            reason=reason,
            missing=missing,
        )
        self._session.ask("report_storage", report)

    def _pause(self, delay_s: float) -> None:
        def interrupted() -> bool:
            return self._membership.changed or bool(self._stopping())

        self._session.wait_for(interrupted, delay_s)
        if reason := self._stopping():
            raise StopRequested(f"stopped before the model was restored: {reason}")
        if self._membership.changed:
            raise GenerationChanged("the membership changed while storage was unreachable")
