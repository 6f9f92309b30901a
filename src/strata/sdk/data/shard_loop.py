"""`run.shards`: asynchronous training on leased shards, each worker at its own pace.

    for shard in run.shards("imagenet-1k", batch_size=32, epochs=3):
        for batch in shard:
            train_step(state, batch)

The coordinator leases a shard to one worker. The shard is complete when its last batch was taken
and the script requests the next shard. A shard that is left earlier is returned and leased again,
as are the shards of a lost worker. Work of a worker after it was declared lost never counts: it has
a new incarnation then, which holds no leases.

Workers do not wait for each other, except when the membership changes: all enter the new generation
between two batches. How the models are combined (`run.average` from time to time, a parameter
server) is up to the script.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any, SupportsFloat

from strata.core.datasets.shard_leases import samples_in
from strata.core.order import Integers, digest
from strata.core.state import DatasetSpec
from strata.core.workers.worker_facts import BatchesAssigned, TrainingFinished, TrainingStarted
from strata.data.reading.batch_iterator import ShardReader
from strata.data.source_dataset import skipping
from strata.errors import Fenced, InvalidArgument, NotAllowedNow
from strata.sdk.data.loop_source import One, ReadOptions, open_leased, recorded_skip
from strata.sdk.session.run_worker import RunWorker
from strata.sdk.steps.step_block import StepTime, Timing
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

RETRY_S = 0.2


class LeasedShard(Iterator[Any]):
    """One shard, as an iterator of its batches. Made by `run.shards`."""

    def __init__(
        self, lease: pb.Lease, samples: Integers, batches: Iterator[Any], times: StepTime
    ) -> None:
        self.lease_id: int = lease.lease_id
        self.number: int = lease.shard.shard_id
        self.epoch: int = lease.shard.epoch
        self.samples = samples
        self.exhausted = False
        self._batches, self._times = batches, times

    def __len__(self) -> int:
        return len(self.samples)

    def __next__(self) -> Any:
        try:
            with Timing(self._times, "data"):
                return next(self._batches)
        except StopIteration:
            self.exhausted = True
            raise


class RunShards(Iterator[LeasedShard]):
    """The shards of one worker. Made by `run.shards`; for the training thread."""

    def __init__(
        self,
        worker: RunWorker,
        name: str,
        spec: DatasetSpec,
        reader: ShardReader,
        enter: Callable[[], bool],
        times: StepTime,
    ) -> None:
        self.name, self.epoch = name, 0
        self._worker, self._spec = worker, spec
        self._reader, self._enter, self._times = reader, enter, times
        self._current: LeasedShard | None = None
        self._newest = 0
        self._incarnation = worker.session.identity.incarnation

    def __next__(self) -> LeasedShard:
        self._settle()
        while self._enter():
            if self._is_new_incarnation():
                self._incarnation, self._newest = self._worker.session.identity.incarnation, 0
            lease = self._acquire()
            if lease.lease_id:
                return self._begin(lease)
            if lease.ended:
                break
            self._worker.session.wait_for(self._stopping, RETRY_S)
        raise StopIteration

    @property
    def key(self) -> str:
        """Empty: each worker trains its own shards, so there is no common loop."""
        return ""

    @property
    def batch(self) -> str:
        """The id of the current shard, or an empty string."""
        return self._batch(self._current) if self._current is not None else ""

    @property
    def samples(self) -> int:
        """Zero: shards have no weight in a common step."""
        return 0

    def finished(self, step: int, loss: SupportsFloat | None, averaged: int = 0) -> None:
        """Do nothing: shards are not trained in common steps."""

    def close(self) -> None:
        """Return an unfinished shard, and stop prefetching."""
        self._settle()
        self._reader.close()

    def _stopping(self) -> bool:
        return bool(self._worker.membership.stopping)

    def _acquire(self) -> pb.Lease:
        session = self._worker.session
        asked = pb.AcquireLease(dataset_id=self.name, after=self._newest)
        try:
            return session.answer(session.ask("acquire_lease", asked)).lease
        except Fenced as error:
            log.debug("no shard was leased to a lost incarnation: %s", error)
            return pb.Lease()

    def _begin(self, lease: pb.Lease) -> LeasedShard:
        samples = samples_in(self._spec, lease.shard.shard_id, lease.shard.epoch)
        shard = LeasedShard(lease, samples, self._batches(samples), self._times)
        self._current, self._newest, self.epoch = shard, shard.lease_id, shard.epoch
        generation = self._worker.membership.place.generation
        self._worker.recorder.emit(
            BatchesAssigned(
                dataset=self.name,
                step=-1,
                generation=generation,
                lanes=[],
                first_batch=self._batch(shard),
                last_batch=self._batch(shard),
                batches=1,
                samples=len(shard),
            )
        )
        self._worker.recorder.emit(
            TrainingStarted(
                batch=self._batch(shard),
                dataset=self.name,
                generation=generation,
                samples=len(shard),
            )
        )
        return shard

    def _batches(self, samples: Integers) -> Iterator[Any]:
        """The batches; a new generation is entered between two, and a stop ends them early."""
        for batch in self._reader.batches(samples):
            if not self._enter():
                return self._return_early("asked to stop")
            if self._is_new_incarnation():
                self._current = None  # the lease belonged to the old incarnation
                return
            yield batch

    def _settle(self) -> None:
        """Return the current shard, complete or not."""
        shard = self._current
        if shard is None:
            return
        if not shard.exhausted:
            return self._return_early("left before its end")
        self._return(shard, consumed=True, reason="trained")
        self._worker.recorder.emit(
            TrainingFinished(
                batch=self._batch(shard),
                step=-1,
                dataset=self.name,
                generation=self._worker.membership.place.generation,
                samples=len(shard),
                digest=digest(shard.samples, shard.samples),
            )
        )

    def _return_early(self, reason: str) -> None:
        if self._current is not None:
            self._return(self._current, consumed=False, reason=reason)

    def _return(self, shard: LeasedShard, *, consumed: bool, reason: str) -> None:
        self._current = None
        session = self._worker.session
        asked = pb.ReturnLease(
            dataset_id=self.name, lease_id=shard.lease_id, consumed=consumed, reason=reason
        )
        try:
            session.answer(session.ask("return_lease", asked))
        except (Fenced, NotAllowedNow) as error:
            reason = error.message
            log.warning("shard %d of %s will be leased again: %s", shard.number, self.name, reason)

    def _is_new_incarnation(self) -> bool:
        """Whether this is a new incarnation, which holds no leases."""
        return self._worker.session.identity.incarnation != self._incarnation

    def _batch(self, shard: LeasedShard) -> str:
        return f"{self.name}/{shard.epoch}/{shard.number}"


def open_shards(
    worker: RunWorker,
    trained: One,
    batch_size: int,
    epochs: int,
    reading: ReadOptions,
    enter: Callable[[], bool],
    times: StepTime,
    *,
    seed: int,
) -> RunShards:
    """Open a dataset whose shards the coordinator leases to the task's workers."""
    if batch_size <= 0:
        raise InvalidArgument(f"run.shards got batch_size={batch_size}", hint="use at least 1")
    name, spec, dataset = open_leased(worker, trained, epochs, seed=seed)
    on_skip = skipping(reading.on_error, recorded_skip(worker))
    reader = ShardReader(dataset, batch_size, reading.columns, reading.transform, on_skip)
    feed = RunShards(worker, name, spec, reader, enter, times)
    dataset.read_for(lambda: feed.batch)
    return feed
