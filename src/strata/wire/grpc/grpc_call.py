"""Calls: message framing, deadline, status and end; and the unary call."""

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from struct import Struct
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from strata.errors import LimitExceeded
from strata.wire.http2.hpack import (
    OK_TRAILERS,
    RESPONSE_HEAD,
    Metadata,
    Outcome,
    RequestHead,
    Status,
    encode_trailers,
)
from strata.wire.http2.http2_frames import Http2Stream

if TYPE_CHECKING:
    from strata.wire.grpc.grpc_connection import Connection

PREFIX = Struct(">BL")
PREFIX_BYTES = 5

Request = TypeVar("Request")
Response = TypeVar("Response")


class RpcError(Exception):
    """Ends a call with this status."""

    def __init__(self, status: Status, message: str = "", metadata: Metadata = ()) -> None:
        super().__init__(message)
        self.outcome = Outcome(status, message, metadata)


class CloseReason(StrEnum):
    """Why a call ended."""

    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    CONNECTION_LOST = "connection_lost"
    PEER_SILENT = "peer_silent"
    PEER_SLOW = "peer_slow"
    PEER_FAULT = "peer_fault"
    SERVER_FULL = "server_full"
    SHUTDOWN = "shutdown"


def too_large(size: int, limit: int) -> LimitExceeded:
    """The error for a message above the size limit, raised before it is buffered."""
    return LimitExceeded(
        f"the message has {size} bytes; the limit is {limit}", hint="send smaller messages"
    )


def frame(payload: bytes) -> bytes:
    """A message with its gRPC prefix, for `Stream.send_raw`."""
    return PREFIX.pack(0, len(payload)) + payload


FINE = Outcome(Status.OK)
MALFORMED = Outcome(Status.INVALID_ARGUMENT, "the request message is malformed")
ONE_REQUEST = RpcError(Status.UNIMPLEMENTED, "the method takes exactly one request")


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A served method; `single`: it takes exactly one request."""

    call_type: "type[Call[Any, Any]]"
    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]
    handler: Callable[..., Any]
    public: bool
    single: bool
    max_message_bytes: int


class Call(Generic[Request, Response]):
    """One call.

    `deadline` is on the event loop's clock, None if the client set none. `trailing_metadata` may be
    set until the call ends. `identity` is what the server's `authorize` returned, None without one.
    """

    __slots__ = (
        "_connection",
        "_expected_bytes",
        "_method",
        "_partial",
        "_request_bytes",
        "_stream",
        "_task",
        "_timer",
        "closed",
        "deadline",
        "head",
        "identity",
        "trailing_metadata",
    )

    def __init__(
        self, connection: "Connection", stream: Http2Stream, head: RequestHead, method: Method
    ) -> None:
        self.head = head
        self.identity: object = None
        self.closed = False
        self.trailing_metadata: Metadata = ()
        timeout_s = head.timeout_s
        self.deadline = None if timeout_s is None else connection.loop.time() + timeout_s
        self._connection = connection
        self._stream = stream
        self._method = method
        self._partial: bytearray | None = None
        self._expected_bytes = 0
        self._request_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Future[Any] | None = None

    @property
    def peer(self) -> str:
        return self._connection.peer

    @property
    def metadata(self) -> Mapping[str, str | bytes]:
        return self.head.metadata

    def fail(self, error: BaseException) -> None:
        """End the call with the status of `error`."""
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
        """Split received bytes into messages; an incomplete one is buffered."""
        if self._partial is not None:
            self._partial += data
            self._hold(len(data))
            if len(self._partial) < self._expected_bytes and not ended:
                self._check_held()
                return
            data = bytes(self._partial)
            self._drop_partial()
        position, end, expected = 0, len(data), PREFIX_BYTES
        while end - position >= PREFIX_BYTES:
            compressed, size = PREFIX.unpack_from(data, position)
            expected = PREFIX_BYTES + size
            if size > self._method.max_message_bytes:
                self.fail(too_large(size, self._method.max_message_bytes))
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
            self._hold(end - position)
            self._check_held()
        if ended and not self.closed:
            if self._partial is not None:
                self._refuse(Status.INTERNAL, "the request ends within a message")
            else:
                self._on_half_close()

    def _hold(self, size: int) -> None:
        """Count buffered request bytes of this call."""
        self._request_bytes += size
        self._connection.request_bytes += size

    def _check_held(self) -> None:
        if self._connection.request_bytes > self._connection.server.max_buffered_bytes:
            self._refuse(Status.RESOURCE_EXHAUSTED, "too many unfinished requests")

    def _drop_partial(self) -> None:
        if self._partial is not None:
            self._hold(-len(self._partial))
            self._partial = None

    def _take(self, payload: bytes, compressed: int) -> None:
        try:
            if compressed:
                payload = self._decompress(payload)
            message = self._method.decode(payload)
        except Exception as error:
            outcome = self._connection.server.known_outcome(error) or MALFORMED
            self._end(outcome, CloseReason.FAILED)
        else:
            if self._method.single:
                self._hold(len(payload))
                self._check_held()
            if not self.closed:
                self._on_message(message)

    def _decompress(self, payload: bytes) -> bytes:
        if not self.head.gzip:
            raise RpcError(Status.INTERNAL, "compressed message without grpc-encoding")
        inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
        payload = inflater.decompress(payload, self._method.max_message_bytes)
        if inflater.unconsumed_tail:
            raise RpcError(Status.RESOURCE_EXHAUSTED, "message is too large once decompressed")
        if not inflater.eof:
            raise RpcError(Status.INVALID_ARGUMENT, "compressed message is cut short")
        return payload

    def _refuse(self, status: Status, message: str) -> None:
        self._end(Outcome(status, message), CloseReason.FAILED)

    def _end(self, outcome: Outcome, reason: CloseReason) -> None:
        """End the call and send the status to the peer, unless it ended before."""
        if self.closed:
            return
        self._send_end(self._trailers(outcome))
        self._connection.wake()
        self._close(reason)

    def _trailers(self, outcome: Outcome) -> bytes:
        if self.trailing_metadata:
            outcome = outcome._replace(metadata=(*self.trailing_metadata, *outcome.metadata))
        return OK_TRAILERS if outcome is FINE else encode_trailers(outcome)

    def _send_end(self, block: bytes) -> None:
        self._connection.http2.send_trailers(self._stream, RESPONSE_HEAD + block)

    def _close(self, reason: CloseReason) -> None:
        if self.closed:
            return
        self.closed = True
        self._stream.owner = (
            None  # else both wait for the garbage collector, with the request's head
        )
        self._partial = None
        self._hold(-self._request_bytes)
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        self._on_closed(reason)

    def _arm_deadline(self) -> None:
        if not self.closed and self.deadline is not None:
            self._timer = self._connection.loop.call_at(self.deadline, self._on_deadline)

    def _on_reset(self) -> None:
        """Close a call that the client reset: because of its deadline, or cancelled.

        At its deadline a client resets the call slightly earlier than the server would end it,
        because it rounds the timeout that it sends up, by at most two per cent.
        """
        timeout_s, deadline = self.head.timeout_s, self.deadline
        late = (
            timeout_s is not None
            and deadline is not None
            and (deadline - self._connection.loop.time() <= 0.02 * timeout_s + 0.01)
        )
        self._close(CloseReason.DEADLINE if late else CloseReason.CANCELLED)

    def _on_deadline(self) -> None:
        self._end(Outcome(Status.DEADLINE_EXCEEDED, "deadline exceeded"), CloseReason.DEADLINE)

    def _wait(self, result: Awaitable[Any], then: Callable[[Any], None]) -> None:
        """Call `then` with the handler's result when it is available."""

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


class UnaryCall(Call[Request, Response]):
    """One request, one response."""

    __slots__ = ("_request",)

    def _open(self) -> None:
        self._request: Request | None = None

    def _on_message(self, message: Request) -> None:
        if self._request is not None:
            self.fail(ONE_REQUEST)
        self._request = message

    def _on_half_close(self) -> None:
        if self._request is None:
            self.fail(ONE_REQUEST)
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
        if http2.waiting_bytes > self._connection.server.max_buffered_bytes:
            self._refuse(Status.RESOURCE_EXHAUSTED, "the client reads too slowly")
            return
        http2.send_headers(self._stream, RESPONSE_HEAD)
        http2.send_data(self._stream, message)
        http2.send_trailers(self._stream, self._trailers(FINE))
        self._connection.wake()
        self._close(CloseReason.FINISHED)
