"""HTTP/2 without sockets: frames in, events and frames out; then fuzzing."""

import pytest
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from strata.wire.http2.hpack import OK_TRAILERS, RESPONSE_HEAD, read_request
from strata.wire.http2.http2_connection import Http2Connection
from strata.wire.http2.http2_frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HAS_PRIORITY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    PADDED,
    PING,
    PREFACE,
    RST_STREAM,
    SETTING,
    SETTINGS,
    WINDOW_UPDATE,
    DataReceived,
    ErrorCode,
    Http2Limits,
    RequestReceived,
    StreamReset,
)
from tests.wire.harness import GREETING, frame, request_fields, split_frames

PATH = "/test.Test/Talk"
SMALL = Http2Limits(
    max_concurrent_streams=8,
    max_header_list_bytes=4_096,
    stream_window_bytes=65_535,
    connection_window_bytes=65_535,
    control_frame_burst=50,
    control_frames_per_s=1,
)


def block() -> bytes:
    return Encoder().encode(request_fields(PATH))


def sent(connection: Http2Connection) -> list[tuple[int, int, int, bytes]]:
    """The frames sent since the last call."""
    frames, rest = split_frames(b"".join(connection.outgoing))
    connection.outgoing.clear()
    assert rest == b""
    return frames


def greeted(limits: Http2Limits = SMALL) -> Http2Connection:
    connection = Http2Connection(read_request, limits)
    assert connection.receive(GREETING, 0.0) == []
    assert connection.fault is None
    sent(connection)
    return connection


def opened(limits: Http2Limits = SMALL):
    connection = greeted(limits)
    [event] = connection.receive(frame(HEADERS, END_HEADERS, 1, block()), 0.0)
    return connection, event.stream


def test_bytes_may_arrive_one_by_one():
    connection = Http2Connection(read_request, SMALL)
    whole = GREETING + frame(HEADERS, END_HEADERS, 1, block()) + frame(DATA, END_STREAM, 1, b"abc")
    events = [event for byte in whole for event in connection.receive(bytes([byte]), 0.0)]
    request, data = events
    assert isinstance(request, RequestReceived)
    assert request.head.path == PATH
    assert data == DataReceived(request.stream, b"abc", True)


def test_padding_and_priority_are_removed():
    connection = greeted()
    payload = b"\x03" + bytes(5) + block() + bytes(3)
    flags = END_HEADERS | PADDED | HAS_PRIORITY
    [request] = connection.receive(frame(HEADERS, flags, 1, payload), 0.0)
    assert request.head.path == PATH
    [data] = connection.receive(frame(DATA, PADDED, 1, b"\x04abc" + bytes(4)), 0.0)
    assert data.data == b"abc"


def test_header_block_may_be_split():
    connection = greeted()
    whole = block()
    pieces = [frame(HEADERS, END_STREAM, 1, whole[:5]), frame(CONTINUATION, 0, 1, whole[5:9])]
    pieces.append(frame(CONTINUATION, END_HEADERS, 1, whole[9:]))
    [request] = connection.receive(b"".join(pieces), 0.0)
    assert (request.head.path, request.ended) == (PATH, True)


def test_header_block_size_is_limited():
    connection = greeted()
    connection.receive(frame(HEADERS, 0, 1, bytes(2_000)), 0.0)
    connection.receive(frame(CONTINUATION, 0, 1, bytes(2_000)), 0.0)
    assert connection.fault is None
    connection.receive(frame(CONTINUATION, 0, 1, bytes(200)), 0.0)
    assert connection.fault.code is ErrorCode.ENHANCE_YOUR_CALM


def test_client_trailers_half_close_the_stream():
    connection, stream = opened()
    trailers = Encoder().encode([("checksum", "1")])
    [event] = connection.receive(frame(HEADERS, END_HEADERS | END_STREAM, 1, trailers), 0.0)
    assert event == DataReceived(stream, b"", True)


def test_settings_and_pings_are_answered():
    connection = greeted()
    connection.receive(frame(SETTINGS, 0, 0) + frame(PING, 0, 0, b"12345678"), 0.0)
    assert sent(connection) == [(SETTINGS, ACK, 0, b""), (PING, ACK, 0, b"12345678")]


def test_data_waits_for_the_stream_window():
    connection = greeted()
    connection.receive(frame(SETTINGS, 0, 0, SETTING.pack(INITIAL_WINDOW_SIZE, 4)), 0.0)
    [event] = connection.receive(frame(HEADERS, END_HEADERS, 1, block()), 0.0)
    sent(connection)
    connection.send_headers(event.stream, RESPONSE_HEAD)
    connection.send_data(event.stream, b"abcdefgh")
    connection.send_trailers(event.stream, OK_TRAILERS)
    assert [payload for kind, _, _, payload in sent(connection) if kind == DATA] == [b"abcd"]
    assert connection.waiting_bytes == 4
    connection.receive(frame(WINDOW_UPDATE, 0, 1, b"\0\0\0\3"), 0.0)
    assert sent(connection) == [(DATA, 0, 1, b"efg")]
    connection.receive(frame(WINDOW_UPDATE, 0, 1, b"\0\0\0\3"), 0.0)
    kinds = [(kind, flags) for kind, flags, _, _ in sent(connection)]
    assert kinds == [(DATA, 0), (HEADERS, END_HEADERS | END_STREAM), (RST_STREAM, 0)]
    assert (connection.waiting_bytes, connection.streams) == (0, {})


def test_larger_initial_window_is_acknowledged_before_use():
    connection, stream = opened()
    connection.receive(frame(WINDOW_UPDATE, 0, 0, (2**20).to_bytes(4, "big")), 0.0)
    connection.send_data(stream, bytes(70_000))
    sent(connection)
    connection.receive(frame(SETTINGS, 0, 0, SETTING.pack(INITIAL_WINDOW_SIZE, 2**20)), 0.0)
    assert [kind for kind, _, _, _ in sent(connection)] == [SETTINGS, DATA]


def test_smaller_initial_window_can_become_negative():
    connection, stream = opened()
    connection.send_data(stream, bytes(60_000))
    connection.receive(frame(SETTINGS, 0, 0, SETTING.pack(INITIAL_WINDOW_SIZE, 50_000)), 0.0)
    sent(connection)
    connection.send_data(stream, b"late")
    connection.receive(frame(WINDOW_UPDATE, 0, 1, (10_000).to_bytes(4, "big")), 0.0)
    assert sent(connection) == []
    connection.receive(frame(WINDOW_UPDATE, 0, 1, b"\0\0\0\4"), 0.0)
    assert sent(connection) == [(DATA, 0, 1, b"late")]


def test_connection_window_is_shared_fairly():
    connection = greeted()
    connection.receive(frame(SETTINGS, 0, 0, SETTING.pack(INITIAL_WINDOW_SIZE, 2**20)), 0.0)
    streams = []
    for stream_id in (1, 3):
        [event] = connection.receive(frame(HEADERS, END_HEADERS, stream_id, block()), 0.0)
        streams.append(event.stream)
    for stream in streams:
        connection.send_data(stream, bytes(100_000))
    sent(connection)
    connection.receive(frame(WINDOW_UPDATE, 0, 0, (65_536).to_bytes(4, "big")), 0.0)
    order = [stream_id for kind, _, stream_id, _ in sent(connection) if kind == DATA]
    assert sorted(order) == [1, 1, 3, 3]
    assert order[:2] != [order[0]] * 2


@pytest.mark.parametrize("size", [16_384, 20_000, 200_000])
def test_frames_are_never_larger_than_the_peer_allows(size):
    connection, stream = opened()
    settings = SETTING.pack(MAX_FRAME_SIZE, size) + SETTING.pack(INITIAL_WINDOW_SIZE, 2**30)
    connection.receive(frame(SETTINGS, 0, 0, settings), 0.0)
    connection.receive(frame(WINDOW_UPDATE, 0, 0, (2**30).to_bytes(4, "big")), 0.0)
    sent(connection)
    connection.send_data(stream, bytes(1_000_000))
    sizes = [len(payload) for _, _, _, payload in sent(connection)]
    assert (max(sizes), sum(sizes)) == (size, 1_000_000)


def test_long_header_blocks_are_continued():
    connection, stream = opened()
    connection.send_trailers(stream, bytes(40_000))
    frames = [(kind, flags, len(payload)) for kind, flags, _, payload in sent(connection)]
    assert frames == [
        (HEADERS, END_STREAM, 16_384),
        (CONTINUATION, 0, 16_384),
        (CONTINUATION, END_HEADERS, 7_232),
        (RST_STREAM, 0, 4),
    ]


def test_only_control_frames_are_sent_while_the_socket_is_full():
    connection, stream = opened()
    connection.set_writable(False)
    connection.send_data(stream, b"abc")
    connection.receive(frame(PING, 0, 0, bytes(8)), 0.0)
    assert [kind for kind, _, _, _ in sent(connection)] == [PING]
    connection.set_writable(True)
    assert sent(connection) == [(DATA, 0, 1, b"abc")]


def test_receiving_windows_are_refilled_as_data_arrives():
    connection, _ = opened()
    connection.receive(frame(DATA, 0, 1, bytes(16_000)) * 3, 0.0)
    granted: dict[int, int] = {}
    for kind, _, stream_id, payload in sent(connection):
        assert kind == WINDOW_UPDATE
        granted[stream_id] = granted.get(stream_id, 0) + int.from_bytes(payload, "big")
    assert granted == {0: 48_000, 1: 48_000}


def test_data_beyond_a_window_is_a_connection_error():
    """Only a peer that ignores our windows can do this, so window updates are withheld."""
    connection, stream = opened()
    stream.receive_window = 10
    connection.receive(frame(DATA, 0, 1, bytes(11)), 0.0)
    assert connection.fault.code is ErrorCode.FLOW_CONTROL_ERROR
    connection, _ = opened()
    connection._receive_window = 10
    connection.receive(frame(DATA, 0, 1, bytes(11)), 0.0)
    assert connection.fault.code is ErrorCode.FLOW_CONTROL_ERROR


def test_data_for_an_ended_stream_is_ignored_and_counted():
    connection, stream = opened()
    connection.send_trailers(stream, OK_TRAILERS)
    sent(connection)
    assert connection.receive(frame(DATA, 0, 1, bytes(16_000)) * 3, 0.0) == []
    assert {stream_id for _, _, stream_id, _ in sent(connection)} == {0}


def test_data_after_the_end_resets_the_stream():
    connection, stream = opened()
    connection.receive(frame(DATA, END_STREAM, 1, b"x"), 0.0)
    [event] = connection.receive(frame(DATA, 0, 1, b"x"), 0.0)
    assert event == StreamReset(stream, ErrorCode.STREAM_CLOSED)


def test_allowance_refills_with_time():
    connection = greeted()
    pings = frame(PING, 0, 0, bytes(8)) * 30
    for second in range(0, 300, 30):
        connection.receive(pings, float(second))
    assert connection.fault is None
    connection.receive(pings * 3, 300.0)
    assert connection.fault.code is ErrorCode.ENHANCE_YOUR_CALM


def test_reset_stream_no_longer_waits_for_the_connection_window():
    connection = greeted(Http2Limits(control_frame_burst=10**9))
    connection.receive(frame(SETTINGS, 0, 0, SETTING.pack(INITIAL_WINDOW_SIZE, 70_000)), 0.0)
    for stream_id in range(1, 2_001, 2):
        [event] = connection.receive(frame(HEADERS, END_HEADERS, stream_id, block()), 0.0)
        connection.send_data(event.stream, bytes(70_000))
        connection.receive(frame(RST_STREAM, 0, stream_id, bytes(4)), 0.0)
    assert connection._send_window == 0
    assert len(connection._offered) == 0
    assert connection.waiting_bytes == 0


def test_window_updates_that_answer_data_are_free():
    connection, stream = opened()
    for _ in range(500):
        connection.send_data(stream, bytes(100))
        for stream_id in (0, 1):
            connection.receive(frame(WINDOW_UPDATE, 0, stream_id, b"\0\0\0\x64"), 0.0)
    assert connection.fault is None


@pytest.mark.parametrize("stream_id", [0, 1])
def test_window_updates_that_answer_no_data_draw_on_the_allowance(stream_id):
    connection, _ = opened()
    connection.receive(frame(WINDOW_UPDATE, 0, stream_id, b"\0\0\0\1") * 100, 0.0)
    assert connection.fault.code is ErrorCode.ENHANCE_YOUR_CALM


def test_window_updates_of_one_byte_draw_on_the_allowance_though_data_waits():
    connection = greeted()
    connection.receive(frame(SETTINGS, 0, 0, SETTING.pack(INITIAL_WINDOW_SIZE, 0)), 0.0)
    [event] = connection.receive(frame(HEADERS, END_HEADERS, 1, block()), 0.0)
    connection.send_data(event.stream, bytes(10_000))
    connection.receive(frame(WINDOW_UPDATE, 0, 1, b"\0\0\0\1") * 100, 0.0)
    assert connection.fault.code is ErrorCode.ENHANCE_YOUR_CALM


def test_only_one_settings_ack_is_free():
    connection = greeted()
    left = SMALL.control_frame_burst - 1  # the first SETTINGS frame counted too
    connection.receive(frame(SETTINGS, ACK, 0) * (1 + left), 0.0)
    assert connection.fault is None
    connection.receive(frame(SETTINGS, ACK, 0), 0.0)
    assert connection.fault.code is ErrorCode.ENHANCE_YOUR_CALM


def test_data_for_an_ended_stream_draws_on_the_allowance():
    connection, stream = opened()
    connection.send_trailers(stream, OK_TRAILERS)
    connection.receive(frame(DATA, 0, 1, b"x") * 100, 0.0)
    assert connection.fault.code is ErrorCode.ENHANCE_YOUR_CALM


def test_nothing_is_read_after_a_connection_error():
    connection = greeted()
    connection.receive(frame(PING, 0, 0, b""), 0.0)
    assert connection.fault is not None
    assert connection.receive(frame(HEADERS, END_HEADERS, 1, block()), 0.0) == []


def test_windows_smaller_than_a_client_may_assume_are_refused():
    with pytest.raises(ValueError, match="65535"):
        Http2Limits(stream_window_bytes=1_000)


def drive(data: list[bytes], reply: bool) -> None:
    """Feed a connection and answer its requests; its invariants must hold for any input."""
    connection = Http2Connection(read_request, SMALL)
    for number, piece in enumerate(data):
        for event in connection.receive(piece, number / 1_000):
            if reply and isinstance(event, DataReceived):
                connection.send_headers(event.stream, RESPONSE_HEAD)
                connection.send_data(event.stream, event.data)
                if event.ended:
                    connection.send_trailers(event.stream, OK_TRAILERS)
        assert len(connection.streams) <= SMALL.max_concurrent_streams
        assert connection.waiting_bytes == sum(len(s.waiting) for s in connection.streams.values())
        assert len(connection._rest) <= 16_384 + 9
        assert len(connection._offered) <= len(connection.streams)
        for kind, _, _, payload in sent(connection):
            assert kind != DATA or len(payload) <= 2**18


@given(st.lists(st.binary(max_size=200), max_size=20), st.booleans())
def test_random_bytes_never_raise(data, greet):
    drive([PREFACE, frame(SETTINGS, 0, 0), *data] if greet else data, reply=True)


settings_payloads = st.lists(
    st.builds(SETTING.pack, st.integers(0, 8), st.integers(0, 2**32 - 1)), max_size=4
).map(b"".join)
payloads = st.one_of(
    st.binary(max_size=64),
    st.just(block()),
    st.builds(lambda n: n.to_bytes(4, "big"), st.integers(0, 2**32 - 1)),
    st.builds(bytes, st.sampled_from([0, 5, 8, 1_000, 16_384])),
    settings_payloads,
)
flags = st.sampled_from([0, END_STREAM, END_HEADERS, END_HEADERS | END_STREAM, PADDED, 0xFF])
frames = st.builds(frame, st.integers(0, 11), flags, st.sampled_from([0, 1, 2, 3, 5, 7]), payloads)
requests = st.builds(
    lambda number, last: frame(HEADERS, END_HEADERS | last, 2 * number + 1, block()),
    st.integers(0, 20),
    st.sampled_from([0, END_STREAM]),
)


@given(st.lists(st.one_of(frames, requests), max_size=40), st.integers(1, 97), st.booleans())
def test_random_frames_never_raise(sequence, cut, reply):
    whole = b"".join([GREETING, *sequence])
    drive([whole[start : start + cut * 50] for start in range(0, len(whole), cut * 50)], reply)
