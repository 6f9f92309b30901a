"""Checksums of tensors on a CUDA device, computed on the device.

A tensor's bytes are read as 32-bit words, in rows of 1,024. A row's checksum is the sum of its
words, each times a fixed random 64-bit weight, modulo 2^64: two rows that differ have the same sum
with a probability below 2^-32. Integer sums do not depend on their order, so every device gets the
same result. The rows' sums (1/512 of the bytes) are copied to the host, where xxh3 makes one
checksum of them.

This module only starts kernels, in the stream of the training thread, and waits for nothing. They
move five times the bytes of the state through the device's memory: 7.5 GB for a state of 1.5 GB,
which takes 2 ms at 4 TB/s (an H200); tests/gpu/test_checkpoint_cuda.py measures it. Tensors smaller
than a row, and the remainders of larger ones, are gathered first, so that thousands of small
tensors cost a few kernels and not some each.
"""

import sys
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROW_WORDS = 1024
ROW_BYTES = 4 * ROW_WORDS
CHUNK_ROWS = 8192
"""Bytes of a state per step; the products take twice as much (64 MiB)."""

SMALL_CHUNK_ROWS = 256
SEED = 0x5374726174


@cache
def weights() -> NDArray[np.int64]:
    """The factor for each word of a row."""
    limits = np.iinfo(np.int64)
    random = np.random.Generator(np.random.PCG64(SEED))
    return random.integers(limits.min, limits.max, ROW_WORDS, np.int64, endpoint=True)


@cache
def weights_on(device: Any) -> Any:
    """The weights on a device. Copying them waits for the device, so it is done once, by
    `load_kernels` in the background.
    """
    torch: Any = sys.modules["torch"]
    return torch.from_numpy(weights()).to(device)


class RowSums:
    """The pending sums of some tensors of one device. `read` may be called in any thread."""

    def __init__(self, torch: Any, device: Any, tensors: list[Any]) -> None:
        self._torch, self._device = torch, device
        flats = [flat_bytes(torch, tensor) for tensor in tensors]
        self._bodies = [flat.numel() // ROW_BYTES for flat in flats]
        self._tails = [flat.numel() % ROW_BYTES for flat in flats]
        count = sum(self._bodies) + sum(tail > 0 for tail in self._tails)
        self._sums = torch.empty(count, dtype=torch.int64, device=device)
        with torch.no_grad():
            try:
                self._start(flats, CHUNK_ROWS)
            except torch.cuda.OutOfMemoryError:
                self._start(flats, SMALL_CHUNK_ROWS)
        self._event: Any = None
        if device.type == "cuda":
            with torch.cuda.device(device):
                self._event = torch.cuda.Event()
                self._event.record()

    def _start(self, flats: list[Any], chunk_rows: int) -> None:
        """Start the sums: the complete rows of every tensor, in order, then the remainders."""
        torch, at = self._torch, 0
        factors = weights_on(self._device)
        products = torch.empty((chunk_rows, ROW_WORDS), dtype=torch.int64, device=self._device)
        tails = self._gathered(flats)
        for flat in [*flats, tails]:
            rows = flat.numel() // ROW_BYTES
            words = flat[: rows * ROW_BYTES].view(torch.int32).view(rows, ROW_WORDS)
            for start in range(0, rows, chunk_rows):
                some = words[start : start + chunk_rows]
                product = products[: some.shape[0]]
                torch.mul(some, factors, out=product)
                torch.sum(product, 1, out=self._sums[at : at + some.shape[0]])
                at += some.shape[0]

    def _gathered(self, flats: list[Any]) -> Any:
        """The last bytes of every tensor that does not end with a row, one row for each."""
        torch = self._torch
        pairs = [(flat, tail) for flat, tail in zip(flats, self._tails, strict=True) if tail]
        rows = torch.zeros(len(pairs) * ROW_BYTES, dtype=torch.uint8, device=self._device)
        if pairs:
            targets = [row[:tail] for row, (_, tail) in zip(rows.split(ROW_BYTES), pairs)]  # noqa: B905
            torch._foreach_copy_(targets, [flat[-tail:] for flat, tail in pairs])
        return rows

    def read(self) -> list[bytes]:
        """The sums of each tensor's rows, as bytes; waits until they are computed."""
        torch = self._torch
        if self._event is None:
            sums = self._sums.numpy()
        else:
            stream = torch.cuda.Stream(self._device)
            stream.wait_event(self._event)
            with torch.cuda.stream(stream):
                sums = self._sums.cpu().numpy()
        body, tail, found = 0, sum(self._bodies), []
        for rows, left in zip(self._bodies, self._tails, strict=True):
            own = sums[body : body + rows].tobytes()
            found.append(own + (sums[tail : tail + 1].tobytes() if left else b""))
            body, tail = body + rows, tail + (left > 0)
        return found


def load_kernels(device: Any) -> None:
    """Load the kernels that the sums need; takes some milliseconds the first time."""
    torch: Any = sys.modules["torch"]
    with torch.cuda.stream(torch.cuda.Stream(device)):
        RowSums(torch, device, [torch.zeros(ROW_BYTES + 1, dtype=torch.uint8, device=device)])
        torch.cuda.current_stream(device).synchronize()


def flat_bytes(torch: Any, tensor: Any) -> Any:
    """A tensor's bytes in C order, on its device, aligned to a word; copied only if necessary."""
    value = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    flat = value.view(torch.uint8)
    return flat if flat.data_ptr() % 4 == 0 else flat.clone()
