"""The batches of an IterableDataset in a run (see `iterable_dataset` for the guarantees).

A step is `collate_fn` of the stream's samples that belong to this worker's lanes. The stream ends
with the last complete step of an epoch; `seek` to the first step of the next epoch starts it again.
"""

import logging
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import xxhash

from strata.core.order import Integers, digest
from strata.core.state import STREAM_SAMPLES
from strata.data.reading.lane_transforms import Transform
from strata.data.reading.step_reader import OnSkip, Ordered
from strata.data.source_dataset import OnError
from strata.data.torch.iterable_dataset import TorchStream
from strata.data.torch.loader_adapter import data_loader, import_torch
from strata.data.torch.loader_engine import LoadedStep, LoaderStream, StepRequests, unchanged
from strata.data.torch.map_engine import Collate, SampleLoading, collated, require_supported
from strata.data.torch.sample_digests import sample_digest
from strata.data.torch.sample_seeds import restored_generators
from strata.errors import Corrupt, InvalidArgument, StrataError

log = logging.getLogger(__name__)


class StreamLoading(SampleLoading):
    """An engine that reads a `TorchStream`; the options are those of `DataLoader`."""

    def __init__(self, *arguments: Any, drop_last: bool = False, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if self.num_workers > 1:
            raise InvalidArgument(
                f"num_workers is {self.num_workers}, and a stream is read by one process",
                hint="give num_workers=1, or a Dataset with __len__ and __getitem__, which "
                "several processes can read",
            )
        self._drop_last = drop_last
        # The process keeps its position in the stream when the lanes change.
        self._ahead["persistent_workers"] = self.num_workers > 0

    def __call__(  # type: ignore[override]
        self,
        dataset: TorchStream,
        order: Ordered,
        lanes: Sequence[int] | None = None,
        start_step: int = 0,
        stop_step: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        transform: Transform | None = None,
        on_error: OnError = "raise",
        on_skip: OnSkip | None = None,
        contents: bool = False,
        **_: object,
    ) -> "SequentialStream":
        require_supported(dataset, TorchStream, transform=transform, contents=contents)
        dataset.checked_columns(columns)
        if on_error != "raise":
            raise InvalidArgument(
                f"dataset {dataset.name!r} is a stream, which cannot leave samples out",
                hint='leave on_error at "raise", and skip bad samples in __iter__',
            )
        collate = self._collate or import_torch("torch.utils.data").default_collate
        requests = StepRequests(order, lanes, start_step, stop_step)
        kept = 2 + self.num_workers * (self._ahead["prefetch_factor"] or 2)
        loader = data_loader(
            _StreamSteps(dataset, order, collate, kept),
            batch_size=None,
            sampler=requests,
            collate_fn=unchanged,
            **self.process_options(),
        )
        return SequentialStream(dataset, requests, loader, quiet=self._drop_last)


class SequentialStream(LoaderStream):
    """The batches of a stream; its state includes a digest of what was read in the epoch up to its
    step.
    """

    def __init__(
        self, dataset: TorchStream, requests: StepRequests, loader: Any, *, quiet: bool
    ) -> None:
        super().__init__(dataset, requests, loader, None, self._checked)
        self._name, self._quiet = dataset.name, quiet
        self._read = ""
        self._expected: tuple[int, str] | None = None

    def _sent(self) -> LoadedStep:
        sent = super()._sent()
        if sent.batch is None:
            if sent.content and not self._quiet:
                self._quiet = True
                log.warning(
                    "dataset %s: the last %d samples of the stream are left out, since they do "
                    "not fill a step",
                    self._name,
                    sent.content,
                )
            raise StopIteration
        return sent

    def _checked(self, sent: tuple[Any, str, str]) -> Any:
        """The batch, after checking that what was read before it matches the state."""
        batch, before, after = sent
        if self._expected is not None and self._expected[0] == self.step:
            if self._expected[1] != before:
                raise Corrupt(
                    f"dataset {self._name!r}: the stream before step {self.step} differs "
                    "from the one that was read when the state was saved",
                    hint="resume with a stream that returns the same samples each time",
                )
            self._expected = None
        self._read = after
        return batch

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "read": self._read}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where the state was saved; raises if the order is a different one."""
        super().load_state_dict(state)
        if state.get("read"):
            self._expected = (int(state["step"]), str(state["read"]))


class _StreamSteps:
    """The dataset of the `DataLoader`, with a step as an item. Keeps its position in the stream."""

    def __init__(self, stream: TorchStream, order: Ordered, collate: Collate, kept: int) -> None:
        self._stream, self._order, self._collate = stream, order, collate
        self.samples = stream.samples
        self._global_batch = order.positions(0, 1).size
        self._epoch = 0
        self._iterator: Iterator[Any] | None = None
        self._next = 0  # the next step of the epoch to read
        self._rolling: Any = None  # an xxhash object, which cannot be pickled
        self._recent: deque[tuple[int, list[Any], str, str]] = deque(maxlen=kept)
        self._seen: array[int] = array("Q")
        self._left_over: int | None = None

    def __getitem__(self, asked: tuple[int, Sequence[int] | None]) -> LoadedStep:
        step, lanes = asked
        positions = self._order.positions(step, step + 1, lanes)[0]
        samples = self._order.samples(positions)
        sent, failure, left_over = None, None, 0
        try:
            with restored_generators():
                whole = self._whole(*self._place(step))
                if whole is None:
                    left_over = self._left_over or 0
                else:
                    sent = self._batch(step, positions, samples, whole)
        except StrataError as error:
            self._iterator = None  # the stream is read again when the step is requested again
            failure = error
        return LoadedStep(
            batch=sent,
            samples=samples,
            digest=digest(positions, samples),
            content=0 if sent is not None else left_over,
            skipped=[],
            error=failure,
        )

    def _place(self, step: int) -> tuple[int, int]:
        """The epoch of a step, and its number within the epoch."""
        epoch, first = divmod(step * self._global_batch, STREAM_SAMPLES)
        if first % self._global_batch:
            raise InvalidArgument(
                f"dataset {self._stream.name!r}: a stream cannot be read for several epochs with "
                f"a global batch of {self._global_batch}",
                hint=f"choose a global batch that divides {STREAM_SAMPLES}, whose factors are 2, "
                "3, 5, 7, 11, 13, 17 and 19",
            )
        return epoch, first // self._global_batch

    def _batch(
        self, step: int, positions: Integers, samples: Integers, whole: tuple[list[Any], str, str]
    ) -> tuple[Any, str, str]:
        items, before, after = whole
        chosen = [items[place] for place in (samples % self._global_batch).tolist()]
        batch = collated(self._stream, self._order, self._collate, step, positions, chosen)
        return batch, before, after

    def _whole(self, epoch: int, step: int) -> tuple[list[Any], str, str] | None:
        """All samples of an epoch's step, and digests of what was read before it and up to it.

        None after the last complete step.
        """
        if epoch != self._epoch:
            self._epoch, self._iterator = epoch, None
            self._seen = array("Q")
        for number, items, before, after in self._recent if self._iterator is not None else ():
            if number == step:
                return items, before, after
        if self._iterator is None or step < self._next:
            self._begin()
        while self._next <= step:
            if self._left_over is not None or not self._advance():
                return None
        return self._recent[-1][1:]

    def _begin(self) -> None:
        self._iterator = self._stream.read(self._epoch)
        self._next, self._left_over = 0, None
        self._rolling = xxhash.xxh3_64()
        self._recent.clear()

    def _advance(self) -> bool:
        """Read the next complete step; False if the stream ends before it is complete."""
        assert self._iterator is not None, "a pass has begun"
        step, before = self._next, self._rolling.hexdigest()
        items = list(islice(self._iterator, self._global_batch))
        if len(items) < self._global_batch:
            self._left_over = len(items)
            self._require_same_end(step)
            return False
        for item in items:
            self._rolling.update(sample_digest(item).encode())
        self._compare(step, self._rolling.intdigest())
        self._recent.append((step, items, before, self._rolling.hexdigest()))
        self._next += 1
        return True

    def _compare(self, step: int, found: int) -> None:
        """Raise if this process read the step before and got other samples."""
        if step == len(self._seen):
            self._seen.append(found)
        elif self._seen[step] != found:
            raise self._changed(step)

    def _require_same_end(self, step: int) -> None:
        if step < len(self._seen):
            raise self._changed(step)

    def _changed(self, step: int) -> Corrupt:
        return Corrupt(
            f"dataset {self._stream.name!r}: the stream returned other samples in step {step} "
            "than when it was read before",
            hint="__iter__ must return the same samples each time; draw random numbers from "
            "random, numpy.random or torch, which the run seeds",
        )
