"""Copies a state into staging memory, and reports how much of it is there.

A save is written while it is still being copied: the disk receives the first tensors before the
last ones are copied, so a save takes about as long as the disk needs.

The two ends of every large tensor are copied first, since they show whether it changed
(`unchanged_tensors`); then everything, in the order of the file. Tensors on devices arrive last.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np
from msgspec import Struct

from strata.checkpoint.manifest import ALIGNMENT
from strata.checkpoint.state.array_bytes import Bytes, TensorSource, is_torch
from strata.checkpoint.write.device_snapshot import copy_from_devices, on_device, take_snapshot
from strata.errors import StrataError
from strata.storage.huge_pages import HugeMemory
from strata.storage.io_threads import for_each

COPY_BYTES = 16 * 1024 * 1024
LARGE_BYTES = 64 * 1024
PARALLEL_BYTES = 64 * 1024 * 1024
COPY_THREADS = min(4, os.cpu_count() or 1)


class PlacedTensor(Struct):
    """A tensor and its place in the image."""

    name: str
    source: TensorSource
    offset: int

    def slot(self, image: Bytes) -> Bytes:
        return image[self.offset : self.offset + self.source.size_bytes]


class CopyProgress:
    """Copies a state into an image. The training thread calls `run` and `abandon`, the writing
    thread `wait` and `complete`.
    """

    def __init__(self, placed: list[PlacedTensor], memory: HugeMemory) -> None:
        self._memory = memory
        self._image: Bytes = np.frombuffer(memory, np.uint8)
        self._devices: list[PlacedTensor] = []
        self._hosts: list[PlacedTensor] = []
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
        """Copy everything; when this returns, the state may change."""
        if self._devices:
            self._arriving = copy_devices(self._devices, self._image, self._memory)
        total = sum(each.source.size_bytes for each in self._hosts)
        threads = (
            COPY_THREADS if total >= PARALLEL_BYTES else 1
        )  # one thread does not use the full memory bandwidth
        jobs = [job for each in self._hosts for job in copy_jobs(each, self._image)]
        for_each(CopyJob.run, [job for job in jobs if job.flat is None], threads)
        for each in self._hosts:
            copy_ends(each, self._image)
        in_order = [job for job in jobs if job.flat is not None]
        self._waiting.extend(job.offset for job in in_order)
        self._advance()
        for_each(partial(self._copy, progress), in_order, threads)

    def abandon(self, error: BaseException) -> None:
        """Make waiting threads fail: the rest will not be copied."""
        with self._moved:
            self._failure = error
            self._moved.notify_all()

    def _copy(self, progress: Callable[[int], None], job: "CopyJob") -> None:
        job.run()
        self._done.add(job.offset)
        self._advance()
        progress(self._reached)

    def _advance(self) -> None:
        """Wake waiting threads: everything before the first byte that is still
        missing is copied.
        """
        with self._moved:
            while self._waiting and self._waiting[0] in self._done:
                self._done.discard(self._waiting.popleft())
            self._reached = self._waiting[0] if self._waiting else self._image.nbytes
            self._moved.notify_all()

    @property
    def ended(self) -> bool:
        """Whether everything is copied, except what is still on devices."""
        return self._reached == self._image.nbytes

    def wait(self, stop: int) -> None:
        """Wait until the image is copied up to that byte; the ends of tensors
        are available at 0.
        """
        with self._moved:
            self._moved.wait_for(lambda: self._reached >= stop or self._failure is not None)
        if self._failure is not None:
            raise StrataError(f"the state could not be copied: {self._failure!r}")

    def complete(self) -> None:
        """Copy what is on devices, after everything else."""
        if self._devices:
            self.wait(self._image.nbytes)
            arriving, self._arriving = self._arriving, None
            if arriving is not None:
                arriving()


def copy_devices(
    devices: list[PlacedTensor], image: Bytes, memory: HugeMemory
) -> Callable[[], None] | None:
    """A snapshot on the devices, to be copied later; without enough memory, a copy now."""
    filled = [each for each in devices if each.source.size_bytes]
    slots = [each.slot(image) for each in filled]
    snapshot = take_snapshot([each.source for each in filled]) if filled else None
    if snapshot is not None:
        return partial(snapshot.copy_to, slots, memory)
    copy_from_devices([(each.source, each.slot(image)) for each in filled], memory)
    return None


class CopyJob(Struct):
    """Some bytes to copy, or a whole array that is not in C order."""

    offset: int
    target: Bytes
    flat: Bytes | None
    source: TensorSource

    def run(self) -> None:
        if self.flat is None:
            self.source.copy_into(self.target)
        else:
            np.copyto(self.target, self.flat)


def copy_jobs(each: PlacedTensor, image: Bytes) -> list[CopyJob]:
    target = each.slot(image)
    flat = each.source.flat()
    if flat is None:
        return [CopyJob(offset=each.offset, target=target, flat=None, source=each.source)]
    return [
        CopyJob(
            offset=each.offset + at,
            target=target[at : at + COPY_BYTES],
            flat=flat[at : at + COPY_BYTES],
            source=each.source,
        )
        for at in range(0, each.source.size_bytes, COPY_BYTES)
    ]


def copy_ends(each: PlacedTensor, image: Bytes) -> None:
    """Copy the first and the last bytes of a large tensor that is in C order."""
    flat = each.source.flat() if each.source.size_bytes >= LARGE_BYTES else None
    if flat is not None:
        slot = each.slot(image)
        for end in (slice(ALIGNMENT), slice(-ALIGNMENT, None)):
            np.copyto(slot[end], flat[end])
