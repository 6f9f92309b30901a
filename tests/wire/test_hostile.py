"""Peers that violate the protocol: each loses its own connection, with the right code, and nothing
else. Every test has a correct client beside the attacker."""

import socket

import pytest
from hpack import Encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.wire.http2.http2_frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTING,
    SETTINGS,
    WINDOW_UPDATE,
    ErrorCode,
    Http2Limits,
)
from tests.wire.harness import (
    GREETING,
    RawClient,
    Recorders,
    frame,
    request_fields,
    text,
    unary,
    wait_until,
)

PATIENT = {"keepalive_interval_s": 600.0}


@pytest.fixture
def server(start):
    """A server with a correct client, which is served to the end; keepalive is off."""
    running = start(**PATIENT)
    running.listeners = Recorders()
    running.unary("Echo", lambda request, call: request)
    running.stream("Talk", running.listeners)
    with running.channel() as channel:
        echo = unary(channel, "Echo")
        assert echo(text("before")).value == "before"
        yield running
        assert echo(text("after")).value == "after"
        wait_until(lambda: running.connection_count == 1)


def block(path: str = "/test.Test/Talk", *more: tuple[str, str]) -> bytes:
    return Encoder().encode(request_fields(path, *more))


OPEN = frame(HEADERS, END_HEADERS, 1, block())
LARGE_WINDOW = (2**31 - 1).to_bytes(4, "big")

FAULTS = {
    "HTTP/1": (b"GET / HTTP/1.1\r\n\r\n", ErrorCode.PROTOCOL_ERROR),
    "garbage": (bytes(range(256)), ErrorCode.PROTOCOL_ERROR),
    "no SETTINGS first": (PREFACE + frame(PING, 0, 0, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "SETTINGS ACK first": (PREFACE + frame(SETTINGS, ACK, 0), ErrorCode.PROTOCOL_ERROR),
    "oversized frame": (
        GREETING + frame(DATA, 0, 1, bytes(16_385)),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    "bad HPACK index": (
        GREETING + frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\x01"),
        ErrorCode.COMPRESSION_ERROR,
    ),
    "endless HPACK integer": (
        GREETING + frame(HEADERS, END_HEADERS, 1, b"\xff" * 50),
        ErrorCode.COMPRESSION_ERROR,
    ),
    "HPACK string past the end": (
        GREETING + frame(HEADERS, END_HEADERS, 1, b"\x00\x7f\x20abc"),
        ErrorCode.COMPRESSION_ERROR,
    ),
    "bad Huffman": (
        GREETING + frame(HEADERS, END_HEADERS, 1, b"\x00\x84\xff\xff\xff\xff\x01a"),
        ErrorCode.COMPRESSION_ERROR,
    ),
    "HPACK table too large": (
        GREETING + frame(HEADERS, END_HEADERS, 1, b"\x3f\xe2\x1f"),
        ErrorCode.COMPRESSION_ERROR,
    ),
    "huge header list": (
        GREETING + frame(HEADERS, END_HEADERS, 1, b"\x40\x01a\x64" + b"b" * 100 + b"\xbe" * 1_000),
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    "even stream": (GREETING + frame(HEADERS, END_HEADERS, 2, block()), ErrorCode.PROTOCOL_ERROR),
    "HEADERS on 0": (GREETING + frame(HEADERS, END_HEADERS, 0, block()), ErrorCode.PROTOCOL_ERROR),
    "DATA on 0": (GREETING + frame(DATA, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
    "DATA on an idle stream": (GREETING + frame(DATA, 0, 7, b"x"), ErrorCode.PROTOCOL_ERROR),
    "RST of an idle stream": (
        GREETING + frame(RST_STREAM, 0, 7, bytes(4)),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "window of an idle stream": (
        GREETING + frame(WINDOW_UPDATE, 0, 7, b"\0\0\0\1"),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "connection window overflow": (
        GREETING + frame(WINDOW_UPDATE, 0, 0, LARGE_WINDOW) * 2,
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "initial window too large": (
        GREETING + frame(SETTINGS, 0, 0, SETTING.pack(INITIAL_WINDOW_SIZE, 2**31)),
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "initial window overflows a stream": (
        GREETING
        + OPEN
        + frame(WINDOW_UPDATE, 0, 1, (2**31 - 1 - 65_535).to_bytes(4, "big"))
        + frame(SETTINGS, 0, 0, SETTING.pack(INITIAL_WINDOW_SIZE, 65_536)),
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "frame size setting too small": (
        GREETING + frame(SETTINGS, 0, 0, SETTING.pack(MAX_FRAME_SIZE, 100)),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "SETTINGS of a wrong size": (
        GREETING + frame(SETTINGS, 0, 0, bytes(5)),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    "PING of a wrong size": (GREETING + frame(PING, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
    "PING on a stream": (GREETING + frame(PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "PUSH_PROMISE": (GREETING + frame(PUSH_PROMISE, 0, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
    "padding past the frame": (
        GREETING + OPEN + frame(DATA, PADDED, 1, b"\x05abc"),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "interrupted header block": (
        GREETING + frame(HEADERS, 0, 1, block()) + frame(PING, 0, 0, bytes(8)),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "stray CONTINUATION": (
        GREETING + frame(CONTINUATION, END_HEADERS, 1, b""),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "CONTINUATION of another stream": (
        GREETING + frame(HEADERS, 0, 1, block()) + frame(CONTINUATION, END_HEADERS, 3, b""),
        ErrorCode.PROTOCOL_ERROR,
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_protocol_error_ends_the_connection_with_its_code(server, name):
    data, code = FAULTS[name]
    client = RawClient(server.port, greeting=data)
    assert client.goaway_code() == code
    client.close()


FLOODS = {
    "PING": frame(PING, 0, 0, bytes(8)),
    "SETTINGS": frame(SETTINGS, 0, 0),
    "SETTINGS of windows": frame(SETTINGS, 0, 0, SETTING.pack(INITIAL_WINDOW_SIZE, 65_535) * 1_000),
    "empty DATA": frame(DATA, 0, 1, b""),
    "PRIORITY": frame(PRIORITY, 0, 1, bytes(5)),
    "unknown frames": frame(0xFA, 0, 0, b"whatever"),
    "RST of a closed stream": frame(RST_STREAM, 0, 1, bytes(4)),
    "GOAWAY": frame(GOAWAY, 0, 0, bytes(8)),
    "SETTINGS ACK": frame(SETTINGS, ACK, 0),
    "WINDOW_UPDATE": frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1"),
    "WINDOW_UPDATE of a stream": frame(WINDOW_UPDATE, 0, 1, b"\0\0\0\1"),
}


@pytest.mark.parametrize("name", FLOODS)
def test_flood_of_cheap_frames_ends_the_connection(server, name):
    client = RawClient(server.port)
    client.send(client.headers(1, "/test.Test/Talk"))
    client.send_until_cut_off(FLOODS[name] * 100, times=200)
    assert client.goaway_code() in (ErrorCode.ENHANCE_YOUR_CALM, None)
    wait_until(lambda: server.connection_count == 1)
    client.close()


def test_random_frames_do_not_affect_others(server):
    kinds, stream_ids = st.integers(0, 10), st.sampled_from([0, 1, 3, 5])
    flags = st.sampled_from([0, END_STREAM, END_HEADERS, END_HEADERS | END_STREAM])
    message = b"\0\0\0\0\2\x0a\0"
    payloads = st.one_of(st.binary(max_size=40), st.sampled_from([block(), message, bytes(4)]))
    frames = st.builds(frame, kinds, flags, stream_ids, payloads)

    @settings(max_examples=50, deadline=None)
    @given(st.lists(frames, max_size=30))
    def attack(sequence) -> None:
        client = RawClient(server.port, greeting=b"".join([GREETING, OPEN, *sequence]))
        client.socket.shutdown(socket.SHUT_WR)
        client.goaway_code()
        client.close()

    attack()


def test_rapid_reset_ends_the_connection(server):
    client = RawClient(server.port)
    opened = 0
    try:
        for stream_id in range(1, 40_000, 2):
            client.send(client.headers(stream_id, "/test.Test/Talk"))
            client.send(frame(RST_STREAM, 0, stream_id, b"\0\0\0\x08"))
            opened += 1
    except OSError:
        pass
    assert opened < 20_000
    wait_until(lambda: server.connection_count == 1)
    client.close()


def test_stream_reset_at_once_never_reaches_its_handler(server):
    client = RawClient(server.port)
    client.send(
        client.headers(1, "/test.Test/Talk")
        + frame(RST_STREAM, 0, 1, bytes(4))
        + client.headers(3, "/test.Test/Talk")
    )
    assert client.is_served()
    assert server.listeners.next().stream._stream.id == 3
    client.close()


@pytest.mark.parametrize("size", [0, 1_000])
def test_flood_of_continuations_ends_the_connection(server, size):
    client = RawClient(server.port)
    client.send(frame(HEADERS, 0, 1, block()))
    client.send_until_cut_off(frame(CONTINUATION, 0, 1, bytes(size)), times=10_000)
    assert client.goaway_code() in (ErrorCode.ENHANCE_YOUR_CALM, None)
    client.close()


def test_peer_that_never_reads_answers_is_closed(start):
    limits = Http2Limits(control_frame_burst=10**9)
    server = start(max_buffered_bytes=200_000, limits=limits, **PATIENT)
    client = RawClient(server.port)
    client.send_until_cut_off(frame(PING, 0, 0, bytes(8)) * 1_000, times=5_000)
    wait_until(lambda: server.connection_count == 0)
    client.close()


def test_streams_above_the_limit_are_refused(start):
    server = start(limits=Http2Limits(max_concurrent_streams=2))
    listeners = Recorders()
    server.stream("Talk", listeners)
    client = RawClient(server.port)
    for stream_id in (1, 3, 5):
        client.send(client.headers(stream_id, "/test.Test/Talk"))
    _, _, stream_id, code = client.next_of(RST_STREAM)
    assert (stream_id, int.from_bytes(code, "big")) == (5, ErrorCode.REFUSED_STREAM)
    assert listeners.next().stream._stream.id == 1
    client.send(frame(RST_STREAM, 0, 1, bytes(4)) + client.headers(7, "/test.Test/Talk"))
    assert {listeners.next().stream._stream.id for _ in range(2)} == {3, 7}
    client.close()


@pytest.mark.parametrize(
    "fields",
    [
        [(":method", "POST"), (":path", "/test.Test/Talk")],
        [("te", "trailers"), *request_fields("/test.Test/Talk")],
        [(":status", "200"), *request_fields("/test.Test/Talk")],
        [(":path", "/other"), *request_fields("/test.Test/Talk")],
    ],
    ids=["missing", "late", "unknown", "twice"],
)
def test_bad_pseudo_fields_reset_only_their_stream(server, fields):
    client = RawClient(server.port)
    client.send(frame(HEADERS, END_HEADERS, 1, client.encoder.encode(fields)))
    _, _, stream_id, code = client.next_of(RST_STREAM)
    assert (stream_id, int.from_bytes(code, "big")) == (1, ErrorCode.PROTOCOL_ERROR)
    assert client.is_served()
    client.close()


def test_stream_window_overflow_resets_only_that_stream(server):
    client = RawClient(server.port)
    client.send(client.headers(1, "/test.Test/Talk"))
    client.send(frame(WINDOW_UPDATE, 0, 1, LARGE_WINDOW))
    _, _, stream_id, code = client.next_of(RST_STREAM)
    assert (stream_id, int.from_bytes(code, "big")) == (1, ErrorCode.FLOW_CONTROL_ERROR)
    assert client.is_served()
    client.close()


def test_request_that_is_not_grpc_gets_http_415(server):
    client = RawClient(server.port)
    fields = [(":method", "GET"), (":scheme", "http"), (":path", "/"), ("accept", "*/*")]
    flags = END_HEADERS | END_STREAM
    client.send(frame(HEADERS, flags, 1, client.encoder.encode(fields)))
    _, flags, _, answer = client.next_of(HEADERS)
    assert client.decoder.decode(answer) == [(":status", "415")]
    assert flags & END_STREAM
    client.close()


@pytest.mark.parametrize(
    ("more", "status"),
    [(("grpc-timeout", "soon"), "3"), (("key-bin", "***"), "3"), (("grpc-encoding", "br"), "12")],
)
def test_invalid_header_fields_refuse_the_call(server, more, status):
    client = RawClient(server.port)
    client.send(client.headers(1, "/test.Test/Echo", more, flags=END_STREAM))
    trailers = dict(client.decoder.decode(client.next_of(HEADERS)[3]))
    assert trailers["grpc-status"] == status
    client.close()


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (b"\1\0\0\0\3abc", "13"),
        (b"\0\0\0\0\x09abc", "13"),
        (b"\0\0", "13"),
        (b"\0\xff\xff\xff\xff", "8"),
    ],
    ids=["compressed unannounced", "cut short", "half a prefix", "four gigabytes"],
)
def test_bad_message_framing_ends_only_the_call(server, message, status):
    client = RawClient(server.port)
    client.send(client.headers(1, "/test.Test/Echo") + frame(DATA, END_STREAM, 1, message))
    trailers = dict(client.decoder.decode(client.next_of(HEADERS)[3]))
    assert trailers["grpc-status"] == status
    assert client.is_served()
    client.close()


def test_invalid_gzip_is_invalid_argument(server):
    client = RawClient(server.port)
    client.send(client.headers(1, "/test.Test/Echo", ("grpc-encoding", "gzip")))
    client.send(frame(DATA, END_STREAM, 1, b"\1\0\0\0\3abc"))
    trailers = dict(client.decoder.decode(client.next_of(HEADERS)[3]))
    assert trailers["grpc-status"] == "3"
    client.close()
