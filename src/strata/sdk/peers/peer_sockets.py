"""Connections between workers, and whether the other host still answers.

A host that is switched off, or cut off by the network, closes no connection. TCP gives up unsent
data after a quarter of an hour, and never notices while there is none. So the kernel probes idle
connections, and a worker that waits looks at how long nothing was acknowledged. A process that is
stopped, or computes for long, is no reason: its kernel acknowledges. A receiver that takes no data
(its window is closed) is none either, so the kernel's own `TCP_USER_TIMEOUT` is of no use: it ends
such connections.
"""

import socket
import struct
import sys

TCP_INFO_BYTES = 104
RETRANSMITS, PROBES = 2, 3  # offsets in the kernel's `struct tcp_info`
LAST_ACK_MS = 56
MANY_PROBES = 3
KEEPALIVES = 3


def prepared(link: socket.socket, peer_timeout_s: float) -> socket.socket:
    """A connection that blocks, sends at once, and is probed while it is idle."""
    link.settimeout(None)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        third_s = max(1, round(peer_timeout_s / 3))
        each_s = max(1, round(peer_timeout_s * 2 / 3 / KEEPALIVES))
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, third_s)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, each_s)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVES)
    return link


def unanswered_s(link: socket.socket) -> float:
    """Seconds since the other host last acknowledged anything, if it owes an answer; else 0.

    It does if data was sent again, or several probes were sent, without an acknowledgement.
    """
    if sys.platform != "linux":
        return 0.0
    info = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    if not info[RETRANSMITS] and info[PROBES] < MANY_PROBES:
        return 0.0
    return float(struct.unpack_from("I", info, LAST_ACK_MS)[0]) / 1000
