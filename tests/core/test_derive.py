"""Figures derived from facts, by scenarios whose results are known.

In these worlds every decision takes one second, so times are counts of decisions.
"""

from collections import Counter

import pytest

from strata.core.barriers.barrier_rules import BarrierOpened, BarrierReleased
from strata.core.checkpoints.checkpoint_commits import AckPart, BeginCheckpoint, FailCheckpoint
from strata.core.checkpoints.checkpoint_lifecycle import CheckpointStarted
from strata.core.cluster import CoordinatorStarted, apply
from strata.core.events import Envelope
from strata.core.metrics.figures import MAX_UNDER_WAY, Figures
from strata.core.rule_settings import Rules
from strata.core.state import Cluster
from strata.core.workers.worker_lifecycle import ReportState
from tests.core.scenario import every_kind
from tests.core.world import SECOND_NS, World


class Watched(World):
    """A world whose figures are kept as it goes."""

    def __init__(self):
        self.figures = Figures()
        super().__init__()

    def do(self, command):
        known = len(self.log)
        try:
            return super().do(command)
        finally:
            for event in self.log[known:]:
                self.figures.observe(event)

    def read(self, later_s=0):
        return self.figures.read((self._now_s + later_s) * SECOND_NS)

    def report(self, peer, state):
        self.do(ReportState(**peer.me, state=state))


@pytest.fixture
def world():
    return Watched()


@pytest.fixture
def pair(world):
    """A task of two workers that train."""
    task = world.submit(2)
    world.join(task, "a", "b")
    world.sync(task)
    return task


def test_before_anything_happened_nothing_is_measured(world):
    reading = world.read()
    assert reading.checkpoint_throughput_mb_s is None
    assert reading.barrier_latency_p99_ms is None
    assert reading.checkpoint_duration_p99_ms is None
    assert reading.recovery_p99_ms is None
    assert (reading.active_workers, reading.total_workers) == (0, 0)


def test_throughput_is_bytes_per_second_of_saving(world, pair):
    world.save(pair, 5)  # begun, two parts of 100 bytes, confirmed: three seconds
    reading = world.read()
    assert reading.checkpoint_throughput_mb_s == pytest.approx(200 / 3 / 1e6)
    assert reading.checkpoint_duration_p99_ms == 3000


def test_idle_time_does_not_dilute_throughput_and_the_window_ends(world, pair):
    world.save(pair, 5)
    assert world.read(later_s=30).checkpoint_throughput_mb_s == pytest.approx(200 / 3 / 1e6)
    assert world.read(later_s=61).checkpoint_throughput_mb_s is None


def test_save_that_is_under_way_counts_up_to_now(world, pair):
    first, _ = world.members(pair)
    checkpoint = first.begin(5)
    first.ack(checkpoint)
    assert world.read(later_s=9).checkpoint_throughput_mb_s == pytest.approx(100 / 10 / 1e6)


def test_concurrent_saves_share_the_saving_time(world, pair):
    other = world.submit(1, name="other")
    world.join(other, "c")
    world.sync(other)
    first, second = world.members(pair)
    third = world.peers["c"]
    one = first.begin(5)
    two = third.begin(7)
    for peer, checkpoint in ((first, one), (second, one), (third, two)):
        peer.ack(checkpoint)
    assert world.read().checkpoint_throughput_mb_s == pytest.approx(300 / 4 / 1e6)


def test_failed_save_ends_the_saving(world, pair):
    first, _ = world.members(pair)
    checkpoint = first.begin(5)
    first.ack(checkpoint)
    world.do(FailCheckpoint(task=pair.id, checkpoint=checkpoint.id, reason="disk"))
    assert world.read(later_s=30).checkpoint_throughput_mb_s == pytest.approx(100 / 2 / 1e6)
    assert world.read().checkpoint_duration_p99_ms is None
    assert world.figures.counts.checkpoints == {"started": 1, "failed": 1}


def told_after_the_fact(world, peer, size_bytes):
    task = world.state.tasks[peer.worker.task]
    begun = world.do(BeginCheckpoint(**peer.me, generation=task.generation, step=5, manifest=False))
    world.do(AckPart(**peer.me, checkpoint=begun.id, path="x", size_bytes=size_bytes))


def test_save_without_a_known_start_has_no_throughput(world):
    task = world.submit(1)
    (peer,) = world.join(task, "a")
    world.sync(task)
    told_after_the_fact(world, peer, 1000)
    assert world.read(later_s=5).checkpoint_throughput_mb_s is None
    assert world.figures.counts.checkpoint_bytes == 1000


def test_save_without_a_known_start_counts_if_its_worker_reports_checkpointing(world):
    task = world.submit(1)
    (peer,) = world.join(task, "a")
    world.sync(task)
    world.report(peer, "checkpointing")
    told_after_the_fact(world, peer, 1000)
    world.report(peer, "training")
    assert world.read(later_s=5).checkpoint_throughput_mb_s == pytest.approx(1000 / 3 / 1e6)


def test_barrier_latency_is_from_first_arrival_to_release(world, pair):
    first, second = world.members(pair)
    first.arrive("x")
    second.arrive("x")
    assert world.read().barrier_latency_p99_ms == 1000
    first.arrive("y", request=2)
    world.report(second, "training")
    world.report(second, "loading_data")
    second.arrive("y", request=2)
    assert world.read().barrier_latency_p99_ms == 3000
    assert world.figures.counts.barriers == {"released": 2}
    assert world.figures.barrier_wait_s.sum == 4.0
    assert world.read(later_s=301).barrier_latency_p99_ms is None


def test_percentile_99_is_measured():
    figures = Figures()
    for i in range(1, 201):
        at_ns = i * SECOND_NS
        opened = BarrierOpened(task="t", barrier=f"b{i}", round=i, step=0, generation=1, expected=2)
        released = BarrierReleased(
            task="t",
            barrier=f"b{i}",
            round=i,
            generation=1,
            participants=2,
            reason="everyone arrived",
        )
        figures.observe(Envelope(0, 0, at_ns, opened))
        figures.observe(Envelope(0, 0, at_ns + i * 1_000_000, released))
    assert figures.read(201 * SECOND_NS).barrier_latency_p99_ms == 198


def test_failed_barrier_has_no_latency(world, pair):
    first, second = world.members(pair)
    first.arrive("x")
    second.lost()
    assert world.read().barrier_latency_p99_ms is None
    assert world.figures.counts.barriers == {"failed": 1}


def test_recovery_lasts_until_the_next_generation_trains(world, pair):
    first, second = world.members(pair)
    second.lost(signal="hang")
    assert world.read().task_states == {"recovering": 1}
    second.again()
    world.sync(pair)
    reading = world.read()
    assert reading.recovery_p99_ms == 3000  # registered, entered, entered
    assert reading.task_states == {"running": 1}
    assert world.figures.counts.losses == {"hang": 1}
    assert first.id in world.state.workers


def test_monotonic_time_is_not_compared_across_incarnations(world, pair):
    first, second = world.members(pair)
    first.arrive("x")
    checkpoint = first.begin(5)
    world.restart()
    for peer in (first, second):
        world.peers[peer.id] = peer
    second.arrive("x")
    assert world.read().barrier_latency_p99_ms is None
    first.ack(checkpoint)
    # Saving counts from the restart: the arrival and the acknowledgement came since.
    assert world.read().checkpoint_throughput_mb_s == pytest.approx(100 / 2 / 1e6)


def counted(state):
    """Plain counts over a whole state."""
    alive = [worker for worker in state.workers.values() if worker.alive]
    return (
        dict(Counter(worker.state for worker in alive)),
        dict(Counter(task.state for task in state.tasks.values())),
    )


def test_states_are_those_of_the_fold_after_every_fact():
    world, state, figures = every_kind(), Cluster(), Figures()
    for event in world.log:
        apply(state, event)
        figures.observe(event)
        reading = figures.read(event.mono_ns)
        assert (reading.worker_states, reading.task_states) == counted(state)
        adopted = Figures()
        adopted.adopt(state, event.mono_ns)
        again = adopted.read(event.mono_ns)
        assert (again.worker_states, again.task_states) == counted(state)
        active = [w for w in state.workers.values() if w.state in ("training", "checkpointing")]
        assert reading.active_workers == again.active_workers == len(active)
        assert reading.total_workers == sum(worker.alive for worker in state.workers.values())


def test_every_count_is_the_number_of_facts():
    world, figures = every_kind(), Figures()
    for event in world.log:
        figures.observe(event)
    kinds = Counter(event.kind for event in world.log)
    counts = figures.counts
    assert counts.facts == len(world.log)
    assert counts.registrations == kinds["WorkerRegistered"]
    assert counts.rejections == kinds["WorkerRejected"]
    assert counts.losses.total() == kinds["WorkerLost"]
    assert counts.generations == kinds["GenerationChanged"]
    assert counts.recoveries.total() == kinds["RecoveryChosen"]
    assert counts.rollbacks == kinds["RolledBack"]
    assert counts.barriers["released"] == kinds["BarrierReleased"]
    assert counts.barriers["failed"] == kinds["BarrierFailed"]
    assert counts.checkpoints["started"] == kinds["CheckpointStarted"]
    assert counts.checkpoints["committed"] == kinds["CheckpointCommitted"]
    assert counts.checkpoints["failed"] == kinds["CheckpointFailed"]
    assert counts.assignments == kinds["AssignmentChanged"]
    assert counts.limits.total() == kinds["LimitHit"]


def test_state_that_is_saving_is_adopted(world, pair):
    first, _ = world.members(pair)
    checkpoint = first.begin(5)
    known = len(world.log)
    adopted = Figures()
    adopted.adopt(world.state, world._now_s * SECOND_NS)
    first.ack(checkpoint)
    for event in world.log[known:]:
        adopted.observe(event)
    reading = adopted.read(world._now_s * SECOND_NS)
    assert reading.checkpoint_throughput_mb_s == pytest.approx(100 / 1e6)


def test_memory_is_bounded_whatever_is_left_open():
    figures = Figures()
    figures.observe(
        Envelope(
            0, 0, 0, CoordinatorStarted(incarnation=1, cluster="c", release="0", rules=Rules())
        )
    )

    def leave_open(first, count):
        for i in range(first, first + count):
            barrier = BarrierOpened(
                task=f"t{i}", barrier="b", round=1, step=0, generation=1, expected=2
            )
            saved = CheckpointStarted(
                task=f"t{i}",
                checkpoint="c",
                step=1,
                epoch=0,
                attempt=1,
                generation=1,
                expected=2,
                worker="w",
                path="",
            )
            figures.observe(Envelope(i, 0, i, barrier))
            figures.observe(Envelope(i, 0, i, saved))

    leave_open(0, MAX_UNDER_WAY + 1000)
    held = (figures._checkpoints, figures._saving, figures._barriers)
    assert [len(each) for each in held] == [MAX_UNDER_WAY] * 3
