"""Bytes that this process received and sent over TCP, by the kernel's count of each of its sockets.

The kernel counts traffic by network namespace and by socket, not by process; the namespace's count
is that of the whole host, or container. So the process's own sockets are asked (`TCP_INFO`), those
of every library in it: gRPC, storage, gloo, nccl. Loopback counts. A socket that was closed counts
with what was seen of it last; a connection that opened and closed between two looks is missed, and
what does not use TCP (RDMA, shared memory) is not counted. Outside of Linux there is no count.

The sockets are asked through the C library: a Python socket object made for a descriptor of another
library could change its blocking mode.
"""

import ctypes
import os
import sys
from struct import Struct as Layout

from msgspec import Struct

_IPPROTO_TCP = 6
_TCP_INFO = 11
_ROOM_BYTES = 512
_RECEIVED = Layout("@128xQ")
_SENT = Layout("@200xQQ")  # sent, and sent again


class Traffic(Struct, frozen=True):
    """Bytes received and sent since the process began."""

    received_bytes: int
    sent_bytes: int


class NetworkCounter:
    """Counts on request; keeps what closed sockets had."""

    def __init__(self) -> None:
        self._open: dict[int, Traffic] = {}
        self._closed = Traffic(0, 0)
        self._buffer = ctypes.create_string_buffer(_ROOM_BYTES)
        self._library = ctypes.CDLL(None) if sys.platform == "linux" else None

    def look(self) -> Traffic | None:
        """What was counted so far; None where sockets cannot be asked."""
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
                return None  # a kernel that does not count bytes by socket
            sent, again = _SENT.unpack_from(self._buffer)
            (received,) = _RECEIVED.unpack_from(self._buffer)
            try:
                found[os.fstat(int(name)).st_ino] = Traffic(received, sent - again)
            except OSError:
                continue  # closed meanwhile
        return found


def _sum(counts: list[Traffic]) -> Traffic:
    return Traffic(
        sum(each.received_bytes for each in counts), sum(each.sent_bytes for each in counts)
    )
