"""HTTP server: errors at start, a clean stop, timeouts of idle connections."""

import asyncio
import os
import socket

import httpx
import pytest

from strata.config import Settings
from strata.coordinator.rest.app import create_app
from strata.coordinator.rest.http_server import serve
from strata.coordinator.rest.request_checks import HttpLimits
from strata.errors import SettingError, Unavailable
from tests.coordinator.rest.served import Coordinator


async def try_to_serve(api, host, port, **options):
    async with serve(create_app(api, Settings()), host, port, **options):
        raise AssertionError("it serves")


def test_port_in_use_error(coordinator):
    with pytest.raises(Unavailable) as refused:
        asyncio.run(try_to_serve(coordinator.api, "127.0.0.1", coordinator.port))
    sentence = f"port {coordinator.port} on 127.0.0.1 is in use by "
    assert refused.value.message.startswith(sentence)
    assert f"(pid {os.getpid()})" in refused.value.message
    assert "--http-port" in refused.value.hint


@pytest.mark.parametrize("host", ["203.0.113.7", "no such host"])
def test_foreign_address_error(coordinator, host):
    with pytest.raises(SettingError, match=host):
        asyncio.run(try_to_serve(coordinator.api, host, 0))


def test_port_is_free_after_a_stop(tmp_path):
    with Coordinator(tmp_path) as coordinator, coordinator.client() as client:
        assert client.get("/api/health").status_code == 200
        port = coordinator.port
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/api/health", trust_env=False)


def connect(coordinator):
    connection = socket.create_connection(("127.0.0.1", coordinator.port), timeout=10)
    connection.settimeout(10)
    return connection


def is_closed(connection):
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: loc"])
def test_connection_without_request_is_closed(tmp_path, sent):
    with (
        Coordinator(tmp_path, limits=HttpLimits(head_timeout_s=0.2)) as coordinator,
        connect(coordinator) as connection,
    ):
        connection.sendall(sent)
        assert is_closed(connection)


def test_connection_without_second_request_is_closed(tmp_path):
    with (
        Coordinator(tmp_path, limits=HttpLimits(head_timeout_s=0.2)) as coordinator,
        connect(coordinator) as connection,
    ):
        connection.sendall(b"GET /api/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
        connection.sendall(b"GET /api/hea")
        while not is_closed(connection):
            pass


def test_body_that_does_not_arrive_times_out(tmp_path):
    with (
        Coordinator(tmp_path, limits=HttpLimits(body_timeout_s=0.2)) as coordinator,
        connect(coordinator) as connection,
    ):
        connection.sendall(
            b"POST /api/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
            b"Content-Type: application/json\r\n\r\n{"
        )
        assert connection.recv(65_536).startswith(b"HTTP/1.1 504")


def test_endless_request_head_is_refused(coordinator):
    with connect(coordinator) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 200_000)
        assert connection.recv(65_536).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01\x02\x00", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"])
def test_invalid_requests_do_not_affect_others(coordinator, client, garbage):
    with connect(coordinator) as connection:
        connection.sendall(garbage + b"\r\n\r\n")
        connection.recv(65_536)
        assert client.get("/api/health").status_code == 200


@pytest.mark.parametrize(
    "head", [b"GET /api/tasks?task=" + b"x" * 1_000_000, b"\x16\x03\x01 no HTTP\r\n\r\n"]
)
def test_request_that_is_not_http_or_too_long_gets_an_answer(coordinator, head):
    with socket.create_connection(("127.0.0.1", coordinator.port), timeout=60) as connection:
        connection.sendall(head)
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"its head is too long" in answer
