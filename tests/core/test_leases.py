"""Leases: each shard is trained once per epoch, by the worker that holds its lease."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.core.datasets.dataset_rules import AttachDataset, RegisterDataset
from strata.core.datasets.shard_leases import (
    AcquireLease,
    AdvanceEpoch,
    EpochAdvanced,
    LeaseGranted,
    LeaseReturned,
    ReturnLease,
    samples_in,
    shard_at,
)
from strata.core.state import DatasetSpec
from strata.errors import Fenced, NotAllowedNow, NotFound
from tests.core.world import World


def leasing(shards=3, epochs=2, syncs=False):
    """A task of a and b whose dataset `d` is handed out by lease."""
    world = World()
    task = world.submit(1, syncs=syncs)
    peers = world.join(task, "a", "b")
    spec = DatasetSpec(total_samples=shards, shard_size=1, shuffle=False)
    world.do(RegisterDataset(dataset="d", spec=spec))
    world.do(AttachDataset(task=task.id, dataset="d", unit="lease", epochs=epochs))
    return world, task, *peers


def acquire(peer):
    return peer.world.do(AcquireLease(**peer.me, dataset="d"))


def give_back(peer, lease, consumed=True):
    peer.world.do(ReturnLease(**peer.me, dataset="d", lease=lease.id, consumed=consumed))


def consumed(world):
    """The (epoch, shard) pairs that count, in order."""
    epochs = {fact.lease: fact.epoch for fact in world.facts(LeaseGranted)}
    return [(epochs[f.lease], f.shard) for f in world.facts(LeaseReturned) if f.consumed]


def test_each_shard_is_granted_to_one_worker():
    world, _task, a, b = leasing()
    leases = [acquire(a), acquire(b), acquire(a)]
    assert [lease.shard for lease in leases] == [0, 1, 2]
    assert len({lease.id for lease in leases}) == 3
    assert acquire(b) is None
    assert world.last == []


def test_request_whose_answer_was_lost_gets_the_same_lease():
    world, _task, a, b = leasing()
    ask = AcquireLease(**a.me, dataset="d", after=0)
    first = world.do(ask)
    assert world.do(ask) == first
    assert world.last == []
    assert acquire(b).shard == 1
    second = world.do(AcquireLease(**a.me, dataset="d", after=first.id))
    assert second.shard == 2


def test_shards_and_their_samples_come_in_another_order_each_epoch():
    spec = DatasetSpec(total_samples=1_003, shard_size=10, seed=3, fingerprint="f")
    orders = [tuple(shard_at(spec, n, epoch) for n in range(101)) for epoch in range(3)]
    assert all(sorted(order) == list(range(101)) for order in orders)
    assert len({*orders, tuple(range(101))}) == 4
    assert sorted(samples_in(spec, 100, 0)) == [1_000, 1_001, 1_002]
    epochs = [tuple(samples_in(spec, 7, epoch)) for epoch in range(3)]
    assert all(sorted(samples) == list(range(70, 80)) for samples in epochs)
    assert len(set(epochs)) == 3
    plain = DatasetSpec(total_samples=50, shard_size=10, shuffle=False)
    assert [shard_at(plain, 3, 5), *samples_in(plain, 1, 5)] == [3, *range(10, 20)]


def test_untrained_shard_is_granted_again_first():
    _world, _task, a, b = leasing()
    first = acquire(a)
    give_back(a, first, consumed=False)
    again = acquire(b)
    assert (again.shard, again.id != first.id) == (first.shard, True)


def test_epoch_advances_when_every_shard_is_consumed():
    world, _task, a, b = leasing(shards=2)
    one, two = acquire(a), acquire(b)
    give_back(a, one)
    assert world.new(EpochAdvanced) == []
    give_back(b, two)
    assert world.one(EpochAdvanced).epoch == 1
    assert acquire(a).epoch == 1


def test_no_lease_is_granted_after_the_last_epoch():
    world, _task, a, _b = leasing(shards=2, epochs=1)
    for lease in (acquire(a), acquire(a)):
        give_back(a, lease)
    assert (world.facts(EpochAdvanced), acquire(a)) == ([], None)


def test_leases_without_a_last_epoch_continue():
    _world, _task, a, _b = leasing(shards=1, epochs=0)
    for epoch in range(4):
        lease = acquire(a)
        assert lease.epoch == epoch
        give_back(a, lease)


@pytest.mark.parametrize("end", ["lost", "failed", "stopped", "done"])
@pytest.mark.parametrize("syncs", [False, True])
def test_leases_of_a_lost_worker_are_granted_again(end, syncs):
    world, _task, a, b = leasing(syncs=syncs)
    lease = acquire(a)
    a.lost() if end == "lost" else a.leave(end)
    returned = world.one(LeaseReturned)
    assert (returned.shard, returned.consumed) == (lease.shard, False)
    assert acquire(b).shard == lease.shard


def test_work_of_a_fenced_worker_does_not_count():
    world, _task, a, _b = leasing()
    lease = acquire(a)
    a.lost()
    with pytest.raises(Fenced):
        give_back(a, lease)
    new = a.again()
    with pytest.raises(NotAllowedNow, match="does not hold lease"):
        give_back(new, lease)
    assert consumed(world) == []


def test_only_the_holder_returns_a_lease_and_only_once():
    world, _task, a, b = leasing()
    lease = acquire(a)
    with pytest.raises(NotAllowedNow):
        give_back(b, lease)
    give_back(a, lease)
    with pytest.raises(NotAllowedNow):
        give_back(a, lease)
    assert consumed(world) == [(0, 0)]


def test_leases_and_their_numbers_survive_a_restart():
    world, _task, a, b = leasing()
    lease = acquire(a)
    world.restart()
    give_back(a, lease)
    assert acquire(b).id == lease.id + 1


def test_dataset_attached_otherwise_cannot_be_leased():
    world, task, a, _b = leasing()
    with pytest.raises(NotFound, match="'other'"):
        world.do(AcquireLease(**a.me, dataset="other"))
    world.do(RegisterDataset(dataset="s", spec=DatasetSpec(total_samples=2, shard_size=1)))
    world.do(AttachDataset(task=task.id, dataset="s", unit="shard"))
    with pytest.raises(NotFound, match="unit='lease'"):
        world.do(AcquireLease(**a.me, dataset="s"))


@pytest.mark.parametrize("trained", [True, False])
def test_lease_of_the_previous_epoch_does_not_count_in_the_next(trained):
    world, task, a, b = leasing(shards=2, epochs=0)
    late = acquire(a)
    world.do(AdvanceEpoch(task=task.id, dataset="d"))
    with suppress(Fenced, NotAllowedNow):
        give_back(a, late, consumed=trained)
    while task.feeds["d"].epoch == 1:
        give_back(b, acquire(b))
    assert [shard for epoch, shard in consumed(world) if epoch == 1] == [0, 1]


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["acquire", "acquire", "consume", "drop", "lose", "restart"]),
        st.sampled_from("ab"),
        st.integers(0, 9),
    ),
    max_size=60,
)


@settings(max_examples=80, deadline=None)
@given(acts=ACTS)
def test_in_every_epoch_every_shard_counts_once(acts):
    world, task, _, _ = leasing(shards=3, epochs=0)
    for what, name, index in acts:
        peer = world.peers[name]
        if not peer.worker.alive:
            peer = peer.again()
        feed = world.state.tasks[task.id].feeds["d"]
        mine = [lease for lease in feed.leases.values() if lease.worker == name]
        if what == "acquire":
            acquire(peer)
        elif what in ("consume", "drop") and mine:
            give_back(peer, mine[index % len(mine)], consumed=what == "consume")
        elif what == "lose":
            peer.lost()
        elif what == "restart":
            world.restart()
    counted = consumed(world)
    assert len(set(counted)) == len(counted)
    for epoch in range(world.state.tasks[task.id].feeds["d"].epoch):
        assert {shard for e, shard in counted if e == epoch} == {0, 1, 2}
