"""Previews: a few samples that each worker processes, shown to people and never recorded.

A worker sends some samples of its newest batch now and then; the last ones replace the earlier
ones. Samples per worker, workers per dataset and datasets are limited. After a restart there are no
previews until the workers send them again.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import TypeVar

import msgspec
import numpy as np

from strata.coordinator.rest.response_models import Sample
from strata.core.datasets.dataset_rules import order_of
from strata.core.datasets.epoch_shards import EpochShards
from strata.core.order import MAX_POSITION
from strata.core.state import Cluster, Dataset, DatasetSpec
from strata.core.task_state import Feed
from strata.errors import UNDECODABLE, InvalidArgument

MAX_PREVIEW_BYTES = 64 << 10
MAX_SAMPLES = 8
MAX_WORKERS = 64
MAX_DATASETS = 64

Kept = TypeVar("Kept")


class Previews:
    """The last samples of each worker, by dataset."""

    def __init__(self) -> None:
        self._datasets: OrderedDict[str, OrderedDict[str, list[Sample]]] = OrderedDict()

    def note(self, dataset: str, worker: str, samples: str) -> None:
        """Store the samples that a worker sent; raises if they are invalid or too large."""
        if len(samples) > MAX_PREVIEW_BYTES:
            raise InvalidArgument(
                f"the preview has {len(samples)} bytes",
                hint=f"send at most {MAX_PREVIEW_BYTES} bytes",
            )
        try:
            sent = msgspec.json.decode(samples, type=list[Sample])
        except UNDECODABLE as error:
            raise InvalidArgument(
                f"the preview is not a list of samples: {error}",
                hint="send the JSON that the SDK sends",
            ) from error
        if any(sample.position > MAX_POSITION for sample in sent):
            raise InvalidArgument(
                "a sample of the preview has a position that is too large",
                hint=f"positions are at most {MAX_POSITION}",
            )
        workers = self._datasets.setdefault(dataset, OrderedDict())
        workers[worker] = [
            msgspec.structs.replace(sample, worker_id=worker) for sample in sent[:MAX_SAMPLES]
        ]
        _keep_newest(workers, worker, MAX_WORKERS)
        _keep_newest(self._datasets, dataset, MAX_DATASETS)

    def newest(self, dataset: str, limit: int) -> list[Sample]:
        """Up to `limit` samples: first one of each worker, then a second of each, and so on."""
        workers = list(reversed(self._datasets.get(dataset, {}).values()))
        turns = (
            samples[turn]
            for turn in range(MAX_SAMPLES)
            for samples in workers
            if turn < len(samples)
        )
        return [sample for sample, _ in zip(turns, range(limit), strict=False)]

    def placed(self, state: Cluster, dataset: Dataset, limit: int) -> list[Sample]:
        """Up to `limit` samples with their shards in the present assignment.

        Samples whose lane has moved to another worker are omitted: that worker trains them.
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
        """Delete the samples of a worker."""
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
