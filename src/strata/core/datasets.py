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
from strata.core.fencing import SharedCommand
from strata.core.limits import require_entries, require_name, require_room, require_text
from strata.core.loops import new_loop, require_loop
from strata.core.order import Mode, Order, OrderSpec
from strata.core.sharding import Holdings, Move, apply_moves, assign
from strata.errors import AlreadyExists, InvalidArgument

if TYPE_CHECKING:
    from strata.core.state import Cluster
    from strata.core.tasks import Task

Unit: TypeAlias = Literal["lane", "shard", "lease"]


MAX_PARTS = 1_000_000
"""Shards or lanes of a dataset: each is owned by somebody, and moves are recorded."""

FULL_PACE = 1_000
"""The pace of the fastest worker, and of one that was not measured."""

USUAL_LANES = 512
"""As many lanes as this share work out evenly enough, and are still few to record."""


STREAM_SAMPLES = 2**16 * 3**3 * 5**3 * 7 * 11 * 13 * 17 * 19
"""The size of a stream, whose length is not known. Epochs must begin with a step, so the global
batch has to divide it; it has many factors, so that usual ones do."""


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
    def has_length(self) -> bool:
        """Whether the number of samples is known; that of a stream is not."""
        return self.total_samples != STREAM_SAMPLES

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
    """A dataset attached to a task. `batch_size` is what one of all workers asked for, if so.

    With `rebalance` lanes are shared by how fast workers are, which is in `paces` (see `pace`).
    """

    dataset: str
    unit: Unit
    count: int
    global_batch: int = 0
    epochs: int = 0
    batch_size: int = 0
    mode: Mode = "global"
    window: int = 0
    epoch: int = 0
    holdings: Holdings = field(default_factory=dict)
    last_lease: int = 0
    next_shard: int = 0
    returned: list[int] = field(default_factory=list)
    leases: dict[int, Lease] = field(default_factory=dict)
    consumed: int = 0
    rebalance: bool = False
    paces: dict[str, int] = field(default_factory=dict)


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
    batch_size: int = 0
    mode: Mode = "global"
    window: int = 0
    rebalance: bool = False


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


class AttachDataset(SharedCommand, frozen=True):
    """Lanes need `global_batch`, or `batch_size` for each of the workers there are at first.

    So the global batch stays as it is, however many workers there are later. Without `lanes` as
    many are chosen as share it evenly.

    `loop` is the loop of the script that trains on the dataset (see `loops`), opened when the run
    has had `step` steps. It ends after `loop_epochs` epochs or `steps` steps; 0 is no limit.
    `epochs` is how many epochs all loops of the script train. A worker that comes to the loop by
    itself, having left the one before it, is `entering`; one that resumes in its middle is not.
    """

    task: str
    dataset: str
    unit: Unit = "shard"
    batch_size: int = 0
    global_batch: int = 0
    epochs: int = 0
    lanes: int = 0
    mode: Mode = "global"
    window: int = 0
    rebalance: bool = False
    loop: str = ""
    loop_epochs: int = 0
    step: int = 0
    steps: int = 0
    drop_tail: bool = False
    entering: bool = False


@applies(DatasetRegistered)
def _registered(state: "Cluster", fact: DatasetRegistered, event: Event) -> None:
    state.datasets[fact.dataset] = Dataset(fact.dataset, fact.spec, event.wall_ns)


@applies(DatasetAttached)
def _attached(state: "Cluster", fact: DatasetAttached, event: Event) -> None:
    state.tasks[fact.task].feeds[fact.dataset] = Feed(
        fact.dataset,
        fact.unit,
        fact.count,
        fact.global_batch,
        fact.epochs,
        fact.batch_size,
        fact.mode,
        fact.window,
        rebalance=fact.rebalance,
    )


@applies(AssignmentChanged)
def _assigned(state: "Cluster", fact: AssignmentChanged, event: Event) -> None:
    apply_moves(state.tasks[fact.task].feeds[fact.dataset].holdings, fact.moves)


def order_of(spec: DatasetSpec, feed: Feed) -> Order:
    """Which samples the steps of a task train."""
    return Order(
        OrderSpec(
            total_samples=spec.total_samples,
            shard_size=spec.shard_size,
            global_batch=feed.global_batch,
            lanes=feed.count,
            seed=spec.seed,
            fingerprint=spec.fingerprint,
            shuffle=spec.shuffle,
            mode=feed.mode,
            window=feed.window,
        )
    )


@decides(RegisterDataset)
def register_dataset(d: Decision, c: RegisterDataset) -> Dataset:
    """Registers a dataset; repeating the same registration changes nothing."""
    known = d.state.datasets.get(c.dataset)
    if known is not None:
        if known.spec != c.spec:
            raise AlreadyExists(
                f"dataset {c.dataset!r} is registered, and not the same: "
                f"{_differences(known.spec, c.spec)}",
                hint="register the changed data under a new id; runs rely on the old one",
            )
        return known
    _check_spec(c.dataset, c.spec)
    limit, known_now = d.state.rules.max_datasets, len(d.state.datasets)
    require_room(d, "max_datasets", limit, known_now, f"dataset {c.dataset!r}", c.cause)
    d.record(DatasetRegistered(c.dataset, c.spec), c.cause)
    return d.state.datasets[c.dataset]


def _differences(known: DatasetSpec, asked: DatasetSpec) -> str:
    """What is another one, as it is known and as it is asked for."""
    pairs = ((name, getattr(known, name), getattr(asked, name)) for name in known.__struct_fields__)
    return ", ".join(
        f"{name} is {old!r:.80}, not {new!r:.80}" for name, old, new in pairs if old != new
    )


def _check_spec(dataset: str, spec: DatasetSpec) -> None:
    require_name("dataset_id", dataset)
    if "/" in dataset or dataset in (".", ".."):
        raise InvalidArgument(
            f"dataset_id {dataset[:40]!r} cannot be used",
            hint="ids are a part of addresses: write them without /, and not as . or ..",
        )
    require_text(path=spec.path, format=spec.format, name=spec.name)
    require_entries("metadata", spec.metadata)
    for name in ("total_samples", "shard_size"):
        if getattr(spec, name) <= 0:
            raise InvalidArgument(
                f"dataset {dataset!r}: {name} is {getattr(spec, name)}",
                hint="it must be at least 1; with a path alone both are read from the data",
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
    if c.loop:
        require_loop(task, spec, c)
    known = task.feeds.get(c.dataset)
    if known is not None:
        if not _same(known, c):
            raise AlreadyExists(
                f"task {c.task!r} already trains on {c.dataset!r} with other parameters",
                hint="every worker of a task must ask for the same batches",
            )
        _open_loop(d, task, spec, c, c.cause)
        return known
    if c.unit == "lane":
        global_batch, count = _lanes(c, len(task.members))
    else:
        global_batch, count = c.global_batch, spec.shard_count
    attached = DatasetAttached(
        c.task,
        c.dataset,
        c.unit,
        count,
        global_batch,
        c.epochs,
        c.batch_size,
        c.mode,
        c.window,
        c.rebalance,
    )
    cause = d.record(attached, c.cause)
    _open_loop(d, task, spec, c, cause)
    reassign(d, task, "the dataset was attached", cause)
    return task.feeds[c.dataset]


def _open_loop(
    d: Decision,
    task: "Task",
    spec: DatasetSpec,
    c: AttachDataset,
    cause: str | tuple[str, ...],
) -> None:
    opened = new_loop(task, spec, task.feeds[c.dataset], c)
    if opened is not None:
        d.record(opened, cause)


def _same(feed: Feed, c: AttachDataset) -> bool:
    """Whether a worker asks for what the others have; what it leaves open is theirs to say."""
    return (
        (c.unit, c.batch_size, c.mode, c.window, c.rebalance)
        == (feed.unit, feed.batch_size, feed.mode, feed.window, feed.rebalance)
        and (c.unit == "lane" or c.epochs == feed.epochs)
        and (c.global_batch or feed.global_batch) == feed.global_batch
        and (c.lanes or feed.count) == feed.count
    )


def _lanes(c: AttachDataset, workers: int) -> tuple[int, int]:
    """The global batch, and how many lanes share it."""
    if c.global_batch and c.batch_size:
        raise InvalidArgument(
            f"batch_size {c.batch_size} and global_batch {c.global_batch} were both given",
            hint="give one: batch_size is for each worker, global_batch for all together",
        )
    global_batch = c.global_batch or c.batch_size * workers
    if global_batch <= 0:
        raise InvalidArgument(
            f"the batch is {global_batch}", hint="give a batch_size or global_batch of at least 1"
        )
    most = min(max(USUAL_LANES, 2 * workers), MAX_PARTS)
    lanes = c.lanes or largest_divisor(global_batch, most)
    if lanes <= 0 or global_batch % lanes:
        raise InvalidArgument(
            f"{lanes} lanes do not divide a global batch of {global_batch}",
            hint="choose lanes that divide the global batch",
        )
    if lanes > MAX_PARTS:
        raise InvalidArgument(f"{lanes} lanes", hint=f"{MAX_PARTS} lanes are the most")
    if lanes < workers and not c.lanes:
        raise InvalidArgument(
            f"a global batch of {global_batch} in {lanes} lanes is too few for {workers} workers",
            hint="choose a global batch that is a multiple of the number of workers",
        )
    return global_batch, lanes


def largest_divisor(number: int, most: int) -> int:
    """The largest number up to `most` that divides another; 0 when there is nothing to divide."""
    return next((each for each in range(min(number, most), 0, -1) if number % each == 0), 0)


def reassign(d: Decision, task: "Task", reason: str, cause: str) -> None:
    """Gives the members of the present generation their share of every attached dataset."""
    for feed in task.feeds.values():
        if feed.unit == "lease":
            continue
        members = {
            worker: d.state.workers[worker].weight * feed.paces.get(worker, FULL_PACE)
            for worker in task.members
        }
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
