"""What workers have before them: a few samples each, shown to people and never recorded.

A worker sends some of its newest batch now and then; the newest stands for the worker. Everything
is bounded: what one worker may send, and of how many workers a dataset keeps it. After a restart it
is empty until the workers have spoken again.
"""

from collections import OrderedDict
from typing import TypeVar

import msgspec
from msgspec import Struct

from strata.errors import InvalidArgument

MAX_PREVIEW_BYTES = 64 << 10
MAX_SAMPLES = 8
MAX_WORKERS = 64
MAX_DATASETS = 64

Kept = TypeVar("Kept")


class Sample(Struct, frozen=True):
    """A sample that a worker processes. A feature is a value, or `{"kind", …}` for what is larger:
    an array, bytes, or an image as a PNG thumbnail."""

    id: str
    features: dict[str, object]
    label: object = None
    shard_id: int = 0
    worker_id: str = ""
    step: int = 0


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

    def forget(self, worker: str) -> None:
        """A worker is gone, and processes nothing."""
        for workers in self._datasets.values():
            workers.pop(worker, None)


def _keep_newest(kept: OrderedDict[str, Kept], newest: str, most: int) -> None:
    kept.move_to_end(newest)
    if len(kept) > most:
        kept.popitem(last=False)
