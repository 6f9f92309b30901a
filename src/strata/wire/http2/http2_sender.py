"""Sending half of an HTTP/2 connection: frames, and data that waits for flow-control windows."""

from collections import OrderedDict

from strata.wire.http2.http2_frames import (
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW_BYTES,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    GOAWAY,
    HEADERS,
    MAX_FRAME_BYTES,
    MAX_STREAM_ID,
    PING,
    RST_STREAM,
    WINDOW_UPDATE,
    ErrorCode,
    Http2Stream,
)

ALIVE_MARK = b"alive?\0\0"
DRAIN_MARK = b"drain\0\0\0"
UPDATES_PER_FRAME = 2
"""Window updates that a peer may send for each DATA frame: its stream's and the connection's."""

SMALL_FRAME_BYTES = 256


class FrameSender:
    """Appends frames to `outgoing`, and data as far as the peer's windows allow."""

    def __init__(self) -> None:
        self.outgoing: list[bytes] = []
        self.streams: dict[int, Http2Stream] = {}
        self.waiting_bytes = 0
        self.kept_bytes = 0
        self._writable = True
        self._send_window = self._initial_send_window = DEFAULT_WINDOW_BYTES
        self._send_frame_bytes = MAX_FRAME_BYTES
        self._free_updates = 0
        self._offered: OrderedDict[int, Http2Stream] = OrderedDict()

    def send_headers(self, stream: Http2Stream, block: bytes) -> None:
        if not stream.closed:
            self._header_frames(stream.id, block, 0)

    def send_data(self, stream: Http2Stream, data: bytes) -> None:
        """Send what the windows allow; queue the rest in order."""
        if stream.closed:
            return
        size = len(data)
        if (
            self._writable
            and not stream.waiting
            and size <= stream.send_window
            and size <= self._send_window
            and size <= self._send_frame_bytes
        ):
            stream.send_window -= size
            self._send_window -= size
            self._free_updates += UPDATES_PER_FRAME
            self.outgoing.append(FRAME_HEADER.pack(size >> 16, size & 0xFFFF, DATA, 0, stream.id))
            self.outgoing.append(data)
            return
        stream.waiting += data
        self.waiting_bytes += size
        self._offer(stream)
        self._pump()

    def send_trailers(self, stream: Http2Stream, block: bytes) -> None:
        """End the stream after its queued data."""
        if stream.closed:
            return
        if stream.waiting:
            if stream.trailers is None:
                stream.kept_bytes += len(block)
                self.kept_bytes += len(block)
            stream.trailers = block
            return
        self._header_frames(stream.id, block, END_STREAM)
        if not stream.half_closed:
            self._frame(RST_STREAM, 0, stream.id, ErrorCode.NO_ERROR.to_bytes(4, "big"))
        self._forget(stream)

    def discard_waiting(self, stream: Http2Stream) -> None:
        self.waiting_bytes -= len(stream.waiting)
        stream.waiting = bytearray()

    def reset(self, stream: Http2Stream, code: ErrorCode) -> None:
        if not stream.closed:
            self._frame(RST_STREAM, 0, stream.id, code.to_bytes(4, "big"))
            self._forget(stream)

    def set_writable(self, writable: bool) -> None:
        """Queue data while the socket is full; control frames are still sent."""
        self._writable = writable
        self._pump()

    def ping(self) -> None:
        self._frame(PING, 0, 0, ALIVE_MARK)

    def drain(self) -> None:
        """Announce the shutdown; when the peer has acknowledged it, new streams are ignored."""
        self._goaway(MAX_STREAM_ID, ErrorCode.NO_ERROR, "draining")
        self._frame(PING, 0, 0, DRAIN_MARK)

    def _forget(self, stream: Http2Stream) -> None:
        stream.closed = True
        del self.streams[stream.id]
        self.kept_bytes -= stream.kept_bytes
        self._offered.pop(stream.id, None)
        if stream.waiting:
            self.discard_waiting(stream)

    def _offer(self, stream: Http2Stream) -> None:
        if stream.send_window > 0:
            self._offered.setdefault(stream.id, stream)

    def _pump(self) -> None:
        """Send queued data, one frame per stream in turn, as far as the windows allow.

        A frame that is small because of a small window allows no free window updates; otherwise a
        peer could make us send its data in single bytes.
        """
        offered = self._offered
        while offered and self._writable and self._send_window > 0:
            _, stream = offered.popitem(last=False)
            waiting = stream.waiting
            window = min(stream.send_window, self._send_window, self._send_frame_bytes)
            if not waiting or window <= 0:
                continue
            chunk = bytes(waiting[:window])
            del waiting[:window]
            self._frame(DATA, 0, stream.id, chunk)
            stream.send_window -= len(chunk)
            self._send_window -= len(chunk)
            self.waiting_bytes -= len(chunk)
            if len(chunk) >= SMALL_FRAME_BYTES or not waiting:
                self._free_updates += UPDATES_PER_FRAME
            if waiting:
                self._offer(stream)
            elif stream.trailers is not None:
                self.send_trailers(stream, stream.trailers)

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        size = len(payload)
        header = FRAME_HEADER.pack(size >> 16, size & 0xFFFF, kind, flags, stream_id)
        self.outgoing.append(header + payload)

    def _header_frames(self, stream_id: int, block: bytes, flags: int) -> None:
        kind, limit = HEADERS, self._send_frame_bytes
        while len(block) > limit:
            self._frame(kind, flags, stream_id, block[:limit])
            kind, flags, block = CONTINUATION, 0, block[limit:]
        self._frame(kind, flags | END_HEADERS, stream_id, block)

    def _grant(self, stream_id: int, increment: int) -> None:
        self._frame(WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))

    def _goaway(self, last_id: int, code: ErrorCode, reason: str) -> None:
        payload = last_id.to_bytes(4, "big") + code.to_bytes(4, "big") + reason.encode()
        self._frame(GOAWAY, 0, 0, payload)
