"""What workers send each other is encrypted if the coordinator uses TLS: the bytes on the wire."""

import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from strata.coordinator.sessions.peer_certificates import peer_certificate
from strata.coordinator.sessions.standing_messages import PeerTokens
from strata.errors import NotAllowedNow, Unavailable
from strata.sdk.peers import blob_client
from strata.sdk.peers.blob_client import PeerClient
from strata.sdk.peers.blob_server import Blob, Blobs
from strata.sdk.peers.exchange import Exchange
from strata.sdk.peers.peer_encryption import peer_encryption
from strata.sdk.record.recorder import Recorder
from strata.sdk.session.channel import Address, MeetingPlace
from strata.wire.v1 import coordinator_pb2 as pb

SECRET = b"s" * 32
CERTIFICATE = peer_certificate(SECRET, "task")
TENSOR = np.arange(50_000, dtype=np.float32)
TOKEN = "generation-token".ljust(64, "x")


class Wire:
    """A proxy that keeps every byte that passes in either direction."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self.seen = bytearray()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection((self._host, self._port))
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                self.seen += data
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, sink):
                end.close()

    def close(self) -> None:
        self._listener.close()


def leaks(wire: Wire) -> list[str]:
    """Which known plaintexts are on the wire."""
    known = {
        "tensor": TENSOR.tobytes()[4_000:4_064],
        "token": TOKEN.encode(),
        "name": b"the-worker",
        "message": b"a-message",
    }
    return [name for name, text in known.items() if text in bytes(wire.seen)]


@pytest.fixture(params=["", CERTIFICATE], ids=["plain", "encrypted"])
def certificate(request):
    return request.param


def server_of(certificate):
    offered = Blobs(Recorder())
    offered.open_to(pb.Standing(peer_token=TOKEN, peer_certificate=certificate))
    offered.on_message = lambda *_: "a-message is rejected"
    offered.offer("model", Blob(id="abc", what="model", segments=[memoryview(TENSOR).cast("B")]))
    return offered


def client_of(address, certificate):
    encryption = peer_encryption(certificate)
    return PeerClient("server", address, TOKEN, "the-worker", 1, Recorder(), encryption)


def test_model_state_is_encrypted(certificate):
    """The same transfer without TLS shows that the plaintexts would be found."""
    offered = server_of(certificate)
    wire = Wire(offered.address(("127.0.0.1", 9)))
    source = client_of(wire.address, certificate)
    received = bytearray(TENSOR.nbytes)
    with source.open("model") as reader:
        reader.read_into(0, [memoryview(received)])
    with pytest.raises(NotAllowedNow, match="a-message is rejected"):
        source.send(b"a-message", "")
    offered.close()
    wire.close()
    assert bytes(received) == TENSOR.tobytes()
    assert leaks(wire) == ([] if certificate else ["tensor", "token", "name", "message"])


def test_averages_are_encrypted(certificate):
    meeting = MeetingPlace(Address("127.0.0.1", 1, False))
    wire = Wire(meeting.address)

    def member(rank: int) -> np.ndarray:
        exchange = Exchange(
            *(1, rank, 2, wire.address, TOKEN, meeting, lambda: False, lambda: False),
            name="the-worker",
            encryption=peer_encryption(certificate),
        )
        try:
            return exchange.average(TENSOR, 1.0)
        finally:
            exchange.close()

    with ThreadPoolExecutor(2) as pool:
        for mean in pool.map(member, range(2)):
            assert np.array_equal(mean, TENSOR)
    meeting.close()
    wire.close()
    assert leaks(wire) == ([] if certificate else ["tensor", "token", "name"])


def answer_without_certificate(address: str) -> bytes:
    """The server's first byte for a client that presents no certificate."""
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, int(port)), 10) as opened,
            context.wrap_socket(opened) as stranger,
        ):
            stranger.sendall(f"GET /model HTTP/1.1\r\nAuthorization: {TOKEN}\r\n\r\n".encode())
            return stranger.recv(1)
    except OSError:
        return b""


@pytest.mark.parametrize("theirs", ["", peer_certificate(SECRET, "another task")])
def test_only_workers_of_the_task_can_connect(theirs, monkeypatch):
    monkeypatch.setattr(blob_client, "TIMEOUT_S", 5.0)
    offered = server_of(CERTIFICATE)
    address = offered.address(("127.0.0.1", 9))
    with pytest.raises(Unavailable, match="cannot be reached"):
        client_of(address, theirs).get("model")
    assert client_of(address, CERTIFICATE).get("model") == TENSOR.tobytes()
    assert answer_without_certificate(address) == b""
    offered.close()


def test_worker_gives_nothing_to_a_server_of_another_task(monkeypatch):
    monkeypatch.setattr(blob_client, "TRIES", 1)
    offered = server_of(peer_certificate(SECRET, "another task"))
    wire = Wire(offered.address(("127.0.0.1", 9)))
    with pytest.raises(Unavailable, match="certificate verify failed"):
        client_of(wire.address, CERTIFICATE).get("model")
    offered.close()
    wire.close()
    assert leaks(wire) == []


def test_certificate_is_the_same_after_a_restart_and_differs_by_task_and_secret():
    tokens = PeerTokens(SECRET, encrypted=True)
    assert tokens.certificate("task") == CERTIFICATE
    assert PeerTokens(SECRET).certificate("task") == ""
    others = {peer_certificate(SECRET, "other"), peer_certificate(b"t" * 32, "task"), CERTIFICATE}
    assert len(others) == 3
