"""One file on its way to this host, as the observers of this process are told of it."""

import time
from threading import Lock

from strata.data.observers import OBSERVERS, Fetch, FetchPhase, next_number, without_credentials


class Download:
    """A download from the moment it is asked for; `came` may be called by several threads."""

    def __init__(
        self,
        *,
        dataset: str,
        batch: str,
        source: str,
        size_bytes: int,
        attempt: int,
        progress_s: float,
    ) -> None:
        self._fetch = Fetch(
            next_number(),
            "requested",
            dataset,
            batch,
            without_credentials(source),
            size_bytes,
            attempt=attempt,
        )
        self._every_s = progress_s
        self._requested_s = time.monotonic()
        self._started_s: float | None = None
        self._due_s = 0.0
        self._done_bytes = 0
        self._lock = Lock()
        self._tell("requested")

    def started(self) -> None:
        """The first byte is asked for."""
        self._started_s = time.monotonic()
        self._due_s = self._started_s + self._every_s
        self._fetch = self._fetch._replace(queued_s=self._started_s - self._requested_s)
        self._tell("started")

    def came(self, size_bytes: int) -> None:
        """Some bytes are on this host; told now and then."""
        with self._lock:
            self._done_bytes += size_bytes
            if time.monotonic() < self._due_s:
                return
            self._due_s = time.monotonic() + self._every_s
        self._tell("progress")

    def completed(self, error: str = "", *, shared: bool = False) -> None:
        """The file is here, or why not; `shared` if another process has fetched it."""
        now_s = time.monotonic()
        begun_s = self._started_s
        self._fetch = self._fetch._replace(
            error=error,
            shared=shared,
            queued_s=(now_s if begun_s is None else begun_s) - self._requested_s,
            took_s=0.0 if begun_s is None else now_s - begun_s,
        )
        self._tell("completed")

    def _tell(self, phase: FetchPhase) -> None:
        OBSERVERS.fetched(self._fetch._replace(phase=phase, done_bytes=self._done_bytes))
