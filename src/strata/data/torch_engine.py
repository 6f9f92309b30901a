"""A run's batches through `torch.utils.data.DataLoader`, as an engine of `run.batches`.

    for batch in run.batches("imagenet-1k", 32, epochs=3, engine=Loading(num_workers=4)):

`DataLoader` is asked for steps, one at a time: its processes read them as any reader does (`steps`)
and send along what has to be recorded: rows that were left out, the digests. It is recorded when
the batch is handed out, so what was read ahead and let go leaves no trace. A transform that has a
memory (`per_lane`) is applied here, to rows that the processes have read, since it takes steps in
their order.

When the lanes change, what was read ahead is let go and read anew; worker processes stay if
`persistent_workers` is set.
"""

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

import msgspec

from strata.core.order import Integers
from strata.data.dataset import OnError, Skipped, skipping
from strata.data.observers import OBSERVERS, Fetch
from strata.data.per_lane import Memories, Transform
from strata.data.steps import OnSkip, Ordered, Read, Readable, Reader, require_same_order
from strata.data.streams import Taken
from strata.data.torch_adapter import checked_loading, collate, data_loader, pins
from strata.errors import InvalidArgument, StrataError


class Sent(NamedTuple):
    """A step as a process sends it: its batch, or why there is none, and what to record of it."""

    batch: Any
    samples: Integers
    digest: int
    content: int
    skipped: list[Skipped]
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
        def make(on_skip: OnSkip | None) -> Reader:
            found = Reader(dataset, order, wanted, transform, stop_step)
            found.on_skip, found.contents = on_skip, contents
            return found

        wanted = dataset.checked_columns(columns)
        on_skip = skipping(on_error, on_skip)
        options = {"collate_fn": collate(), **self._options}
        if not dataset.forks and options.get("num_workers"):
            options["multiprocessing_context"] = unforked(options.get("multiprocessing_context"))
        made = options.pop("collate_fn")
        here, there = make(on_skip), make(on_skip and _told_later)
        finish = None
        if here.memories is not None:
            finish = _Remembering(here.memories, made, pinned=pins(options))
            there.memories, made = _Postponed(), unchanged
        sampler = StepRequests(order, lanes, start_step, stop_step)
        steps = _Steps(there, made)
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
        self.taken: Taken | None = None
        self._dataset, self._sampler, self._loader = dataset, sampler, loader
        self._on_skip, self._finish = on_skip, finish
        self._iterator: Iterator[Sent] | None = None

    @property
    def reading(self) -> int:
        """The step that is handed out next; what its processes read ahead is not known."""
        return self.step

    def __next__(self) -> Any:
        try:
            sent = self._sent()
            batch = sent.batch if self._finish is None else self._finish(sent.batch)
        except StopIteration:
            raise
        except BaseException:
            self._iterator = None  # the step is read again when it is asked for again
            raise
        for row in sent.skipped:
            assert self._on_skip is not None, "rows are left out only where that was asked for"
            self._on_skip(row)
        self.taken = Taken(self.step, sent.samples, sent.digest, sent.content)
        self.step += 1
        return batch

    def _sent(self) -> Sent:
        if self._iterator is None:
            self._iterator = self._started()
        sent = next(self._iterator)
        for fetch in sent.fetched:
            OBSERVERS.fetched(fetch._replace(batch=self._dataset.batch))
        if sent.error is not None:
            raise sent.error
        return sent

    def _started(self) -> Iterator[Sent]:
        self._sampler.step = self.step
        return started(self._loader)

    def set_lanes(self, lanes: Sequence[int] | None, from_step: int) -> None:
        """Other lanes from the next step on; what was read for others is let go."""
        if lanes != self._sampler.lanes or from_step != self.step:
            self.order.positions(0, 0, lanes)  # refuses lanes that do not exist
            self._sampler.lanes = lanes
            self.seek(from_step)

    def seek(self, step: int) -> None:
        """Goes on at another step, back or forth."""
        self.step, self._iterator = step, None

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "order": msgspec.to_builtins(self.order.spec)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to where a state was taken; refused if the order is another one."""
        require_same_order(self.order, state)
        self.seek(int(state["step"]))

    def close(self) -> None:
        """Lets the worker processes end."""
        self._iterator = None
        self._loader = ()


class StepRequests:
    """Which steps `DataLoader` asks for, and whose."""

    def __init__(
        self, order: Ordered, lanes: Sequence[int] | None, step: int, stop_step: int | None
    ) -> None:
        order.positions(0, 0, lanes)  # refuses lanes that do not exist
        self.order, self.lanes, self.step = order, lanes, step
        self._stop_step = stop_step

    def __iter__(self) -> Iterator[tuple[int, Sequence[int] | None]]:
        steps: Iterable[int] = count(self.step)
        if self._stop_step is not None:
            steps = range(self.step, self._stop_step)
        return ((step, self.lanes) for step in steps)


def unforked(context: Any) -> Any:
    """How to start processes that read from object storage: not by a fork, where they would hang.

    `context` is what was asked for, or None.
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
    """The iterator of a `DataLoader`, whose worker processes begin to read."""
    try:
        return iter(loader)
    except (pickle.PicklingError, AttributeError) as error:
        raise InvalidArgument(
            f"what reads the batches cannot be sent to another process: {error}",
            hint="define the dataset, the collate_fn and the transform at the top of a "
            'module, or choose multiprocessing_context="fork"',
        ) from error


class _Steps:
    """The dataset that `DataLoader` sees: a step is an item. Lives in the processes."""

    def __init__(self, reader: Reader, made: Callable[[Any], Any]) -> None:
        self._reader, self._made = reader, made
        self._process = os.getpid()

    def __getitem__(self, asked: tuple[int, Sequence[int] | None]) -> Sent:
        step, lanes = asked
        skipped: list[Skipped] = []
        if self._reader.on_skip is not None:
            self._reader.on_skip = skipped.append
        read, fetched = self._read(step, lanes)
        error = read.error
        if error is not None and not isinstance(error, StrataError):
            raise error  # of somebody else's making: `DataLoader` knows how to bring it across
        batch = None if error else self._made(read.batch)
        return Sent(batch, read.samples, read.digest, read.content, skipped, error, fetched)

    def _read(self, step: int, lanes: Sequence[int] | None) -> tuple[Read, list[Fetch]]:
        """A step, and the downloads for it that have to be told to the process that asked."""
        if os.getpid() == self._process:
            (read,) = self._reader.read(step, step + 1, lanes)
            return read, []
        with OBSERVERS.collecting() as fetched:
            (read,) = self._reader.read(step, step + 1, lanes)
        return read, fetched


class _Postponed:
    """Stands for the memories where rows are read: what they are given is sent on."""

    def apply(self, *given: Any) -> Any:
        return given


class _Remembering:
    """Makes batches of rows that were sent, with the memories that are here."""

    def __init__(self, memories: Memories, made: Callable[[Any], Any], *, pinned: bool) -> None:
        self._memories, self._made, self._pinned = memories, made, pinned

    def __call__(self, given: Any) -> Any:
        batch = self._made(self._memories.apply(*given))
        if not self._pinned or not isinstance(batch, dict):
            return batch
        return {
            name: each.pin_memory() if hasattr(each, "pin_memory") else each
            for name, each in batch.items()
        }


def _told_later(row: Skipped) -> None:
    """Stands for whom to tell where rows are read: what was left out is sent along."""


def unchanged(batch: Any) -> Any:
    return batch
