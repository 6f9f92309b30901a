"""Measure the resources of this process and its host, for heartbeats and `ResourceSnapshot`.

CPU and memory are those of this process. CPU is measured over at least a second, because shorter
intervals show the kernel's ticks; 100 is one core. Disk is the number of bytes this process read
from and wrote to the block layer; reads from the page cache do not count. GPUs are read through
NVML, if there is a driver.

Network is the number of bytes that this process received and sent over TCP; for another process
that works for this one it is unknown. The kernel counts traffic per network namespace and per
socket, not per process; the namespace is that of the whole host or container. So `TCP_INFO` is read
from all sockets of the process, of every library: gRPC, storage, gloo, nccl. Loopback counts. A
closed socket counts with its last reading; a connection that opened and closed between two readings
is missed, and traffic without TCP (RDMA, shared memory) is not counted. Only Linux has these
counters. The sockets are read through the C library: a Python socket object for another library's
descriptor could change its blocking mode.

A sample never fails: unreadable values are 0, GPUs are left out, and network is None. It takes a
tenth of a millisecond, plus 0.03 ms per GPU (measured with an H200).
"""

import ctypes
import os
import shutil
import sys
import time
from pathlib import Path
from struct import Struct as Layout

import psutil
from msgspec import Struct

from strata.core.workers.heartbeats import ResourceMetrics
from strata.sdk.record.gpu_cards import Cards, visible_cards
from strata.storage.mounts import shared_source

_IPPROTO_TCP = 6
_TCP_INFO = 11
_ROOM_BYTES = 512
_RECEIVED = Layout("@128xQ")
_SENT = Layout("@200xQQ")  # sent, and retransmitted


class Traffic(Struct, frozen=True):
    """Bytes received and sent since the start of the process."""

    received_bytes: int
    sent_bytes: int


class NetworkCounter:
    """Counts the bytes of open sockets and the last readings of closed ones."""

    def __init__(self) -> None:
        self._open: dict[int, Traffic] = {}
        self._closed = Traffic(0, 0)
        self._buffer = ctypes.create_string_buffer(_ROOM_BYTES)
        self._library = ctypes.CDLL(None) if sys.platform == "linux" else None

    def look(self) -> Traffic | None:
        """The traffic so far; None if the sockets cannot be read."""
        try:
            found = self._sockets()
        except OSError:
            return None
        if found is None:
            return None
        gone = [count for inode, count in self._open.items() if inode not in found]
        self._closed, self._open = _sum([self._closed, *gone]), found
        return _sum([self._closed, *found.values()])

    def _sockets(self) -> dict[int, Traffic] | None:
        if self._library is None:
            return None
        found: dict[int, Traffic] = {}
        for name in os.listdir("/proc/self/fd"):
            size = ctypes.c_uint32(_ROOM_BYTES)
            if self._library.getsockopt(
                int(name), _IPPROTO_TCP, _TCP_INFO, self._buffer, ctypes.byref(size)
            ):
                continue  # not a TCP socket
            if size.value < _SENT.size:
                return None  # the kernel does not count bytes per socket
            sent, again = _SENT.unpack_from(self._buffer)
            (received,) = _RECEIVED.unpack_from(self._buffer)
            try:
                found[os.fstat(int(name)).st_ino] = Traffic(received, sent - again)
            except OSError:
                continue  # closed since it was listed
        return found


def _sum(counts: list[Traffic]) -> Traffic:
    return Traffic(
        sum(each.received_bytes for each in counts), sum(each.sent_bytes for each in counts)
    )


CPU_WINDOW_S = 1.0
SHORTEST_S = 0.01


class ResourceSampler:
    """Samples the resources of this process and the GPUs that it may use."""

    def __init__(self, path: str | Path = ".") -> None:
        self._path = path
        self._network = NetworkCounter()
        self._cards = Cards(visible_cards())
        self._device, self._source = -1, ""
        self.follow(os.getpid())

    def follow(self, pid: int) -> None:
        """Measure another process from now on."""
        self._process = psutil.Process(pid)
        self._cpu_percent, self._cpu_since_s = mean_cpu_percent(self._process), time.monotonic()

    def sample(self) -> ResourceMetrics:
        """Take a sample."""
        cpu_percent, memory_bytes, read_bytes, written_bytes = self._own()
        traffic = self.watch_network()
        return ResourceMetrics(
            cpu_percent=cpu_percent,
            memory_used_bytes=memory_bytes,
            gpu_metrics=self._cards.read(),
            disk_read_bytes=read_bytes,
            disk_write_bytes=written_bytes,
            disk_free_bytes=free_bytes(self._path),
            disk_source=self._disk_source(),
            network_rx_bytes=traffic.received_bytes if traffic is not None else None,
            network_tx_bytes=traffic.sent_bytes if traffic is not None else None,
        )

    def _disk_source(self) -> str:
        """The network file system of the path; looked up when another device is there."""
        try:
            device = os.stat(self._path).st_dev
        except OSError:
            return ""
        if device != self._device:
            self._device, self._source = device, shared_source(self._path)
        return self._source

    def watch_network(self) -> Traffic | None:
        """Count the bytes of the sockets; short connections between two calls are missed."""
        return self._network.look() if self._process.pid == os.getpid() else None

    def _own(self) -> tuple[float, int, int, int]:
        try:
            cpu_percent = self._cpu()
            memory_bytes = self._process.memory_info().rss
        except (psutil.Error, OSError):
            return 0.0, 0, 0, 0
        try:
            counted = self._process.io_counters()
        except (psutil.Error, OSError, AttributeError):
            # Not counted on macOS, and hidden in some containers.
            return cpu_percent, memory_bytes, 0, 0
        return cpu_percent, memory_bytes, counted.read_bytes, counted.write_bytes

    def _cpu(self) -> float:
        now_s = time.monotonic()
        if now_s - self._cpu_since_s >= CPU_WINDOW_S:
            self._cpu_percent, self._cpu_since_s = self._process.cpu_percent(), now_s
        return self._cpu_percent


def mean_cpu_percent(process: psutil.Process) -> float:
    """The CPU use of a process since its start, in percent of one core; restarts the measure."""
    try:
        process.cpu_percent()
        used = process.cpu_times()
        lived_s = time.time() - process.create_time()
    except (psutil.Error, OSError):
        return 0.0
    return 100 * (used.user + used.system) / max(lived_s, SHORTEST_S)


def free_bytes(path: str | Path) -> int:
    """The free space of the file system of a path."""
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return 0
