"""Accepted sockets of the HTTP server until their TLS handshake is done.

With a TLS context asyncio reports a connection only after its handshake, so clients that never
finish it could use up all open files. Therefore sockets are accepted without TLS, counted, and
upgraded afterwards. At the limit a new one closes the oldest.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

from strata.wire.grpc.grpc_server import secure

MAX_HANDSHAKES = 256


class Handshakes:
    """The sockets whose handshake is not done, oldest first."""

    def __init__(self, context: ssl.SSLContext, limit: int = MAX_HANDSHAKES) -> None:
        self.context = context
        self._limit = limit
        self._pending: dict[asyncio.Transport, None] = {}

    def admit(self, transport: asyncio.Transport) -> None:
        """Count a socket; closes the oldest one if there are too many."""
        if len(self._pending) >= self._limit:
            oldest = next(iter(self._pending))
            self.dismiss(oldest)
            oldest.abort()
        self._pending[transport] = None

    def dismiss(self, transport: asyncio.Transport) -> None:
        """Stop counting a socket; harmless if it is not counted."""
        self._pending.pop(transport, None)

    def close(self) -> None:
        """Close all of them."""
        for transport in list(self._pending):
            transport.abort()
        self._pending.clear()


class EncryptedAccept(asyncio.Protocol):
    """An accepted socket; `make` makes the protocol of the encrypted connection."""

    def __init__(self, handshakes: Handshakes, make: Callable[[], asyncio.Protocol]) -> None:
        self._handshakes, self._make = handshakes, make
        self._early = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the handshake."""
        self._plain = cast(asyncio.Transport, transport)
        self._handshakes.admit(self._plain)
        secure(self._plain, self, self._handshakes.context, self._secured)

    def data_received(self, data: bytes) -> None:
        """Keep what arrives between the end of the handshake and `_secured`, in the same turn."""
        self._early += data

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting the socket."""
        self._handshakes.dismiss(self._plain)

    def _secured(self, encrypted: asyncio.Transport | None) -> None:
        self._handshakes.dismiss(self._plain)
        if encrypted is None or encrypted.is_closing():
            self._plain.abort()
            return
        served = self._make()
        encrypted.set_protocol(served)
        served.connection_made(encrypted)
        if self._early and not encrypted.is_closing():
            served.data_received(bytes(self._early))
