"""Observers of a process: functions that are called when datasets fetch files or are opened.

A run adds an observer that records this (`sdk/data/data_record`). Downloads and openings that ended
before the first observer was added are kept, up to `MAX_EARLIER` of each, and reported to it with
their age. Observers are called in the thread that downloads or opens.
"""

import re
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from threading import Lock
from typing import Literal, NamedTuple, Protocol, TypeAlias

MAX_EARLIER = 256
USER = re.compile(r"://[^/@]*@")

FetchPhase: TypeAlias = Literal["requested", "started", "progress", "completed"]
_numbers = count(1)


class Fetch(NamedTuple):
    """A download of a file: requested, started, in progress or completed.

    `number` identifies the download within the process. `batch` is empty if the file is fetched to
    open the dataset. `queued_s` is how long it waited before it started, for space in the cache or
    for another process that fetched the same file; in the latter case `shared` is True and nothing
    was downloaded here. `attempt` counts the failed downloads of the file before, plus this one.
    `ago_s` is the age of a download that ended before there was an observer.
    """

    number: int
    phase: FetchPhase
    dataset: str
    batch: str
    source: str
    size_bytes: int
    done_bytes: int = 0
    attempt: int = 1
    queued_s: float = 0.0
    took_s: float = 0.0
    error: str = ""
    shared: bool = False
    ago_s: float = 0.0


class Opening(NamedTuple):
    """The opening of a dataset, running or ended. `range_bytes` were read from files without
    fetching them.
    """

    number: int
    completed: bool
    dataset: str
    source: str
    files: int = 0
    samples: int = 0
    range_bytes: int = 0
    took_s: float = 0.0
    error: str = ""
    ago_s: float = 0.0


class Observer(Protocol):
    """Receives every download and every opening; must not raise."""

    def fetched(self, fetch: Fetch) -> None: ...

    def opened(self, opening: Opening) -> None: ...


class Observers:
    """The observers of a process."""

    def __init__(self) -> None:
        self._observers: tuple[Observer, ...] = ()
        self._earlier: deque[tuple[float, Fetch | Opening]] = deque(maxlen=MAX_EARLIER)
        self._lock = Lock()

    def add(self, observer: Observer) -> None:
        """Add an observer; the first one also gets what ended before."""
        with self._lock:
            earlier = [] if self._observers else [*self._earlier]
            self._earlier.clear()
            self._observers = (*self._observers, observer)
        now_s = time.monotonic()
        for ended_s, event in earlier:
            event = event._replace(ago_s=now_s - ended_s)
            observer.fetched(event) if isinstance(event, Fetch) else observer.opened(event)

    def remove(self, observer: Observer) -> None:
        with self._lock:
            left = tuple(each for each in self._observers if each is not observer)
            self._observers = left

    def fetched(self, fetch: Fetch) -> None:
        """Report a download."""
        for observer in self._observers:
            observer.fetched(fetch)
        if not self._observers and fetch.phase == "completed":
            self._earlier.append((time.monotonic(), fetch))

    def opened(self, opening: Opening) -> None:
        """Report an opening."""
        for observer in self._observers:
            observer.opened(opening)
        if not self._observers and opening.completed:
            self._earlier.append((time.monotonic(), opening))

    @contextmanager
    def collecting(self) -> Iterator[list[Fetch]]:
        """Collect the downloads that end meanwhile instead of reporting them.

        For a process that reads for another one: they are sent there, and reported to its
        observers.
        """
        # Without the lock: in a process that was forked while another thread held it, it is never
        # released.
        collector, before = _Collector(), self._observers
        self._observers = (collector,)
        try:
            yield collector.ended
        finally:
            self._observers = before


class _Collector:
    """Collects the downloads that ended."""

    def __init__(self) -> None:
        self.ended: list[Fetch] = []

    def fetched(self, fetch: Fetch) -> None:
        if fetch.phase == "completed":
            self.ended.append(fetch)

    def opened(self, opening: Opening) -> None:
        """Ignored: openings are reported by the process that requested the dataset."""


OBSERVERS = Observers()
"""The observers of this process."""


def next_number() -> int:
    """A unique number for a download or an opening."""
    return next(_numbers)


def without_credentials(place: str) -> str:
    """A path or URL without user, password and query."""
    if "://" not in place:
        return place
    return USER.sub("://", place).partition("?")[0]


class OpeningNotes:
    """Figures about a dataset, collected while it is opened."""

    def __init__(self) -> None:
        self.files = self.samples = self.range_bytes = 0


@contextmanager
def observed_opening(dataset: str, source: str) -> Iterator[OpeningNotes]:
    """Report that a dataset is being opened, and the result."""
    opening = Opening(
        number=next_number(), completed=False, dataset=dataset, source=without_credentials(source)
    )
    begun_s = time.monotonic()
    OBSERVERS.opened(opening)
    notes, error = OpeningNotes(), ""
    try:
        yield notes
    except BaseException as failure:
        error = f"{type(failure).__name__}: {failure}"
        raise
    finally:
        OBSERVERS.opened(
            opening._replace(
                completed=True,
                files=notes.files,
                samples=notes.samples,
                range_bytes=notes.range_bytes,
                took_s=time.monotonic() - begun_s,
                error=error,
            )
        )


class Download:
    """A download since it was requested; `received` may be called by several threads."""

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
            number=next_number(),
            phase="requested",
            dataset=dataset,
            batch=batch,
            source=without_credentials(source),
            size_bytes=size_bytes,
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
        """Report that the download begins."""
        self._started_s = time.monotonic()
        self._due_s = self._started_s + self._every_s
        self._fetch = self._fetch._replace(queued_s=self._started_s - self._requested_s)
        self._tell("started")

    def received(self, size_bytes: int) -> None:
        """Count received bytes, and report them at intervals."""
        with self._lock:
            self._done_bytes += size_bytes
            if time.monotonic() < self._due_s:
                return
            self._due_s = time.monotonic() + self._every_s
        self._tell("progress")

    def completed(self, error: str = "", *, shared: bool = False) -> None:
        """Report the end of the download, or its error; `shared` if another process downloaded the
        file.
        """
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
