"""Guards what workers give each other: whole or by ranges, resumed where it broke, to members only,
told as facts."""

import socket
import threading

import numpy as np
import pytest

from strata.core.events import Fact
from strata.core.worker_operations import BlobUploadCompleted
from strata.errors import NotFound, PermissionDenied, Unavailable
from strata.sdk import blobs as room
from strata.sdk.blobs import Blob, Blobs
from strata.sdk.events import Recorder
from strata.sdk.peers import Peer

CONTENT = np.random.default_rng(3).integers(0, 256, 300_000, np.uint8).tobytes()


@pytest.fixture
def giver(monkeypatch):
    monkeypatch.setattr(room, "APPEARANCE_S", 0.2)
    offered = Blobs(Recorder())
    offered.token = "secret"
    cut = len(CONTENT) // 3
    segments = [memoryview(CONTENT)[:cut], memoryview(CONTENT)[cut:]]
    offered.offer("model", Blob("abc", "model", segments))
    yield offered
    offered.close()


def address(giver):
    return giver.address(("127.0.0.1", 9))


def peer(where, token="secret", attempt=1):
    return Peer("giver", where, token, "taker", attempt, Recorder())


def told(giver):
    """The facts that the giver has recorded."""
    return [part for each in giver._recorder._waiting for part in each if isinstance(part, Fact)]


def read(source, offset, size):
    buffers = [bytearray(size // 3), bytearray(size - size // 3)]
    with source.open("model") as reader:
        assert reader.size_bytes == len(CONTENT)
        reader.read_into(offset, [memoryview(buffer) for buffer in buffers])
    return b"".join(buffers)


def test_a_blob_is_read_whole_and_by_ranges(giver):
    source = peer(address(giver))
    assert source.get("model") == CONTENT
    assert read(source, 90_000, 50_001) == CONTENT[90_000:140_001]
    assert address(giver).startswith("127.0.0.1:")


def test_strangers_and_what_is_not_offered_are_refused(giver):
    with pytest.raises(PermissionDenied):
        peer(address(giver), token="guessed").get("model")
    with pytest.raises(NotFound):
        peer(address(giver)).get("another")
    giver.token = ""
    with pytest.raises(PermissionDenied):
        peer(address(giver), token="").get("model")


def test_the_giver_hears_who_has_it_and_lets_go(giver):
    source = peer(address(giver))
    source.get("model")
    source.confirm("model")
    assert giver.wait_read("model", 1, 5.0)
    assert giver.readers("model") == {"taker"}
    giver.withdraw("model")
    kinds = [type(fact).__name__ for fact in told(giver)]
    assert kinds == ["BlobAdded", "BlobUploadStarted", "BlobUploadCompleted"]


def test_an_upload_that_nobody_confirmed_did_not_succeed(giver):
    peer(address(giver)).get("model")
    giver.withdraw("model")
    (ended,) = [fact for fact in told(giver) if hasattr(fact, "ok")]
    assert (ended.ok, "withdrawn" in ended.error) == (False, True)


class Cutting:
    """A way to the giver that breaks each of its first connections after so many bytes."""

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
        with client, socket.create_connection((host, int(port))) as server:
            while request := client.recv(65_536):
                self.asked.append(request.decode("latin-1").partition("Range: ")[2].split("\r")[0])
                server.sendall(request)
                server.settimeout(0.3)
                try:
                    while data := server.recv(16_384):
                        if limit is not None:
                            data, limit = data[:limit], limit - len(data)
                        client.sendall(data)
                        if limit is not None and limit <= 0:
                            return
                except TimeoutError:
                    continue

    def close(self) -> None:
        self._listener.close()


def test_uploads_that_nobody_confirms_do_not_pile_up(giver, monkeypatch):
    monkeypatch.setattr(room, "MAX_UPLOADS", 1)
    for attempt in (1, 2):
        assert peer(address(giver), attempt=attempt).get("model") == CONTENT
    (forgotten,) = [fact for fact in told(giver) if isinstance(fact, BlobUploadCompleted)]
    assert not forgotten.ok
    assert room.FORGOTTEN in forgotten.error


def test_what_broke_is_read_on_from_where_it_broke(giver):
    way = Cutting(address(giver), [100_000])
    buffer = bytearray(len(CONTENT))
    peer(way.address).read_into("model", 0, [memoryview(buffer)])
    way.close()
    assert bytes(buffer) == CONTENT
    first, second = way.asked
    assert first == f"bytes=0-{len(CONTENT) - 1}"
    assert 50_000 < int(second.removeprefix("bytes=").partition("-")[0]) < 100_000


def test_a_peer_that_is_gone_is_told_as_such(giver):
    where = address(giver)
    giver.close()
    with pytest.raises(Unavailable, match="cannot be reached"):
        peer(where).get("model")
