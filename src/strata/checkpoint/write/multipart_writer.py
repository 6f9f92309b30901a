"""A buffered, streaming, multipart writer: bytes in, a durable object at the end.

`write` fills 16 MiB blocks and returns; a thread sends full blocks to the storage, several parts at
once, and `close` waits until the object is durable and visible under its name. Before that nothing
is visible. At most `depth` blocks are queued, so memory is bounded: if the storage is slower than
the caller, `write` waits. An error is raised by the next call and by `close`.

Checkpoints are written with it (`part_writer`), from staging memory and without a copy.

    with AsyncCheckpointWriter("s3://bucket/models", "weights.bin") as writer:
        for chunk in chunks:
            writer.write(chunk)
"""

import os
import threading
from collections.abc import Callable, Iterator
from queue import Queue
from typing import Self

from strata.config import Settings
from strata.errors import NotAllowedNow
from strata.storage.backend import Buffer, StorageBackend, checked_name
from strata.storage.locations import open_storage

BLOCK_BYTES = 16 * 1024 * 1024
LONG_BYTES = 1024 * 1024
DEPTH = 4


class _Aborted(Exception):
    """Raised inside the storage when the object is abandoned."""


class AsyncCheckpointWriter:
    """Writes one object. Not thread-safe.

    `written_bytes` counts what the caller has passed, and `stored_bytes` what the storage has. A
    storage that does not report this is assumed to have a block when it requests the next one.
    `acknowledged` is called with `stored_bytes` whenever they grow, by any thread.
    """

    def __init__(
        self,
        storage: StorageBackend | str | os.PathLike[str],
        name: str,
        *,
        depth: int = DEPTH,
        size_bytes: int | None = None,
        recycle: str | None = None,
        settings: Settings | None = None,
        acknowledged: Callable[[int], None] = lambda stored_bytes: None,
    ) -> None:
        self.name = checked_name(name)
        self.written_bytes = self.stored_bytes = 0
        self._storage = (
            open_storage(storage, settings) if isinstance(storage, str | os.PathLike) else storage
        )
        self._size_bytes, self._recycle = size_bytes, recycle
        self._acknowledged = acknowledged
        self._block = bytearray()
        self._queue: Queue[Buffer | None] = Queue(depth)
        self._failure: BaseException | None = None
        self._aborted = self._closed = self._ended = False
        self._thread = threading.Thread(target=self._carry, name="strata-writer", daemon=True)
        self._thread.start()

    def write(self, data: Buffer, *, copy: bool = True) -> int:
        """Queue the bytes; with `copy=False` they must not change before `close` returns."""
        if self._closed:
            raise NotAllowedNow(f"the writer of {self.name} is closed", hint="open a new writer")
        view = memoryview(data).cast("B")
        self.written_bytes += view.nbytes
        if not copy or (isinstance(data, bytes) and view.nbytes >= LONG_BYTES):
            self._flush()
            self._hand_over(view)
            return view.nbytes
        for at in range(0, view.nbytes, BLOCK_BYTES):
            self._gather(view[at : at + BLOCK_BYTES])
        return view.nbytes

    def _gather(self, view: memoryview) -> None:
        room = BLOCK_BYTES - len(self._block)
        self._block += view[:room]
        if len(self._block) == BLOCK_BYTES:
            self._flush()
            self._block += view[room:]

    def _flush(self) -> None:
        if self._block:
            self._hand_over(memoryview(self._block))
            self._block = bytearray()

    def _hand_over(self, block: Buffer | None) -> None:
        self._raise_failure()
        self._queue.put(block)

    def close(self) -> int:
        """Wait until the object is durable; return its size."""
        if not self._closed:
            self._closed = True
            if self._block:
                self._queue.put(memoryview(self._block))
            self._queue.put(None)
            self._thread.join()
            self._block = bytearray()
        self._raise_failure()
        return self.written_bytes

    def abort(self) -> None:
        """Abandon the object; nothing of it is kept."""
        if not self._closed:
            self._closed = self._aborted = True
            self._queue.put(None)
            self._thread.join()

    def _carry(self) -> None:
        try:
            size_bytes = self._storage.put_stream(
                self.name,
                _Blocks(self._blocks(), self._store),
                size_bytes=self._size_bytes,
                recycle=self._recycle,
            )
            self._store(size_bytes)
        except _Aborted:
            pass
        except BaseException as error:
            self._failure = error
            while not self._ended:  # threads that wait for space must see the error
                self._ended = self._queue.get() is None

    def _blocks(self) -> Iterator[Buffer]:
        while (block := self._queue.get()) is not None:
            if self._aborted:
                break
            yield block
        else:
            self._ended = True
        if self._aborted:
            raise _Aborted

    def _store(self, stored_bytes: int) -> None:
        if stored_bytes > self.stored_bytes:
            self.stored_bytes = stored_bytes
            self._acknowledged(stored_bytes)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        else:
            self.abort()


class _Blocks(Iterator[Buffer]):
    """The blocks that a storage reads; it may report how many bytes it has (`Acknowledged`)."""

    def __init__(self, blocks: Iterator[Buffer], store: Callable[[int], None]) -> None:
        self._blocks, self._store = blocks, store
        self._told = False
        self._taken = 0

    def __next__(self) -> Buffer:
        if not self._told:
            self._store(self._taken)
        block = next(self._blocks)
        self._taken += memoryview(block).nbytes
        return block

    def acknowledged(self, stored_bytes: int) -> None:
        self._told = True
        self._store(stored_bytes)
