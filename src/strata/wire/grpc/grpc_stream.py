"""Streaming calls: the stream, its listener, and streams whose messages a coroutine sends."""

from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from strata.wire.grpc.grpc_call import (
    ONE_REQUEST,
    Call,
    CloseReason,
    Request,
    Response,
    frame,
)
from strata.wire.http2.hpack import RESPONSE_HEAD, Metadata, Outcome, Status

Received = TypeVar("Received", contravariant=True)


class Listener(Protocol[Received]):
    """Receiver of a stream's messages, returned by the stream's handler."""

    def on_message(self, message: Received) -> None: ...
    def on_half_close(self) -> None: ...
    def on_close(self, reason: CloseReason) -> None: ...


class GrpcStream(Call[Request, Response]):
    """A call with any number of messages in both directions."""

    __slots__ = ("_head_sent", "_listener")

    def _open(self) -> None:
        self._head_sent = False
        self._listener: Listener[Request] | None = None
        try:
            self._listener = self._method.handler(self)
        except Exception as error:
            self.fail(error)
        if not self.closed:
            self._send_head()

    def send(self, message: Response) -> bool:
        """Send a message; returns False if the stream has ended."""
        return not self.closed and self.send_raw(frame(self._method.encode(message)))

    def send_raw(self, framed: bytes) -> bool:
        """Send a message framed by `frame`, which may be sent to any number of streams."""
        if self.closed:
            return False
        if not self._head_sent:
            self._send_head()
        connection, stream = self._connection, self._stream
        if stream.waiting and self._is_slow():
            connection.http2.discard_waiting(stream)
            outcome = Outcome(Status.RESOURCE_EXHAUSTED, "the client reads too slowly")
            self._end(outcome, CloseReason.PEER_SLOW)
            return False
        connection.http2.send_data(stream, framed)
        connection.wake()
        return True

    def finish(
        self, status: Status = Status.OK, message: str = "", metadata: Metadata = ()
    ) -> None:
        """End the stream after the messages that were sent."""
        self._end(Outcome(status, message, metadata), CloseReason.FINISHED)

    async def flushed(self) -> None:
        """Wait until the peer's windows allowed all sent data, or the stream has ended."""
        while self._stream.waiting and not self.closed:
            await self._connection.progress()

    def _is_slow(self) -> bool:
        http2, server = self._connection.http2, self._connection.server
        return (
            len(self._stream.waiting) > server.max_outgoing_bytes
            or http2.waiting_bytes > server.max_buffered_bytes
        )

    def _send_head(self) -> None:
        if not self._head_sent:
            self._head_sent = True
            self._connection.http2.send_headers(self._stream, RESPONSE_HEAD)
            self._connection.wake()

    def _send_end(self, block: bytes) -> None:
        head = b"" if self._head_sent else RESPONSE_HEAD
        self._connection.http2.send_trailers(self._stream, head + block)

    def _on_message(self, message: Request) -> None:
        assert self._listener is not None
        try:
            self._listener.on_message(message)
        except Exception as error:
            self.fail(error)

    def _on_half_close(self) -> None:
        assert self._listener is not None
        try:
            self._listener.on_half_close()
        except Exception as error:
            self.fail(error)

    def _on_closed(self, reason: CloseReason) -> None:
        self._connection.loop.call_soon(self._tell_closed, reason)

    def _tell_closed(self, reason: CloseReason) -> None:
        if self._listener is not None:
            self._listener.on_close(reason)


class SingleRequest(Generic[Request, Response]):
    """Listener of a stream whose messages a coroutine sends after the one request."""

    def __init__(
        self,
        stream: GrpcStream[Request, Response],
        handler: Callable[[Request, GrpcStream[Request, Response]], Awaitable[None]],
    ) -> None:
        self._stream = stream
        self._handler = handler
        self._request: Request | None = None

    def on_message(self, message: Request) -> None:
        if self._request is not None:
            raise ONE_REQUEST
        self._request = message

    def on_half_close(self) -> None:
        if self._request is None:
            raise ONE_REQUEST
        stream = self._stream
        stream._wait(self._handler(self._request, stream), lambda _: stream.finish())

    def on_close(self, reason: CloseReason) -> None:
        """Do nothing: the coroutine is cancelled."""
