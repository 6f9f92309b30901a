"""Runs I/O in parallel on plain threads.

`concurrent.futures` does not serve: its pools refuse work once the main thread has ended, which is
when the last checkpoint of a script is still being written.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from strata.errors import Corrupt
from strata.storage.backend import ObjectReader

RANGE_BYTES = 16 * 1024 * 1024
THREADS = 8

Item = TypeVar("Item")


class IoThreads:
    """Runs work on `count` threads; `submit` waits while all are busy.

    The first failure cancels work that has not begun; it is raised by the next `submit` or at the
    end.
    """

    def __init__(self, count: int) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._free = threading.Semaphore(count)
        self._failure: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._run, name="strata-io", daemon=True) for _ in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], None]) -> None:
        self._free.acquire()
        if self._failure is not None:
            self._free.release()
            raise self._failure
        self._work.put(work)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                if self._failure is None:
                    work()
            except BaseException as error:
                self._failure = self._failure or error
            finally:
                del work  # it may hold the caller's memory
                self._free.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._failure = self._failure or error
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()
        if error is None and self._failure is not None:
            raise self._failure


def for_each(work: Callable[[Item], None], items: Iterable[Item], threads: int = THREADS) -> None:
    """Run the function for every item, in parallel; the first failure cancels the rest and is
    raised.
    """
    todo = list(items)
    if len(todo) < 2 or threads < 2:
        for item in todo:
            work(item)
        return
    with IoThreads(min(threads, len(todo))) as lanes:
        for item in todo:
            lanes.submit(partial(work, item))


def download(reader: ObjectReader, buffer: memoryview, offset: int) -> None:
    """Fill the buffer with the bytes from `offset` on, by parallel range reads."""
    view = buffer.cast("B")
    if offset + view.nbytes > reader.size_bytes:
        raise Corrupt(
            f"the object has {reader.size_bytes} bytes, but {offset + view.nbytes} were expected",
            hint="it was truncated or replaced; restore it or use another checkpoint",
        )

    def fill(start: int) -> None:
        reader.read_into(offset + start, [view[start : start + RANGE_BYTES]])

    for_each(fill, range(0, view.nbytes, RANGE_BYTES))


def scatter(source: NDArray[np.uint8], buffers: Sequence[memoryview]) -> None:
    """Copy bytes over buffers, one after the other, until the bytes end."""
    start = 0
    for buffer in buffers:
        piece = source[start : start + buffer.nbytes]
        # NumPy copies without holding the GIL; assigning to a memoryview does not.
        np.copyto(np.frombuffer(buffer, np.uint8)[: piece.nbytes], piece)
        start += piece.nbytes
        if start == source.nbytes:
            return
