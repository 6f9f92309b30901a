"""Datasets: what they are, and which worker trains which part of them.

A *dataset* is registered once and does not change. A task *attaches* a dataset in one of three
ways, its `unit`: `lane` (synchronous training: the samples of a step are a pure function of its
number, and workers own lanes), `shard` (workers own shards and read them as they like) or `lease`
(asynchronous training: workers ask for one shard at a time). Lanes and shards are owned by the
members of the generation; as few as possible move when it changes. Leases are granted, returned,
and taken back from lost workers.

Steps, commits and rollbacks belong to the task as a whole: see `core/generations/recovery`.
"""

from strata.core.datasets.lane_owners import Move, apply_moves, assign
from strata.core.decision import Decision, applies, decides
from strata.core.events import Command, Event, Fact
from strata.core.limits import require_entries, require_name, require_room, require_text
from strata.core.order import Mode, Order, OrderSpec
from strata.core.state import Cluster, Dataset, DatasetSpec
from strata.core.task_state import Feed, Task, Unit
from strata.core.workers.fencing import SharedCommand
from strata.errors import AlreadyExists, InvalidArgument

MAX_PARTS = 1_000_000
"""The most shards or lanes of a dataset: each has an owner, and moves are recorded."""

FULL_SPEED = 1_000
"""The speed of the fastest worker, and of a worker that was not measured."""


class DatasetRegistered(Fact, frozen=True, kw_only=True):
    """A dataset was registered."""

    sentence = "dataset {dataset} was registered"

    dataset: str
    spec: DatasetSpec


class DatasetAttached(Fact, frozen=True, kw_only=True):
    """A task trains on a dataset, divided into `count` lanes or shards."""

    sentence = "{task} trains on dataset {dataset}, divided into {unit}s: {count}"

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


class AssignmentChanged(Fact, frozen=True, kw_only=True):
    """Lanes or shards moved between workers; holds from `step` on."""

    sentence = "{moved:part} of {dataset} changed owner at step {step}[: {reason}]"

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

    `loop` is the loop of the script that trains on the dataset (see `training_loops`), opened when
    the run has had `step` steps. It ends after `loop_epochs` epochs or `steps` steps, and at step
    `until` of the run at the latest; 0 is no limit. `epochs` is how many epochs all loops of the
    script train. A worker that reaches the loop after it has left the one before it is `entering`;
    one that resumes in its middle is not.
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
    until: int = 0


@applies(DatasetRegistered)
def _registered(state: Cluster, fact: DatasetRegistered, event: Event) -> None:
    state.datasets[fact.dataset] = Dataset(fact.dataset, fact.spec, event.wall_ns)


@applies(DatasetAttached)
def _attached(state: Cluster, fact: DatasetAttached, event: Event) -> None:
    state.tasks[fact.task].feeds[fact.dataset] = Feed(
        dataset=fact.dataset,
        unit=fact.unit,
        count=fact.count,
        global_batch=fact.global_batch,
        epochs=fact.epochs,
        batch_size=fact.batch_size,
        mode=fact.mode,
        window=fact.window,
        rebalance=fact.rebalance,
    )


@applies(AssignmentChanged)
def _assigned(state: Cluster, fact: AssignmentChanged, event: Event) -> None:
    apply_moves(state.tasks[fact.task].feeds[fact.dataset].holdings, fact.moves)


def order_of(spec: DatasetSpec, feed: Feed) -> Order:
    """The order of samples that a task trains."""
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
    """Register a dataset; repeating the same registration changes nothing."""
    known = d.state.datasets.get(c.dataset)
    if known is not None:
        if known.spec != c.spec:
            raise AlreadyExists(
                f"dataset {c.dataset!r} has changed since it was registered: "
                f"{_differences(known.spec, c.spec)}",
                hint="a task that trained on it continues only with the same data, since its steps "
                "are numbers in that order. Give the changed data another name, and start a new "
                'task; it can begin with the weights: run.restore(..., from_="TASK")',
            )
        return known
    _check_spec(c.dataset, c.spec)
    limit, known_now = d.state.rules.max_datasets, len(d.state.datasets)
    require_room(d, "max_datasets", limit, known_now, f"dataset {c.dataset!r}", c.cause)
    d.record(DatasetRegistered(dataset=c.dataset, spec=c.spec), c.cause)
    return d.state.datasets[c.dataset]


def _differences(known: DatasetSpec, asked: DatasetSpec) -> str:
    """The fields that differ, with the registered and the requested value.

    Another fingerprint alone means other content.
    """
    pairs = ((name, getattr(known, name), getattr(asked, name)) for name in known.__struct_fields__)
    return ", ".join(
        f"{name} was {old!r:.80} and is now {new!r:.80}" for name, old, new in pairs if old != new
    )


def _check_spec(dataset: str, spec: DatasetSpec) -> None:
    require_name("dataset_id", dataset)
    if "/" in dataset or dataset in (".", ".."):
        raise InvalidArgument(
            f"dataset_id {dataset[:40]!r} cannot be used",
            hint="ids are part of URLs: use no /, and not . or ..",
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
            hint=f"choose a larger shard_size; at most {MAX_PARTS} shards are allowed",
        )


def reassign(d: Decision, task: Task, reason: str, cause: str) -> None:
    """Give the members of the present generation their share of every attached dataset."""
    for feed in task.feeds.values():
        if feed.unit == "lease":
            continue
        members = {
            worker: d.state.workers[worker].weight * feed.paces.get(worker, FULL_SPEED)
            for worker in task.members
        }
        moves = assign(feed.holdings, members, feed.count)
        if moves:
            changed = AssignmentChanged(
                task=task.id,
                dataset=feed.dataset,
                generation=task.generation,
                step=task.committed,
                moves=moves,
                moved=sum(move.last - move.first + 1 for move in moves),
                reason=reason,
            )
            d.record(changed, cause)
