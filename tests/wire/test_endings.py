"""Every end of a call or peer is detected and reported with its reason."""

import asyncio
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from strata.wire.grpc.connection_budget import Bounds
from strata.wire.grpc.grpc_call import CloseReason
from strata.wire.http2.http2_frames import DATA, GOAWAY, PING, RST_STREAM
from tests.wire.harness import (
    TIMEOUT_S,
    Echo,
    Outbox,
    RawClient,
    Recorders,
    bidirectional,
    frame,
    text,
    unary,
    wait_until,
)

IMPATIENT = {"keepalive_interval_s": 0.2, "keepalive_timeout_s": 0.3}

CLIENT = """
import sys, time, grpc
channel = grpc.insecure_channel(f"127.0.0.1:{sys.argv[1]}")
def requests():
    yield b""
    time.sleep(600)
call = channel.stream_stream("/test.Test/Talk")(requests())
print(next(call), flush=True)
time.sleep(600)
"""


@pytest.fixture
def client_process():
    """Start a grpcio client process with one open stream."""
    started = []

    def begin(port: int) -> subprocess.Popen:
        command = [sys.executable, "-c", CLIENT, str(port)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        started[-1].stdout.readline()
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_cancelled_stream_is_reported(server):
    listeners = Recorders()
    server.stream("Talk", listeners)
    outbox = Outbox()
    with server.channel() as channel:
        call = bidirectional(channel, "Talk")(outbox)
        listener = listeners.next()
        call.cancel()
        assert listener.next() is CloseReason.CANCELLED
        outbox.end()


def test_half_close_and_cancel_together_is_a_cancel(server):
    listeners = Recorders()
    server.stream("Talk", listeners)
    client = RawClient(server.port)
    client.send(client.headers(1, "/test.Test/Talk"))
    listener = listeners.next()
    message = frame(DATA, 1, 1, b"\0\0\0\0\0")
    client.send(message + frame(RST_STREAM, 0, 1, b"\0\0\0\x08"))
    assert [listener.next(), listener.next()] == ["", CloseReason.CANCELLED]
    client.close()


def test_deadline_is_reported_by_either_side(server):
    listeners = Recorders()
    server.stream("Talk", listeners)
    outbox = Outbox()
    with server.channel() as channel:
        call = bidirectional(channel, "Talk")(outbox, timeout=0.3)
        assert listeners.next().next() is CloseReason.DEADLINE
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
        outbox.end()
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_server_enforces_the_deadline(server):
    listeners = Recorders()
    server.stream("Talk", listeners)
    client = RawClient(server.port)
    client.send(client.headers(1, "/test.Test/Talk", ("grpc-timeout", "50m")))
    assert listeners.next().next() is CloseReason.DEADLINE
    client.next_of(1)
    trailers = dict(client.decoder.decode(client.next_of(1)[3]))
    assert trailers["grpc-status"] == "4"
    client.close()


def test_killed_client_is_detected(server, client_process):
    listeners = Recorders(Echo)
    server.stream("Talk", listeners)
    process = client_process(server.port)
    listener = listeners.next()
    process.kill()
    assert listener.next() is CloseReason.CONNECTION_LOST
    wait_until(lambda: server.connection_count == 0)


def test_reset_connection_is_detected(server):
    listeners = Recorders()
    server.stream("Talk", listeners)
    client = RawClient(server.port)
    client.send(client.headers(1, "/test.Test/Talk"))
    listener = listeners.next()
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    assert listener.next() is CloseReason.CONNECTION_LOST


def test_stopped_process_is_detected_by_keepalive(start, client_process):
    server = start(**IMPATIENT)
    listeners = Recorders(Echo)
    server.stream("Talk", listeners)
    process = client_process(server.port)
    listener = listeners.next()
    os.kill(process.pid, signal.SIGSTOP)
    assert listener.next() is CloseReason.PEER_SILENT
    wait_until(lambda: server.connection_count == 0)


def test_peer_without_ping_answer_is_closed(start):
    server = start(**IMPATIENT)
    listeners = Recorders()
    server.stream("Talk", listeners)
    client = RawClient(server.port)
    client.send(client.headers(1, "/test.Test/Talk"))
    assert listeners.next().next() is CloseReason.PEER_SILENT
    client.next_of(PING)
    client.close()


def test_peer_without_preface_is_closed(start):
    server = start(**IMPATIENT)
    client = RawClient(server.port, greeting=b"PRI * HTTP")
    wait_until(lambda: server.connection_count == 0)
    client.close()


def test_idle_client_that_answers_pings_stays_connected(start):
    server = start(**IMPATIENT)
    listeners = Recorders()
    server.stream("Talk", listeners)
    outbox = Outbox()
    with server.channel() as channel:
        call = bidirectional(channel, "Talk")(outbox)
        listener = listeners.next()
        connection = listener.stream._connection
        opened_at = connection._heard_at
        wait_until(lambda: connection._heard_at > opened_at + 4 * 0.3)
        server.on_loop(listener.stream.send, text("still here"))
        assert next(call).value == "still here"
        call.cancel()
        outbox.end()


def test_listener_gets_nothing_after_close(server):
    listeners = Recorders()
    server.stream("Talk", listeners)
    client = RawClient(server.port)
    client.send(client.headers(1, "/test.Test/Talk"))
    listener = listeners.next()
    server.on_loop(lambda: (listener.stream.finish(), listener.stream.finish()))
    client.send(frame(DATA, 1, 1, b"\0\0\0\0\0"))
    assert client.is_served()
    assert listener.next() is CloseReason.FINISHED
    assert listener.heard.empty()
    client.close()


def test_draining_server_finishes_calls_and_accepts_no_new_ones(server):
    running, release = threading.Event(), server.on_loop(asyncio.Event)

    async def slow(request, call):
        running.set()
        await release.wait()
        return request

    server.unary("Slow", slow)
    with server.channel() as channel, ThreadPoolExecutor() as pool:
        call = unary(channel, "Slow").future(text("kept"))
        assert running.wait(TIMEOUT_S)
        closing = pool.submit(server.wait, server.server.close(grace_s=TIMEOUT_S))
        wait_until(lambda: not server.server._listening)
        with pytest.raises(grpc.RpcError) as caught:
            unary(channel, "Slow")(text("new"), timeout=1)
        assert caught.value.code() in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.DEADLINE_EXCEEDED,
        )
        server.on_loop(release.set)
        assert call.result().value == "kept"
        closing.result(TIMEOUT_S)
    assert server.connection_count == 0


def test_calls_after_the_grace_period_end_unavailable(server):
    listeners = Recorders()
    server.stream("Talk", listeners)
    outbox = Outbox()
    with server.channel() as channel:
        call = bidirectional(channel, "Talk")(outbox)
        listener = listeners.next()
        server.wait(server.server.close(grace_s=0.1))
        assert listener.next() is CloseReason.SHUTDOWN
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
        outbox.end()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert caught.value.details() == "the server is shutting down"


def test_drain_is_announced_before_refusing(server):
    client = RawClient(server.port)
    assert client.is_served()
    with ThreadPoolExecutor() as pool:
        closing = pool.submit(server.wait, server.server.close(grace_s=TIMEOUT_S))
        warning = client.next_of(GOAWAY)[3]
        mark = client.next_of(PING)[3]
        client.send(client.headers(1, "/test.Test/Unknown", flags=1))
        client.send(frame(PING, 1, 0, mark))
        final = client.next_of(GOAWAY)[3]
        closing.result(TIMEOUT_S)
    assert warning[:4] == b"\x7f\xff\xff\xff"
    assert final[:4] == b"\0\0\0\1"
    client.close()


def test_connections_above_the_limit_are_refused(start):
    server = start(bounds=Bounds(max_connections=2))
    server.stream("Talk", Recorders())
    first, second = RawClient(server.port), RawClient(server.port)
    for client in (first, second):
        client.send(client.headers(1, "/test.Test/Talk"))
        assert client.is_served()
    third = RawClient(server.port)
    assert third.next_frame() is None
    first.close()
    wait_until(lambda: server.connection_count == 1)
    fourth = RawClient(server.port)
    assert fourth.is_served()
    for client in (second, third, fourth):
        client.close()
