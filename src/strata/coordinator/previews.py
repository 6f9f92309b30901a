"""What workers have before them: a few samples each, shown to people and never recorded.

A worker sends some of its newest batch now and then; the newest stands for the worker. Everything
is bounded: what one worker may send, and of how many workers a dataset keeps it. After a restart it
is empty until the workers have spoken again.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import TypeVar

import msgspec
import numpy as np
from msgspec import Struct

from strata.core.datasets import Dataset, DatasetSpec, Feed, order_of
from strata.core.epoch_shards import EpochShards
from strata.core.order import MAX_POSITION
from strata.core.state import Cluster
from strata.errors import InvalidArgument

MAX_PREVIEW_BYTES = 64 << 10
MAX_SAMPLES = 8
MAX_WORKERS = 64
MAX_DATASETS = 64

Kept = TypeVar("Kept")


class Sample(Struct, frozen=True):
    """A sample that a worker processes. A feature is a value, or `{"kind", …}` for what is larger:
    an array, bytes, or an image as a PNG thumbnail.

    `shard_id` and `place` say where the sample is in the shards of its epoch: `place` is between
    the `start_index` and the `end_index` of the shard. `position` counts through all epochs.
    """

    id: str
    features: dict[str, object]
    label: object = None
    shard_id: int = 0
    worker_id: str = ""
    step: int = 0
    position: int = -1
    epoch: int = 0
    place: int | None = None


class Previews:
    """The newest samples of the workers that sent some last, by dataset."""

    def __init__(self) -> None:
        self._datasets: OrderedDict[str, OrderedDict[str, list[Sample]]] = OrderedDict()

    def note(self, dataset: str, worker: str, samples: str) -> None:
        """Takes in what a worker sent; refuses what is no list of samples, or too much."""
        if len(samples) > MAX_PREVIEW_BYTES:
            raise InvalidArgument(
                f"a preview of {len(samples)} bytes", hint=f"send {MAX_PREVIEW_BYTES} at most"
            )
        try:
            sent = msgspec.json.decode(samples, type=list[Sample])
        except msgspec.DecodeError as error:
            raise InvalidArgument(
                f"the preview is no list of samples: {error}",
                hint="send the JSON that the SDK sends",
            ) from error
        if any(sample.position > MAX_POSITION for sample in sent):
            raise InvalidArgument(
                "a sample of the preview has no position in any order",
                hint=f"positions are at most {MAX_POSITION}",
            )
        workers = self._datasets.setdefault(dataset, OrderedDict())
        workers[worker] = [
            msgspec.structs.replace(sample, worker_id=worker) for sample in sent[:MAX_SAMPLES]
        ]
        _keep_newest(workers, worker, MAX_WORKERS)
        _keep_newest(self._datasets, dataset, MAX_DATASETS)

    def newest(self, dataset: str, limit: int) -> list[Sample]:
        """Up to `limit` samples, one of each worker first, then their second, and so on."""
        workers = list(reversed(self._datasets.get(dataset, {}).values()))
        turns = (
            samples[turn]
            for turn in range(MAX_SAMPLES)
            for samples in workers
            if turn < len(samples)
        )
        return [sample for sample, _ in zip(turns, range(limit), strict=False)]

    def placed(self, state: Cluster, dataset: Dataset, limit: int) -> list[Sample]:
        """The same, with their shards, as the assignment of now has them.

        Samples whose lane has moved to another worker since are left out: that worker trains them.
        """
        kept: list[Sample] = []
        for sample in self.newest(dataset.id, MAX_SAMPLES * MAX_WORKERS):
            worker = state.workers.get(sample.worker_id)
            feed = state.tasks[worker.task].feeds.get(dataset.id) if worker is not None else None
            if feed is None or feed.unit != "lane" or sample.position < 0:
                kept.append(sample)
            else:
                kept += _placed(dataset.spec, feed, sample)
            if len(kept) == limit:
                break
        return kept

    def forget(self, worker: str) -> None:
        """A worker is gone, and processes nothing."""
        for workers in self._datasets.values():
            workers.pop(worker, None)


def _placed(spec: DatasetSpec, feed: Feed, sample: Sample) -> Iterator[Sample]:
    found = EpochShards(spec, feed, order_of(spec, feed)).find(np.array([sample.position]))
    if found.lanes[0] in feed.holdings.get(sample.worker_id, ()):
        yield msgspec.structs.replace(
            sample, shard_id=found.shards[0], epoch=found.epochs[0], place=found.places[0]
        )


def _keep_newest(kept: OrderedDict[str, Kept], newest: str, most: int) -> None:
    kept.move_to_end(newest)
    if len(kept) > most:
        kept.popitem(last=False)
