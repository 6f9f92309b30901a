"""Leases and epochs of asynchronous training: which shards are granted, and when an epoch ends.

A worker asks for one shard at a time. A lease is fenced: only the incarnation that holds it can
report its samples as trained, and shards of a lost worker are granted again. When every shard of an
epoch is trained, the next epoch begins.

A request that is repeated because its answer was lost gets the same lease again: a worker sends the
newest lease that it knows of (`after`), and a lease that was granted later is the answer.

The order in which shards are leased, and the order of the samples in a shard, are pure functions of
the dataset's seed and fingerprint, the epoch, and (for samples) the shard, by the permutations of
`core/order`; without `shuffle` they are plain order. So a shard trains the same samples in the same
order, whichever worker gets it and however often it is leased.
"""

import numpy as np

from strata.core.decision import Decision, applies, decides
from strata.core.events import Event, Fact
from strata.core.order import ORDER_VERSION, Integers, Keys, rounds_for
from strata.core.state import Cluster, DatasetSpec
from strata.core.task_state import Feed, Lease, Task
from strata.core.workers.fencing import SharedCommand, WorkerCommand
from strata.errors import NotAllowedNow, NotFound

_SHARDS, _SAMPLES = 0, 1


def shard_at(spec: "DatasetSpec", place: int, epoch: int) -> int:
    """The shard that is handed out at a place of an epoch."""
    if not spec.shuffle:
        return place
    places = np.array([place], np.int64)
    return int(_permuted(spec, places, spec.shard_count, _SHARDS, epoch)[0])


def samples_in(spec: "DatasetSpec", shard: int, epoch: int) -> Integers:
    """The samples of a shard in the order in which an epoch trains them."""
    first, stop = spec.shard_range(shard)
    places = np.arange(stop - first, dtype=np.int64)
    if not spec.shuffle:
        return first + places
    return first + _permuted(spec, places, stop - first, _SAMPLES, epoch, shard)


def _permuted(spec: "DatasetSpec", places: Integers, size: int, *what: int) -> Integers:
    keys = Keys(f"shards/{ORDER_VERSION}/{spec.seed}/{spec.fingerprint}")
    tweak = keys.tweak(*(np.array([each], np.int64) for each in what))
    return keys.permute(places, np.array([size], np.int64), tweak, rounds_for(size))


class EpochAdvanced(Fact, frozen=True, kw_only=True):
    """Every sample of the previous epoch has been trained or accounted for."""

    sentence = "{task} started epoch {epoch} of {dataset}[: {reason}]"

    task: str
    dataset: str
    epoch: int
    step: int
    reason: str


class LeaseGranted(Fact, frozen=True, kw_only=True):
    """A worker may train one shard."""

    sentence = "{worker} got the lease of shard {shard} of {dataset}, epoch {epoch}"

    task: str
    dataset: str
    lease: int
    shard: int
    worker: str
    incarnation: int
    epoch: int


class LeaseReturned(Fact, frozen=True, kw_only=True):
    """A lease ended: its samples are trained if `consumed`; otherwise the shard is granted
    again."""

    sentence = (
        "{worker} returned shard {shard} of {dataset} [{consumed:?}after training it|before "
        "its end][: {reason}]"
    )

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
def _epoch_advanced(state: Cluster, fact: EpochAdvanced, event: Event) -> None:
    feed = state.tasks[fact.task].feeds[fact.dataset]
    feed.epoch = fact.epoch
    feed.next_shard = 0
    feed.consumed = 0
    feed.returned = []


@applies(LeaseGranted)
def _lease_granted(state: Cluster, fact: LeaseGranted, event: Event) -> None:
    feed = state.tasks[fact.task].feeds[fact.dataset]
    feed.last_lease = fact.lease
    if fact.shard in feed.returned:
        feed.returned.remove(fact.shard)
    else:
        feed.next_shard += 1
    feed.leases[fact.lease] = Lease(
        id=fact.lease,
        shard=fact.shard,
        worker=fact.worker,
        incarnation=fact.incarnation,
        epoch=fact.epoch,
    )


@applies(LeaseReturned)
def _lease_returned(state: Cluster, fact: LeaseReturned, event: Event) -> None:
    feed = state.tasks[fact.task].feeds[fact.dataset]
    del feed.leases[fact.lease]
    if fact.consumed:
        feed.consumed += 1
    else:
        feed.returned.append(fact.shard)


@decides(AdvanceEpoch)
def advance_epoch(d: Decision, c: AdvanceEpoch) -> int:
    """Open the next epoch of an attached dataset."""
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
            task=c.task,
            dataset=c.dataset,
            lease=lease.id,
            shard=lease.shard,
            worker=lease.worker,
            consumed=False,
            reason="its epoch ended",
        )
        d.record(returned, c.cause)
    d.record(
        EpochAdvanced(
            task=c.task,
            dataset=c.dataset,
            epoch=feed.epoch + 1,
            step=task.committed,
            reason=c.reason,
        ),
        c.cause,
    )
    return feed.epoch


@decides(AcquireLease)
def acquire_lease(d: Decision, c: AcquireLease) -> Lease | None:
    """Grant the next shard to a worker; None if every shard of the last epoch is taken."""
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
        task=task.id,
        dataset=feed.dataset,
        lease=feed.last_lease + 1,
        shard=shard,
        worker=c.worker,
        incarnation=c.incarnation,
        epoch=feed.epoch,
    )
    d.record(granted, c.cause)
    return feed.leases[granted.lease]


@decides(ReturnLease)
def return_lease(d: Decision, c: ReturnLease) -> None:
    """End a lease; only its holder may, so that work of a fenced worker never counts."""
    task, feed = _lease_feed(d, c)
    lease = feed.leases.get(c.lease)
    if lease is None or (lease.worker, lease.incarnation) != (c.worker, c.incarnation):
        raise NotAllowedNow(
            f"worker {c.worker!r} does not hold lease {c.lease} of {c.dataset!r}",
            hint="the lease was taken back; drop that work and ask for another",
        )
    returned = LeaseReturned(
        task=task.id,
        dataset=feed.dataset,
        lease=lease.id,
        shard=lease.shard,
        worker=c.worker,
        consumed=c.consumed,
        reason=c.reason,
    )
    cause = d.record(returned, c.cause)
    if feed.consumed == feed.count and (not feed.epochs or feed.epoch + 1 < feed.epochs):
        d.record(
            EpochAdvanced(
                task=task.id,
                dataset=feed.dataset,
                epoch=feed.epoch + 1,
                step=task.committed,
                reason="every shard is consumed",
            ),
            cause,
        )


def take_back_leases(d: Decision, task: Task, worker: str, cause: str) -> None:
    """Return the leases of a worker that is gone."""
    for feed in task.feeds.values():
        for lease in [lease for lease in feed.leases.values() if lease.worker == worker]:
            d.record(
                LeaseReturned(
                    task=task.id,
                    dataset=feed.dataset,
                    lease=lease.id,
                    shard=lease.shard,
                    worker=worker,
                    consumed=False,
                    reason="its worker is gone",
                ),
                cause,
            )


def _lease_feed(d: Decision, c: AcquireLease | ReturnLease) -> tuple[Task, Feed]:
    task = d.state.tasks[d.state.workers[c.worker].task]
    feed = task.feeds.get(c.dataset)
    if feed is None or feed.unit != "lease":
        raise NotFound(
            f"task {task.id!r} has no leases of {c.dataset!r}", hint="attach it with unit='lease'"
        )
    return task, feed
