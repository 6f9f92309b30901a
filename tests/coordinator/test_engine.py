"""The engine: durable before the answer, group commit, limits, subscriptions."""

import asyncio
import threading

import pytest
from msgspec import structs

from strata.coordinator.engine import engine as engine_module
from strata.coordinator.engine.clock import read_clock
from strata.coordinator.engine.engine import MAX_TURN, Engine
from strata.coordinator.engine.kernel import Kernel
from strata.core.barriers.barrier_rules import ArriveAtBarrier
from strata.core.cluster import CODEC
from strata.core.events import Now
from strata.core.record.store_outages import StoreRefused
from strata.core.rule_settings import Timeouts
from strata.core.state import Worker
from strata.core.task_spec import TaskSpec
from strata.core.tasks.placement import SubmitTask
from strata.core.workers.heartbeats import Beat, WorkerBeat, WorkerDisconnected
from strata.core.workers.host_agents import RegisterAgent
from strata.core.workers.worker_lifecycle import (
    DeclareLost,
    RegisterWorker,
    ReportState,
    WorkerLost,
)
from strata.errors import NotFound, Overloaded, Unavailable
from strata.sim.sim_disk import DiskRefused, SimDisk
from strata.store.event_store import Batch, Window

pytestmark = pytest.mark.anyio


class GatedDisk(SimDisk):
    """A disk that writes only while its gate is open, and counts its writes."""

    def __init__(self):
        super().__init__(CODEC)
        self.gate = threading.Event()
        self.gate.set()
        self.writes = 0

    def append(self, events, **given):
        assert self.gate.wait(10)
        self.writes += 1
        return super().append(events, **given)


@pytest.fixture
def disk():
    return GatedDisk()


def engine_on(disk, **given) -> Engine:
    kernel = Kernel(disk, read_clock, **given)
    kernel.start("test", "0")
    return Engine(kernel)


async def running(engine: Engine) -> Engine:
    engine.start()
    return engine


def task(name: str) -> SubmitTask:
    return SubmitTask(spec=TaskSpec(name=name))


async def test_answer_waits_for_the_disk(disk):
    engine = await running(engine_on(disk))
    disk.gate.clear()
    answer = asyncio.create_task(engine.submit(task("a")))
    await asyncio.sleep(0.05)
    assert not answer.done()
    assert disk.position == 1
    disk.gate.set()
    await answer
    assert disk.position > 1
    await engine.stop()


async def test_queued_commands_are_stored_in_one_append(disk):
    engine = await running(engine_on(disk))
    before = disk.writes
    await asyncio.gather(*(engine.submit(RegisterWorker(worker=f"w{n}")) for n in range(500)))
    assert disk.writes - before <= 5
    await engine.stop()


async def group(engine: Engine, size: int) -> list[ArriveAtBarrier]:
    """Workers of one task, each with its arrival at the same barrier."""
    answers = [
        await engine.submit(RegisterWorker(worker=f"w{n}", world_size=size)) for n in range(size)
    ]
    return [
        ArriveAtBarrier(worker=w.id, incarnation=w.incarnation, barrier="b", request=1)
        for w in answers
    ]


async def test_arrivals_and_release_are_stored_in_one_append(disk, monkeypatch):
    monkeypatch.setattr("strata.coordinator.engine.engine.GATHER_S", 60.0)
    engine = await running(engine_on(disk))
    arrivals = await group(engine, 4)
    before = disk.writes
    waiting = []
    for arrival in arrivals:
        waiting.append(asyncio.create_task(engine.submit(arrival)))
        while not engine.kernel.state.tasks["default-1"].barriers.get("b") or (
            len(engine.kernel.state.tasks["default-1"].barriers["b"].arrived) < len(waiting)
        ):
            await asyncio.sleep(0)
    await engine.submit(task("ends the wait for more arrivals"))
    assert [barrier.state for barrier in await asyncio.gather(*waiting)] == ["released"] * 4
    assert disk.writes == before + 1
    await engine.stop()


def reply_to(answers: dict, name: str):
    """A reply callback that records its calls."""
    return lambda answer, refusal: answers.setdefault(name, refusal or answer.state)


async def test_barrier_release_does_not_wait_for_the_disk(disk):
    engine = await running(engine_on(disk))
    arrivals = await group(engine, 2)
    disk.gate.clear()
    answers: dict[str, object] = {}
    for arrival in arrivals:
        engine.ask(arrival, reply_to(answers, arrival.worker), early=True)
    while len(answers) < 2:
        await asyncio.sleep(0)
    assert answers == {"w0": "released", "w1": "released"}
    assert engine.position == disk.position
    disk.gate.set()
    await engine.stop()
    assert "BarrierReleased" in [event.kind for event in disk.read()]


async def test_release_is_decided_again_after_a_failed_append(disk):
    engine = await running(engine_on(disk))
    arrivals = await group(engine, 2)
    disk.refuse_next = True
    answers: dict[str, object] = {}
    for arrival in arrivals:
        engine.ask(arrival, reply_to(answers, arrival.worker), early=True)
    while "BarrierReleased" not in [event.kind for event in disk.read()]:
        await asyncio.sleep(0.01)
    assert answers == {"w0": "released", "w1": "released"}
    first = engine.kernel.state.tasks["default-1"].barriers["b"]
    assert list(first.arrived) == ["w0", "w1"]
    for arrival in arrivals:
        answer = await engine.submit(structs.replace(arrival, request=2))
    assert (answer.state, answer.round) == ("released", first.round + 1)
    await engine.stop()


async def test_release_after_a_loss_waits_for_the_disk(disk):
    engine = await running(engine_on(disk))
    arrivals = await group(engine, 3)
    answers: dict[str, object] = {}
    for arrival in arrivals[:2]:
        engine.ask(arrival, reply_to(answers, arrival.worker), early=True)
    await engine.submit(task("a"))
    disk.gate.clear()
    lost = arrivals[2]
    engine.post(
        DeclareLost(worker=lost.worker, incarnation=lost.incarnation, signal="exit", reason="died")
    )
    while engine.kernel.state.workers[lost.worker].alive:
        await asyncio.sleep(0)
    assert engine.kernel.state.tasks["default-1"].barriers["b"].state != "waiting"
    assert set(answers.values()) == {"waiting"}
    disk.gate.set()
    await engine.stop()


async def test_other_command_ends_the_gathering_of_arrivals(disk, monkeypatch):
    monkeypatch.setattr("strata.coordinator.engine.engine.GATHER_S", 60.0)
    engine = await running(engine_on(disk))
    arrival, *_ = await group(engine, 2)
    arrived = asyncio.create_task(engine.submit(arrival))
    while not engine.kernel.state.tasks["default-1"].barriers:
        await asyncio.sleep(0)
    await engine.submit(task("a"))
    assert (await arrived).state == "waiting"
    await engine.stop()


async def test_single_arrival_is_stored_after_the_gathering_time(disk):
    engine = await running(engine_on(disk))
    arrival, *_ = await group(engine, 2)
    position = disk.position
    assert (await engine.submit(arrival)).state == "waiting"
    assert disk.position == position + 2
    await engine.stop()


async def test_stop_does_not_wait_for_more_arrivals(disk, monkeypatch):
    monkeypatch.setattr("strata.coordinator.engine.engine.GATHER_S", 60.0)
    engine = await running(engine_on(disk))
    arrival, *_ = await group(engine, 2)
    arrived = asyncio.create_task(engine.submit(arrival))
    while not engine.kernel.state.tasks["default-1"].barriers:
        await asyncio.sleep(0)
    await engine.stop()
    assert (await arrived).state == "waiting"


class NoSnapshots(SimDisk):
    """A disk with room for facts but not for a snapshot."""

    def save_snapshot(self, snapshot):
        raise DiskRefused("the disk is full", hint="free some space")


async def test_failed_snapshot_does_not_fail_the_command():
    engine = await running(engine_on(NoSnapshots(CODEC), snapshot_every=1))
    facts = engine.subscribe(engine.position)
    submitted = await engine.submit(task("a"))
    assert submitted.id == "a-1"
    assert "TaskSubmitted" in [event.kind for event in await anext(facts)]
    await engine.stop()


class Skipping:
    """The real clock plus a pause of the process."""

    def __init__(self):
        self.skipped_ns = 0

    def __call__(self) -> Now:
        now = read_clock()
        return Now(now.wall_ns + self.skipped_ns, now.mono_ns + self.skipped_ns)


async def test_pause_of_the_coordinator_extends_all_deadlines(disk):
    clock = Skipping()
    kernel = Kernel(disk, clock, Timeouts(heartbeat_timeout_s=6.0))
    kernel.start("test", "0")
    engine = await running(Engine(kernel))
    worker = await engine.submit(RegisterWorker(worker="w"))
    await engine.submit(RegisterAgent(agent="a"))
    clock.skipped_ns += 45_000_000_000
    await engine.submit(WorkerBeat("w", worker.incarnation, Beat()))
    await engine.submit(task("a"))
    assert worker.alive
    assert engine.kernel.state.agents["a"].up
    await engine.stop()


async def test_queued_heartbeats_of_a_worker_are_merged_and_never_refused(disk):
    engine = engine_on(disk)
    engine.inbox.limit = 2
    replies = []
    for step in range(5):
        beat = WorkerBeat("w", 1, Beat(step=step))
        engine.notice(beat, lambda answer, refusal, step=step: replies.append((step, refusal)))
    assert engine.inbox_depth() == 1
    engine.notice(WorkerDisconnected("w", 1))
    engine.notice(WorkerBeat("w", 1, Beat()))
    assert engine.inbox_depth() == 3
    await running(engine)
    await engine.stop()
    assert [(step, type(refusal)) for step, refusal in replies] == [(4, NotFound)]


async def test_full_disk_is_logged_periodically_and_at_its_end(disk, caplog):
    engine = await running(engine_on(disk))
    for _ in range(20):
        disk.refuse_next = True
        with pytest.raises(Unavailable):
            await engine.submit(task("a"))
    await engine.submit(task("a"))
    said = [record.message for record in caplog.records if "stored" in record.message]
    assert len(said) == 2
    assert "after 20 failed turns" in said[1]
    await engine.stop()


async def test_time_without_stored_facts_is_recorded_when_it_is_over(disk, monkeypatch):
    monkeypatch.setattr(engine_module, "NOTED_S", 0.1)
    engine = await running(engine_on(disk))
    for _ in range(3):
        disk.refuse_next = True
        with pytest.raises(Unavailable):
            await engine.submit(task("a"))
    await engine.submit(task("a"))
    await engine.stop()
    [noted] = [each.body for each in disk.read() if isinstance(each.body, StoreRefused)]
    assert noted.turns == 3
    assert 0.1 <= noted.lasted_s < 30
    assert noted.reason


async def test_refusal_reaches_only_its_caller(disk):
    engine = await running(engine_on(disk))
    results = await asyncio.gather(
        engine.submit(ReportState(worker="nobody", incarnation=1, state="idle")),
        engine.submit(task("a")),
        return_exceptions=True,
    )
    assert isinstance(results[0], NotFound)
    assert not isinstance(results[1], BaseException)
    await engine.stop()


async def test_full_inbox_is_overloaded(disk):
    kernel = Kernel(disk, read_clock)
    kernel.start("test", "0")
    engine = Engine(kernel, inbox_limit=2)
    engine.post(task("a"))
    engine.post(task("b"))
    with pytest.raises(Overloaded, match="queue of 2 requests is full"):
        engine.post(task("c"))


async def test_engine_recovers_from_a_full_disk(disk):
    engine = await running(engine_on(disk))
    disk.refuse_next = True
    with pytest.raises(Unavailable, match="the facts could not be stored"):
        await engine.submit(task("a"))
    await engine.submit(task("a"))
    async with engine.settled() as state:
        assert list(state.tasks) == ["a-1"]
    await engine.stop()


async def test_readers_see_only_durable_state(disk):
    engine = await running(engine_on(disk))
    disk.gate.clear()
    submitted = asyncio.create_task(engine.submit(task("a")))
    await asyncio.sleep(0.05)

    async def tasks_seen() -> int:
        async with engine.settled() as state:
            assert state.position == disk.position
            return len(state.tasks)

    reading = asyncio.create_task(tasks_seen())
    await asyncio.sleep(0.02)
    assert not reading.done()
    disk.gate.set()
    assert await reading == 1
    await submitted
    await engine.stop()


async def test_subscriber_gets_every_fact_once_from_any_position(disk):
    engine = await running(engine_on(disk))
    for number in range(20):
        await engine.submit(task(f"t{number}"))
    engine.recent.clear()  # a subscriber that has fallen behind reads from the store
    expected = list(disk.read())
    for start in (0, 7, len(expected) - 1):
        seen = []
        async for events in engine.subscribe(start):
            seen += events
            if len(seen) == len(expected) - start:
                break
        assert seen == expected[start:]
    await engine.stop()


async def test_subscriber_follows_new_facts_and_ends_with_the_engine(disk):
    engine = await running(engine_on(disk))
    seen = []

    async def follow():
        async for events in engine.subscribe(engine.position):
            seen.extend(event.kind for event in events)

    follower = asyncio.create_task(follow())
    await asyncio.sleep(0)
    await engine.submit(task("a"))
    await engine.stop()
    await asyncio.wait_for(follower, 5)
    assert "TaskSubmitted" in seen


async def test_subscriber_never_gets_an_empty_list(disk):
    engine = await running(engine_on(disk))

    async def follow() -> int:
        async for events in engine.subscribe(0):
            assert events
            if events[-1].seq >= 200:
                return len(events)
        return 0

    followers = [asyncio.create_task(follow()) for _ in range(8)]
    for number in range(200):
        await engine.submit(task(f"t{number}"))
        await asyncio.sleep(0)
    await asyncio.gather(*followers)
    await engine.stop()


async def test_heartbeat_timeout_is_detected_without_requests(disk):
    engine = await running(engine_on(disk, timeouts=Timeouts(heartbeat_timeout_s=0.05)))
    worker = await engine.submit(RegisterWorker(worker="w"))
    assert isinstance(worker, Worker)
    async for events in engine.subscribe(0):
        lost = [event.body for event in events if isinstance(event.body, WorkerLost)]
        if lost:
            break
    assert lost[0].signal == "heartbeat"
    await engine.stop()


async def test_worker_batches_are_stored_and_resends_recognised(disk):
    engine = await running(engine_on(disk))
    payload = b"opaque until it is read"
    batch = Batch("w", 1, 0, 3, 10, 20, ("Step",), payload)
    for _ in range(2):
        stored = asyncio.get_running_loop().create_future()
        engine.ingest(batch, lambda answer, refusal, stored=stored: stored.set_result(refusal))
        assert await stored is None
    assert [found.payload for found in disk.batches(Window(node="w"))] == [payload]
    assert disk.last_seq("w", 1) == 2
    await engine.stop()


async def test_size_of_a_turn_is_bounded(disk):
    engine = engine_on(disk)
    for number in range(MAX_TURN + 10):
        engine.post(RegisterWorker(worker=f"w{number}"))
    before = disk.writes
    await running(engine)
    await engine.submit(task("last"))
    assert disk.writes - before == 2
    await engine.stop()


async def test_stop_processes_queued_commands_and_refuses_new_ones(disk):
    engine = await running(engine_on(disk))
    pending = asyncio.create_task(engine.submit(task("a")))
    await asyncio.sleep(0)
    await engine.stop()
    await pending
    with pytest.raises(Unavailable):
        await engine.submit(task("b"))


class LosingAnswers(SimDisk):
    """A store whose appends are stored and then fail, and which cannot be read for some time."""

    def __init__(self):
        super().__init__(CODEC)
        self.lose = False
        self.unreadable = 0

    def append(self, events, **given):
        position = super().append(events, **given)
        if self.lose and events:
            self.lose, self.unreadable = False, 3
            raise Unavailable("the answer was lost")
        return position

    def read(self, start=0, stop=None):
        if self.unreadable:
            self.unreadable -= 1
            raise Unavailable("it restarts")
        return super().read(start, stop)


async def test_facts_that_are_stored_although_the_append_failed_are_published_once():
    disk = LosingAnswers()
    engine = await running(engine_on(disk))
    seen = []
    engine.follow(lambda events: seen.extend(event.seq for event in events))
    first = engine.position
    disk.lose = True
    with pytest.raises(Unavailable):
        await engine.submit(task("a"))
    while True:
        try:
            async with engine.settled() as state:
                assert state.position == disk.position
                break
        except Unavailable:
            await asyncio.sleep(0.01)
    await engine.submit(task("b"))
    assert seen == list(range(first, disk.position))
    followed = []
    async for events in engine.subscribe(first):
        followed += [event.seq for event in events]
        if len(followed) >= len(seen):
            break
    assert followed == seen
    await engine.stop()
