"""Capture: copy a state into memory that is ready, and let training go on.

Fresh memory is the expensive part of a copy: the kernel finds and clears each page at its first
touch. 1 GiB into fresh memory took 1.45 s here, into memory used before 0.085 s. So one buffer is
kept for the life of a manager, made ready once (`prepare`, or the first save), and grows only when
the state does. It holds the image of the file: header, padding, tensors.

`bytes` cannot change, so they are not copied: header and bytes are two segments of one image.
"""

import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import numpy as np
from msgspec import Struct

from strata.checkpoint.arrays import Bytes, Source, is_torch
from strata.checkpoint.cuda import copy_from_devices, on_device, release, take_snapshot
from strata.checkpoint.format import ALIGNMENT, header_image
from strata.checkpoint.tree import Flat
from strata.storage.parallel import for_each

COPY_BYTES = 16 * 1024 * 1024
HUGE_PAGE_BYTES = 2 * 1024 * 1024
PARALLEL_BYTES = 64 * 1024 * 1024
POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, since Linux 5.14
COPY_THREADS = min(4, os.cpu_count() or 1)


class Placed(Struct):
    """A tensor and its place in the image."""

    name: str
    source: Source
    offset: int


class Capture(Struct):
    """A state at one moment, as the image of a part: `segments` are (offset, bytes), in order."""

    tree: object
    header: bytes
    placed: list[Placed]
    segments: list[tuple[int, memoryview]]
    size_bytes: int
    arriving: Callable[[], None] | None = None

    def complete(self) -> None:
        """Waits for what is still on its way from devices; for the thread that writes."""
        arriving, self.arriving = self.arriving, None
        if arriving is not None:
            arriving()

    def view(self, offset: int, size_bytes: int) -> memoryview:
        """Bytes of the image that lie within one segment, as those of a tensor do."""
        for start, segment in reversed(self.segments):
            if offset >= start:
                return segment[offset - start : offset - start + size_bytes]
        raise AssertionError(f"no segment holds byte {offset}")


class Staging:
    """The one buffer of a manager. Whoever holds a capture of it must be done before the next."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None

    @property
    def size_bytes(self) -> int:
        return len(self._memory) if self._memory is not None else 0

    def prepare(self, size_bytes: int) -> None:
        """Makes memory ready; what is large enough is kept."""
        if size_bytes <= self.size_bytes:
            return
        self.close()  # first, so that the old buffer is gone before the new one comes
        memory = mmap.mmap(-1, -(-size_bytes // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES)
        with suppress(OSError, AttributeError):
            memory.madvise(mmap.MADV_HUGEPAGE)
        try:
            memory.madvise(POPULATE_WRITE)
        except (OSError, ValueError, AttributeError):
            np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE] = 0
        self._memory = memory

    def capture(self, flat: Flat, metadata: dict[str, str]) -> Capture:
        """Copies the arrays; when this returns, the state may change."""
        header, placed, size_bytes = layout(flat, metadata)
        alone = sole_bytes(flat)
        if alone is not None:
            segments = [(0, memoryview(header)), (len(header), alone)]
            return Capture(flat.tree, header, placed, segments, size_bytes)
        self.prepare(size_bytes)
        assert self._memory is not None
        image = np.frombuffer(self._memory, np.uint8)
        image[: len(header)] = np.frombuffer(header, np.uint8)
        arriving = copy_all(placed, image)
        view = memoryview(self._memory)[:size_bytes]
        return Capture(flat.tree, header, placed, [(0, view)], size_bytes, arriving)

    def close(self) -> None:
        if self._memory is not None:
            release(int(np.frombuffer(self._memory, np.uint8).ctypes.data))
        self._memory = None


def layout(flat: Flat, metadata: dict[str, str]) -> tuple[bytes, list[Placed], int]:
    """Where everything goes: wide elements first, so that every tensor is aligned to its own."""
    ordered = sorted(flat.sources.items(), key=lambda item: _width(item[1]), reverse=True)
    header = header_image([(n, s.dtype, s.shape, s.size_bytes) for n, s in ordered], metadata)
    assert len(header) % ALIGNMENT == 0
    placed = []
    offset = len(header)
    for name, source in ordered:
        placed.append(Placed(name, source, offset))
        offset += source.size_bytes
    return header, placed, offset


def _width(source: Source) -> int:
    return source.item_bytes if source.raw_dtype is None else 0


def sole_bytes(flat: Flat) -> memoryview | None:
    """The state's memory where it is nothing but one immutable bytes object."""
    if not (isinstance(flat.tree, dict) and "$bytes" in flat.tree and len(flat.sources) == 1):
        return None
    (source,) = flat.sources.values()
    owner = source.value.base
    return memoryview(owner) if isinstance(owner, bytes) else None


def copy_all(placed: list[Placed], image: Bytes) -> Callable[[], None] | None:
    """Copies on a few threads: one core does not fill the memory bus. What lies on devices may
    still have to arrive; then what is returned brings it here."""
    devices = [each for each in placed if is_torch(each.source.value) and on_device(each.source)]
    arriving = copy_devices(devices, image) if devices else None
    rest = [each for each in placed if each not in devices] if devices else placed
    jobs = [job for each in rest for job in copy_jobs(each, image)]
    total = sum(each.source.size_bytes for each in rest)
    for_each(lambda job: job.run(), jobs, COPY_THREADS if total >= PARALLEL_BYTES else 1)
    return arriving


def copy_devices(devices: list[Placed], image: Bytes) -> Callable[[], None] | None:
    """A snapshot on the devices, to be brought here later; without room for one, a copy now."""
    filled = [each for each in devices if each.source.size_bytes]
    slots = [_slot(each, image) for each in filled]
    snapshot = take_snapshot([each.source for each in filled]) if filled else None
    if snapshot is not None:
        return partial(snapshot.copy_to, slots, image)
    copy_from_devices([(each.source, _slot(each, image)) for each in filled], image)
    return None


class CopyJob(Struct):
    """Some bytes to copy, or a whole array that does not lie in order."""

    target: Bytes
    flat: Bytes | None
    source: Source

    def run(self) -> None:
        if self.flat is None:
            self.source.copy_into(self.target)
        else:
            np.copyto(self.target, self.flat)


def copy_jobs(each: Placed, image: Bytes) -> list[CopyJob]:
    target = _slot(each, image)
    flat = each.source.flat()
    if flat is None:
        return [CopyJob(target, None, each.source)]
    return [
        CopyJob(target[at : at + COPY_BYTES], flat[at : at + COPY_BYTES], each.source)
        for at in range(0, each.source.size_bytes, COPY_BYTES)
    ]


def _slot(each: Placed, image: Bytes) -> Bytes:
    return image[each.offset : each.offset + each.source.size_bytes]
