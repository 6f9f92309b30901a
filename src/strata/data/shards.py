"""The samples of one shard as batches, the next one read while the present one is trained."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from strata.core.order import Integers
from strata.data.per_lane import Transform, stateless
from strata.data.steps import OnSkip, Readable


class ShardReader:
    """Reads samples in a given order, some at a time; one batch ahead, in a thread of its own."""

    def __init__(
        self,
        dataset: Readable,
        batch_size: int,
        columns: Sequence[str] | None,
        transform: Transform | None,
        on_skip: OnSkip | None,
    ) -> None:
        self._dataset, self._batch_size = dataset, batch_size
        self._columns = dataset.checked_columns(columns)
        self._transform, self._on_skip = stateless(transform), on_skip
        self._pool = ThreadPoolExecutor(1, "strata-shards")

    def batches(self, samples: Integers) -> Iterator[Any]:
        """The samples, `batch_size` at a time; the last batch may be smaller."""
        parts = [
            samples[first : first + self._batch_size]
            for first in range(0, len(samples), self._batch_size)
        ]
        ahead = self._pool.submit(self._read, parts[0])
        for following in parts[1:]:
            ready, ahead = ahead.result(), self._pool.submit(self._read, following)
            yield ready
        yield ahead.result()

    def close(self) -> None:
        """Stops reading ahead. Harmless when repeated."""
        self._pool.shutdown(cancel_futures=True)

    def _read(self, samples: Integers) -> Any:
        batch, _ = self._dataset.gather(samples, self._columns, self._on_skip)
        return batch if self._transform is None else self._transform(batch)
