"""The one place that turns messages of the wire into what the core speaks, and back."""

from strata.core.agents import ReportExit
from strata.core.barriers import MAX_LEFT, ArriveAtBarrier, Barrier, LeftBarrier
from strata.core.events import Now
from strata.core.recovery import EnterGeneration
from strata.core.resources import GpuMetrics, ResourceMetrics
from strata.core.setbacks import ReportBrokenExchange
from strata.core.signals import Beat
from strata.core.tasks import Task
from strata.core.workers import DeregisterWorker, Outcome, RegisterWorker, Reported, Worker
from strata.errors import InvalidArgument, LimitExceeded, StrataError
from strata.wire.proof import digest
from strata.wire.v1 import coordinator_pb2 as pb

MAX_CARDS = 256
MAX_CARD_CHARACTERS = 200
OUTCOMES: dict[str, Outcome] = {"done": "done", "stopped": "stopped", "failed": "failed"}
STATES: dict[int, Reported] = {
    pb.WORKER_STATE_INITIALIZING: "initializing",
    pb.WORKER_STATE_IDLE: "idle",
    pb.WORKER_STATE_LOADING_DATA: "loading_data",
    pb.WORKER_STATE_TRAINING: "training",
    pb.WORKER_STATE_CHECKPOINTING: "checkpointing",
    pb.WORKER_STATE_RECOVERING: "recovering",
    pb.WORKER_STATE_ERROR: "error",
}
STATE_NUMBERS = {state: number for number, state in STATES.items()}


def registration(request: pb.RegisterWorkerRequest, peer: str) -> RegisterWorker:
    """What a registering worker asks for; `peer` is whence, as gRPC writes it."""
    return RegisterWorker(
        worker=request.worker_id,
        task=request.task_id,
        nonce=digest(request.nonce),
        hostname=request.hostname,
        address=peer.partition(":")[2].rpartition(":")[0].strip("[]"),
        port=request.port,
        gpu_count=request.gpu_count,
        memory_bytes=request.memory_bytes,
        weight=request.weight or 1,
        world_size=request.world_size,
        start=request.start,
        syncs=request.syncs,
        metadata=dict(request.metadata),
    )


def registered(
    worker: Worker, task: Task, heartbeat_s: float, places: dict[str, str]
) -> pb.RegisterWorkerResponse:
    """The answer to a registration."""
    return pb.RegisterWorkerResponse(
        assigned_id=worker.id,
        rank=worker.rank,
        world_size=len(task.members),
        heartbeat_interval_ms=int(heartbeat_s * 1000),
        config={"config": task.spec.config, **places},
        incarnation=worker.incarnation,
        task_id=task.id,
        generation=task.generation,
    )


def beat(message: pb.Beat) -> Beat:
    """What a beat says about progress."""
    return Beat(
        message.attempt,
        message.generation,
        message.step,
        message.state == pb.WORKER_STATE_TRAINING,
        message.waiting,
        message.save_request,
        message.busy_s,
    )


def resources(message: pb.ResourceMetrics) -> ResourceMetrics:
    """What a worker measured of itself; refuses more cards than a host has, since they are kept."""
    longest = max((len(card.name) for card in message.gpu_metrics), default=0)
    if len(message.gpu_metrics) > MAX_CARDS or longest > MAX_CARD_CHARACTERS:
        raise LimitExceeded(
            f"metrics of {len(message.gpu_metrics)} GPUs with names of up to {longest} characters",
            hint=f"send at most {MAX_CARDS} GPUs, and names of {MAX_CARD_CHARACTERS} characters",
        )
    cards = [
        GpuMetrics(
            card.index,
            card.name,
            card.utilization_percent,
            card.memory_used_bytes,
            card.memory_total_bytes,
        )
        for card in message.gpu_metrics
    ]
    return ResourceMetrics(
        message.cpu_percent,
        message.memory_used_bytes,
        cards,
        message.disk_read_bytes,
        message.disk_write_bytes,
        message.disk_free_bytes,
        message.network_rx_bytes if message.HasField("network_rx_bytes") else None,
        message.network_tx_bytes if message.HasField("network_tx_bytes") else None,
    )


def resources_message(metrics: ResourceMetrics) -> pb.ResourceMetrics:
    """What a worker measured, for the wire."""
    return pb.ResourceMetrics(
        cpu_percent=metrics.cpu_percent,
        memory_used_bytes=metrics.memory_used_bytes,
        gpu_metrics=[
            pb.GpuMetrics(
                index=card.index,
                name=card.name,
                utilization_percent=card.utilization_percent,
                memory_used_bytes=card.memory_used_bytes,
                memory_total_bytes=card.memory_total_bytes,
            )
            for card in metrics.gpu_metrics
        ],
        disk_read_bytes=metrics.disk_read_bytes,
        disk_write_bytes=metrics.disk_write_bytes,
        disk_free_bytes=metrics.disk_free_bytes,
        network_rx_bytes=metrics.network_rx_bytes,
        network_tx_bytes=metrics.network_tx_bytes,
    )


def arrival(worker: str, incarnation: int, message: pb.Arrive) -> ArriveAtBarrier:
    """A worker reaches a barrier."""
    return ArriveAtBarrier(
        worker=worker,
        incarnation=incarnation,
        barrier=message.barrier_id,
        request=message.arrival,
        step=message.step,
        generation=message.generation,
        after=message.after,
    )


def left_barriers(hello: pb.Hello) -> tuple[LeftBarrier, ...]:
    """The rounds of barriers that a worker was released from last."""
    return tuple(
        LeftBarrier(
            barrier=left.barrier_id,
            round=left.round,
            generation=left.generation,
            participants=left.participants,
            step=left.step,
        )
        for left in hello.left[:MAX_LEFT]
    )


def broken_exchange(
    worker: str, incarnation: int, message: pb.ReportBrokenExchange
) -> ReportBrokenExchange:
    """The members of a generation could not reach one another."""
    return ReportBrokenExchange(
        worker=worker,
        incarnation=incarnation,
        generation=message.generation,
        reason=message.reason,
    )


def entry(worker: str, incarnation: int, message: pb.Enter) -> EnterGeneration:
    """A worker is ready for a generation."""
    return EnterGeneration(
        worker=worker,
        incarnation=incarnation,
        generation=message.generation,
        model_attempt=message.model_attempt,
        model_generation=message.model_generation,
        step=message.step,
        address=message.address,
        meeting=message.meeting,
    )


def departure(worker: str, incarnation: int, message: pb.Leave) -> DeregisterWorker:
    """A worker leaves its task, and says how it went."""
    outcome = OUTCOMES.get(message.outcome or "done")
    if outcome is None:
        raise InvalidArgument(f"outcome is {message.outcome!r}", hint=f"use {', '.join(OUTCOMES)}")
    return DeregisterWorker(
        worker=worker,
        incarnation=incarnation,
        outcome=outcome,
        reason=message.reason,
        steps=message.steps,
        save_failure=message.save_failure,
    )


def barrier_outcome(barrier: Barrier, order: int) -> pb.WaitBarrierResponse:
    """How a barrier ended for the one who came as number `order`."""
    return pb.WaitBarrierResponse(
        released=barrier.state == "released",
        participants=barrier.met,
        arrival_order=order,
        missing=barrier.missing,
        reason=barrier.reason,
        round=barrier.round,
        generation=barrier.generation,
    )


def refusal(error: StrataError) -> pb.Refused:
    """An error for the wire."""
    return pb.Refused(code=error.code, message=error.message, hint=error.hint)


def pulse(message: pb.Beat, now: Now, lines: int) -> pb.Pulse:
    """The answer to a beat, from which the worker aligns its clock."""
    return pb.Pulse(
        sent_mono_ns=message.sent_mono_ns,
        server_wall_ns=now.wall_ns,
        server_mono_ns=now.mono_ns,
        lines=lines,
    )


def job(task: Task, environment: dict[str, str], grace_s: float, blocked: str = "") -> pb.Job:
    """What an agent has to know of a task to run its workers; their seats are still to be set."""
    own = {name: value for name, value in environment.items() if name != "PWD"}
    return pb.Job(
        task_id=task.id,
        entry=task.spec.entry,
        args=task.spec.args,
        config=task.spec.config,
        environment=own,
        working_dir=environment.get("PWD", ""),
        grace_ms=int(grace_s * 1000),
        stopping=task.state == "stopping",
        world_size=task.spec.worker_count,
        blocked=blocked,
    )


def exit_report(message: pb.ProcessExited, agent: str, incarnation: int) -> ReportExit:
    """How a process ended, as its agent says."""
    return ReportExit(
        agent=agent,
        incarnation=incarnation,
        task=message.task_id,
        worker=message.worker_id,
        start=message.start,
        code=message.code,
        signal=message.signal,
    )
