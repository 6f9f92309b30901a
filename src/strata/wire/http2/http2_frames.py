"""HTTP/2 definitions: frames, settings, error codes, limits, stream state, events.

`Allowance` limits the rate of frames that cost the server work and the peer nothing.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct
from typing import Any, NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEADER = Struct(">BHBBL")
FRAME_HEADER_BYTES = 9
MAX_FRAME_BYTES = 16_384
MAX_SENT_FRAME_BYTES = 262_144
DEFAULT_WINDOW_BYTES = 65_535
MAX_WINDOW_BYTES = MAX_STREAM_ID = 2**31 - 1

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = 0, 1, 2, 3, 4
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 5, 6, 7, 8, 9
ACK = END_STREAM = 0x1
END_HEADERS, PADDED, HAS_PRIORITY = 0x4, 0x8, 0x20

SETTING = Struct(">HL")
MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 3, 4, 5, 6


class ErrorCode(IntEnum):
    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class ConnectionFault(Exception):
    """A violation of the protocol that ends the connection."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(f"{code.name}: {reason}")
        self.code = code
        self.reason = reason


def unpadded(payload: bytes) -> bytes:
    """The payload of a frame without its padding."""
    if not payload or payload[0] >= len(payload):
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "padding longer than its frame")
    return payload[1 : len(payload) - payload[0]]


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """Limits of one connection."""

    max_concurrent_streams: int = 1_000
    max_header_list_bytes: int = 8_192
    stream_window_bytes: int = 1_048_576
    connection_window_bytes: int = 4_194_304
    control_frame_burst: int = 2_000
    control_frames_per_s: int = 1_000

    def __post_init__(self) -> None:
        if min(self.stream_window_bytes, self.connection_window_bytes) < DEFAULT_WINDOW_BYTES:
            raise ValueError(f"a window must have at least {DEFAULT_WINDOW_BYTES} bytes")


@dataclass(slots=True, eq=False)
class Http2Stream:
    """Windows and queued data of one stream; `owner` belongs to the layer above.

    `kept_bytes` is the memory of the stream besides `waiting`: its request's head, its trailers.
    """

    id: int
    send_window: int
    receive_window: int
    half_closed: bool
    kept_bytes: int
    closed: bool = False
    waiting: bytearray = field(default_factory=bytearray)
    trailers: bytes | None = None
    owner: Any = None


class RequestReceived(NamedTuple):
    stream: Http2Stream
    head: Any
    ended: bool


class DataReceived(NamedTuple):
    stream: Http2Stream
    data: bytes
    ended: bool


class StreamReset(NamedTuple):
    stream: Http2Stream
    code: int


Event = RequestReceived | DataReceived | StreamReset


class Allowance:
    """A token bucket: `burst` frames at once, refilled by `per_s` frames per second."""

    def __init__(self, burst: int, per_s: int) -> None:
        self._burst = burst
        self._per_s = per_s
        self._left = float(burst)
        self._refilled_at_s: float | None = None

    def spend(self, now_s: float) -> None:
        """Count one frame; raises if the bucket is empty after refilling it."""
        if self._refilled_at_s is None:
            self._refilled_at_s = now_s
        self._left -= 1
        if self._left < 0:
            refill = (now_s - self._refilled_at_s) * self._per_s
            self._left = min(self._left + refill, self._burst)
            self._refilled_at_s = now_s
            if self._left < 0:
                raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many control frames")
