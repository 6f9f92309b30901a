"""Copies tensors from accelerators: a snapshot on the device, or one copy into pinned memory.

If the device has enough memory, the state is copied there first: on an H200 8 GiB take 5 ms, and
training continues at once, since its work comes after the copy in the same stream. The copy to the
host is made from the snapshot, in the background and on a separate stream. The device has enough
memory if the snapshot fits into memory that training has never used, with a margin: what PyTorch
holds in its cache is needed by the next step.

Otherwise training waits for the copy to the host. That takes 6.6 s for 8 GiB into ordinary memory,
since it goes through a small pinned buffer of the driver, and 0.156 s into pinned memory. So the
staging buffer is registered with the driver once; if that fails, the ordinary copy is used. The
buffer unregisters itself before it is unmapped (see `storage/huge_pages`).
"""

import os
import sys
import threading
from functools import partial
from typing import Any

from strata.checkpoint.state.array_bytes import Bytes, TensorSource
from strata.storage.huge_pages import HugeMemory

SPARE_SHARE = 0.05
"""The fraction of a device's memory that a snapshot leaves free for other libraries."""


def on_device(source: TensorSource) -> bool:
    return bool(source.value.device.type != "cpu")


class DeviceSnapshot:
    """Copies of tensors on their own devices, as they were when the snapshot was taken."""

    def __init__(self, torch: Any, sources: list[TensorSource], copies: list[Any]) -> None:
        self._torch = torch
        self._copies = copies
        self._taken: dict[Any, Any] = {}
        for device in {source.value.device for source in sources}:
            with torch.cuda.device(device):
                event = torch.cuda.Event()
                event.record()
            self._taken[device] = event

    def copy_to(self, slots: list[Bytes], memory: HugeMemory) -> None:
        """Copy the snapshot to the host; called in a background thread."""
        torch = self._torch
        pinned = pin(memory, next(iter(self._taken)))
        streams = {device: torch.cuda.Stream(device) for device in self._taken}
        for device, stream in streams.items():
            stream.wait_event(self._taken[device])
        for copy, slot in zip(self._copies, slots, strict=True):
            with torch.cuda.stream(streams[copy.device]):
                host_view(torch, slot, copy).copy_(copy, non_blocking=pinned)
        for stream in streams.values():
            stream.synchronize()
        self._copies = []


def take_snapshot(sources: list[TensorSource]) -> DeviceSnapshot | None:
    """Copy every tensor on its device, without waiting; None if there is not enough memory."""
    torch: Any = sys.modules["torch"]
    if not all(source.value.is_cuda for source in sources) or not has_room(torch, sources):
        return None
    values = [copyable(torch, source) for source in sources]
    try:
        copies = [
            torch.empty_like(value, memory_format=torch.contiguous_format) for value in values
        ]
        torch._foreach_copy_(copies, values, non_blocking=True)
    except torch.cuda.OutOfMemoryError:
        return None
    return DeviceSnapshot(torch, sources, copies)


def copyable(torch: Any, source: TensorSource) -> Any:
    """A tensor that can be copied: for types that are stored as bytes a view of the bytes, since
    PyTorch lacks some kernels for them.
    """
    value = source.value.detach()
    if source.raw_dtype is None:
        return value
    return value.resolve_conj().contiguous().reshape(-1).view(torch.uint8)


def has_room(torch: Any, sources: list[TensorSource]) -> bool:
    """Whether every device can hold the snapshot in addition to the most that training has used."""
    wanted: dict[Any, int] = {}
    for source in sources:
        device = source.value.device
        if not str(device).startswith("cuda"):
            continue
        wanted[device] = wanted.get(device, 0) + source.size_bytes
    for device, size_bytes in wanted.items():
        free, total = torch.cuda.mem_get_info(device)
        given_back = torch.cuda.max_memory_reserved(device) - torch.cuda.memory_reserved(device)
        if free - given_back < size_bytes + SPARE_SHARE * total:
            return False
    return True


def copy_from_devices(pairs: list[tuple[TensorSource, Bytes]], memory: HugeMemory) -> None:
    """Start all copies, then wait for them; the slots lie in `memory`."""
    torch: Any = sys.modules["torch"]
    devices = {source.value.device for source, _ in pairs if source.value.is_cuda}
    pinned = bool(devices) and pin(memory, next(iter(devices)))
    for source, slot in pairs:
        if source.size_bytes:
            value = copyable(torch, source)
            host_view(torch, slot, value).copy_(value, non_blocking=pinned)
    if pinned:
        for device in devices:
            torch.cuda.current_stream(device).synchronize()


def host_view(torch: Any, slot: Bytes, value: Any) -> Any:
    """Bytes of the staging buffer as a tensor of the same type and shape."""
    return torch.from_numpy(slot).view(value.dtype).reshape(value.shape)


def pin(memory: HugeMemory, device: Any) -> bool:
    """Pin the staging buffer until it is unmapped; return whether it is pinned."""
    if memory.unpin is None:
        # In a separate thread: CUDA keeps an error for the thread that got it, and would raise it
        # at that thread's next call.
        thread = threading.Thread(target=_register, args=(memory, device), name="strata-pin")
        thread.start()
        thread.join()
    return memory.unpin is not None


def _register(memory: HugeMemory, device: Any) -> None:
    torch: Any = sys.modules["torch"]
    start = memory.address
    with torch.cuda.device(
        device
    ):  # a thread starts on device 0, which may belong to another worker
        if int(torch.cuda.cudart().cudaHostRegister(start, len(memory), 0)) == 0:
            memory.unpin = partial(_unregister, torch, start, os.getpid())


def _unregister(torch: Any, start: int, process: int) -> bool:
    """Unpin a buffer; does nothing in a forked child, which has no pinned memory."""
    if os.getpid() != process:
        return True
    return int(torch.cuda.cudart().cudaHostUnregister(start)) == 0
