"""One client connection: socket, keepalive, and dispatch of HTTP/2 events to calls."""

import asyncio
import logging
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from strata.wire.grpc.connection_budget import network_of
from strata.wire.grpc.grpc_call import Call, CloseReason, RpcError
from strata.wire.http2.hpack import (
    NOT_GRPC_HEAD,
    RESPONSE_HEAD,
    Outcome,
    RequestHead,
    Status,
    encode_trailers,
    read_request,
)
from strata.wire.http2.http2_connection import Http2Connection
from strata.wire.http2.http2_frames import DataReceived, Http2Stream, RequestReceived
from strata.wire.peer_user import is_own_user

if TYPE_CHECKING:
    from strata.wire.grpc.grpc_server import GrpcServer

logger = logging.getLogger(__name__)

CLOSING_TIMEOUT_S = 1.0
LATE_S = 1.0
TURN_BYTES = 8_192
TOO_MANY_CALLS = RpcError(
    Status.RESOURCE_EXHAUSTED, "too many calls on a connection that has not authenticated"
)


class Connection(asyncio.BufferedProtocol):
    """A client's connection: passes received events to calls, batches writes, checks liveness.

    A turn of the loop reads at most `TURN_BYTES` of one peer, so that other peers are read in
    between; the rest stays in the socket buffer and uses no memory of this process.
    """

    transport: asyncio.Transport

    def __init__(self, server: "GrpcServer") -> None:
        self.server = server
        self.loop = asyncio.get_running_loop()
        self.http2 = Http2Connection(read_request, server.limits)
        self.http2.streams_cost = True
        self.peer = self.network = ""
        self.authenticated = False
        self.held_bytes = 0
        self.request_bytes = 0
        self._awake = False
        self._full = False
        self._draining = False
        self._handshaking = False
        self._early = b""
        self._heard_at = self.loop.time()
        self._watch: asyncio.TimerHandle | None = None
        self._check_at = 0.0
        self._progress: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self.accept(transport):
            self._begin()

    def accept(self, transport: asyncio.BaseTransport, *, handshaking: bool = False) -> bool:
        """Register the connection with the server; closes the socket if the server is full."""
        self.transport = cast(asyncio.Transport, transport)
        self._handshaking = handshaking
        address = transport.get_extra_info("peername")
        if address is not None:  # None: the peer has disconnected already
            self.peer, self.network = _peer_name(address), network_of(address[0])
            self._ends = address[:2], transport.get_extra_info("sockname")[:2]
        if address is None or not self.server.admit(self):
            self.transport.abort()
            return False
        return True

    @cached_property
    def of_own_user(self) -> bool:
        """Whether the peer is a process of this user, or of root, on this machine."""
        return is_own_user(*self._ends)

    def secured(self, transport: asyncio.Transport | None) -> None:
        """Continue after the handshake; closes if it failed or the peer does not speak HTTP/2."""
        encrypted = None if transport is None else transport.get_extra_info("ssl_object")
        speaks_h2 = encrypted is not None and encrypted.selected_alpn_protocol() == "h2"
        if transport is None or transport.is_closing() or not speaks_h2:
            self.transport.abort()
            self.server.dismiss(self)
            return
        self._handshaking = False
        self.transport = transport
        self._begin()
        early, self._early = self._early, b""
        if early:
            self._take(early)

    def _begin(self) -> None:
        self._watch_by(self.server.keepalive_interval_s, self._check_alive)
        self.flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer that all connections share: each copies its bytes before the next reads."""
        return self.server.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._heard_at = self.loop.time()
        data = bytes(self.server.read_buffer[:nbytes])
        if self._handshaking:  # the handshake is done; `secured` follows in this turn of the loop
            self._early += data
            return
        self._take(data)
        if nbytes == TURN_BYTES and not self.transport.is_closing():
            self.transport.pause_reading()
            self.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def _take(self, data: bytes) -> None:
        now = self.loop.time()
        self._awake = True
        timed: list[Call[Any, Any]] = []
        for event in self.http2.receive(data, now):
            stream = event.stream
            call: Call[Any, Any] | None = stream.owner
            if isinstance(event, RequestReceived):
                if not stream.closed:
                    self._start(stream, event.head, event.ended, timed)
            elif call is None or call.closed:
                continue
            elif isinstance(event, DataReceived):
                call._receive(event.data, event.ended and not stream.closed)
            else:
                call._on_reset()
        for call in timed:
            call._arm_deadline()
        self.flush()
        self._advance()
        if self.http2.fault is not None and not self.transport.is_closing():
            # A client without the token must not be able to fill the log.
            level = logging.INFO if self.authenticated else logging.DEBUG
            logger.log(level, "ending connection of %s: %s", self.peer, self.http2.fault)
            self.close(CloseReason.PEER_FAULT)

    def _start(
        self, stream: Http2Stream, head: RequestHead, ended: bool, timed: list[Call[Any, Any]]
    ) -> None:
        if not head.path:
            self.http2.send_trailers(stream, NOT_GRPC_HEAD)
            return
        try:
            method, identity = self.server.method_for(head, self)
            if not (method.public or self.authenticated):
                self.http2.streams_cost = False
                self.server.budget.authenticate(self)
            if not self.authenticated and self._has_many_calls():
                raise TOO_MANY_CALLS
        except Exception as error:
            outcome = self.server.outcome_of(error, head.path)
            self.http2.send_trailers(stream, RESPONSE_HEAD + encode_trailers(outcome))
            return
        stream.owner = call = method.call_type(self, stream, head, method)
        call.identity = identity
        call._open()
        if ended and not call.closed:
            call._receive(b"", True)
        if call.deadline is not None:
            timed.append(call)

    def _has_many_calls(self) -> bool:
        calls = sum(stream.owner is not None for stream in self.http2.streams.values())
        return calls >= self.server.bounds.max_unauthenticated_calls_each

    def wake(self) -> None:
        """Schedule a flush at the end of this turn of the loop."""
        if not self._awake:
            self._awake = True
            self.server.flush_later(self)

    def flush(self) -> None:
        self._awake = False
        outgoing = self.http2.outgoing
        if outgoing:
            data = b"".join(outgoing)
            outgoing.clear()
            if not self.transport.is_closing():
                self.transport.write(data)
        if self._full and self.transport.get_write_buffer_size() > self.server.max_buffered_bytes:
            self.abort(CloseReason.PEER_SLOW)
        elif self._draining and self.http2.drained:
            self.close(CloseReason.SHUTDOWN)
        self._settle()

    def measure(self) -> int:
        """Bytes that the connection holds for its peer."""
        unsent = self.transport.get_write_buffer_size()
        return self.request_bytes + self.http2.held_bytes + unsent

    def _settle(self) -> None:
        held_bytes = self.measure()
        if held_bytes != self.held_bytes:
            self.server.budget.settle(self, held_bytes)
        if not self.authenticated and self.http2.fault is None:
            limit = self.server.bounds.max_unauthenticated_bytes_each
            if held_bytes > limit:
                self.http2.end(f"more than {limit} bytes held for an unauthenticated connection")
                self.flush()
                self.close(CloseReason.PEER_FAULT)

    def evict(self, reason: str) -> None:
        """Close at once; a peer that has read everything so far receives the reason."""
        if self._handshaking:
            self.abort(CloseReason.SERVER_FULL)
            return
        reads = not self.transport.get_write_buffer_size()
        self.http2.end(reason)
        self.flush()
        if reads:
            self.close(CloseReason.SERVER_FULL)
        else:
            self.abort(CloseReason.SERVER_FULL)

    async def progress(self) -> None:
        """Wait until bytes arrive from the peer, or the socket is writable again."""
        if self._progress is None:
            self._progress = self.loop.create_future()
        await asyncio.shield(self._progress)

    def _advance(self) -> None:
        if self._progress is not None:
            self._progress.set_result(None)
            self._progress = None

    def pause_writing(self) -> None:
        self._full = True
        self.http2.set_writable(False)

    def resume_writing(self) -> None:
        self._full = False
        self.http2.set_writable(True)
        self._advance()
        self.wake()

    def _check_alive(self) -> None:
        """Ping an idle peer; close the connection if it does not answer.

        If the check runs late, this process was paused, which is not counted against the peer.
        """
        server, now_s = self.server, self.loop.time()
        late_s = now_s - self._check_at
        if late_s >= LATE_S:
            self._heard_at += late_s
        silent_s = now_s - self._heard_at
        next_s = server.keepalive_interval_s - silent_s
        if not self.http2.greeted or silent_s >= (
            server.keepalive_interval_s + server.keepalive_timeout_s
        ):
            self.abort(CloseReason.PEER_SILENT)
            return
        if next_s <= 0:
            self.http2.ping()
            self.wake()
            next_s = server.keepalive_timeout_s
        self._watch_by(next_s, self._check_alive)

    def _watch_by(self, delay_s: float, check: Callable[[], None]) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._check_at = self.loop.time() + delay_s
        self._watch = self.loop.call_later(delay_s, check)

    def drain(self) -> None:
        if self._handshaking:
            self.abort(CloseReason.SHUTDOWN)
            return
        self._draining = True
        self.http2.drain()
        self.flush()

    def end_calls(self, outcome: Outcome, reason: CloseReason) -> None:
        for stream in list(self.http2.streams.values()):
            if stream.owner is not None:
                stream.owner._end(outcome, reason)
        self.flush()

    def close(self, reason: CloseReason) -> None:
        """Close after the written bytes are sent, at most `CLOSING_TIMEOUT_S` later."""
        if not self.transport.is_closing():
            self._close_calls(reason)
            self.transport.close()
            self._watch_by(CLOSING_TIMEOUT_S, self.transport.abort)

    def abort(self, reason: CloseReason) -> None:
        self._close_calls(reason)
        self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._close_calls(CloseReason.CONNECTION_LOST)
        if self._watch is not None:
            self._watch.cancel()
        self._advance()
        self.server.dismiss(self)

    def _close_calls(self, reason: CloseReason) -> None:
        streams, self.http2.streams = self.http2.streams, {}
        for stream in streams.values():
            stream.closed = True
            if stream.owner is not None:
                stream.owner._close(reason)


def _peer_name(address: Any) -> str:
    """The address as gRPC writes it: ipv4:127.0.0.1:50051, ipv6:[::1]:50051."""
    host, port = address[:2]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
