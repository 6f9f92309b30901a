"""The unary calls of the gRPC service: the same rules as the sessions, one request at a time.

A worker that uses only these is alive for as long as it beats. Where a request names no incarnation
the living one is meant; clients that care about zombies name theirs. A worker that registered with
a nonce shows it with everything that speaks for it (see `wire.proof`).

What a call is answered is on disk: it is read in the turn that decided on the call, or while the
state is settled. What is looked at before (is the worker known, has the caller its nonce) may be
newer than the disk; it decides only whether the call is passed on to the rules.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

from google.protobuf.message import DecodeError

from strata.coordinator.agent_sessions import AgentSessions
from strata.coordinator.engine import Engine
from strata.coordinator.metrics import Metrics
from strata.coordinator.observed import Observed, Seen
from strata.coordinator.places import CheckpointPlaces
from strata.coordinator.scanning import measured
from strata.coordinator.sessions import Sessions
from strata.coordinator.waiting import BarrierRoom, Ended
from strata.core.barriers import ArriveAtBarrier, Barrier
from strata.core.checkpoints import Checkpoint, committed_newest_first
from strata.core.datasets import AttachDataset, RegisterDataset
from strata.core.leases import AdvanceEpoch
from strata.core.saving import AckPart, BeginCheckpoint
from strata.core.signals import Beat, WorkerBeat
from strata.core.state import Cluster
from strata.core.tasks import Task
from strata.core.workers import (
    DeregisterWorker,
    Worker,
)
from strata.errors import (
    STATUS,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    StrataError,
)
from strata.wire import checkpoints, convert, datasets
from strata.wire.grpc_call import Call
from strata.wire.grpc_server import GrpcServer
from strata.wire.hpack import Outcome, Status
from strata.wire.proof import require_proof
from strata.wire.v1 import coordinator_pb2 as pb

SERVICE = "strata.v1.Coordinator"
UnaryCall: TypeAlias = Call[Any, Any]
Spoken: TypeAlias = (
    pb.DeregisterWorkerRequest
    | pb.AdvanceEpochRequest
    | pb.HeartbeatRequest
    | pb.NotifyCheckpointRequest
    | pb.WaitBarrierRequest
)


class UnaryCalls:
    """The handlers; each takes a request and answers it."""

    def __init__(
        self,
        engine: Engine,
        observed: Observed,
        barriers: BarrierRoom,
        metrics: Metrics,
        heartbeat_s: float,
        places: CheckpointPlaces,
    ) -> None:
        self.engine = engine
        self.observed = observed
        self.barriers = barriers
        self.metrics = metrics
        self.heartbeat_s = heartbeat_s
        self.places = places

    @property
    def state(self) -> Cluster:
        """The cluster; settled only where a turn has just been awaited (see `Engine`)."""
        return self.engine.kernel.state

    def serve(self, server: GrpcServer, sessions: Sessions, agents: AgentSessions) -> None:
        """Offers every call of the service."""
        calls: list[tuple[str, Any, Callable[[Any, UnaryCall], Any]]] = [
            ("RegisterWorker", pb.RegisterWorkerRequest, self.register_worker),
            ("DeregisterWorker", pb.DeregisterWorkerRequest, self.deregister_worker),
            ("Heartbeat", pb.HeartbeatRequest, self.heartbeat),
            ("RegisterDataset", pb.RegisterDatasetRequest, self.register_dataset),
            ("GetDataset", pb.GetDatasetRequest, self.get_dataset),
            ("GetDataShard", pb.GetDataShardRequest, self.get_data_shard),
            ("GetDataShards", pb.GetDataShardsRequest, self.get_data_shards),
            ("AdvanceEpoch", pb.AdvanceEpochRequest, self.advance_epoch),
            ("NotifyCheckpoint", pb.NotifyCheckpointRequest, self.notify_checkpoint),
            ("GetLatestCheckpoint", pb.GetLatestCheckpointRequest, self.get_latest_checkpoint),
            ("WaitBarrier", pb.WaitBarrierRequest, self.wait_barrier),
        ]
        for name, request, handler in calls:
            path = f"/{SERVICE}/{name}"
            server.unary(path, decoder(request), _encode, self._counted(handler))
        server.stream(f"/{SERVICE}/Session", decoder(pb.WorkerMessage), _encode, sessions.listen)
        agent_path = f"/{SERVICE}/AgentSession"
        server.stream(agent_path, decoder(pb.AgentMessage), _encode, agents.listen)

    def _counted(self, handler: Callable[[Any, UnaryCall], Any]) -> Callable[[Any, UnaryCall], Any]:
        def counted(request: Any, call: UnaryCall) -> Any:
            self.metrics.count_request("grpc")
            return handler(request, call)

        return counted

    async def register_worker(
        self, request: pb.RegisterWorkerRequest, call: UnaryCall
    ) -> pb.RegisterWorkerResponse:
        """Lets a process in as a new incarnation of a worker."""
        worker = await self.engine.submit(convert.registration(request, call.peer))
        assert isinstance(worker, Worker)
        task = self.state.tasks[worker.task]
        return convert.registered(worker, task, self.heartbeat_s, self.places.told(task.id))

    async def deregister_worker(
        self, request: pb.DeregisterWorkerRequest, call: UnaryCall
    ) -> pb.DeregisterWorkerResponse:
        """A worker leaves by itself."""
        worker, incarnation = self._speaker(request)
        await self.engine.submit(
            DeregisterWorker(worker=worker.id, incarnation=incarnation, reason=request.reason)
        )
        return pb.DeregisterWorkerResponse(success=True)

    async def heartbeat(
        self, request: pb.HeartbeatRequest, call: UnaryCall
    ) -> pb.HeartbeatResponse:
        """A sign of life; touches no disk unless the worker's state changed."""
        worker, incarnation = self._speaker(request)
        now = self.engine.kernel.clock()
        training = request.state == pb.WORKER_STATE_TRAINING
        beat = Beat(step=request.current_step, training=training)
        state = convert.STATES.get(request.state)
        await self.engine.submit(WorkerBeat(worker.id, incarnation, beat, state))
        measured = convert.resources(request.resources) if request.HasField("resources") else None
        seen = Seen(
            incarnation,
            now.wall_ns // 1_000_000,
            request.current_step,
            request.current_epoch,
            measured,
        )
        self.observed.note(worker.id, seen)
        return pb.HeartbeatResponse(
            acknowledged=True,
            server_timestamp_ms=now.wall_ns // 1_000_000,
            pending_commands=self._pending(worker),
        )

    def _pending(self, worker: Worker) -> list[pb.Command]:
        task = self.state.tasks[worker.task]
        if task.state == "stopping" or task.ended:
            return [pb.Command(kind="stop", reason=task.reason)]
        return []

    async def register_dataset(
        self, request: pb.RegisterDatasetRequest, call: UnaryCall
    ) -> pb.RegisterDatasetResponse:
        """Registers a dataset, by its parameters or by the path of its data."""
        spec = await measured(request.dataset_id, datasets.spec_of(request))
        await self.engine.submit(RegisterDataset(dataset=request.dataset_id, spec=spec))
        return pb.RegisterDatasetResponse(total_shards=spec.shard_count)

    async def get_dataset(
        self, request: pb.GetDatasetRequest, call: UnaryCall
    ) -> pb.RegisterDatasetRequest:
        """A dataset as it was registered."""
        async with self.engine.settled() as state:
            spec = state.dataset(request.dataset_id).spec
            return datasets.dataset_message(request.dataset_id, spec)

    async def get_data_shards(
        self, request: pb.GetDataShardsRequest, call: UnaryCall
    ) -> pb.GetDataShardsResponse:
        """The shards that a worker owns, in the order of an epoch."""
        await self._attach(request.worker_id, request.dataset_id)
        async with self.engine.settled() as state:
            task = _task_of(state, request.worker_id)
            return pb.GetDataShardsResponse(
                shards=_shards(state, request.worker_id, request.dataset_id, request.epoch),
                generation=task.generation,
            )

    async def get_data_shard(
        self, request: pb.GetDataShardRequest, call: UnaryCall
    ) -> pb.DataShard:
        """One of the shards that a worker owns."""
        await self._attach(request.worker_id, request.dataset_id)
        async with self.engine.settled() as state:
            shards = _shards(state, request.worker_id, request.dataset_id, request.epoch)
        if not 0 <= request.index < len(shards):
            raise NotFound(
                f"worker {request.worker_id!r} owns {len(shards)} shards of "
                f"{request.dataset_id!r}, there is no number {request.index}",
                hint="ask for the numbers from 0 on, or for all of them with GetDataShards",
            )
        return shards[request.index]

    async def _attach(self, worker_id: str, dataset: str) -> None:
        """The dataset is part of the worker's task from its first use on."""
        worker = _worker(self.state, worker_id)
        if dataset not in self.state.tasks[worker.task].feeds:
            command = AttachDataset(
                worker=worker.id,
                incarnation=worker.incarnation,
                task=worker.task,
                dataset=dataset,
            )
            await self.engine.submit(command)

    async def advance_epoch(
        self, request: pb.AdvanceEpochRequest, call: UnaryCall
    ) -> pb.AdvanceEpochResponse:
        """Opens the next epoch, once, however many workers ask for it."""
        worker, incarnation = self._speaker(request)
        feed = self.state.tasks[worker.task].feeds.get(request.dataset_id)
        if feed is None or feed.epoch == request.from_epoch:
            command = AdvanceEpoch(
                worker=worker.id,
                incarnation=incarnation,
                task=worker.task,
                dataset=request.dataset_id,
            )
            await self.engine.submit(command)
        async with self.engine.settled() as state:
            epoch = state.task(worker.task).feeds[request.dataset_id].epoch
            return pb.AdvanceEpochResponse(epoch=epoch)

    async def notify_checkpoint(
        self, request: pb.NotifyCheckpointRequest, call: UnaryCall
    ) -> pb.CheckpointAck:
        """A worker has written its part of a checkpoint by itself."""
        worker, incarnation = self._speaker(request)
        begun = await self.engine.submit(
            BeginCheckpoint(
                worker=request.worker_id,
                incarnation=incarnation,
                generation=self.state.tasks[worker.task].generation,
                step=request.step,
                epoch=request.epoch,
                path=request.storage_path,
                checkpoint=request.checkpoint_id,
                type=checkpoints.type_of(request.type),
                manifest=False,
                metadata=dict(request.metadata),
            )
        )
        assert isinstance(begun, Checkpoint)
        acked = await self.engine.submit(
            AckPart(
                worker=request.worker_id,
                incarnation=incarnation,
                checkpoint=begun.id,
                path=request.storage_path,
                size_bytes=request.size_bytes,
                checksum=request.checksum,
            )
        )
        assert isinstance(acked, Checkpoint)
        return pb.CheckpointAck(
            success=True,
            global_step=self.state.tasks[worker.task].committed,
            checkpoint_id=acked.id,
            status=checkpoints.status(acked),
        )

    async def get_latest_checkpoint(
        self, request: pb.GetLatestCheckpointRequest, call: UnaryCall
    ) -> pb.RecoveryResponse:
        """From where a worker goes on: the newest committed checkpoint, and its shards."""
        async with self.engine.settled() as state:
            named = state.task(request.task_id) if request.task_id else None
            task = named or _task_of(state, request.worker_id)
            answer = pb.RecoveryResponse(resume_step=0)
            newest = next(iter(committed_newest_first(task)), None)
            if newest is not None:
                answer.has_checkpoint = True
                answer.latest_checkpoint.CopyFrom(checkpoints.message(newest))
                answer.resume_step, answer.resume_epoch = newest.step, newest.epoch
            for dataset, feed in task.feeds.items() if request.worker_id else ():
                if feed.unit == "shard":
                    shards = _shards(state, request.worker_id, dataset, answer.resume_epoch)
                    answer.shard_assignments.extend(shards)
            return answer

    async def wait_barrier(
        self, request: pb.WaitBarrierRequest, call: UnaryCall
    ) -> pb.WaitBarrierResponse:
        """Answers when everyone expected has arrived; fails with the names of the missing."""
        worker, incarnation = self._speaker(request)
        if not request.barrier_id:
            raise InvalidArgument("barrier_id is empty", hint="name the barrier")
        barrier = await self.engine.submit(
            ArriveAtBarrier(
                worker=request.worker_id,
                incarnation=incarnation,
                barrier=request.barrier_id,
                request=request.request or self._next_arrival(worker, request.barrier_id),
                step=request.step,
            )
        )
        assert isinstance(barrier, Barrier)
        ended: asyncio.Future[pb.WaitBarrierResponse] = asyncio.get_running_loop().create_future()

        def tell(told: Ended, order: int) -> None:
            if not ended.done():
                ended.set_result(told.outcome(order))

        self.barriers.wait(worker.task, barrier, request.worker_id, tell)
        outcome = await ended
        if not outcome.released:
            raise DeadlineExceeded(
                f"barrier {request.barrier_id!r} failed: {outcome.reason}; "
                f"missing: {', '.join(outcome.missing) or 'nobody'}",
                hint="look at the logs of the missing workers: strata logs --worker ID",
            )
        return outcome

    def _next_arrival(self, worker: Worker, name: str) -> int:
        """Counts for clients that do not count their arrivals themselves."""
        barrier = self.state.tasks[worker.task].barriers.get(name)
        if barrier is None:
            return 1
        incarnation, arrival = barrier.arrived.get(worker.id, (0, 0))
        last = arrival if incarnation == worker.incarnation else 0
        return last if barrier.state == "waiting" and last else last + 1

    def _speaker(self, request: Spoken) -> tuple[Worker, int]:
        """The worker that a request speaks for, and as which incarnation."""
        worker = _worker(self.state, request.worker_id)
        incarnation = request.incarnation or worker.incarnation
        require_proof(worker, incarnation, request.nonce)
        return worker, incarnation


def _worker(state: Cluster, worker_id: str) -> Worker:
    worker = state.workers.get(worker_id)
    if worker is None:
        raise NotFound(f"worker {worker_id!r} is not registered", hint="register it first")
    return worker


def _task_of(state: Cluster, worker_id: str) -> Task:
    return state.tasks[_worker(state, worker_id).task]


def _shards(state: Cluster, worker: str, dataset: str, epoch: int) -> list[pb.DataShard]:
    """A worker's shards of a dataset that its task uses, in the order of an epoch."""
    feed, spec = _task_of(state, worker).feeds[dataset], state.dataset(dataset).spec
    return datasets.owned_shards(dataset, spec, feed, worker, epoch)


def decoder(message: Any) -> Callable[[bytes], Any]:
    """Parses a kind of message; what is not one is the sender's mistake."""

    def decode(payload: bytes) -> Any:
        try:
            return message.FromString(payload)
        except DecodeError as error:
            raise InvalidArgument(
                f"the message is not a {message.DESCRIPTOR.full_name}",
                hint="use a client made from proto/strata/v1/coordinator.proto",
            ) from error

    return decode


def _encode(message: Any) -> bytes:
    encoded: bytes = message.SerializeToString()
    return encoded


def status_of(error: BaseException) -> Outcome | None:
    """How an error travels; its stable code and hint go along as metadata."""
    if not isinstance(error, StrataError):
        return None
    status = Status[STATUS[type(error)].grpc]
    metadata = [("strata-code", error.code)]
    if error.hint:
        metadata.append(("strata-hint", error.hint.encode("ascii", "replace").decode()))
    return Outcome(status, error.message, metadata)
