"""Bringing a state to where a generation goes on: from a checkpoint, or from a peer.

Arrays and tensors that exist are filled where they are; only what this rank needs is read, and
everything that is read is verified.
"""

import logging
import threading
from collections.abc import Sequence
from typing import Any

from strata.checkpoint.format import MANIFEST_SUFFIX, Manifest, decode_manifest
from strata.checkpoint.randomness import set_random_state
from strata.checkpoint.reach import ReachedStorage, Unreachable
from strata.checkpoint.reader import CheckpointReader, Parts
from strata.checkpoint.stateful import put_back, vessel
from strata.core.worker_facts import ParametersRequested
from strata.core.worker_operations import (
    CheckpointDownloadCompleted,
    CheckpointDownloadProgress,
    CheckpointDownloadStarted,
    ModelLoadCompleted,
    ModelLoadProgress,
    ModelLoadStarted,
)
from strata.errors import Corrupt, InvalidArgument, StrataError, Unavailable
from strata.sdk.channel import delays_s
from strata.sdk.giving import model_id
from strata.sdk.operations import Operation
from strata.sdk.peers import Peer
from strata.sdk.worker import Worker
from strata.storage.base import StorageBackend
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

TRIES = 6


class DamagedCheckpoint(Corrupt):
    """Every storage that holds the checkpoint was read, and what was read does not verify."""


class PeersUnreachable(Unavailable):
    """No member gives the model that the generation goes on from."""


def _lists_others(storage: StorageBackend) -> bool:
    """Whether the storage was reached: an unmounted disk or a wrong bucket lists nothing."""
    try:
        found = storage.list()
    except (StrataError, OSError):
        return False
    return bool(found.objects or found.folders)


class Restorer:
    """Restores states for one worker."""

    def __init__(self, worker: Worker) -> None:
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
        """A state from the nearest storage that can be reached and has it undamaged.

        Raises `DamagedCheckpoint` where every storage that holds it was read and is damaged, and
        `Unreachable` where one of them could not be read. A further storage to which nothing was
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
        assert damage is not None, "a checkpoint lies in one storage at least"
        raise DamagedCheckpoint(damage.message, hint=damage.hint) from damage

    def from_checkpoint(
        self, storage: StorageBackend, checkpoint: str, state: Any, rank: int
    ) -> tuple[Any, Manifest]:
        """A state from storage, and the manifest it came with. A storage that does not answer is
        asked again for a while; damage is raised at once."""
        delays = delays_s(0.5, 10.0)
        for _ in range(TRIES - 1):
            try:
                return self._from_checkpoint(storage, checkpoint, state, rank)
            except Unavailable as error:
                log.warning("checkpoint %s is read again: %s", checkpoint, error)
                threading.Event().wait(next(delays))
        return self._from_checkpoint(storage, checkpoint, state, rank)

    def _from_checkpoint(
        self, storage: StorageBackend, checkpoint: str, state: Any, rank: int
    ) -> tuple[Any, Manifest]:
        name = checkpoint + MANIFEST_SUFFIX
        reached = ReachedStorage(storage)
        manifest = decode_manifest(reached.get(name), f"{storage.url}/{name}")
        download = Operation(
            self._recorder,
            f"restore-{checkpoint}",
            CheckpointDownloadStarted(checkpoint, manifest.size_bytes),
            lambda done_bytes: CheckpointDownloadProgress(done_bytes, checkpoint),
            lambda ok, error: CheckpointDownloadCompleted(ok, error, checkpoint),
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
        """A state from one of the peers that offer it, and the manifest it came with."""
        failure: StrataError = Unavailable(
            "no worker offers its model",
            hint="workers that restored a state with run.restore offer it to others",
        )
        for attempt, giver in enumerate(standing.recovery.peers, 1):
            peer = Peer(
                giver.worker_id,
                giver.address,
                standing.peer_token,
                worker_id,
                attempt,
                self._recorder,
            )
            try:
                restored = self._from_peer(peer, standing, state)
                self._recorder.emit(ParametersRequested(giver.worker_id))
                return restored
            except InvalidArgument:
                raise  # the states are not alike, which no other peer will change
            except StrataError as error:
                log.warning("the model could not be had from %s: %s", giver.worker_id, error)
                self._recorder.emit(ParametersRequested(giver.worker_id, False, error.message))
                failure = error
        raise PeersUnreachable(
            f"no worker gives its model: {failure.message}", hint=failure.hint
        ) from failure

    def _from_peer(self, peer: Peer, standing: pb.Standing, state: Any) -> tuple[Any, Manifest]:
        name = model_id(standing.generation) + MANIFEST_SUFFIX
        manifest = decode_manifest(peer.get(name), f"{peer.url}/{name}")
        # The manifest is confirmed last: with it the peer lets go of everything.
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
        self, source: Parts, manifest: Manifest, state: Any, rank: int, download: Operation
    ) -> tuple[Any, Any]:
        with CheckpointReader(source, manifest, progress=download.progress) as reader:
            return reader.load(vessel(state)), reader.load_local(rank)

    def _put(self, state: Any, loaded: Any, checkpoint: str, step: int) -> Any:
        load = Operation(
            self._recorder,
            f"load-{checkpoint or 'model'}-{step}",
            ModelLoadStarted(checkpoint, step),
            lambda done_bytes: ModelLoadProgress(done_bytes, checkpoint),
            lambda ok, error: ModelLoadCompleted(ok, error, checkpoint),
        )

        def placed(value: Any) -> None:
            load.progress(load.done_bytes + getattr(value, "nbytes", 0))

        try:
            state = put_back(state, loaded, placed)
        except BaseException as error:
            load.end(error)
            raise
        load.end()
        return state
