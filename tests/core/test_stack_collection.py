"""Collections of stacks: what is asked for before a hang is declared, and how long that may take.

Guards that a verdict waits for the reports but never for ever, that a task that hangs again and
again is not asked every few seconds, and that no report is recorded that was not asked for.
"""

import msgspec
import pytest

from strata.core.barriers.barrier_rules import ArriveAtBarrier, BarrierFailed
from strata.core.rule_settings import Timeouts
from strata.core.workers import stack_collection
from strata.core.workers.heartbeats import Beat
from strata.core.workers.liveness import Watch
from strata.core.workers.stack_collection import (
    ReportStacks,
    RequestStacks,
    StackCollectionEnded,
    StacksCollected,
    StacksRequested,
)
from strata.core.workers.stack_deadlines import StackDeadlines
from strata.core.workers.stack_reports import (
    ProcessStacks,
    StackFrame,
    StackReport,
    ThreadStack,
    bounded,
    collective_of,
    place_of,
)
from strata.core.workers.worker_lifecycle import WorkerLost
from strata.errors import NotAllowedNow
from tests.core.world import SECOND_NS, World

TIMES = Timeouts(
    heartbeat_timeout_s=30, hang_floor_s=10, hang_report_s=5, barrier_timeout_s=40, hang_factor=2
)


class Hanging:
    """Three workers without an agent, of which the first stops to finish steps at second 5."""

    def __init__(self, timeouts=TIMES):
        self.world = World()
        self.task = self.world.submit(3)
        self.world.join(self.task, "a", "b", "c")
        self.world.sync(self.task)
        self.now_s, self.arrivals = 0.0, 0
        self.watch = Watch(timeouts)
        self.watch.adopt(self.world.state, 0)

    def run_until(self, second, reports=()):
        """Send heartbeats each second; `reports` answer a request at once. Returns the facts."""
        found = []
        while self.now_s < second:
            self.now_s += 0.5
            now_ns = int(self.now_s * SECOND_NS)
            for worker in self.living():
                step = min(self.now_s, 5) if worker == "a" else self.now_s
                beat = Beat(step=int(step), training=True, waiting=worker != "a")
                self.watch.beat(worker, self.world.peers[worker].incarnation, beat, now_ns)
            for command in self.watch.overdue(self.world.state, now_ns):
                found += self.decide(command)
            for worker in reports if self.collection and self.collection.open else ():
                if worker in self.collection.waiting:
                    found += self.report(worker)
        return found

    def arrive(self, worker):
        self.arrivals += 1
        me = self.world.peers[worker].me
        self.decide(ArriveAtBarrier(**me, barrier="epoch", request=self.arrivals))

    def living(self):
        return [each.id for each in self.world.state.workers.values() if each.alive]

    @property
    def collection(self):
        return self.world.state.tasks[self.task.id].stack_collection

    def report(self, worker, collection=1):
        asked = {"task": self.task.id, "worker": worker, "collection": collection}
        return self.decide(ReportStacks(**asked, report=StackReport()))

    def decide(self, command):
        position = len(self.world.log)
        self.world.do(command)
        recorded = self.world.log[position:]
        for event in recorded:
            now = msgspec.structs.replace(event, mono_ns=int(self.now_s * SECOND_NS))
            self.watch.follow(now)
        return [(self.now_s, event.body) for event in recorded]


def of(found, kind):
    return [(at_s, fact) for at_s, fact in found if isinstance(fact, kind)]


def test_loss_by_hang_follows_the_reports():
    hanging = Hanging()
    found = hanging.run_until(30, reports="abc")
    ((asked_s, asked),) = of(found, StacksRequested)
    ((lost_s, lost),) = of(found, WorkerLost)
    kinds = [type(fact) for _, fact in found]
    assert (asked.trigger, asked.suspects) == ("hang", ["a"])
    assert asked.workers == ["a", "b", "c"]
    assert asked.reporters == {"a": [""], "b": [""], "c": [""]}
    assert "a: heartbeats arrive, but step 5" in asked.reason
    assert (lost.worker, lost.signal) == ("a", "hang")
    assert kinds.index(StackCollectionEnded) < kinds.index(WorkerLost)
    assert lost_s - asked_s <= 1.0
    assert of(found, StackCollectionEnded)[0][1].missing == {}


def test_missing_report_delays_the_loss_by_the_limit_only():
    hanging = Hanging()
    found = hanging.run_until(40, reports="bc")
    ((asked_s, _),) = of(found, StacksRequested)
    ((lost_s, _),) = of(found, WorkerLost)
    (_, ended) = of(found, StackCollectionEnded)[0]
    why = "no report of the worker itself: it did not arrive within 5 s"
    assert ended.missing == {"a": why}
    assert ended.reported == 2
    assert 5.0 <= lost_s - asked_s <= 5.5


def test_no_stacks_are_collected_with_a_limit_of_zero():
    hanging = Hanging(msgspec.structs.replace(TIMES, hang_report_s=0))
    found = hanging.run_until(40)
    assert of(found, StacksRequested) == []
    assert len(of(found, WorkerLost)) == 1


def test_worker_that_continues_meanwhile_is_not_lost():
    hanging = Hanging()
    assert of(hanging.run_until(16), StacksRequested)
    beat = Beat(step=6, training=True)
    now_ns = int(hanging.now_s * SECOND_NS)
    assert hanging.watch.beat("a", hanging.world.peers["a"].incarnation, beat, now_ns)
    for _ in range(20):
        now_ns += SECOND_NS // 2
        commands = hanging.watch.overdue(hanging.world.state, now_ns)
        assert not [each for each in commands if "Loss" in type(each).__name__]


def test_barrier_fails_after_the_stacks_and_names_the_late_worker():
    hanging = Hanging(msgspec.structs.replace(TIMES, hang_floor_s=1000, barrier_timeout_s=8))
    for worker in "bc":
        hanging.arrive(worker)
    found = hanging.run_until(20, reports="abc")
    ((asked_s, asked),) = of(found, StacksRequested)
    ((failed_s, failed),) = of(found, BarrierFailed)
    assert (asked.trigger, asked.suspects) == ("barrier", ["a"])
    assert asked.reason == "barrier epoch is not complete after 8 s"
    assert failed.missing == ["a"]
    assert asked_s < failed_s <= asked_s + 1.0


def test_barrier_that_fails_again_soon_collects_nothing():
    hanging = Hanging(msgspec.structs.replace(TIMES, hang_floor_s=1000, barrier_timeout_s=8))
    found = []
    for _ in range(5):
        hanging.arrive("b")
        found += hanging.run_until(hanging.now_s + 12, reports="abc")
    assert len(of(found, BarrierFailed)) == 5
    assert len(of(found, StacksRequested)) == 1


def test_coordinator_that_restarts_while_it_collects_ends_the_collection():
    hanging = Hanging()
    hanging.run_until(16, reports="b")
    assert hanging.collection.open
    hanging.world.restart()
    hanging.watch = Watch(TIMES)
    hanging.watch.adopt(hanging.world.state, int(hanging.now_s * SECOND_NS))
    found = hanging.run_until(hanging.now_s + 6, reports="b")
    ((_, ended),) = of(found, StackCollectionEnded)
    assert sorted(ended.missing) == ["a", "c"]
    assert ended.reported == 1


def test_worker_that_dies_while_asked_is_named_and_not_waited_for():
    hanging = Hanging()
    hanging.run_until(15.5, reports="bc")
    assert list(hanging.collection.waiting) == ["a"]
    hanging.world.peers["a"].lost()
    found = hanging.run_until(17)
    ((_, ended),) = of(found, StackCollectionEnded)
    assert ended.missing == {
        "a": "no report of the worker itself: the worker ended before it answered"
    }


def test_report_is_recorded_once_and_only_if_asked_for():
    hanging = Hanging()
    hanging.run_until(15.5)
    assert of(hanging.report("b"), StacksCollected)
    assert hanging.report("b") == []
    assert hanging.report("a", collection=9) == []


def test_stopped_heartbeats_collect_from_the_suspect_alone():
    hanging = Hanging()
    asks = RequestStacks(task=hanging.task.id, trigger="heartbeat", suspects=["b"])
    ((_, asked),) = of(hanging.decide(asks), StacksRequested)
    assert (asked.workers, asked.left_out) == (["b"], 2)
    found = hanging.run_until(20, reports="abc")
    ((_, later),) = of(found, StacksRequested)
    assert (later.trigger, later.workers) == ("hang", ["a", "b", "c"])


def test_stopped_heartbeats_of_a_worker_are_asked_for_once_a_minute():
    deadlines = StackDeadlines(5 * SECOND_NS)

    def begins(trigger, worker, at_s):
        return bool(deadlines.before_verdict("t", trigger, "", [worker], at_s * SECOND_NS)[0])

    assert begins("heartbeat", "a", 1)
    assert not begins("heartbeat", "a", 30)
    assert begins("heartbeat", "b", 31)
    assert begins("hang", "c", 32)
    assert not begins("heartbeat", "c", 33)
    assert not begins("hang", "c", 34)


def test_limit_of_a_collection_counts_every_reporter(monkeypatch):
    monkeypatch.setattr(stack_collection, "MAX_COLLECTION_BYTES", 6_000)
    monkeypatch.setattr(stack_collection, "_reporters", lambda *_: ["agent", ""])
    hanging = Hanging()
    ((_, asked),) = of(hanging.decide(RequestStacks(task=hanging.task.id)), StacksRequested)
    assert asked.max_bytes == 1_000


def test_user_cannot_collect_stacks_of_a_task_without_workers():
    world = World()
    task = world.submit(1)
    with pytest.raises(NotAllowedNow, match="no running workers"):
        world.do(RequestStacks(task=task.id))


def report_of(*threads):
    return StackReport(processes=[ProcessStacks(pid=1, source="py-spy", threads=list(threads))])


def frames(*texts):
    """Frames of `user:load`, `lib:torch/x.py:wait` and so on, innermost first."""
    origins = {"user": "user", "lib": "library", "c": "native"}
    parts = [text.split(":") for text in texts]
    return [StackFrame(function=p[-1], file=p[1], line=3, origin=origins[p[0]]) for p in parts]


def test_place_is_the_innermost_call_of_the_script():
    main = ThreadStack(main=True, frames=frames("c:libc.so:read", "user:data.py:load", "user:m:f"))
    assert place_of(report_of(main)).text == "load at data.py:3"


def test_place_of_a_loop_that_waits_for_its_data_is_where_the_data_is_read():
    waits = (
        "lib:threading.py:wait",
        "lib:strata/data/reading/read_ahead.py:next",
        "user:t.py:main",
    )
    main = ThreadStack(main=True, frames=frames(*waits))
    reader = ThreadStack(name="strata-batches", frames=frames("user:data.py:__getitem__"))
    assert place_of(report_of(reader, main)).text == (
        "__getitem__ at data.py:3 (thread strata-batches)"
    )


def test_place_of_other_waits_is_that_of_the_main_thread():
    main = ThreadStack(main=True, frames=frames("lib:threading.py:wait", "user:t.py:main"))
    other = ThreadStack(name="mine", frames=frames("user:log.py:flush"))
    assert place_of(report_of(other, main)).text == "main at t.py:3"


def test_collective_of_pytorch_is_recognized_by_its_frames():
    calls = ("lib:torch/distributed/c10d.py:wait", "lib:torch/distributed/c10d.py:all_reduce")
    main = ThreadStack(main=True, frames=frames(*calls, "user:train.py:step"))
    assert collective_of(report_of(main)) == "all_reduce"


def test_large_report_is_cut_at_the_outer_end_of_its_longest_stacks():
    deep = [StackFrame(function=f"f{n}", file="deep.py" * 9, line=n) for n in range(100)]
    short = ThreadStack(name="short", frames=deep[:3])
    report = report_of(ThreadStack(main=True, frames=deep), short)
    cut = bounded(report, 4_000)
    main, other = cut.processes[0].threads
    assert len(msgspec.json.encode(cut)) <= 4_000
    assert main.frames == deep[: len(main.frames)]
    assert main.cut == 100 - len(main.frames) > 0
    assert other == short


def test_report_with_very_many_threads_keeps_the_main_one():
    threads = [ThreadStack(name=f"t{n}", frames=frames("lib:x.py:wait")) for n in range(5_000)]
    report = report_of(*threads, ThreadStack(main=True, frames=frames("user:t.py:main")))
    cut = bounded(report, 2_000)
    (process,) = cut.processes
    assert place_of(cut).text == "main at t.py:3"
    assert process.cut == 5_001 - len(process.threads)
