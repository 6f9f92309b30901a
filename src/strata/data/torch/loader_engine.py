"""An engine of `run.batches` over `torch.utils.data.DataLoader`.

    for batch in run.batches("imagenet-1k", 32, epochs=3, engine=Loading(num_workers=4)):

`DataLoader` is asked for steps, one at a time: its processes read them (`step_reader`) and send
along what has to be recorded: skipped rows and digests. It is recorded when the batch is returned,
so batches that were read ahead and discarded leave no trace. A transform with state
(`lane_transforms`) is applied in the training process, to rows that the worker processes have read,
since it needs the steps in order.

When the lanes change, batches that were read ahead are discarded and read again; worker processes
are kept if `persistent_workers` is set.
"""

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

import msgspec

from strata.core.order import Integers
from strata.data.cache.fetch_observers import OBSERVERS, Fetch
from strata.data.reading.lane_transforms import StatefulTransform, Transform
from strata.data.reading.step_reader import (
    BatchRecord,
    OnSkip,
    Ordered,
    Readable,
    ReadStep,
    StepReader,
    require_same_order,
)
from strata.data.source_dataset import OnError, SkippedRow, skipping
from strata.data.torch.loader_adapter import checked_loading, collate, data_loader, pins
from strata.errors import InvalidArgument, StrataError


class LoadedStep(NamedTuple):
    """A step as a worker process sends it: its batch or its error, and what to record about it."""

    batch: Any
    samples: Integers
    digest: int
    content: int
    skipped: list[SkippedRow]
    error: StrataError | None
    fetched: Sequence[Fetch] = ()


class Loading:
    """An engine for `run.batches`; the options are those of `DataLoader`."""

    def __init__(self, **options: Any) -> None:
        self._options = checked_loading(options)

    def __call__(
        self,
        dataset: Readable,
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
    ) -> "LoaderStream":
        def make(on_skip: OnSkip | None) -> StepReader:
            found = StepReader(dataset, order, wanted, transform, stop_step)
            found.on_skip, found.contents = on_skip, contents
            return found

        wanted = dataset.checked_columns(columns)
        on_skip = skipping(on_error, on_skip)
        options = {"collate_fn": collate(), **self._options}
        if not dataset.forks and options.get("num_workers"):
            options["multiprocessing_context"] = unforked(options.get("multiprocessing_context"))
        made = options.pop("collate_fn")
        here, there = make(on_skip), make(on_skip and _reported_later)
        finish = None
        if here.lane_states is not None:
            finish = _StatefulCollate(here.lane_states, made, pinned=pins(options))
            there.lane_states, made = _Unapplied(), unchanged
        sampler = StepRequests(order, lanes, start_step, stop_step)
        steps = _StepItems(there, made)
        loader = data_loader(
            steps, batch_size=None, sampler=sampler, collate_fn=unchanged, **options
        )
        return LoaderStream(dataset, sampler, loader, on_skip, finish)


class LoaderStream:
    """The batches of a run through a `DataLoader`; for the training thread."""

    def __init__(
        self,
        dataset: Readable,
        sampler: "StepRequests",
        loader: Any,
        on_skip: OnSkip | None,
        finish: Callable[[Any], Any] | None,
    ) -> None:
        self.order, self.step = sampler.order, sampler.step
        self.taken: BatchRecord | None = None
        self._dataset, self._sampler, self._loader = dataset, sampler, loader
        self._on_skip, self._finish = on_skip, finish
        self._iterator: Iterator[LoadedStep] | None = None

    @property
    def reading(self) -> int:
        """The next step; what the worker processes read ahead is not known."""
        return self.step

    def __next__(self) -> Any:
        try:
            sent = self._sent()
            batch = sent.batch if self._finish is None else self._finish(sent.batch)
        except StopIteration:
            raise
        except BaseException:
            self._iterator = None  # the step is read again when it is requested again
            raise
        for row in sent.skipped:
            assert self._on_skip is not None, "rows are skipped only with on_error='skip'"
            self._on_skip(row)
        self.taken = BatchRecord(
            step=self.step, samples=sent.samples, digest=sent.digest, content=sent.content
        )
        self.step += 1
        return batch

    def _sent(self) -> LoadedStep:
        if self._iterator is None:
            self._iterator = self._started()
        sent = next(self._iterator)
        for fetch in sent.fetched:
            OBSERVERS.fetched(fetch._replace(batch=self._dataset.batch))
        if sent.error is not None:
            raise sent.error
        return sent

    def _started(self) -> Iterator[LoadedStep]:
        self._sampler.step = self.step
        return started(self._loader)

    def set_lanes(self, lanes: Sequence[int] | None, from_step: int) -> None:
        """Use other lanes from the next step on; discard what was read for others."""
        if lanes != self._sampler.lanes or from_step != self.step:
            self.order.positions(0, 0, lanes)  # raises for lanes that do not exist
            self._sampler.lanes = lanes
            self.seek(from_step)

    def seek(self, step: int) -> None:
        """Continue at another step, earlier or later."""
        self.step, self._iterator = step, None

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "order": msgspec.to_builtins(self.order.spec)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where the state was saved; raises if the order is a different one."""
        require_same_order(self.order, state)
        self.seek(int(state["step"]))

    def close(self) -> None:
        """Let the worker processes end."""
        self._iterator = None
        self._loader = ()


class StepRequests:
    """The steps and lanes that `DataLoader` requests."""

    def __init__(
        self, order: Ordered, lanes: Sequence[int] | None, step: int, stop_step: int | None
    ) -> None:
        order.positions(0, 0, lanes)  # raises for lanes that do not exist
        self.order, self.lanes, self.step = order, lanes, step
        self._stop_step = stop_step

    def __iter__(self) -> Iterator[tuple[int, Sequence[int] | None]]:
        steps: Iterable[int] = count(self.step)
        if self._stop_step is not None:
            steps = range(self.step, self._stop_step)
        return ((step, self.lanes) for step in steps)


def unforked(context: Any) -> Any:
    """The multiprocessing context for processes that read from object storage, which hang after a
    fork.

    `context` is the requested one, or None.
    """
    if context is None:
        return "spawn"
    method = context if isinstance(context, str) else context.get_start_method()
    if method == "fork":
        raise InvalidArgument(
            "a forked process cannot read from object storage",
            hint='leave multiprocessing_context out, or give "spawn" or "forkserver"',
        )
    return context


def started(loader: Any) -> Iterator[Any]:
    """The iterator of a `DataLoader`, whose worker processes start to read."""
    try:
        return iter(loader)
    except (pickle.PicklingError, AttributeError) as error:
        raise InvalidArgument(
            f"the dataset, collate_fn or transform cannot be pickled: {error}",
            hint="define them at the top level of a "
            'module, or choose multiprocessing_context="fork"',
        ) from error


class _StepItems:
    """The dataset of the `DataLoader`, with a step as an item; used in the worker processes."""

    def __init__(self, reader: StepReader, made: Callable[[Any], Any]) -> None:
        self._reader, self._made = reader, made
        self._process = os.getpid()

    def __getitem__(self, asked: tuple[int, Sequence[int] | None]) -> LoadedStep:
        step, lanes = asked
        skipped: list[SkippedRow] = []
        if self._reader.on_skip is not None:
            self._reader.on_skip = skipped.append
        read, fetched = self._read(step, lanes)
        error = read.error
        if error is not None and not isinstance(error, StrataError):
            raise error  # not an error of Strata: `DataLoader` sends it to the training process
        batch = None if error else self._made(read.batch)
        return LoadedStep(
            batch=batch,
            samples=read.samples,
            digest=read.digest,
            content=read.content,
            skipped=skipped,
            error=error,
            fetched=fetched,
        )

    def _read(self, step: int, lanes: Sequence[int] | None) -> tuple[ReadStep, list[Fetch]]:
        """A step, and its downloads, which are sent to the training process."""
        if os.getpid() == self._process:
            (read,) = self._reader.read(step, step + 1, lanes)
            return read, []
        with OBSERVERS.collecting() as fetched:
            (read,) = self._reader.read(step, step + 1, lanes)
        return read, fetched


class _Unapplied:
    """Replaces the lane states in worker processes: its arguments are sent on."""

    def apply(self, *given: Any) -> Any:
        return given


class _StatefulCollate:
    """Makes batches from rows that worker processes sent, with the lane states of this process."""

    def __init__(
        self, lane_states: StatefulTransform, made: Callable[[Any], Any], *, pinned: bool
    ) -> None:
        self._lane_states, self._made, self._pinned = lane_states, made, pinned

    def __call__(self, given: Any) -> Any:
        batch = self._made(self._lane_states.apply(*given))
        if not self._pinned or not isinstance(batch, dict):
            return batch
        return {
            name: each.pin_memory() if hasattr(each, "pin_memory") else each
            for name, each in batch.items()
        }


def _reported_later(row: SkippedRow) -> None:
    """Replaces `on_skip` in worker processes, which send skipped rows with the batch."""


def unchanged(batch: Any) -> Any:
    return batch
