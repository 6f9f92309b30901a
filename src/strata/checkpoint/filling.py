"""Filling staging memory with a state, and telling how far that has come.

A save is written while it is still being copied: the disk takes the first tensors when the last
ones have yet to come, so what a save takes in all is about what the disk takes.

The two ends of every large tensor are copied first, since they tell what has changed (`reuse`);
then everything, in the order of the file. What lies on devices arrives after all else.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np
from msgspec import Struct

from strata.checkpoint.arrays import Bytes, Source, is_torch
from strata.checkpoint.cuda import copy_from_devices, on_device, take_snapshot
from strata.checkpoint.format import ALIGNMENT
from strata.errors import StrataError
from strata.storage.memory import HugeMemory
from strata.storage.parallel import for_each

COPY_BYTES = 16 * 1024 * 1024
LARGE_BYTES = 64 * 1024
PARALLEL_BYTES = 64 * 1024 * 1024
COPY_THREADS = min(4, os.cpu_count() or 1)


class Placed(Struct):
    """A tensor and its place in the image."""

    name: str
    source: Source
    offset: int

    def slot(self, image: Bytes) -> Bytes:
        return image[self.offset : self.offset + self.source.size_bytes]


class Filling:
    """Copies a state into an image. `run` and `abandon` are for the thread that trains, `wait` and
    `complete` for the one that writes."""

    def __init__(self, placed: list[Placed], memory: HugeMemory) -> None:
        self._memory = memory
        self._image: Bytes = np.frombuffer(memory, np.uint8)
        self._devices: list[Placed] = []
        self._hosts: list[Placed] = []
        for each in placed:
            there = is_torch(each.source.value) and on_device(each.source)
            (self._devices if there else self._hosts).append(each)
        self._arriving: Callable[[], None] | None = None
        self._waiting: deque[int] = deque()
        self._done: set[int] = set()
        self._reached = -1
        self._failure: BaseException | None = None
        self._moved = threading.Condition()

    def run(self, progress: Callable[[int], None]) -> None:
        """Copies everything; when this returns, the state may change."""
        if self._devices:
            self._arriving = copy_devices(self._devices, self._image, self._memory)
        total = sum(each.source.size_bytes for each in self._hosts)
        threads = COPY_THREADS if total >= PARALLEL_BYTES else 1  # one does not fill the memory bus
        jobs = [job for each in self._hosts for job in copy_jobs(each, self._image)]
        for_each(CopyJob.run, [job for job in jobs if job.flat is None], threads)
        for each in self._hosts:
            copy_ends(each, self._image)
        in_order = [job for job in jobs if job.flat is not None]
        self._waiting.extend(job.offset for job in in_order)
        self._advance()
        for_each(partial(self._copy, progress), in_order, threads)

    def abandon(self, error: BaseException) -> None:
        """Tells whoever waits that the rest will not come."""
        with self._moved:
            self._failure = error
            self._moved.notify_all()

    def _copy(self, progress: Callable[[int], None], job: "CopyJob") -> None:
        job.run()
        self._done.add(job.offset)
        self._advance()
        progress(self._reached)

    def _advance(self) -> None:
        """Tells that everything before the first byte that is waited for is there."""
        with self._moved:
            while self._waiting and self._waiting[0] in self._done:
                self._done.discard(self._waiting.popleft())
            self._reached = self._waiting[0] if self._waiting else self._image.nbytes
            self._moved.notify_all()

    @property
    def ended(self) -> bool:
        """Whether everything is there, but for what is still to come from devices."""
        return self._reached == self._image.nbytes

    def wait(self, stop: int) -> None:
        """Waits until the image is there up to that byte; the ends of tensors are there at 0."""
        with self._moved:
            self._moved.wait_for(lambda: self._reached >= stop or self._failure is not None)
        if self._failure is not None:
            raise StrataError(f"the state could not be copied: {self._failure!r}")

    def complete(self) -> None:
        """Brings what lies on devices here, when all else is there."""
        if self._devices:
            self.wait(self._image.nbytes)
            arriving, self._arriving = self._arriving, None
            if arriving is not None:
                arriving()


def copy_devices(
    devices: list[Placed], image: Bytes, memory: HugeMemory
) -> Callable[[], None] | None:
    """A snapshot on the devices, to be brought here later; without room for one, a copy now."""
    filled = [each for each in devices if each.source.size_bytes]
    slots = [each.slot(image) for each in filled]
    snapshot = take_snapshot([each.source for each in filled]) if filled else None
    if snapshot is not None:
        return partial(snapshot.copy_to, slots, memory)
    copy_from_devices([(each.source, each.slot(image)) for each in filled], memory)
    return None


class CopyJob(Struct):
    """Some bytes to copy, or a whole array that does not lie in order."""

    offset: int
    target: Bytes
    flat: Bytes | None
    source: Source

    def run(self) -> None:
        if self.flat is None:
            self.source.copy_into(self.target)
        else:
            np.copyto(self.target, self.flat)


def copy_jobs(each: Placed, image: Bytes) -> list[CopyJob]:
    target = each.slot(image)
    flat = each.source.flat()
    if flat is None:
        return [CopyJob(each.offset, target, None, each.source)]
    return [
        CopyJob(
            each.offset + at,
            target[at : at + COPY_BYTES],
            flat[at : at + COPY_BYTES],
            each.source,
        )
        for at in range(0, each.source.size_bytes, COPY_BYTES)
    ]


def copy_ends(each: Placed, image: Bytes) -> None:
    """Copies the first and the last bytes of a large tensor that lies in order."""
    flat = each.source.flat() if each.source.size_bytes >= LARGE_BYTES else None
    if flat is not None:
        slot = each.slot(image)
        for end in (slice(ALIGNMENT), slice(-ALIGNMENT, None)):
            np.copyto(slot[end], flat[end])
