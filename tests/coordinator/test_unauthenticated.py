"""Memory of a real coordinator under clients without its token: whatever they send, leave
incomplete or do not read, it stays bounded, and a worker with the token is served."""

from contextlib import ExitStack

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest

from strata.wire.http2.hpack import encode_fields
from strata.wire.http2.http2_frames import DATA, END_HEADERS, END_STREAM, HEADERS, MAX_FRAME_BYTES
from strata.wire.v1 import coordinator_pb2 as pb
from tests.coordinator.conftest import ANSWERS
from tests.coordinator.process import process
from tests.wire.harness import GREETING, RawClient, frame, request_fields

MEGABYTE = 2**20
CHECK = "/grpc.health.v1.Health/Check"
HEARTBEAT = "/strata.v1.Coordinator/Heartbeat"
TOKEN = "secret"
AUTHORIZED = [("authorization", f"Bearer {TOKEN}")]
CONNECTIONS = 40
SEND_TIMEOUT_S = 5.0


def head(stream_id: int, path: str, *more: tuple[str, str], flags: int = 0) -> bytes:
    fields = [(name.encode(), value.encode()) for name, value in request_fields(path, *more)]
    return frame(HEADERS, END_HEADERS | flags, stream_id, encode_fields(fields))


def data(stream_id: int, payload: bytes) -> bytes:
    cuts = range(0, len(payload), MAX_FRAME_BYTES)
    return b"".join(frame(DATA, 0, stream_id, payload[at : at + MAX_FRAME_BYTES]) for at in cuts)


def messages(claimed_bytes: int, sent_bytes: int) -> bytes:
    """Health checks on several streams, all incomplete."""
    message = HealthCheckRequest(service="x" * claimed_bytes).SerializeToString()
    framed = (b"\0" + len(message).to_bytes(4, "big") + message)[:sent_bytes]
    return b"".join(head(stream, CHECK) + data(stream, framed) for stream in range(1, 16, 2))


def header_blocks() -> bytes:
    """Distinct header blocks, which a server might cache."""
    return b"".join(
        head(2 * number + 1, CHECK, ("note", f"{number:x<7000}"), flags=END_STREAM)
        for number in range(600)
    )


def refused_calls() -> bytes:
    """Calls with long error messages; the client reads no answer."""
    return b"".join(head(2 * number + 1, HEARTBEAT, flags=END_STREAM) for number in range(20_000))


ATTACKS = {
    "unfinished messages": messages(3 * MEGABYTE, MEGABYTE // 2),
    "requests without an end": messages(MEGABYTE // 2, MEGABYTE),
    "header blocks": header_blocks(),
    "answers that nobody reads": refused_calls(),
}


def attack(port: int, payload: bytes) -> RawClient:
    client = RawClient(port, greeting=b"")
    client.socket.settimeout(SEND_TIMEOUT_S)
    client.send_until_cut_off(GREETING + payload, times=1)
    return client


class Worker:
    """A worker with the token."""

    def __init__(self, port: int, name: str) -> None:
        self.name = name
        options = [("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}", options)
        self.call("RegisterWorker", pb.RegisterWorkerRequest(worker_id=name))

    def call(self, name: str, request):
        method = self.channel.unary_unary(
            f"/strata.v1.Coordinator/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=ANSWERS[name].FromString,
        )
        return method(request, timeout=20, metadata=AUTHORIZED)

    def beat(self) -> bool:
        return self.call("Heartbeat", pb.HeartbeatRequest(worker_id=self.name)).acknowledged


@pytest.mark.parametrize("name", ATTACKS)
def test_client_without_token_holds_little_memory(tmp_path, name):
    with process(tmp_path, token=TOKEN) as started:
        worker = Worker(started.port, "worker")
        before = started.peak_bytes()
        with ExitStack() as open_clients:
            for _ in range(CONNECTIONS):
                open_clients.callback(attack(started.port, ATTACKS[name]).close)
                assert worker.beat()
            held = started.peak_bytes() - before
            newcomer = Worker(started.port, "newcomer")
            assert newcomer.beat()
        worker.channel.close()
        newcomer.channel.close()
        assert held < 30 * MEGABYTE
