"""Limits of unauthenticated connections on a real server: message size, calls, unread output; they
never displace an authenticated connection."""

import grpc
import pytest
from google.protobuf.wrappers_pb2 import BytesValue
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from strata.errors import Unauthenticated
from strata.wire.grpc.connection_budget import Bounds
from strata.wire.grpc.grpc_call import CloseReason
from strata.wire.grpc.health_service import HealthService
from strata.wire.http2.hpack import encode_fields
from strata.wire.http2.http2_frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PREFACE,
    RST_STREAM,
    SETTING,
    SETTINGS,
    ErrorCode,
    Http2Limits,
)
from tests.wire.harness import (
    GREETING,
    RawClient,
    Recorders,
    bytes_value,
    frame,
    request_fields,
    unary,
    wait_until,
)

CHECK, WATCH, TALK = (
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/test.Test/Talk",
)
TOKEN = ("authorization", "Bearer secret")
PATIENT = {"keepalive_interval_s": 600.0}


def authorize(head, caller) -> None:
    if head.metadata.get("authorization") != TOKEN[1]:
        raise Unauthenticated("a valid token is needed")


@pytest.fixture
def begin(start):
    """Start a server with a token, the health service, and methods that need the token."""

    def serving(limits: Http2Limits | None = None, **bounds):
        server = start(authorize=authorize, bounds=Bounds(**bounds), limits=limits, **PATIENT)
        server.listeners = Recorders()
        server.stream("Talk", server.listeners)
        server.unary("Size", lambda request, call: request, BytesValue)
        health = HealthService()
        server.on_loop(health.serve_on, server.server)
        return server

    return serving


def authenticated(server, greeting: bytes = GREETING) -> RawClient:
    client = RawClient(server.port, greeting)
    client.send(client.headers(1, TALK, TOKEN))
    server.listeners.next()
    return client


def status(client: RawClient) -> str:
    """The status of the next call that ends."""
    while True:
        _, flags, _, block = client.next_of(HEADERS)
        fields = dict(client.decoder.decode(block))
        if flags & END_STREAM:
            return fields["grpc-status"]


def check(stream_id: int, *more: tuple[str, str]) -> bytes:
    """The head of a health check as literals, which do not change the table."""
    fields = [(name.encode(), value.encode()) for name, value in request_fields(CHECK, *more)]
    return frame(HEADERS, END_HEADERS, stream_id, encode_fields(fields))


def test_messages_of_public_methods_are_limited(begin):
    server = begin()
    client = RawClient(server.port)
    client.send(client.headers(1, CHECK) + frame(DATA, 0, 1, b"\0" + (5_000).to_bytes(4, "big")))
    assert status(client) == "8"
    client.send(client.headers(3, CHECK) + frame(DATA, END_STREAM, 3, b"\0\0\0\0\0"))
    assert status(client) == "0"
    client.close()


def test_large_message_with_wrong_token_gets_the_token_error(begin):
    server = begin()
    with server.channel() as channel:
        call = unary(channel, "Size", BytesValue)
        for _ in range(5):
            with pytest.raises(grpc.RpcError) as caught:
                call(bytes_value(3_000_000), metadata=[("authorization", "Bearer wrong")])
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert len(call(bytes_value(3_000_000), metadata=[TOKEN]).value) == 3_000_000


def test_open_calls_before_authentication_are_limited(begin):
    server = begin(max_unauthenticated_calls_each=3)
    client = RawClient(server.port)
    for stream_id in (1, 3, 5, 7):
        client.send(client.headers(stream_id, WATCH))
    assert status(client) == "8"
    client.send(client.headers(9, TALK, TOKEN))
    server.listeners.next()
    for stream_id in (11, 13):
        client.send(client.headers(stream_id, TALK, TOKEN))
        server.listeners.next()
    client.close()


def test_many_calls_with_the_token_are_served(begin):
    server = begin(max_unauthenticated_calls_each=3)
    client = RawClient(server.port)
    client.send(b"".join(client.headers(2 * n + 1, TALK, TOKEN) for n in range(50)))
    for _ in range(50):
        server.listeners.next()
    client.close()


def test_name_of_a_watched_service_is_bounded(begin):
    server = begin()
    client = RawClient(server.port)
    message = HealthCheckRequest(service="x" * 1_000).SerializeToString()
    framed = b"\0" + len(message).to_bytes(4, "big") + message
    client.send(client.headers(1, WATCH) + frame(DATA, 0, 1, framed))
    assert status(client) == "3"
    client.close()


def unfinished(count: int, first: int = 0) -> bytes:
    """Incomplete health checks of 4,000 bytes each."""
    message = b"\0" + (4_000).to_bytes(4, "big") + bytes(3_900)
    return b"".join(
        check(2 * number + 1) + frame(DATA, 0, 2 * number + 1, message)
        for number in range(first, first + count)
    )


def test_unauthenticated_connection_above_the_byte_limit_is_closed(begin):
    server = begin(max_unauthenticated_bytes_each=20_000)
    client = RawClient(server.port)
    client.send_until_cut_off(unfinished(10), times=1)
    assert client.goaway_code() in (ErrorCode.ENHANCE_YOUR_CALM, None)
    wait_until(lambda: server.connection_count == 0)
    assert server.server.budget.total_bytes == 0
    client.close()


def test_unread_answers_end_an_unauthenticated_connection(begin):
    """The peer has no window, so each answer stays queued."""
    server = begin(max_unauthenticated_bytes_each=20_000, max_unauthenticated_calls_each=100)
    no_window = PREFACE + frame(SETTINGS, 0, 0, SETTING.pack(INITIAL_WINDOW_SIZE, 0))
    client = RawClient(server.port, no_window)
    for stream_id in range(1, 100, 2):
        request = frame(DATA, END_STREAM, stream_id, b"\0\0\0\0\0")
        client.send_until_cut_off(check(stream_id) + request, times=1)
    assert client.goaway_code() in (ErrorCode.ENHANCE_YOUR_CALM, None)
    wait_until(lambda: server.connection_count == 0)
    client.close()


def test_calls_without_a_token_draw_on_the_allowance(begin):
    server = begin(Http2Limits(control_frame_burst=100, control_frames_per_s=1))
    client = RawClient(server.port)
    for stream_id in range(1, 1_001, 2):
        client.send_until_cut_off(client.headers(stream_id, TALK, flags=END_STREAM), times=1)
    assert client.goaway_code() in (ErrorCode.ENHANCE_YOUR_CALM, None)
    client.close()
    worker = authenticated(server)
    for stream_id in range(3, 1_003, 2):
        worker.send(worker.headers(stream_id, TALK, TOKEN))
        server.listeners.next()
    assert worker.is_served()
    worker.close()


def test_bytes_of_all_unauthenticated_connections_are_limited(begin):
    """Sixty connections try to hold 60 KB each; the server allows at most 1 MB."""
    server = begin(max_unauthenticated_bytes=1_000_000)
    worker = authenticated(server)
    clients = []
    most = 0
    for _ in range(60):
        clients.append(RawClient(server.port))
        clients[-1].send_until_cut_off(unfinished(12), times=1)
        most = max(most, server.on_loop(lambda: server.server.budget.unauthenticated_bytes))
    assert 500_000 < most <= 1_000_000
    wait_until(lambda: server.connection_count < 25)
    assert worker.is_served()
    newcomer = authenticated(server)
    assert newcomer.is_served()
    for client in (*clients, worker, newcomer):
        client.close()
    wait_until(lambda: server.connection_count == 0)
    budget = server.server.budget
    assert (budget.total_bytes, budget.unauthenticated_bytes) == (0, 0)
    assert (len(budget.members), budget.unauthenticated_count) == (0, 0)


def test_new_connection_closes_the_oldest_unauthenticated_one_with_a_reason(begin):
    server = begin(max_unauthenticated=3)
    worker = authenticated(server)
    crowd = [RawClient(server.port) for _ in range(3)]
    assert all(client.is_served() for client in crowd)
    newcomer = authenticated(server)
    goaway = crowd[0].next_of(GOAWAY)[3]
    assert b"too many unauthenticated connections" in goaway
    assert [client.is_served() for client in (worker, newcomer, *crowd[1:])] == [True] * 4
    for client in (worker, newcomer, *crowd):
        client.close()


def test_cached_header_blocks_are_bounded_and_counted(begin):
    server = begin()
    client = authenticated(server)
    for number in range(100):
        stream_id = 2 * number + 3
        client.send(check(stream_id, ("note", f"{number:x<3000}")))
        client.send(frame(RST_STREAM, 0, stream_id, bytes(4)))
    assert client.is_served()
    budget = server.server.budget
    assert 3_000 < server.on_loop(lambda: budget.total_bytes) < 40_000
    client.close()


def test_unanswered_request_is_counted(begin):
    """A unary request is counted until its call ends, also if it is complete."""
    server = begin()
    client = RawClient(server.port)
    client.send(client.headers(1, "/test.Test/Size", TOKEN))
    payload = bytes_value(10_000).SerializeToString()
    client.send(frame(DATA, 0, 1, b"\0" + len(payload).to_bytes(4, "big") + payload))
    assert client.is_served()
    assert server.on_loop(lambda: server.server.budget.total_bytes) > 10_000
    client.send(frame(DATA, END_STREAM, 1, b""))
    assert status(client) == "0"
    assert client.is_served()
    assert server.on_loop(lambda: server.server.budget.total_bytes) < 10_000
    client.close()


def test_connection_that_reads_least_is_closed_at_the_total_limit(begin):
    server = begin(max_total_bytes=1_000_000)
    no_window = PREFACE + frame(SETTINGS, 0, 0, SETTING.pack(INITIAL_WINDOW_SIZE, 0))
    slow, slower = (authenticated_recorder(server, no_window) for _ in range(2))
    for recorder, size in ((slow, 400_000), (slower, 700_000)):
        message = b"\0" + size.to_bytes(4, "big") + bytes(size)
        server.on_loop(recorder.stream.send_raw, message)
    assert slower.next() is CloseReason.SERVER_FULL
    wait_until(lambda: server.connection_count == 1)
    assert not slow.stream.closed
    for recorder in (slow, slower):
        recorder.client.close()


def authenticated_recorder(server, greeting: bytes):
    client = RawClient(server.port, greeting)
    client.send(client.headers(1, TALK, TOKEN))
    recorder = server.listeners.next()
    recorder.client = client
    return recorder


def test_health_check_needs_no_token(begin):
    server = begin()
    with server.channel() as channel:
        asked = channel.unary_unary(
            CHECK, HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString
        )
        for _ in range(200):
            assert asked(HealthCheckRequest()).status == HealthCheckResponse.SERVING
