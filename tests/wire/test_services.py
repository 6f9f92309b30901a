"""Health, reflection and TLS, with the standard clients."""

import asyncio
import socket
import ssl
from contextlib import ExitStack, suppress

import grpc
import pytest
import trustme
import uvloop
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from grpc_reflection.v1alpha.reflection_pb2 import (
    ServerReflectionRequest,
    ServerReflectionResponse,
)

from strata.wire.grpc.connection_budget import Bounds
from strata.wire.grpc.grpc_call import RpcError
from strata.wire.grpc.health_service import HealthService
from strata.wire.grpc.reflection_service import serve_reflection
from strata.wire.http2.hpack import Status
from strata.wire.http2.http2_frames import ACK, PING
from tests.wire.harness import GREETING, TIMEOUT_S, frame, text, unary, wait_until

SERVING = HealthCheckResponse.SERVING
NOT_SERVING = HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = HealthCheckResponse.SERVICE_UNKNOWN


@pytest.fixture
def health(server):
    health = HealthService()
    health.serve_on(server.server)
    return health


def test_health_check_returns_the_set_status(server, health):
    with server.channel() as channel:
        check = HealthStub(channel).Check
        assert check(HealthCheckRequest()).status == SERVING
        server.on_loop(health.set, "strata.v1.Coordinator", False)
        answer = check(HealthCheckRequest(service="strata.v1.Coordinator"))
        assert answer.status == NOT_SERVING
        with pytest.raises(grpc.RpcError) as caught:
            check(HealthCheckRequest(service="nobody"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_health_watch_sends_status_and_changes(server, health):
    with server.channel() as channel:
        watch = HealthStub(channel).Watch(HealthCheckRequest(service="late"))
        assert next(watch).status == SERVICE_UNKNOWN
        for serving in (True, True, False):
            server.on_loop(health.set, "late", serving)
        assert [next(watch).status for _ in range(2)] == [SERVING, NOT_SERVING]
        watch.cancel()


def test_closed_health_watches_are_removed(server, health):
    with server.channel() as channel:
        watch = HealthStub(channel).Watch(HealthCheckRequest())
        next(watch)
        assert server.on_loop(lambda: len(health._watchers[""])) == 1
    server.wait(server.server.close(grace_s=0))
    assert server.on_loop(lambda: dict(health._watchers)) == {}


def test_closing_health_ends_watches(server, health):
    with server.channel() as channel:
        watch = HealthStub(channel).Watch(HealthCheckRequest())
        assert next(watch).status == SERVING
        server.on_loop(health.close)
        assert next(watch).status == NOT_SERVING
        with pytest.raises(grpc.RpcError) as caught:
            next(watch)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_health_probe_needs_no_token(start):
    def authorize(head, caller):
        raise RpcError(Status.UNAUTHENTICATED, "no token")

    server = start(authorize=authorize)
    HealthService().serve_on(server.server)
    with server.channel() as channel:
        assert HealthStub(channel).Check(HealthCheckRequest()).status == SERVING


def test_reflection_client_builds_unknown_messages(server, health):
    serve_reflection(server.server)
    with server.channel() as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert set(database.get_services()) == {
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
        }
        pool = DescriptorPool(database)
        method = pool.FindServiceByName("grpc.health.v1.Health").FindMethodByName("Check")
        request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check", request.SerializeToString, response.FromString
        )
        assert check(request()).status == SERVING


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_answers_each_request_type(server, version):
    serve_reflection(server.server)
    service = f"grpc.reflection.{version}.ServerReflection"
    questions = [
        ServerReflectionRequest(file_containing_symbol=service),
        ServerReflectionRequest(file_by_filename="google/protobuf/wrappers.proto"),
        ServerReflectionRequest(file_by_filename="nothing.proto"),
        ServerReflectionRequest(all_extension_numbers_of_type="google.protobuf.MessageOptions"),
        ServerReflectionRequest(host="here"),
    ]
    with server.channel() as channel:
        ask = channel.stream_stream(
            f"/{service}/ServerReflectionInfo",
            ServerReflectionRequest.SerializeToString,
            ServerReflectionResponse.FromString,
        )
        answers = list(ask(iter(questions)))
    assert [answer.WhichOneof("message_response") for answer in answers] == [
        "file_descriptor_response",
        "file_descriptor_response",
        "error_response",
        "all_extension_numbers_response",
        "error_response",
    ]
    assert [answer.error_response.error_code for answer in answers] == [0, 0, 5, 0, 3]
    assert [answer.original_request for answer in answers] == questions


@pytest.fixture
def authority():
    return trustme.CA()


@pytest.fixture
def secure_server(start, authority):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    server = start(tls=context)
    server.unary("Echo", lambda request, call: request)
    return server


def test_tls(secure_server, authority):
    credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
    with grpc.secure_channel(f"localhost:{secure_server.port}", credentials) as channel:
        large = text("x" * 1_000_000)
        assert unary(channel, "Echo")(large) == large


def test_tls_without_h2_is_refused(secure_server, authority):
    context = ssl.create_default_context()
    authority.configure_trust(context)
    plain = socket.create_connection(("127.0.0.1", secure_server.port))
    with context.wrap_socket(plain, server_hostname="localhost") as client:
        client.settimeout(TIMEOUT_S)
        try:
            answer = client.recv(1)
        except (ConnectionError, ssl.SSLError):
            answer = b""
    assert answer == b""


def tls_context(authority) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    return context


def test_unfinished_tls_handshakes_do_not_block_connections(start, authority):
    bounds = Bounds(max_connections=8, max_unauthenticated=4)
    server = start(tls=tls_context(authority), bounds=bounds)
    server.unary("Echo", lambda request, call: request)
    with ExitStack() as idle:
        for _ in range(20):
            idle.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        wait_until(lambda: server.connection_count == 4)
        credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
        with grpc.secure_channel(f"localhost:{server.port}", credentials) as channel:
            assert unary(channel, "Echo")(text("x")).value == "x"
            assert server.server.budget.unauthenticated_count == 3
    wait_until(lambda: server.connection_count == 0)
    assert server.server.budget.unauthenticated_count == 0


def test_server_closes_while_tls_handshakes_are_under_way(start, authority):
    server = start(tls=tls_context(authority))
    with socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S) as idle:
        wait_until(lambda: server.connection_count == 1)
        server.wait(server.server.close(grace_s=TIMEOUT_S))
        assert server.connection_count == 0
        assert idle.recv(1) == b""


def test_client_without_tls_is_closed(start, authority):
    server = start(tls=tls_context(authority))
    with socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        while client.recv(100):
            pass
    wait_until(lambda: server.connection_count == 0)


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_data_with_the_last_handshake_packet_is_read(start, authority, new_loop):
    """A client may send its first request in the same packet that ends the handshake."""
    server = start(tls=tls_context(authority), new_loop=new_loop)
    trusting = ssl.create_default_context()
    trusting.set_alpn_protocols(["h2"])
    authority.configure_trust(trusting)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S) as raw:
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                raw.sendall(outgoing.read())
                incoming.write(raw.recv(65_536))
        client.write(GREETING + frame(PING, 0, 0, b"are you?"))
        raw.sendall(outgoing.read())
        heard = b""
        while frame(PING, ACK, 0, b"are you?") not in heard:
            incoming.write(raw.recv(65_536))
            with suppress(ssl.SSLWantReadError):
                while True:
                    heard += client.read(65_536)
    wait_until(lambda: server.connection_count == 0)
