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
from strata.core.order import Mode
from strata.data.dataset import Dataset
from strata.data.mixing import MixedDataset, MixedOrder, check_weights
from strata.data.specs import open_spec
from strata.data.steps import Ordered, Readable
from strata.errors import Conflict, InvalidArgument
from strata.sdk.channel import build
from strata.sdk.worker import Worker
from strata.wire import datasets
from strata.wire.v1 import coordinator_pb2 as pb

One: TypeAlias = str | Dataset
Trained: TypeAlias = One | Mapping[One, float]

MIXTURE = "mixture"
ATTACH_TIMEOUT_S = 60.0


class Wanted(NamedTuple):
    """How the batches are cut; what is 0 or None is chosen."""

    batch_size: int
    global_batch: int
    epochs: int
    lanes: int
    mode: Mode | None
    window: int
    drop_tail: bool
    rebalance: bool = False


class Source(NamedTuple):
    """What batches are read from, in which order, and the step at which they end."""

    name: str
    dataset: Readable
    order: Ordered
    shard_size: int
    stop_step: int | None
    rebalance: bool = False


def open_source(worker: Worker, trained: Trained, wanted: Wanted, *, seed: int) -> Source:
    """Makes the data known to the coordinator, attaches it to the task, and opens it here."""
    if isinstance(trained, Mapping):
        return _open_mixture(worker, trained, wanted, seed)
    name, spec, dataset = _known(worker, trained, seed)
    feed = _attach(worker, name, spec, wanted)
    order = order_of(spec, feed)
    stop_step = order.steps_for(feed.epochs, drop_tail=wanted.drop_tail) if feed.epochs else None
    return Source(name, dataset, order, spec.shard_size, stop_step, wanted.rebalance)


def open_leased(
    worker: Worker, trained: One, epochs: int, *, seed: int
) -> tuple[str, DatasetSpec, Dataset]:
    """Makes the data known to the coordinator, and has its shards handed out by lease."""
    name, spec, dataset = _known(worker, trained, seed)
    request = build(pb.AttachDataset, dataset_id=name, unit="lease", epochs=epochs)
    session = worker.session
    session.answer(session.ask("attach", request), ATTACH_TIMEOUT_S)
    return name, spec, dataset


def _open_mixture(
    worker: Worker, trained: Mapping[One, float], wanted: Wanted, seed: int
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
    feed = _attach(worker, name, spec, wanted)
    order = MixedOrder([order_of(part, feed) for _, part, _ in parts], weights, seed=seed)
    samples = feed.epochs * spec.total_samples
    steps = samples // feed.global_batch if wanted.drop_tail else -(-samples // feed.global_batch)
    stop_step = steps if feed.epochs else None
    return Source(name, mixed, order, spec.shard_size, stop_step, wanted.rebalance)


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
            f"{type(each).__name__} is nothing to train on",
            hint="give the id of a registered dataset, or open_dataset(path), or several with "
            "their weights",
        )
    request = build(pb.GetDatasetRequest, dataset_id=each)
    answer = worker.connection.call("GetDataset", request, pb.RegisterDatasetRequest)
    spec = datasets.spec_of(answer)
    return each, spec, open_spec(each, spec)


def _register(worker: Worker, name: str, spec: DatasetSpec) -> None:
    request = datasets.dataset_message(name, spec)
    worker.connection.call("RegisterDataset", request, pb.RegisterDatasetResponse)


def _attach(worker: Worker, name: str, spec: DatasetSpec, wanted: Wanted) -> Feed:
    """The task trains on the dataset from now on, all workers alike.

    Which lanes are this worker's is told at once, or with the next generation if this one is over.
    """
    remote = "://" in spec.path
    request = build(
        pb.AttachDataset,
        dataset_id=name,
        unit="lane",
        batch_size=wanted.batch_size,
        global_batch=wanted.global_batch,
        epochs=wanted.epochs,
        lanes=wanted.lanes,
        mode=wanted.mode or ("window" if remote else "global"),
        window=wanted.window,
        rebalance=wanted.rebalance,
    )
    session, membership = worker.session, worker.membership
    feed = session.answer(session.ask("attach", request), ATTACH_TIMEOUT_S).feed
    told = session.wait_for(
        lambda: name in membership.attached or membership.changed, ATTACH_TIMEOUT_S
    )
    if not told:
        raise Conflict(f"the coordinator does not say which lanes of {name!r} are this worker's")
    return Feed(
        name,
        "lane",
        feed.count,
        feed.global_batch,
        feed.epochs,
        mode=datasets.MODES[feed.mode],
        window=feed.window,
    )
