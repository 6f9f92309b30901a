"""Blob server: named bytes in memory, served over HTTP to the members of a generation.

A worker offers a *blob* (a model or an update) under a name. Peers read it whole or by ranges, over
any number of connections, and confirm at the end whether they have it. A download resumes by
reading the missing range. The server starts when its address is first needed. It listens on the
interface that reaches the coordinator (loopback, if the coordinator is there) and serves only peers
that have the generation's token. If the coordinator uses TLS, so does this server
(`peer_encryption`).

Peers also send small messages to this server. `on_message` (see `announcer`) gets each with the
sender's name, whether the token was right, and the event that sent it, and returns why it is
rejected.
"""

import hmac
import logging
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote

from msgspec import Struct, field

from strata.core.workers.exchange_facts import BlobAdded
from strata.core.workers.worker_operations import (
    BlobUploadCompleted,
    BlobUploadProgress,
    BlobUploadStarted,
)
from strata.errors import NotAllowedNow
from strata.sdk.peers.peer_encryption import PeerEncryption, peer_encryption
from strata.sdk.record.recorder import RecordedOperation, Recorder
from strata.sdk.session import channel
from strata.sdk.session.channel import own_host
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

OFFER_WAIT_S = 60.0
"""How long a request waits for a blob that is not offered yet."""

IDLE_S = 60.0
HANDSHAKE_TIMEOUT_S = 10.0
SEND_BYTES = 4 * 1024 * 1024
MAX_UPLOADS = 4_096
SETTLE_S = 1.0
"""How long `BlobUpload.end` waits for threads that are sending the last bytes."""

UNCONFIRMED = "the blob was withdrawn before the peer confirmed the download"
FORGOTTEN = "the peer did not report the outcome, and too many uploads have started since"
MAX_MESSAGE_BYTES = 16_384

PEER_HEADER = "X-Strata-Worker"
ATTEMPT_HEADER = "X-Strata-Attempt"
CAUSE_HEADER = "X-Strata-Cause"


class Blob(Struct, eq=False):
    """Bytes in a few segments, one after the other; `id` is their checksum."""

    id: str
    what: str
    segments: Sequence[memoryview]
    readers: set[str] = field(default_factory=set)

    @property
    def size_bytes(self) -> int:
        return sum(segment.nbytes for segment in self.segments)

    def views(self, start: int, stop: int) -> list[memoryview]:
        """The bytes from `start` to `stop`, exclusive."""
        found, at = [], 0
        for segment in self.segments:
            first, last = max(start - at, 0), min(stop - at, segment.nbytes)
            if first < last:
                found.append(segment[first:last])
            at += segment.nbytes
        return found


class BlobUpload:
    """The upload of a blob to one peer, over as many connections as the peer opens."""

    def __init__(self, recorder: Recorder, blob: Blob, peer: str, attempt: int) -> None:
        self._began_s = time.monotonic()
        self._sent_bytes = self._connections = 0
        self._idle = threading.Condition()
        self._operation = RecordedOperation(
            recorder,
            f"upload-{blob.id}-{peer}-{attempt}",
            BlobUploadStarted(
                blob=blob.id,
                to=peer,
                size_bytes=blob.size_bytes,
                attempt=attempt,
                what=blob.what,
            ),
            lambda done_bytes: BlobUploadProgress(done_bytes=done_bytes, blob=blob.id),
            lambda ok, error: BlobUploadCompleted(
                ok=ok,
                error=error,
                blob=blob.id,
                to=peer,
                sent_bytes=self._sent_bytes,
                took_s=time.monotonic() - self._began_s,
            ),
        )

    def sent(self, count: int) -> None:
        """Count bytes that were sent."""
        with self._idle:
            self._sent_bytes += count
            self._operation.progress(self._sent_bytes)

    def end(self, error: Exception | None = None) -> None:
        """Record that the peer has confirmed the blob, or why the upload failed."""
        with self._idle:
            self._idle.wait_for(lambda: not self._connections, SETTLE_S)
            self._operation.end(error)

    def __enter__(self) -> Self:
        with self._idle:
            self._connections += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._idle:
            self._connections -= 1
            self._idle.notify_all()


class Blobs:
    """The blobs that one worker offers. Thread-safe."""

    def __init__(self, recorder: Recorder) -> None:
        self.token = ""
        self.encryption: PeerEncryption | None = None
        self.on_message: Callable[[bytes, str, bool, str], str] = lambda *_: (
            "this worker accepts no messages"
        )
        self._recorder = recorder
        self._changed = threading.Condition()
        self._blobs: dict[str, Blob] = {}
        self._uploads: dict[tuple[str, str, str], BlobUpload] = {}
        self._server: BlobServer | None = None
        channel.register(self)

    def open_to(self, standing: pb.Standing) -> None:
        """Serve the members of the generation of a standing."""
        self.encryption = peer_encryption(standing.peer_certificate)
        self.token = standing.peer_token

    def address(self, towards: tuple[str, int]) -> str:
        """The address of this worker's server, on the interface that leads to `towards`."""
        if self._server is None:
            self._server = BlobServer((own_host(*towards), 0), BlobHandler)
            self._server.blobs = self
            # `close` waits until the loop looks up: at most this long, at the end of every worker.
            looks = {"poll_interval": 0.05}
            serve = self._server.serve_forever
            threading.Thread(target=serve, kwargs=looks, name="strata-blobs", daemon=True).start()
        host, port = self._server.server_address[:2]
        return f"[{host!s}]:{port}" if ":" in str(host) else f"{host!s}:{port}"

    def offer(self, name: str, blob: Blob) -> None:
        """Offer a blob until it is withdrawn."""
        with self._changed:
            self._blobs[name] = blob
            self._changed.notify_all()
        self._recorder.emit(BlobAdded(blob=blob.id, what=blob.what, size_bytes=blob.size_bytes))

    def withdraw(self, prefix: str = "") -> None:
        """Withdraw the blobs whose names begin with `prefix`, and end their uploads."""
        with self._changed:
            gone = [name for name in self._blobs if name.startswith(prefix)]
            ids = {self._blobs.pop(name).id for name in gone}
            cut = [key for key in self._uploads if key[1] in ids]
            uploads = [self._uploads.pop(key) for key in cut]
            self._changed.notify_all()
        for upload in uploads:
            upload.end(NotAllowedNow(UNCONFIRMED))

    def readers(self, name: str) -> set[str]:
        """The peers that have confirmed a blob."""
        with self._changed:
            return set(self._blobs[name].readers) if name in self._blobs else set()

    def find(self, name: str) -> Blob | None:
        """The blob of that name; waits up to `OFFER_WAIT_S` for one that is not offered yet."""
        with self._changed:
            self._changed.wait_for(lambda: name in self._blobs, OFFER_WAIT_S)
            return self._blobs.get(name)

    def sending(self, blob: Blob, peer: str, attempt: str) -> BlobUpload:
        """The upload of a blob to a peer: one operation for all its range requests."""
        key = (peer, blob.id, attempt)
        forgotten = None
        with self._changed:
            if key not in self._uploads:
                if len(self._uploads) >= MAX_UPLOADS:
                    forgotten = self._uploads.pop(next(iter(self._uploads)))
                number = int(attempt) if attempt.isdecimal() else 1
                self._uploads[key] = BlobUpload(self._recorder, blob, peer, number)
            upload = self._uploads[key]
        if forgotten is not None:
            forgotten.end(NotAllowedNow(FORGOTTEN))
        return upload

    def received(self, name: str, peer: str, attempt: str, error: str) -> None:
        """Handle a peer's report that it has a blob, or why not."""
        with self._changed:
            blob = self._blobs.get(name)
            if blob is None:
                return
            upload = self._uploads.pop((peer, blob.id, attempt), None)
            if not error:
                blob.readers.add(peer)
            self._changed.notify_all()
        if upload is not None:
            upload.end(NotAllowedNow(error) if error else None)

    def wait_read(self, name: str, peers: int, timeout_s: float) -> bool:
        """Wait until `peers` peers have confirmed a blob, or it is withdrawn."""
        with self._changed:
            return self._changed.wait_for(
                lambda: name not in self._blobs or len(self._blobs[name].readers) >= peers,
                timeout_s,
            )

    def close(self) -> None:
        """Stop the server and withdraw all blobs."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
        self.withdraw()

    def became_child(self) -> None:
        """Forget the server and all blobs: a forked child serves nothing."""
        self._server, self._changed = None, threading.Condition()
        self._blobs, self._uploads = {}, {}


class BlobServer(ThreadingHTTPServer):
    """One thread per connection; there are few peers, and they read large ranges."""

    daemon_threads = True
    blobs: Blobs

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in its thread, encrypted if the task has a certificate."""
        encryption = self.blobs.encryption
        if encryption is None:
            return super().finish_request(request, client_address)
        request.settimeout(HANDSHAKE_TIMEOUT_S)
        with encryption.accepted(request) as encrypted:
            super().finish_request(encrypted, client_address)

    def handle_error(self, request: object, client_address: object) -> None:
        """Log a broken connection instead of writing it to stderr."""
        log.debug("a connection from %s broke", client_address, exc_info=True)


class BlobHandler(BaseHTTPRequestHandler):
    """`GET name` with an optional Range, `POST name` to confirm, `PUT` for a message."""

    protocol_version = "HTTP/1.1"
    timeout = IDLE_S
    server: BlobServer

    def do_GET(self) -> None:
        """Send a blob, or a range of it."""
        if not self._is_member():
            return
        blob = self.server.blobs.find(self._name())
        if blob is None:
            return self._answer(404)
        start, stop = self._range(blob.size_bytes)
        if start >= stop and blob.size_bytes:
            return self._answer(416)
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("Content-Length", str(stop - start))
        self.send_header("X-Strata-Size", str(blob.size_bytes))
        self.end_headers()
        with self.server.blobs.sending(blob, *self._peer()) as upload:
            for view in blob.views(start, stop):
                for at in range(0, view.nbytes, SEND_BYTES):
                    chunk = view[at : at + SEND_BYTES]
                    self.wfile.write(chunk)
                    upload.sent(chunk.nbytes)

    def do_POST(self) -> None:
        """Handle a peer's confirmation; the body is its error, if any."""
        if not self._is_member():
            return
        length = min(int(self.headers.get("Content-Length") or 0), 1_000)
        error = self.rfile.read(length).decode("utf-8", "replace")
        self.server.blobs.received(self._name(), *self._peer(), error)
        self._answer(204)

    def do_PUT(self) -> None:
        """Handle a message; 204 if it was accepted, 409 with the reason if not."""
        length = int(self.headers.get("Content-Length") or 0)
        self.close_connection = True
        if not 0 < length <= MAX_MESSAGE_BYTES:
            return self._answer(413)
        sender, _ = self._peer()
        message = self.rfile.read(length)
        cause = unquote(self.headers.get(CAUSE_HEADER, ""))[:300]
        rejection = self.server.blobs.on_message(message, sender, self._proven(), cause)
        self._answer(409 if rejection else 204, rejection)

    def _is_member(self) -> bool:
        if self._proven():
            return True
        self.close_connection = True
        self._answer(403)
        return False

    def _proven(self) -> bool:
        token = self.server.blobs.token
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        return bool(token) and hmac.compare_digest(given.encode(), token.encode())

    def _name(self) -> str:
        return unquote(self.path.lstrip("/"))

    def _peer(self) -> tuple[str, str]:
        peer = self.headers.get(PEER_HEADER) or self.client_address[0]
        return unquote(peer)[:200], (self.headers.get(ATTEMPT_HEADER) or "1")[:10]

    def _range(self, size_bytes: int) -> tuple[int, int]:
        unit, _, asked = self.headers.get("Range", "").partition("=")
        first, _, last = asked.partition("-")
        if unit != "bytes" or not first.isdecimal() or (last and not last.isdecimal()):
            return 0, size_bytes
        return int(first), min(int(last) + 1 if last else size_bytes, size_bytes)

    def _answer(self, status: int, text: str = "") -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        log.debug(format, *arguments)
