"""Read-ahead: a bounded queue of steps, and a thread that fills it when that saves time.

The limits are `MAX_STEPS` steps and a number of bytes of memory as they are really used
(`batch_measures`); the queue may exceed the bytes by one block (4 MiB, or one step if that is
larger).

If the next batch is not in the queue, the calling thread reads it itself, unless it is being read
already. The background thread reads while the caller computes. In a loop that only reads, two
threads are slower than one (they hand batches over, wait for the interpreter lock, and keep a third
batch in the processor's cache), so the thread pauses while the caller computes for less than a
quarter of the time that reading a step takes.
"""

from collections import deque
from collections.abc import Sequence
from threading import Condition, Thread, current_thread
from time import perf_counter
from typing import Any, NamedTuple

from strata.data.formats.row_gather import copy_alone
from strata.data.formats.source import Columns
from strata.data.reading.step_reader import BLOCK_STEPS, BatchRecord, ReadStep, StepReader

MAX_STEPS = 256
PAYS_FROM = 0.25
SMOOTHED = 0.9


class ReadAhead:
    """The queue of read steps and the thread that fills it.

    `turn` is incremented whenever queued or running reads may be for the wrong steps or lanes: a
    block that was begun in an earlier turn is discarded. `busy` is true while a thread uses the
    reader, which serves one thread at a time.
    """

    def __init__(self, reader: StepReader, step: int, stop: int | None, limit_bytes: int) -> None:
        self.step = step
        self.taken: BatchRecord | None = None
        self._reader, self._limit_bytes = reader, limit_bytes
        self._stop = stop if stop is not None else 1 << 62
        self._schedule: list[tuple[int, Sequence[int] | None]] = []
        self._ready: deque[ReadStep] = deque()
        self._held_bytes = 0
        self.reading = step
        self._turn = 0
        self._old: dict[int, _StaleStep] = {}
        self._changed = Condition()
        self._timing = ReadTiming()
        self._busy = False
        self._thread: Thread | None = None
        self._closed = False

    def lanes_at(self, step: int) -> Sequence[int] | None:
        return next((lanes for first, lanes in reversed(self._schedule) if first <= step), None)

    def set_lanes(self, lanes: Sequence[int] | None, from_step: int) -> None:
        chosen = None if lanes is None else tuple(lanes)
        self._reader.order.positions(0, 0, chosen)  # raises for lanes that do not exist
        with self._changed:
            while self._ready and self._ready[-1].step >= from_step:
                read = self._ready.pop()
                self._held_bytes -= read.size_bytes
                if read.reusable:
                    lanes_then = self.lanes_at(read.step)
                    self._old[read.step] = _StaleStep(read.batch, lanes_then, read.size_bytes)
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
            self._timing.batch_requested(perf_counter())
            while not self._ready or self._closed:
                if self._closed or self.step >= self._stop:
                    raise StopIteration
                if self._busy:
                    self._changed.wait()
                else:
                    self._read_on()
            read = self._ready.popleft()
            self._held_bytes -= read.size_bytes
            self._let_thread_read()
            self._timing.batch_returned(perf_counter())
            if read.error is not None:
                raise read.error
            self.step = read.step + 1
            self.taken = BatchRecord(
                step=read.step, samples=read.samples, digest=read.digest, content=read.content
            )
            return read.batch

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._old.clear()
            self._changed.notify_all()
        # The garbage collector may run this in the background thread, which then ends by itself.
        if self._thread is not None and self._thread is not current_thread():
            self._thread.join()

    def _let_thread_read(self) -> None:
        if not self._limit_bytes or not self._timing.pays:
            return
        if self._thread is None or not self._thread.is_alive():
            self._thread = Thread(target=self._run, name="strata-batches", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        copy_alone()
        with self._changed:
            while not self._closed:
                if self._busy or self._full() or not self._timing.pays:
                    self._changed.wait()
                else:
                    self._read_on()

    def _full(self) -> bool:
        if self.reading >= self._stop:
            return True
        if not self._ready:
            return False
        # Room for a whole block: reading step by step would be slower.
        if self._ready[-1].error is not None or len(self._ready) > MAX_STEPS - BLOCK_STEPS:
            return True
        if self.reading in self._old:
            return False  # read for other lanes: patching it frees as much memory as it takes
        old_bytes = sum(old.size_bytes for old in self._old.values())
        return self._held_bytes + old_bytes >= self._limit_bytes

    def _read_on(self) -> None:
        """Read the next steps without the lock; discard them if the lanes or the step changed
        meanwhile.
        """
        turn, step = self._turn, self.reading
        lanes = self.lanes_at(step)
        later = [first for first, _ in self._schedule if first > step]
        stop = min([self._stop, *later, *(old for old in self._old if old > step)])
        old = self._old.pop(step, None)
        self._busy = True
        self._changed.release()
        try:
            began_s = perf_counter()
            if old is not None:
                done = self._reader.patch(step, lanes, old.batch, old.lanes)
            else:
                done = self._reader.read(step, stop, lanes)
            self._timing.read((perf_counter() - began_s) / len(done))
        finally:
            self._changed.acquire()
            self._busy = False
            self._changed.notify_all()
        if turn != self._turn or self._closed:
            return
        self._ready.extend(done)
        self.reading = step + sum(read.error is None for read in done)
        self._held_bytes += sum(read.size_bytes for read in done)


class _StaleStep(NamedTuple):
    """A step that was read for other lanes; the rows of lanes that are kept are used again."""

    batch: Columns
    lanes: Sequence[int] | None
    size_bytes: int


class ReadTiming:
    """Decides whether reading ahead saves time: how much of a read the caller's work hides."""

    def __init__(self) -> None:
        self._read_s = 0.0
        self._away_since_s = 0.0
        self._hidden: float | None = None

    @property
    def pays(self) -> bool:
        return self._hidden is None or self._hidden >= PAYS_FROM

    def read(self, took_s: float) -> None:
        """Record how long reading a step took."""
        self._read_s = took_s

    def batch_returned(self, now_s: float) -> None:
        """Record that the caller got a batch."""
        self._away_since_s = now_s

    def batch_requested(self, now_s: float) -> None:
        """Record that the caller asks for the next batch."""
        if not self._read_s:
            return
        hidden = min(1.0, (now_s - self._away_since_s) / self._read_s)
        before = hidden if self._hidden is None else self._hidden
        self._hidden = SMOOTHED * before + (1 - SMOOTHED) * hidden
