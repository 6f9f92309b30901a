"""A gRPC server directly on an asyncio protocol.

It exists for its cost: a unary call takes about 25 µs of this process and a stream's message about
as much, where `grpc.aio` takes 390 and 165 (benchmarks/bench_wire.py measures both). Clients are
ordinary gRPC clients.

Theory. Bytes become HTTP/2 events (`http2`), events become messages, and a message is handed to
its handler in the same turn of the event loop, by a plain function call. What handlers send is
gathered per connection and written once per turn, so a thousand `send`s cost a write per
connection. A handler that has its answer at once returns it; one that must wait returns an
awaitable. A call that is answered in the turn it arrived in needs no task and no timer.

Rules.
- Handlers run on the event loop and must not block it.
- `Stream.send` never waits. A peer that reads more slowly than it is sent to loses the stream
  (RESOURCE_EXHAUSTED), never the server its memory.
- `on_close` comes exactly once, never from inside a call the handler makes, and nothing comes after.
- A Future that a handler returns is never cancelled by the server, because callers may share it;
  a coroutine is, when its call ends early.
- What a handler raises becomes a status by `status_of`; what that does not know is logged and
  becomes INTERNAL without details.
"""

import asyncio
import logging
import ssl
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from struct import Struct
from time import monotonic
from typing import Any, Generic, Protocol, TypeVar

from strata.wire.hpack import (
    NOT_GRPC_HEAD,
    OK_TRAILERS,
    RESPONSE_HEAD,
    Metadata,
    Outcome,
    RequestHead,
    Status,
    encode_trailers,
    read_request,
)
from strata.wire.http2 import (
    DataReceived,
    ErrorCode,
    Http2Connection,
    Http2Stream,
    Limits,
    RequestReceived,
)

logger = logging.getLogger(__name__)

PREFIX = Struct(">BL")
PREFIX_BYTES = 5
CLOSING_TIMEOUT_S = 1.0
ACCEPT_BACKLOG = 4_096

Request = TypeVar("Request")
Response = TypeVar("Response")
Received = TypeVar("Received", contravariant=True)


class RpcError(Exception):
    """Ends a call with the status it names."""

    def __init__(self, status: Status, message: str = "", metadata: Metadata = ()) -> None:
        super().__init__(message)
        self.outcome = Outcome(status, message, metadata)


class CloseReason(StrEnum):
    """Why a call is over."""

    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    CONNECTION_LOST = "connection_lost"
    PEER_SILENT = "peer_silent"
    PEER_SLOW = "peer_slow"
    PEER_FAULT = "peer_fault"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Limits of the whole server and of each call; `limits` has those of HTTP/2.

    A stream is ended once more than `max_outgoing_bytes` wait on it when a further message is sent.
    `max_buffered_bytes` bounds, per connection, unfinished messages and what waits to be sent.
    """

    max_message_bytes: int = 4_194_304
    max_outgoing_bytes: int = 4_194_304
    max_buffered_bytes: int = 33_554_432
    max_connections: int = 10_000
    keepalive_interval_s: float = 10.0
    keepalive_timeout_s: float = 5.0
    limits: Limits = Limits()


def frame(payload: bytes) -> bytes:
    """A message as it travels, for `Stream.send_raw`."""
    return PREFIX.pack(0, len(payload)) + payload


class Listener(Protocol[Received]):
    """What a stream's handler returns: where that stream's messages go."""

    def on_message(self, message: Received) -> None: ...
    def on_half_close(self) -> None: ...
    def on_close(self, reason: CloseReason) -> None: ...


@dataclass(frozen=True, slots=True)
class _Method:
    call_type: "type[Call[Any, Any]]"
    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]
    handler: Callable[..., Any]
    public: bool


class Call(Generic[Request, Response]):
    """One call, as its handler sees it.

    `deadline` is on the event loop's clock, None if the client set none. `trailing_metadata` may be
    set until the call ends.
    """

    __slots__ = (
        "_connection",
        "_expected_bytes",
        "_method",
        "_partial",
        "_stream",
        "_task",
        "_timer",
        "closed",
        "deadline",
        "head",
        "trailing_metadata",
    )

    def __init__(
        self, connection: "_Connection", stream: Http2Stream, head: RequestHead, method: _Method
    ) -> None:
        self.head = head
        self.closed = False
        self.trailing_metadata: Metadata = ()
        timeout_s = head.timeout_s
        self.deadline = None if timeout_s is None else connection.loop.time() + timeout_s
        self._connection = connection
        self._stream = stream
        self._method = method
        self._partial: bytearray | None = None
        self._expected_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Future[Any] | None = None

    @property
    def peer(self) -> str:
        return self._connection.peer

    @property
    def metadata(self) -> Mapping[str, str | bytes]:
        return self.head.metadata

    def fail(self, error: BaseException) -> None:
        """End the call with the status that stands for `error`."""
        self._end(self._connection.server.outcome_of(error, self.head.path), CloseReason.FAILED)

    def _open(self) -> None:
        pass

    def _on_message(self, message: Request) -> None:
        raise NotImplementedError

    def _on_half_close(self) -> None:
        raise NotImplementedError

    def _on_closed(self, reason: CloseReason) -> None:
        pass

    def _receive(self, data: bytes, ended: bool) -> None:
        """Cut arriving bytes into messages; an unfinished one is kept until the rest comes."""
        if self._partial is not None:
            self._partial += data
            self._connection.partial_bytes += len(data)
            if len(self._partial) < self._expected_bytes and not ended:
                self._check_partial()
                return
            data = bytes(self._partial)
            self._drop_partial()
        position, end, expected = 0, len(data), PREFIX_BYTES
        while end - position >= PREFIX_BYTES:
            compressed, size = PREFIX.unpack_from(data, position)
            expected = PREFIX_BYTES + size
            if size > self._connection.options.max_message_bytes:
                self._refuse(Status.RESOURCE_EXHAUSTED, f"message of {size} bytes is too large")
                return
            if position + expected > end:
                break
            self._take(data[position + PREFIX_BYTES : position + expected], compressed)
            if self.closed:
                return
            position += expected
            expected = PREFIX_BYTES
        if position < end:
            self._partial = bytearray(data[position:])
            self._expected_bytes = expected
            self._connection.partial_bytes += end - position
            self._check_partial()
        if ended and not self.closed:
            if self._partial is not None:
                self._refuse(Status.INTERNAL, "the request ends within a message")
            else:
                self._on_half_close()

    def _check_partial(self) -> None:
        if self._connection.partial_bytes > self._connection.options.max_buffered_bytes:
            self._refuse(Status.RESOURCE_EXHAUSTED, "too many unfinished messages")

    def _drop_partial(self) -> None:
        if self._partial is not None:
            self._connection.partial_bytes -= len(self._partial)
            self._partial = None

    def _take(self, payload: bytes, compressed: int) -> None:
        try:
            if compressed:
                payload = self._decompress(payload)
            message = self._method.decode(payload)
        except RpcError as error:
            self.fail(error)
        except Exception as error:
            self._end(self._connection.server.malformed(error), CloseReason.FAILED)
        else:
            self._on_message(message)

    def _decompress(self, payload: bytes) -> bytes:
        if not self.head.gzip:
            raise RpcError(Status.INTERNAL, "compressed message without grpc-encoding")
        inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
        payload = inflater.decompress(payload, self._connection.options.max_message_bytes)
        if inflater.unconsumed_tail:
            raise RpcError(Status.RESOURCE_EXHAUSTED, "message is too large once decompressed")
        if not inflater.eof:
            raise RpcError(Status.INVALID_ARGUMENT, "compressed message is cut short")
        return payload

    def _refuse(self, status: Status, message: str) -> None:
        self._end(Outcome(status, message), CloseReason.FAILED)

    def _end(self, outcome: Outcome, reason: CloseReason) -> None:
        """Tell the peer how the call ended, unless it ended before."""
        if self.closed:
            return
        if self.trailing_metadata:
            outcome = outcome._replace(metadata=(*self.trailing_metadata, *outcome.metadata))
        block = OK_TRAILERS if outcome == _OK else encode_trailers(outcome)
        self._send_end(block)
        self._connection.wake()
        self._close(reason)

    def _send_end(self, block: bytes) -> None:
        self._connection.http2.send_trailers(self._stream, RESPONSE_HEAD + block)

    def _close(self, reason: CloseReason) -> None:
        if self.closed:
            return
        self.closed = True
        self._drop_partial()
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        self._on_closed(reason)

    def _arm_deadline(self, deadline: float) -> None:
        self._timer = self._connection.loop.call_at(deadline, self._on_deadline)

    def _on_deadline(self) -> None:
        self._end(Outcome(Status.DEADLINE_EXCEEDED, "deadline exceeded"), CloseReason.DEADLINE)

    def _wait(self, result: Awaitable[Any], then: Callable[[Any], None]) -> None:
        """Go on with `then` when the handler's result is there."""

        def done(future: asyncio.Future[Any]) -> None:
            self._task = None
            if future.cancelled():
                self._refuse(Status.CANCELLED, "cancelled by the server")
            elif (error := future.exception()) is not None:
                self.fail(error)
            elif not self.closed:
                then(future.result())

        if asyncio.isfuture(result):
            result.add_done_callback(done)
        else:
            self._task = asyncio.ensure_future(result)
            self._task.add_done_callback(done)


class _UnaryCall(Call[Request, Response]):
    """One request, one response; the response travels as one piece."""

    __slots__ = ("_request",)

    def _open(self) -> None:
        self._request: Request | None = None

    def _on_message(self, message: Request) -> None:
        if self._request is not None:
            self._refuse(Status.UNIMPLEMENTED, "a unary call takes one request")
        self._request = message

    def _on_half_close(self) -> None:
        if self._request is None:
            self._refuse(Status.UNIMPLEMENTED, "a unary call takes one request")
            return
        try:
            result = self._method.handler(self._request, self)
        except Exception as error:
            self.fail(error)
            return
        if hasattr(type(result), "__await__"):
            self._wait(result, self._reply)
        else:
            self._reply(result)

    def _reply(self, response: Response) -> None:
        try:
            message = frame(self._method.encode(response))
        except Exception as error:
            self.fail(error)
            return
        http2 = self._connection.http2
        http2.send_headers(self._stream, RESPONSE_HEAD)
        http2.send_data(self._stream, message)
        trailers = _OK._replace(metadata=self.trailing_metadata)
        http2.send_trailers(
            self._stream, encode_trailers(trailers) if self.trailing_metadata else OK_TRAILERS
        )
        self._connection.wake()
        self._close(CloseReason.FINISHED)


class Stream(Call[Request, Response]):
    """A call with any number of messages both ways."""

    __slots__ = ("_head_sent", "_listener")

    def _open(self) -> None:
        self._head_sent = False
        self._listener: Listener[Request] | None = None
        try:
            self._listener = self._method.handler(self)
        except Exception as error:
            self.fail(error)
        else:
            self._send_head()

    def send(self, message: Response) -> bool:
        """Send a message, or say False if the stream is over."""
        return not self.closed and self.send_raw(frame(self._method.encode(message)))

    def send_raw(self, framed: bytes) -> bool:
        """Send what `frame` made; one framed message may go to any number of streams."""
        if self.closed:
            return False
        connection, stream = self._connection, self._stream
        if not self._head_sent:
            self._send_head()
        if stream.waiting and self._is_too_slow():
            self._end_slow()
            return False
        connection.http2.send_data(stream, framed)
        connection.wake()
        return True

    def finish(
        self, status: Status = Status.OK, message: str = "", metadata: Metadata = ()
    ) -> None:
        """End the stream, after what was sent."""
        self._end(Outcome(status, message, metadata), CloseReason.FINISHED)

    async def flushed(self) -> None:
        """Wait until the peer has room for all that was sent, or the stream is over."""
        while self._stream.waiting and not self.closed:
            await self._connection.progress()

    def _is_too_slow(self) -> bool:
        connection = self._connection
        return (
            len(self._stream.waiting) > connection.options.max_outgoing_bytes
            or connection.http2.waiting_bytes > connection.options.max_buffered_bytes
        )

    def _end_slow(self) -> None:
        self._connection.http2.discard_waiting(self._stream)
        outcome = Outcome(Status.RESOURCE_EXHAUSTED, "the client reads too slowly")
        self._end(outcome, CloseReason.PEER_SLOW)

    def _send_head(self) -> None:
        if not self._head_sent:
            self._head_sent = True
            self._connection.http2.send_headers(self._stream, RESPONSE_HEAD)
            self._connection.wake()

    def _send_end(self, block: bytes) -> None:
        head = b"" if self._head_sent else RESPONSE_HEAD
        self._connection.http2.send_trailers(self._stream, head + block)

    def _on_message(self, message: Request) -> None:
        self._tell(lambda listener: listener.on_message(message))
