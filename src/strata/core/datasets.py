"""Datasets: what they are, and who trains which part of them.

A *dataset* is registered once and does not change. A task *attaches* a dataset in one of three
ways, its `unit`: `lane` (synchronous training: what a step trains is a pure function of the step,
and workers own lanes), `shard` (workers own shards and read them as they like) or `lease`
(asynchronous training: workers ask for one shard at a time). Lanes and shards are owned by the
members of the generation, moved stickily when it changes; leases are handed out, returned, and
taken back from the lost.

Steps, commits and rollbacks belong to the task as a whole: see `generations`.
"""

from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct, field

from strata.core.decision import Decision
from strata.core.events import Command, Event, Fact, applies, decides
from strata.core.fencing import living
from strata.core.sharding import Holdings, Move, apply_moves, assign
from strata.errors import AlreadyExists, Fenced, InvalidArgument, NotFound

if TYPE_CHECKING:
    from strata.core.state import Cluster
    from strata.core.tasks import Task

Unit: TypeAlias = Literal["lane", "shard", "lease"]


class DatasetSpec(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a dataset is. Two registrations are the same if their specs are equal."""

    total_samples: int
    shard_size: int
    shuffle: bool = True
    seed: int = 42
    name: str = ""
    path: str = ""
    format: str = ""
    fingerprint: str = ""
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def shard_count(self) -> int:
        """How many shards; the last may be short."""
        return -(-self.total_samples // self.shard_size)

    def shard_range(self, shard: int) -> tuple[int, int]:
        """The samples of a shard: first, and one past the last."""
        start = shard * self.shard_size
        return start, min(start + self.shard_size, self.total_samples)


class Dataset(Struct):
    """A registered dataset."""

    id: str
    spec: DatasetSpec
    registered_ns: int


class Lease(Struct):
    """The right of one worker to train one shard in one epoch."""

    id: int
    shard: int
    worker: str
    incarnation: int
    epoch: int


class Feed(Struct):
    """A dataset attached to a task."""

    dataset: str
    unit: Unit
    count: int
    global_batch: int = 0
    epochs: int = 0
    epoch: int = 0
    holdings: Holdings = field(default_factory=dict)
    last_lease: int = 0
    next_shard: int = 0
    returned: list[int] = field(default_factory=list)
    leases: dict[int, Lease] = field(default_factory=dict)
    consumed: int = 0


class DatasetRegistered(Fact, frozen=True):
    """A dataset is known from now on."""

    dataset: str
    spec: DatasetSpec


class DatasetAttached(Fact, frozen=True):
    """A task trains on a dataset, divided into `count` lanes or shards."""

    task: str
    dataset: str
    unit: Unit
    count: int
    global_batch: int = 0
    epochs: int = 0


class AssignmentChanged(Fact, frozen=True):
    """Lanes or shards moved between workers; holds from `step` on."""

    task: str
    dataset: str
    generation: int
    step: int
    moves: list[Move]
    moved: int
    reason: str


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


class RegisterDataset(Command, frozen=True):
    dataset: str
    spec: DatasetSpec


class AttachDataset(Command, frozen=True):
    task: str
    dataset: str
    unit: Unit = "shard"
    global_batch: int = 0
    epochs: int = 0
    lanes: int = 0


class AdvanceEpoch(Command, frozen=True):
    task: str
    dataset: str
    reason: str = "asked for"


class AcquireLease(Command, frozen=True):
    worker: str
    incarnation: int
    dataset: str


class ReturnLease(Command, frozen=True):
    worker: str
    incarnation: int
    dataset: str
    lease: int
    consumed: bool = True
    reason: str = "trained"


@applies(DatasetRegistered)
def _registered(state: "Cluster", fact: DatasetRegistered, event: Event) -> None:
    state.datasets[fact.dataset] = Dataset(fact.dataset, fact.spec, event.wall_ns)


@applies(DatasetAttached)
def _attached(state: "Cluster", fact: DatasetAttached, event: Event) -> None:
    feed = Feed(fact.dataset, fact.unit, fact.count, fact.global_batch, fact.epochs)
    state.tasks[fact.task].feeds[fact.dataset] = feed


@applies(AssignmentChanged)
def _assigned(state: "Cluster", fact: AssignmentChanged, event: Event) -> None:
    apply_moves(state.tasks[fact.task].feeds[fact.dataset].holdings, fact.moves)


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
        feed.next_shard = fact.shard + 1
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


@decides(RegisterDataset)
def register_dataset(d: Decision, c: RegisterDataset) -> Dataset:
    """Registers a dataset; repeating the same registration changes nothing."""
    known = d.state.datasets.get(c.dataset)
    if known is not None:
        if known.spec != c.spec:
            raise AlreadyExists(
                f"dataset {c.dataset!r} is registered with other parameters",
                hint="register the changed data under a new id; runs rely on the old one",
            )
        return known
    _check_spec(c.dataset, c.spec)
    d.record(DatasetRegistered(c.dataset, c.spec), c.cause)
    return d.state.datasets[c.dataset]


def _check_spec(dataset: str, spec: DatasetSpec) -> None:
    if not dataset:
        raise InvalidArgument("dataset_id is empty", hint="give the dataset a name")
    for name in ("total_samples", "shard_size"):
        if getattr(spec, name) <= 0:
            raise InvalidArgument(
                f"dataset {dataset!r}: {name} is {getattr(spec, name)}",
                hint="it must be at least 1",
            )
    if spec.shard_size > spec.total_samples:
        raise InvalidArgument(
            f"dataset {dataset!r}: shard_size {spec.shard_size} is above total_samples "
            f"{spec.total_samples}",
            hint="choose a shard_size of at most total_samples",
        )


@decides(AttachDataset)
def attach_dataset(d: Decision, c: AttachDataset) -> Feed:
    """Attaches a dataset to a task and divides it among the members; repeating is harmless."""
    task = d.state.task(c.task)
    known = task.feeds.get(c.dataset)
    if known is not None:
        same = (known.unit, known.global_batch, known.epochs) == (c.unit, c.global_batch, c.epochs)
        if not same:
            raise AlreadyExists(
                f"task {c.task!r} already trains on {c.dataset!r} with other parameters",
                hint="every worker of a task must ask for the same batches",
            )
        return known
    spec = d.state.dataset(c.dataset).spec
    count = spec.shard_count if c.unit != "lane" else _lane_count(c)
    attached = d.record(
        DatasetAttached(c.task, c.dataset, c.unit, count, c.global_batch, c.epochs), c.cause
    )
    reassign(d, task, "the dataset was attached", attached)
    return task.feeds[c.dataset]


def _lane_count(c: AttachDataset) -> int:
    if c.global_batch <= 0 or c.lanes <= 0 or c.global_batch % c.lanes:
        raise InvalidArgument(
            f"{c.lanes} lanes do not divide a global batch of {c.global_batch}",
            hint="choose lanes that divide the global batch",
        )
    return c.lanes


def reassign(d: Decision, task: "Task", reason: str, cause: str) -> None:
    """Gives the members of the present generation their share of every attached dataset."""
    members = {worker: d.state.workers[worker].weight for worker in task.members}
    for feed in task.feeds.values():
        if feed.unit == "lease":
            continue
        moves = assign(feed.holdings, members, feed.count)
        if moves:
            moved = sum(move.last - move.first + 1 for move in moves)
            step = task.committed
            d.record(
                AssignmentChanged(
                    task.id, feed.dataset, task.generation, step, moves, moved, reason
                ),
                cause,
            )


@decides(AdvanceEpoch)
def advance_epoch(d: Decision, c: AdvanceEpoch) -> int:
    """Opens the next epoch of an attached dataset."""
    task = d.state.task(c.task)
    feed = task.feeds.get(c.dataset)
    if feed is None:
        raise NotFound(f"task {c.task!r} has no dataset {c.dataset!r}", hint="attach it first")
    d.record(EpochAdvanced(c.task, c.dataset, feed.epoch + 1, task.committed, c.reason), c.cause)
    return feed.epoch


@decides(AcquireLease)
def acquire_lease(d: Decision, c: AcquireLease) -> Lease | None:
    """The next shard for a worker; None when every shard of the last epoch is taken."""
    task, feed = _lease_feed(d, c.worker, c.incarnation, c.dataset)
    if feed.returned:
        shard = feed.returned[0]
    elif feed.next_shard < feed.count:
        shard = feed.next_shard
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
    task, feed = _lease_feed(d, c.worker, c.incarnation, c.dataset)
    lease = feed.leases.get(c.lease)
    if lease is None or (lease.worker, lease.incarnation) != (c.worker, c.incarnation):
        raise Fenced(
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


def _lease_feed(d: Decision, worker_id: str, incarnation: int, dataset: str) -> tuple["Task", Feed]:
    worker = living(d, worker_id, incarnation)
    task = d.state.tasks[worker.task]
    feed = task.feeds.get(dataset)
    if feed is None or feed.unit != "lease":
        raise NotFound(
            f"task {task.id!r} has no leases of {dataset!r}", hint="attach it with unit='lease'"
        )
    return task, feed
