"""The results of a round: fetched from workers that have them, and offered on.

A few threads fetch what was announced. Each result is verified, offered to others under the same
name, and kept until the round is over. A result that its author cannot give is asked of the
neighbour that announced it, in turns, until it is here or the tries are spent.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable

import xxhash

from strata.errors import Corrupt, StrataError
from strata.sdk.blobs import Blob, Blobs
from strata.sdk.channel import delays_s
from strata.sdk.events import Recorder
from strata.sdk.exchange import LinkBroken
from strata.sdk.gossip import Announcement
from strata.sdk.peers import Circle

log = logging.getLogger(__name__)

WHAT = "update"
THREADS = 4
TRIES = 6
CHUNK_BYTES = 16 << 20
WAIT_SLICE_S = 0.05


def checksum(data: bytes | bytearray) -> str:
    """What a result is verified by."""
    return xxhash.xxh3_128_hexdigest(data)


class Collector:
    """Collects for one worker, one generation at a time; its methods are for any thread."""

    def __init__(self, blobs: Blobs, recorder: Recorder) -> None:
        self._blobs, self._recorder = blobs, recorder
        self._news = threading.Condition()
        self._circle: Circle | None = None
        self._wanted: deque[tuple[Circle, Announcement, str]] = deque()
        self._threads = 0
        self._results: dict[int, dict[str, bytes | bytearray]] = {}
        self._failure = ""

    def open(self, circle: Circle) -> None:
        """A generation begins."""
        with self._news:
            self._circle, self._failure = circle, ""
            self._results.clear()
            self._wanted.clear()
        self._blobs.withdraw(f"{WHAT}/")

    def put(self, said: Announcement, data: bytes | bytearray) -> None:
        """A result is here: others may have it too."""
        name = f"{WHAT}/{said.generation}/{said.step}/{said.author}"
        self._blobs.offer(name, Blob(said.blob, WHAT, [memoryview(data)]))
        with self._news:
            self._results.setdefault(said.step, {})[said.author] = data
            self._news.notify_all()

    def fetch_soon(self, said: Announcement, sender: str) -> None:
        """A result was announced: it is fetched in the background."""
        with self._news:
            if self._circle is None or self._circle.generation != said.generation:
                return
            self._wanted.append((self._circle, said, sender))
            if self._threads < THREADS:
                self._threads += 1
                threading.Thread(target=self._work, name="strata-fetch", daemon=True).start()

    def wait(self, step: int, over: Callable[[], bool]) -> dict[str, bytes | bytearray]:
        """Everyone's results of a round, by author; raises `LinkBroken` if they cannot be had."""
        with self._news:
            assert self._circle is not None, "a generation was opened"
            everyone = self._circle.addresses.keys()
            while not everyone <= self._results.get(step, {}).keys():
                if over() or self._failure:
                    raise LinkBroken(self._failure or "the generation is over")
                self._news.wait(WAIT_SLICE_S)
            return self._results[step]

    def finish(self, step: int) -> None:
        """The round is over: its results are let go of."""
        with self._news:
            self._results.pop(step, None)
        if self._circle is not None:
            self._blobs.withdraw(f"{WHAT}/{self._circle.generation}/{step}/")

    def _work(self) -> None:
        while True:
            with self._news:
                if not self._wanted:
                    self._threads -= 1
                    return
                circle, said, sender = self._wanted.popleft()
            data = self._fetch(circle, said, sender)
            if data is not None and circle is self._circle:
                self.put(said, data)

    def _fetch(self, circle: Circle, said: Announcement, sender: str) -> bytearray | None:
        """A result from a worker that has it; None if none gave it, or it is not needed now."""
        sources = [said.author, *({sender} & circle.addresses.keys() - {said.author})]
        delays = delays_s(0.2, 5.0)
        for attempt in range(1, TRIES + 1):
            if circle is not self._circle:
                return None
            source = sources[(attempt - 1) % len(sources)]
            try:
                return self._fetch_from(circle, said, source, attempt)
            except StrataError as error:
                log.warning("%s could not be had from %s: %s", said.message, source, error)
                failure = f"{said.message} could not be had from {source}: {error.message}"
            threading.Event().wait(next(delays))
        with self._news:
            if circle is self._circle:
                self._failure = failure
                self._news.notify_all()
        return None

    def _fetch_from(
        self, circle: Circle, said: Announcement, source: str, attempt: int
    ) -> bytearray:
        peer = circle.peer(source, attempt, self._recorder)
        name = f"{WHAT}/{said.generation}/{said.step}/{said.author}"
        download = peer.downloading(said.blob, said.size_bytes, WHAT)
        data = bytearray(said.size_bytes)
        try:
            for at in range(0, said.size_bytes, CHUNK_BYTES):
                peer.read_into(name, at, [memoryview(data)[at : at + CHUNK_BYTES]])
                download.progress(min(at + CHUNK_BYTES, said.size_bytes))
            if checksum(data) != said.blob:
                raise Corrupt(f"what {source} gives for {said.message} is not what was announced")
            download.end()
            peer.confirm(name)
        except StrataError as error:
            download.end(error)
            peer.confirm(name, error.message)
            raise
        return data
