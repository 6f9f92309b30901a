"""A connection of an exchange: never blocks, and is encrypted if the task has a certificate."""

import socket
import ssl
from collections.abc import Callable

from strata.sdk.peers.peer_encryption import PeerEncryption


class Link:
    """A connected socket. Calls that would block raise `BlockingIOError`."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self.socket = connected
        self._peeked = bytearray()

    def fileno(self) -> int:
        """The descriptor, for `select`."""
        return self.socket.fileno()

    def send(self, part: memoryview | bytes) -> int:
        """Send as much as possible; returns the number of bytes. Repeat a call that blocks with
        the same bytes."""
        try:
            return self.socket.send(part)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error

    def receive_into(self, part: memoryview) -> int:
        """Receive at most as much as the buffer holds; 0 if the other side has closed."""
        if self._peeked:
            count = min(len(self._peeked), part.nbytes)
            part[:count] = self._peeked[:count]
            del self._peeked[:count]
            return count
        try:
            return self.socket.recv_into(part)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error

    def peek(self, size: int) -> bytes:
        """At most `size` bytes that `receive_into` will return again; empty if closed."""
        if len(self._peeked) < size:
            held, self._peeked = self._peeked, bytearray()
            more = bytearray(size - len(held))
            try:
                del more[self.receive_into(memoryview(more)) :]
            except BlockingIOError:
                more.clear()
                if not held:
                    raise
            finally:
                self._peeked = held
            self._peeked += more
        return bytes(self._peeked[:size])

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()


def greeted(
    accepted: socket.socket, encryption: PeerEncryption | None, size: int, timeout_s: float
) -> tuple[socket.socket, bytes]:
    """Complete an accepted connection; returns it and its first bytes, or raises `OSError`."""
    accepted.settimeout(timeout_s)
    link = accepted if encryption is None else encryption.accepted(accepted)
    first = bytearray()
    while len(first) < size:
        part = link.recv(size - len(first))
        if not part:
            raise ConnectionResetError("the connection was closed before its greeting")
        first += part
    return link, bytes(first)


def connected(
    link: socket.socket, encryption: PeerEncryption | None, wait: Callable[[ssl.SSLSocket], None]
) -> socket.socket:
    """Complete an opened connection; `wait` is called while the other side does not answer."""
    if encryption is None:
        return link
    encrypted = encryption.connected(link, handshake=False)
    encrypted.setblocking(False)
    while True:
        try:
            encrypted.do_handshake()
            return encrypted
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            wait(encrypted)
        except BaseException:
            encrypted.close()
            raise
