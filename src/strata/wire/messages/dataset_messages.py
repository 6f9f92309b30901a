"""Conversion of messages about datasets, shards and leases."""

from strata.core.datasets.dataset_rules import AttachDataset, order_of
from strata.core.datasets.epoch_shards import EpochShards
from strata.core.datasets.lane_owners import epoch_order
from strata.core.datasets.shard_leases import AcquireLease, ReturnLease
from strata.core.order import Mode
from strata.core.state import Cluster, DatasetSpec
from strata.core.task_state import Feed, Lease, Unit
from strata.errors import InvalidArgument
from strata.wire.v1 import coordinator_pb2 as pb

UNITS: dict[str, Unit] = {"lane": "lane", "shard": "shard", "lease": "lease"}
MODES: dict[str, Mode] = {"global": "global", "window": "window", "sequential": "sequential"}


def spec_of(request: pb.RegisterDatasetRequest) -> DatasetSpec:
    """The dataset spec of a request."""
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
    """A dataset as a message."""
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
    """The command of a session message."""
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
        reason=returned.reason or ("trained" if returned.consumed else "returned"),
    )


def answer(
    state: Cluster, task: str, message: pb.WorkerMessage, result: object
) -> pb.CoordinatorMessage:
    """The answer to a session message."""
    if isinstance(result, Feed):
        spec = state.dataset(result.dataset).spec
        attached = feed_message(result, spec)
        loop = state.tasks[task].loops.get(message.attach.loop)
        if loop is not None:
            attached.loop.CopyFrom(pb.Loop(start=loop.start, first=loop.first, steps=loop.steps))
        return pb.CoordinatorMessage(request=message.request, feed=attached)
    if message.WhichOneof("body") == "return_lease":
        return pb.CoordinatorMessage(request=message.request, done=pb.Done())
    dataset = message.acquire_lease.dataset_id
    spec, feed = state.dataset(dataset).spec, state.tasks[task].feeds[dataset]
    lease = result if isinstance(result, Lease) else None
    given = lease_message(dataset, spec, feed, lease)
    return pb.CoordinatorMessage(request=message.request, lease=given)


def _attachment(
    task: str, worker: str, incarnation: int, message: pb.AttachDataset
) -> AttachDataset:
    unit, mode = UNITS.get(message.unit), MODES.get(message.mode or "global")
    if unit is None:
        raise InvalidArgument(f"unknown unit {message.unit!r}", hint=f"use {', '.join(UNITS)}")
    if mode is None:
        raise InvalidArgument(f"unknown mode {message.mode!r}", hint=f"use {', '.join(MODES)}")
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
        until=message.until,
        entering=message.entering,
    )


def feed_message(feed: Feed, spec: DatasetSpec) -> pb.Feed:
    """A task's feed of a dataset as a message."""
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
    """A worker's shards of a dataset, in the order of an epoch.

    For a dataset that is trained step by step these are the shards of `core/datasets/epoch_shards`.
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
    """A lease as a message; without one, whether the dataset is finished."""
    if lease is None:
        last = bool(feed.epochs) and feed.epoch + 1 >= feed.epochs
        return pb.Lease(ended=last and feed.consumed == feed.count)
    shard = shard_message(dataset, spec, feed, lease.shard, lease.epoch)
    return pb.Lease(lease_id=lease.id, shard=shard)
