"""The server side of HTTP/2 (RFC 9113), as far as gRPC needs it, without I/O.

`Http2Connection.receive` takes the bytes of a peer and returns events; `send_*` and `reset` append
frames to `outgoing`, which the owner of the socket writes and clears. The connection never waits,
reads no clock and knows nothing of gRPC.

A protocol error of the peer ends the stream (it is reset, with a `StreamReset` event) or the
connection (a GOAWAY with the error code is sent and `fault` is set; nothing is read afterwards).
`receive` never raises.

Memory and work per peer are limited. Open streams, header blocks, frames: by `Http2Limits`. Bytes
that wait for the peer's windows: by the caller, which reads `waiting_bytes`. Frames that cost the
server work and the peer nothing (PING, SETTINGS, RST_STREAM, empty DATA, CONTINUATION, DATA of
ended streams, streams above the limit): by a token bucket, which allows a client to cancel all its
calls at once, and ends floods. WINDOW_UPDATE counts too, except for two per DATA frame that we
send, and SETTINGS ACK, except for the one that we expect.

Receive windows are refilled as bytes arrive, because the layer above consumes messages at once and
limits incomplete ones. Event objects cost a unary call 1.1 µs more than callbacks would, and make
fuzz tests and a plain control flow possible.
"""

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from strata.wire.http2.hpack import Field, HeaderBlockError, HeaderDecoder, HeaderListTooLarge
from strata.wire.http2.http2_frames import (
    ACK,
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW_BYTES,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    GOAWAY,
    HAS_PRIORITY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_BYTES,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    MAX_SENT_FRAME_BYTES,
    MAX_STREAM_ID,
    MAX_WINDOW_BYTES,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTING,
    SETTINGS,
    WINDOW_UPDATE,
    Allowance,
    ConnectionFault,
    DataReceived,
    ErrorCode,
    Event,
    Http2Limits,
    Http2Stream,
    RequestReceived,
    StreamReset,
    unpadded,
)
from strata.wire.http2.http2_sender import DRAIN_MARK, FrameSender

Head = TypeVar("Head")

STREAM_BYTES = 1_024
"""Approximate memory of an open stream with its call, without its request's head."""


class Http2Connection(FrameSender, Generic[Head]):
    """One connection. `interpret` converts header fields to a request's head, or None if they are
    malformed; it must be pure, because equal header blocks share its result. While `streams_cost`
    is set, each new stream counts in the token bucket."""

    def __init__(
        self, interpret: Callable[[list[Field]], Head | None], limits: Http2Limits
    ) -> None:
        super().__init__()
        self.fault: ConnectionFault | None = None
        self.greeted = False
        self.streams_cost = False
        self._limits = limits
        self._decoder = HeaderDecoder(interpret, limits.max_header_list_bytes)
        self._events: list[Event] = []
        self._rest = b""
        self._last_id = 0
        self._refusing = False
        self._settings_acknowledged = False
        self._continued: tuple[int, int, bytearray] | None = None
        self._allowance = Allowance(limits.control_frame_burst, limits.control_frames_per_s)
        self._now = 0.0
        self._receive_window = limits.connection_window_bytes
        self._greet()

    def _greet(self) -> None:
        limits = self._limits
        settings = (
            (MAX_CONCURRENT_STREAMS, limits.max_concurrent_streams),
            (INITIAL_WINDOW_SIZE, limits.stream_window_bytes),
            (MAX_HEADER_LIST_SIZE, limits.max_header_list_bytes),
        )
        self._frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*setting) for setting in settings))
        if self._receive_window > DEFAULT_WINDOW_BYTES:
            self._grant(0, self._receive_window - DEFAULT_WINDOW_BYTES)

    @property
    def held_bytes(self) -> int:
        """Memory held for the peer: incomplete frames, header blocks, streams, unsent data."""
        continued = 0 if self._continued is None else len(self._continued[2])
        received = len(self._rest) + continued + self._decoder.held_bytes
        return received + self.waiting_bytes + self.kept_bytes

    @property
    def drained(self) -> bool:
        return self._refusing and not self.streams

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Process received bytes; `now` is a monotonic clock in seconds."""
        self._now = now
        events: list[Event] = []
        self._events = events
        if self.fault is None:
            try:
                self._rest = self._read(self._rest + data if self._rest else data)
            except ConnectionFault as fault:
                self._goaway(self._last_id, fault.code, fault.reason)
                self.fault = fault
                self._rest = b""
        return events

    def _read(self, data: bytes) -> bytes:
        """Handle every complete frame; returns the bytes of the incomplete one."""
        position, end = 0, len(data)
        if not self.greeted:
            if data[: len(PREFACE)] != PREFACE[:end]:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "not an HTTP/2 client")
            if end < len(PREFACE) + FRAME_HEADER_BYTES:
                return data
            position = len(PREFACE)
            if data[position + 3 : position + 5] != bytes((SETTINGS, 0)):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS must come first")
            self.greeted = True
        unpack = FRAME_HEADER.unpack_from
        while end - position >= FRAME_HEADER_BYTES:
            high, low, kind, flags, stream_id = unpack(data, position)
            start = position + FRAME_HEADER_BYTES
            size = high << 16 | low
            if size > MAX_FRAME_BYTES:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {size} bytes")
            if start + size > end:
                break
            position = start + size
            if self._continued is not None and kind != CONTINUATION:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a header block was interrupted")
            rule = _FRAME_RULES.get(kind)
            if rule is None:
                self._spend()
                continue
            stream_id &= MAX_STREAM_ID
            handle, on_stream, fixed_size = rule
            if fixed_size is not None and fixed_size != size:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"frame {kind}, {size} bytes")
            if on_stream is not None and on_stream != (stream_id > 0):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"frame {kind} on {stream_id}")
            handle(self, flags, stream_id, data[start:position])
        return data[position:]

    def _spend(self) -> None:
        self._allowance.spend(self._now)

    def end(self, reason: str) -> None:
        """End the connection because of a limit, without a protocol error of the peer."""
        if self.fault is None:
            self.fault = ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, reason)
            self._goaway(self._last_id, ErrorCode.ENHANCE_YOUR_CALM, reason)
            self._rest = b""

    def _stream(self, stream_id: int) -> Http2Stream | None:
        """The open stream, or None if it was closed; raises if it was never opened."""
        stream = self.streams.get(stream_id)
        if stream is None and (stream_id > self._last_id or stream_id % 2 == 0):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"stream {stream_id} is not open")
        return stream

    def _stream_fault(self, stream: Http2Stream, code: ErrorCode) -> None:
        self._spend()
        self.reset(stream, code)
        self._events.append(StreamReset(stream, code))

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        size = len(payload)
        self._receive_window -= size
        whole = self._limits.connection_window_bytes
        if self._receive_window < whole // 2:
            if self._receive_window < 0:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "connection window exceeded")
            self._grant(0, whole - self._receive_window)
            self._receive_window = whole
        stream = self._stream(stream_id)
        if stream is None:
            self._spend()
            return
        if stream.half_closed:
            self._stream_fault(stream, ErrorCode.STREAM_CLOSED)
            return
        ended = flags & END_STREAM != 0
        self._take_from_window(stream, size, ended)
        if flags & PADDED:
            payload = unpadded(payload)
        if not payload and not ended:
            self._spend()
            return
        stream.half_closed = ended
        self._events.append(DataReceived(stream, payload, ended))

    def _take_from_window(self, stream: Http2Stream, size: int, ended: bool) -> None:
        stream.receive_window -= size
        whole = self._limits.stream_window_bytes
        if stream.receive_window < whole // 2 and not ended:
            if stream.receive_window < 0:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "stream window exceeded")
            self._grant(stream.id, whole - stream.receive_window)
            stream.receive_window = whole

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if flags & PADDED:
            payload = unpadded(payload)
        if flags & HAS_PRIORITY:
            payload = payload[5:]
        if len(payload) > self._limits.max_header_list_bytes:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "header block too large")
        if flags & END_HEADERS:
            self._on_header_block(flags, stream_id, payload)
        else:
            self._continued = (flags, stream_id, bytearray(payload))

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._spend()
        if self._continued is None or self._continued[1] != stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        first_flags, _, block = self._continued
        block += payload
        if len(block) > self._limits.max_header_list_bytes:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "header block too large")
        if flags & END_HEADERS:
            self._continued = None
            self._on_header_block(first_flags, stream_id, bytes(block))

    def _on_header_block(self, flags: int, stream_id: int, block: bytes) -> None:
        try:
            head = self._decoder.decode(block)
        except HeaderListTooLarge as error:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, str(error)) from error
        except HeaderBlockError as error:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, str(error)) from error
        ended = flags & END_STREAM != 0
        if stream_id > self._last_id:
            self._open(stream_id, head, ended)
            return
        self._spend()
        stream = self._stream(stream_id)
        if stream is None:
            return
        if stream.half_closed or not ended:
            self._stream_fault(stream, ErrorCode.PROTOCOL_ERROR)
            return
        stream.half_closed = True
        self._events.append(DataReceived(stream, b"", True))

    def _open(self, stream_id: int, head: Head | None, ended: bool) -> None:
        if stream_id % 2 == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "clients open odd streams")
        self._last_id = stream_id
        if self.streams_cost:
            self._spend()
        if self._refusing:
            return
        limits = self._limits
        stream = Http2Stream(
            id=stream_id,
            send_window=self._initial_send_window,
            receive_window=limits.stream_window_bytes,
            half_closed=ended,
            kept_bytes=STREAM_BYTES + self._decoder.list_bytes,
        )
        self.streams[stream_id] = stream
        self.kept_bytes += stream.kept_bytes
        if head is None:
            self._refuse(stream, ErrorCode.PROTOCOL_ERROR)
        elif len(self.streams) > limits.max_concurrent_streams:
            self._refuse(stream, ErrorCode.REFUSED_STREAM)
        else:
            self._events.append(RequestReceived(stream, head, ended))

    def _refuse(self, stream: Http2Stream, code: ErrorCode) -> None:
        self._spend()
        self.reset(stream, code)

    def _on_reset(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._spend()
        stream = self._stream(stream_id)
        if stream is not None:
            self._forget(stream)
            self._events.append(StreamReset(stream, int.from_bytes(payload, "big")))

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if flags & ACK and not payload and not self._settings_acknowledged:
            self._settings_acknowledged = True
            return
        self._spend()
        if flags & ACK and not payload:
            return
        if flags & ACK or len(payload) % SETTING.size:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of a wrong size")
        settings = dict(SETTING.iter_unpack(payload))
        frame_bytes = settings.get(MAX_FRAME_SIZE, self._send_frame_bytes)
        if not MAX_FRAME_BYTES <= frame_bytes < 2**24:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "MAX_FRAME_SIZE out of range")
        # A peer applies its new settings from the ACK on, so the ACK must be sent first.
        self._frame(SETTINGS, ACK, 0, b"")
        self._send_frame_bytes = min(frame_bytes, MAX_SENT_FRAME_BYTES)
        if INITIAL_WINDOW_SIZE in settings:
            self._shift_windows(settings[INITIAL_WINDOW_SIZE])

    def _shift_windows(self, initial_bytes: int) -> None:
        """Change the windows of all open streams by the new initial size, even below zero."""
        if initial_bytes > MAX_WINDOW_BYTES:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE too large")
        change = initial_bytes - self._initial_send_window
        self._initial_send_window = initial_bytes
        for stream in self.streams.values():
            stream.send_window += change
            if stream.send_window > MAX_WINDOW_BYTES:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a window grew too large")
            if stream.waiting:
                self._offer(stream)
        self._pump()

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._spend()
        if not flags & ACK:
            self._frame(PING, ACK, 0, payload)
        elif payload == DRAIN_MARK and not self._refusing:
            self._refusing = True
            self._goaway(self._last_id, ErrorCode.NO_ERROR, "draining")

    def _on_window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._free_updates > 0:
            self._free_updates = min(self._free_updates, self._limits.control_frame_burst) - 1
        else:
            self._spend()
        increment = int.from_bytes(payload, "big") & MAX_WINDOW_BYTES
        if stream_id == 0:
            self._send_window += increment
            if increment == 0 or self._send_window > MAX_WINDOW_BYTES:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "bad WINDOW_UPDATE")
        else:
            stream = self._stream(stream_id)
            if stream is None:
                return
            stream.send_window += increment
            if increment == 0 or stream.send_window > MAX_WINDOW_BYTES:
                self._stream_fault(stream, ErrorCode.FLOW_CONTROL_ERROR)
            elif stream.waiting:
                self._offer(stream)
        if self._offered:
            self._pump()

    def _on_ignored(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._spend()

    def _on_forbidden(self, flags: int, stream_id: int, payload: bytes) -> None:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "clients do not push")


class _FrameRule(NamedTuple):
    """Handler of a frame type, whether it needs a stream id (None: either), its fixed size."""

    handle: Callable[[Http2Connection[Any], int, int, bytes], None]
    on_stream: bool | None
    size: int | None = None


_FRAME_RULES = {
    DATA: _FrameRule(Http2Connection._on_data, True),
    HEADERS: _FrameRule(Http2Connection._on_headers, True),
    PRIORITY: _FrameRule(Http2Connection._on_ignored, True, 5),
    RST_STREAM: _FrameRule(Http2Connection._on_reset, True, 4),
    SETTINGS: _FrameRule(Http2Connection._on_settings, False),
    PUSH_PROMISE: _FrameRule(Http2Connection._on_forbidden, None),
    PING: _FrameRule(Http2Connection._on_ping, False, 8),
    GOAWAY: _FrameRule(Http2Connection._on_ignored, False),
    WINDOW_UPDATE: _FrameRule(Http2Connection._on_window_update, None, 4),
    CONTINUATION: _FrameRule(Http2Connection._on_continuation, True),
}
