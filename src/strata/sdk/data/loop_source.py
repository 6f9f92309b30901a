"""The data of a loop: a registered dataset, an opened one, or several mixed by weight.

An opened dataset is registered under its name when it is first used. Every worker of a task
registers the same; different data under that name is refused. A mixture is registered as a dataset
of its own, named after its parts. `ReadOptions` says how a loop reads it: columns, transform, and
what to do on damage.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, SupportsIndex, TypeAlias

import msgspec

from strata.core.datasets.dataset_rules import order_of
from strata.core.datasets.epoch_shards import MIXTURE
from strata.core.order import Mode
from strata.core.state import DatasetSpec
from strata.core.task_state import Feed, Loop
from strata.core.workers.worker_facts import SampleSkipped
from strata.data.dataset_specs import open_spec
from strata.data.reading.lane_transforms import Transform
from strata.data.reading.mixture import MixedDataset, MixedOrder, check_weights
from strata.data.reading.step_reader import Ordered, Readable
from strata.data.source_dataset import Dataset, OnError, SkippedRow
from strata.data.torch.map_dataset import TorchSamples
from strata.errors import InvalidArgument, NotFound
from strata.sdk.session.channel import build
from strata.sdk.session.run_worker import RunWorker
from strata.wire.messages import dataset_messages
from strata.wire.v1 import coordinator_pb2 as pb

One: TypeAlias = str | Dataset
Trained: TypeAlias = One | TorchSamples | Mapping[One, float]


class BatchOptions(NamedTuple):
    """How samples are grouped into batches; 0 and None select a default."""

    batch_size: int
    global_batch: int
    lanes: int
    mode: Mode | None
    window: int
    drop_tail: bool
    rebalance: bool = False


class LoopRequest(NamedTuple):
    """The loop that a script opens; without a key none is opened.

    See `core/datasets/training_loops`.
    """

    key: str = ""
    step: int = 0
    epochs: int = 0
    steps: int = 0
    planned_epochs: int = 0
    entering: bool = False
    until: int = 0


class LoopSource(NamedTuple):
    """An opened dataset and the order of its samples.

    Step `start` of the run trains step `first` of that order, and so on for `steps` steps, or
    without an end.
    """

    name: str
    dataset: Readable
    order: Ordered
    global_batch: int
    total_samples: int
    shard_size: int
    start: int
    first: int
    steps: int | None
    rebalance: bool = False


def open_loop_source(
    worker: RunWorker, trained: Trained, options: BatchOptions, loop: LoopRequest, *, seed: int
) -> LoopSource:
    """Register the data with the coordinator, attach it to the task, and open it."""
    if isinstance(trained, Mapping):
        return _open_mixture(worker, trained, options, loop, seed)
    dataset: Readable
    if isinstance(trained, TorchSamples):
        name, spec, dataset = trained.name, trained.spec(), trained
        _register(worker, name, spec)
    else:
        name, spec, dataset = _known(worker, trained, seed)
    feed, opened = _attach(worker, name, spec, options, loop)
    return _source(name, spec, dataset, order_of(spec, feed), feed, opened, options)


def _source(
    name: str,
    spec: DatasetSpec,
    dataset: Readable,
    order: Ordered,
    feed: Feed,
    opened: Loop,
    options: BatchOptions,
) -> LoopSource:
    return LoopSource(
        name=name,
        dataset=dataset,
        order=order,
        global_batch=feed.global_batch,
        total_samples=spec.total_samples,
        shard_size=spec.shard_size,
        start=opened.start,
        first=opened.first,
        steps=opened.steps,
        rebalance=options.rebalance,
    )


def open_leased(
    worker: RunWorker, trained: One, epochs: int, *, seed: int
) -> tuple[str, DatasetSpec, Dataset]:
    """Register the data with the coordinator, and have its shards leased."""
    name, spec, dataset = _known(worker, trained, seed)
    request = build(pb.AttachDataset, dataset_id=name, unit="lease", epochs=epochs)
    session = worker.session
    session.answer(session.ask("attach", request))
    return name, spec, dataset


def _open_mixture(
    worker: RunWorker,
    trained: Mapping[One, float],
    options: BatchOptions,
    loop: LoopRequest,
    seed: int,
) -> LoopSource:
    check_weights([*trained.values()])
    weights = [float(weight) for weight in trained.values()]
    parts = [_known(worker, each, seed) for each in trained]
    mixed = MixedDataset([dataset for _, _, dataset in parts])
    recipe = msgspec.json.encode(
        [[name, weight] for (name, _, _), weight in zip(parts, weights, strict=True)]
    )
    fingerprints = "/".join(spec.fingerprint for _, spec, _ in parts)
    identity = blake2b(recipe + fingerprints.encode(), digest_size=6).hexdigest()
    spec = DatasetSpec(
        total_samples=sum(part.total_samples for _, part, _ in parts),
        shard_size=max(part.shard_size for _, part, _ in parts),
        seed=seed,
        name=" + ".join(name for name, _, _ in parts)[:200],
        format=MIXTURE,
        fingerprint=identity,
        metadata={MIXTURE: recipe.decode()},
    )
    name = f"mixture-{identity}"
    _register(worker, name, spec)
    feed, opened = _attach(worker, name, spec, options, loop)
    order = MixedOrder([order_of(part, feed) for _, part, _ in parts], weights, seed=seed)
    return _source(name, spec, mixed, order, feed, opened, options)


def checked_epochs(epochs: int | None) -> int:
    """The number of epochs, 0 for no end; raises if it is invalid."""
    if epochs is not None and (not isinstance(epochs, SupportsIndex) or epochs < 1):
        raise InvalidArgument(
            f"the loop has epochs={epochs!r:.80}", hint="use 1 or more, or omit it for no end"
        )
    return epochs or 0


def _known(worker: RunWorker, each: One, seed: int) -> tuple[str, DatasetSpec, Dataset]:
    """A registered dataset by its name, or opened data, which is registered."""
    if isinstance(each, Dataset):
        spec = each.spec(seed=seed)
        _register(worker, each.name, spec)
        return each.name, spec, each
    if not isinstance(each, str):
        raise InvalidArgument(
            f"run.batches cannot read a {type(each).__name__}",
            hint="pass the id of a registered dataset, strata.open_dataset(path), or a dict of "
            "these with weights; for a torch Dataset use run.loader",
        )
    request = build(pb.GetDatasetRequest, dataset_id=each)
    try:
        answer = worker.session.call("GetDataset", request, pb.RegisterDatasetRequest)
    except NotFound as error:
        raise _not_a_dataset(each, error) from None
    spec = dataset_messages.spec_of(answer)
    return each, spec, open_spec(each, spec)


def _not_a_dataset(given: str, error: NotFound) -> NotFound:
    """The error for text that is no id of a dataset; paths are opened first."""
    path = Path(given).expanduser()
    if path.exists():
        return NotFound(
            f"{given!r} is a path, not the id of a registered dataset",
            hint=f"open it first: run.batches(strata.open_dataset({given!r}), …)",
        )
    if "://" in given or len(path.parts) == 1:
        return error
    return NotFound(
        f"{given!r} is not the id of a registered dataset, and {path.absolute()} does not exist",
        hint="correct the path, and open it first: run.batches(strata.open_dataset(PATH), …)",
    )


def _register(worker: RunWorker, name: str, spec: DatasetSpec) -> None:
    request = dataset_messages.dataset_message(name, spec)
    worker.session.call("RegisterDataset", request, pb.RegisterDatasetResponse)


def _attach(
    worker: RunWorker, name: str, spec: DatasetSpec, options: BatchOptions, loop: LoopRequest
) -> tuple[Feed, Loop]:
    """Attach a dataset to the task for all workers, and open the loop.

    Waits for this worker's lanes, which come at once, or with the next generation.
    """
    remote = "://" in spec.path
    request = build(
        pb.AttachDataset,
        dataset_id=name,
        unit="lane",
        batch_size=options.batch_size,
        global_batch=options.global_batch,
        epochs=loop.planned_epochs,
        lanes=options.lanes,
        mode=options.mode or ("window" if remote else "global"),
        window=options.window,
        rebalance=options.rebalance,
        loop=loop.key,
        loop_epochs=loop.epochs,
        step=loop.step,
        steps=loop.steps,
        drop_tail=options.drop_tail,
        entering=loop.entering,
        until=loop.until,
    )
    session, membership = worker.session, worker.membership
    feed = session.answer(session.ask("attach", request)).feed
    session.wait_for(
        lambda: name in membership.attached or membership.changed,
        what=lambda: f"waiting for this worker's lanes of {name!r} from the coordinator",
    )
    attached = Feed(
        dataset=name,
        unit="lane",
        count=feed.count,
        global_batch=feed.global_batch,
        epochs=feed.epochs,
        mode=dataset_messages.MODES[feed.mode],
        window=feed.window,
    )
    steps = feed.loop.steps if feed.loop.HasField("steps") else None
    opened = Loop(dataset=name, start=feed.loop.start, first=feed.loop.first, steps=steps)
    return attached, opened


log = logging.getLogger(__name__)


class ReadOptions(NamedTuple):
    """How batches are read."""

    columns: Sequence[str] | None = None
    transform: Transform | None = None
    on_error: OnError = "raise"
    prefetch_bytes: int = 0
    contents: bool = False


def recorded_skip(worker: RunWorker) -> Callable[[SkippedRow], None]:
    """A callback that records and logs a row that was left out of a batch."""

    def skipped(row: SkippedRow) -> None:
        log.warning("skipped a damaged row: dataset %s, file %s, row %s: %s", *row)
        worker.recorder.emit(
            SampleSkipped(dataset=row.dataset, row=row.row, file=row.file, reason=row.reason)
        )

    return skipped
