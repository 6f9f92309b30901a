"""Guards against too much of anything: connections, messages, answers that nobody reads. Whoever
sends too much is slowed, refused or cut off; memory stays bounded and others are answered soon."""

import asyncio
import resource
import socket
import threading
import time
from contextlib import contextmanager, suppress

import psutil
import pytest

from strata.wire.frames import (
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
PATIENCE_S = 20.0
SPARE_FILES = 500
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
    """Messages as they travel on the first stream of a connection."""
    cuts = range(0, len(messages), MAX_FRAME_BYTES)
    return b"".join(frame(DATA, 0, 1, messages[at : at + MAX_FRAME_BYTES]) for at in cuts)


class Flooder(RawClient):
    """A session that says the same thing as fast as it is taken; it reads only if it is told to."""

    def __init__(self, port: int, worker: str, incarnation: int) -> None:
        super().__init__(port, WIDE_OPEN)
        hello = pb.WorkerMessage(hello=pb.Hello(worker_id=worker, incarnation=incarnation))
        self.send(self.headers(1, "/strata.v1.Coordinator/Session") + data_frames(framed(hello)))
        self.sent = 0
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def flood(self, message: pb.WorkerMessage, *, most: int = 10**9, reading: bool = True) -> None:
        """Begins to send, in a thread."""
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
            thread.join(PATIENCE_S)
        self.close()


@contextmanager
def serving(folder, **settings):
    with process(folder, **settings) as started:
        client = Client(started)
        yield started, client
        client.channel.close()


def p99(times: list[float]) -> float:
    return sorted(times)[int(len(times) * 0.99)]


def call_times(client: Client, seconds: float) -> tuple[list[float], list[float]]:
    """How long beats and commands of a worker take, one after the other."""
    beats, commands = [], []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()
        client.Heartbeat(pb.HeartbeatRequest(worker_id="victim"), timeout=5)
        beats.append(time.monotonic() - began)
        spec = {"dataset_id": f"d{len(beats)}", "total_samples": 10, "shard_size": 1}
        began = time.monotonic()
        client.RegisterDataset(pb.RegisterDatasetRequest(**spec), timeout=5)
        commands.append(time.monotonic() - began)
    return beats, commands


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
def test_a_flood_of_messages_leaves_others_their_turn(tmp_path, kind):
    with serving(tmp_path) as (started, client):
        client.register("victim")
        before = started.rss_bytes()
        flooder = Flooder(started.port, "flooder", client.register("flooder").incarnation)
        flooder.flood(FLOODS[kind])
        try:
            beats, commands = call_times(client, 1.5)
        finally:
            flooder.end()
        assert flooder.sent > 10_000
        assert p99(beats) < 1.0
        assert p99(commands) < 2.0
        assert started.peak_bytes() - before < 100 * MEGABYTE


@pytest.mark.slow
def test_one_who_reads_nothing_is_cut_off(tmp_path):
    """Each beat is answered; the answers that nobody reads must not pile up."""
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
            pass  # the other's session was ended, and nobody took its place
        flooder.end()
        assert started.peak_bytes() - before < 60 * MEGABYTE
        assert client.Heartbeat(pb.HeartbeatRequest(worker_id="victim")).acknowledged
        victim.close()


def test_arrivals_that_are_said_again_are_kept_once(tmp_path):
    """Whoever waits at a barrier may say so again and again for as long as it lasts."""
    with serving(tmp_path) as (started, client):
        client.register("victim")
        flooder = Flooder(started.port, "flooder", client.register("flooder").incarnation)
        flooder.flood(FLOODS["nothing"], most=0)
        before = started.peak_bytes()
        for number in range(20):
            flooder.send(data_frames(framed(FLOODS["arrivals"]) * 5_000))
            spec = {"dataset_id": f"d{number}", "total_samples": 10, "shard_size": 1}
            client.RegisterDataset(pb.RegisterDatasetRequest(**spec), timeout=PATIENCE_S)
        flooder.end()
        assert started.peak_bytes() - before < 40 * MEGABYTE


async def connect_many(port: int, count: int, greeting: bytes) -> list[asyncio.StreamWriter]:
    """Connections made at once; those that are refused are left out."""

    async def connect() -> asyncio.StreamWriter:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(greeting)
        return writer

    made = await asyncio.gather(*(connect() for _ in range(count)), return_exceptions=True)
    return [each for each in made if isinstance(each, asyncio.StreamWriter)]


def crowd(started: Process, client: Client, count: int) -> None:
    """So many connections at once, half of which never say a word; a worker is served meanwhile."""
    victim = open_session(client, "victim")
    victim.next("standing")
    before = started.rss_bytes()

    async def hold() -> None:
        began = time.monotonic()
        speaking, silent = await asyncio.gather(
            connect_many(started.port, count // 2, GREETING),
            connect_many(started.port, count // 2, b""),
        )
        assert len(speaking) + len(silent) == count
        assert time.monotonic() - began < 15
        await asyncio.to_thread(served, client, victim)
        assert (started.rss_bytes() - before) / count < 60_000
        for writer in (*speaking, *silent):
            writer.transport.abort()

    asyncio.run(hold())
    served(client, victim)
    victim.close()


def served(client: Client, victim) -> None:
    victim.send(beat=pb.Beat(sent_mono_ns=3))
    assert victim.next("pulse").pulse.sent_mono_ns == 3
    began = time.monotonic()
    assert client.register("visitor", nonce="visitor").assigned_id == "visitor"
    assert time.monotonic() - began < 2


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


def test_when_files_run_out_workers_that_are_there_are_served(tmp_path):
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
