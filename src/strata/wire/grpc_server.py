"""A gRPC server directly on an asyncio protocol.

It exists for its cost. With calls in flight a unary call takes about 30 µs of this process, and a
stream's message that arrives alone about 50; `grpc.aio` takes 400 and 230 in the same runs
(benchmarks/bench_wire.py). Clients are ordinary gRPC clients.

Theory. Bytes become HTTP/2 events (`http2`), events become messages, and a message is handed to
its handler in the same turn of the event loop, by a plain function call. What handlers send is
gathered per connection and written once per turn, so a thousand `send`s cost a write per
connection. A handler that has its answer at once returns it; one that must wait returns an
awaitable. A call that is answered in the turn it arrived in needs no task and no timer.

Rules.
- Handlers run on the event loop and must not block it.
- A connection is unauthenticated, and may hold little, until it has called a method that is not
  public (see `connection_budget`).
- `Stream.send` never waits. A peer that reads more slowly than it is sent to loses the stream
  (RESOURCE_EXHAUSTED), never the server its memory.
- `on_close` comes exactly once and last, and never from inside a call that the handler makes.
- A Future that a handler returns is never cancelled by the server, because callers may share it;
  a coroutine is, when its call ends early.
- What a handler raises becomes a status by `status_of`; what that does not know is logged and
  becomes INTERNAL without details.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from strata.wire.connection_budget import Bounds, ConnectionBudget
from strata.wire.frames import Limits
from strata.wire.grpc_call import Call, CloseReason, Method, Request, Response, RpcError, UnaryCall
from strata.wire.grpc_connection import CLOSING_TIMEOUT_S, TURN_BYTES, Connection
from strata.wire.grpc_stream import Listener, SingleRequest, Stream
from strata.wire.hpack import Outcome, RequestHead, Status
from strata.wire.tls_accept import TlsAccept

logger = logging.getLogger(__name__)

ACCEPT_BACKLOG = 4_096


class GrpcServer:
    """Methods by their full name, the connections they are called over, and what all share.

    `status_of` translates what handlers raise; None means that it does not know the error.
    `authorize` sees the metadata of every call to a method that is not public, and raises.

    `max_outgoing_bytes` is what may wait on a stream when a further message is sent.
    `max_buffered_bytes` bounds, per connection, requests that are unfinished or being answered,
    and all that waits to be sent. `bounds` are those of all connections together. `limits` are
    those of HTTP/2.
    """

    def __init__(
        self,
        *,
        max_message_bytes: int = 4_194_304,
        max_outgoing_bytes: int = 4_194_304,
        max_buffered_bytes: int = 33_554_432,
        keepalive_interval_s: float = 10.0,
        keepalive_timeout_s: float = 5.0,
        bounds: Bounds | None = None,
        limits: Limits | None = None,
        status_of: Callable[[BaseException], Outcome | None] | None = None,
        authorize: Callable[[Mapping[str, str | bytes]], None] | None = None,
    ) -> None:
        self.max_message_bytes = max_message_bytes
        self.max_outgoing_bytes = max_outgoing_bytes
        self.max_buffered_bytes = max_buffered_bytes
        self.keepalive_interval_s = keepalive_interval_s
        self.keepalive_timeout_s = keepalive_timeout_s
        self.bounds = bounds or Bounds()
        self.budget = ConnectionBudget(self.bounds, time.monotonic)
        self.limits = limits or Limits()
        self.methods: dict[str, Method] = {}
        self.read_buffer = memoryview(bytearray(TURN_BYTES))
        self._status_of = status_of
        self._authorize = authorize
        self._listening: list[asyncio.Server] = []
        self._connections: set[Connection] = set()
        self._awake: list[Connection] = []
        self._emptied: asyncio.Event | None = None

    def unary(
        self,
        name: str,
        decode: Callable[[bytes], Request],
        encode: Callable[[Response], bytes],
        handler: Callable[[Request, Call[Request, Response]], Response | Awaitable[Response]],
        *,
        public: bool = False,
    ) -> None:
        """Serve a method whose handler returns the response, or an awaitable of it."""
        self._serve(UnaryCall, name, (decode, encode), handler, public=public, single=True)

    def stream(
        self,
        name: str,
        decode: Callable[[bytes], Request],
        encode: Callable[[Response], bytes],
        handler: Callable[[Stream[Request, Response]], Listener[Request]],
        *,
        public: bool = False,
    ) -> None:
        """Serve a method with messages both ways; the handler gives each stream its listener."""
        self._serve(Stream, name, (decode, encode), handler, public=public, single=False)

    def server_stream(
        self,
        name: str,
        decode: Callable[[bytes], Request],
        encode: Callable[[Response], bytes],
        handler: Callable[[Request, Stream[Request, Response]], Awaitable[None]],
        *,
        public: bool = False,
    ) -> None:
        """Serve a method that answers one request with many messages, until `handler` returns."""

        def listen(stream: Stream[Request, Response]) -> Listener[Request]:
            return SingleRequest(stream, handler)

        self._serve(Stream, name, (decode, encode), listen, public=public, single=True)

    def _serve(
        self,
        call_type: type[Call[Any, Any]],
        name: str,
        codec: tuple[Callable[[bytes], Any], Callable[[Any], bytes]],
        handler: Callable[..., Any],
        *,
        public: bool,
        single: bool,
    ) -> None:
        public_bytes = min(self.bounds.max_public_message_bytes, self.max_message_bytes)
        self.methods[name] = Method(
            call_type=call_type,
            decode=codec[0],
            encode=codec[1],
            handler=handler,
            public=public,
            single=single,
            max_message_bytes=public_bytes if public else self.max_message_bytes,
        )

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Accept connections, by TLS if given a context (ALPN is set here); return the port."""
        if tls is not None:
            tls.set_alpn_protocols(["h2"])

        def accept() -> asyncio.BaseProtocol:
            return Connection(self) if tls is None else TlsAccept(self, tls)

        loop = asyncio.get_running_loop()
        listening = await loop.create_server(accept, host, port, backlog=ACCEPT_BACKLOG)
        self._listening.append(listening)
        bound: int = listening.sockets[0].getsockname()[1]
        return bound

    async def close(self, grace_s: float = 5.0) -> None:
        """Take no new calls, give running ones `grace_s` to finish, then end them."""
        for listening in self._listening:
            listening.close()
        self._listening.clear()
        for connection in list(self._connections):
            connection.drain()
        if await self._wait_until_empty(grace_s):
            return
        outcome = Outcome(Status.UNAVAILABLE, "the server is shutting down")
        for connection in list(self._connections):
            connection.end_calls(outcome, CloseReason.SHUTDOWN)
            connection.close(CloseReason.SHUTDOWN)
        await self._wait_until_empty(2 * CLOSING_TIMEOUT_S)

    async def _wait_until_empty(self, timeout_s: float) -> bool:
        self._emptied = asyncio.Event()
        if self._connections:
            try:
                await asyncio.wait_for(self._emptied.wait(), timeout_s)
            except TimeoutError:
                return False
        return True

    def admit(self, connection: Connection) -> bool:
        admitted = self.budget.admit(connection)
        if admitted:
            self._connections.add(connection)
        return admitted

    def dismiss(self, connection: Connection) -> None:
        self.budget.dismiss(connection)
        self._connections.discard(connection)
        if self._emptied is not None and not self._connections:
            self._emptied.set()

    def method_for(self, head: RequestHead) -> Method:
        """The method that serves this request; raises what stands against it."""
        method = self.methods.get(head.path)
        if self._authorize is not None and not (method is not None and method.public):
            self._authorize(head.metadata)
        if head.objection is not None:
            raise RpcError(*head.objection)
        if method is None:
            raise RpcError(Status.UNIMPLEMENTED, f"unknown method {head.path}")
        return method

    def known_outcome(self, error: BaseException) -> Outcome | None:
        if isinstance(error, RpcError):
            return error.outcome
        return self._status_of(error) if self._status_of is not None else None

    def outcome_of(self, error: BaseException, path: str) -> Outcome:
        outcome = self.known_outcome(error)
        if outcome is None:
            logger.error("handler of %s failed", path, exc_info=error)
            outcome = Outcome(Status.INTERNAL, "internal error")
        return outcome

    def flush_later(self, connection: Connection) -> None:
        if not self._awake:
            connection.loop.call_soon(self._flush_all)
        self._awake.append(connection)

    def _flush_all(self) -> None:
        connections, self._awake = self._awake, []
        for connection in connections:
            connection.flush()
