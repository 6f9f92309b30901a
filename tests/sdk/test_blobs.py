"""Blob server and client: whole and range reads, resuming, tokens, and the recorded uploads."""

import socket
import threading

import numpy as np
import pytest

from strata.core.events import Fact
from strata.core.workers.worker_operations import BlobUploadCompleted
from strata.errors import NotFound, PermissionDenied, Unavailable
from strata.sdk.peers import blob_server as blobs_module
from strata.sdk.peers.blob_client import PeerClient
from strata.sdk.peers.blob_server import Blob, Blobs
from strata.sdk.record.recorder import Recorder

CONTENT = np.random.default_rng(3).integers(0, 256, 300_000, np.uint8).tobytes()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(blobs_module, "OFFER_WAIT_S", 0.2)
    offered = Blobs(Recorder())
    offered.token = "secret"
    cut = len(CONTENT) // 3
    segments = [memoryview(CONTENT)[:cut], memoryview(CONTENT)[cut:]]
    offered.offer("model", Blob("abc", "model", segments))
    yield offered
    offered.close()


def address(server):
    return server.address(("127.0.0.1", 9))


def peer(where, token="secret", attempt=1, encryption=None):
    return PeerClient("server", where, token, "client", attempt, Recorder(), encryption)


def recorded(server):
    """The facts that the server's worker has recorded."""
    return [part for each in server._recorder._waiting for part in each if isinstance(part, Fact)]


def read(source, offset, size):
    buffers = [bytearray(size // 3), bytearray(size - size // 3)]
    with source.open("model") as reader:
        assert reader.size_bytes == len(CONTENT)
        reader.read_into(offset, [memoryview(buffer) for buffer in buffers])
    return b"".join(buffers)


def test_blob_is_read_whole_and_by_ranges(server):
    source = peer(address(server))
    assert source.get("model") == CONTENT
    assert read(source, 90_000, 50_001) == CONTENT[90_000:140_001]
    assert address(server).startswith("127.0.0.1:")


def test_wrong_tokens_and_unknown_names_are_refused(server):
    with pytest.raises(PermissionDenied):
        peer(address(server), token="guessed").get("model")
    with pytest.raises(NotFound):
        peer(address(server)).get("another")
    server.token = ""
    with pytest.raises(PermissionDenied):
        peer(address(server), token="").get("model")


def test_confirmed_blob_is_withdrawn_and_recorded(server):
    source = peer(address(server))
    source.get("model")
    source.confirm("model")
    assert server.wait_read("model", 1, 5.0)
    assert server.readers("model") == {"client"}
    server.withdraw("model")
    kinds = [type(fact).__name__ for fact in recorded(server)]
    assert kinds == ["BlobAdded", "BlobUploadStarted", "BlobUploadCompleted"]


def test_unconfirmed_upload_is_recorded_as_failed(server):
    peer(address(server)).get("model")
    server.withdraw("model")
    (ended,) = [fact for fact in recorded(server) if hasattr(fact, "ok")]
    assert (ended.ok, "withdrawn" in ended.error) == (False, True)


class CuttingProxy:
    """A proxy that closes its first connections after `after` bytes each."""

    def __init__(self, target: str, after: list[int]) -> None:
        self.asked: list[str] = []
        self._target, self._after = target, after
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            limit = self._after.pop(0) if self._after else None
            threading.Thread(target=self._carry, args=(client, limit), daemon=True).start()

    def _carry(self, client: socket.socket, limit: int | None) -> None:
        host, _, port = self._target.partition(":")
        with client, socket.create_connection((host, int(port))) as upstream:
            while request := client.recv(65_536):
                self.asked.append(request.decode("latin-1").partition("Range: ")[2].split("\r")[0])
                upstream.sendall(request)
                upstream.settimeout(0.3)
                try:
                    while data := upstream.recv(16_384):
                        if limit is not None:
                            data, limit = data[:limit], limit - len(data)
                        client.sendall(data)
                        if limit is not None and limit <= 0:
                            return
                except TimeoutError:
                    continue

    def close(self) -> None:
        self._listener.close()


def test_unconfirmed_uploads_are_bounded(server, monkeypatch):
    monkeypatch.setattr(blobs_module, "MAX_UPLOADS", 1)
    for attempt in (1, 2):
        assert peer(address(server), attempt=attempt).get("model") == CONTENT
    (forgotten,) = [fact for fact in recorded(server) if isinstance(fact, BlobUploadCompleted)]
    assert not forgotten.ok
    assert blobs_module.FORGOTTEN in forgotten.error


def test_broken_download_resumes_where_it_broke_off(server):
    proxy = CuttingProxy(address(server), [100_000])
    buffer = bytearray(len(CONTENT))
    peer(proxy.address).read_into("model", 0, [memoryview(buffer)])
    proxy.close()
    assert bytes(buffer) == CONTENT
    first, second = proxy.asked
    assert first == f"bytes=0-{len(CONTENT) - 1}"
    assert 50_000 < int(second.removeprefix("bytes=").partition("-")[0]) < 100_000


def test_closed_server_is_unavailable(server):
    where = address(server)
    server.close()
    with pytest.raises(Unavailable, match="cannot be reached"):
        peer(where).get("model")
