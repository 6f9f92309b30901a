"""HTTP server: uvicorn in the coordinator's event loop.

HTTP is parsed by h11, which limits the size of a request's head; the faster parser does not. In
addition to uvicorn's protocol, a request must arrive in time and a client must read its response in
time, so that no client can hold a connection for ever.
"""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from errno import EADDRINUSE
from typing import Any

import msgspec
import uvicorn
from msgspec import Struct
from uvicorn.protocols.http.h11_impl import H11Protocol

from strata.coordinator.rest.encrypted_accept import EncryptedAccept, Handshakes
from strata.coordinator.rest.http_connections import HttpConnections
from strata.coordinator.rest.request_checks import HttpLimits
from strata.coordinator.rest.response_models import ErrorDetail, ErrorResponse
from strata.coordinator.rest.security import Guard
from strata.coordinator.server_certificates import HTTP, ServerCertificates
from strata.errors import (
    InvalidArgument,
    PermissionDenied,
    SettingError,
    StrataError,
    Unavailable,
)
from strata.wire.grpc.connection_budget import network_of
from strata.wire.port_holders import port_holder

STOP_TIMEOUT_S = 5
KEEP_ALIVE_S = 15
BACKLOG = 1024


class Served(Struct, frozen=True):
    """Address of the API; `port` is the actual port if 0 was requested."""

    host: str
    port: int
    url: str


class PortInUse(Unavailable):
    """Another process listens on a port."""


@asynccontextmanager
async def serve(
    app: Guard, host: str, port: int, tls: ServerCertificates | None = None
) -> AsyncIterator[Served]:
    """Serve while the context is open; at exit streams end and running requests finish."""
    listening = listen(host, port)
    with listening:
        handshakes = Handshakes(tls.context(HTTP)) if tls is not None else None
        server = Server(_config(app, handshakes, certified=tls is not None and bool(tls.client_ca)))
        running = asyncio.create_task(server.serve(sockets=[listening]), name="strata-http")
        try:
            await server.ready.wait()
            real_port = listening.getsockname()[1]
            scheme = "https" if tls is not None else "http"
            shown = f"[{host}]" if ":" in host else host
            yield Served(host, real_port, f"{scheme}://{shown}:{real_port}")
        finally:
            app.closing.set()
            server.should_exit = True
            if handshakes is not None:
                handshakes.close()
            await running


def listen(host: str, port: int) -> socket.socket:
    """Create a listening socket; raises an error with a hint if that fails."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise SettingError(
            f"http_host {host!r} is not an address of this machine: {error.strerror}",
            hint="use 127.0.0.1, or 0.0.0.0 with a token",
        ) from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
        return listening
    except OSError as error:
        listening.close()
        raise port_error("http", host, port, error) from error


def port_error(name: str, host: str, port: int, error: OSError) -> StrataError:
    """The error for a port that cannot be used; `name` is `http` or `grpc`, as in the settings."""
    if error.errno == EADDRINUSE:
        holder = port_holder(port)
        return PortInUse(
            f"port {port} on {host} is in use{f' by {holder}' if holder else ''}",
            hint=f"stop the process that uses it, or choose another port with --{name}-port",
        )
    reason = os.strerror(error.errno) if error.errno else str(error)
    return SettingError(
        f"cannot listen on port {port} of {host!r}: {reason}",
        hint=f"choose another address with --{name}-host or --{name}-port",
    )


def _config(app: Guard, handshakes: Handshakes | None, *, certified: bool) -> uvicorn.Config:
    connections = HttpConnections(app.limits.connections)

    def protocol(**kwargs: Any) -> asyncio.Protocol:
        def make() -> BoundedProtocol:
            return BoundedProtocol(app.limits, connections, certified, **kwargs)

        return make() if handshakes is None else EncryptedAccept(handshakes, make)

    config = uvicorn.Config(
        app,
        http=protocol,  # type: ignore[arg-type]  # called like the class it makes
        ws="none",
        lifespan="on",
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_TIMEOUT_S,
    )
    config.load()
    return config


class Server(uvicorn.Server):
    """Uvicorn without signal handlers, with an event for readiness."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers; the coordinator stops the server."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections."""
        try:
            await super().startup(sockets)
        finally:
            self.ready.set()


LINGER_S = 1.0


def refusal(status: bytes, error: StrataError) -> bytes:
    """A whole response, for a connection whose request is not read."""
    body = msgspec.json.encode(ErrorResponse(ErrorDetail(error.code, error.message, error.hint)))
    return (
        b"HTTP/1.1 %s\r\nconnection: close\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%s" % (status, len(body), body)
    )


NOT_HTTP = refusal(
    b"400 Bad Request",
    InvalidArgument(
        "the request is not valid HTTP, or its head is too long",
        hint="shorten the URL and the headers",
    ),
)
ALL_IN_USE = refusal(
    b"503 Service Unavailable\r\nretry-after: 1",
    Unavailable("all HTTP connections are in use", hint="try again in a moment"),
)
NO_CERTIFICATE = refusal(
    b"403 Forbidden",
    PermissionDenied(
        "this coordinator requires a client certificate, and none was presented",
        hint="commands: set STRATA_TLS_CLIENT_CERT and STRATA_TLS_CLIENT_KEY; a browser: import "
        "a certificate that the authority in tls_client_ca has signed",
    ),
)


def has_certificate(transport: asyncio.Transport) -> bool:
    """Whether the client has presented a certificate, which the handshake has verified."""
    encrypted = transport.get_extra_info("ssl_object")
    return encrypted is not None and encrypted.getpeercert(binary_form=True) is not None


class BoundedProtocol(H11Protocol):
    """A connection with timeouts for incomplete requests and slow readers."""

    def __init__(
        self, limits: HttpLimits, connections: HttpConnections, certified: bool, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.app_state = {**self.app_state, "allow": self._allow}
        self.network = ""
        self._limits = limits
        self._open = connections
        self._allowed = False
        self._certified = certified
        self._head: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._refused = False

    @property
    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, unless there are too many."""
        super().connection_made(transport)
        self.network = network_of(self.client[0]) if self.client else ""
        if self._open.admit(self):
            self._await_head()
        else:
            self._refused = True
            transport.write(ALL_IN_USE)
            transport.close()

    @property
    def in_use(self) -> bool:
        """Whether a request that was allowed is not answered yet."""
        return self._allowed and not self._idle

    def evict(self) -> None:
        """Close at once, for another connection."""
        self.transport.abort()

    def _allow(self) -> None:
        self._allowed = True

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request; the rest of its head must arrive in time."""
        if self._refused:
            return
        if self._certified and not has_certificate(self.transport):
            return self._refuse(NO_CERTIFICATE)
        super().data_received(data)
        if not self._idle:
            self._cancel(self._head)
            self._head = None
        elif self._head is None:
            self._await_head()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not HTTP, or whose head is too long.

        What still arrives of it is discarded for some time: if the connection were closed at once,
        it would be reset before the client has read the answer.
        """
        self._refuse(NOT_HTTP)

    def _refuse(self, answer: bytes) -> None:
        self._refused = True
        self.transport.write(answer)
        self.loop.call_later(LINGER_S, self.transport.close)

    def pause_writing(self) -> None:
        """Start the timeout for a client that reads too slowly."""
        super().pause_writing()
        self._stall = self.loop.call_later(self._limits.stall_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the timeout of a client that reads again."""
        super().resume_writing()
        self._cancel(self._stall)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timeouts of a closed connection."""
        self._cancel(self._head)
        self._cancel(self._stall)
        self._open.dismiss(self)
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._head = self.loop.call_later(self._limits.head_timeout_s, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head = None
        # Between requests uvicorn's own timer runs; none runs while a head is incomplete.
        if self._idle and self.timeout_keep_alive_task is None:
            self.transport.abort()

    @staticmethod
    def _cancel(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()
