"""The batches of one worker: an iterator over steps, read ahead in the background.

The samples of a step are computed from its number (`core/order`), so the step is the only cursor:
`state_dict` holds the step and a description of the order, and `seek`, rollback and resume cost
nothing. A thread reads ahead while the caller computes, bounded in bytes and steps (`read_ahead`).
More threads or processes help only where decoding is expensive, and formats that decode have their
own. With `prefetch_bytes=0` no thread is started.

Lanes may change from a given step on. Batches that were read ahead for later steps keep the rows of
lanes that remain, and only the missing rows are read. (With a transform they are read again, since
a transform may have mixed the rows.)

An error belongs to its step: the batches before it are returned first, then the error is raised,
and the next call tries the same step again.

`ShardReader` returns the samples of one leased shard as batches, and reads one batch ahead.
"""

import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, SupportsIndex

import msgspec

from strata.core.order import Integers, digest
from strata.data.reading.lane_transforms import Transform, stateless
from strata.data.reading.read_ahead import ReadAhead
from strata.data.reading.step_reader import (
    BatchRecord,
    OnSkip,
    Ordered,
    Readable,
    StepReader,
    require_same_order,
)
from strata.data.source_dataset import OnError, skipping
from strata.errors import InvalidArgument, NotAllowedNow

DEFAULT_PREFETCH_BYTES = 64 << 20


class Batches(Iterator[Any]):
    """Steps `start_step` to `stop_step` (exclusive; None: no end) of some lanes (None: all)."""

    def __init__(
        self,
        dataset: Readable,
        order: Ordered,
        lanes: Sequence[int] | None = None,
        start_step: int = 0,
        stop_step: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        transform: Transform | None = None,
        prefetch_bytes: int = DEFAULT_PREFETCH_BYTES,
        on_error: OnError = "raise",
        on_skip: OnSkip | None = None,
        contents: bool = False,
    ) -> None:
        if start_step < 0 or (stop_step is not None and stop_step < start_step):
            raise InvalidArgument(
                f"cannot read steps {start_step} to {stop_step}",
                hint="start_step must be 0 or more, and stop_step must not be smaller",
            )
        if not isinstance(prefetch_bytes, SupportsIndex) or prefetch_bytes < 0:
            raise InvalidArgument(
                f"prefetch_bytes is {prefetch_bytes!r:.80}",
                hint="give a number of bytes; 0 reads each batch when it is requested",
            )
        self.order = order
        wanted = dataset.checked_columns(columns)
        reader = StepReader(dataset, order, wanted, transform, stop_step)
        reader.on_skip = skipping(on_error, on_skip)
        reader.contents = contents
        self._ahead = ReadAhead(reader, start_step, stop_step, prefetch_bytes)
        self._ahead.set_lanes(lanes, start_step)
        # The thread must not keep an iterator alive that nothing else refers to.
        self._finalizer = weakref.finalize(self, self._ahead.close)

    @property
    def step(self) -> int:
        """The step of the next batch."""
        return self._ahead.step

    @property
    def reading(self) -> int:
        """The step that is being read ahead."""
        return self._ahead.reading

    @property
    def taken(self) -> BatchRecord | None:
        """The record of the batch that was returned last, or None."""
        return self._ahead.taken

    def __next__(self) -> Any:
        return self._ahead.take()

    def lanes_at(self, step: int) -> Sequence[int] | None:
        return self._ahead.lanes_at(step)

    def samples_of(self, step: int) -> Integers:
        """The samples of the dataset in a step's batch, in its order."""
        return self.order.samples(self.order.positions(step, step + 1, self.lanes_at(step))[0])

    def digest_of(self, step: int) -> int:
        """An eight-byte digest of what this worker trains in a step; the digests of all workers add
        up.
        """
        positions = self.order.positions(step, step + 1, self.lanes_at(step))[0]
        return digest(positions, self.order.samples(positions))

    def set_lanes(self, lanes: Sequence[int] | None, from_step: int) -> None:
        """Use other lanes from a step on, which must not have been returned yet."""
        if from_step < self.step:
            raise NotAllowedNow(
                f"step {from_step} was already returned; the next is {self.step}",
                hint="call seek() first to go back",
            )
        self._ahead.set_lanes(lanes, from_step)

    def seek(self, step: int) -> None:
        """Continue at another step, earlier or later."""
        if step < 0:
            raise InvalidArgument(f"step is {step}", hint="give a step of 0 or more")
        self._ahead.seek(step)

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "order": msgspec.to_builtins(self.order.spec)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where the state was saved; raises if the order is a different one."""
        require_same_order(self.order, state)
        self.seek(int(state["step"]))

    def close(self) -> None:
        """Stop reading ahead and discard what was read. May be called more than once."""
        self._finalizer()

    def __enter__(self) -> "Batches":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class ShardReader:
    """Reads samples in a given order, one batch ahead, in a thread of its own."""

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
        """Stop reading ahead. May be called more than once."""
        self._pool.shutdown(cancel_futures=True)

    def _read(self, samples: Integers) -> Any:
        batch, _ = self._dataset.gather(samples, self._columns, self._on_skip)
        return batch if self._transform is None else self._transform(batch)
