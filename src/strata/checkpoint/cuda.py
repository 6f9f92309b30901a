"""Copying tensors from accelerators: pinned once, all copies in flight, one wait.

A copy from a GPU into ordinary memory goes through a small pinned buffer of the driver and takes
6.6 s for 8 GiB on an H200; into pinned memory 0.156 s. The staging buffer is registered with the
driver once; where that is refused, the ordinary copy is taken.
"""

import sys
from typing import Any

from strata.checkpoint.arrays import Bytes, Source

_registered: dict[int, int] = {}


def on_device(source: Source) -> bool:
    return bool(source.value.device.type != "cpu")


def copy_from_devices(pairs: list[tuple[Source, Bytes]], image: Bytes) -> None:
    """Starts every copy, then waits for all; the host's memory is `image`."""
    torch: Any = sys.modules["torch"]
    pinned = torch.cuda.is_available() and register(torch, image)
    for source, slot in pairs:
        if source.size_bytes:
            target = torch.from_numpy(slot).view(source.value.dtype).reshape(source.value.shape)
            target.copy_(source.value.detach(), non_blocking=pinned)
    if pinned:
        for device in {source.value.device for source, _ in pairs if source.value.is_cuda}:
            torch.cuda.synchronize(device)


def register(torch: Any, image: Bytes) -> bool:
    """Pins the staging buffer; True where it is pinned."""
    start, size = int(image.ctypes.data), image.nbytes
    if _registered.get(start, 0) >= size:
        return True
    runtime = torch.cuda.cudart()
    if start in _registered:
        runtime.cudaHostUnregister(start)
    done = int(runtime.cudaHostRegister(start, size, 0)) == 0
    if done:
        _registered[start] = size
    return done
