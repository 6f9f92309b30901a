"""`run.shards`: asynchronous training, a shard at a time, each worker at its own pace.

    for shard in run.shards("imagenet-1k", batch_size=32, epochs=3):
        for batch in shard:
            train_step(state, batch)

The coordinator leases a shard to one worker. It counts when its last batch was taken and the script
comes back for the next shard; one that was left in the middle is given back and goes out again, as
do the shards of a worker that is lost. What a worker trained after it was declared lost never
counts: it is a new incarnation then, and its leases are not its own any more.

No two workers wait for each other, except where the membership changes: everyone enters the new
generation between two batches. What is made of the workers' models (`run.average` now and then, a
parameter server) is the script's to say.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any, SupportsFloat

from strata.core.datasets import DatasetSpec
from strata.core.order import Integers, digest
from strata.core.shard_order import samples_in
from strata.core.worker_facts import BatchesAssigned, TrainingFinished, TrainingStarted
from strata.data.dataset import skipping
from strata.data.shards import ShardReader
from strata.errors import Fenced, InvalidArgument, NotAllowedNow
from strata.sdk.reading import Reading, recorded_skip
from strata.sdk.sources import One, open_leased
from strata.sdk.steptime import StepTime, Timing
from strata.sdk.worker import Worker
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

ASK_AGAIN_S = 0.2


class Shard(Iterator[Any]):
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


class RunShards(Iterator[Shard]):
    """The shards of one worker. Made by `run.shards`; for the training thread."""

    def __init__(
        self,
        worker: Worker,
        name: str,
        spec: DatasetSpec,
        reader: ShardReader,
        enter: Callable[[], bool],
        times: StepTime,
    ) -> None:
        self.name, self.epoch = name, 0
        self._worker, self._spec = worker, spec
        self._reader, self._enter, self._times = reader, enter, times
        self._present: Shard | None = None
        self._newest = 0
        self._incarnation = worker.session.identity.incarnation

    def __next__(self) -> Shard:
        self._settle()
        while self._enter():
            if self._became_another():
                self._incarnation, self._newest = self._worker.session.identity.incarnation, 0
            lease = self._acquired()
            if lease.lease_id:
                return self._begin(lease)
            if lease.ended:
                break
            self._worker.session.wait_for(self._stopping, ASK_AGAIN_S)
        raise StopIteration

    @property
    def key(self) -> str:
        """Shards are trained by each worker alone, so they are no common loop."""
        return ""

    @property
    def batch(self) -> str:
        """The id of the shard that is trained, or nothing."""
        return self._batch(self._present) if self._present is not None else ""

    @property
    def samples(self) -> int:
        """Shards are trained by each worker alone, so they give a common step no weight."""
        return 0

    def finished(self, step: int, loss: SupportsFloat | None, averaged: int = 0) -> None:
        """Steps are the script's own business here."""

    def close(self) -> None:
        """Gives back what was not trained to its end, and stops reading ahead."""
        self._settle()
        self._reader.close()

    def _stopping(self) -> bool:
        return bool(self._worker.membership.stopping)

    def _acquired(self) -> pb.Lease:
        session = self._worker.session
        asked = pb.AcquireLease(dataset_id=self.name, after=self._newest)
        try:
            return session.answer(session.ask("acquire_lease", asked)).lease
        except Fenced as error:
            log.debug("no shard for an incarnation that is over: %s", error)
            return pb.Lease()

    def _begin(self, lease: pb.Lease) -> Shard:
        samples = samples_in(self._spec, lease.shard.shard_id, lease.shard.epoch)
        shard = Shard(lease, samples, self._following(samples), self._times)
        self._present, self._newest, self.epoch = shard, shard.lease_id, shard.epoch
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

    def _following(self, samples: Integers) -> Iterator[Any]:
        """The batches, with the membership taken up between them; they end early at a stop."""
        for batch in self._reader.batches(samples):
            if not self._enter():
                return self._give_back("asked to stop")
            if self._became_another():
                self._present = None  # the lease went with the incarnation
                return
            yield batch

    def _settle(self) -> None:
        """The script is through with the present shard, or has left it in the middle."""
        shard = self._present
        if shard is None:
            return
        if not shard.exhausted:
            return self._give_back("left before its end")
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

    def _give_back(self, reason: str) -> None:
        if self._present is not None:
            self._return(self._present, consumed=False, reason=reason)

    def _return(self, shard: Shard, *, consumed: bool, reason: str) -> None:
        self._present = None
        session = self._worker.session
        asked = pb.ReturnLease(
            dataset_id=self.name, lease_id=shard.lease_id, consumed=consumed, reason=reason
        )
        try:
            session.answer(session.ask("return_lease", asked))
        except (Fenced, NotAllowedNow) as error:
            log.warning("shard %d of %s goes out again: %s", shard.number, self.name, error.message)

    def _became_another(self) -> bool:
        """Whether this is a new incarnation, which holds nothing and knows of no lease."""
        return self._worker.session.identity.incarnation != self._incarnation

    def _batch(self, shard: Shard) -> str:
        return f"{self.name}/{shard.epoch}/{shard.number}"


def open_shards(
    worker: Worker,
    trained: One,
    batch_size: int,
    epochs: int,
    reading: Reading,
    enter: Callable[[], bool],
    times: StepTime,
    *,
    seed: int,
) -> RunShards:
    """The shards of a dataset, which the task trains by lease from now on."""
    if batch_size <= 0:
        raise InvalidArgument(f"batch_size is {batch_size}", hint="it must be at least 1")
    name, spec, dataset = open_leased(worker, trained, epochs, seed=seed)
    on_skip = skipping(reading.on_error, recorded_skip(worker))
    reader = ShardReader(dataset, batch_size, reading.columns, reading.transform, on_skip)
    feed = RunShards(worker, name, spec, reader, enter, times)
    dataset.read_for(lambda: feed.batch)
    return feed
