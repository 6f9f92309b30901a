"""One rank's side of a checkpoint: copy, write, acknowledge, hear what became of it.

`save` copies this rank's share of the state into staging memory and returns. A thread writes what
is there already, and does the rest: the coordinator names the checkpoint, the part goes to the
storage and its sidecar beside it, and the acknowledgement is answered when the checkpoint is
committed or has failed, or when its generation has ended. One save at a time is under way, in one
staging buffer. A save that goes wrong fails that checkpoint for everyone, with the reason, and
never stops the training; `failure` tells why the last save failed.
"""

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from google.protobuf.message import Message
from msgspec import Struct, field

from strata.checkpoint.format import Part
from strata.checkpoint.parts import part_file, write_part
from strata.checkpoint.randomness import random_state
from strata.checkpoint.replicas import ReplicaDigests
from strata.checkpoint.retrying import retried
from strata.checkpoint.reuse import Saved, glances
from strata.checkpoint.sharing import own_share, shape_digest
from strata.checkpoint.sidecar import Sidecar, sidecar_name, write_sidecar
from strata.checkpoint.spares import spare
from strata.checkpoint.staging import Capture, Staging
from strata.checkpoint.tree import Flat, flatten
from strata.core.worker_operations import (
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
from strata.sdk.due import UnderWay
from strata.sdk.membership import Place
from strata.sdk.operations import Operation
from strata.sdk.worker import Worker
from strata.storage.base import StorageBackend
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

BEAT_INTERVAL_S = 0.5
LATE_ANSWER_S = 5.0
"""How long after the end of its generation a save waits to hear what became of it."""

MAX_REASON_CHARACTERS = 1_000


class Moment(Struct, frozen=True):
    """What is saved with a state: where training is, for the manifest."""

    step: int
    epoch: int
    place: Place
    metadata: dict[str, object] = field(default_factory=dict)
    data: dict[str, object] = field(default_factory=dict)
    final: bool = False


class Unanswered(Exception):
    """The coordinator did not say what became of a save whose generation has ended."""


class Saver:
    """Saves the parts of one worker. `save` and `wait` are for the training thread.

    `outcome` is called when a checkpoint was committed, with the seconds it took. `failure` is why
    the save that ended last failed; `committed` is the attempt and step of the newest checkpoint.
    """

    def __init__(
        self,
        worker: Worker,
        storage: Callable[[], StorageBackend],
        outcome: Callable[[float], None],
    ) -> None:
        self.under_way: UnderWay | None = None
        self.failure = ""
        self.committed = (0, 0)
        self._worker, self._session = worker, worker.session
        self._storage = storage
        self._outcome = outcome
        self._staging = Staging()
        self._last: Saved | None = None
        self._thread: threading.Thread | None = None
        self._saving: pb.Saving | None = None
        self._next_beat_s = 0.0

    @property
    def busy(self) -> bool:
        """Whether a save is under way."""
        return self.under_way is not None

    def saving(self) -> pb.Saving | None:
        """How far the part is that is being written, if one is."""
        return self._saving

    def prepare(self, state: object, place: Place) -> threading.Thread:
        """Makes staging memory ready for such a state in the background, so that the first save
        does not wait for it. Called again with a larger state, it makes the memory larger."""
        own = own_share(flatten(state), place.rank, place.world_size)
        return self._staging.prepare_in_background([*own.values()])

    def save(self, state: object, moment: Moment) -> float:
        """Captures the state; for how many seconds training stood still because of it.

        Where a save is still under way it waits for that one; ask `busy` before.
        """
        begun_s = time.monotonic()
        if self.busy:
            self.wait(None)
            waited_s = time.monotonic() - begun_s
            log.warning("step %d waited %.1f s for the save before it", moment.step, waited_s)
        self._capture(state, moment)
        return time.monotonic() - begun_s

    def wait(self, timeout_s: float | None) -> None:
        """Waits for the save under way, if there is one."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _capture(self, state: object, moment: Moment) -> None:
        op = f"save-{moment.place.generation}-{moment.step}"
        serialization = Operation(
            self._worker.recorder,
            op,
            ModelSerializationStarted(moment.step),
            ModelSerializationProgress,
            ModelSerializationCompleted,
        )
        try:
            self._copy(self._laid_out(op, state, moment), serialization.progress)
        except BaseException as error:
            serialization.end(error)
            raise
        serialization.end()

    def _copy(self, save: "Save", progress: Callable[[int], None]) -> None:
        """Copies the state, while a thread of its own begins to write it."""
        self.under_way = UnderWay(save.moment.step, time.monotonic())
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

    def _laid_out(self, op: str, state: object, moment: Moment) -> "Save":
        """This rank's share of a state, to be copied."""
        flat, rank = flatten(state), moment.place.rank
        local = flatten({f"rank-{rank:05d}": {"random": random_state()}})
        sources = own_share(flat, rank, moment.place.world_size)
        tree = flat.tree if rank == 0 else None
        labels = {"step": str(moment.step), "epoch": str(moment.epoch), "rank": str(rank)}
        capture = self._staging.begin(Flat(tree, {**sources, **local.sources}), labels)
        replicas = ReplicaDigests(flat.sources, sources, rank, moment.place.world_size)
        return Save(
            op=op,
            moment=moment,
            capture=capture,
            local=local.tree,
            shapes=shape_digest(flat),
            replicas=replicas,
        )

    def _begin(self, moment: Moment) -> str:
        """The id of the checkpoint of this step: the first rank to ask has opened it."""
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

    def _answer(self, kind: str, body: Message, moment: Moment) -> pb.Checkpoint:
        """What the coordinator answers; a save whose generation has ended is not waited for."""
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

    def _run(self, save: "Save") -> None:
        """The save's own thread; whatever goes wrong is said, here and to the coordinator."""
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
            )
            acked = True
            ended = self._answer("ack_part", ack, moment)
            if ended.status == "completed":
                log.info("checkpoint %s is complete", checkpoint)
                self._last = Saved(checkpoint, part, glances(save.capture))
                self.committed = (moment.place.attempt, moment.step)
                self._outcome(time.monotonic() - begun_s)
            else:
                failure = ended.reason
                log.warning("checkpoint %s failed: %s", checkpoint, failure)
                self._remove(checkpoint, moment.place.rank)
        except Exception as error:
            failure = self._went_wrong(checkpoint, moment, error, acked)
        finally:
            self.failure, self._saving, self.under_way = failure, None, None
            self._session.pulse.beat_soon()  # an open request waits for this save to end

    def _went_wrong(self, checkpoint: str, moment: Moment, error: Exception, acked: bool) -> str:
        """Says why a save failed. What was acknowledged may still be committed: it stays."""
        expected = isinstance(error, NotAllowedNow | Fenced | Unanswered)
        level = logging.WARNING if expected else logging.ERROR
        log.log(level, "step %d is not saved: %s", moment.step, error)
        if not acked:
            if not expected:
                self._fail(checkpoint, error)
            self._remove(checkpoint, moment.place.rank)
        return error.message if isinstance(error, StrataError) else str(error)

    def _write(self, save: "Save", checkpoint: str) -> Part:
        """Makes the part durable; a storage that does not answer is asked again."""
        storage, moment, capture = self._storage(), save.moment, save.capture
        self._saving = pb.Saving(checkpoint_id=checkpoint, total_bytes=capture.size_bytes)
        remote = storage.url.startswith("s3://")
        started = CheckpointUploadStarted if remote else CheckpointWriteStarted
        progress = CheckpointUploadProgress if remote else CheckpointWriteProgress
        completed = CheckpointUploadCompleted if remote else CheckpointWriteCompleted
        operation = Operation(
            self._worker.recorder,
            f"{save.op}-write",
            started(checkpoint, capture.size_bytes, moment.step),
            lambda done_bytes: progress(done_bytes, checkpoint),
            lambda ok, error: completed(ok, error, checkpoint),
        )
        write = partial(self._write_files, storage, save, checkpoint, operation)
        try:
            part = retried(
                write, lambda error: log.warning("%s is written again: %s", checkpoint, error)
            )
        except BaseException as error:
            operation.end(error)
            raise
        operation.end()
        return part

    def _write_files(
        self, storage: StorageBackend, save: "Save", checkpoint: str, operation: Operation
    ) -> Part:
        rank = save.moment.place.rank
        part = write_part(
            storage,
            checkpoint,
            rank,
            save.capture,
            recycle=spare(storage, rank),
            progress=partial(self._progress, operation),
            local=save.local,
            last=self._last,
        )
        write_sidecar(storage, self._sidecar(save, checkpoint, part))
        return part

    def _sidecar(self, save: "Save", checkpoint: str, part: Part) -> Sidecar:
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
            part=part,
        )

    def _progress(self, operation: Operation, written_bytes: int) -> None:
        operation.progress(written_bytes)
        if self._saving is not None:
            self._saving.written_bytes = written_bytes
        now_s = time.monotonic()
        if now_s >= self._next_beat_s:
            self._next_beat_s = now_s + BEAT_INTERVAL_S
            self._session.pulse.beat_soon()

    def _fail(self, checkpoint: str, error: Exception) -> None:
        """Says that there will be no part of ours."""
        if not checkpoint:
            return
        failed = pb.FailPart(checkpoint_id=checkpoint, reason=str(error)[:MAX_REASON_CHARACTERS])
        try:
            self._session.ask("fail_part", failed)
        except StrataError as refusal:
            log.debug("the coordinator was not told that %s failed: %s", checkpoint, refusal)

    def _remove(self, checkpoint: str, rank: int) -> None:
        """Takes back what was written; the coordinator removes the rest."""
        if not checkpoint:
            return
        try:
            storage = self._storage()
            storage.delete(sidecar_name(checkpoint, rank))
            storage.delete(f"{checkpoint}/{part_file(rank)}")
        except StrataError as error:
            log.debug("the part of %s stays: %s", checkpoint, error)


class Save(Struct, frozen=True):
    """A captured state on its way."""

    op: str
    moment: Moment
    capture: Capture
    local: object
    shapes: str
    replicas: ReplicaDigests
