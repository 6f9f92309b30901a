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
from strata.core.limits import require_entries, require_name, require_room, require_text
from strata.core.sharding import Holdings, Move, apply_moves, assign
from strata.errors import AlreadyExists, InvalidArgument

if TYPE_CHECKING:
    from strata.core.state import Cluster
    from strata.core.tasks import Task

Unit: TypeAlias = Literal["lane", "shard", "lease"]


MAX_PARTS = 1_000_000
"""Shards or lanes of a dataset: each is owned by somebody, and moves are recorded."""


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
    limit, known_now = d.state.rules.max_datasets, len(d.state.datasets)
    require_room(d, "max_datasets", limit, known_now, f"dataset {c.dataset!r}", c.cause)
    d.record(DatasetRegistered(c.dataset, c.spec), c.cause)
    return d.state.datasets[c.dataset]


def _check_spec(dataset: str, spec: DatasetSpec) -> None:
    require_name("dataset_id", dataset)
    require_text(path=spec.path, format=spec.format, name=spec.name)
    require_entries("metadata", spec.metadata)
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
    if spec.shard_count > MAX_PARTS:
        raise InvalidArgument(
            f"dataset {dataset!r} would have {spec.shard_count} shards",
            hint=f"choose a larger shard_size; {MAX_PARTS} shards are the most",
        )


@decides(AttachDataset)
def attach_dataset(d: Decision, c: AttachDataset) -> Feed:
    """Attaches a dataset to a task and divides it among the members; repeating is harmless."""
    task = d.state.task(c.task)
    spec = d.state.dataset(c.dataset).spec
    count = spec.shard_count if c.unit != "lane" else _lane_count(c)
    known = task.feeds.get(c.dataset)
    if known is not None:
        asked = (c.unit, count, c.global_batch, c.epochs)
        if asked != (known.unit, known.count, known.global_batch, known.epochs):
            raise AlreadyExists(
                f"task {c.task!r} already trains on {c.dataset!r} with other parameters",
                hint="every worker of a task must ask for the same batches",
            )
        return known
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
    if c.lanes > MAX_PARTS:
        raise InvalidArgument(f"{c.lanes} lanes", hint=f"{MAX_PARTS} lanes are the most")
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
