"""Download the results of a round from peers, and offer them to others.

A few threads download what was announced. Each result is verified, offered under the same name, and
kept until the round is over. If the author cannot provide its result, the download alternates
between the author and the neighbor that announced it, for at most `TRIES` attempts.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable

import xxhash

from strata.errors import Corrupt, StrataError
from strata.sdk.peers.blob_client import Circle
from strata.sdk.peers.blob_server import Blob, Blobs
from strata.sdk.peers.exchange import LinkBroken
from strata.sdk.peers.gossip import Announcement
from strata.sdk.record.recorder import Recorder
from strata.sdk.session.channel import delays_s

log = logging.getLogger(__name__)

WHAT = "update"
THREADS = 4
TRIES = 6
CHUNK_BYTES = 16 << 20
POLL_S = 0.05


def checksum(data: bytes | bytearray) -> str:
    """The checksum by which a result is verified."""
    return xxhash.xxh3_128_hexdigest(data)


class Collector:
    """Collects results for one worker, one generation at a time. Thread-safe."""

    def __init__(self, blobs: Blobs, recorder: Recorder) -> None:
        self._blobs, self._recorder = blobs, recorder
        self._changed = threading.Condition()
        self._circle: Circle | None = None
        self._queue: deque[tuple[Circle, Announcement, str]] = deque()
        self._threads = 0
        self._results: dict[int, dict[str, bytes | bytearray]] = {}
        self._failure = ""

    def enter(self, circle: Circle) -> None:
        """Switch to a new generation and drop the results of the last one."""
        with self._changed:
            self._circle, self._failure = circle, ""
            self._results.clear()
            self._queue.clear()
        self._blobs.withdraw(f"{WHAT}/")

    def add(self, announced: Announcement, data: bytes | bytearray) -> None:
        """Add a result and offer it to peers."""
        self._blobs.offer(
            _blob_name(announced), Blob(id=announced.blob, what=WHAT, segments=[memoryview(data)])
        )
        with self._changed:
            self._results.setdefault(announced.step, {})[announced.author] = data
            self._changed.notify_all()

    def fetch_soon(self, announced: Announcement, sender: str) -> None:
        """Queue the download of an announced result."""
        with self._changed:
            if self._circle is None or self._circle.generation != announced.generation:
                return
            self._queue.append((self._circle, announced, sender))
            if self._threads < THREADS:
                self._threads += 1
                threading.Thread(target=self._work, name="strata-fetch", daemon=True).start()

    def wait(self, step: int, over: Callable[[], bool]) -> dict[str, bytes | bytearray]:
        """All members' results of a round, by author; raises `LinkBroken` if one is unavailable."""
        with self._changed:
            assert self._circle is not None, "a generation was entered"
            members = self._circle.addresses.keys()
            while not members <= self._results.get(step, {}).keys():
                if over() or self._failure:
                    raise LinkBroken(self._failure or "the generation is over")
                self._changed.wait(POLL_S)
            return self._results[step]

    def finish(self, step: int) -> None:
        """Drop the results of a round that is over."""
        with self._changed:
            self._results.pop(step, None)
        if self._circle is not None:
            self._blobs.withdraw(f"{WHAT}/{self._circle.generation}/{step}/")

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._queue:
                    self._threads -= 1
                    return
                circle, announced, sender = self._queue.popleft()
            data = self._fetch(circle, announced, sender)
            if data is not None and circle is self._circle:
                self.add(announced, data)

    def _fetch(self, circle: Circle, announced: Announcement, sender: str) -> bytearray | None:
        """Download a result; None if every attempt failed or the generation has changed."""
        author = announced.author
        sources = [author, *({sender} & circle.addresses.keys() - {author})]
        delays = delays_s(0.2, 5.0)
        for attempt in range(1, TRIES + 1):
            if circle is not self._circle:
                return None
            source = sources[(attempt - 1) % len(sources)]
            try:
                return self._fetch_from(circle, announced, source, attempt)
            except StrataError as error:
                failure = f"download of {announced.message} from {source} failed: {error.message}"
                log.warning("%s", failure)
            threading.Event().wait(next(delays))
        with self._changed:
            if circle is self._circle:
                self._failure = failure
                self._changed.notify_all()
        return None

    def _fetch_from(
        self, circle: Circle, announced: Announcement, source: str, attempt: int
    ) -> bytearray:
        peer = circle.peer(source, attempt, self._recorder)
        name, size_bytes = _blob_name(announced), announced.size_bytes
        download = peer.downloading(announced.blob, size_bytes, WHAT)
        data = bytearray(size_bytes)
        try:
            for at in range(0, size_bytes, CHUNK_BYTES):
                peer.read_into(name, at, [memoryview(data)[at : at + CHUNK_BYTES]])
                download.progress(min(at + CHUNK_BYTES, size_bytes))
            if checksum(data) != announced.blob:
                raise Corrupt(f"{announced.message} from {source} has a wrong checksum")
            download.end()
            peer.confirm(name)
        except StrataError as error:
            download.end(error)
            peer.confirm(name, error.message)
            raise
        return data


def _blob_name(announced: Announcement) -> str:
    return f"{WHAT}/{announced.generation}/{announced.step}/{announced.author}"
