"""Conversion between protobuf messages of workers and agents and the core's commands and
structures.

A worker or agent proves that it is the one that registered: it registers with a random nonce and
sends it with later requests. Ids and incarnations are visible in the API and in the facts; of a
nonce only the digest is stored, so that a reader of the facts cannot send requests in another's
name. For a worker that registered without a nonce, any client of the coordinator can send requests.
"""

import hmac
from hashlib import blake2b
from typing import Any, TypeAlias

from msgspec import structs

from strata.core.barriers.agreements import AgreeOnValue, LeaveLoop
from strata.core.barriers.barrier_rules import MAX_LEFT, ArriveAtBarrier, LeftBarrier
from strata.core.checkpoints.save_schedule import EndTraining
from strata.core.events import Now
from strata.core.generations.recovery import EnterGeneration
from strata.core.generations.recovery_failures import ReportBrokenExchange
from strata.core.limits import require_text
from strata.core.state import Outcome, Reported, Worker
from strata.core.task_spec import RetentionRequest
from strata.core.task_state import Barrier, Task
from strata.core.tasks.media_room import AskForMediaRoom
from strata.core.tasks.placement import StopRun
from strata.core.workers.heartbeats import Beat, GpuMetrics, ResourceMetrics
from strata.core.workers.host_agents import ReportExit
from strata.core.workers.worker_lifecycle import DeregisterWorker, RegisterWorker
from strata.errors import Fenced, InvalidArgument, LimitExceeded, PermissionDenied, StrataError
from strata.wire.v1 import coordinator_pb2 as pb

Deciding: TypeAlias = AgreeOnValue | LeaveLoop | EndTraining | StopRun | AskForMediaRoom

KINDS = ("agree", "leave_loop", "end_training", "stop_run", "ask_for_media_room")


def agreement_command(worker: str, incarnation: int, message: pb.WorkerMessage) -> Deciding:
    """The command of a message."""
    kind = message.WhichOneof("body")
    if kind == "agree":
        asked = message.agree
        return AgreeOnValue(
            worker=worker,
            incarnation=incarnation,
            key=asked.key,
            step=asked.step,
            value=asked.value,
        )
    if kind == "leave_loop":
        left = message.leave_loop
        return LeaveLoop(worker=worker, incarnation=incarnation, loop=left.loop, step=left.step)
    if kind == "end_training":
        return EndTraining(worker=worker, incarnation=incarnation, step=message.end_training.step)
    if kind == "ask_for_media_room":
        total = message.ask_for_media_room.total_bytes
        return AskForMediaRoom(worker=worker, incarnation=incarnation, total_bytes=total)
    return StopRun(worker=worker, incarnation=incarnation, reason=message.stop_run.reason)


def agreement_answer(request: int, result: object) -> pb.CoordinatorMessage:
    """The answer: the agreed value, the room for media, or done."""
    if isinstance(result, int):
        room = pb.MediaRoom(granted_bytes=result)
        return pb.CoordinatorMessage(request=request, media_room=room)
    if isinstance(result, str):
        return pb.CoordinatorMessage(request=request, agreed=pb.Agreed(value=result))
    return pb.CoordinatorMessage(request=request, done=pb.Done())


DIGEST_BYTES = 16


def digest(nonce: str) -> str:
    """The stored digest of a nonce; empty for no nonce."""
    require_text(nonce=nonce)
    encoded = nonce.encode("utf-8")
    return blake2b(encoded, digest_size=DIGEST_BYTES).hexdigest() if nonce else ""


def require_proof(worker: Worker, incarnation: int, nonce: str) -> None:
    """Raise if the caller claims a worker's present incarnation without its nonce.

    An older incarnation is passed on to the rules, which refuse it and record that. An incarnation
    that does not exist yet is refused here, because it may exist when the rules see the request.
    """
    if incarnation > worker.incarnation:
        raise Fenced(
            f"incarnation {incarnation} of worker {worker.id!r} is fenced: it was never assigned "
            f"to this worker",
            hint="register again; the worker then gets a new incarnation",
        )
    if not worker.nonce or incarnation != worker.incarnation:
        return
    if not hmac.compare_digest(digest(nonce), worker.nonce):
        raise PermissionDenied(
            f"the caller is not the process that registered as worker {worker.id!r}",
            hint="send the nonce of the registration with the request",
        )


NETWORK = ("network_rx_bytes", "network_tx_bytes")
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
    """The command of a registration; `peer` is the client's address in gRPC's form."""
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
        retention=_retention(request.retention),
    )


def _retention(message: pb.Retention) -> RetentionRequest:
    """What a script asks for; fields that are not set are None."""
    names = RetentionRequest.__struct_fields__
    return RetentionRequest(
        **{name: getattr(message, name) for name in names if message.HasField(name)}
    )


def registered(
    worker: Worker, task: Task, heartbeat_s: float, places: dict[str, str]
) -> pb.RegisterWorkerResponse:
    """The answer to a registration."""
    lengths = {"epochs": task.spec.epochs, "max_steps": task.spec.max_steps}
    return pb.RegisterWorkerResponse(
        assigned_id=worker.id,
        rank=worker.rank,
        world_size=len(task.members),
        heartbeat_interval_ms=int(heartbeat_s * 1000),
        config={
            "config": task.spec.config,
            "keep_best": task.retention.keep_best,
            **{name: str(value) for name, value in lengths.items() if value},
            **places,
        },
        incarnation=worker.incarnation,
        task_id=task.id,
        generation=task.generation,
        role=task.role_of(worker.rank),
    )


def beat(message: pb.Beat) -> Beat:
    """The progress in a heartbeat."""
    return Beat(
        attempt=message.attempt,
        generation=message.generation,
        step=message.step,
        training=message.state == pb.WORKER_STATE_TRAINING,
        waiting=message.waiting,
        request=message.save_request,
        busy_s=message.busy_s,
        data_s=message.data_s,
    )


def resources(message: pb.ResourceMetrics) -> ResourceMetrics:
    """The resources in a heartbeat; raises if there are more GPUs than a host can have."""
    longest = max((len(card.name) for card in message.gpu_metrics), default=0)
    if len(message.gpu_metrics) > MAX_CARDS or longest > MAX_CARD_CHARACTERS:
        raise LimitExceeded(
            f"metrics of {len(message.gpu_metrics)} GPUs with names of up to {longest} characters",
            hint=f"send at most {MAX_CARDS} GPUs, and names of {MAX_CARD_CHARACTERS} characters",
        )
    require_text(disk_source=message.disk_source)
    cards = [GpuMetrics(**{"index": 0} | _present(card)) for card in message.gpu_metrics]
    return ResourceMetrics(**_present(message) | {"gpu_metrics": cards})


def resources_message(metrics: ResourceMetrics) -> pb.ResourceMetrics:
    """The resources of a worker as a message."""
    cards = [pb.GpuMetrics(**structs.asdict(card)) for card in metrics.gpu_metrics]
    return pb.ResourceMetrics(**structs.asdict(metrics) | {"gpu_metrics": cards})


def _present(message: pb.GpuMetrics | pb.ResourceMetrics) -> dict[str, Any]:
    """The set fields of a message by name, which are those of the core's structure."""
    return {field.name: value for field, value in message.ListFields()}


def arrival(worker: str, incarnation: int, message: pb.Arrive) -> ArriveAtBarrier:
    """The command of an arrival at a barrier."""
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
    """The barrier rounds from which a worker was released last."""
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
    """The command of a report that members of a generation cannot reach each other."""
    return ReportBrokenExchange(
        worker=worker,
        incarnation=incarnation,
        generation=message.generation,
        reason=message.reason,
    )


def entry(worker: str, incarnation: int, message: pb.Enter) -> EnterGeneration:
    """The command of a worker that enters a generation."""
    return EnterGeneration(
        worker=worker,
        incarnation=incarnation,
        generation=message.generation,
        model_attempt=message.model_attempt,
        model_generation=message.model_generation,
        step=message.step,
        address=message.address,
        meeting=message.meeting,
        rebuilds=message.rebuilds,
        trainer=message.trainer,
    )


def departure(worker: str, incarnation: int, message: pb.Leave) -> DeregisterWorker:
    """The command of a worker that leaves its task."""
    outcome = OUTCOMES.get(message.outcome or "done")
    if outcome is None:
        raise InvalidArgument(
            f"unknown outcome {message.outcome!r}", hint=f"use {', '.join(OUTCOMES)}"
        )
    return DeregisterWorker(
        worker=worker,
        incarnation=incarnation,
        outcome=outcome,
        reason=message.reason,
        steps=message.steps,
        save_failure=message.save_failure,
        refused=message.refused,
    )


def barrier_outcome(barrier: Barrier, order: int) -> pb.WaitBarrierResponse:
    """The outcome of a barrier for the worker that arrived as number `order`."""
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
    """An error as a message."""
    return pb.Refused(code=error.code, message=error.message, hint=error.hint)


def pulse(message: pb.Beat, now: Now, lines: int, watched_s: float = 0.0) -> pb.Pulse:
    """The answer to a heartbeat, from which the worker aligns its clock."""
    return pb.Pulse(
        sent_mono_ns=message.sent_mono_ns,
        server_wall_ns=now.wall_ns,
        server_mono_ns=now.mono_ns,
        lines=lines,
        watched_s=watched_s,
    )


def job(task: Task, environment: dict[str, str], grace_s: float, blocked: str = "") -> pb.Job:
    """A task for an agent that runs its workers; the caller adds the seats."""
    own = {name: value for name, value in environment.items() if name != "PWD"}
    return pb.Job(
        task_id=task.id,
        entry=task.spec.entry,
        args=task.spec.args,
        config=task.spec.config,
        environment=own,
        working_dir="" if task.spec.workdir else environment.get("PWD", ""),
        grace_ms=int(grace_s * 1000),
        stopping=task.state == "stopping",
        world_size=task.spec.worker_count,
        blocked=blocked,
        workdir=task.spec.workdir,
        self_test=task.spec.self_test,
    )


def exit_report(message: pb.ProcessExited, agent: str, incarnation: int) -> ReportExit:
    """The command of an agent's report that a process ended."""
    require_text(**{f"gpus[{number}]": gpu for number, gpu in enumerate(message.gpus)})
    return ReportExit(
        agent=agent,
        incarnation=incarnation,
        task=message.task_id,
        worker=message.worker_id,
        start=message.start,
        code=message.code,
        signal=message.signal,
        gpus=tuple(message.gpus[:MAX_CARDS]),
    )
