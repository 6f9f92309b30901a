"""The user at the other end of a loopback connection, from the kernel's socket table.

Only an open socket of a living process counts. A closed socket has no owner, and the kernel lists
it with user 0: it would be taken for one of root.
"""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import TypeAlias

Address: TypeAlias = tuple[str, int]

ROOT = 0
ESTABLISHED = 1
NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
REQUEST = 1
ANY_COOKIE = 0xFFFFFFFF
TIMEOUT_S = 1.0

_HEADER = struct.Struct("=IHHII")
_WANTED = struct.Struct("=BBBxI")
_SOCKET = struct.Struct("!HH16s16s")
_REST = struct.Struct("=III")
_FOUND = struct.Struct("=BB2x48xIIIII")


def is_own_user(peer: Address, own: Address) -> bool:
    """Whether the peer of a connection is this process's user or root; `own` is our end of it."""
    return peer_user(peer, own) in (ROOT, os.geteuid())


def peer_user(peer: Address, own: Address) -> int | None:
    """The user of the process at the other end; None if it cannot be told."""
    try:
        return _by_netlink(_plain(peer[0]), peer[1], _plain(own[0]), own[1])
    except OSError:  # a kernel without sock_diag
        return _by_table(_plain(peer[0]), peer[1], _plain(own[0]), own[1])


def _plain(host: str) -> IPv4Address | IPv6Address:
    """An address; an IPv4 one that is written as IPv6 is taken as IPv4."""
    found = ip_address(host.partition("%")[0])
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found


def _by_netlink(
    peer: IPv4Address | IPv6Address, port: int, own: IPv4Address | IPv6Address, own_port: int
) -> int | None:
    family = socket.AF_INET if peer.version == 4 else socket.AF_INET6
    asked = (
        _WANTED.pack(family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF)
        + _SOCKET.pack(port, own_port, peer.packed, own.packed)
        + _REST.pack(0, ANY_COOKIE, ANY_COOKIE)
    )
    head = _HEADER.pack(_HEADER.size + len(asked), SOCK_DIAG_BY_FAMILY, REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(TIMEOUT_S)
        kernel.send(head + asked)
        answer = kernel.recv(4096)
    _, kind, *_ = _HEADER.unpack_from(answer)
    if kind != SOCK_DIAG_BY_FAMILY:
        return _by_table(peer, port, own, own_port)  # not found, or not asked for in this way
    _, state, _, _, _, user, inode = _FOUND.unpack_from(answer, _HEADER.size)
    return int(user) if state == ESTABLISHED and inode else None


def _by_table(
    peer: IPv4Address | IPv6Address, port: int, own: IPv4Address | IPv6Address, own_port: int
) -> int | None:
    ends = [f"{_hex(peer)}:{port:04X}", f"{_hex(own)}:{own_port:04X}"]
    for line in _lines("tcp" if peer.version == 4 else "tcp6"):
        _, *found, state, _, _, _, user, _, inode = line.split()[:10]
        if found == ends:
            return int(user) if int(state, 16) == ESTABLISHED and inode != "0" else None
    return None


def _lines(table: str) -> Iterator[str]:
    with suppress(OSError):
        yield from Path(f"/proc/net/{table}").read_text("ascii").splitlines()[1:]


def _hex(address: IPv4Address | IPv6Address) -> str:
    """An address as the table has it: words of 32 bits in the order of this machine."""
    words = struct.unpack(f"={len(address.packed) // 4}I", address.packed)
    return "".join(f"{word:08X}" for word in words)
