"""Leases and epochs: which shards are handed out, and when all of an epoch have been.

In asynchronous training a worker asks for one shard at a time. A lease is fenced like everything
else: only the incarnation that holds it can say that its samples count, and what a lost worker held
goes out again. When every shard of an epoch counts the next one begins.

A request that is repeated, since its answer was lost, gets the same lease again: a worker says
which lease is the newest it knows of (`after`), and one that was granted later is the answer.
"""

from typing import TYPE_CHECKING

from strata.core.datasets import Feed, Lease
from strata.core.decision import Decision
from strata.core.events import Event, Fact, applies, decides
from strata.core.fencing import SharedCommand, WorkerCommand
from strata.core.shard_order import shard_at
from strata.errors import NotAllowedNow, NotFound

if TYPE_CHECKING:
    from strata.core.state import Cluster
    from strata.core.tasks import Task


class EpochAdvanced(Fact, frozen=True):
    """Every sample of the epoch before has been handed out and accounted for."""

    task: str
    dataset: str
    epoch: int
    step: int
    reason: str


class LeaseGranted(Fact, frozen=True):
    """A worker may train one shard."""

    task: str
    dataset: str
    lease: int
    shard: int
    worker: str
    incarnation: int
    epoch: int


class LeaseReturned(Fact, frozen=True):
    """A lease ended: its samples count if `consumed`; otherwise its shard goes out again."""

    task: str
    dataset: str
    lease: int
    shard: int
    worker: str
    consumed: bool
    reason: str


class AdvanceEpoch(SharedCommand, frozen=True):
    task: str
    dataset: str
    reason: str = "asked for"


class AcquireLease(WorkerCommand, frozen=True):
    """`after` is the newest lease that the worker knows of; -1 asks for one more in any case."""

    dataset: str
    after: int = -1


class ReturnLease(WorkerCommand, frozen=True):
    dataset: str
    lease: int
    consumed: bool = True
    reason: str = "trained"


@applies(EpochAdvanced)
def _epoch_advanced(state: "Cluster", fact: EpochAdvanced, event: Event) -> None:
    feed = state.tasks[fact.task].feeds[fact.dataset]
    feed.epoch = fact.epoch
    feed.next_shard = 0
    feed.consumed = 0
    feed.returned = []


@applies(LeaseGranted)
def _lease_granted(state: "Cluster", fact: LeaseGranted, event: Event) -> None:
    feed = state.tasks[fact.task].feeds[fact.dataset]
    feed.last_lease = fact.lease
    if fact.shard in feed.returned:
        feed.returned.remove(fact.shard)
    else:
        feed.next_shard += 1
    feed.leases[fact.lease] = Lease(
        fact.lease, fact.shard, fact.worker, fact.incarnation, fact.epoch
    )


@applies(LeaseReturned)
def _lease_returned(state: "Cluster", fact: LeaseReturned, event: Event) -> None:
    feed = state.tasks[fact.task].feeds[fact.dataset]
    del feed.leases[fact.lease]
    if fact.consumed:
        feed.consumed += 1
    else:
        feed.returned.append(fact.shard)


@decides(AdvanceEpoch)
def advance_epoch(d: Decision, c: AdvanceEpoch) -> int:
    """Opens the next epoch of an attached dataset."""
    task = d.state.task(c.task)
    feed = task.feeds.get(c.dataset)
    if feed is None:
        raise NotFound(f"task {c.task!r} has no dataset {c.dataset!r}", hint="attach it first")
    if feed.unit == "lane":
        raise NotAllowedNow(
            f"the epochs of {c.dataset!r} follow from the steps of task {c.task!r}",
            hint="train on; the next epoch begins by itself",
        )
    for lease in list(feed.leases.values()):
        returned = LeaseReturned(
            c.task, c.dataset, lease.id, lease.shard, lease.worker, False, "its epoch ended"
        )
        d.record(returned, c.cause)
    d.record(EpochAdvanced(c.task, c.dataset, feed.epoch + 1, task.committed, c.reason), c.cause)
    return feed.epoch


@decides(AcquireLease)
def acquire_lease(d: Decision, c: AcquireLease) -> Lease | None:
    """The next shard for a worker; None when every shard of the last epoch is taken."""
    task, feed = _lease_feed(d, c)
    for lease in feed.leases.values() if c.after >= 0 else ():
        if lease.id > c.after and (lease.worker, lease.incarnation) == (c.worker, c.incarnation):
            return lease
    if feed.returned:
        shard = feed.returned[0]
    elif feed.next_shard < feed.count:
        shard = shard_at(d.state.dataset(c.dataset).spec, feed.next_shard, feed.epoch)
    else:
        return None
    granted = LeaseGranted(
        task.id, feed.dataset, feed.last_lease + 1, shard, c.worker, c.incarnation, feed.epoch
    )
    d.record(granted, c.cause)
    return feed.leases[granted.lease]


@decides(ReturnLease)
def return_lease(d: Decision, c: ReturnLease) -> None:
    """Ends a lease; only its holder may, so that what a zombie trained never counts."""
    task, feed = _lease_feed(d, c)
    lease = feed.leases.get(c.lease)
    if lease is None or (lease.worker, lease.incarnation) != (c.worker, c.incarnation):
        raise NotAllowedNow(
            f"worker {c.worker!r} does not hold lease {c.lease} of {c.dataset!r}",
            hint="the lease was taken back; drop that work and ask for another",
        )
    returned = LeaseReturned(
        task.id, feed.dataset, lease.id, lease.shard, c.worker, c.consumed, c.reason
    )
    cause = d.record(returned, c.cause)
    if feed.consumed == feed.count and (not feed.epochs or feed.epoch + 1 < feed.epochs):
        d.record(
            EpochAdvanced(
                task.id, feed.dataset, feed.epoch + 1, task.committed, "every shard is consumed"
            ),
            cause,
        )


def take_back_leases(d: Decision, task: "Task", worker: str, cause: str) -> None:
    """Returns what a worker that is gone still held."""
    for feed in task.feeds.values():
        for lease in [lease for lease in feed.leases.values() if lease.worker == worker]:
            d.record(
                LeaseReturned(
                    task.id,
                    feed.dataset,
                    lease.id,
                    lease.shard,
                    worker,
                    False,
                    "its worker is gone",
                ),
                cause,
            )


def _lease_feed(d: Decision, c: AcquireLease | ReturnLease) -> tuple["Task", Feed]:
    task = d.state.tasks[d.state.workers[c.worker].task]
    feed = task.feeds.get(c.dataset)
    if feed is None or feed.unit != "lease":
        raise NotFound(
            f"task {task.id!r} has no leases of {c.dataset!r}", hint="attach it with unit='lease'"
        )
    return task, feed
