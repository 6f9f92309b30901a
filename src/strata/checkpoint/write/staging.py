"""Staging: copies a state into prepared memory, so that training can continue.

New memory is the expensive part of a copy: the kernel finds and clears each page at its first use.
Copying 1 GiB into new memory took 1.45 s here, into memory used before 0.085 s. So one buffer is
kept for the life of a manager, prepared once (`prepare`, or the first save), and grows only with
the state. It holds the image of the file: header, padding, tensors.

`bytes` cannot change, so they are not copied: header and bytes are two segments of one image.
"""

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct

from strata.checkpoint.manifest import ALIGNMENT, header_image
from strata.checkpoint.state.array_bytes import TensorSource, is_torch
from strata.checkpoint.state.state_tree import FlatState
from strata.checkpoint.write.device_checksums import load_kernels
from strata.checkpoint.write.device_snapshot import pin
from strata.checkpoint.write.staging_copy import CopyProgress, PlacedTensor
from strata.storage.huge_pages import HugeMemory, huge_memory, populate

log = logging.getLogger(__name__)

SLACK_BYTES = 2**20
"""Space for a part's header and the random state of a rank beside the tensors."""


class StateCapture(Struct):
    """A state at one moment, as the image of a part: `segments` are (offset, bytes), in order.

    One thread fills it while another may write what is already there.
    """

    tree: object
    header: bytes
    placed: list[PlacedTensor]
    segments: list[tuple[int, memoryview]]
    size_bytes: int
    filling: CopyProgress | None = None

    def fill(self, progress: Callable[[int], None] = lambda filled_bytes: None) -> None:
        """Copy the state; when this returns, the state may change. Called by
        the training thread.
        """
        if self.filling is not None:
            self.filling.run(progress)

    def abandon(self, error: BaseException) -> None:
        """Make the writing thread fail: the rest will not be copied."""
        if self.filling is not None:
            self.filling.abandon(error)

    def complete(self) -> None:
        """Wait for copies from devices; called by the writing thread."""
        if self.filling is not None:
            self.filling.complete()

    def wait(self, stop: int) -> None:
        """Wait until the image is copied up to that byte; called by the writing thread."""
        if self.filling is not None:
            self.filling.wait(stop)

    @property
    def filled(self) -> bool:
        """Whether the copy is complete, and training continues."""
        return self.filling is None or self.filling.ended

    def view(self, offset: int, size_bytes: int) -> memoryview:
        """Bytes of the image within one segment, such as those of a tensor; waits until they are
        copied.
        """
        self.wait(offset + size_bytes)
        return self._view(offset, size_bytes)

    def ends(self, each: PlacedTensor) -> bytes:
        """The first and the last bytes of a large tensor, which are copied before the rest."""
        self.wait(0)
        last = each.offset + each.source.size_bytes - ALIGNMENT
        return bytes(self._view(each.offset, ALIGNMENT)) + bytes(self._view(last, ALIGNMENT))

    def _view(self, offset: int, size_bytes: int) -> memoryview:
        index = bisect_right(self.segments, offset, key=lambda each: each[0]) - 1
        assert index >= 0, f"no segment holds byte {offset}"
        start, segment = self.segments[index]
        return segment[offset - start : offset - start + size_bytes]


class Staging:
    """The staging buffer of a manager. A capture must be finished before the next one begins."""

    def __init__(self) -> None:
        self._memory: HugeMemory | None = None
        self._preparing = threading.Lock()

    @property
    def size_bytes(self) -> int:
        return len(self._memory) if self._memory is not None else 0

    def prepare(self, size_bytes: int, device: Any = None) -> HugeMemory:
        """Prepare memory, pinned for a CUDA device if one is given; memory that is large enough is
        kept. May run in the background: a capture that begins meanwhile waits for it.
        """
        with self._preparing:
            if self._memory is None or size_bytes > len(self._memory):
                self._memory = (
                    None  # first, so that the old buffer is freed before the new one is made
                )
                memory = huge_memory(size_bytes)
                populate(memory)
                self._memory = memory
            if device is not None:
                pin(self._memory, device)
            return self._memory

    def prepare_for(self, sources: list[TensorSource]) -> None:
        """Prepare memory for such a state."""
        self.prepare(
            sum(source.size_bytes for source in sources) + SLACK_BYTES, cuda_device_of(sources)
        )

    def prepare_in_background(self, sources: list[TensorSource]) -> threading.Thread:
        """Prepare memory for such a state in a thread: 32 GiB take about 12 s. Errors are only
        logged, since the first capture tries again.
        """
        size_bytes = sum(source.size_bytes for source in sources) + SLACK_BYTES
        card = cuda_device_of(sources)

        def work() -> None:
            try:
                self.prepare(size_bytes, card)
                if card is not None:
                    load_kernels(card)
            except Exception as error:
                log.warning("could not prepare %d bytes of staging memory: %r", size_bytes, error)

        thread = threading.Thread(target=work, name="strata-prepare", daemon=True)
        thread.start()
        return thread

    def capture(self, flat: FlatState, metadata: dict[str, str]) -> StateCapture:
        """Copy the arrays; when this returns, the state may change."""
        capture = self.begin(flat, metadata)
        capture.fill()
        return capture

    def begin(self, flat: FlatState, metadata: dict[str, str]) -> StateCapture:
        """A capture that is not filled yet."""
        header, placed, size_bytes = layout(flat, metadata)
        alone = single_bytes(flat)
        if alone is not None:
            segments = [(0, memoryview(header)), (len(header), alone)]
            return StateCapture(
                tree=flat.tree,
                header=header,
                placed=placed,
                segments=segments,
                size_bytes=size_bytes,
            )
        memory = self.prepare(size_bytes)
        view = memoryview(memory)[:size_bytes]
        np.frombuffer(memory, np.uint8)[: len(header)] = np.frombuffer(header, np.uint8)
        filling = CopyProgress(placed, memory)
        return StateCapture(
            tree=flat.tree,
            header=header,
            placed=placed,
            segments=[(0, view)],
            size_bytes=size_bytes,
            filling=filling,
        )

    def close(self) -> None:
        """Free the memory when the last capture of it is gone."""
        with self._preparing:
            self._memory = None


def cuda_device_of(sources: list[TensorSource]) -> Any:
    """The first CUDA device that a state is on, or None."""
    values = (source.value for source in sources if is_torch(source.value))
    return next((value.device for value in values if value.is_cuda), None)


def layout(flat: FlatState, metadata: dict[str, str]) -> tuple[bytes, list[PlacedTensor], int]:
    """The place of each tensor: wide elements first, so that every tensor is aligned to its own."""
    ordered = sorted(flat.sources.items(), key=lambda item: _width(item[1]), reverse=True)
    header = header_image([(n, s.dtype, s.shape, s.size_bytes) for n, s in ordered], metadata)
    assert len(header) % ALIGNMENT == 0
    placed = []
    offset = len(header)
    for name, source in ordered:
        placed.append(PlacedTensor(name, source, offset))
        offset += source.size_bytes
    return header, placed, offset


def _width(source: TensorSource) -> int:
    return source.item_bytes if source.raw_dtype is None else 0


def single_bytes(flat: FlatState) -> memoryview | None:
    """The state's memory if the state is one immutable bytes object."""
    if not (isinstance(flat.tree, dict) and "$bytes" in flat.tree and len(flat.sources) == 1):
        return None
    (source,) = flat.sources.values()
    owner = source.value.base
    return memoryview(owner) if isinstance(owner, bytes) else None
