"""How long a step may take before its worker counts as hanging.

Guards that a worker whose own steps are not known yet, such as a replacement, is measured against
the steps of its task, and that slow first steps are no hang.
"""

import msgspec
import pytest

from strata.core.rule_settings import Timeouts
from strata.core.workers.heartbeats import Beat
from strata.core.workers.liveness import Watch
from strata.core.workers.worker_lifecycle import WorkerLost
from tests.core.world import SECOND_NS, World

TIMES = Timeouts(
    heartbeat_timeout_s=30,
    hang_floor_s=10,
    hang_factor=10,
    hang_unlearned_s=900,
    hang_report_s=0,
)


class Training:
    """Workers that send a heartbeat each second. `step_s` is how long a step of each takes, and
    `first_s` how long its first one after it joined."""

    def __init__(self, **step_s):
        self.world = World()
        self.task = self.world.submit(len(step_s), policy="replace")
        self.step_s, self.first_s, self.last_steps = step_s, {}, {}
        self.now_s, self.began_s = 0, {}
        self.watch = Watch(TIMES)
        self.lost = {}
        for worker in step_s:
            self.join(worker)

    def join(self, worker):
        position = len(self.world.log)
        self.world.join(self.task, worker)
        self.follow(position)
        self.began_s[worker] = self.now_s

    def follow(self, position):
        for event in self.world.log[position:]:
            self.watch.follow(msgspec.structs.replace(event, mono_ns=self.now_ns))
            if isinstance(event.body, WorkerLost):
                self.lost[event.body.worker] = (self.now_s, event.body)

    @property
    def now_ns(self):
        return int(self.now_s * SECOND_NS)

    def run_until(self, second):
        while self.now_s < second:
            self.now_s += 1
            for worker in list(self.step_s):
                if worker in self.lost:
                    continue
                trained_s = self.now_s - self.began_s[worker] - self.first_s.get(worker, 0)
                step = max(int(trained_s / self.step_s[worker]), self.last_steps.get(worker, 0))
                beat = Beat(generation=1, step=step, training=True)
                self.watch.beat(worker, self.world.peers[worker].incarnation, beat, self.now_ns)
            for command in self.watch.overdue(self.world.state, self.now_ns):
                position = len(self.world.log)
                self.world.do(command)
                self.follow(position)

    def kill(self, worker):
        position = len(self.world.log)
        self.world.peers[worker].lost()
        self.follow(position)
        self.lost.pop(worker)

    def replace(self, worker, first_s):
        """Lose a worker, and register a replacement whose first step takes `first_s`."""
        self.kill(worker)
        self.first_s[worker] = first_s
        self.join(worker)


HANGS = 10_000


def test_replacement_that_hangs_in_its_first_step_is_measured_against_the_task():
    training = Training(a=1, b=1)
    training.run_until(40)
    training.replace("b", HANGS)
    training.run_until(60)
    lost_s, loss = training.lost["b"]
    assert loss.signal == "hang"
    assert lost_s <= 40 + 1 + TIMES.hang_floor_s + 1
    assert "steps of its task take 1.00 s" in loss.reason
    assert loss.evidence["step_mean_s"] == pytest.approx(1)
    assert list(training.lost) == ["b"]


def test_steps_before_a_loss_are_known_of_the_only_worker():
    training = Training(a=2)
    training.run_until(40)
    training.replace("a", HANGS)
    training.run_until(70)
    lost_s, loss = training.lost["a"]
    assert (loss.signal, loss.evidence["timeout_s"]) == ("hang", pytest.approx(20, abs=3))
    assert lost_s <= 70


def test_first_steps_of_a_replacement_may_take_longer_than_those_of_the_first_workers():
    """The first workers compiled for 20 s, so one that compiles for 40 s does not hang."""
    training = Training(a=1, b=1)
    training.first_s = {"a": 20, "b": 20}
    training.run_until(40)
    training.replace("b", 40)
    training.run_until(100)
    assert training.lost == {}
    training.replace("b", HANGS)
    training.run_until(300)
    assert training.lost["b"][1].evidence["timeout_s"] == pytest.approx(3 * 40, abs=10)


def test_slowest_worker_of_the_task_counts():
    training = Training(slow=8, fast=1)
    training.run_until(60)
    training.replace("slow", 30)
    training.run_until(100)
    assert training.lost == {}


@pytest.mark.parametrize("second", [11, 800])
def test_first_steps_of_a_new_task_may_compile(second):
    training = Training(a=1)
    training.first_s["a"] = HANGS
    training.run_until(second)
    assert training.lost == {}
    training.run_until(910)
    assert "no step time is known yet" in training.lost["a"][1].reason


def test_task_that_hangs_after_its_second_heartbeat_is_measured_by_the_steps_it_reported():
    """All 20 steps came between two heartbeats, so a task is known by its steps, not reports."""
    training = Training(a=0.05, b=0.05)
    training.run_until(2)
    training.step_s = {"a": HANGS, "b": HANGS}
    training.last_steps = {"a": 20, "b": 20}
    training.run_until(20)
    lost_s, loss = training.lost["a"]
    assert (loss.signal, lost_s) == ("hang", pytest.approx(2 + TIMES.hang_floor_s, abs=1))
    assert loss.evidence["step_mean_s"] == pytest.approx(0.05, rel=0.1)


def test_steps_of_an_ended_task_are_forgotten():
    training = Training(a=1)
    training.run_until(40)
    assert training.watch.steps.known == 1
    position = len(training.world.log)
    training.world.peers["a"].leave("done")
    training.follow(position)
    assert training.watch.steps.known == 0
