"""One rank's part of a checkpoint: copy, write, acknowledge, wait for the commit.

`save` copies this rank's share of the state into staging memory and returns. A thread does the
rest, and starts to write during the copy: the coordinator names the checkpoint, the part and its
sidecar go to the storage, and the acknowledgement is answered when the checkpoint is committed or
failed, or when its generation has ended. One save runs at a time, in one staging buffer. An error
fails that checkpoint for all ranks, with the reason, and never stops the training; `failure` is the
error of the last save.
"""

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import SupportsFloat

from google.protobuf.message import Message
from msgspec import Struct, field

from strata.checkpoint.cleanup import spare_for
from strata.checkpoint.manifest import CheckpointPart
from strata.checkpoint.state.random_generators import random_state
from strata.checkpoint.state.state_tree import FlatState, flatten
from strata.checkpoint.write.part_sidecar import Sidecar, sidecar_name, write_sidecar
from strata.checkpoint.write.part_writer import part_file, write_part
from strata.checkpoint.write.rank_shares import own_share, shape_digest
from strata.checkpoint.write.replica_digests import ReplicaDigests
from strata.checkpoint.write.save_job import retried
from strata.checkpoint.write.staging import Staging, StateCapture
from strata.checkpoint.write.unchanged_tensors import LastSave, edge_checksums
from strata.core.limits import finite_values
from strata.core.workers.worker_operations import (
    CheckpointUploadCompleted,
    CheckpointUploadProgress,
    CheckpointUploadStarted,
    CheckpointWriteCompleted,
    CheckpointWriteProgress,
    CheckpointWriteStarted,
    ModelSerializationCompleted,
    ModelSerializationProgress,
    ModelSerializationStarted,
)
from strata.errors import DeadlineExceeded, Fenced, NotAllowedNow, StrataError
from strata.sdk.record.recorder import RecordedOperation
from strata.sdk.session.membership import EnteredGeneration
from strata.sdk.session.run_worker import RunWorker
from strata.sdk.state.save_policy import SaveRequest
from strata.storage.backend import StorageBackend
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

BEAT_INTERVAL_S = 0.5
LATE_ANSWER_S = 5.0
"""How long after the end of its generation a save waits for the coordinator's answer."""

MAX_REASON_CHARACTERS = 1_000


class SavePosition(Struct, frozen=True):
    """The position of training that is saved with a state, for the manifest.

    `metrics` are what rank 0 logged last; a GPU may not have computed all of them yet.
    """

    step: int
    epoch: int
    place: EnteredGeneration
    metadata: dict[str, object] = field(default_factory=dict)
    data: dict[str, object] = field(default_factory=dict)
    metrics: dict[str, SupportsFloat] = field(default_factory=dict)
    final: bool = False


class Unanswered(Exception):
    """The generation of a save ended, and the coordinator did not answer in time."""


class Saver:
    """Saves the parts of one worker. `save` and `wait` are for the training thread.

    `outcome` is called with the seconds that a committed checkpoint took. `failure` is the error of
    the last save, if any; `committed` is the attempt and step of the newest checkpoint.
    """

    def __init__(
        self,
        worker: RunWorker,
        storage: Callable[[], StorageBackend],
        outcome: Callable[[float], None],
    ) -> None:
        self.under_way: SaveRequest | None = None
        self.failure = ""
        self.committed = (0, 0)
        self._worker, self._session = worker, worker.session
        self._storage = storage
        self._outcome = outcome
        self._staging = Staging()
        self._last: LastSave | None = None
        self._thread: threading.Thread | None = None
        self._saving: pb.Saving | None = None
        self._next_beat_s = 0.0

    @property
    def busy(self) -> bool:
        """Whether a save is running."""
        return self.under_way is not None

    def saving(self) -> pb.Saving | None:
        """The progress of the part that is being written, if any."""
        return self._saving

    def prepare(self, state: object, place: EnteredGeneration) -> threading.Thread:
        """Prepare staging memory for such a state in the background, for a fast first save.

        May be called again for a larger state.
        """
        own = own_share(flatten(state), place.rank, place.world_size)
        return self._staging.prepare_in_background([*own.values()])

    def save(self, state: object, moment: SavePosition) -> float:
        """Capture the state; returns the seconds for which training was blocked.

        Waits for a running save; check `busy` before.
        """
        begun_s = time.monotonic()
        if self.busy:
            self.wait(None)
            waited_s = time.monotonic() - begun_s
            log.warning("step %d waited %.1f s for the previous save", moment.step, waited_s)
        self._capture(state, moment)
        return time.monotonic() - begun_s

    def wait(self, timeout_s: float | None) -> None:
        """Wait for the running save, if any."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _capture(self, state: object, moment: SavePosition) -> None:
        op = f"save-{moment.place.generation}-{moment.step}"
        serialization = RecordedOperation(
            self._worker.recorder,
            op,
            ModelSerializationStarted(step=moment.step),
            lambda done_bytes: ModelSerializationProgress(done_bytes=done_bytes),
            lambda ok, error: ModelSerializationCompleted(ok=ok, error=error),
        )
        try:
            self._copy(self._laid_out(op, state, moment), serialization.progress)
        except BaseException as error:
            serialization.end(error)
            raise
        serialization.end()

    def _copy(self, save: "RankSave", progress: Callable[[int], None]) -> None:
        """Copy the state, while a thread starts to write it."""
        self.under_way = SaveRequest(save.moment.step, time.monotonic())
        self._thread = threading.Thread(target=partial(self._run, save), name="strata-save")
        try:
            self._thread.start()
            save.replicas.take()
            save.capture.fill(progress)
        except BaseException as error:
            save.capture.abandon(error)
            if self._thread.ident is None:
                self.under_way = None
            raise

    def _laid_out(self, op: str, state: object, moment: SavePosition) -> "RankSave":
        """Lay out this rank's share of a state in staging memory."""
        flat, rank = flatten(state), moment.place.rank
        local = flatten({f"rank-{rank:05d}": {"random": random_state()}})
        sources = own_share(flat, rank, moment.place.world_size)
        tree = flat.tree if rank == 0 else None
        labels = {"step": str(moment.step), "epoch": str(moment.epoch), "rank": str(rank)}
        capture = self._staging.begin(FlatState(tree, {**sources, **local.sources}), labels)
        replicas = ReplicaDigests(flat.sources, sources, rank, moment.place.world_size)
        return RankSave(
            op=op,
            moment=moment,
            capture=capture,
            local=local.tree,
            shapes=shape_digest(flat),
            replicas=replicas,
        )

    def _begin(self, moment: SavePosition) -> str:
        """The id of the checkpoint of this step; the first rank to ask opens it."""
        begin = pb.BeginCheckpoint(
            generation=moment.place.generation,
            step=moment.step,
            epoch=moment.epoch,
            final=moment.final,
        )
        opened = self._answer("begin_checkpoint", begin, moment)
        if opened.status == "failed":
            raise NotAllowedNow(f"checkpoint {opened.checkpoint_id} failed: {opened.reason}")
        return opened.checkpoint_id

    def _answer(self, kind: str, body: Message, moment: SavePosition) -> pb.Checkpoint:
        """The coordinator's answer; raises `Unanswered` after the end of the generation."""
        membership = self._worker.membership

        def over() -> bool:
            standing = membership.standing
            return standing is None or standing.generation != moment.place.generation

        request = self._session.ask(kind, body)
        self._session.wait_for(lambda: request.done or over())
        try:
            return self._session.answer(request, LATE_ANSWER_S).checkpoint.checkpoint
        except DeadlineExceeded:
            if request.done or not over():
                raise
            raise Unanswered(
                f"generation {moment.place.generation} ended before the answer to {kind}"
            ) from None

    def _run(self, save: "RankSave") -> None:
        """Run a save in its thread; logs an error and reports it to the coordinator."""
        checkpoint, moment, begun_s = "", save.moment, time.monotonic()
        failure, acked = "", False
        try:
            checkpoint = self._begin(moment)
            part = self._write(save, checkpoint)
            ack = pb.AckPart(
                checkpoint_id=checkpoint,
                path=f"{checkpoint}/{part.file}",
                size_bytes=part.size_bytes,
                checksum=part.xxh3,
                kept_bytes=part.kept_bytes,
                metrics=finite_values(moment.metrics),
            )
            acked = True
            ended = self._answer("ack_part", ack, moment)
            if ended.status == "completed":
                log.info("checkpoint %s committed", checkpoint)
                self._last = LastSave(checkpoint, part, edge_checksums(save.capture))
                self.committed = (moment.place.attempt, moment.step)
                self._outcome(time.monotonic() - begun_s)
            else:
                failure = ended.reason
                log.warning("checkpoint %s failed: %s", checkpoint, failure)
                self._remove(checkpoint, moment.place.rank)
        except Exception as error:
            failure = self._handle_failure(checkpoint, moment, error, acked)
        finally:
            self.failure, self._saving, self.under_way = failure, None, None
            self._session.heartbeat.beat_soon()  # a postponed save may wait for this one

    def _handle_failure(
        self, checkpoint: str, moment: SavePosition, error: Exception, acked: bool
    ) -> str:
        """Handle a failed save. An acknowledged part is kept: it may still be committed."""
        expected = isinstance(error, NotAllowedNow | Fenced | Unanswered)
        level = logging.WARNING if expected else logging.ERROR
        log.log(level, "step %d is not saved: %s", moment.step, error)
        if not acked:
            if not expected:
                self._fail(checkpoint, error)
            self._remove(checkpoint, moment.place.rank)
        return error.message if isinstance(error, StrataError) else str(error)

    def _write(self, save: "RankSave", checkpoint: str) -> CheckpointPart:
        """Write the part durably, with retries."""
        storage, moment, capture = self._storage(), save.moment, save.capture
        self._saving = pb.Saving(checkpoint_id=checkpoint, total_bytes=capture.size_bytes)
        remote = storage.url.startswith("s3://")
        started = CheckpointUploadStarted if remote else CheckpointWriteStarted
        progress = CheckpointUploadProgress if remote else CheckpointWriteProgress
        completed = CheckpointUploadCompleted if remote else CheckpointWriteCompleted
        operation = RecordedOperation(
            self._worker.recorder,
            f"{save.op}-write",
            started(checkpoint=checkpoint, size_bytes=capture.size_bytes, step=moment.step),
            lambda done_bytes: progress(done_bytes=done_bytes, checkpoint=checkpoint),
            lambda ok, error: completed(ok=ok, error=error, checkpoint=checkpoint),
        )
        write = partial(self._write_files, storage, save, checkpoint, operation)
        try:
            part = retried(
                write, lambda error: log.warning("retrying to write %s: %s", checkpoint, error)
            )
        except BaseException as error:
            operation.end(error)
            raise
        operation.end()
        return part

    def _write_files(
        self,
        storage: StorageBackend,
        save: "RankSave",
        checkpoint: str,
        operation: RecordedOperation,
    ) -> CheckpointPart:
        rank = save.moment.place.rank
        part = write_part(
            storage,
            checkpoint,
            rank,
            save.capture,
            recycle=spare_for(storage, rank),
            progress=partial(self._progress, operation),
            local=save.local,
            last=self._last,
        )
        write_sidecar(storage, self._sidecar(save, checkpoint, part))
        return part

    def _sidecar(self, save: "RankSave", checkpoint: str, part: CheckpointPart) -> Sidecar:
        moment = save.moment
        return Sidecar(
            checkpoint_id=checkpoint,
            step=moment.step,
            epoch=moment.epoch,
            attempt=moment.place.attempt,
            world_size=moment.place.world_size,
            shapes=save.shapes,
            replicas=save.replicas.finish(part),
            metadata=moment.metadata,
            data=moment.data,
            metrics=finite_values(moment.metrics),
            part=part,
        )

    def _progress(self, operation: RecordedOperation, written_bytes: int) -> None:
        operation.progress(written_bytes)
        if self._saving is not None:
            self._saving.written_bytes = written_bytes
        now_s = time.monotonic()
        if now_s >= self._next_beat_s:
            self._next_beat_s = now_s + BEAT_INTERVAL_S
            self._session.heartbeat.beat_soon()

    def _fail(self, checkpoint: str, error: Exception) -> None:
        """Report to the coordinator that this rank has no part."""
        if not checkpoint:
            return
        failed = pb.FailPart(checkpoint_id=checkpoint, reason=str(error)[:MAX_REASON_CHARACTERS])
        try:
            self._session.ask("fail_part", failed)
        except StrataError as refusal:
            log.debug("could not report that %s failed: %s", checkpoint, refusal)

    def _remove(self, checkpoint: str, rank: int) -> None:
        """Delete this rank's part; the coordinator deletes the rest."""
        if not checkpoint:
            return
        try:
            storage = self._storage()
            storage.delete(sidecar_name(checkpoint, rank))
            storage.delete(f"{checkpoint}/{part_file(rank)}")
        except StrataError as error:
            log.debug("could not delete this rank's part of %s: %s", checkpoint, error)


class RankSave(Struct, frozen=True):
    """A captured state and its checkpoint's metadata."""

    op: str
    moment: SavePosition
    capture: StateCapture
    local: object
    shapes: str
    replicas: ReplicaDigests
