"""Floods of connections, messages and unread answers: the sender is slowed, refused or closed;
memory stays bounded and other clients are served."""

import asyncio
import resource
import socket
import threading
from contextlib import contextmanager, suppress
from statistics import median

import psutil
import pytest

from strata.wire.http2.http2_frames import (
    DATA,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_BYTES,
    PREFACE,
    SETTING,
    SETTINGS,
    WINDOW_UPDATE,
)
from strata.wire.v1 import coordinator_pb2 as pb
from tests.coordinator.conftest import Client
from tests.coordinator.process import Process, process
from tests.coordinator.test_rpc import open_session
from tests.wire.harness import GREETING, RawClient, frame

MEGABYTE = 2**20
TIMEOUT_S = 20.0
SPARE_FILES = 500
CALLS = 15
MOST = 2**31 - 1
WIDE_OPEN = (
    PREFACE
    + frame(SETTINGS, 0, 0, SETTING.pack(INITIAL_WINDOW_SIZE, MOST))
    + frame(WINDOW_UPDATE, 0, 0, (MOST - 65_535).to_bytes(4, "big"))
)
"""The greeting of one who may be sent as much as there is, and never has to say so again."""


def framed(message: pb.WorkerMessage) -> bytes:
    payload = message.SerializeToString()
    return b"\x00" + len(payload).to_bytes(4, "big") + payload


def data_frames(messages: bytes) -> bytes:
    """Encoded messages on the first stream of a connection."""
    cuts = range(0, len(messages), MAX_FRAME_BYTES)
    return b"".join(frame(DATA, 0, 1, messages[at : at + MAX_FRAME_BYTES]) for at in cuts)


class Flooder(RawClient):
    """A session that sends the same message as fast as possible; it reads only if told to."""

    def __init__(self, port: int, worker: str, incarnation: int) -> None:
        super().__init__(port, WIDE_OPEN)
        hello = pb.WorkerMessage(hello=pb.Hello(worker_id=worker, incarnation=incarnation))
        self.send(self.headers(1, "/strata.v1.Coordinator/Session") + data_frames(framed(hello)))
        self.sent = self.sent_bytes = 0
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def flood(self, message: pb.WorkerMessage, *, most: int = 10**9, reading: bool = True) -> None:
        """Start to send, in a thread."""
        chunk = data_frames(framed(message) * 1_000)
        targets = [lambda: self._send(chunk, most)] + ([self._read] if reading else [])
        self._threads = [threading.Thread(target=target) for target in targets]
        for thread in self._threads:
            thread.start()

    def _send(self, chunk: bytes, most: int) -> None:
        try:
            while not self._over.is_set() and self.sent < most:
                self.socket.sendall(chunk)
                self.sent += 1_000
                self.sent_bytes += len(chunk)
        except OSError:
            self._over.set()

    def _read(self) -> None:
        try:
            while self.socket.recv(MEGABYTE):
                pass
        except OSError:
            self._over.set()

    def end(self) -> None:
        self._over.set()
        with suppress(OSError):  # the coordinator may have closed the connection
            self.socket.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(TIMEOUT_S)
        self.close()


@contextmanager
def serving(folder, **settings):
    with process(folder, **settings) as started:
        client = Client(started)
        yield started, client
        client.channel.close()


def sent_per_call(client: Client, flooder: Flooder) -> list[int]:
    """Bytes that the flood sends while a heartbeat and a command of another worker are answered.

    Bytes instead of time, so that a busy machine does not change the result.
    """
    counts: list[int] = []
    while len(counts) < CALLS or flooder.sent_bytes < MEGABYTE:
        before = flooder.sent_bytes
        client.Heartbeat(pb.HeartbeatRequest(worker_id="victim"), timeout=TIMEOUT_S)
        spec = {"dataset_id": f"d{len(counts)}", "total_samples": 10, "shard_size": 1}
        client.RegisterDataset(pb.RegisterDatasetRequest(**spec), timeout=TIMEOUT_S)
        counts.append(flooder.sent_bytes - before)
    return counts


FLOODS = {
    "beats": pb.WorkerMessage(request=1, beat=pb.Beat(step=1)),
    "commands": pb.WorkerMessage(request=1, enter=pb.Enter(generation=7)),
    "arrivals": pb.WorkerMessage(request=1, arrive=pb.Arrive(barrier_id="x", arrival=1)),
    "greetings": pb.WorkerMessage(request=1, hello=pb.Hello(worker_id="victim", incarnation=-1)),
    "nothing": pb.WorkerMessage(request=1),
    "events": pb.WorkerMessage(
        events=pb.EventBatch(
            first_seq=0, count=1, wall_from_ns=1, wall_to_ns=1, kinds=["X"], payload=b"x"
        )
    ),
    "lines": pb.WorkerMessage(logs=pb.LogLines(lines=[pb.LogLine(level="info", message="m")])),
}


QUICK = ("beats", "commands")
KINDS = [
    pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow, id=kind) for kind in FLOODS
]


@pytest.mark.parametrize("kind", KINDS)
def test_flood_of_messages_does_not_block_others(tmp_path, kind):
    with serving(tmp_path) as (started, client):
        client.register("victim")
        before = started.rss_bytes()
        flooder = Flooder(started.port, "flooder", client.register("flooder").incarnation)
        flooder.flood(FLOODS[kind])
        try:
            counts = sent_per_call(client, flooder)
        finally:
            flooder.end()
        assert median(counts) < MEGABYTE, "a call waits for one read of the flood, not for more"
        assert started.peak_bytes() - before < 100 * MEGABYTE


@pytest.mark.slow
def test_client_that_does_not_read_is_closed(tmp_path):
    """Unread answers to heartbeats must not accumulate."""
    with serving(tmp_path) as (started, client):
        victim = open_session(client, "victim")
        victim.next("standing")
        before = started.peak_bytes()
        flooder = Flooder(started.port, "flooder", client.register("flooder").incarnation)
        beat = pb.WorkerMessage(request=2**60, beat=pb.Beat(sent_mono_ns=2**62))
        flooder.flood(beat, most=2_000_000, reading=False)
        victim.send(beat=pb.Beat(sent_mono_ns=1))
        assert victim.next("pulse").pulse.sent_mono_ns == 1
        while victim.next("standing").standing.world_size != 1:
            pass  # the other session was ended and not replaced
        flooder.end()
        assert started.peak_bytes() - before < 60 * MEGABYTE
        assert client.Heartbeat(pb.HeartbeatRequest(worker_id="victim")).acknowledged
        victim.close()


def test_repeated_arrivals_are_kept_once(tmp_path):
    """A worker at a barrier may repeat its arrival while the barrier is open."""
    with serving(tmp_path) as (started, client):
        client.register("victim")
        flooder = Flooder(started.port, "flooder", client.register("flooder").incarnation)
        flooder.flood(FLOODS["nothing"], most=0)
        before = started.peak_bytes()
        for number in range(20):
            flooder.send(data_frames(framed(FLOODS["arrivals"]) * 5_000))
            spec = {"dataset_id": f"d{number}", "total_samples": 10, "shard_size": 1}
            client.RegisterDataset(pb.RegisterDatasetRequest(**spec), timeout=TIMEOUT_S)
        flooder.end()
        assert started.peak_bytes() - before < 40 * MEGABYTE


async def connect_many(port: int, count: int, greeting: bytes) -> list[asyncio.StreamWriter]:
    """Open many connections at once; refused ones are omitted."""

    async def connect() -> asyncio.StreamWriter:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(greeting)
        return writer

    made = await asyncio.gather(*(connect() for _ in range(count)), return_exceptions=True)
    return [each for each in made if isinstance(each, asyncio.StreamWriter)]


def crowd(started: Process, client: Client, count: int) -> None:
    """Many connections at once, half of them idle; a worker is served meanwhile."""
    victim = open_session(client, "victim")
    victim.next("standing")
    before = started.rss_bytes()

    async def hold() -> None:
        speaking, silent = await asyncio.gather(
            connect_many(started.port, count // 2, GREETING),
            connect_many(started.port, count // 2, b""),
        )
        try:
            assert len(speaking) + len(silent) == count
            await asyncio.to_thread(served, client, victim)
            assert (started.rss_bytes() - before) / count < 60_000
        finally:
            for writer in (*speaking, *silent):
                writer.transport.abort()

    asyncio.run(hold())
    served(client, victim)
    victim.close()


def served(client: Client, victim) -> None:
    victim.send(beat=pb.Beat(sent_mono_ns=3))
    assert victim.next("pulse").pulse.sent_mono_ns == 3
    assert client.register("visitor", nonce="visitor").assigned_id == "visitor"


def test_hundreds_of_connections_at_once(tmp_path):
    with serving(tmp_path) as (started, client):
        crowd(started, client, 500)


@pytest.mark.slow
def test_ten_thousand_connections_at_once(tmp_path):
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        with serving(tmp_path) as (started, client):
            crowd(started, client, min(10_000, most - SPARE_FILES))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))


def test_connected_workers_are_served_when_files_run_out(tmp_path):
    with serving(tmp_path) as (started, client):
        victim = open_session(client, "victim")
        victim.next("standing")
        files = psutil.Process(started.pid)
        files.rlimit(psutil.RLIMIT_NOFILE, (files.num_fds() + 50, files.num_fds() + 50))

        async def hold() -> None:
            made = await connect_many(started.port, 300, GREETING)
            await asyncio.to_thread(served, client, victim)
            for writer in made:
                writer.transport.abort()

        asyncio.run(hold())
        newcomer = Client(started)
        assert newcomer.register("newcomer").assigned_id == "newcomer"
        newcomer.channel.close()
        victim.close()
