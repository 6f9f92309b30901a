"""What is said about datasets and who trains which part of them, from the wire and to it."""

from strata.core.datasets import AttachDataset, DatasetSpec, Feed, Lease, Unit, order_of
from strata.core.epoch_shards import EpochShards
from strata.core.leases import AcquireLease, ReturnLease
from strata.core.order import Mode
from strata.core.sharding import epoch_order
from strata.core.state import Cluster
from strata.errors import InvalidArgument
from strata.wire.v1 import coordinator_pb2 as pb

UNITS: dict[str, Unit] = {"lane": "lane", "shard": "shard", "lease": "lease"}
MODES: dict[str, Mode] = {"global": "global", "window": "window", "sequential": "sequential"}


def spec_of(request: pb.RegisterDatasetRequest) -> DatasetSpec:
    """The dataset that a request describes."""
    return DatasetSpec(
        total_samples=request.total_samples,
        shard_size=request.shard_size,
        shuffle=request.shuffle,
        seed=request.seed,
        name=request.name,
        path=request.path,
        format=request.format,
        fingerprint=request.fingerprint,
        metadata=dict(request.metadata),
    )


def dataset_message(dataset: str, spec: DatasetSpec) -> pb.RegisterDatasetRequest:
    """A dataset for the wire."""
    return pb.RegisterDatasetRequest(
        dataset_id=dataset,
        total_samples=spec.total_samples,
        shard_size=spec.shard_size,
        shuffle=spec.shuffle,
        seed=spec.seed,
        name=spec.name,
        path=spec.path,
        format=spec.format,
        fingerprint=spec.fingerprint,
        metadata=spec.metadata,
    )


def command(
    task: str, worker: str, incarnation: int, message: pb.WorkerMessage
) -> AttachDataset | AcquireLease | ReturnLease:
    """What a worker asks for in its session."""
    kind = message.WhichOneof("body")
    if kind == "attach":
        return _attachment(task, worker, incarnation, message.attach)
    if kind == "acquire_lease":
        asked = message.acquire_lease
        return AcquireLease(
            worker=worker, incarnation=incarnation, dataset=asked.dataset_id, after=asked.after
        )
    returned = message.return_lease
    return ReturnLease(
        worker=worker,
        incarnation=incarnation,
        dataset=returned.dataset_id,
        lease=returned.lease_id,
        consumed=returned.consumed,
        reason=returned.reason or ("trained" if returned.consumed else "given back"),
    )


def answer(
    state: Cluster, task: str, message: pb.WorkerMessage, told: object
) -> pb.CoordinatorMessage:
    """The answer to such a request."""
    if isinstance(told, Feed):
        spec = state.dataset(told.dataset).spec
        attached = feed_message(told, spec)
        loop = state.tasks[task].loops.get(message.attach.loop)
        if loop is not None:
            attached.loop.CopyFrom(pb.Loop(start=loop.start, first=loop.first, steps=loop.steps))
        return pb.CoordinatorMessage(request=message.request, feed=attached)
    if message.WhichOneof("body") == "return_lease":
        return pb.CoordinatorMessage(request=message.request, done=pb.Done())
    dataset = message.acquire_lease.dataset_id
    spec, feed = state.dataset(dataset).spec, state.tasks[task].feeds[dataset]
    lease = told if isinstance(told, Lease) else None
    given = lease_message(dataset, spec, feed, lease)
    return pb.CoordinatorMessage(request=message.request, lease=given)


def _attachment(
    task: str, worker: str, incarnation: int, message: pb.AttachDataset
) -> AttachDataset:
    unit, mode = UNITS.get(message.unit), MODES.get(message.mode or "global")
    if unit is None:
        raise InvalidArgument(f"unit is {message.unit!r}", hint=f"use {', '.join(UNITS)}")
    if mode is None:
        raise InvalidArgument(f"mode is {message.mode!r}", hint=f"use {', '.join(MODES)}")
    return AttachDataset(
        worker=worker,
        incarnation=incarnation,
        task=task,
        dataset=message.dataset_id,
        unit=unit,
        batch_size=message.batch_size,
        global_batch=message.global_batch,
        epochs=message.epochs,
        lanes=message.lanes,
        mode=mode,
        window=message.window,
        rebalance=message.rebalance,
        loop=message.loop,
        loop_epochs=message.loop_epochs,
        step=message.step,
        steps=message.steps,
        drop_tail=message.drop_tail,
        entering=message.entering,
    )


def feed_message(feed: Feed, spec: DatasetSpec) -> pb.Feed:
    """A dataset as a task trains on it."""
    return pb.Feed(
        dataset=dataset_message(feed.dataset, spec),
        unit=feed.unit,
        count=feed.count,
        global_batch=feed.global_batch,
        epochs=feed.epochs,
        mode=feed.mode,
        window=feed.window,
    )


def owned_shards(
    dataset: str, spec: DatasetSpec, feed: Feed, worker: str, epoch: int
) -> list[pb.DataShard]:
    """A worker's shards of a dataset, in the order in which an epoch trains them.

    Of a dataset that is trained step by step they are those of `core.epoch_shards`.
    """
    owned = feed.holdings.get(worker, [])
    if feed.unit != "lane":
        order = epoch_order(owned, spec.seed, epoch) if spec.shuffle else sorted(owned)
        return [shard_message(dataset, spec, feed, number, epoch) for number in order]
    shards = EpochShards(spec, feed, order_of(spec, feed))
    total = shards.count(epoch)
    return [
        pb.DataShard(
            dataset_id=dataset,
            shard_id=shard.id,
            total_shards=total,
            start_index=shard.start or 0,
            end_index=shard.end or 0,
            file_paths=[spec.path] if spec.path else [],
            epoch=epoch,
        )
        for lane in sorted(owned)
        for shard in shards.of_lane(epoch, lane)
    ]


def shard_message(
    dataset: str, spec: DatasetSpec, feed: Feed, number: int, epoch: int
) -> pb.DataShard:
    """One shard of a dataset."""
    start, end = spec.shard_range(number)
    return pb.DataShard(
        dataset_id=dataset,
        shard_id=number,
        total_shards=feed.count,
        start_index=start,
        end_index=end,
        file_paths=[spec.path] if spec.path else [],
        epoch=epoch,
    )


def lease_message(dataset: str, spec: DatasetSpec, feed: Feed, lease: Lease | None) -> pb.Lease:
    """A shard that was handed out; without one, whether there will be another."""
    if lease is None:
        last = bool(feed.epochs) and feed.epoch + 1 >= feed.epochs
        return pb.Lease(ended=last and feed.consumed == feed.count)
    shard = shard_message(dataset, spec, feed, lease.shard, lease.epoch)
    return pb.Lease(lease_id=lease.id, shard=shard)
