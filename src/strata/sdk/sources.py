"""What a run trains on: a registered dataset, data that is at hand, or several mixed by weight.

Data at hand is registered under its name when it is first used; every worker of a task registers
the same, and one that has other data under that name is refused. A mixture is a dataset of its own
to the coordinator, named after what is mixed.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import NamedTuple, SupportsIndex, TypeAlias

import msgspec

from strata.core.datasets import DatasetSpec, Feed, order_of
from strata.core.epoch_shards import MIXTURE
from strata.core.loops import Loop
from strata.core.order import Mode
from strata.data.dataset import Dataset
from strata.data.mixing import MixedDataset, MixedOrder, check_weights
from strata.data.specs import open_spec
from strata.data.steps import Ordered, Readable
from strata.data.torch_dataset import TorchSamples
from strata.errors import InvalidArgument
from strata.sdk.channel import build
from strata.sdk.worker import Worker
from strata.wire import datasets
from strata.wire.v1 import coordinator_pb2 as pb

One: TypeAlias = str | Dataset
Trained: TypeAlias = One | TorchSamples | Mapping[One, float]


class Wanted(NamedTuple):
    """How the batches are cut; what is 0 or None is chosen."""

    batch_size: int
    global_batch: int
    lanes: int
    mode: Mode | None
    window: int
    drop_tail: bool
    rebalance: bool = False


class LoopAsked(NamedTuple):
    """The loop that a script opens; see `core.loops`. Without a key no loop is opened."""

    key: str = ""
    step: int = 0
    epochs: int = 0
    steps: int = 0
    planned_epochs: int = 0
    entering: bool = False


class Source(NamedTuple):
    """What batches are read from and in which order.

    The run's steps from `start` on train the steps of that order from `first` on; `steps` of them,
    or without an end.
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


def open_source(
    worker: Worker, trained: Trained, wanted: Wanted, loop: LoopAsked, *, seed: int
) -> Source:
    """Makes the data known to the coordinator, attaches it to the task, and opens it here."""
    if isinstance(trained, Mapping):
        return _open_mixture(worker, trained, wanted, loop, seed)
    dataset: Readable
    if isinstance(trained, TorchSamples):
        name, spec, dataset = trained.name, trained.spec(), trained
        _register(worker, name, spec)
    else:
        name, spec, dataset = _known(worker, trained, seed)
    feed, opened = _attach(worker, name, spec, wanted, loop)
    return _source(name, spec, dataset, order_of(spec, feed), feed, opened, wanted)


def _source(
    name: str,
    spec: DatasetSpec,
    dataset: Readable,
    order: Ordered,
    feed: Feed,
    opened: Loop,
    wanted: Wanted,
) -> Source:
    return Source(
        name=name,
        dataset=dataset,
        order=order,
        global_batch=feed.global_batch,
        total_samples=spec.total_samples,
        shard_size=spec.shard_size,
        start=opened.start,
        first=opened.first,
        steps=opened.steps,
        rebalance=wanted.rebalance,
    )


def open_leased(
    worker: Worker, trained: One, epochs: int, *, seed: int
) -> tuple[str, DatasetSpec, Dataset]:
    """Makes the data known to the coordinator, and has its shards handed out by lease."""
    name, spec, dataset = _known(worker, trained, seed)
    request = build(pb.AttachDataset, dataset_id=name, unit="lease", epochs=epochs)
    session = worker.session
    session.answer(session.ask("attach", request))
    return name, spec, dataset


def _open_mixture(
    worker: Worker, trained: Mapping[One, float], wanted: Wanted, loop: LoopAsked, seed: int
) -> Source:
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
    feed, opened = _attach(worker, name, spec, wanted, loop)
    order = MixedOrder([order_of(part, feed) for _, part, _ in parts], weights, seed=seed)
    return _source(name, spec, mixed, order, feed, opened, wanted)


def checked_epochs(epochs: int | None) -> int:
    """How many epochs, with 0 for no end."""
    if epochs is not None and (not isinstance(epochs, SupportsIndex) or epochs < 1):
        raise InvalidArgument(
            f"epochs is {epochs!r:.80}", hint="give 1 or more, or leave it out to go on for ever"
        )
    return epochs or 0


def _known(worker: Worker, each: One, seed: int) -> tuple[str, DatasetSpec, Dataset]:
    """A dataset by its name, or data that is registered now."""
    if isinstance(each, Dataset):
        spec = each.spec(seed=seed)
        _register(worker, each.name, spec)
        return each.name, spec, each
    if not isinstance(each, str):
        raise InvalidArgument(
            f"run.batches cannot read a {type(each).__name__}",
            hint="give the id of a registered dataset, strata.open_dataset(path), or several with "
            "their weights; for a torch Dataset there is run.loader",
        )
    request = build(pb.GetDatasetRequest, dataset_id=each)
    answer = worker.session.call("GetDataset", request, pb.RegisterDatasetRequest)
    spec = datasets.spec_of(answer)
    return each, spec, open_spec(each, spec)


def _register(worker: Worker, name: str, spec: DatasetSpec) -> None:
    request = datasets.dataset_message(name, spec)
    worker.session.call("RegisterDataset", request, pb.RegisterDatasetResponse)


def _attach(
    worker: Worker, name: str, spec: DatasetSpec, wanted: Wanted, loop: LoopAsked
) -> tuple[Feed, Loop]:
    """The task trains on the dataset from now on, all workers alike; and the loop that is opened.

    Which lanes are this worker's is told at once, or with the next generation if this one is over.
    """
    remote = "://" in spec.path
    request = build(
        pb.AttachDataset,
        dataset_id=name,
        unit="lane",
        batch_size=wanted.batch_size,
        global_batch=wanted.global_batch,
        epochs=loop.planned_epochs,
        lanes=wanted.lanes,
        mode=wanted.mode or ("window" if remote else "global"),
        window=wanted.window,
        rebalance=wanted.rebalance,
        loop=loop.key,
        loop_epochs=loop.epochs,
        step=loop.step,
        steps=loop.steps,
        drop_tail=wanted.drop_tail,
        entering=loop.entering,
    )
    session, membership = worker.session, worker.membership
    feed = session.answer(session.ask("attach", request)).feed
    session.wait_for(
        lambda: name in membership.attached or membership.changed,
        what=lambda: f"the coordinator has to say which lanes of {name!r} are this worker's",
    )
    attached = Feed(
        dataset=name,
        unit="lane",
        count=feed.count,
        global_batch=feed.global_batch,
        epochs=feed.epochs,
        mode=datasets.MODES[feed.mode],
        window=feed.window,
    )
    steps = feed.loop.steps if feed.loop.HasField("steps") else None
    opened = Loop(dataset=name, start=feed.loop.start, first=feed.loop.first, steps=steps)
    return attached, opened
