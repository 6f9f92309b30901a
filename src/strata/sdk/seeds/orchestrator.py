"""`TrainingOrchestrator`: one method for each call to the coordinator, for one worker.

A low-level interface; for a training script use `strata.join`.

A registered worker sends heartbeats in the background, so a blocked barrier or a long step does not
make it lost, and its calls wait for an unreachable coordinator. With `automatic_heartbeats=False`
the caller sends the heartbeats; without them the worker is declared lost after the coordinator's
`heartbeat_timeout`.

The worker is recorded like one of `strata.join`: its start and end, its requests, its standing, its
resources. A process that ends without `deregister` is reported as stopped.
"""

import atexit
import logging
from contextlib import nullcontext
from types import TracebackType
from typing import Self

from google.protobuf.message import Message
from msgspec import Struct, structs

from strata.config import Settings
from strata.core.limits import finite_values
from strata.core.rule_settings import SHUFFLE_SEED
from strata.core.state import REPORTED, Outcome, Reported
from strata.errors import DeadlineExceeded, InvalidArgument, NotAllowedNow, StrataError
from strata.sdk.record.resource_sampler import ResourceSampler
from strata.sdk.seeds.orchestrator_worker import OrchestratorWorker
from strata.sdk.seeds.shard_info import ShardInfo, shard_info
from strata.sdk.session import registration
from strata.sdk.session.barrier_arrivals import (
    RETURN_HINT,
    Arrivals,
    BarrierResult,
    check_barrier,
    meet,
)
from strata.sdk.session.channel import Answer, CoordinatorConnection, NoAnswer, build, persist
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 10.0
LEAVE_TIMEOUT_S = 10.0
CHECKPOINT_TYPES = ("full", "incremental", "optimizer_only", "model_only")


class WorkerConfig(Struct, frozen=True):
    """The answer to a registration; `rank` is -1 until the group is complete."""

    worker_id: str
    rank: int
    world_size: int
    heartbeat_interval_ms: int
    config: dict[str, str]


class HeartbeatResult(Struct, frozen=True):
    """The answer to a heartbeat; `commands` are strings such as `stop`."""

    acknowledged: bool
    server_timestamp_ms: int
    commands: list[str]


class CheckpointAck(Struct, frozen=True):
    """The answer for a part of a checkpoint; `status` is `completed` once all ranks have one."""

    success: bool
    global_step: int
    checkpoint_id: str
    status: str


class LatestCheckpoint(Struct, frozen=True):
    """The checkpoint to resume from, and this worker's shards there."""

    checkpoint_id: str
    step: int
    epoch: int
    path: str
    size_bytes: int
    created_at_ms: int
    shards: list[ShardInfo]


class TrainingOrchestrator:
    """One worker's calls to a coordinator; the URL defaults to the environment's."""

    def __init__(
        self, coordinator_url: str | None = None, *, automatic_heartbeats: bool = True
    ) -> None:
        self._settings: Settings = registration.settings_for(coordinator_addr=coordinator_url)
        self._connection: CoordinatorConnection = registration.connect(self._settings)
        self._automatic = automatic_heartbeats
        self._worker: OrchestratorWorker | None = None
        self._arrivals = Arrivals()
        self._epochs: dict[str, int] = {}

    @property
    def worker_id(self) -> str:
        """This worker's id; empty before it is registered."""
        return self._worker.session.identity.worker_id if self._worker is not None else ""

    @property
    def rank(self) -> int:
        """The current rank; -1 outside of a complete group."""
        return self._worker.rank if self._worker is not None else -1

    @property
    def world_size(self) -> int:
        """The current size of the group."""
        return self._worker.world_size if self._worker is not None else 0

    def connect(self, timeout: float = CONNECT_TIMEOUT_S) -> Self:
        """Wait until the coordinator can be reached; optional, as every call does so."""
        self._connection.wait_ready(timeout)
        return self

    def register_worker(
        self,
        worker_id: str | None = None,
        hostname: str | None = None,
        port: int = 0,
        gpu_count: int | None = None,
        memory_bytes: int = 0,
        metadata: dict[str, str] | None = None,
    ) -> WorkerConfig:
        """Register this worker; without an id the coordinator assigns one.

        `gpu_count` defaults to the number of GPUs that this process may use.
        """
        if self._worker is not None:
            message = f"worker {self.worker_id!r} is already registered already"
            raise NotAllowedNow(message, hint="deregister it first")
        sampler = ResourceSampler()
        cards = self._settings.gpu_count if gpu_count is None else gpu_count
        request = registration.registration(
            self._settings,
            syncs=False,
            worker_id=worker_id,
            hostname=hostname or "",
            port=port,
            gpu_count=len(sampler.sample().gpu_metrics) if cards is None else cards,
            memory_bytes=memory_bytes,
            labels=metadata,
        )
        enrolled = registration.Enrolment(self._connection, request)
        answer = enrolled.register(CONNECT_TIMEOUT_S)
        if {"epochs", "max_steps"} & answer.config.keys():
            raise InvalidArgument(
                "the task sets --epochs or --steps, but TrainingOrchestrator has no loop over "
                "run.epochs",
                hint="leave the flag out, and set the length in the script",
            )
        self._worker = OrchestratorWorker(
            enrolled, answer, sampler, self._settings, automatic=self._automatic
        )
        _registered.add(self)
        return WorkerConfig(
            worker_id=answer.assigned_id,
            rank=answer.rank,
            world_size=answer.world_size,
            heartbeat_interval_ms=answer.heartbeat_interval_ms,
            config=dict(answer.config),
        )

    def heartbeat(
        self, step: int = 0, epoch: int = 0, state: Reported = "training"
    ) -> HeartbeatResult:
        """Send a heartbeat with this state; later automatic heartbeats repeat the state."""
        if state not in REPORTED:
            raise InvalidArgument(f"{state!r} is not a state", hint=f"use {', '.join(REPORTED)}")
        request = build(
            pb.HeartbeatRequest,
            **self._identity(),
            state=f"WORKER_STATE_{state.upper()}",
            current_step=step,
            current_epoch=epoch,
        )
        self._registered().report(state, step, epoch)
        answer = self._call("Heartbeat", request, pb.HeartbeatResponse)
        kinds = [command.kind for command in answer.pending_commands]
        return HeartbeatResult(answer.acknowledged, answer.server_timestamp_ms, kinds)

    def register_dataset(
        self,
        dataset_id: str,
        total_samples: int,
        shard_size: int,
        shuffle: bool = True,
        seed: int = SHUFFLE_SEED,
        *,
        path: str = "",
        format: str = "",
        metadata: dict[str, str] | None = None,
    ) -> int:
        """Register a dataset by its parameters; returns its number of shards."""
        request = build(
            pb.RegisterDatasetRequest,
            dataset_id=dataset_id,
            total_samples=total_samples,
            shard_size=shard_size,
            shuffle=shuffle,
            seed=seed,
            path=path,
            format=format,
            metadata=metadata or {},
        )
        return self._call("RegisterDataset", request, pb.RegisterDatasetResponse).total_shards

    def get_shards(
        self, dataset_id: str, epoch: int = 0, worker_id: str | None = None
    ) -> list[ShardInfo]:
        """The shards of this worker (or another), in the order of an epoch."""
        request = build(
            pb.GetDataShardsRequest,
            worker_id=worker_id or self._registered().session.identity.worker_id,
            dataset_id=dataset_id,
            epoch=epoch,
        )
        answer = self._call("GetDataShards", request, pb.GetDataShardsResponse)
        return [shard_info(shard) for shard in answer.shards]

    def get_shard(self, dataset_id: str, epoch: int = 0, index: int = 0) -> ShardInfo:
        """One of this worker's shards, counted from 0."""
        request = build(
            pb.GetDataShardRequest,
            worker_id=self._registered().session.identity.worker_id,
            dataset_id=dataset_id,
            epoch=epoch,
            index=index,
        )
        return shard_info(self._call("GetDataShard", request, pb.DataShard))

    def advance_epoch(self, dataset_id: str, from_epoch: int | None = None) -> int:
        """Open the epoch after `from_epoch`, once for all workers; returns the current epoch."""
        known = self._epochs.get(dataset_id, 0) if from_epoch is None else from_epoch
        request = build(
            pb.AdvanceEpochRequest,
            **self._identity(),
            dataset_id=dataset_id,
            from_epoch=known,
        )
        epoch = self._call("AdvanceEpoch", request, pb.AdvanceEpochResponse).epoch
        self._epochs[dataset_id] = epoch
        return epoch

    def notify_checkpoint(
        self,
        step: int,
        epoch: int = 0,
        storage_path: str = "",
        size_bytes: int = 0,
        checkpoint_id: str = "",
        type: str = "full",
        checksum: str = "",
        metadata: dict[str, str] | None = None,
        metrics: dict[str, float] | None = None,
    ) -> CheckpointAck:
        """Report that this worker's part of a checkpoint is written.

        `metrics` of rank 0 describe the state, for `keep_best`; those that are not finite are left
        out.
        """
        if type not in CHECKPOINT_TYPES:
            raise InvalidArgument(
                f"{type!r:.80} is not a checkpoint type", hint=f"use {', '.join(CHECKPOINT_TYPES)}"
            )
        request = build(
            pb.NotifyCheckpointRequest,
            **self._identity(),
            checkpoint_id=checkpoint_id,
            step=step,
            epoch=epoch,
            storage_path=storage_path,
            size_bytes=size_bytes,
            type=f"CHECKPOINT_TYPE_{type.upper()}",
            checksum=checksum,
            metadata=metadata or {},
            metrics=finite_values(metrics or {}),
        )
        ack = self._call("NotifyCheckpoint", request, pb.CheckpointAck)
        names = CheckpointAck.__struct_fields__
        return CheckpointAck(**{name: getattr(ack, name) for name in names})

    def latest_checkpoint(self) -> LatestCheckpoint | None:
        """The newest committed checkpoint of this worker's task, if any."""
        request = pb.GetLatestCheckpointRequest(
            worker_id=self._registered().session.identity.worker_id
        )
        answer = self._call("GetLatestCheckpoint", request, pb.RecoveryResponse)
        if not answer.has_checkpoint:
            return None
        latest = answer.latest_checkpoint
        return LatestCheckpoint(
            checkpoint_id=latest.checkpoint_id,
            step=latest.step,
            epoch=latest.epoch,
            path=latest.storage_path,
            size_bytes=latest.size_bytes,
            created_at_ms=latest.created_at_ms,
            shards=[shard_info(shard) for shard in answer.shard_assignments],
        )

    def barrier(
        self, barrier_id: str, step: int = 0, timeout: float | None = None
    ) -> BarrierResult:
        """Wait for a complete group, then until every worker of it has arrived.

        Raises `DeadlineExceeded` with the missing workers on a timeout.
        """
        check_barrier(barrier_id, step, timeout)
        worker = self._registered()
        if not self._automatic:
            return self._wait_barrier(barrier_id, step, timeout)
        if not worker.session.wait_for(lambda: worker.rank >= 0, timeout):
            raise DeadlineExceeded(f"the group was incomplete after {timeout:g} s")
        return meet(worker.session, self._arrivals, barrier_id, step, timeout, lambda: None)

    def deregister(self, reason: str = "") -> None:
        """Leave, if registered. The connection stays open for another worker."""
        self._leave("done", reason, None if self._automatic else LEAVE_TIMEOUT_S)

    def close(self) -> None:
        """Leave, and close the connection."""
        try:
            self.deregister()
        finally:
            self._connection.close()

    def leave_at_exit(self) -> None:
        """Report the end of the process, so that it is not reported as a crash."""
        try:
            self._leave("stopped", "the process ended without deregistering", LEAVE_TIMEOUT_S)
        except StrataError as failure:
            log.warning("could not report to the coordinator that this worker leaves: %s", failure)

    def _leave(self, outcome: Outcome, reason: str, timeout_s: float | None) -> None:
        """Report the outcome of this worker."""
        worker, self._worker = self._worker, None
        _registered.discard(self)
        if worker is not None and not worker.session.forked:
            worker.leave(outcome, reason, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            return self.close()
        outcome: Outcome = "stopped" if isinstance(error, KeyboardInterrupt) else "failed"
        try:
            reason = f"{type(error).__name__}: {error}"[:1000]
            self._leave(outcome, reason, LEAVE_TIMEOUT_S)
        except StrataError as failure:
            log.warning("could not report to the coordinator that this worker leaves: %s", failure)
        finally:
            self._connection.close()

    def _wait_barrier(self, barrier_id: str, step: int, timeout_s: float | None) -> BarrierResult:
        request = build(
            pb.WaitBarrierRequest,
            **self._identity(),
            barrier_id=barrier_id,
            step=step,
            request=self._arrivals.number(barrier_id)[0],
        )
        with self._registered().session.requests.call("WaitBarrier", barrier_id):
            try:
                outcome = persist(
                    lambda _: self._connection.call(
                        "WaitBarrier", request, pb.WaitBarrierResponse, timeout_s
                    ),
                    CONNECT_TIMEOUT_S,
                )
            except NoAnswer as error:
                raise DeadlineExceeded(
                    f"barrier {barrier_id!r} was not released within {timeout_s or 0:g} s",
                    hint=RETURN_HINT,
                ) from error
        self._arrivals.finish(barrier_id)
        return BarrierResult(outcome.released, outcome.participants, outcome.arrival_order)

    def _call(self, method: str, request: Message, answer: type[Answer]) -> Answer:
        """Make a call; with automatic heartbeats it waits for an unreachable coordinator."""
        worker = self._worker
        if worker is not None and self._automatic:
            return worker.session.call(method, request, answer)
        with nullcontext() if worker is None else worker.session.requests.call(method):
            return persist(
                lambda timeout_s: self._connection.call(method, request, answer, timeout_s),
                CONNECT_TIMEOUT_S,
            )

    def _identity(self) -> dict[str, object]:
        """The current identity; the session may have registered again."""
        return structs.asdict(self._registered().session.identity)

    def _registered(self) -> OrchestratorWorker:
        if self._worker is None:
            raise NotAllowedNow("no worker is registered", hint="call register_worker() first")
        return self._worker


_registered: set[TrainingOrchestrator] = set()


@atexit.register
def _leave_registered() -> None:
    """Leave for every worker that is still registered when the process ends."""
    for orchestrator in list(_registered):
        orchestrator.leave_at_exit()
