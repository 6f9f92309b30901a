"""The kernel: answered commands are stored, stored facts are restored."""

import msgspec
import pytest
from msgspec import structs

from strata.coordinator.engine.kernel import Kernel, state_at
from strata.core import state as cluster_state
from strata.core.cluster import CODEC
from strata.core.events import Codec, Now
from strata.core.record.snapshot_versions import SCHEMA
from strata.core.rule_settings import Timeouts
from strata.core.task_spec import TaskSpec
from strata.core.tasks.placement import StopTask, SubmitTask
from strata.core.workers.heartbeats import Beat, WorkerBeat, WorkerDisconnected
from strata.core.workers.host_agents import RegisterAgent, ReportExit
from strata.core.workers.worker_lifecycle import (
    DeregisterWorker,
    ReattachWorker,
    RegisterWorker,
    ReportState,
)
from strata.errors import Conflict, Fenced, Unavailable, UnknownKind
from strata.sim.sim_disk import DiskRefused, SimDisk
from strata.store.event_store import Snapshot
from strata.store.memory_store import MemoryStore
from strata.store.sqlite import SqliteStore


class Ticks:
    """A clock that advances by a second at each read."""

    def __init__(self):
        self.now_ns = 0

    def __call__(self) -> Now:
        self.now_ns += 1_000_000_000
        return Now(self.now_ns, self.now_ns)


def submit(kernel: Kernel, name: str = "job") -> None:
    kernel.commit(kernel.decide([SubmitTask(spec=TaskSpec(name=name))]))


def test_restart_restores_the_state_and_raises_the_incarnation():
    store = MemoryStore(CODEC)
    first = Kernel(store, Ticks())
    first.start("c", "1")
    submit(first)
    second = Kernel(store, Ticks())
    assert cluster_state.encode(second.state) == cluster_state.encode(first.state)
    second.start("another name", "1")
    assert second.state.coordinator_incarnation == 2
    assert second.state.cluster == "c"


def test_decided_but_unstored_facts_are_lost():
    store = MemoryStore(CODEC)
    kernel = Kernel(store, Ticks())
    kernel.start("c", "1")
    kernel.decide([SubmitTask(spec=TaskSpec(name="lost"))])
    assert Kernel(store, Ticks()).state.tasks == {}


def test_failed_append_rolls_the_state_back():
    disk = SimDisk(CODEC)
    kernel = Kernel(disk, Ticks())
    kernel.start("c", "1")
    before = cluster_state.encode(kernel.state)
    disk.refuse_next = True
    with pytest.raises(DiskRefused):
        submit(kernel)
    assert cluster_state.encode(kernel.state) == before
    submit(kernel)
    assert "job-1" in kernel.state.tasks


class NoSnapshots(SimDisk):
    """A disk with room for facts but not for a snapshot."""

    def save_snapshot(self, snapshot):
        raise DiskRefused("the disk is full", hint="free some space")


def test_failed_snapshot_keeps_stored_facts():
    disk = NoSnapshots(CODEC)
    kernel = Kernel(disk, Ticks(), snapshot_every=1)
    kernel.start("c", "1")
    submit(kernel)
    assert kernel.durable == disk.position == kernel.state.position


class LateError(SimDisk):
    """A disk that stores everything and then reports an error, as a failed fsync may."""

    def append(self, events, **given):
        stored = super().append(events, **given)
        if events and len(events) > 1:
            raise DiskRefused("the disk did not answer", hint="look at it")
        return stored


def test_stored_facts_count_even_if_the_append_failed():
    disk = LateError(CODEC)
    kernel = Kernel(disk, Ticks())
    kernel.start("c", "1")
    turn = kernel.decide([SubmitTask(spec=TaskSpec(name=name)) for name in ("a", "b")])
    kernel.commit(turn)
    assert set(kernel.state.tasks) == {"a-1", "b-2"}
    assert kernel.durable == disk.position


SECOND_NS = 1_000_000_000


class Still:
    """A clock that the test advances."""

    def __init__(self):
        self.now_s = 1.0

    def __call__(self) -> Now:
        return Now(int(self.now_s * SECOND_NS), int(self.now_s * SECOND_NS))


@pytest.fixture
def watched():
    """A kernel with one registered worker, the worker, and the clock."""
    clock = Still()
    kernel = Kernel(SimDisk(CODEC), clock, Timeouts(heartbeat_timeout_s=30.0))
    kernel.start("c", "1")
    kernel.commit(kernel.decide([RegisterWorker(worker="w")]))
    return kernel, kernel.state.workers["w"], clock


def kinds(turn) -> list[str]:
    return [event.kind for event in turn.events]


def test_heartbeat_in_the_same_turn_prevents_a_timeout(watched):
    kernel, worker, clock = watched
    clock.now_s = 32.0
    beat = WorkerBeat("w", worker.incarnation, Beat())
    assert kinds(kernel.decide([beat])) == []
    clock.now_s = 63.0
    assert kinds(kernel.decide([]))[:1] == ["WorkerLost"]


def test_worker_that_reconnects_in_the_turn_of_its_timeout_is_not_lost(watched):
    kernel, worker, clock = watched
    kernel.decide([WorkerDisconnected("w", worker.incarnation)])
    clock.now_s = 10.0
    again = ReattachWorker(worker="w", incarnation=worker.incarnation)
    assert kinds(kernel.decide([again])) == ["WorkerReturned"]


def test_timeouts_are_not_decided_while_requests_are_queued(watched):
    kernel, _worker, clock = watched
    clock.now_s = 32.0
    assert kinds(kernel.decide([], check_deadlines=False)) == []


def test_heartbeat_of_a_lost_worker_is_refused_and_recorded_once(watched):
    kernel, worker, clock = watched
    clock.now_s = 32.0
    kernel.commit(kernel.decide([]))
    beat = WorkerBeat("w", worker.incarnation, Beat(), "training")
    first, second = kernel.decide([beat]), kernel.decide([beat])
    assert isinstance(first.outcomes[0].refusal, Fenced)
    assert kinds(first) == ["WorkerFenced"]
    assert kinds(second) == []


def test_id_of_a_disconnected_worker_is_reused_in_the_turn_of_its_loss(watched):
    kernel, worker, clock = watched
    kernel.watch.timeouts = Timeouts(connection_grace_s=100.0)
    kernel.decide([WorkerDisconnected("w", worker.incarnation)])
    clock.now_s = 2.0
    waiting = kernel.decide([RegisterWorker(worker="w", nonce="other")])
    assert isinstance(waiting.outcomes[0].refusal, Unavailable)
    clock.now_s = 8.0
    turn = kernel.decide([RegisterWorker(worker="w", nonce="other")])
    assert turn.outcomes[0].answer.incarnation == worker.incarnation + 1
    assert kinds(turn)[0] == "WorkerLost"


def test_only_one_of_two_writers_wins():
    store = MemoryStore(CODEC)
    first, second = Kernel(store, Ticks()), Kernel(store, Ticks())
    first.start("c", "1")
    with pytest.raises(Conflict):
        second.start("c", "1")


def test_snapshots_limit_the_facts_that_a_restart_folds():
    store = MemoryStore(CODEC)
    kernel = Kernel(store, Ticks(), Timeouts(heartbeat_timeout_s=1e6), snapshot_every=100)
    kernel.start("c", "1")
    kernel.commit(kernel.decide([RegisterWorker(worker="w")]))
    incarnation = kernel.state.workers["w"].incarnation
    for number in range(500):
        state = "idle" if number % 2 else "training"
        kernel.commit(
            kernel.decide([ReportState(worker="w", incarnation=incarnation, state=state)])
        )
    snapshot = store.load_snapshot(None, SCHEMA)
    assert snapshot is not None
    assert kernel.durable - snapshot.position < 200
    assert cluster_state.encode(Kernel(store, Ticks()).state) == cluster_state.encode(kernel.state)


@pytest.mark.parametrize(
    ("schema", "state"),
    [
        ("state/9999", b""),
        (SCHEMA, b"\x00"),
        (SCHEMA, msgspec.msgpack.encode(({"Moon": ["x"]}, {}))),
    ],
)
def test_unreadable_snapshot_is_skipped(schema, state):
    store = MemoryStore(CODEC)
    kernel = Kernel(store, Ticks(), snapshot_every=2)
    kernel.start("c", "1")
    submit(kernel)
    readable = store.load_snapshot(None, SCHEMA)
    submit(kernel, "another")
    store.save_snapshot(Snapshot(store.position, 0, schema, state))
    again = Kernel(store, Ticks(), snapshot_every=2)
    assert readable is not None
    assert again.state == kernel.state
    assert state_at(store, None) == kernel.state


def test_restart_that_folded_many_facts_takes_a_snapshot_at_once():
    store = MemoryStore(CODEC)
    kernel = Kernel(store, Ticks(), snapshot_every=1_000)
    kernel.start("c", "1")
    for number in range(10):
        submit(kernel, f"job{number}")
    assert store.load_snapshot(None, SCHEMA) is None
    again = Kernel(store, Ticks(), snapshot_every=10)
    again.start("c", "1")
    assert store.load_snapshot(None, SCHEMA).position == again.durable


def test_state_at_any_position_can_be_read():
    store = MemoryStore(CODEC)
    kernel = Kernel(store, Ticks(), snapshot_every=3)
    kernel.start("c", "1")
    for number in range(10):
        submit(kernel, f"job{number}")
    for position in range(1, store.position + 1):
        assert len(state_at(store, position).tasks) == position - 1


def test_log_of_a_newer_release_is_refused_unchanged(tmp_path):
    path = tmp_path / "log.db"
    with SqliteStore(path, CODEC) as store:
        Kernel(store, Ticks()).start("c", "1")
    older = Codec(kind for tag, kind in CODEC.kinds.items() if tag != "CoordinatorStarted")
    with SqliteStore(path, older) as store, pytest.raises(UnknownKind, match="CoordinatorStarted"):
        Kernel(store, Ticks())
    with SqliteStore(path, CODEC) as store:
        assert Kernel(store, Ticks()).state.cluster == "c"


def running(workers: int) -> Kernel:
    """A task whose workers were placed on agents and registered in one turn."""
    kernel = Kernel(MemoryStore(CODEC), Ticks())
    kernel.decide([RegisterAgent(agent="host", slots=workers)])
    kernel.decide([SubmitTask(spec=TaskSpec(name="job", worker_count=workers, min_workers=1))])
    (task,) = kernel.state.tasks.values()
    turn = kernel.decide(
        [RegisterWorker(worker=each, task=task.id, start=1) for each in task.placements]
    )
    assert kinds(turn).count("GenerationChanged") == 1
    assert [outcome.answer.rank for outcome in turn.outcomes] == list(range(workers))
    return kernel


def leaving(kernel: Kernel, outcome: str) -> list[DeregisterWorker]:
    (task,) = kernel.state.tasks.values()
    return [
        DeregisterWorker(
            worker=each, incarnation=kernel.state.workers[each].incarnation, outcome=outcome
        )
        for each in task.members
    ]


def exits(kernel: Kernel, code: int) -> list[ReportExit]:
    (task,) = kernel.state.tasks.values()
    incarnation = kernel.state.agents["host"].incarnation
    return [
        ReportExit(
            agent="host",
            incarnation=incarnation,
            task=task.id,
            worker=worker,
            start=placement.start,
            code=code,
        )
        for worker, placement in task.placements.items()
    ]


def test_workers_that_stop_in_one_turn_change_the_generation_once():
    kernel = running(5)
    (task,) = kernel.state.tasks.values()
    kernel.decide([StopTask(task=task.id)])
    turn = kernel.decide(leaving(kernel, "stopped"))
    assert kinds(turn).count("GenerationChanged") == 1
    assert (task.state, task.members) == ("stopped", [])


def test_exits_in_one_turn_form_one_generation_and_restart_once():
    kernel = running(5)
    (task,) = kernel.state.tasks.values()
    turn = kernel.decide([*leaving(kernel, "failed"), *exits(kernel, 3)])
    assert kinds(turn).count("WorkerLost") == kinds(turn).count("WorkerExited") == 5
    assert kinds(turn).count("GenerationChanged") == kinds(turn).count("TaskPlaced") == 1
    assert {placement.start for placement in task.placements.values()} == {2}


def test_workers_leaving_together_get_separate_answers():
    kernel = running(3)
    one, two, _ = leaving(kernel, "failed")
    old = structs.replace(two, incarnation=two.incarnation + 7)
    beat = WorkerBeat(two.worker, two.incarnation, Beat())
    turn = kernel.decide([one, old, beat, one])
    assert [type(outcome.refusal) for outcome in turn.outcomes] == [
        type(None),
        Fenced,
        type(None),
        Fenced,
    ]
    assert [event.seq for event in turn.events] == sorted(event.seq for event in turn.events)
    assert kinds(turn).count("WorkerLost") == 1
