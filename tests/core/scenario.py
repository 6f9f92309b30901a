"""One small run in which every kind of fact is recorded, by decisions alone."""

from contextlib import suppress

import msgspec

from strata.core.access.access_tokens import MakeToken, RevokeToken
from strata.core.alerts.alert_record import Ending, Finding, NoteDelivery, RecordAlerts
from strata.core.barriers.agreements import AgreeOnValue, LeaveLoop
from strata.core.checkpoints.checkpoint_commits import NoteCopy
from strata.core.checkpoints.checkpoint_retention import PinCheckpoint, ReleaseCheckpoint
from strata.core.checkpoints.save_schedule import (
    EndTraining,
    PostponeCheckpoint,
    RequestCheckpoint,
    ScheduleCheckpoint,
)
from strata.core.datasets.dataset_rules import AttachDataset, RegisterDataset
from strata.core.datasets.lane_balance import BalanceLanes
from strata.core.datasets.shard_leases import AcquireLease, ReturnLease
from strata.core.generations.recovery import EnterGeneration
from strata.core.generations.recovery_failures import RefuseRecovery, ReportBrokenExchange
from strata.core.generations.storage_waits import ReportStorage
from strata.core.hosts.gpu_exclusion import ExcludeGpu, IncludeGpu
from strata.core.hosts.host_exclusion import ExcludeHost, IncludeHost
from strata.core.hosts.host_health import GpuHealth, HostHealth
from strata.core.hosts.host_record import ReportHost
from strata.core.record.log_salvage import SalvageLog
from strata.core.record.record_retention import DeleteRun, MoveEvents, MoveFacts, ReleaseEvents
from strata.core.record.store_outages import NoteStoreRefused
from strata.core.rule_settings import Rules
from strata.core.state import DatasetSpec, Gpu
from strata.core.task_spec import RetentionRequest
from strata.core.tasks.continuation import ContinueTask, EndKilledTask
from strata.core.tasks.media_room import AskForMediaRoom
from strata.core.tasks.placement import StopTask
from strata.core.tasks.resizing import ResizeTask
from strata.core.tasks.task_forks import ForkTask
from strata.core.tasks.workdirs import Workdir, WorkdirFile
from strata.core.workers.host_agents import RegisterAgent
from strata.core.workers.stack_collection import (
    EndStackCollection,
    ReportStacks,
    RequestStacks,
)
from strata.core.workers.stack_reports import (
    PendingExchange,
    ProcessStacks,
    StackFrame,
    StackReport,
    ThreadStack,
)
from strata.core.workers.worker_lifecycle import ReattachWorker, ReportState
from strata.errors import AlreadyExists, Fenced, LimitExceeded
from tests.core.world import World


def every_kind() -> World:
    """A placed task that trains, saves, loses a worker and recovers; beside it, an external one."""
    world = World(Rules(max_workers=5))
    world.do(RegisterDataset(dataset="d", spec=DatasetSpec(total_samples=40, shard_size=10)))
    host = world.agent("host-1", slots=2)
    health = HostHealth(load_1m=1.5, oom_kills=0, gpus=[GpuHealth(index=0, power_watts=300.5)])
    world.do(ReportHost(agent=host.id, incarnation=host.incarnation, health=health))
    world.do(ExcludeHost(host=host.id, reason="its fan is replaced"))
    world.do(IncludeHost(host=host.id, reason="it is repaired"))
    world.do(ExcludeGpu(host=host.id, gpu="0", reason="its memory is faulty"))
    world.do(IncludeGpu(host=host.id, gpu="0", reason="it was replaced"))
    world.do(MakeToken(token="ci", role="submit", digest="5e" * 32, expires_ns=2**62))
    world.do(RevokeToken(token="ci"))
    task = world.submit(2, external=False, keep_count=1, dataset_id="d", args=["--lr", "0.1"])
    world.start(task)
    lanes = {"unit": "lane", "global_batch": 8, "lanes": 4, "rebalance": True, "loop": "0.-1.0"}
    world.do(AttachDataset(task=task.id, dataset="d", **lanes))
    world.sync(task)
    _alert(world, task)
    _decide_together(world, task)
    _rebalance(world, task)
    _train_and_save(world, task)
    _collect_stacks(world, task)
    _lose_a_worker(world, task)
    _resize(world, task)
    _lose_the_host(world, task)
    _continue(world, task)
    _train_with_leases(world)
    _preempt(world)
    _archive_the_run(world, task)
    _lose_the_end_of_the_log(world)
    return world


def _alert(world, task):
    about = {"rule": "loss_not_finite", "subject": f"task:{task.id}"}
    found = Finding(
        **about,
        severity="error",
        text="the loss is NaN",
        evidence={"step": 3, "value": "NaN"},
        task=task.id,
        worker=task.members[0],
        causes=(f"{task.members[0]}.1.7",),
    )
    channels = {"error": ["webhook", "email"]}
    world.do(RecordAlerts(changes=(found,), channels=channels))
    world.do(RecordAlerts(changes=(found,), channels=channels))
    told = {"alert": "alert-1", "moment": "raised"}
    world.do(NoteDelivery(**told, channel="webhook", attempts=2))
    world.do(NoteDelivery(**told, channel="email", attempts=6, error="connection refused"))
    world.do(RecordAlerts(changes=(Ending(**about, reason="the loss is finite"),)))


def _decide_together(world, task):
    first = world.members(task)[0]
    world.do(AgreeOnValue(**first.me, key="0.-1.0@0#0", step=0, value="true"))
    world.do(LeaveLoop(**first.me, loop="0.-1.1", step=0))
    world.do(AskForMediaRoom(**first.me, total_bytes=2**40))


def _rebalance(world, task):
    fast, slow = task.members
    busy_s = {fast: 0.1, slow: 0.9}
    world.do(BalanceLanes(task=task.id, generation=task.generation, busy_s=busy_s))
    world.sync(task)


def _train_and_save(world, task):
    first, second = world.members(task)
    world.do(ReportState(**first.me, state="training", step=0))
    world.train(task, 5)
    world.do(RequestCheckpoint(task=task.id))
    busy = {"step": 3, "reason": "a save is under way", "busy_s": 1.5}
    request = world.do(PostponeCheckpoint(**second.me, generation=task.generation, **busy))
    world.do(
        ScheduleCheckpoint(
            task=task.id, generation=task.generation, request=request, furthest_step=3
        )
    )
    world.save(task, 5, metadata={"rng": "7"})
    newest = world.save(task, 6, metrics={"val_loss": 0.25})
    world.do(NoteCopy(task=task.id, checkpoint=newest.id, path="s3://bucket/step-6"))
    chosen = {"task": task.id, "checkpoint": newest.id, "holder": "user"}
    world.do(PinCheckpoint(**chosen, note="for the paper"))
    world.do(ReleaseCheckpoint(**chosen))
    for peer in (first, second):
        peer.arrive("epoch")
    world.train(task, 9)


def _collect_stacks(world, task):
    first, second = world.members(task)
    world.do(RequestStacks(task=task.id, trigger="hang", reason="no step", suspects=[first.id]))
    frame = StackFrame(function="load", file="data.py", line=41)
    stacks = ThreadStack(main=True, frames=[frame], cut=2)
    process = ProcessStacks(pid=7, program="train.py", source="py-spy", threads=[stacks])
    report = StackReport(
        processes=[process],
        exchange=PendingExchange(kind="all-reduce", number=1204, pending=True),
        waits_for=["barrier epoch"],
        notes=["py-spy --native: not permitted"],
    )
    world.do(ReportStacks(task=task.id, worker=second.id, collection=1, report=report))
    world.do(EndStackCollection(task=task.id, collection=1, reason="too late"))


def _lose_a_worker(world, task):
    first, second = world.members(task)
    first.arrive("next")
    first.begin(9)
    world.exit(task, second.id, code=1, signal=9)
    with suppress(Fenced):
        second.arrive("next")
    world.start(task)
    world.sync(task)
    reason = "the peer could not be reached"
    world.do(RefuseRecovery(**first.me, generation=task.generation, reason=reason))
    world.sync(task)
    waiting = {**first.me, "generation": task.generation}
    world.do(ReportStorage(**waiting, reachable=False, reason="connection refused"))
    world.do(ReportStorage(**waiting, reachable=True))
    world.do(ReportBrokenExchange(**first.me, generation=task.generation, reason="a link broke"))
    world.sync(task)


def _resize(world, task):
    released = world.members(task)[1]
    world.do(ResizeTask(task=task.id, worker_count=1, reason="asked for"))
    released.leave("stopped")
    world.exit(task, released.id, code=0)
    world.sync(task)
    world.do(ResizeTask(task=task.id, worker_count=2, min_workers=1, reason="asked for"))
    world.start(task)
    world.sync(task)
    declared = {**world.members(task)[0].me, "generation": task.generation, "rebuilds": True}
    world.do(EnterGeneration(**declared))


def _lose_the_host(world, task):
    world.agent("host-2", slots=1, nonce="host-2")
    world.agent("host-2", slots=2, nonce="host-2")
    gpus = [[Gpu(0, "GPU-a")], [Gpu(1, "GPU-b")]]
    world.do(RegisterAgent(agent="host-2", slots=2, nonce="host-2", gpus=gpus))
    world.lose_agent("host-1")
    world.start(task)
    world.sync(task)
    for peer in world.members(task):
        world.do(EndTraining(**peer.me, step=7))
    for peer in world.members(task):
        peer.leave("done", steps=7)


def _continue(world, task):
    spec = msgspec.structs.replace(task.spec, args=["--lr", "0.2"])
    world.do(ContinueTask(task=task.id, spec=spec))
    world.start(task)
    world.sync(task)
    lanes = {"unit": "lane", "global_batch": 8, "lanes": 4, "rebalance": True, "loop": "0.-1.0"}
    world.do(AttachDataset(task=task.id, dataset="d", **lanes, step=task.committed))
    world.do(EndKilledTask(task=task.id))
    fork = world.do(ForkTask(task=task.id, spec=task.spec))
    world.do(StopTask(task=fork.id))


def _train_with_leases(world):
    """Workers that the user starts: they ask for leases, and are too many."""
    task = world.submit(1, name="leases", syncs=False)
    asked = RetentionRequest(keep_every=100, keep_best="max:accuracy")
    a, b, c, d, e = world.join(task, "a", "b", "c", "d", "e", retention=asked)
    with suppress(AlreadyExists):
        world.register("a", task=task.id)
    with suppress(LimitExceeded):
        world.register("f", task=task.id)
    world.do(ReattachWorker(**a.me))
    world.do(AttachDataset(task=task.id, dataset="d", unit="lease"))
    lease = world.do(AcquireLease(**a.me, dataset="d"))
    world.do(ReturnLease(**a.me, dataset="d", lease=lease.id))
    for peer in (c, d, e):
        peer.leave("stopped")
    b.lost()


def _preempt(world):
    """A task of higher priority takes the slots of another one, which then waits."""
    folder = Workdir([WorkdirFile(path="train.py", sha256="ab" * 32, size_bytes=7, mode=0o644)])
    task = world.submit(1, name="low", external=False, preemptible=True, workdir=folder)
    world.start(task)
    world.sync(task)
    trainer = {"generation": task.generation, "trainer": "Lightning's Trainer"}
    world.do(EnterGeneration(**world.members(task)[0].me, **trainer))
    world.submit(2, name="high", external=False, priority=1)
    for peer in world.members(task):
        peer.leave("stopped")


def _archive_the_run(world, task):
    kept = {"task": task.id, "run": f"{task.id}-c", "place": "s3://bucket/runs"}
    span = {"wall_from_ns": 1_000, "wall_to_ns": 2_000}
    world.do(MoveEvents(task=task.id, stretch=f"{task.id}-000001", events=500, **span))
    world.do(MoveFacts(first=0, last=4_095, facts=4_096, place="s3://bucket/kept"))
    world.do(ReleaseEvents(**kept, events=1_000))
    world.do(DeleteRun(**kept, reason="it ended more than 30 days ago"))
    world.do(NoteStoreRefused(lasted_s=3.5, turns=7, reason="the disk is full"))


def _lose_the_end_of_the_log(world):
    base = world.state.position
    lost = [(base, base + 3)]
    world.do(SalvageLog(base=base, end=base + 3, lost=lost, lost_batches=2, reason="cut short"))
