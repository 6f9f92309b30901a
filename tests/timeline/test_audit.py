"""Guards the audit: what it proves, and what it reports as unproven.

The promise is that each sample is applied exactly once per epoch in the lineage of the model, in
one order, whatever joins, leaves, crashes and rollbacks there were.
"""

import random

import numpy as np
import pytest

from strata.core.datasets.dataset_rules import AssignmentChanged, AttachDataset, RegisterDataset
from strata.core.datasets.lane_owners import Move
from strata.core.datasets.shard_leases import AcquireLease, ReturnLease
from strata.core.order import Order, OrderSpec
from strata.core.state import DatasetSpec
from strata.data.reading.mixture import MixedOrder
from strata.errors import NotFound
from strata.timeline.audit.sample_audit import audit
from strata.timeline.audit.sample_counts import EpochCounter, MixtureCounter
from tests.timeline.fleet import Fleet

SCHEDULES = 1_000


def feed_of(fleet):
    (feed,) = audit(fleet.store, fleet.task).feeds
    return feed


def test_run_without_faults_is_proven():
    fleet = Fleet(3, samples=60, batch=12, epochs=2)
    fleet.train(10)
    found = audit(fleet.store, fleet.task)
    (feed,) = found.feeds
    assert (found.verdict, feed.steps, feed.proven) == ("proven", 10, 10)
    assert [(e.epoch, e.once, e.missing, e.twice) for e in feed.epochs] == [
        (0, 60, 0, 0),
        (1, 60, 0, 0),
    ]
    assert sum(worker.samples for worker in feed.workers) == 120


def test_unfinished_epoch_is_due_up_to_its_last_step():
    fleet = Fleet(2, samples=60, batch=12)
    fleet.train(7)
    first, second = feed_of(fleet).epochs
    assert (first.due, second.due, second.once, second.missing) == (60, 24, 24, 0)


def test_step_interrupted_by_a_crash_is_repeated_and_counts_once():
    fleet = Fleet(3, samples=60, batch=12)
    fleet.train(2)
    fleet.crash("w1")
    fleet.train(3)
    feed = feed_of(fleet)
    assert (feed.verdict, feed.proven, feed.epochs[0].once) == ("proven", 5, 60)


def test_step_applied_by_a_survivor_is_not_repeated():
    fleet = Fleet(3, samples=60, batch=12)
    fleet.train(2)
    fleet.crash("w1", applied_by=["w2"])
    assert fleet.applied == {"w0": 3, "w2": 3}
    fleet.train(2)
    feed = feed_of(fleet)
    (epoch,) = feed.epochs
    assert (epoch.once + epoch.unproven, epoch.missing, epoch.twice) == (60, 0, 0)
    assert (feed.verdict, feed.proven) == ("unproven", 4), "only w2 recorded that it applied step 2"
    assert [(each.worker, each.first, each.what) for each in feed.findings] == [
        ("w0", 2, "not applied"),
        ("w1", 2, "not applied"),
    ]


def test_batch_that_was_handed_out_and_not_applied_proves_nothing():
    fleet = Fleet(2, samples=60, batch=12)
    fleet.train(4)
    fleet.train(1, unfinished=["w1"])
    found = audit(fleet.store, fleet.task)
    (feed,) = found.feeds
    (finding,) = feed.findings
    assert (found.verdict, feed.proven, feed.unproven) == ("unproven", 4, 1)
    assert (finding.worker, finding.first, finding.what) == ("w1", 4, "not applied")
    assert (feed.epochs[0].once, feed.epochs[0].unproven) == (54, 6)
    assert "4 of 5 applied steps proven" in found.summary


@pytest.mark.parametrize(("averaged", "proven"), [(12, 5), (6, 4), (0, 4)])
def test_share_of_a_lost_worker_is_proven_by_the_mean_of_the_whole_batch(averaged, proven):
    fleet = Fleet(2, samples=60, batch=12)
    fleet.train(4)
    fleet.averaged = averaged
    fleet.train(1, unfinished=["w1"])
    feed = feed_of(fleet)
    assert (feed.proven, feed.by_mean) == (proven, int(proven == 5))
    assert feed.verdict == ("proven" if proven == 5 else "unproven")


def test_older_log_is_proven_by_the_start_and_the_end_of_a_batch_together():
    fleet = Fleet(2, samples=60, batch=12, older=True)
    fleet.train(3)
    fleet.train(1, unfinished=["w1"])
    feed = feed_of(fleet)
    assert (feed.verdict, feed.proven, feed.unproven) == ("unproven", 3, 1)
    assert [finding.what for finding in feed.findings] == ["not applied"]


def test_step_that_a_worker_applied_twice_is_broken():
    fleet = Fleet(2, samples=60, batch=12)
    fleet.read(1)
    fleet.finish(1, ["w0"])
    fleet.train(1)
    feed = feed_of(fleet)
    assert (feed.verdict, feed.contradicted) == ("broken", 1)
    assert [(each.worker, each.what) for each in feed.findings] == [("w0", "applied twice")]


def test_loop_per_epoch_is_proven_in_every_epoch():
    fleet = Fleet(2, batch=12, loops=True)
    for epoch in range(3):
        fleet.loop(f"0.{epoch}.0", loop_epochs=1)
        fleet.train(5)
    found = audit(fleet.store, fleet.task)
    (feed,) = found.feeds
    assert (found.verdict, feed.steps, feed.proven) == ("proven", 15, 15)
    assert [(e.epoch, e.due, e.once, e.left) for e in feed.epochs] == [
        (epoch, 60, 60, 0) for epoch in range(3)
    ]
    assert found.summary == (
        "every worker recorded its samples of all 15 applied steps, and they match the "
        "order; each sample once per epoch"
    )


def test_samples_after_a_break_are_not_trained_and_not_missing():
    fleet = Fleet(2, batch=12, loops=True)
    fleet.loop("0.0.0", loop_epochs=1)
    fleet.train(3)
    fleet.loop("0.1.0", loop_epochs=1)
    fleet.train(5)
    feed = feed_of(fleet)
    assert (feed.verdict, feed.steps) == ("proven", 8)
    assert [(e.due, e.once, e.missing, e.left) for e in feed.epochs] == [
        (36, 36, 0, 24),
        (60, 60, 0, 0),
    ]


def test_samples_after_the_last_break_are_not_trained_once_the_script_has_ended():
    fleet = Fleet(1, batch=12, loops=True)
    fleet.loop("0.0.0", loop_epochs=1)
    fleet.train(3)
    assert [(e.due, e.left) for e in feed_of(fleet).epochs] == [(36, 0)], "it may go on"
    fleet.complete()
    assert [(e.due, e.left) for e in feed_of(fleet).epochs] == [(36, 24)]
    assert audit(fleet.store, fleet.task).verdict == "proven"


def test_datasets_in_turn_are_each_proven_in_their_own_steps():
    fleet = Fleet(3, batch=12, loops=True)
    fleet.loop("0.-1.0", "d", samples=60, loop_epochs=1)
    fleet.train(5)
    fleet.loop("0.-1.1", "e", samples=24, loop_epochs=1)
    fleet.train(1)
    fleet.crash("w1")
    fleet.train(1)
    fleet.loop("0.-1.2", "d", loop_epochs=1)
    fleet.train(2)
    found = audit(fleet.store, fleet.task)
    d, e = found.feeds
    assert (found.verdict, d.verdict, e.verdict) == ("proven", "proven", "proven")
    assert (d.steps, e.steps, found.committed, found.bare) == (7, 2, 9, 0)
    assert [(each.due, each.once) for each in d.epochs] == [(60, 60), (24, 24)]
    assert [(each.due, each.once) for each in e.epochs] == [(24, 24)]
    assert "all applied steps of 2 datasets" in found.summary


def test_loops_after_the_target_of_a_rollback_are_forgotten():
    fleet = Fleet(2, batch=12, loops=True)
    fleet.loop("0.-1.0", "d")
    fleet.train(2)
    fleet.save()
    fleet.train(1)
    fleet.loop("0.-1.1", "e")
    fleet.train(2)
    for worker in ("w0", "w1"):
        fleet.lose(worker)
    fleet.join("w2")
    fleet.join("w3")
    assert fleet.sync() == 2
    fleet.reading = {"d": 0}
    fleet.train(3)
    fleet.loop("0.-1.1", "e")
    fleet.train(1)
    found = audit(fleet.store, fleet.task)
    assert (found.verdict, [feed.steps for feed in found.feeds]) == ("proven", [5, 1])


def test_dataset_that_nobody_read_is_not_trained():
    fleet = Fleet(2, batch=12, loops=True)
    fleet.loop("0.-1.0", "e", samples=40)
    fleet.loop("0.-1.1", "d")
    fleet.train(4)
    found = audit(fleet.store, fleet.task)
    e, d = found.feeds
    assert (e.dataset, e.verdict, e.steps, e.unused) == ("e", "not trained", 0, 4)
    assert (e.epochs, e.summary) == ([], "no worker applied a batch of it")
    assert (found.verdict, d.proven) == ("proven", 4)


def test_dataset_of_which_the_script_only_looked_at_a_batch_is_not_trained():
    fleet = Fleet(2, batch=12, loops=True)
    fleet.loop("0.-1.0", "e", samples=40)
    fleet.read(1)
    fleet.loop("0.-1.1", "d")
    fleet.train(1)
    assert [feed.verdict for feed in audit(fleet.store, fleet.task).feeds] == ["unproven", "proven"]
    fleet.train(3)
    found = audit(fleet.store, fleet.task)
    assert [feed.verdict for feed in found.feeds] == ["not trained", "proven"]
    assert found.verdict == "proven"


def test_dataset_of_which_there_is_no_record_is_unproven():
    fleet = Fleet(2, samples=60, batch=12)
    fleet.train(4, silent=["w0", "w1"])
    found = audit(fleet.store, fleet.task)
    (feed,) = found.feeds
    assert (found.verdict, feed.proven, feed.unproven) == ("unproven", 0, 4)
    assert (feed.epochs[0].once, feed.epochs[0].unproven) == (0, 48)


def test_task_without_an_applied_step_is_unproven():
    found = audit((fleet := Fleet(2)).store, fleet.task)
    assert (found.verdict, found.feeds[0].verdict) == ("unproven", "not trained")
    assert "nothing to compare" in found.summary


def test_loop_that_was_opened_only_to_look_at_a_batch_does_not_count_twice():
    fleet = Fleet(2, batch=12, loops=True)
    fleet.loop("0.-1.0", "d")
    fleet.read(1)
    fleet.loop("0.-1.1", "d", loop_epochs=1)
    fleet.train(5)
    feed = feed_of(fleet)
    assert (feed.verdict, feed.steps, feed.epochs[0].once) == ("proven", 5, 60)


def test_samples_applied_outside_every_loop_are_broken():
    fleet = Fleet(2, batch=12, loops=True)
    fleet.loop("0.-1.0", "d")
    fleet.train(2)
    fleet.loop("0.-1.1", "e", beside=True)
    fleet.train(1)
    d, e = audit(fleet.store, fleet.task).feeds
    assert (d.verdict, d.contradicted, e.verdict) == ("broken", 1, "proven")
    assert {(each.first, each.what) for each in d.findings} == {(2, "not assigned")}


def test_steps_without_a_dataset_are_reported():
    fleet = Fleet(1, batch=12, loops=True)
    fleet.loop("0.-1.0", "d", steps=2)
    fleet.train(2)
    fleet.reading = {}
    fleet.train(3)
    found = audit(fleet.store, fleet.task)
    assert (found.verdict, found.feeds[0].steps, found.bare) == ("proven", 2, 3)


def test_rollback_voids_steps_and_repeats_the_same_order():
    fleet = Fleet(2, samples=60, batch=12)
    fleet.train(1)
    fleet.save()
    fleet.train(3)
    for worker in ("w0", "w1"):
        fleet.lose(worker)
    for worker in ("w2", "w3"):
        fleet.join(worker)
    assert fleet.sync() == 1
    fleet.train(4)
    found = audit(fleet.store, fleet.task)
    assert (found.verdict, found.attempts) == ("proven", 2)
    assert [(v.attempt, v.first, v.stop) for v in found.voided] == [(1, 1, 4)]
    assert found.feeds[0].epochs[0].once == 60


def test_missing_record_is_unproven_not_a_lost_sample():
    fleet = Fleet(3, samples=60, batch=12)
    fleet.train(2)
    fleet.train(2, silent=["w1"])
    feed = feed_of(fleet)
    assert (feed.verdict, feed.proven, feed.unproven) == ("unproven", 2, 2)
    (finding,) = feed.findings
    assert (finding.worker, finding.first, finding.last, finding.what) == ("w1", 2, 3, "no record")


def test_worker_that_applied_wrong_samples_is_named():
    fleet = Fleet(3, samples=60, batch=12)
    fleet.train(1)
    fleet.train(1, wrong=["w2"])
    feed = feed_of(fleet)
    assert (feed.verdict, feed.contradicted) == ("broken", 1)
    (finding,) = feed.findings
    assert (finding.worker, finding.first, finding.what) == ("w2", 1, "other samples")


def test_lanes_with_no_owner_or_two_owners_are_found():
    fleet = Fleet(2, samples=60, batch=12, lanes=6)
    fleet.train(5)
    held = {"w0": [0, 1, 2, 3], "w1": [3, 4]}
    found = audit(Rewritten(fleet.store, held), fleet.task).feeds[0]
    (epoch,) = found.epochs
    assert (found.verdict, epoch.missing, epoch.twice) == ("broken", 10, 10)


class Rewritten:
    """A log in which the lanes have other owners."""

    def __init__(self, store, held):
        self._store, self._held = store, held

    def __getattr__(self, name):
        return getattr(self._store, name)

    def read(self, start=0, stop=None):
        for event in self._store.read(start, stop):
            if isinstance(event.body, AssignmentChanged):
                moves = [Move(n, n, "", w) for w, lanes in self._held.items() for n in lanes]
                body = AssignmentChanged(
                    task=event.body.task,
                    dataset="d",
                    generation=event.body.generation,
                    step=0,
                    moves=moves,
                    moved=len(moves),
                    reason="forged",
                )
                event = type(event)(
                    seq=event.seq, wall_ns=event.wall_ns, mono_ns=event.mono_ns, body=body
                )
            yield event


def test_mixture_is_compared_with_its_order_also_inside_a_block():
    parts = [Order(part(total)) for total in (30, 90)]
    mixed = MixedOrder(parts, [1, 3], block=100)
    counter = MixtureCounter(mixed, [30, 90])
    positions = mixed.positions(0, 30)
    samples = mixed.samples(positions.ravel()).reshape(positions.shape)
    proven = np.zeros(positions.size, bool)
    counter.add(positions.ravel(), samples.ravel(), proven)
    counter.counted(0, positions.size)
    whole = counter.epochs()
    assert sum(each.once for each in whole) == sum(each.due for each in whole) == 240
    assert all((each.missing, each.twice) == (0, 0) for each in whole)
    counter.counted(positions.size, positions.size + 8)
    assert sum(each.missing for each in counter.epochs()) == 8
    for _ in range(2):
        counter.add(positions[0], samples[0], ~proven[:8])
    assert sum(each.twice for each in counter.epochs()) >= 8
    assert 0 < sum(each.unproven for each in counter.epochs()) <= 16


def part(total):
    return OrderSpec(total_samples=total, shard_size=10, global_batch=8, lanes=4)


def test_leased_shard_counts_when_it_is_returned_consumed():
    fleet = Fleet(2, samples=60, batch=12)
    spec = DatasetSpec(total_samples=25, shard_size=10)
    fleet.do(RegisterDataset(dataset="l", spec=spec))
    fleet.do(AttachDataset(task=fleet.task, dataset="l", unit="lease", epochs=1))
    me = {"worker": "w0", "incarnation": fleet.state.workers["w0"].incarnation, "dataset": "l"}
    for consumed in (True, False, True, True):
        lease = fleet.do(AcquireLease(**me))
        fleet.do(ReturnLease(**me, lease=lease.id, consumed=consumed))
    (feed,) = [f for f in audit(fleet.store, fleet.task).feeds if f.dataset == "l"]
    assert [(e.due, e.once, e.missing, e.twice) for e in feed.epochs] == [(25, 25, 0, 0)]
    assert (feed.verdict, "as the workers reported" in feed.summary) == ("unproven", True)
    (worker,) = feed.workers
    assert (feed.unit, feed.steps, worker.worker, worker.steps, worker.samples) == (
        "shard",
        3,
        "w0",
        3,
        25,
    )


def test_task_without_training_is_not_found():
    with pytest.raises(NotFound, match="nobody"):
        audit(Fleet(1).store, "nobody")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_random_schedules_apply_every_sample_once():
    """Random joins, leaves, crashes inside steps and rollbacks; one order for all of them."""
    orders = set()
    for seed in range(SCHEDULES):
        fleet = disturbed(seed)
        found = audit(fleet.store, fleet.task)
        assert found.verdict == ("unproven" if found.feeds[0].unproven else "proven"), (seed, found)
        assert {each.first for each in found.feeds[0].findings} <= fleet.partial, (seed, found)
        orders.add(fleet.order.samples(np.arange(240)).tobytes())
    assert len(orders) == 1


def disturbed(seed: int) -> Fleet:
    """A training run with random joins, losses and rollbacks."""
    chance = random.Random(seed)
    fleet = Fleet(chance.randint(1, 5), samples=60, batch=24)
    names = iter(f"n{number}" for number in range(1_000))
    for _ in range(chance.randint(3, 9)):
        members = list(fleet.row.members)
        what = chance.choice(("train", "train", "crash", "join", "save", "all"))
        if what == "train":
            fleet.train(chance.randint(1, 4))
        elif what == "crash" and len(members) > 1:
            victim = chance.choice(members)
            others = [member for member in members if member != victim]
            fleet.crash(victim, applied_by=chance.sample(others, chance.randint(0, len(others))))
        elif what == "join":
            fleet.join(next(names))
            fleet.sync()
        elif what == "save":
            fleet.save()
        elif what == "all":
            for member in members:
                fleet.lose(member)
            for _ in range(chance.randint(1, 3)):
                fleet.join(next(names))
            if fleet.row.phase == "syncing":
                fleet.sync()
    if fleet.row.phase == "running":
        fleet.train(2)
    return fleet


def test_samples_of_a_stream_are_counted_though_its_length_is_not_known():
    samples, batch, steps = 10**13, 8, 40
    counter = EpochCounter(samples, [(0, batch * steps)])
    for step in range(steps):
        positions = np.arange(step * batch, (step + 1) * batch)
        counter.add(positions, positions, np.zeros(batch, bool))
    counter.add(np.array([3]), np.array([3]), np.zeros(1, bool))
    (found,) = counter.epochs()
    assert (found.due, found.once, found.missing, found.twice) == (320, 319, 0, 1)
