"""TLS between the workers of a task, with the certificate that the coordinator sends them.

Both sides present the task's certificate and accept no other, so only workers of the task can
connect, and nobody between them can read or change what they send. TLS 1.3 agrees on new keys for
each connection: the certificate's key does not decrypt what was recorded before.
"""

import os
import socket
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from strata.wire.certificates import BEGIN


class PeerEncryption:
    """The two sides of the connections of a task."""

    def __init__(self, certificate: str) -> None:
        self._server = _context(ssl.PROTOCOL_TLS_SERVER, certificate)
        self._client = _context(ssl.PROTOCOL_TLS_CLIENT, certificate)

    def accepted(self, link: socket.socket) -> ssl.SSLSocket:
        """The encrypted side of an accepted connection, after the handshake."""
        return self._server.wrap_socket(link, server_side=True)

    def connected(self, link: socket.socket, *, handshake: bool = True) -> ssl.SSLSocket:
        """The encrypted side of a connection that this worker has opened."""
        return self._client.wrap_socket(link, do_handshake_on_connect=handshake)


@lru_cache(maxsize=8)
def peer_encryption(certificate: str) -> PeerEncryption | None:
    """The encryption with a task's certificate; None if the coordinator has sent none."""
    return PeerEncryption(certificate) if certificate else None


def _context(protocol: int, certificate: str) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate itself is compared, and it has no name
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certificate[certificate.index(BEGIN) :])
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0
    with _file_with(certificate) as path:
        context.load_cert_chain(path)
    return context


@contextmanager
def _file_with(text: str) -> Iterator[str]:
    """The path of a file with this text, in memory where the system can: `ssl` reads only files."""
    if not hasattr(os, "memfd_create"):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(text)
            file.flush()
            yield file.name
        return
    descriptor = os.memfd_create("strata-peer-certificate")
    try:
        os.write(descriptor, text.encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
