"""Batches of one worker: a plain iterator over steps, read ahead in the background.

What a step holds is arithmetic (`core.order`), so there is no cursor but the step: `state_dict` is
that number and what it is a number of, and going anywhere (`seek`, a rollback, a resume) costs
nothing. One thread reads ahead into a queue that is bounded in bytes; more threads or processes
pay only where decoding is dear, and formats that decode have their own. With `prefetch_bytes=0`
batches are read when they are asked for, by whoever asks: for loops that do nothing but read, where
a thread cannot help and its third batch in memory costs a quarter (100 KiB samples: two buffers in
turn take 0.9 of the speed of one, three 0.8, since they no longer stay in the processor's cache).

Lanes may change from a step on. Batches that were read ahead for later steps keep the rows of lanes
that stay, and only the missing rows are read. (With a transform they are read again, since a
transform may have mixed the rows.)

An error belongs to its step: batches before it are handed out first, then it is raised, and asking
again tries that step again.
"""

import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from threading import Condition, Thread, current_thread
from typing import Any

import msgspec

from strata.core.order import Integers, digest
from strata.data.base import Columns
from strata.data.dataset import OnError, skipping
from strata.data.per_lane import Transform
from strata.data.steps import OnSkip, Ordered, Read, Readable, Reader, require_same_order
from strata.data.streams import Taken
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
                f"steps {start_step} to {stop_step} are not a range of steps",
                hint="count from 0, upwards",
            )
        if prefetch_bytes < 0:
            raise InvalidArgument(
                f"prefetch_bytes is {prefetch_bytes}", hint="0 reads when a batch is asked for"
            )
        self.order = order
        wanted = dataset.checked_columns(columns)
        reader = Reader(dataset, order, wanted, transform, stop_step)
        reader.on_skip = skipping(on_error, on_skip)
        reader.contents = contents
        self._queue = _Queue(reader, start_step, stop_step, prefetch_bytes)
        self._queue.set_lanes(lanes, start_step)
        # The thread must not keep an iterator alive that everybody else has let go.
        self._finalizer = weakref.finalize(self, self._queue.close)

    @property
    def step(self) -> int:
        """The step that comes next."""
        return self._queue.step

    @property
    def reading(self) -> int:
        """The step that is being read ahead."""
        return self._queue.reading

    @property
    def taken(self) -> Taken | None:
        """What was handed out last, if anything was."""
        return self._queue.taken

    def __next__(self) -> Any:
        return self._queue.take()

    def lanes_at(self, step: int) -> Sequence[int] | None:
        return self._queue.lanes_at(step)

    def samples_of(self, step: int) -> Integers:
        """Which samples of the dataset a step's batch has, in its order."""
        return self.order.samples(self.order.positions(step, step + 1, self.lanes_at(step))[0])

    def digest_of(self, step: int) -> int:
        """Eight bytes for what this worker trains in a step; those of all workers add up."""
        positions = self.order.positions(step, step + 1, self.lanes_at(step))[0]
        return digest(positions, self.order.samples(positions))

    def set_lanes(self, lanes: Sequence[int] | None, from_step: int) -> None:
        """Other lanes from a step on, which must not have been handed out yet."""
        if from_step < self.step:
            raise NotAllowedNow(
                f"step {from_step} was handed out already; the next is {self.step}",
                hint="seek back first",
            )
        self._queue.set_lanes(lanes, from_step)

    def seek(self, step: int) -> None:
        """Goes on at another step, back or forth."""
        if step < 0:
            raise InvalidArgument(f"there is no step {step}", hint="count from 0")
        self._queue.seek(step)

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "order": msgspec.to_builtins(self.order.spec)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to where a state was taken; refused if the order is another one."""
        require_same_order(self.order, state)
        self.seek(int(state["step"]))

    def close(self) -> None:
        """Stops reading ahead; what was read is let go. Harmless when repeated."""
        self._finalizer()

    def __enter__(self) -> "Batches":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class _Queue:
    """The steps read ahead, and the thread that reads them.

    `turn` grows whenever what was read or is being read may be the wrong thing: a block that was
    begun in an earlier turn is dropped.
    """

    def __init__(self, reader: Reader, step: int, stop: int | None, limit_bytes: int) -> None:
        self.step = step
        self.taken: Taken | None = None
        self._reader, self._limit_bytes = reader, limit_bytes
        self._stop = stop if stop is not None else 1 << 62
        self._schedule: list[tuple[int, Sequence[int] | None]] = []
        self._ready: deque[Read] = deque()
        self._held_bytes = 0
        self.reading = step
        self._turn = 0
        self._old: dict[int, tuple[Columns, Sequence[int] | None]] = {}
        self._changed = Condition()
        self._thread: Thread | None = None
        self._closed = False

    def lanes_at(self, step: int) -> Sequence[int] | None:
        return next((lanes for first, lanes in reversed(self._schedule) if first <= step), None)

    def set_lanes(self, lanes: Sequence[int] | None, from_step: int) -> None:
        chosen = None if lanes is None else tuple(lanes)
        self._reader.order.positions(0, 0, chosen)  # refuses lanes that do not exist
        with self._changed:
            while self._ready and self._ready[-1].step >= from_step:
                read = self._ready.pop()
                self._held_bytes -= read.size_bytes
                if read.reusable:
                    self._old[read.step] = (read.batch, self.lanes_at(read.step))
            self._schedule = [each for each in self._schedule if each[0] < from_step]
            self._schedule.append((from_step, chosen))
            self.reading = min(self.reading, from_step)
            self._turn += 1
            self._changed.notify_all()

    def seek(self, step: int) -> None:
        with self._changed:
            if self._schedule and step < self._schedule[0][0]:
                self._schedule[0] = (step, self._schedule[0][1])
            self._ready.clear()
            self._old.clear()
            self._held_bytes = 0
            self.step = self.reading = step
            self._turn += 1
            self._changed.notify_all()

    def take(self) -> Any:
        with self._changed:
            if self._closed or self.step >= self._stop:
                raise StopIteration
            self._await_ready()
            if self._closed:
                raise StopIteration
            read = self._ready.popleft()
            self._held_bytes -= read.size_bytes
            self._changed.notify_all()
            if read.error is not None:
                raise read.error
            self.step = read.step + 1
            self.taken = Taken(read.step, read.samples, read.digest, read.content)
            return read.batch

    def _await_ready(self) -> None:
        """Waits for the thread that reads ahead, or reads here if nothing is to be read ahead."""
        if not self._limit_bytes:
            while not self._ready and not self._closed:
                self._read_on()
            return
        if self._thread is None or not self._thread.is_alive():
            self._thread = Thread(target=self._run, name="strata-batches", daemon=True)
            self._thread.start()
        while not self._ready and not self._closed:
            self._changed.wait()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._old.clear()
            self._changed.notify_all()
        # The garbage collector may close this from the reading thread, which then ends by itself.
        if self._thread is not None and self._thread is not current_thread():
            self._thread.join()

    def _full(self) -> bool:
        ended = self.reading >= self._stop
        failed = bool(self._ready) and self._ready[-1].error is not None
        return ended or failed or (bool(self._ready) and self._held_bytes >= self._limit_bytes)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed and self._full():
                    self._changed.wait()
                if self._closed:
                    return
            self._read_on()

    def _read_on(self) -> None:
        """Reads the next few steps; what was changed meanwhile is let go again."""
        with self._changed:
            if self._full():  # since a moment ago
                return
            turn, step = self._turn, self.reading
            lanes = self.lanes_at(step)
            later = [first for first, _ in self._schedule if first > step]
            stop = min([self._stop, *later, *(old for old in self._old if old > step)])
            old = self._old.pop(step, None)
        if old is not None:
            done = self._reader.patch(step, lanes, *old)
        else:
            done = self._reader.read(step, stop, lanes)
        with self._changed:
            if turn != self._turn or self._closed:
                return
            self._ready.extend(done)
            self.reading = step + sum(read.error is None for read in done)
            self._held_bytes += sum(read.size_bytes for read in done)
            self._changed.notify_all()
