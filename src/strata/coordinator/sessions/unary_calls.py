"""The unary calls of the gRPC service: the same rules as the sessions, one request at a time.

A worker that uses only these calls is alive while it sends heartbeats. A request without an
incarnation means the present one; clients that must be fenced send theirs. A worker that registered
with a nonce sends it with every request (see `wire/messages/worker_messages`).

Answers contain only what is on disk: they are read in the turn that decided the call, or while the
state is settled. The checks before that (is the worker known, is the nonce right) may see a newer
state; they decide only whether the call is passed on to the rules.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

from google.protobuf.message import DecodeError

from strata.coordinator.access.task_bounds import bind
from strata.coordinator.background import measured
from strata.coordinator.checkpoint_files import CheckpointPlaces
from strata.coordinator.engine.engine import Engine
from strata.coordinator.engine.waiters import BarrierEnd, BarrierWaiters
from strata.coordinator.metrics.coordinator_metrics import Metrics
from strata.coordinator.sessions.agent_sessions import AgentSessions
from strata.coordinator.sessions.last_heartbeats import Heartbeats, LastHeartbeat
from strata.coordinator.sessions.worker_sessions import WorkerSessions
from strata.core.barriers.barrier_rules import ArriveAtBarrier
from strata.core.checkpoints.checkpoint_commits import AckPart, BeginCheckpoint
from strata.core.checkpoints.checkpoint_lifecycle import committed_newest_first
from strata.core.datasets.dataset_rules import AttachDataset, RegisterDataset
from strata.core.datasets.shard_leases import AdvanceEpoch
from strata.core.state import Cluster, Worker
from strata.core.task_state import Barrier, Checkpoint, Task
from strata.core.workers.heartbeats import Beat, WorkerBeat
from strata.core.workers.worker_lifecycle import DeregisterWorker
from strata.errors import (
    STATUS,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    StrataError,
)
from strata.wire.grpc.grpc_call import Call
from strata.wire.grpc.grpc_server import GrpcServer
from strata.wire.http2.hpack import Outcome, Status
from strata.wire.messages import checkpoint_messages, dataset_messages, worker_messages
from strata.wire.messages.worker_messages import require_proof
from strata.wire.v1 import coordinator_pb2 as pb

SERVICE = "strata.v1.Coordinator"
UnaryCall: TypeAlias = Call[Any, Any]
WorkerRequest: TypeAlias = (
    pb.DeregisterWorkerRequest
    | pb.AdvanceEpochRequest
    | pb.HeartbeatRequest
    | pb.NotifyCheckpointRequest
    | pb.WaitBarrierRequest
)


class UnaryCalls:
    """Handlers of the unary calls."""

    def __init__(
        self,
        engine: Engine,
        heartbeats: Heartbeats,
        barriers: BarrierWaiters,
        metrics: Metrics,
        heartbeat_s: float,
        places: CheckpointPlaces,
    ) -> None:
        self.engine = engine
        self.heartbeats = heartbeats
        self.barriers = barriers
        self.metrics = metrics
        self.heartbeat_s = heartbeat_s
        self.places = places

    @property
    def state(self) -> Cluster:
        """State of the cluster; durable only directly after a turn was awaited (see `Engine`)."""
        return self.engine.kernel.state

    def serve(self, server: GrpcServer, sessions: WorkerSessions, agents: AgentSessions) -> None:
        """Register every call of the service with the server."""
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
            return handler(bind(call.identity, request, self.state), call)

        return counted

    async def register_worker(
        self, request: pb.RegisterWorkerRequest, call: UnaryCall
    ) -> pb.RegisterWorkerResponse:
        """Register a process as a new incarnation of a worker."""
        worker = await self.engine.submit(worker_messages.registration(request, call.peer))
        assert isinstance(worker, Worker)
        task = self.state.tasks[worker.task]
        config = self.places.worker_config(task)
        return worker_messages.registered(worker, task, self.heartbeat_s, config)

    async def deregister_worker(
        self, request: pb.DeregisterWorkerRequest, call: UnaryCall
    ) -> pb.DeregisterWorkerResponse:
        """Deregister a worker at its own request."""
        worker, incarnation = self._sender(request)
        await self.engine.submit(
            DeregisterWorker(worker=worker.id, incarnation=incarnation, reason=request.reason)
        )
        return pb.DeregisterWorkerResponse(success=True)

    async def heartbeat(
        self, request: pb.HeartbeatRequest, call: UnaryCall
    ) -> pb.HeartbeatResponse:
        """Process a heartbeat; a fact is recorded only if the worker's state changed."""
        worker, incarnation = self._sender(request)
        now = self.engine.kernel.clock()
        training = request.state == pb.WORKER_STATE_TRAINING
        beat = Beat(step=request.current_step, training=training)
        state = worker_messages.STATES.get(request.state)
        await self.engine.submit(
            WorkerBeat(worker=worker.id, incarnation=incarnation, beat=beat, state=state)
        )
        resources = (
            worker_messages.resources(request.resources) if request.HasField("resources") else None
        )
        heartbeat = LastHeartbeat(
            incarnation=incarnation,
            last_heartbeat_ms=now.wall_ns // 1_000_000,
            step=request.current_step,
            epoch=request.current_epoch,
            resources=resources,
        )
        self.heartbeats.note(worker.id, heartbeat)
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
        """Register a dataset by its parameters or by the path of its data."""
        spec = await measured(request.dataset_id, dataset_messages.spec_of(request))
        await self.engine.submit(RegisterDataset(dataset=request.dataset_id, spec=spec))
        return pb.RegisterDatasetResponse(total_shards=spec.shard_count)

    async def get_dataset(
        self, request: pb.GetDatasetRequest, call: UnaryCall
    ) -> pb.RegisterDatasetRequest:
        """Return a dataset as it was registered."""
        async with self.engine.settled() as state:
            spec = state.dataset(request.dataset_id).spec
            return dataset_messages.dataset_message(request.dataset_id, spec)

    async def get_data_shards(
        self, request: pb.GetDataShardsRequest, call: UnaryCall
    ) -> pb.GetDataShardsResponse:
        """Return the shards that a worker owns, in the order of an epoch."""
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
        """Return one of the shards that a worker owns."""
        await self._attach(request.worker_id, request.dataset_id)
        async with self.engine.settled() as state:
            shards = _shards(state, request.worker_id, request.dataset_id, request.epoch)
        if not 0 <= request.index < len(shards):
            raise NotFound(
                f"worker {request.worker_id!r} owns {len(shards)} shards of "
                f"{request.dataset_id!r}; index {request.index} does not exist",
                hint="request an index from 0 on, or all shards with GetDataShards",
            )
        return shards[request.index]

    async def _attach(self, worker_id: str, dataset: str) -> None:
        """Attach a dataset to the worker's task at its first use."""
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
        """Start the next epoch once, however many workers request it."""
        worker, incarnation = self._sender(request)
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
        """Record a checkpoint part that a worker has written itself."""
        worker, incarnation = self._sender(request)
        begun = await self.engine.submit(
            BeginCheckpoint(
                worker=request.worker_id,
                incarnation=incarnation,
                generation=self.state.tasks[worker.task].generation,
                step=request.step,
                epoch=request.epoch,
                path=request.storage_path,
                checkpoint=request.checkpoint_id,
                type=checkpoint_messages.type_of(request.type),
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
                metrics=dict(request.metrics),
            )
        )
        assert isinstance(acked, Checkpoint)
        return pb.CheckpointAck(
            success=True,
            global_step=self.state.tasks[worker.task].committed,
            checkpoint_id=acked.id,
            status=checkpoint_messages.status(acked),
        )

    async def get_latest_checkpoint(
        self, request: pb.GetLatestCheckpointRequest, call: UnaryCall
    ) -> pb.RecoveryResponse:
        """Return the newest committed checkpoint and the worker's shards."""
        async with self.engine.settled() as state:
            named = state.task(request.task_id) if request.task_id else None
            task = named or _task_of(state, request.worker_id)
            answer = pb.RecoveryResponse(resume_step=0)
            newest = next(iter(committed_newest_first(task)), None)
            if newest is not None:
                answer.has_checkpoint = True
                answer.latest_checkpoint.CopyFrom(checkpoint_messages.message(newest))
                answer.resume_step, answer.resume_epoch = newest.step, newest.epoch
            for dataset, feed in task.feeds.items() if request.worker_id else ():
                if feed.unit == "shard":
                    shards = _shards(state, request.worker_id, dataset, answer.resume_epoch)
                    answer.shard_assignments.extend(shards)
            return answer

    async def wait_barrier(
        self, request: pb.WaitBarrierRequest, call: UnaryCall
    ) -> pb.WaitBarrierResponse:
        """Wait until all workers have arrived; the error names the missing workers."""
        worker, incarnation = self._sender(request)
        if not request.barrier_id:
            raise InvalidArgument("barrier_id is empty", hint="set barrier_id")
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

        def tell(end: BarrierEnd, order: int) -> None:
            if not ended.done():
                ended.set_result(end.outcome(order))

        self.barriers.wait(worker.task, barrier, request.worker_id, tell)
        outcome = await ended
        if not outcome.released:
            raise DeadlineExceeded(
                f"barrier {request.barrier_id!r} failed: {outcome.reason}; "
                f"missing: {', '.join(outcome.missing) or 'none'}",
                hint="read the logs of the missing workers: strata logs --worker ID",
            )
        return outcome

    def _next_arrival(self, worker: Worker, name: str) -> int:
        """Arrival number for clients that do not count their arrivals."""
        barrier = self.state.tasks[worker.task].barriers.get(name)
        if barrier is None:
            return 1
        incarnation, arrival = barrier.arrived.get(worker.id, (0, 0))
        last = arrival if incarnation == worker.incarnation else 0
        return last if barrier.state == "waiting" and last else last + 1

    def _sender(self, request: WorkerRequest) -> tuple[Worker, int]:
        """The worker and the incarnation that sent a request; raises if the nonce is wrong."""
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
    """A worker's shards of an attached dataset, in the order of an epoch."""
    feed, spec = _task_of(state, worker).feeds[dataset], state.dataset(dataset).spec
    return dataset_messages.owned_shards(dataset, spec, feed, worker, epoch)


def decoder(message: Any) -> Callable[[bytes], Any]:
    """Parser of a message type; raises `InvalidArgument` for other bytes."""

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
    """The gRPC status of an error, with its code and hint as metadata."""
    if not isinstance(error, StrataError):
        return None
    status = Status[STATUS[type(error)].grpc]
    metadata = [("strata-code", error.code)]
    if error.hint:
        metadata.append(("strata-hint", error.hint.encode("ascii", "replace").decode()))
    return Outcome(status, error.message, metadata)
