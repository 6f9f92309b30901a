"""Download blobs of a peer (see `blob_server`) by ranges, in parallel; send messages to it."""

import http.client
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import SplitResult, quote, urlsplit

from msgspec import Struct

from strata.core.workers.worker_operations import (
    BlobDownloadCompleted,
    BlobDownloadProgress,
    BlobDownloadStarted,
)
from strata.errors import (
    Corrupt,
    NotAllowedNow,
    NotFound,
    PermissionDenied,
    StrataError,
    Unavailable,
)
from strata.sdk.peers.blob_server import ATTEMPT_HEADER, CAUSE_HEADER, PEER_HEADER
from strata.sdk.peers.peer_encryption import PeerEncryption
from strata.sdk.record.recorder import RecordedOperation, Recorder

TIMEOUT_S = 90.0
CONNECT_TIMEOUT_S = 10.0
MESSAGE_TIMEOUT_S = 10.0
TRIES = 3

Result = TypeVar("Result")


class PeerConnection(http.client.HTTPConnection):
    """A connection that is closed with its thread or its `PeerClient`. A peer may take longer to
    answer than to accept the connection, which its kernel does."""

    def __init__(
        self, place: SplitResult, timeout_s: float, encryption: PeerEncryption | None
    ) -> None:
        super().__init__(place.hostname or "", place.port, timeout=timeout_s)
        self._encryption = encryption

    def connect(self) -> None:
        """Connect, and wait at most `CONNECT_TIMEOUT_S`; with TLS if the task has a certificate."""
        answer_timeout_s = self.timeout
        self.timeout = min(CONNECT_TIMEOUT_S, answer_timeout_s or CONNECT_TIMEOUT_S)
        try:
            super().connect()
        finally:
            self.timeout = answer_timeout_s
        self.sock.settimeout(answer_timeout_s)
        if self._encryption is not None:
            self.sock = self._encryption.connected(self.sock)

    def __del__(self) -> None:
        self.close()


class PeerClient:
    """Client of another worker's blobs; `worker_id` and `attempt` are those of this worker."""

    def __init__(
        self,
        name: str,
        address: str,
        token: str,
        worker_id: str,
        attempt: int,
        recorder: Recorder,
        encryption: PeerEncryption | None = None,
    ) -> None:
        self._encryption = encryption
        self.name = name
        self.url = f"peer://{name}"
        self._target = urlsplit(f"//{address}")
        self._recorder = recorder
        self._attempt = attempt
        self._headers = {
            "Authorization": f"Bearer {token}",
            PEER_HEADER: quote(worker_id),
            ATTEMPT_HEADER: str(attempt),
        }
        self._own = threading.local()

    def get(self, name: str) -> bytes:
        """Download a small blob."""
        return self._retried(lambda: self._request("GET", name).read())

    def open(self, name: str) -> "PeerReader":
        """Open a blob for reading by ranges."""
        return PeerReader(self, name, self._size(name))

    def _size(self, name: str) -> int:
        def ask() -> int:
            response = self._request("GET", name, {"Range": "bytes=0-0"})
            response.read()
            return int(response.headers.get("X-Strata-Size", "0"))

        return self._retried(ask)

    def read_into(self, name: str, offset: int, buffers: Sequence[memoryview]) -> None:
        """Fill the buffers with the bytes from `offset` on; a retry resumes where it broke off."""
        done_bytes = 0
        total_bytes = sum(buffer.nbytes for buffer in buffers)

        def read() -> None:
            nonlocal done_bytes
            asked = {"Range": f"bytes={offset + done_bytes}-{offset + total_bytes - 1}"}
            response = self._request("GET", name, asked)
            at = 0
            for buffer in buffers:
                begun = max(done_bytes - at, 0)
                while begun < buffer.nbytes:
                    count = response.readinto(buffer[begun:])
                    if not count:
                        raise http.client.IncompleteRead(b"")
                    begun += count
                    done_bytes += count
                at += buffer.nbytes
            response.read()

        self._retried(read)

    def confirm(self, name: str, error: str = "") -> None:
        """Report to the peer that this worker has a blob, or why not; the peer may release it."""
        try:
            self._request("POST", name, body=error[:1_000].encode()).read()
        except (OSError, http.client.HTTPException, StrataError):
            return  # the peer is gone and needs no confirmation

    def send(self, message: bytes, cause: str) -> None:
        """Send a message on a new connection; returns when the peer has accepted it.

        `cause` is the event that records the sending; the peer's event refers to it. Raises
        `NotAllowedNow` with the reason if the peer rejects the message, and `Unavailable` if it
        does not answer; the caller retries.
        """
        connection = PeerConnection(self._target, MESSAGE_TIMEOUT_S, self._encryption)
        try:
            connection.request("PUT", "/", message, {**self._headers, CAUSE_HEADER: quote(cause)})
            response = connection.getresponse()
            reason = response.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"{type(error).__name__}: {error}") from error
        finally:
            connection.close()
        if response.status != 204:
            raise NotAllowedNow(reason or f"worker {self.name} answered {response.status}")

    def downloading(self, blob: str, size_bytes: int, what: str) -> RecordedOperation:
        """Record the start of a download; the result records its progress and end."""
        began_s = time.monotonic()
        download = RecordedOperation(
            self._recorder,
            f"download-{blob}-{self._attempt}",
            BlobDownloadStarted(
                blob=blob, source=self.name, size_bytes=size_bytes, attempt=self._attempt, what=what
            ),
            lambda done_bytes: BlobDownloadProgress(done_bytes=done_bytes, blob=blob),
            lambda ok, error: BlobDownloadCompleted(
                ok=ok,
                error=error,
                blob=blob,
                source=self.name,
                received_bytes=download.done_bytes,
                took_s=time.monotonic() - began_s,
            ),
        )
        return download

    def _retried(self, attempt: Callable[[], Result]) -> Result:
        for left in reversed(range(TRIES)):
            try:
                return attempt()
            except (OSError, http.client.HTTPException) as error:
                self._connection().close()
                if not left:
                    raise Unavailable(
                        f"worker {self.name} at {self._target.netloc} cannot be reached: {error}",
                        hint="let workers connect to each other on any port, or save checkpoints",
                    ) from error
        raise AssertionError("the last try returns or raises")

    def _request(
        self, method: str, name: str, more: dict[str, str] | None = None, body: bytes = b""
    ) -> http.client.HTTPResponse:
        connection = self._connection()
        connection.request(method, f"/{quote(name)}", body, {**self._headers, **(more or {})})
        response = connection.getresponse()
        if response.status in (200, 204, 206):
            return response
        response.read()
        if response.status == 403:
            raise PermissionDenied(f"worker {self.name} rejected this worker's token")
        if response.status == 404:
            raise NotFound(f"worker {self.name} does not offer {name!r}")
        raise Corrupt(f"worker {self.name} answered {response.status} to {method} {name!r}")

    def _connection(self) -> PeerConnection:
        """This thread's connection; the threads of a reader download in parallel."""
        found: PeerConnection | None = getattr(self._own, "connection", None)
        if found is None:
            found = self._own.connection = PeerConnection(self._target, TIMEOUT_S, self._encryption)
        return found


class Circle(Struct, frozen=True):
    """The addresses of a generation's members, in rank order; `own` is this worker."""

    generation: int
    own: str
    token: str
    addresses: dict[str, str]
    encryption: PeerEncryption | None = None

    def peer(self, name: str, attempt: int, recorder: Recorder) -> PeerClient:
        """A client of another member."""
        place = self.addresses[name]
        return PeerClient(name, place, self.token, self.own, attempt, recorder, self.encryption)


class PeerReader:
    """A peer's blob, read by ranges. Thread-safe."""

    def __init__(self, peer: PeerClient, name: str, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._peer, self._name = peer, name

    def read_into(self, offset: int, buffers: Sequence[memoryview]) -> None:
        """Fill the buffers, in order, with the bytes from `offset` on."""
        self._peer.read_into(self._name, offset, buffers)

    def close(self) -> None:
        """Do nothing: connections are closed with their threads."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
