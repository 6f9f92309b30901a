"""Serving: uvicorn inside the coordinator's own event loop.

HTTP is parsed by h11, which bounds the size of a request's head; the faster parser does not. On
top of uvicorn's protocol a connection has a bounded life: a request must arrive in time, and a
reader that takes nothing for too long is cut off, so that neither can hold a connection for ever.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from errno import EADDRINUSE
from typing import Any

import uvicorn
from msgspec import Struct
from uvicorn.protocols.http.h11_impl import H11Protocol

from strata.coordinator.http.limits import Limits
from strata.coordinator.http.security import Guard
from strata.errors import SettingError, Unavailable

STOP_TIMEOUT_S = 5
KEEP_ALIVE_S = 15
BACKLOG = 1024


class Served(Struct, frozen=True):
    """Where the API is reached; `port` is the real one when any was asked for."""

    host: str
    port: int
    url: str


@asynccontextmanager
async def serve(
    app: Guard, host: str, port: int, *, tls_cert: str = "", tls_key: str = ""
) -> AsyncIterator[Served]:
    """Serves while the context is open; leaving it ends streams and lets answers finish."""
    listening = listen(host, port)
    with listening:
        server = Server(_config(app, tls_cert, tls_key))
        running = asyncio.create_task(server.serve(sockets=[listening]), name="strata-http")
        try:
            await server.ready.wait()
            real_port = listening.getsockname()[1]
            scheme = "https" if tls_cert else "http"
            shown = f"[{host}]" if ":" in host else host
            yield Served(host, real_port, f"{scheme}://{shown}:{real_port}")
        finally:
            app.closing.set()
            server.should_exit = True
            await running


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there, or one clear sentence why not."""
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
        if error.errno == EADDRINUSE:
            raise Unavailable(
                f"port {port} on {host} is in use",
                hint="stop what listens there, or choose another with --http-port",
            ) from error
        raise SettingError(
            f"cannot listen on port {port} of {host!r}: {error.strerror}",
            hint="choose another with --http-host or --http-port",
        ) from error


def _config(app: Guard, tls_cert: str, tls_key: str) -> uvicorn.Config:
    def protocol(**kwargs: Any) -> BoundedProtocol:
        return BoundedProtocol(app.limits, **kwargs)

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
        ssl_certfile=tls_cert or None,
        ssl_keyfile=tls_key or None,
    )
    try:
        config.load()
    except OSError as error:  # a file that is not there, or is no certificate
        raise SettingError(
            f"TLS cannot be set up from {tls_cert!r} and {tls_key!r}: {error}",
            hint="give a certificate and its key, both as PEM files",
        ) from error
    return config


class Server(uvicorn.Server):
    """Uvicorn that leaves signals to the coordinator and says when it is ready."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Takes none: whoever opened the server closes it."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to accept connections."""
        try:
            await super().startup(sockets)
        finally:
            self.ready.set()


class BoundedProtocol(H11Protocol):
    """A connection that silence cannot hold open."""

    def __init__(self, limits: Limits, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._limits = limits
        self._head: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None

    @property
    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes a connection, unless there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            transport.abort()
        else:
            self._await_head()

    def data_received(self, data: bytes) -> None:
        """Takes in a piece of a request; the rest of its head must follow soon."""
        super().data_received(data)
        if not self._idle:
            self._cancel(self._head)
            self._head = None
        elif self._head is None:
            self._await_head()

    def pause_writing(self) -> None:
        """The peer is slower than we are; it has some time to take what was sent."""
        super().pause_writing()
        self._stall = self.loop.call_later(self._limits.stall_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """The peer has caught up."""
        super().resume_writing()
        self._cancel(self._stall)

    def connection_lost(self, exc: Exception | None) -> None:
        """Lets go of the timers with the connection."""
        self._cancel(self._head)
        self._cancel(self._stall)
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._head = self.loop.call_later(self._limits.head_timeout_s, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head = None
        # Between requests there is uvicorn's own timer; none runs while a head is incomplete.
        if self._idle and self.timeout_keep_alive_task is None:
            self.transport.abort()

    @staticmethod
    def _cancel(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()
