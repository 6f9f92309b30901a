"""Capture: copy a state into memory that is ready, and let training go on.

Fresh memory is the expensive part of a copy: the kernel finds and clears each page at its first
touch. 1 GiB into fresh memory took 1.45 s here, into memory used before 0.085 s. So one buffer is
kept for the life of a manager, made ready once (`prepare`, or the first save), and grows only when
the state does. It holds the image of the file: header, padding, tensors.

`bytes` cannot change, so they are not copied: header and bytes are two segments of one image.
"""

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct

from strata.checkpoint.arrays import Source, is_torch
from strata.checkpoint.cuda import pin
from strata.checkpoint.device_sums import load_kernels
from strata.checkpoint.filling import Filling, Placed
from strata.checkpoint.format import ALIGNMENT, header_image
from strata.checkpoint.tree import Flat
from strata.storage.memory import HugeMemory, huge_memory, populate

log = logging.getLogger(__name__)

SLACK_BYTES = 2**20
"""What a part's header and the random state of a rank take beside the tensors, generously."""


class Capture(Struct):
    """A state at one moment, as the image of a part: `segments` are (offset, bytes), in order.

    One thread fills it while another may write what is there already.
    """

    tree: object
    header: bytes
    placed: list[Placed]
    segments: list[tuple[int, memoryview]]
    size_bytes: int
    filling: Filling | None = None

    def fill(self, progress: Callable[[int], None] = lambda filled_bytes: None) -> None:
        """Copies the state; when this returns, it may change. For the thread that trains."""
        if self.filling is not None:
            self.filling.run(progress)

    def abandon(self, error: BaseException) -> None:
        """Tells the thread that writes that the rest will not come."""
        if self.filling is not None:
            self.filling.abandon(error)

    def complete(self) -> None:
        """Waits for what is still on its way from devices; for the thread that writes."""
        if self.filling is not None:
            self.filling.complete()

    def wait(self, stop: int) -> None:
        """Waits until the image is there up to that byte; for the thread that writes."""
        if self.filling is not None:
            self.filling.wait(stop)

    @property
    def filled(self) -> bool:
        """Whether all of it is there, and training goes on."""
        return self.filling is None or self.filling.ended

    def view(self, offset: int, size_bytes: int) -> memoryview:
        """Bytes of the image that lie within one segment, as those of a tensor do; waits until they
        are there."""
        self.wait(offset + size_bytes)
        return self._view(offset, size_bytes)

    def ends(self, each: Placed) -> bytes:
        """The first and the last bytes of a large tensor, which are there before the rest."""
        self.wait(0)
        last = each.offset + each.source.size_bytes - ALIGNMENT
        return bytes(self._view(each.offset, ALIGNMENT)) + bytes(self._view(last, ALIGNMENT))

    def _view(self, offset: int, size_bytes: int) -> memoryview:
        index = bisect_right(self.segments, offset, key=lambda each: each[0]) - 1
        assert index >= 0, f"no segment holds byte {offset}"
        start, segment = self.segments[index]
        return segment[offset - start : offset - start + size_bytes]


class Staging:
    """The one buffer of a manager. Whoever holds a capture of it must be done before the next."""

    def __init__(self) -> None:
        self._memory: HugeMemory | None = None
        self._preparing = threading.Lock()

    @property
    def size_bytes(self) -> int:
        return len(self._memory) if self._memory is not None else 0

    def prepare(self, size_bytes: int, device: Any = None) -> HugeMemory:
        """Makes memory ready, pinned for a CUDA device where one is named; what is large enough is
        kept. It may run in the background: a capture that begins meanwhile waits for it."""
        with self._preparing:
            if self._memory is None or size_bytes > len(self._memory):
                self._memory = None  # first, so that the old buffer is gone before the new one
                memory = huge_memory(size_bytes)
                populate(memory)
                self._memory = memory
            if device is not None:
                pin(self._memory, device)
            return self._memory

    def prepare_for(self, sources: list[Source]) -> None:
        """Makes memory ready for such a state."""
        self.prepare(sum(source.size_bytes for source in sources) + SLACK_BYTES, card_of(sources))

    def prepare_in_background(self, sources: list[Source]) -> threading.Thread:
        """Makes memory ready for such a state, in a thread: 32 GiB take about 12 s. What goes wrong
        is only logged, since the first capture tries again."""
        size_bytes = sum(source.size_bytes for source in sources) + SLACK_BYTES
        card = card_of(sources)

        def work() -> None:
            try:
                self.prepare(size_bytes, card)
                if card is not None:
                    load_kernels(card)
            except Exception as error:
                log.warning("staging memory of %d bytes is not ready: %r", size_bytes, error)

        thread = threading.Thread(target=work, name="strata-prepare", daemon=True)
        thread.start()
        return thread

    def capture(self, flat: Flat, metadata: dict[str, str]) -> Capture:
        """Copies the arrays; when this returns, the state may change."""
        capture = self.begin(flat, metadata)
        capture.fill()
        return capture

    def begin(self, flat: Flat, metadata: dict[str, str]) -> Capture:
        """A capture that is yet to be filled."""
        header, placed, size_bytes = layout(flat, metadata)
        alone = sole_bytes(flat)
        if alone is not None:
            segments = [(0, memoryview(header)), (len(header), alone)]
            return Capture(flat.tree, header, placed, segments, size_bytes)
        memory = self.prepare(size_bytes)
        view = memoryview(memory)[:size_bytes]
        np.frombuffer(memory, np.uint8)[: len(header)] = np.frombuffer(header, np.uint8)
        filling = Filling(placed, memory)
        return Capture(flat.tree, header, placed, [(0, view)], size_bytes, filling)

    def close(self) -> None:
        """Gives the memory back, when the last capture of it is gone."""
        with self._preparing:
            self._memory = None


def card_of(sources: list[Source]) -> Any:
    """The first CUDA device that a state lies on; None where it lies on none."""
    values = (source.value for source in sources if is_torch(source.value))
    return next((value.device for value in values if value.is_cuda), None)


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
